"""``OpenAIChatTransport``: LM Studio, vLLM and other servers with an OpenAI-compatible API, with a verdict on every call.

Such servers have no request for a window and no promise to refuse: the window is what ``/v1/models`` tells (``max_model_len``)
or what the caller sets, and the verdict rests on counts and bytes. Nor do they tell which strings their templates read as
special tokens: texts go out as they are. ``llama_cpp.py`` builds on this class and knows more.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from rune.errors import PromptRefused, ServerBusy, ServerUnreachable, StreamCut, TransportError
from rune.messages import Message
from rune.transports.base import CallAttempt, ChatReply, Event, ModelListing, UsageCounters
from rune.transports.discovery import ModelFacts
from rune.transports.host import ServerAddress, parse_url
from rune.transports.http import HttpClient, Retry, Stream, Timeouts
from rune.transports.ollama_chat import token_limit
from rune.transports.openai_chat import ChatRequest, build_request, with_room
from rune.transports.openai_models import facts_from_entry, is_public, listing_from_entry, model_entries
from rune.transports.openai_reply import ErrorNames, ReplyBuilder
from rune.transports.server_errors import read_error
from rune.transports.stop import StopSignal
from rune.transports.stream import LineError, SseDecoder, SseEvent
from rune.transports.verdict import ServerTraits, judge

__all__ = ["OpenAIChatTransport"]

DISCOVERY_READ_TIMEOUT = 5.0


class OpenAIChatTransport(UsageCounters):
    """Calls to one OpenAI-compatible server.

    Args:
        base_url: the server's address; ``/v1`` is added when it has no path.
        api_key: sent as a bearer token; None takes ``RUNE_API_KEY``. Never shown.
        context_length: the window in tokens, for servers that do not tell theirs; lowers what they tell, never raises it.
        timeouts, retry: limits of the HTTP calls.
    """

    provider: ClassVar[str] = "openai-compatible"
    fixed_window: bool = True
    _SERVER: ClassVar[str] = "an OpenAI-compatible server"
    _KEY_HINT: ClassVar[str] = "Pass api_key or set RUNE_API_KEY to the key that this server expects."
    _UNREACHABLE: ClassVar[str] = "Start the server (LM Studio, vLLM, …), or correct its base URL."

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        context_length: int | None = None,
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
    ) -> None:
        super().__init__()
        address = parse_url(base_url)
        if address.url.count("/") == 2:
            address = ServerAddress(f"{address.url}/v1", address.loopback, address.auth, address.note)
        self._setup(address, api_key, context_length, timeouts, retry)

    def _setup(
        self,
        address: ServerAddress | None,
        api_key: str | None,
        context_length: int | None,
        timeouts: Timeouts | None,
        retry: Retry | None,
    ) -> None:
        key = _key_of_the_environment() if api_key is None else api_key
        self.context_length = token_limit(context_length, "context_length")
        self._timeouts = timeouts or Timeouts()
        self._retry = retry or Retry()
        self._state_lock = threading.Lock()
        self._known: dict[str, ModelFacts] = {}
        self._calls: set[StopSignal] = set()
        self._http: HttpClient | None = None
        if address is not None:
            self._connect(address, key)

    def _connect(self, address: ServerAddress, key: str) -> None:
        self.address = address
        self._names = ErrorNames(
            self._SERVER,
            address.url,
            model_hint="`rune models` lists what is there.",
            key_hint=self._KEY_HINT,
            secrets=tuple(s for s in (key, address.auth[1] if address.auth else "") if s),
        )
        self._http = HttpClient(
            address.url,
            loopback=address.loopback,
            unreachable_hint=self._UNREACHABLE,
            timeouts=self._timeouts,
            retry=self._retry,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            auth=None if key else address.auth,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address.url!r})"

    @property
    def server_key(self) -> str:
        """Names the server for caches."""
        return f"{self.provider} {self.address.url}"

    # --- what a kind of server has of its own ---------------------------------------------------------------------------

    _PREFIX: ClassVar[str] = ""
    """What stands between the address and ``/chat/completions``."""

    def _client(self, on_event: Callable[[Event], None] | None = None) -> HttpClient:
        """The HTTP client; a server of our own is started here."""
        assert self._http is not None
        return self._http

    def _resolve(self, model: str) -> str:
        """The model to ask for. Raises ``ModelNotFound``."""
        return model

    def _fit_for_wire(self, messages: Sequence[Message], model: str) -> tuple[Sequence[Message], list[str]]:
        """The messages as they may go out, and sentences about what had to be changed."""
        return messages, []

    def _extra(self) -> dict[str, Any]:
        """Fields that this kind of server wants in the body."""
        return {}

    def _traits(self) -> ServerTraits:
        return ServerTraits(can_refuse=self.can_refuse())

    # --- chat -----------------------------------------------------------------------------------------------------------

    def chat(
        self,
        messages: Sequence[Message],
        *,
        model: str,
        tools: Sequence[Mapping[str, Any]] = (),
        num_ctx: int | None = None,
        num_predict: int | None = None,
        num_keep: int | None = None,
        format: Any = None,
        think: bool | str | None = None,
        keep_alive: str | int | None = None,
        options: Mapping[str, Any] | None = None,
        estimate: int | None = None,
        on_event: Callable[[Event], None] | None = None,
        cancel: threading.Event | None = None,
    ) -> ChatReply:
        """Send messages (normal form) and return the reply with its verdict.

        ``num_ctx``, ``num_keep`` and ``keep_alive`` have no place on this wire and are not sent; the reply's ``num_ctx`` is
        the window that the server has, 0 when it is unknown.

        Raises:
            PromptRefused, ModelNotFound, ServerBusy, ServerUnreachable, StreamCut (also when cancelled), BadReply: see
            ``rune.errors``.
            InvalidInput: a count of tokens that is none, no model, or a format that is none.
        """
        token_limit(num_ctx, "num_ctx")
        client = self._client(on_event)
        request = self._request(
            messages,
            model,
            tools=tools,
            num_predict=num_predict,
            format=format,
            think=think,
            options=options,
            estimate=estimate,
        )
        begun, attempts = time.perf_counter(), list[CallAttempt]()
        with self._stoppable(cancel) as stop:
            while True:
                builder = ReplyBuilder(request.model, self._names)
                try:
                    with client.stream("POST", self._path, request.body, cancel=stop, log=attempts) as stream:
                        decode = self._decoder(stream, builder, stream.read)
                        for chunk in stream.chunks():
                            self._feed(builder, decode(chunk), on_event)
                            if builder.closed:
                                break
                        self._end(builder, decode(None), on_event)
                    return self._finished(builder, request, attempts, begun)
                except TransportError as exc:
                    self._lost(exc, builder)
                    request, wait = self._again(exc, request, attempts)
                if stop.wait(wait):
                    raise StreamCut(
                        "The call was cancelled while it waited for its next attempt.", url=self.address.url
                    )

    async def achat(
        self,
        messages: Sequence[Message],
        *,
        model: str,
        num_ctx: int | None = None,
        num_keep: int | None = None,
        keep_alive: str | int | None = None,
        on_event: Callable[[Event], None] | None = None,
        **arguments: Any,
    ) -> ChatReply:
        """``chat`` for asyncio, with the same arguments but ``cancel``: cancelling the task closes the connection."""
        import asyncio

        token_limit(num_ctx, "num_ctx")
        # What comes before is short, or the load of a model: a thread keeps the loop free.
        client = await asyncio.to_thread(self._client, on_event)
        request = await asyncio.to_thread(self._request, messages, model, **arguments)
        begun, attempts = time.perf_counter(), list[CallAttempt]()
        while True:
            builder = ReplyBuilder(request.model, self._names)
            try:
                async with client.astream("POST", self._path, request.body, log=attempts) as stream:
                    body = b"" if stream.status == 200 else await stream.aread()
                    decode = self._decoder(stream, builder, body.strip)
                    async for chunk in stream.achunks():
                        self._feed(builder, decode(chunk), on_event)
                        if builder.closed:
                            break
                    self._end(builder, decode(None), on_event)
                return self._finished(builder, request, attempts, begun)
            except TransportError as exc:
                self._lost(exc, builder)
                request, wait = self._again(exc, request, attempts)
            await asyncio.sleep(wait)

    @property
    def _path(self) -> str:
        return f"{self._PREFIX}/chat/completions"

    def _request(self, messages: Sequence[Message], model: str, **arguments: Any) -> ChatRequest:
        model = self._resolve(model)
        facts = self._facts(model)
        fit, notes = self._fit_for_wire(messages, model)
        window = facts.trained_window if facts is not None else self.context_length
        return build_request(fit, model=model, window=window, extra=self._extra(), notes=notes, **arguments)

    def _decoder(
        self, stream: Stream, builder: ReplyBuilder, read: Callable[[], bytes]
    ) -> Callable[[bytes | None], Iterator[SseEvent]]:
        """What turns chunks into events; None ends the stream. Raises the error of an answer that is not 200."""
        if stream.status != 200:
            raise self._names.exception(read_error(read()), stream.status, builder.model)
        if "json" in stream.headers.get("content-type", ""):
            return _whole_object(builder)
        sse = SseDecoder()
        return lambda chunk: sse.finish() if chunk is None else sse.feed(chunk)

    def _feed(
        self, builder: ReplyBuilder, events: Iterator[SseEvent], on_event: Callable[[Event], None] | None
    ) -> None:
        try:
            for item in events:
                for event in builder.take(item):
                    if on_event is not None:
                        on_event(event)
                if builder.closed:
                    return
        except LineError as exc:
            raise builder.bad(f"data that is no JSON object: {exc.line}") from None

    def _end(self, builder: ReplyBuilder, rest: Iterator[SseEvent], on_event: Callable[[Event], None] | None) -> None:
        if not builder.closed:
            self._feed(builder, rest, on_event)
        if not builder.done:
            raise StreamCut(
                f"The reply of {self.address.url} ended before the server said that it was done "
                f"({len(builder.text)} characters had arrived). The server may have stopped; ask again.",
                partial_text=builder.text,
                url=self.address.url,
            )

    def _again(
        self, exc: TransportError, request: ChatRequest, attempts: list[CallAttempt]
    ) -> tuple[ChatRequest, float]:
        """What to send next and after how many seconds; raises the error when nothing more can be tried."""
        if isinstance(exc, ServerBusy) and exc.status == 429:
            attempts[-1] = CallAttempt("HTTP 429", attempts[-1].elapsed_ms)
            tried = sum(attempt.error == "HTTP 429" for attempt in attempts)
            if tried < self._retry.attempts:
                return request, min(self._retry.first_wait * 2**tried, self._retry.longest_wait)
        if isinstance(exc, PromptRefused):
            shorter = with_room(request, exc)
            if shorter is not None:
                attempts[-1] = CallAttempt("max_tokens over the window", attempts[-1].elapsed_ms)
                return shorter, 0.0
        raise exc

    def _lost(self, exc: TransportError, builder: ReplyBuilder) -> None:
        """After a lost connection another server may answer the next call: its facts are asked again."""
        if isinstance(exc, StreamCut) and not exc.partial_text:
            exc.partial_text = builder.text
        if isinstance(exc, (StreamCut, ServerUnreachable)):
            self._forget()

    def _forget(self) -> None:
        with self._state_lock:
            self._known.clear()

    def _finished(
        self, builder: ReplyBuilder, request: ChatRequest, attempts: list[CallAttempt], begun: float
    ) -> ChatReply:
        reply = builder.reply(request)
        reply.attempts = attempts
        reply.elapsed_ms = (time.perf_counter() - begun) * 1000
        reply.remote = is_public(self.address)
        traits = self._traits()
        reply.verdict = judge(
            traits=traits,
            done=reply.done,
            # There is nothing to ask with: a server that can refuse does so always.
            asked_to_refuse=traits.can_refuse is True,
            prompt_tokens=reply.prompt_tokens,
            output_tokens=reply.output_tokens,
            window=request.num_ctx or None,
            estimate=request.size.estimate,
            upper_bound=request.size.upper_bound(None),
            words=request.size.words,
        )
        self.count(reply)
        return reply

    @contextmanager
    def _stoppable(self, cancel: threading.Event | None) -> Iterator[StopSignal]:
        """A stop signal for one call that the caller, ``close`` and the end of the process can give."""
        stop = StopSignal(cancel)
        with self._state_lock:
            self._calls.add(stop)
        try:
            yield stop
        finally:
            with self._state_lock:
                self._calls.discard(stop)

    # --- questions about the server -------------------------------------------------------------------------------------

    def _facts(self, model: str) -> ModelFacts | None:
        """The facts about a model, asked for once; None when the server does not answer (the call itself will say so)."""
        with self._state_lock:
            known = self._known.get(model)
        if known is None:
            try:
                known = self.fetch_facts(model)
            except TransportError:
                return None
            with self._state_lock:
                self._known[model] = known
        return known

    def fetch_facts(self, model: str) -> ModelFacts:
        """Ask ``/v1/models`` about a model. Without a window there ``trained_window`` is the one set, or None.

        Raises a ``TransportError``.
        """
        return facts_from_entry(model, self._entries(), self.context_length)

    def models(self) -> list[ModelListing]:
        """The models of ``/v1/models``. Raises a ``TransportError``."""
        return [listing_from_entry(entry) for entry in self._entries()]

    def can_refuse(self) -> bool | None:
        """Whether the server refuses a prompt longer than its window: not known of OpenAI-compatible servers at large."""
        return None

    def count_tokens(self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] = ()) -> int | None:
        """The exact size of a prompt by the server's tokenizer and template, or None where the server cannot tell."""
        return None

    def _entries(self) -> list[Mapping[str, Any]]:
        answer = self._ask("GET", f"{self._PREFIX}/models")
        return model_entries(answer)

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """A short question: one attempt, a read limit of its own, a JSON object back."""
        answer = self._client().request(method, path, body, attempts=1, read_timeout=DISCOVERY_READ_TIMEOUT)
        if answer.status != 200:
            raise self._names.exception(read_error(answer.body), answer.status, "")
        try:
            return SseEvent("message", answer.body.decode("utf-8", "replace")).json()
        except LineError as exc:
            raise ReplyBuilder("", self._names).bad(f"something that is no JSON object: {exc.line}") from None

    def _stop_calls(self) -> None:
        """End the calls that run in other threads, and wait until their connections are closed."""
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            with self._state_lock:
                calls = list(self._calls)
            if not calls:
                return
            for stop in calls:
                stop.set()
            time.sleep(0.01)

    def close(self) -> None:
        """End running calls and let go of the HTTP client. Safe to call twice."""
        self._stop_calls()
        if self._http is not None:
            self._http.close()


def _key_of_the_environment() -> str:
    return (os.environ.get("RUNE_OPENAI_API_KEY") or os.environ.get("RUNE_API_KEY") or "").strip()


def _whole_object(builder: ReplyBuilder) -> Callable[[bytes | None], Iterator[SseEvent]]:
    """The decoder for a server that answers in one JSON object although it was asked to stream."""
    parts: list[bytes] = []

    def decode(chunk: bytes | None) -> Iterator[SseEvent]:
        if chunk is not None:
            parts.append(chunk)
            return
        yield SseEvent("message", b"".join(parts).decode("utf-8", "replace"))
        builder.closed = True

    return decode
