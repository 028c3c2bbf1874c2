"""``OllamaChatTransport``: one Ollama server over its native API, with a verdict on every call.

The OpenAI-compatible API of the same server is not used: it has no num_ctx and no truncate, and it loses errors in streams.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from rune.errors import RemoteModelRefused, ServerUnreachable, StreamCut, TransportError
from rune.messages import Message
from rune.transports import discovery
from rune.transports.base import ChatReply, Event, ModelListing, UsageCounters
from rune.transports.discovery import ModelFacts
from rune.transports.host import parse_ollama_host
from rune.transports.http import Answer, Retry, Timeouts
from rune.transports.ollama_call import OllamaCall, prepare
from rune.transports.ollama_chat import is_remote_name, token_limit
from rune.transports.ollama_server import OllamaServer
from rune.transports.ollama_version import ps_window_is_exact, traits

__all__ = ["OllamaChatTransport"]

_TRUE = frozenset({"1", "true", "yes", "on"})


class OllamaChatTransport(UsageCounters):
    """Calls to one Ollama server.

    Args:
        host: the server's address in any form of ``OLLAMA_HOST``; None takes that variable.
        api_key: sent as a bearer token; None takes ``OLLAMA_API_KEY``. Never shown.
        allow_remote: let the server hand calls to a cloud; None takes ``RUNE_ALLOW_REMOTE``.
        timeouts, retry: limits of the HTTP calls; without ``timeouts`` those of ``RUNE_CONNECT_TIMEOUT`` and
            ``RUNE_READ_TIMEOUT``, else 5 s and 600 s.
        stream: ask for streamed replies (they can be cancelled at once).
    """

    provider: ClassVar[str] = "ollama"
    fixed_window: bool = False

    def __init__(
        self,
        host: str | None = None,
        *,
        api_key: str | None = None,
        allow_remote: bool | None = None,
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
        stream: bool = True,
    ) -> None:
        super().__init__()
        address = parse_ollama_host(os.environ.get("OLLAMA_HOST") if host is None else host)
        key = os.environ.get("OLLAMA_API_KEY", "").strip() if api_key is None else api_key
        if allow_remote is None:
            allow_remote = os.environ.get("RUNE_ALLOW_REMOTE", "").strip().lower() in _TRUE
        self.address = address
        if address.note:
            logging.getLogger("rune.transports").warning("%s", address.note)
        self.allow_remote = allow_remote
        self.stream = stream
        self._server = OllamaServer(address, key, timeouts, retry)
        self._facts_failed: set[str] = set()

    def __repr__(self) -> str:
        return f"OllamaChatTransport({self.address.url!r})"

    @property
    def server_key(self) -> str:
        """Names the server for caches."""
        return f"ollama {self.address.url}"

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

        Raises:
            PromptRefused, ModelNotFound, ServerBusy, ServerUnreachable, StreamCut (also when cancelled), BadReply,
            RemoteModelRefused: see ``rune.errors``.
            InvalidInput: a count of tokens that is none, or no model.
        """
        call = self._call(
            messages,
            model,
            on_event,
            tools=tools,
            num_ctx=num_ctx,
            num_predict=num_predict,
            num_keep=num_keep,
            format=format,
            think=think,
            keep_alive=keep_alive,
            options=options,
            estimate=estimate,
        )
        try:
            with self._server.http.stream(
                "POST", "/api/chat", call.request.body, cancel=cancel, log=call.attempts
            ) as stream:
                if stream.status != 200:
                    raise self._server.error(Answer(stream.status, stream.headers, stream.read()), model)
                for chunk in stream.chunks():
                    if call.feed(chunk):
                        break
                call.end()
        except (StreamCut, ServerUnreachable) as exc:
            self._lost(exc, call)
            raise
        return self._finished(call)

    async def achat(
        self,
        messages: Sequence[Message],
        *,
        model: str,
        on_event: Callable[[Event], None] | None = None,
        **arguments: Any,
    ) -> ChatReply:
        """``chat`` for asyncio, with the same arguments but ``cancel``: cancelling the task closes the connection."""
        import asyncio

        # The questions that come before a call are short and shared by all threads: a thread keeps the loop free.
        call = await asyncio.to_thread(self._call, messages, model, on_event, **arguments)
        try:
            async with self._server.http.astream("POST", "/api/chat", call.request.body, log=call.attempts) as stream:
                if stream.status != 200:
                    raise self._server.error(Answer(stream.status, stream.headers, await stream.aread()), model)
                async for chunk in stream.achunks():
                    if call.feed(chunk):
                        break
                call.end()
        except (StreamCut, ServerUnreachable) as exc:
            self._lost(exc, call)
            raise
        return self._finished(call)

    def _call(
        self,
        messages: Sequence[Message],
        model: str,
        on_event: Callable[[Event], None] | None,
        **arguments: Any,
    ) -> OllamaCall:
        self._refuse_remote(model, known=None)
        facts = self._facts(model)
        version = self._server.version()
        request = prepare(messages, model=model, facts=facts, version=version, stream=self.stream, **arguments)
        return OllamaCall(request, facts, version, self.address.url, self._server.secrets, on_event)

    def _lost(self, exc: StreamCut | ServerUnreachable, call: OllamaCall) -> None:
        """After a lost connection another server may answer the next call: its version is asked again."""
        if isinstance(exc, StreamCut):
            exc.partial_text = call.text
        self._server.forget_version()

    def _finished(self, call: OllamaCall) -> ChatReply:
        model, num_ctx = call.request.model, call.request.num_ctx
        reply = call.reply(allocated=self._server.allocated(model, num_ctx))
        self._server.note_sent(model, num_ctx)
        self.count(reply)
        return reply

    # --- remote models --------------------------------------------------------------------------------------------------

    def _refuse_remote(self, model: str, known: ModelFacts | None) -> None:
        if self.allow_remote:
            return
        cloud = "a cloud" if is_remote_name(model) else known.remote if known is not None else ""
        if cloud:
            raise RemoteModelRefused(
                f"The server would hand {model!r} to {cloud}, so the prompt would leave this machine. "
                "Set RUNE_ALLOW_REMOTE=1 to allow that, or take a local model (`rune models`).",
                url=self.address.url,
            )

    def _facts(self, model: str) -> ModelFacts | None:
        """The facts about a model, asked for before its first call: they tell whether the prompt would leave the machine.

        A server that does not answer this is asked once by this transport, so that its calls are not slowed down for good.
        """
        facts = discovery.known_facts(self, model)
        if facts is None and model not in self._facts_failed:
            try:
                facts = discovery.discover(self, model)
            except TransportError:
                self._facts_failed.add(model)
        self._refuse_remote(model, facts)
        return facts

    # --- questions about the server -------------------------------------------------------------------------------------

    def fetch_facts(self, model: str) -> ModelFacts:
        """Ask ``/api/show`` about a model. Raises a ``TransportError``."""
        return self._server.facts(model)

    def models(self) -> list[ModelListing]:
        """The models of ``/api/tags``; where the server does not list capabilities yet, each model is asked for its own."""
        return [self._with_chat(listing) for listing in self._server.listings()]

    def _with_chat(self, listing: ModelListing) -> ModelListing:
        if listing.chat is not None or listing.remote:
            return listing
        try:
            facts = discovery.discover(self, listing.name)
        except TransportError:
            return listing
        chat = None if facts.capabilities is None else "completion" in facts.capabilities
        return replace(listing, chat=chat, remote=facts.remote)

    def loaded_window(self, model: str) -> int | None:
        """The window that the server really runs this model with (``/api/ps``); None when it does not say.

        Lower than the ``num_ctx`` sent means that later calls have to be budgeted against this. Raises a ``TransportError``.
        """
        window = self._server.ps_window(model)
        if window is None:
            return None
        if not ps_window_is_exact(self._server.version()):
            facts = discovery.known_facts(self, model)
            if facts is not None and facts.trained_window is not None:
                window = min(window, facts.trained_window)
        self._server.note_allocated(model, window)
        return window

    def preload(self, model: str, *, num_ctx: int, keep_alive: str | int | None = None) -> None:
        """Have the model loaded with the window that calls will use. Raises the errors of ``chat``."""
        self._refuse_remote(model, known=None)
        self._facts(model)
        window = token_limit(num_ctx, "num_ctx")
        # The same shift as in every call: a different one makes the server load the model again.
        body: dict[str, Any] = {"model": model, "messages": [], "stream": False, "truncate": False, "shift": False}
        body["options"] = {"num_ctx": window}
        if keep_alive is not None:
            body["keep_alive"] = keep_alive
        answer = self._server.http.request("POST", "/api/chat", body)
        if answer.status != 200:
            raise self._server.error(answer, model)
        self._server.note_sent(model, num_ctx)

    def version(self) -> str:
        """The server's version as text. Raises a ``TransportError``."""
        return self._server.version_text()

    def can_refuse(self) -> bool | None:
        """Whether the server refuses a prompt longer than its window when asked to; None when its version is unknown."""
        return traits(self._server.version()).can_refuse

    def close(self) -> None:
        """Let go of the HTTP client. Safe to call twice."""
        self._server.http.close()
