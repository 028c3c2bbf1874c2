"""Abstraction: learned facts, looked up by what the words of a task have in common with their text.

The most telling words of the task become ``LIKE '%word%'`` patterns over a trigram index, so that a fact about a
"database" is found by "data"; a whole word counts more than its start, and a start more than a word's inside. Patterns hold
letters and digits only: no character of a task is a wildcard. Facts are held against them with a space around every word
and every character of a script without spaces, so that short words and pairs of characters fill a trigram as well.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rune.errors import InvalidInput
from rune.memory import text_index
from rune.memory.ids import free_ids
from rune.memory.render import block
from rune.memory.terms import clean, index_terms, query_terms, units
from rune.storage.database import Database

__all__ = ["HEADING", "Abstraction", "Fact", "connect", "write_facts"]

HEADING = "My learned knowledge"
TOP = 3
TEXT_MAX = 100_000  # characters of one fact
_KNOWN_MAX, _UNKNOWN_MAX = 3, 1  # patterns looked up for one task
_BEGINNINGS_MAX = 24  # terms of a task of which it is asked whether a stored word begins so
_HITS_MAX = 12  # facts read for one pattern, the latest first
_WHOLE, _START, _INSIDE = 1.0, 0.5, 0.2


@dataclass(frozen=True, slots=True)
class Fact:
    """One learned fact; ``created`` in epoch seconds."""

    id: int
    text: str
    source: str
    created: float


def connect(db: Database) -> Abstraction:
    """A handle on the facts of ``db``; nothing is opened before it is asked."""
    return Abstraction(db)


class Abstraction:
    """The learned facts of one database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def facts(self, task: str, limit: int = TOP) -> str | None:
        """The block of the facts that have most in common with ``task``, in the order of ids, or None. StorageError."""
        found = sorted(self.search(task, limit), key=lambda fact: fact.id)
        return block(HEADING, [fact.text for fact in found])

    def search(self, query: str, limit: int = 20) -> list[Fact]:
        """As ``facts``, as rows and best first; equal scores: the latest first."""
        with self._db.read() as connection:
            scores = _scores(connection, query)
            best = sorted(scores, key=lambda row: (-scores[row], -row))[: max(0, limit)]
            marks = ",".join("?" * len(best))
            rows = connection.execute(
                f"SELECT id, text, source, created FROM fact WHERE id IN ({marks})", best
            ).fetchall()
        return sorted((Fact(*row) for row in rows), key=lambda fact: best.index(fact.id))

    def add(self, text: str, *, source: str = "") -> int:
        """Store a fact and return its id; a fact that is there already keeps its own. Raises InvalidInput, StorageError."""
        folded = _folded(text)
        with self._db.write() as connection:
            known = connection.execute(
                "SELECT id FROM fact WHERE folded = ? AND text = ?", (folded, clean(text))
            ).fetchone()
            if known:
                return int(known[0])
            counts = text_index.Counts("fact")
            fact = {"text": text, "source": source, "created": self._db.clock()}
            (row,) = write_facts(connection, [fact], counts)
            counts.flush(connection)
            return row

    def forget(self, fact_id: int) -> list[int]:
        """Remove a fact for good; raises InvalidInput when there is none."""
        with self._db.write() as connection:
            row = connection.execute("SELECT terms, folded FROM fact WHERE id = ?", (fact_id,)).fetchone()
            if row is None:
                raise InvalidInput(f"there is no fact {fact_id}; list them to see the ids")
            text_index.uncount(connection, "fact", [row[0]])
            connection.execute(
                "INSERT INTO fact_like (fact_like, rowid, folded) VALUES ('delete', ?, ?)", (fact_id, row[1])
            )
            connection.execute("INSERT INTO fact_like (fact_like) VALUES ('optimize')")
            connection.execute("DELETE FROM fact WHERE id = ?", (fact_id,))
        self._db.checkpoint()
        return [fact_id]

    def list(self, limit: int = 50, offset: int = 0) -> list[Fact]:
        """Facts, the latest first."""
        with self._db.read() as connection:
            rows = connection.execute(
                "SELECT id, text, source, created FROM fact ORDER BY id DESC LIMIT ? OFFSET ?", (limit, offset)
            ).fetchall()
        return [Fact(*row) for row in rows]


def write_facts(
    connection: sqlite3.Connection, facts: Iterable[dict[str, Any]], counts: text_index.Counts
) -> list[int]:
    """Insert facts (``text``, ``source``, ``created``, perhaps ``id``) inside a write transaction; returns their ids.

    Questions find them best once ``counts`` is flushed.
    """
    facts = list(facts)
    ids = free_ids(connection, "fact", [fact.get("id") for fact in facts])
    rows = [
        (
            i,
            clean(fact["text"]),
            clean(fact["source"]),
            fact["created"],
            _folded(fact["text"]),
            index_terms(fact["text"]),
        )
        for i, fact in zip(ids, facts, strict=True)
    ]
    connection.executemany(
        "INSERT INTO fact (id, text, source, created, folded, terms, length) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(*row[:5], " ".join(row[5]), len(row[5])) for row in rows],
    )
    connection.executemany("INSERT INTO fact_like (rowid, folded) VALUES (?, ?)", [(row[0], row[4]) for row in rows])
    counts.add([row[5] for row in rows])
    return ids


def _folded(text: object) -> str:
    """What patterns are held against: the words of the text between spaces."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"a fact needs some text; got {text!r:.80}")
    if len(text) > TEXT_MAX:
        raise InvalidInput(f"a fact holds at most {TEXT_MAX:,} characters, and this one has {len(text):,}; split it")
    return f" {' '.join(units(text))} "


def _scores(connection: sqlite3.Connection, task: str) -> dict[int, float]:
    total = connection.execute("SELECT rows FROM stat WHERE kind = 'fact'").fetchone()
    if not total or not total[0]:
        return {}
    scores: dict[int, float] = {}
    for pattern, df in _patterns(connection, task):
        hits = connection.execute(
            "SELECT rowid, folded FROM fact_like WHERE folded LIKE ? ORDER BY rowid DESC LIMIT ?",
            (f"%{pattern}%", _HITS_MAX),
        ).fetchall()
        weight = math.log(1 + total[0] / max(len(hits), df, 1))
        word = pattern.strip()
        for row, folded in hits:
            how = _WHOLE if f" {word} " in folded else _START if f" {word}" in folded else _INSIDE
            scores[row] = round(scores.get(row, 0.0) + weight * how, 9)
    return scores


def _patterns(connection: sqlite3.Connection, task: str) -> list[tuple[str, int]]:
    """The task's terms that the fewest facts have, as words or as beginnings of words, and one that may be inside a word.

    Each with the number of facts that are known to have it.
    """
    terms, _ = query_terms(task)
    df = text_index.frequencies(connection, "fact", terms)
    absent = [term for term in terms if term not in df and len(term) > 2]
    longer = connection.execute(
        "SELECT value, (SELECT sum(df) FROM (SELECT df FROM term_df WHERE kind = 'fact' AND term > value"
        " AND term < value || char(1114111) LIMIT 20)) FROM json_each(?)",
        (json.dumps(absent[:_BEGINNINGS_MAX]),),
    )
    df.update((term, number) for term, number in longer if number)
    known = sorted(df, key=lambda term: (df[term], term))
    inside = sorted((term for term in absent if term not in df and len(term) > 3), key=lambda term: (len(term), term))
    chosen = known[:_KNOWN_MAX] + inside[:_UNKNOWN_MAX]
    spaced = [(" ".join(units(term)), df.get(term, 0)) for term in chosen]
    return [(pattern if len(pattern) > 2 else f" {pattern} ", n) for pattern, n in spaced]
