"""The fields of a run record, version 4, in their order, with their defaults; and rows of any version brought to that form.

Versions only ever add fields: v1 the record itself, v2 routing, v3 capability, v4 capsule fidelity. What Rune adds beyond them
lives under ``ext``, which has a version of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rune.storage.rows import Row

__all__ = ["EXT_VERSION", "FIELDS", "SCHEMA_VERSION", "SINCE", "defaults", "normalise_row"]

SCHEMA_VERSION = 4
EXT_VERSION = 1


class _Field(NamedTuple):
    default: Callable[[], Any]
    fits: Callable[[Any], bool]
    since: int = 1


def _whole(value: Any) -> bool:
    return not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _table(value: Any) -> bool:
    return isinstance(value, dict)


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _table_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def _or_null(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _null() -> None:
    return None


_ANY = _or_null(lambda value: True)

FIELDS: dict[str, _Field] = {
    "schema_version": _Field(lambda: 1, _whole),
    "provider": _Field(str, _text),
    "model": _Field(str, _text),
    "task_id": _Field(str, _text),
    "channel": _Field(str, _text),
    "resolved_context_window": _Field(int, _whole),
    "input_budget": _Field(int, _whole),
    "model_calls": _Field(int, _whole),
    "prompt_tokens_estimated": _Field(int, _whole),
    "prompt_tokens_served": _Field(int, _whole),
    "output_tokens": _Field(int, _whole),
    "latency_ms": _Field(float, _number),
    "model_time_ms": _Field(float, _number),
    "per_block_tokens": _Field(dict, _table_of(_whole)),
    "dropped_blocks": _Field(list, _list_of(_table)),
    "tools_exposed": _Field(list, _list_of(_text)),
    "memories_exposed": _Field(list, _list_of(_text)),
    "memory_tokens": _Field(int, _whole),
    "degraded": _Field(list, _list_of(_text)),
    "cache": _Field(_null, _ANY),
    "cost_usd": _Field(_null, _or_null(_number)),
    "cost_basis": _Field(str, _text),
    "success": _Field(bool, _flag),
    "error": _Field(_null, _or_null(_text)),
    "routing_reason": _Field(str, _text, 2),
    "routing_mode": _Field(str, _text, 2),
    "task_family": _Field(str, _text, 2),
    "selected_tools": _Field(list, _list_of(_text), 3),
    "capability_reason": _Field(str, _text, 3),
    "find_capability_calls": _Field(int, _whole, 3),
    "capsule_messages": _Field(_null, _or_null(_list_of(_table)), 4),
    "capsule_content_hashes": _Field(dict, _table_of(_text), 4),
    "capsule_token_count": _Field(int, _whole, 4),
}
"""The specified fields in their order. A row without ``schema_version`` is taken for the oldest."""

SINCE: dict[str, int] = {name: known.since for name, known in FIELDS.items()}
"""The schema version that brought each field."""

_EXT = _Field(dict, _table)


def defaults() -> Row:
    """A row of version 4 with every field at its default, ``ext`` last."""
    row = {name: known.default() for name, known in FIELDS.items()}
    return {**row, "schema_version": SCHEMA_VERSION, "ext": {}}


def normalise_row(row: Mapping[str, Any]) -> tuple[Row, list[str]]:
    """The row with every field of version 4, in order, then whatever else it holds; and the names of its bad fields.

    A missing field has its default, as rows of older versions need; a field of a wrong type falls to it and is named. The
    row's own ``schema_version`` stays.
    """
    found: Row = {}
    bad: list[str] = []
    for name, known in (*FIELDS.items(), ("ext", _EXT)):
        if name not in row:
            found[name] = known.default()
        elif known.fits(row[name]):
            found[name] = row[name]
        else:
            found[name] = known.default()
            bad.append(name)
    found.update((name, value) for name, value in row.items() if name not in found)
    return found, bad
