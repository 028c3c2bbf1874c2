"""Ids of rows that are inserted many at a time: known beforehand, kept where they are free, never given twice."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Sequence

__all__ = ["ID_KEPT_MAX", "free_ids"]

ID_KEPT_MAX = 1 << 40  # a larger id is given up, so that a file cannot use up the numbers that are left


def free_ids(connection: sqlite3.Connection, table: str, wanted: Sequence[int | None]) -> list[int]:
    """An id for each row to come: the one wanted where it is free, else the next that no row ever had."""
    asked = [row for row in wanted if row is not None]
    taken: set[int] = set()
    if asked:
        rows = connection.execute(
            f"SELECT id FROM {table} WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(asked),)
        )
        taken = {row for (row,) in rows}
    kept = [row if row is not None and row <= ID_KEPT_MAX and row not in taken else None for row in wanted]
    last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
    following = itertools.count(1 + max(last[0] if last else 0, *(row or 0 for row in kept), 0))
    return [next(following) if row is None else row for row in kept]
