"""Neurons: named concepts that warm up when a task mentions them and cool down with time.

A mention lifts the activation half of the way to 1; without mentions it halves every ``HALF_LIFE_HOURS``. As all of them
cool at the same rate, their order does not change with time: ``potential`` = log2(activation) + hours / half-life is kept in
an index, and the warmest are read without looking at the others.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rune.errors import InvalidInput, StorageError
from rune.memory.names import named, names_in
from rune.memory.render import block, one_line
from rune.memory.terms import clean, like_pattern
from rune.storage.database import Database
from rune.subsystem_health import record_failure

__all__ = [
    "HALF_LIFE_HOURS",
    "HEADING",
    "Neuron",
    "add",
    "forget",
    "half_life",
    "list_neurons",
    "list_rows",
    "potential",
    "warmest",
]

HEADING = "My neurons (warm, firing)"
TOP = 5
HALF_LIFE_HOURS = 24.0
WARM = 0.05  # activation below which a neuron is cold
_LIFT = 0.5  # part of the way to 1 that a mention takes
_MENTIONS_MAX = 500  # neurons that one task can set firing


@dataclass(frozen=True, slots=True)
class Neuron:
    """One concept as it stands at the time of asking; ``fired`` is the epoch second of the last mention."""

    id: int
    name: str
    note: str
    mentions: int
    activation: float
    fired: float | None
    firing: bool = False


def list_neurons(
    db: Database, task: str = "", limit: int = TOP, *, half_life_hours: float = HALF_LIFE_HOURS, dry: bool = False
) -> str | None:
    """The block of the warmest neurons after ``task`` was heard, in the order of ids, or None.

    Writes the new activations once, unless ``dry``. A store that cannot be written is a recorded failure, and the block is
    returned all the same. Raises StorageError when it cannot be read.
    """
    found = warmest(db, task, limit, half_life_hours=half_life_hours, dry=dry)
    return block(
        HEADING,
        [
            f"{one_line(n.name)}{': ' if n.note else ''}{one_line(n.note)} ({'firing' if n.firing else 'warm'})"
            for n in sorted(found, key=lambda n: n.id)
        ],
    )


def warmest(
    db: Database, task: str = "", limit: int = TOP, *, half_life_hours: float = HALF_LIFE_HOURS, dry: bool = False
) -> list[Neuron]:
    """As ``list_neurons``, as rows and warmest first."""
    if not half_life_hours > 0:
        raise InvalidInput(f"the half-life is a number of hours above 0; got {half_life_hours!r}")
    now = db.clock()
    with db.read() as connection:
        same = half_life(connection) == half_life_hours
        keys = names_in(connection, "neuron", task, stemmed=True)[:_MENTIONS_MAX] if task else []
        fired = _heard(connection, keys, now, half_life_hours)
        rest = _warm(connection, limit + len(fired), now, half_life_hours, indexed=same)
    if fired and not dry:
        try:
            _save(db, keys, now, half_life_hours)
        except StorageError as exc:
            record_failure("neurons", exc, tier=1)
    every = {neuron.id: neuron for neuron in (*rest, *fired)}  # what fired just now replaces what it was before
    found = sorted((n for n in every.values() if n.activation >= WARM), key=lambda n: (-n.activation, n.id))
    return found[:limit]


def add(db: Database, name: str, *, note: str = "") -> int:
    """Store a neuron and return its id; a known name gets the new note. Raises InvalidInput and StorageError."""
    key = named(name, stemmed=True)
    with db.write() as connection:
        row = connection.execute(
            "INSERT INTO neuron (name, note, key, first, n, created) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key)"
            " DO UPDATE SET note = CASE WHEN excluded.note = '' THEN note ELSE excluded.note END RETURNING id",
            (clean(name).strip(), clean(note), key.key, key.first, key.n, db.clock()),
        ).fetchone()
    return int(row[0])


def list_rows(db: Database, *, containing: str = "", limit: int = 50, offset: int = 0) -> list[Neuron]:
    """Neurons, warm or cold, the latest first; with ``containing`` those with a name or note that contains it."""
    now = db.clock()
    with db.read() as connection:
        hours = half_life(connection)
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM neuron WHERE name || char(10) || note LIKE ? ESCAPE '\\' ORDER BY id DESC LIMIT ? OFFSET ?",
            (like_pattern(containing), limit, offset),
        ).fetchall()
    return [_neuron(row, now, hours) for row in rows]


def forget(db: Database, neuron_id: int) -> list[int]:
    """Remove a neuron; raises InvalidInput when there is none."""
    with db.write() as connection:
        if not connection.execute("DELETE FROM neuron WHERE id = ?", (neuron_id,)).rowcount:
            raise InvalidInput(f"there is no neuron {neuron_id}; list them to see the ids")
    db.checkpoint()
    return [neuron_id]


_COLUMNS = "id, name, note, mentions, activation, fired"


def _heard(connection: sqlite3.Connection, keys: Sequence[str], now: float, hours: float) -> list[Neuron]:
    marks = ",".join("?" * len(keys))
    found = []
    for row in connection.execute(f"SELECT {_COLUMNS} FROM neuron WHERE key IN ({marks}) ORDER BY id", keys):
        then = _cooled(row[4], row[5], now, hours)
        lifted = then + (1 - then) * _LIFT
        found.append(Neuron(row[0], row[1], row[2], row[3] + 1, lifted, max(now, row[5] or now), firing=True))
    return found


def _warm(connection: sqlite3.Connection, limit: int, now: float, hours: float, *, indexed: bool) -> list[Neuron]:
    """The warmest as they are without this task; with another half-life than the index's, by looking at all."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM neuron WHERE potential IS NOT NULL ORDER BY potential DESC, id LIMIT ?",
        (limit if indexed else -1,),
    ).fetchall()
    return [_neuron(row, now, hours) for row in rows]


def _save(db: Database, keys: Sequence[str], now: float, hours: float) -> None:
    with db.write() as connection:
        if half_life(connection) != hours:
            connection.execute(
                "INSERT INTO setting VALUES ('neuron_half_life', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (repr(hours),),
            )
            rows = connection.execute("SELECT activation, fired, id FROM neuron WHERE fired IS NOT NULL").fetchall()
            connection.executemany(
                "UPDATE neuron SET potential = ? WHERE id = ?", [(potential(a, f, hours), i) for a, f, i in rows]
            )
        # Read again under the lock: another process may have heard the same meanwhile.
        connection.executemany(
            "UPDATE neuron SET mentions = ?, activation = ?, fired = ?, potential = ? WHERE id = ?",
            [
                (n.mentions, n.activation, n.fired, potential(n.activation, n.fired, hours), n.id)
                for n in _heard(connection, keys, now, hours)
            ],
        )


def potential(activation: float, fired: float | None, hours: float) -> float | None:
    """What orders neurons at any later time; None for one that never fired."""
    if fired is None or activation <= 0:
        return None
    return math.log2(activation) + fired / 3600 / hours


def _neuron(row: tuple[Any, ...], now: float, hours: float) -> Neuron:
    return Neuron(row[0], row[1], row[2], row[3], _cooled(row[4], row[5], now, hours), row[5])


def _cooled(activation: float, fired: float | None, now: float, hours: float) -> float:
    if fired is None:
        return 0.0
    return activation * math.exp2(-max(0.0, now - fired) / 3600 / hours)


def half_life(connection: sqlite3.Connection) -> float:
    """The half-life in hours that the stored potentials were worked out with."""
    row = connection.execute("SELECT value FROM setting WHERE name = 'neuron_half_life'").fetchone()
    return float(row[0]) if row else HALF_LIFE_HOURS
