"""Rows as lines of JSON: one line is one object, written so that every row can be read back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from rune.errors import InvalidInput

__all__ = ["Row", "decode_row", "encode_row"]

Row = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def encode_row(row: Mapping[str, Any]) -> bytes:
    """The row as one line of UTF-8 JSON without its newline. Lone surrogates are escaped; NaN and infinities become null.

    Raises InvalidInput when it is no mapping or holds what JSON has no word for.
    """
    if not isinstance(row, (dict, Mapping)):
        raise InvalidInput(f"a row is an object with names; got a {type(row).__name__}")
    try:
        return _encode(row)
    except (UnicodeEncodeError, TypeError, OverflowError):
        pass  # lone surrogates, or subclasses of str and the like
    except RecursionError as exc:
        raise InvalidInput("the row is nested too deeply to be written as JSON") from exc
    try:
        return json.dumps(_plain(row), ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
    except RecursionError as exc:
        raise InvalidInput("the row is nested too deeply to be written as JSON") from exc
    except (TypeError, ValueError) as exc:
        raise InvalidInput(f"the row cannot be written as JSON: {exc}") from exc


def decode_row(line: bytes) -> Row | None:
    """The object on a line, or None when the line is torn, is no JSON, or holds something else than an object."""
    try:
        row = _decode(line)
    except (msgspec.DecodeError, RecursionError):
        row = _decode_odd(line)
    return row if isinstance(row, dict) else None


def _decode_odd(line: bytes) -> Any:
    """What msgspec refuses and others write: lone surrogates as escapes, NaN, numbers past the range of a double."""
    try:
        return json.loads(line.decode("utf-8"), parse_constant=lambda name: None, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def _finite(digits: str) -> float | None:
    value = float(digits)
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(inner) for inner in value]
    return _plain(msgspec.to_builtins(value))
