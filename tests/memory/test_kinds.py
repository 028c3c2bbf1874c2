"""The uniform way to every kind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rune.errors import InvalidInput
from rune.memory import kinds
from rune.storage.database import Database

EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "memory": ("User likes green tea", {"source": "chat"}),
    "persona": ("Speak like a green pirate", {"source": "chat"}),
    "fact": ("Green is a colour", {"source": "book"}),
    "entity": ("Green Anna", {"type": "person", "aliases": ["Anya"]}),
    "edge": ("Green Anna -> lives in -> Oslo", {"weight": 2.0, "source": "chat"}),
    "neuron": ("green tea", {"note": "a drink"}),
}


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_every_kind_is_added_listed_found_and_forgotten(db: Database, kind: str) -> None:
    text, fields = EXAMPLES[kind]
    assert kinds.list_rows(db, kind) == kinds.search(db, kind, "green") == []
    assert kinds.count(db, kind) == 0
    row = kinds.add(db, kind, text, **fields)
    (listed,) = kinds.list_rows(db, kind)
    assert (listed["kind"], listed["id"], listed["text"]) == (kind, row, text)
    assert {name: list(v) if isinstance(v := listed[name], tuple) else v for name in fields} == fields
    json.dumps(listed)
    assert kinds.search(db, kind, "green") == [listed]
    assert kinds.search(db, kind, "violet") == []
    assert kinds.count(db, kind) == 1
    assert kinds.forget(db, kind, row) == [row]
    assert kinds.count(db, kind) == 0
    with pytest.raises(InvalidInput, match=f"there is no {kind} {row}"):
        kinds.forget(db, kind, row)


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_lists_are_paged_latest_first(db: Database, kind: str) -> None:
    texts = [f"a{n} -> b -> c{n}" if kind == "edge" else f"row {n}" for n in range(5)]
    ids = [kinds.add(db, kind, text) for text in texts]
    assert [row["id"] for row in kinds.list_rows(db, kind, limit=2)] == ids[:2:-1]
    if kind != "entity":
        assert [row["id"] for row in kinds.list_rows(db, kind, limit=2, offset=3)] == ids[1::-1]


@pytest.mark.parametrize("text", ["Anna", "Anna -> Oslo", "a -> b -> c -> d", " -> b -> c", "a ->  -> c"])
def test_a_connection_that_is_not_three_parts_is_refused(db: Database, text: str) -> None:
    with pytest.raises(InvalidInput, match="Anna -> lives in -> Oslo"):
        kinds.add(db, "edge", text)


def test_a_connection_may_be_written_with_bars_or_arrows(db: Database) -> None:
    first = kinds.add(db, "edge", "Anna | lives in | Oslo")
    assert kinds.add(db, "edge", "Anna → lives in → Oslo") == first


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_numbers_beyond_what_is_stored_are_no_crash(db: Database, kind: str) -> None:
    kinds.add(db, kind, EXAMPLES[kind][0])
    assert len(kinds.list_rows(db, kind, limit=1 << 70)) == len(kinds.search(db, kind, "green", limit=1 << 70)) == 1
    assert kinds.list_rows(db, kind, offset=1 << 70) == kinds.list_rows(db, kind, limit=-5) == []
    for row in (1 << 70, -1, 0):
        with pytest.raises(InvalidInput, match="there is no"):
            kinds.forget(db, kind, row)


def test_unknown_kinds_and_fields_are_refused(db: Database) -> None:
    for act in (kinds.list_rows, kinds.count):
        with pytest.raises(InvalidInput, match="known are memory, persona"):
            act(db, "weather")
    with pytest.raises(InvalidInput, match="colour: no field of kind memory, which has source"):
        kinds.add(db, "memory", "x", colour="red")
    assert kinds.add(db, "memory", "x", source=None) == 1
