"""JSON as models write it: with single quotes, Python's words, trailing commas, comments, names without quotes.

What is read is never guessed: a text that could mean two things is an error with its place. Time is linear in what is looked
at, depth is bounded, and what comes out is JSON again (no NaN, no infinity).
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

__all__ = ["DEPTH_MAX", "LooseJsonError", "read_object", "read_value"]

DEPTH_MAX = 64

_SPACE = re.compile(r"(?:\s+|//[^\n]*|#[^\n]*)*")
_STRING = re.compile(
    r'"""(?P<long>.*?)"""'
    r'|"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"'
    r"|'(?P<single>[^'\\]*(?:\\.[^'\\]*)*)'",
    re.DOTALL,
)
_NUMBER = re.compile(r"[-+]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][-+]?\d++)?+(?![\w.])", re.ASCII)
_WORD = re.compile(r"[A-Za-z_$][\w$-]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""}
_AS_IT_IS = frozenset("\"'\\/`")
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


class LooseJsonError(ValueError):
    """What stands at ``position`` cannot be read; the message says what was expected there."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


def read_value(text: str, start: int = 0) -> tuple[Any, int]:
    """The value that begins at ``start`` (space before it is skipped), and where it ends. Raises LooseJsonError."""
    return _value(text, _skip(text, start), 0)


def read_object(text: str) -> dict[str, Any]:
    """A text that is one object and nothing else but a code fence around it. Raises LooseJsonError."""
    stripped = text.strip()
    if stripped.startswith("```"):
        stripped = stripped.strip("`").strip()
        stripped = stripped.removeprefix("json").lstrip()
    value, end = read_value(stripped)
    if not isinstance(value, dict):
        raise LooseJsonError("expected an object", 0)
    if _skip(stripped, end) != len(stripped):
        raise LooseJsonError("expected nothing after the object", end)
    return value


def _skip(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found is not None else position


def _value(text: str, position: int, depth: int) -> tuple[Any, int]:
    if depth > DEPTH_MAX:
        raise LooseJsonError(f"nested more than {DEPTH_MAX} deep", position)
    first = text[position : position + 1]
    if first == "{":
        return _object(text, position + 1, depth)
    if first == "[":
        return _array(text, position + 1, depth)
    if first in ('"', "'"):
        return _string(text, position)
    number = _NUMBER.match(text, position)
    if number is not None:
        return _number(number[0], position), number.end()
    word = _WORD.match(text, position)
    if word is not None and word[0] in _WORDS:
        return _WORDS[word[0]], word.end()
    raise LooseJsonError("expected a value" if first else "it ends too early", position)


def _object(text: str, position: int, depth: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    position = _skip(text, position)
    while text[position : position + 1] != "}":
        if text[position : position + 1] in ('"', "'"):
            key, position = _string(text, position)
        else:
            word = _WORD.match(text, position)
            if word is None:
                raise LooseJsonError("expected a name" if position < len(text) else "it ends too early", position)
            key, position = word[0], word.end()
        position = _skip(text, position)
        if text[position : position + 1] != ":":
            raise LooseJsonError(f"expected ':' after {key[:40]!r}", position)
        found[key], position = _value(text, _skip(text, position + 1), depth + 1)
        position = _after(text, position, "}")
    return found, position + 1


def _array(text: str, position: int, depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    position = _skip(text, position)
    while text[position : position + 1] != "]":
        value, position = _value(text, position, depth + 1)
        found.append(value)
        position = _after(text, position, "]")
    return found, position + 1


def _after(text: str, position: int, closing: str) -> int:
    """Behind a comma, or at the closing bracket."""
    position = _skip(text, position)
    following = text[position : position + 1]
    if following == ",":
        return _skip(text, position + 1)
    if following != closing:
        raise LooseJsonError(f"expected ',' or '{closing}'" if following else "it ends too early", position)
    return position


def _string(text: str, position: int) -> tuple[str, int]:
    found = _STRING.match(text, position)
    if found is None:
        raise LooseJsonError("a text without its closing quote", position)
    if found["long"] is not None:
        return found["long"], found.end()
    if found["double"] is not None:
        try:
            return json.loads(found[0], strict=False), found.end()
        except ValueError:  # an escape that JSON does not have
            return _unescaped(found["double"]), found.end()
    return _unescaped(found["single"]), found.end()


def _unescaped(raw: str) -> str:
    def one(match: re.Match[str]) -> str:
        what = match[1]
        if len(what) > 1:
            return chr(int(what[1:], 16))
        if what in _ESCAPES:
            return _ESCAPES[what]
        return what if what in _AS_IT_IS else match[0]  # such as \d of a pattern

    plain = _ESCAPE.sub(one, raw)
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")  # joins pairs


def _number(text: str, position: int) -> int | float:
    try:
        value: int | float = int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError as exc:  # more digits than Python turns into a number
        raise LooseJsonError("a number that is too long", position) from exc
    if isinstance(value, float) and not math.isfinite(value):
        raise LooseJsonError("a number that is too large", position)
    return value
