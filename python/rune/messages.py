"""Messages: one normal form, one measured text, one canonical text, one rule for what a turn is.

Every part of Rune that counts, hashes, stores or sends messages uses the functions of this module, so that the ledger,
the broker, compaction and the trace can never disagree. Nothing here does IO, and inputs are never mutated.

The normal form of a message is a dict with its keys in this order (those in brackets only where they say something)::

    role        "system" | "user" | "assistant" | "tool"
    content     str ("" for null)
    [thinking]  str; assistant only
    [tool_calls]    list of {"id"?, "type"?, "function": {"name", "arguments": object}}; other keys of a call are kept
    [tool_call_id]  str; tool only
    [tool_name]     str; tool only
    [name]          str; user and assistant only
    [images]        list of base64 strings; user and tool only

Accepted on the way in: OpenAI chat dicts (content as a string, null or a list of parts; arguments as JSON text), Ollama's
variant (arguments as an object, ``tool_name``, ``images``, ``thinking``) and the old ``function`` role with
``function_call``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rune.errors import InvalidInput

__all__ = [
    "IMAGE_TOKENS",
    "Message",
    "calls_json",
    "canonical_json",
    "compact_json",
    "copy_message",
    "image_count",
    "incomplete_reason",
    "is_complete",
    "measured_text",
    "normalise",
    "normalise_one",
    "parsed_arguments",
    "split_system",
    "split_turns",
    "without_thinking",
]

Message = dict[str, Any]

IMAGE_TOKENS = 768
"""Flat cost of one image in tokens; its base64 is never counted as text."""

_ROLES = frozenset({"system", "user", "assistant", "tool"})
_DECODE = json.JSONDecoder().decode
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def compact_json(value: Any) -> str:
    """JSON with the separators ``,`` and ``:`` and non-ASCII text kept; lone surrogates stay as they are."""
    return _ENCODE(value)


def calls_json(message: Mapping[str, Any]) -> str:
    """The compact JSON of a message's tool calls, or "" when it has none."""
    calls = message.get("tool_calls")
    return _ENCODE(calls) if calls else ""


def measured_text(message: Mapping[str, Any]) -> str:
    """The text of a normal message that estimators measure: its content, then its tool calls as compact JSON."""
    calls = message.get("tool_calls")
    content: str = message["content"]
    return content + _ENCODE(calls) if calls else content


def image_count(message: Mapping[str, Any]) -> int:
    """How many images a normal message carries (each costs ``IMAGE_TOKENS``)."""
    return len(message.get("images") or ())


def without_thinking(message: Message) -> Message:
    """The same message without ``thinking``; the message itself when it has none."""
    if "thinking" not in message:
        return message
    return {k: v for k, v in message.items() if k != "thinking"}


def copy_message(message: Message) -> Message:
    """A copy that shares nothing that can change with the original."""
    copied = dict(message)
    for key in ("tool_calls", "images"):
        if key in copied:
            copied[key] = copy.deepcopy(copied[key])
    return copied


def canonical_json(messages: Iterable[Message]) -> str:
    """The text that stands for a block of normal messages when it is hashed: compact JSON, thinking left out."""
    return _ENCODE([without_thinking(m) for m in messages])


def normalise(messages: Iterable[Any], *, keep_thinking: bool = True) -> list[Message]:
    """Messages in normal form, in the given order.

    Old ``function_call`` pairs get ids ``call_0``, ``call_1`` … so that results keep their calls.

    Raises:
        InvalidInput: a message that is no mapping, has no known role, or content of a wrong type; names its position.
    """
    if isinstance(messages, (str, bytes, Mapping)):
        raise InvalidInput("messages must be a list of chat messages, not a single text or object")
    out: list[Message] = []
    legacy_id: str | None = None
    for position, given in enumerate(messages):
        message = normalise_one(given, position=position, keep_thinking=keep_thinking)
        if isinstance(given.get("function_call"), Mapping) and "tool_calls" in message:
            legacy_id = f"call_{position}"
            message["tool_calls"][0] = {"id": legacy_id, **message["tool_calls"][0]}
        elif given.get("role") == "function" and legacy_id is not None:
            message = _ordered({**message, "tool_call_id": legacy_id})
            legacy_id = None
        out.append(message)
    return out


def normalise_one(given: Any, *, position: int = 0, keep_thinking: bool = True) -> Message:
    """One message in normal form (see ``normalise``)."""
    where = f"message {position}"
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{where} is a {type(given).__name__}, not an object with role and content")
    role = given.get("role")
    if role == "function":
        role = "tool"
    elif role == "developer":
        role = "system"
    if role not in _ROLES:
        raise InvalidInput(f"{where} has the role {role!r}; known are system, user, assistant, tool")
    text, images = _content(given.get("content"), where)
    message: Message = {"role": role, "content": text}
    if role == "assistant":
        thinking = given.get("thinking") or given.get("reasoning_content")
        if keep_thinking and isinstance(thinking, str) and thinking:
            message["thinking"] = thinking
        calls = _tool_calls(given, where)
        if calls:
            message["tool_calls"] = calls
    elif role == "tool":
        if given.get("tool_call_id"):
            message["tool_call_id"] = str(given["tool_call_id"])
        name = given.get("tool_name") or given.get("name")
        if name:
            message["tool_name"] = str(name)
    if role in ("user", "assistant") and isinstance(given.get("name"), str) and given["name"]:
        message["name"] = given["name"]
    given_images = given.get("images")
    if isinstance(given_images, Sequence) and not isinstance(given_images, str):
        images = [*images, *(str(i) for i in given_images)]
    if images and role in ("user", "tool"):
        message["images"] = images
    return message


_ORDER = ("role", "content", "thinking", "tool_calls", "tool_call_id", "tool_name", "name", "images")


def _ordered(message: Message) -> Message:
    return {key: message[key] for key in _ORDER if key in message}


def _content(value: Any, where: str) -> tuple[str, list[str]]:
    """Text and images of a content value: a string, null, or a list of parts."""
    if value is None:
        return "", []
    if isinstance(value, str):
        return str(value), []
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        texts: list[str] = []
        images: list[str] = []
        for part in value:
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
                texts.append(part["text"])
            elif isinstance(part, Mapping) and part.get("type") == "image_url":
                images.append(_image(part.get("image_url"), where))
            else:
                kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
                raise InvalidInput(f"{where} has a content part of type {kind!r}; known are text and image_url")
        return "\n".join(texts), images
    raise InvalidInput(f"{where} has content of type {type(value).__name__}; it must be text, null or a list of parts")


def _image(value: Any, where: str) -> str:
    url = value.get("url") if isinstance(value, Mapping) else value
    if isinstance(url, str) and url.startswith("data:") and ";base64," in url:
        return url.split(";base64,", 1)[1]
    raise InvalidInput(
        f"{where} has an image that is not a base64 data URL; local models are not sent out to fetch one"
    )


def _tool_calls(given: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    calls = given.get("tool_calls")
    if not calls and isinstance(given.get("function_call"), Mapping):
        calls = [{"type": "function", "function": given["function_call"]}]
    if not calls:
        return []
    if isinstance(calls, (str, Mapping)) or not isinstance(calls, Sequence):
        raise InvalidInput(f"{where} has tool_calls that are no list")
    out: list[dict[str, Any]] = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidInput(f"{where} has a tool call without a function name")
        out.append({**call, "function": {**function, "arguments": parsed_arguments(function.get("arguments"))}})
    return out


def parsed_arguments(value: Any) -> Any:
    """Arguments as an object; text that is no JSON object stays text, so that nothing is lost."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            parsed = _DECODE(value)
        except ValueError:
            return value
        return parsed if isinstance(parsed, dict) else value
    return dict(value) if isinstance(value, Mapping) else value


def split_system(messages: Iterable[Message]) -> tuple[list[str], list[Message]]:
    """The texts of system messages (each once, in order) and all other messages."""
    texts: dict[str, None] = {}
    rest: list[Message] = []
    for message in messages:
        if message["role"] != "system":
            rest.append(message)
        elif message["content"].strip():
            texts.setdefault(message["content"])
    return list(texts), rest


def split_turns(messages: Iterable[Message]) -> list[list[Message]]:
    """Messages cut into turns: a user message and all up to the next one.

    User messages that follow one another directly belong to one turn, so that none of them is left without its answer.
    Messages before the first user message form a turn of their own.
    """
    turns: list[list[Message]] = []
    previous = ""
    for message in messages:
        role = message["role"]
        if not turns or (role == "user" and previous != "user"):
            turns.append([])
        turns[-1].append(message)
        previous = role
    return turns


def incomplete_reason(turn: Sequence[Message]) -> str | None:
    """Why a turn cannot be offered as history, or None when it is complete.

    A complete turn begins with the user, ends with an answer in text, and has a result for every tool call and a call for
    every result. Sending less than that makes servers reject the request for good.
    """
    if not turn or turn[0]["role"] != "user":
        return "no user message"
    waiting: list[str | None] = []
    for message in turn:
        if message["role"] == "assistant":
            if waiting:
                return "tool call without result"
            waiting = [call.get("id") for call in message.get("tool_calls") or ()]
        elif message["role"] == "tool":
            call_id = message.get("tool_call_id")
            if call_id in waiting:
                waiting.remove(call_id)
            elif waiting and (call_id is None or None in waiting):
                waiting.pop(0)
            else:
                return "tool result without call"
        elif waiting:
            return "tool call without result"
    if waiting:
        return "tool call without result"
    last = turn[-1]
    if last["role"] != "assistant" or not last["content"].strip():
        return "no answer"
    return None


def is_complete(turn: Sequence[Message]) -> bool:
    """Whether a turn can be offered as history (see ``incomplete_reason``)."""
    return incomplete_reason(turn) is None
