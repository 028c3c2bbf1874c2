"""One call to Ollama from its request to its judged reply, without IO: chunks of bytes in, events and a reply out.

``OllamaChatTransport`` drives it from a blocking stream and from an asyncio stream alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rune.errors import StreamCut
from rune.messages import Message
from rune.transports.base import CallAttempt, ChatReply, Event
from rune.transports.discovery import FALLBACK_WINDOW, ModelFacts
from rune.transports.measure import safe_tokens
from rune.transports.ollama_chat import ChatRequest, ReplyBuilder, build_request, judge_reply, token_limit
from rune.transports.ollama_version import Version, traits
from rune.transports.stream import LineError, NdjsonDecoder

__all__ = ["OllamaCall", "prepare"]


def prepare(
    messages: Sequence[Message],
    *,
    model: str,
    facts: ModelFacts | None,
    version: Version | None,
    tools: Sequence[Mapping[str, Any]] = (),
    num_ctx: int | None = None,
    num_keep: int | None = None,
    options: Mapping[str, Any] | None = None,
    **passed: Any,
) -> ChatRequest:
    """The request, with a window of its own and, for servers that cannot refuse, the size of the system block to keep.

    A ``num_ctx`` in ``options`` is an explicit value; the argument beats it. Without either the window is 8192, or the
    trained one when that is smaller.

    Raises:
        InvalidInput: a count of tokens that is none, or no model.
    """
    window = token_limit(num_ctx, "num_ctx")
    explicit = token_limit((options or {}).get("num_ctx"), "options.num_ctx")
    if window is None:
        trained = facts.trained_window if facts is not None else None
        window = explicit or min(FALLBACK_WINDOW, trained or FALLBACK_WINDOW)
    if num_keep is None and "num_keep" not in (options or {}) and traits(version).can_refuse is not True:
        num_keep = _system_tokens(messages, tools, facts, window)
    return build_request(
        messages, model=model, num_ctx=window, num_keep=num_keep, tools=tools, options=options, **passed
    )


def _system_tokens(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], facts: ModelFacts | None, window: int
) -> int | None:
    """How many tokens of the front a server that cannot refuse should keep when it cuts: those of the system block."""
    system = [m for m in messages if m["role"] == "system"]
    if not system and not tools:
        return None
    size = safe_tokens(system, tools, vocab_size=facts.vocab_size if facts is not None else None)
    return min(size, window // 2)


@dataclass(slots=True)
class OllamaCall:
    """The state of one call. ``attempts`` is filled by the HTTP client."""

    request: ChatRequest
    facts: ModelFacts | None
    version: Version | None
    url: str
    secrets: tuple[str, ...] = ()
    on_event: Callable[[Event], None] | None = None
    attempts: list[CallAttempt] = field(default_factory=list)
    _begun: float = field(default_factory=time.perf_counter)
    _decoder: NdjsonDecoder = field(default_factory=NdjsonDecoder)
    _builder: ReplyBuilder = field(init=False)

    def __post_init__(self) -> None:
        self._builder = ReplyBuilder(self.request.model, self.url, self.secrets)

    @property
    def text(self) -> str:
        """The text that has arrived."""
        return self._builder.text

    def feed(self, chunk: bytes) -> bool:
        """Takes a chunk of the body; True when the reply is done and nothing more has to be read.

        Raises:
            TransportError: the server reported an error inside the stream.
            BadReply: the bytes are no reply.
        """
        self._take(self._decoder.feed(chunk))
        return self._builder.done

    def end(self) -> None:
        """The body is over. Raises ``StreamCut`` when the server had not said that it was done."""
        if not self._builder.done:
            self._take(self._decoder.finish())
        if not self._builder.done:
            raise StreamCut(
                f"The reply of {self.url} ended before the server said that it was done ({len(self.text)} characters had "
                "arrived). Its runner may have stopped, or it gave up on a text that repeats itself.",
                partial_text=self.text,
                url=self.url,
            )

    def _take(self, items: Iterable[dict[str, Any]]) -> None:
        try:
            for item in items:
                for event in self._builder.feed(item):
                    if self.on_event is not None:
                        self.on_event(event)
                if self._builder.done:
                    return
        except LineError as exc:
            raise self._builder.bad(f"a line that is no JSON object: {exc.line}") from None

    def reply(self, *, allocated: int | None = None) -> ChatReply:
        """The finished reply with its verdict; ``allocated`` is the window that ``/api/ps`` reported, if any."""
        reply = self._builder.reply(self.request)
        reply.attempts = self.attempts
        reply.elapsed_ms = (time.perf_counter() - self._begun) * 1000
        reply.verdict = judge_reply(
            reply,
            self.request.size,
            version=self.version,
            facts=self.facts,
            num_ctx=self.request.num_ctx,
            num_keep=self.request.num_keep,
            allocated=allocated,
        )
        if not traits(self.version).counts_all:
            reply.prompt_tokens = None  # the count leaves out what was cached: not the size of the prompt
        return reply
