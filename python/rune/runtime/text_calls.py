"""Calls in a reply: those of the server's own form, mended where they can be, and those that stand in its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rune.kernels import digest
from rune.messages import Message
from rune.runtime.loose_json import LooseJsonError, read_object
from rune.runtime.tool_call_parser import parse_calls
from rune.runtime.tools import Tool
from rune.transports.base import ChatReply

__all__ = ["ReadReply", "read_native", "read_text", "tool_parameters"]


@dataclass(frozen=True, slots=True)
class ReadReply:
    """A reply as it enters the run: its message in normal form, its calls, and why some of these cannot be made (by position)."""

    message: Message
    calls: Sequence[dict[str, Any]] = ()
    errors: Mapping[int, str] = field(default_factory=dict)


def tool_parameters(tools: Mapping[str, Tool]) -> dict[str, tuple[str, ...]]:
    """The names of the tools with those of their parameters."""
    return {name: tuple(tool.parameters.get("properties", {})) for name, tool in tools.items()}


def read_native(
    reply: ChatReply, parameters: Mapping[str, Sequence[str]], *, seed: str, results: Sequence[str] = ()
) -> ReadReply:
    """A reply of a model that was given tools in the request.

    Arguments that came as a text of loose JSON are made an object. A reply that consists of nothing but calls in its text, as
    some models give it that their server does not understand, is taken for those calls.
    """
    if not reply.tool_calls:
        parsed = parse_calls(reply.text, parameters, results)
        plain = all(call.name in parameters and not call.error for call in parsed.calls)
        if parsed.calls and plain and not parsed.prose:
            return read_text(reply, parameters, seed=seed, results=results)
        return ReadReply(reply.message())
    calls = [_mended(call) for call in reply.tool_calls]
    return ReadReply({**reply.message(), "tool_calls": calls}, calls)


def read_text(
    reply: ChatReply, parameters: Mapping[str, Sequence[str]], *, seed: str, results: Sequence[str] = ()
) -> ReadReply:
    """A reply of a model that was told of its tools in words.

    ``seed`` makes the ids of its calls; ``results`` are what tools gave before, which it may quote.
    """
    if reply.tool_calls:  # the server understood them after all
        return read_native(reply, parameters, seed=seed)
    parsed = parse_calls(reply.text, parameters, results)
    if not parsed.calls:
        return ReadReply(reply.message())
    calls = [
        {
            "id": digest(f"{seed} {number}")[:9],  # nine letters and digits, as the strictest templates want them
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(parsed.calls)
    ]
    errors = {
        number: f"the call cannot be read: {call.error}. Write it again, as one JSON object with name and arguments."
        for number, call in enumerate(parsed.calls)
        if call.error
    }
    message = {**reply.message(), "content": parsed.prose}
    return ReadReply({**message, "tool_calls": calls}, calls, errors)


def _mended(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    if not isinstance(function.get("arguments"), str):
        return call
    try:
        return {**call, "function": {**function, "arguments": read_object(function["arguments"])}}
    except LooseJsonError:
        return call
