"""The two wire forms of a message list, and the text that may stand in a request body. Nothing here does IO.

Messages come in normal form (``rune.messages``) and are never mutated. Ollama's native API takes string content and
object arguments only and answers anything else with a 400; OpenAI-compatible servers take arguments as JSON text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rune.errors import InvalidInput
from rune.messages import Message, compact_json

__all__ = [
    "json_body",
    "ollama_messages",
    "openai_messages",
    "utf8_size",
    "wire_digest",
    "wire_text",
    "wire_value",
    "word_count",
]

_SURROGATE = re.compile("[\ud800-\udfff]")


def wire_text(text: str) -> str:
    """The text as it may stand in UTF-8: surrogate pairs joined to their character, lone surrogates as U+FFFD."""
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def wire_value(value: Any) -> Any:
    """A copy of a JSON value with every text, keys included, made fit for the wire (see ``wire_text``)."""
    if isinstance(value, str):
        return wire_text(value)
    if isinstance(value, Mapping):
        return {wire_text(str(key)): wire_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [wire_value(item) for item in value]
    return value


def json_body(value: Any) -> bytes:
    """A request body: compact JSON in UTF-8. ``value`` must have gone through ``wire_value``.

    Raises:
        InvalidInput: a value that JSON does not have (NaN, infinity, an object of some class).
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8")
    except (TypeError, ValueError) as exc:
        raise InvalidInput(f"the request holds a value that JSON does not have: {exc}") from exc


def ollama_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Messages as ``/api/chat`` takes them: string content, object arguments, ``tool_name``, ``images``.

    A tool result without a name takes the name of the call that it answers: Ollama's templates print the name.
    """
    names: dict[str, str] = {}
    out: list[dict[str, Any]] = []
    for message in messages:
        wire: dict[str, Any] = {"role": message["role"], "content": wire_text(message.get("content") or "")}
        if message.get("thinking"):
            wire["thinking"] = wire_text(message["thinking"])
        calls = message.get("tool_calls") or ()
        if calls:
            wire["tool_calls"] = [_ollama_call(call, names) for call in calls]
        if message["role"] == "tool":
            call_id = message.get("tool_call_id")
            name = message.get("tool_name") or names.get(call_id or "")
            if name:
                wire["tool_name"] = wire_text(name)
            if call_id:
                wire["tool_call_id"] = wire_text(call_id)
        if message.get("images"):
            wire["images"] = list(message["images"])
        out.append(wire)
    return out


def _ollama_call(call: Mapping[str, Any], names: dict[str, str]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, Mapping):
        # Text that is no JSON object: the server would refuse the whole conversation for it, for good.
        arguments = {"arguments": arguments} if arguments else {}
    wire: dict[str, Any] = {"function": {"name": wire_text(function["name"]), "arguments": wire_value(arguments)}}
    if call.get("id"):
        names[str(call["id"])] = function["name"]
        wire = {"id": wire_text(str(call["id"])), **wire}
    return wire


def openai_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Messages as ``/v1/chat/completions`` takes them: arguments as JSON text, every call with an id, images as parts."""
    out: list[dict[str, Any]] = []
    waiting: list[str] = []
    for position, message in enumerate(messages):
        content: Any = wire_text(message.get("content") or "")
        if message.get("images"):
            content = [{"type": "text", "text": content}, *(_image_part(i) for i in message["images"])]
        wire: dict[str, Any] = {"role": message["role"], "content": content}
        if message.get("thinking"):
            wire["reasoning_content"] = wire_text(message["thinking"])
        calls = message.get("tool_calls") or ()
        if calls:
            wire["tool_calls"] = [_openai_call(call, f"call_{position}_{n}") for n, call in enumerate(calls)]
            waiting = [call["id"] for call in wire["tool_calls"]]
        if message["role"] == "tool":
            # Ollama's variant has results without ids; in the order of the calls they find theirs again.
            call_id = wire_text(message.get("tool_call_id") or (waiting[0] if waiting else f"call_{position}"))
            if call_id in waiting:
                waiting.remove(call_id)
            wire["tool_call_id"] = call_id
        if message.get("name"):
            wire["name"] = wire_text(message["name"])
        out.append(wire)
    return out


def _openai_call(call: Mapping[str, Any], fallback_id: str) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else compact_json(arguments if arguments is not None else {})
    return {
        "id": wire_text(str(call.get("id") or fallback_id)),
        "type": "function",
        "function": {"name": wire_text(function["name"]), "arguments": wire_text(text)},
    }


_IMAGE_KINDS = (("iVBOR", "png"), ("/9j/", "jpeg"), ("R0lGOD", "gif"), ("UklGR", "webp"))


def _image_part(base64: str) -> dict[str, Any]:
    kind = next((kind for start, kind in _IMAGE_KINDS if base64.startswith(start)), "png")
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{base64}"}}


def wire_digest(wire_messages: Sequence[Mapping[str, Any]]) -> str:
    """sha256 (hex) of the compact JSON of a message list as it was sent."""
    return hashlib.sha256(json_body(list(wire_messages))).hexdigest()


def utf8_size(wire_messages: Iterable[Mapping[str, Any]], tools: Iterable[Mapping[str, Any]] = ()) -> int:
    """UTF-8 bytes of everything in the messages and tool schemas that a template may print; images left out.

    JSON counts as a template prints it at its widest, indented by four.
    """
    size = 0
    for message in wire_messages:
        content = message.get("content")
        size += len(content.encode("utf-8")) if isinstance(content, str) else _widest(content)
        shown = {key: value for key, value in message.items() if key not in ("role", "images", "content")}
        if shown:
            size += _widest(shown)
    return size + sum(_widest(tool) for tool in tools)


def _widest(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, indent=4).encode("utf-8"))


def word_count(wire_messages: Iterable[Mapping[str, Any]]) -> int:
    """Words in the contents, parted by whitespace: no common tokenizer has a token that spans two of them.

    So a served count below this number means that part of the prompt was not there.
    """
    total = 0
    for message in wire_messages:
        content = message.get("content")
        if isinstance(content, str):
            total += len(content.split())
    return total
