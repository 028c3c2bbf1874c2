"""What every transport offers: one protocol, one reply type, one verdict, counters, and the events of a stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from rune.messages import Message

if TYPE_CHECKING:
    from rune.transports.discovery import ModelFacts

__all__ = [
    "CallAttempt",
    "ChatReply",
    "Event",
    "ModelListing",
    "Progress",
    "TextDelta",
    "ThinkingDelta",
    "Transport",
    "Usage",
    "UsageCounters",
    "Verdict",
    "VerdictKind",
]

VerdictKind = Literal["whole", "refused", "cut", "suspected", "shifted", "incomplete", "unknown"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the model saw the whole prompt, and how that is known.

    ``kind`` is one of the seven words of the design; ``basis`` is one sentence with the numbers it rests on.
    """

    kind: VerdictKind
    basis: str

    @property
    def flagged(self) -> bool:
        """True when the model did not, or may not have, seen the whole prompt to the end of its reply."""
        return self.kind in ("cut", "suspected", "shifted")


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A piece of the model's thinking; shown, never kept in history."""

    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a long step is: ``stage`` "loading" (no numbers), "prompt" (tokens done of total) or "summarising" (which part)."""

    stage: str
    done: int = 0
    total: int = 0


Event = TextDelta | ThinkingDelta | Progress


@dataclass(frozen=True, slots=True)
class CallAttempt:
    """One HTTP attempt of a call: what failed and how long it took. The attempt that answered has error ""."""

    error: str
    elapsed_ms: float


@dataclass(slots=True)
class ChatReply:
    """One answer of a model.

    Token counts are None where the server gave none (unknown is not 0). Durations are nanoseconds. ``wire_digest`` is the
    sha256 of the canonical JSON of the message list as it was sent; ``num_ctx`` and ``num_predict`` are the values sent.
    ``remote`` names the cloud host when the server proxied the call, else "". ``notes`` are sentences about what had to
    be sent otherwise than asked.
    """

    text: str
    thinking: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    done: bool = True
    done_reason: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    total_duration_ns: int | None = None
    prompt_duration_ns: int | None = None
    model: str = ""
    num_ctx: int = 0
    num_predict: int = 0
    verdict: Verdict = Verdict("unknown", "not judged")
    wire_digest: str = ""
    remote: str = ""
    attempts: list[CallAttempt] = field(default_factory=list)
    elapsed_ms: float = 0.0
    notes: list[str] = field(default_factory=list)

    def message(self) -> Message:
        """The assistant message of this reply in normal form, thinking included."""
        message: Message = {"role": "assistant", "content": self.text}
        if self.thinking:
            message["thinking"] = self.thinking
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return message

    def as_row(self) -> dict[str, Any]:
        """The call as it stands in ``ext.calls`` of a trace row: counts, verdict and digests, no text."""
        return {
            "model": self.model,
            "num_ctx": self.num_ctx,
            "num_predict": self.num_predict,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "total_duration_ms": None if self.total_duration_ns is None else self.total_duration_ns / 1e6,
            "prompt_duration_ms": None if self.prompt_duration_ns is None else self.prompt_duration_ns / 1e6,
            "elapsed_ms": round(self.elapsed_ms, 3),
            "done_reason": self.done_reason,
            "verdict": self.verdict.kind,
            "basis": self.verdict.basis,
            "wire_digest": self.wire_digest,
            "remote": self.remote,
            "attempts": [{"error": a.error, "elapsed_ms": round(a.elapsed_ms, 3)} for a in self.attempts],
            "notes": list(self.notes),
        }


@dataclass(slots=True)
class Usage:
    """Sums over the calls of one run: calls, prompt and output tokens (unknown counts add 0), model time in ns."""

    calls: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    total_duration_ns: int = 0

    def add(self, reply: ChatReply) -> None:
        self.calls += 1
        self.prompt_tokens += reply.prompt_tokens or 0
        self.output_tokens += reply.output_tokens or 0
        self.total_duration_ns += reply.total_duration_ns or 0


_measuring: ContextVar[tuple[Usage, ...]] = ContextVar("rune_usage", default=())


class UsageCounters:
    """The accumulators of a transport: process-wide sums, and sums per run by ``measure`` that threads do not mix."""

    def __init__(self) -> None:
        self._usage = Usage()
        self._usage_lock = threading.Lock()
        self.last_prompt_eval_count: int | None = None

    @property
    def usage_calls(self) -> int:
        return self._usage.calls

    @property
    def usage_prompt_tokens(self) -> int:
        return self._usage.prompt_tokens

    @property
    def usage_output_tokens(self) -> int:
        return self._usage.output_tokens

    @property
    def usage_total_duration_ns(self) -> int:
        return self._usage.total_duration_ns

    def count(self, reply: ChatReply) -> None:
        """Add a finished call to the transport's sums and to every ``measure`` block of this context."""
        with self._usage_lock:
            self._usage.add(reply)
            self.last_prompt_eval_count = reply.prompt_tokens
        for usage in _measuring.get():
            usage.add(reply)

    @contextmanager
    def measure(self) -> Iterator[Usage]:
        """Sums of the calls made inside the block, in this context (thread or task) alone."""
        usage = Usage()
        token = _measuring.set((*_measuring.get(), usage))
        try:
            yield usage
        finally:
            _measuring.reset(token)

    @contextmanager
    def unmeasured(self) -> Iterator[Usage]:
        """Calls inside the block count in a ``Usage`` of their own and in no outer ``measure`` (the summariser's)."""
        usage = Usage()
        token = _measuring.set((usage,))
        try:
            yield usage
        finally:
            _measuring.reset(token)


@dataclass(frozen=True, slots=True)
class ModelListing:
    """One model that a server offers: its name, size in bytes, and whether it can chat (None: unknown)."""

    name: str
    size_bytes: int | None = None
    family: str = ""
    parameter_size: str = ""
    quantization: str = ""
    chat: bool | None = None
    remote: str = ""


@runtime_checkable
class Transport(Protocol):
    """What the operator needs of a model server."""

    provider: ClassVar[str]
    fixed_window: bool
    """True when the window is set at the server's start and ``num_ctx`` in a request changes nothing."""

    @property
    def server_key(self) -> str:
        """Names the server for caches: provider and address, no credentials."""
        ...

    @property
    def usage_calls(self) -> int: ...

    @property
    def usage_prompt_tokens(self) -> int: ...

    @property
    def usage_output_tokens(self) -> int: ...

    @property
    def usage_total_duration_ns(self) -> int: ...

    last_prompt_eval_count: int | None

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

        ``estimate`` is the chars4 estimate of what is sent, for the verdict; measured here when None.

        Raises: the errors below ``TransportError``.
        """
        ...

    def fetch_facts(self, model: str) -> ModelFacts:
        """Ask the server about a model, once, uncached. Raises a ``TransportError``."""
        ...

    def models(self) -> list[ModelListing]:
        """The models this server offers. Raises a ``TransportError``."""
        ...

    def can_refuse(self) -> bool | None:
        """Whether the server refuses a prompt longer than its window when asked to; None when unknown."""
        ...

    def close(self) -> None:
        """Let go of connections and of an engine started here. Safe to call twice."""
        ...

    def measure(self) -> Any: ...

    def unmeasured(self) -> Any: ...
