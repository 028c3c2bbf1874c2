"""Names found by looking up the words of a text."""

from __future__ import annotations

import pytest

from rune.errors import InvalidInput
from rune.memory import graph_memory
from rune.memory.names import WORDS_MAX, named, names_in
from rune.storage.database import Database


def found(db: Database, text: str) -> list[str]:
    with db.read() as connection:
        return names_in(connection, "alias", text)


def test_longest_match_at_each_place(db: Database) -> None:
    for name in ("New York", "New York Times", "York", "Times", "new"):
        graph_memory.add_entity(db, name)
    assert found(db, "The New York Times of york, in NEW-YORK") == ["new york times", "york", "new york"]
    assert found(db, "New York City, New Times") == ["new york", "new", "times"]
    assert found(db, "") == found(db, "nothing") == []


def test_names_of_other_scripts_and_with_odd_signs(db: Database) -> None:
    for name in ("東京タワー", "O'Brien", "Ångström", "हिन्दी", "C++", "AT&T", "🎉"):
        graph_memory.add_entity(db, name)
    text = "東京タワーで O’Brien met angstrom, हिन्दी in c++ at AT & T 🎉"
    assert found(db, text) == ["東 京 タ ワ ー", "o brien", "angstrom", "हिन्दी", "c++", "at t", "🎉"]


def test_a_name_without_words_or_with_too_many_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one letter or digit"):
        named(" -- ")
    with pytest.raises(InvalidInput, match="at most 32 words"):
        named("word " * (WORDS_MAX + 1))
    assert named("word " * WORDS_MAX).n == WORDS_MAX


def test_the_cost_hangs_on_the_text_and_not_on_the_names(db: Database) -> None:
    with db.write() as connection:
        for number in range(3000):
            graph_memory.write_entity(connection, f"name{number} of number {number}", created=0.0)
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    with db.read() as connection:
        connection.set_progress_handler(count, 1)
        assert names_in(connection, "alias", "who is name77 of number 77 and where") == ["name77 of number 77"]
        connection.set_progress_handler(None, 0)
    assert steps < 1500  # instructions of SQLite's machine; a scan of the table takes several for each name
