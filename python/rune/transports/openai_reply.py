"""A reply of ``/v1/chat/completions`` put together from its chunks, and what the server's errors are called. No IO."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rune.errors import BadReply, ModelNotFound, PromptRefused, ServerBusy, TransportError
from rune.messages import compact_json, normalise_one
from rune.transports.base import ChatReply, Event, Progress, TextDelta, ThinkingDelta
from rune.transports.openai_chat import ChatRequest
from rune.transports.server_errors import ServerError, read_error, to_exception
from rune.transports.stream import SseEvent

__all__ = ["ErrorNames", "ReplyBuilder"]

_IN_THE_MESSAGES = re.compile(r"\((?P<prompt>\d+) in (?:the )?messages")
_NO_MODEL_TYPES = frozenset({"model_not_found", "NotFoundError"})
_NO_MODEL = re.compile(
    r"\bmodel\b.{0,200}\b(?:not found|does not exist|not loaded)\b|\bno models? (?:is |are )?loaded\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ErrorNames:
    """How a server and its remedies are called in error messages. ``secrets`` are taken out of what it said."""

    server: str
    url: str
    model_hint: str = ""
    key_hint: str = ""
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def exception(self, error: ServerError, status: int | None, model: str) -> TransportError:
        """The exception for a server's error, by the rules of ``server_errors`` and those of the OpenAI form."""
        found = to_exception(
            error,
            status=status,
            server=self.server,
            url=self.url,
            model=model,
            model_hint=self.model_hint,
            key_hint=self.key_hint,
            secrets=self.secrets,
        )
        where: dict[str, Any] = {"status": status, "server_words": found.server_words, "url": self.url}
        words = found.server_words
        if isinstance(found, PromptRefused):
            match = _IN_THE_MESSAGES.search(words)
            if match:  # "you requested 5000 tokens (4000 in the messages, 1000 in the completion)"
                found.n_prompt_tokens = int(match["prompt"])
        elif status == 429:
            return ServerBusy(
                f"{self.server} at {self.url} takes no more calls for now (HTTP 429), through every retry. It said: "
                f"{words or 'nothing'}. Try again later.",
                **where,
            )
        elif status in (400, 404) and (error.type in _NO_MODEL_TYPES or _NO_MODEL.search(words)):
            return ModelNotFound(f"The model {model!r} is not there: {words}. {self.model_hint}".rstrip(), **where)
        return found


@dataclass(slots=True)
class _Call:
    """A tool call whose pieces are still coming."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ReplyBuilder:
    """A reply put together from the chunks of a stream, or from the one object of a server that does not stream."""

    model: str
    names: ErrorNames
    closed: bool = False
    finish_reason: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    served_by: str = ""
    _text: list[str] = field(default_factory=list)
    _thinking: list[str] = field(default_factory=list)
    _calls: dict[int, _Call] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text that has arrived."""
        return "".join(self._text)

    @property
    def done(self) -> bool:
        """Whether the server gave a reason to finish and then closed the reply."""
        return self.closed and bool(self.finish_reason)

    def take(self, event: SseEvent) -> list[Event]:
        """Takes one server-sent event and returns what it adds. Raises the errors of ``feed``, and ``LineError``."""
        if event.data.strip() == "[DONE]":
            self.closed = True
            return []
        item = event.json()
        if event.event == "error" and not item.get("error"):
            item = {"error": item}
        return self.feed(item)

    def feed(self, item: Mapping[str, Any]) -> list[Event]:
        """Takes one object: a chunk of a stream (``delta``) or a whole reply (``message``).

        Raises:
            TransportError: the object is an error of the server's (its kind by ``server_errors``).
            BadReply: the object has a shape that no reply has.
        """
        if item.get("error"):
            raise self.failure(item)
        for name in ("usage", "timings"):
            if isinstance(item.get(name), Mapping):
                setattr(self, name, item[name])
        if isinstance(item.get("model"), str):
            self.served_by = item["model"]
        events: list[Event] = []
        progress = item.get("prompt_progress")
        if isinstance(progress, Mapping):
            events.append(
                Progress("prompt", _count(progress.get("processed")) or 0, _count(progress.get("total")) or 0)
            )
        choices = item.get("choices")
        if choices is None or choices == []:
            return events
        if not isinstance(choices, list) or not isinstance(choices[0], Mapping):
            raise self.bad(f"choices that are none: {str(choices)[:100]}")
        choice = choices[0]
        part = choice.get("delta") if choice.get("delta") is not None else choice.get("message")
        if part is not None:
            if not isinstance(part, Mapping):
                raise self.bad(f"a delta that is no object: {str(part)[:100]}")
            events += self._texts(part)
            self._tool_calls(part)
        if choice.get("finish_reason"):
            self.finish_reason = str(choice["finish_reason"])
        return events

    def _texts(self, part: Mapping[str, Any]) -> list[Event]:
        events: list[Event] = []
        make: Callable[[str], Event]
        # The same thinking comes under one name or the other, never under both.
        thinking = "reasoning_content" if part.get("reasoning_content") else "reasoning"
        for key, store, make in ((thinking, self._thinking, ThinkingDelta), ("content", self._text, TextDelta)):
            value = part.get(key)
            if value is None or value == "":
                continue
            if not isinstance(value, str):
                raise self.bad(f"a {key} that is no text: {str(value)[:100]}")
            store.append(value)
            events.append(make(value))
        return events

    def _tool_calls(self, part: Mapping[str, Any]) -> None:
        calls = part.get("tool_calls") or []
        if not isinstance(calls, list):
            raise self.bad(f"tool_calls that are no list: {str(calls)[:100]}")
        for piece in calls:
            function = piece.get("function") if isinstance(piece, Mapping) else None
            if not isinstance(function, Mapping):
                raise self.bad(f"a tool call that is none: {str(piece)[:100]}")
            index = piece.get("index")
            if not isinstance(index, int):  # a server that sends calls whole leaves the number out
                index = len(self._calls)
            call = self._calls.setdefault(index, _Call())
            call.id = str(piece.get("id") or call.id)
            call.name = str(function.get("name") or call.name)
            arguments = function.get("arguments")
            if isinstance(arguments, Mapping):
                arguments = compact_json(arguments)
            if arguments:
                call.arguments.append(str(arguments))

    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls in normal form. Raises ``BadReply`` for one without a name."""
        if not all(call.name for call in self._calls.values()):
            raise self.bad("a tool call without a function name")
        raw = []
        for position, index in enumerate(sorted(self._calls)):
            call = self._calls[index]
            function = {"name": call.name, "arguments": "".join(call.arguments)}
            raw.append({"id": call.id or f"call_{position}", "type": "function", "function": function})
        message = normalise_one({"role": "assistant", "content": "", "tool_calls": raw})
        return message.get("tool_calls") or []

    def bad(self, what: str) -> BadReply:
        """The error for something that is no reply."""
        return BadReply(
            f"The server at {self.names.url} answered with {what}. Is it really {self.names.server}?",
            partial_text=self.text,
            url=self.names.url,
            server_words=what,
        )

    def failure(self, item: Mapping[str, Any]) -> TransportError:
        """The error for an ``error`` object inside a stream that had begun."""
        error = self.names.exception(read_error(dict(item)), None, self.model)
        if isinstance(error, BadReply):
            error.partial_text = self.text
        return error

    def reply(self, request: ChatRequest) -> ChatReply:
        """The reply so far; counts are None where the server gave none (0 prompt tokens is no count)."""
        prompt, output, cached = self._counts()
        prompt_ms, output_ms = _number(self.timings.get("prompt_ms")), _number(self.timings.get("predicted_ms"))
        total = None if prompt_ms is None or output_ms is None else int((prompt_ms + output_ms) * 1e6)
        return ChatReply(
            text=self.text,
            thinking="".join(self._thinking),
            tool_calls=self.tool_calls(),
            done=self.done,
            done_reason=self.finish_reason,
            prompt_tokens=prompt,
            output_tokens=output,
            cached_tokens=cached,
            total_duration_ns=total,
            prompt_duration_ns=None if prompt_ms is None else int(prompt_ms * 1e6),
            model=self.served_by or request.model,
            num_ctx=request.num_ctx,
            num_predict=request.num_predict,
            wire_digest=request.wire_digest,
            notes=list(request.notes),
        )

    def _counts(self) -> tuple[int | None, int | None, int | None]:
        """Prompt, output and cached tokens. ``timings.prompt_n`` is the new part only: the cached one belongs to it."""
        details = self.usage.get("prompt_tokens_details")
        cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else None
        if cached is None:
            cached = _count(self.timings.get("cache_n"))
        prompt = _count(self.usage.get("prompt_tokens"))
        if not prompt:
            new = _count(self.timings.get("prompt_n"))
            prompt = None if new is None or cached is None else new + cached
        output = _count(self.usage.get("completion_tokens"))
        if output is None:
            output = _count(self.timings.get("predicted_n"))
        return prompt or None, output, cached


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if 0 <= value < 2**63 else None
