"""BM25 over FTS5 posting lists, bounded: the cost of a question hangs on its rarest terms, not on the rows stored.

FTS5's own ``bm25()`` reads every row that holds any of the terms, and counts each term through the whole index first: a
quarter of a second for a paragraph over 100,000 rows. Here ``term_df`` knows how many rows hold a term, the rarest terms
name at most ``CANDIDATES`` rows (of a common term the newest), and exact BM25 ranks the best ``RANKED`` of them.

Functions take a connection inside a transaction of ``rune.storage.database.Database``; ``kind`` is a key of
``rune.storage.schema.INDEXED`` (``fact`` has term frequencies only: facts are found by ``LIKE``).
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from rune.memory.terms import query_terms
from rune.storage.schema import INDEXED

__all__ = ["Counts", "frequencies", "generation", "insert", "matches", "purge", "remove", "uncount"]

CANDIDATES = 2000
CANDIDATES_MIN = 150  # in a small store; one more for every fifty rows
RANKED = 12
TERMS_MAX = 10  # posting lists read for one question
WEIGHED_MAX = 48  # terms that count in the ranking
LOOKUPS_MAX = 16_384  # distinct terms of a question whose frequency is looked up
_K1, _B = 1.2, 0.75


class Counts:
    """Term frequencies of rows that came (or went) in this transaction; ``flush`` writes each term once."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.terms: Counter[str] = Counter()
        self.rows = 0
        self.length = 0

    def add(self, documents: Sequence[Sequence[str]]) -> None:
        """Count the terms of these rows."""
        self.terms.update(chain.from_iterable(map(set, documents)))
        self.rows += len(documents)
        self.length += sum(map(len, documents))

    def flush(self, connection: sqlite3.Connection, sign: int = 1) -> None:
        """Write what was counted (``sign`` -1: take it away), once, and tell every process that the kind has changed."""
        if not self.rows:
            return
        connection.executemany(
            "INSERT INTO term_df (kind, term, df) VALUES (?, ?, ?)"
            " ON CONFLICT (kind, term) DO UPDATE SET df = df + excluded.df",
            [(self.kind, term, sign * n) for term, n in sorted(self.terms.items())],
        )
        connection.execute(
            "INSERT INTO stat (kind, rows, length, generation) VALUES (?, ?, ?, 1) ON CONFLICT (kind) DO UPDATE SET"
            " rows = rows + excluded.rows, length = length + excluded.length, generation = generation + 1",
            (self.kind, sign * self.rows, sign * self.length),
        )


def insert(connection: sqlite3.Connection, counts: Counts, rows: Sequence[tuple[int, str, Sequence[str]]]) -> None:
    """Index ``(id, terms, list of terms)`` rows; ``terms`` is the list joined by spaces, as the row stores it.

    Questions see them once ``counts`` is flushed.
    """
    table = f"{counts.kind}_fts"
    connection.executemany(f"INSERT INTO {table} (rowid, terms) VALUES (?, ?)", [row[:2] for row in rows])
    counts.add([words for _, _, words in rows])


def remove(connection: sqlite3.Connection, kind: str, rows: Sequence[tuple[int, str]]) -> None:
    """Take ``(id, terms)`` rows out of the index; the terms must be those that were inserted."""
    connection.executemany(f"INSERT INTO {kind}_fts ({kind}_fts, rowid, terms) VALUES ('delete', ?, ?)", rows)
    uncount(connection, kind, [terms for _, terms in rows])


def uncount(connection: sqlite3.Connection, kind: str, documents: Sequence[str]) -> None:
    """Take the terms of rows that go (joined by spaces) out of the frequencies; what no row has is not kept."""
    counts = Counts(kind)
    counts.add([terms.split() for terms in documents])
    gone = sorted(counts.terms)
    counts.flush(connection, -1)
    connection.executemany(
        "DELETE FROM term_df WHERE kind = ? AND term = ? AND df <= 0", [(kind, term) for term in gone]
    )


def generation(connection: sqlite3.Connection, kind: str) -> int:
    """A number that grows with every change of this kind, by whichever process."""
    row = connection.execute("SELECT generation FROM stat WHERE kind = ?", (kind,)).fetchone()
    return int(row[0]) if row else 0


def purge(connection: sqlite3.Connection, kind: str) -> None:
    """Rewrite the posting lists without what was removed, so that no forgotten word stays in the file."""
    connection.execute(f"INSERT INTO {kind}_fts ({kind}_fts) VALUES ('optimize')")


def frequencies(connection: sqlite3.Connection, kind: str, terms: Sequence[str]) -> dict[str, int]:
    """How many rows hold each of the terms; of very many the first and the last are looked up."""
    if len(terms) > LOOKUPS_MAX:
        terms = [*terms[: LOOKUPS_MAX // 2], *terms[-LOOKUPS_MAX // 2 :]]
    return dict(
        connection.execute(
            "SELECT term, df FROM term_df WHERE kind = ? AND term IN (SELECT value FROM json_each(?))",
            (kind, json.dumps(terms)),
        ).fetchall()
    )


def matches(connection: sqlite3.Connection, kind: str, question: str, limit: int) -> list[tuple[int, float]]:
    """The best ``limit`` rows for ``question`` as ``(id, score)``, best first; equal scores: the newer id first.

    A question of stop words alone is taken literally: all of them must be in the row.
    """
    terms, informing = query_terms(question)
    stat = connection.execute("SELECT rows, length FROM stat WHERE kind = ?", (kind,)).fetchone()
    if not terms or not stat or not stat[0]:
        return []
    total, length = stat
    rarest = sorted((df, term) for term, df in frequencies(connection, kind, terms).items())
    if not informing and len(rarest) < len(terms):
        return []
    weights = {term: math.log(1 + (total - df + 0.5) / (df + 0.5)) for df, term in rarest[:WEIGHED_MAX]}
    scores = _candidates(connection, kind, rarest, weights, min(CANDIDATES, CANDIDATES_MIN + total // 50))
    best = sorted(scores, key=scores.__getitem__, reverse=True)[: max(RANKED, limit)]  # equal ones stay newest first
    table, _ = INDEXED[kind]
    marks = ",".join("?" * len(best))
    ranked = []
    for row, stored in connection.execute(f"SELECT id, terms FROM {table} WHERE id IN ({marks})", best):
        words = stored.split()
        distinct = set(words)
        shared = [term for term in weights if term in distinct]
        if informing or len(shared) == len(terms):
            norm = _K1 * (1 - _B + _B * len(words) * total / (length or 1))
            if len(distinct) == len(words):
                score = sum(map(weights.__getitem__, shared)) * (_K1 + 1) / (1 + norm)
            else:
                times = Counter(words)
                score = sum(weights[term] * times[term] * (_K1 + 1) / (times[term] + norm) for term in shared)
            ranked.append((-round(score, 9), -row))
    ranked.sort()
    return [(-row, -score) for score, row in ranked[:limit]]


def _candidates(
    connection: sqlite3.Connection, kind: str, rarest: list[tuple[int, str]], weights: dict[str, float], room: int
) -> dict[int, float]:
    scores: dict[int, float] = {}
    statement = f"SELECT rowid FROM {kind}_fts WHERE {kind}_fts MATCH ? ORDER BY rowid DESC LIMIT ?"
    for df, term in rarest[:TERMS_MAX]:
        weight = weights[term]
        for (row,) in connection.execute(statement, (f'"{term}"', room)):
            scores[row] = scores.get(row, 0.0) + weight
        room -= df
        if room <= 0:
            break
    return scores
