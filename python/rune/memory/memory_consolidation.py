"""Consolidation: the same thing said twice becomes one memory, and what keeps coming back becomes standing knowledge.

``collect`` runs once a turn, before admission. It saves (``_save_knowledge``): counts the memories that this turn recalls,
merges what is new with what says the same in the same words, and promotes what was said or recalled often. Then it renders
the knowledge block. No model is asked, the result depends on the store alone, and the work is bounded by what is new: a
queue holds the rows not yet looked at. Originals are never lost: they stay readable with their source, and point to the
memory that stands for them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from rune.errors import StorageError
from rune.memory import memory_store, memory_writer, text_index
from rune.memory.render import block
from rune.storage.database import Database
from rune.subsystem_health import record_failure

__all__ = ["HEADING", "MemoryConsolidation", "Saved"]

HEADING = "Consolidated knowledge"
KNOWLEDGE_MAX = 5
NEW_PER_TURN = 64  # rows of the queue; an import consolidates as a whole, outside a turn


@dataclass(frozen=True, slots=True)
class Saved:
    """What one run did: memories merged into older ones, memories promoted (or raised), and whether rows are left for
    the next run."""

    merged: int = 0
    promoted: int = 0
    pending: bool = False


class MemoryConsolidation:
    """The consolidation pipeline over one database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def collect(self, task: str = "", *, budget: int = memory_store.RECALL_BUDGET, dry: bool = False) -> str | None:
        """Save what this turn teaches (not when ``dry``) and return the knowledge block, or None.

        ``budget`` is that of the memory block: what stands there for this task is counted as recalled and not said twice.
        A store that cannot be written is a recorded failure, and what can be read is still returned. Raises StorageError
        when it cannot be read.
        """
        shown = [memory.id for memory in memory_store.recall(self._db, task, budget)]
        if not dry:
            try:
                self._save_knowledge(shown)
            except StorageError as exc:
                record_failure("consolidated", exc, tier=1)
        return self.knowledge(exclude=shown)

    def knowledge(self, *, limit: int = KNOWLEDGE_MAX, exclude: Collection[int] = ()) -> str | None:
        """The block of what is known best, in the order of ids: levels grow slowly, so the text rarely changes."""
        with self._db.read() as connection:
            rows = connection.execute(
                "SELECT id, text FROM memory WHERE kind = 'memory' AND level > 0 AND superseded_by IS NULL"
                " ORDER BY level DESC, id LIMIT ?",
                (limit,),
            ).fetchall()
        return block(HEADING, [text for row, text in sorted(rows) if row not in exclude])

    def consolidate(self) -> Saved:
        """Work off the whole queue, as after an import."""
        merged = promoted = 0
        while True:
            saved = self._save_knowledge()
            merged, promoted = merged + saved.merged, promoted + saved.promoted
            if not saved.pending:
                return Saved(merged, promoted)

    def _save_knowledge(self, recalled: Iterable[int] = ()) -> Saved:
        """One step: count ``recalled``, merge and promote up to 64 new rows. With nothing new it writes nothing."""
        recalled = sorted(set(recalled))
        if not recalled:
            with self._db.read() as connection:
                if connection.execute("SELECT 1 FROM memory_queue LIMIT 1").fetchone() is None:
                    return Saved()
        with self._db.write() as connection:
            now = self._db.clock()
            connection.executemany(
                "UPDATE memory SET recalls = recalls + 1, recalled = ? WHERE id = ?", [(now, row) for row in recalled]
            )
            fresh = connection.execute(
                "SELECT q.id, m.merge_key, m.kind FROM memory_queue q LEFT JOIN memory m ON m.id = q.id ORDER BY q.id LIMIT ?",
                (NEW_PER_TURN,),
            ).fetchall()
            groups = {(key, kind): None for _, key, kind in fresh if key is not None}
            merged, changed = 0, set(recalled)
            for key, kind in groups:
                standing, gone = _merge(connection, key, kind)
                merged += gone
                changed.add(standing)
            promoted = _promote(connection, sorted(changed))
            connection.executemany("DELETE FROM memory_queue WHERE id = ?", [row[:1] for row in fresh])
            pending = connection.execute("SELECT 1 FROM memory_queue LIMIT 1").fetchone() is not None
        return Saved(merged, promoted, pending)


def _merge(connection: sqlite3.Connection, key: bytes, kind: str) -> tuple[int, int]:
    """Let the oldest of the live rows with this key stand for the others; returns its id and how many it took in."""
    rows = connection.execute(
        "SELECT id, terms, said, recalls, seen FROM memory WHERE merge_key = ? AND kind = ? AND superseded_by IS NULL"
        " ORDER BY id",
        (key, kind),
    ).fetchall()
    standing, others = rows[0][0], rows[1:]
    if others:
        text_index.remove(connection, kind, [(row[0], row[1]) for row in others])
        ids = [(standing, row[0]) for row in others]
        connection.executemany("UPDATE memory SET superseded_by = ?, level = 0 WHERE id = ?", ids)
        connection.executemany("UPDATE memory SET superseded_by = ? WHERE superseded_by = ?", ids)
        connection.execute(
            "UPDATE memory SET said = said + ?, recalls = recalls + ?, seen = max(seen, ?) WHERE id = ?",
            (sum(r[2] for r in others), sum(r[3] for r in others), max(r[4] for r in others), standing),
        )
    return standing, len(others)


def _promote(connection: sqlite3.Connection, ids: Iterable[int]) -> int:
    """Set the levels that the counts deserve; returns how many rose."""
    raised = 0
    for row in ids:
        found = connection.execute(
            "SELECT said, recalls, level FROM memory WHERE id = ? AND kind = 'memory' AND superseded_by IS NULL", (row,)
        ).fetchone()
        if found:
            level = memory_writer.level_of(found[0], found[1])
            if level != found[2]:
                connection.execute("UPDATE memory SET level = ? WHERE id = ?", (level, row))
                raised += level > found[2]
    return raised
