"""Looking at a database, and setting a damaged one aside: never by itself, only when asked (``rune doctor --repair``).

``inspect`` changes nothing. ``repair`` gives the damaged file, its log included, a new name with the time in it, makes a new
database and copies into it every row that can still be read. Nothing is overwritten or deleted: what could not be saved is
still in the file that was set aside.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rune.errors import StorageError
from rune.storage import database_files as files
from rune.storage import schema
from rune.storage.database import DamagedDatabase, Database, storage_error

__all__ = ["Condition", "Repaired", "inspect", "rebuild", "repair"]


_LENGTH_MAX = 1 << 36  # bytes that a header is believed


@dataclass(frozen=True, slots=True)
class Condition:
    """What ``inspect`` found. ``state`` is ``absent``, ``ok``, ``damaged`` (repair can help) or ``refused`` (a newer schema,
    a folder that cannot be read); ``detail`` says what is wrong, ``rows`` counts each table of content.
    """

    state: str
    detail: str = ""
    rows: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Repaired:
    """What ``repair`` did: where the damaged file is now, rows saved by table, and tables that could not be read whole."""

    aside: Path
    saved: dict[str, int]
    incomplete: tuple[str, ...]


def inspect(path: str | Path) -> Condition:
    """Look at the database at ``path`` without changing a byte: structure, every page, and the index against the rows."""
    with Database(path, readonly=True) as db:
        if files.inode(db.path) is None:
            return Condition("absent", f"{db.path} is not there yet; the first memory makes it")
        try:
            with db.read() as connection:
                wrong = [row[0] for row in connection.execute("PRAGMA quick_check(5)") if row[0] != "ok"]
                rows = {table: _number(connection, table) for table in schema.CONTENT_TABLES}
                wrong += _wrong_counts(connection)
        except StorageError as exc:
            return Condition("damaged" if isinstance(exc, DamagedDatabase) else "refused", str(exc))
    return Condition("damaged" if wrong else "ok", "; ".join(wrong), rows)


def repair(path: str | Path, *, clock: Callable[[], float] = time.time) -> Repaired:
    """Set the database at ``path`` aside, make a new one and save the rows that can be read.

    Stop other Rune processes first. Raises StorageError when the file is absent, whole, or of a newer schema, and when it
    cannot be renamed; the file is then as it was.
    """
    path = Path(path)
    condition = inspect(path)
    if condition.state != "damaged":
        raise StorageError(f"{path} was left as it is ({condition.state}). {condition.detail}".strip())
    try:
        aside = _set_aside(path, files.stamp(clock()))
        with tempfile.TemporaryDirectory(prefix="rune-") as folder, Database(path, clock=clock) as db:
            # SQLite changes what it opens (it works off the log): a copy is read, the file set aside stays as it was.
            copy = _readable_copy(aside, Path(folder) / "damaged.sqlite3")
            with db.write() as connection, contextlib.closing(sqlite3.connect(copy)) as damaged:
                saved, incomplete = _save_rows(damaged, connection)
                _rebuild(connection)
    except OSError as exc:
        raise storage_error(exc, path, "repair") from exc
    return Repaired(aside, saved, tuple(incomplete))


def rebuild(db: Database) -> None:
    """Work out everything that follows from the rows (posting lists, frequencies) anew. Raises StorageError."""
    with db.write() as connection:
        _rebuild(connection)


def _set_aside(path: Path, stamp: str) -> Path:
    for number in range(1, 1000):
        aside = path.with_name(f"{path.name}.damaged-{stamp}" + (f"-{number}" if number > 1 else ""))
        if not any(files.side(aside, suffix).exists() for suffix in ("", *files.SIDE_FILES)):
            break
    # The log goes first: left behind, it would be taken for the new database's.
    for suffix in (*files.SIDE_FILES, ""):
        with contextlib.suppress(FileNotFoundError):
            files.side(path, suffix).rename(files.side(aside, suffix))
    return aside


def _readable_copy(aside: Path, copy: Path) -> Path:
    """A copy with its log; a file cut short gets its length back (SQLite reads nothing of one shorter than it says)."""
    for suffix in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(files.side(aside, suffix), files.side(copy, suffix))
    with open(copy, "r+b") as file:
        header = file.read(100)
        length = int.from_bytes(header[16:18], "big") * int.from_bytes(header[28:32], "big")
        if header.startswith(b"SQLite format 3\0") and copy.stat().st_size < length < _LENGTH_MAX:
            file.truncate(length)
    return copy


def _save_rows(damaged: sqlite3.Connection, target: sqlite3.Connection) -> tuple[dict[str, int], list[str]]:
    saved: dict[str, int] = {}
    incomplete: list[str] = []
    target.execute("PRAGMA defer_foreign_keys = ON")
    for table in schema.CONTENT_TABLES:
        columns = [row[1] for row in target.execute(f"PRAGMA table_info({table})")]
        try:
            there = {row[1] for row in damaged.execute(f"PRAGMA table_info({table})")}
        except sqlite3.DatabaseError:
            there = set()
        columns = [column for column in columns if column in there]
        saved[table] = 0
        if not columns:
            incomplete.append(table)
            continue
        insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        broken: list[str] = []
        for row in _readable(damaged, table, columns, broken):
            with contextlib.suppress(sqlite3.IntegrityError):
                saved[table] += target.execute(insert, row).rowcount
        incomplete += broken[:1]
    orphans = "DELETE FROM {} WHERE {} NOT IN (SELECT id FROM entity)"
    for table, column in (("alias", "entity"), ("edge", "src"), ("edge", "dst")):
        saved[table] -= target.execute(orphans.format(table, column)).rowcount
    target.execute("UPDATE memory SET superseded_by = NULL WHERE superseded_by NOT IN (SELECT id FROM memory)")
    return saved, incomplete


def _readable(
    damaged: sqlite3.Connection, table: str, columns: list[str], broken: list[str]
) -> Iterator[tuple[object, ...]]:
    """The rows of a table from both its ends up to what cannot be read; a row may come twice."""
    for order in ("ASC", "DESC"):
        try:
            yield from damaged.execute(f"SELECT {', '.join(columns)} FROM {table} NOT INDEXED ORDER BY 1 {order}")
            return
        except sqlite3.DatabaseError:
            broken.append(table)


def _rebuild(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM term_df")
    connection.execute("INSERT INTO fact_like (fact_like) VALUES ('rebuild')")
    for kind, (table, condition) in schema.INDEXED.items():
        counts: Counter[str] = Counter()
        documents = length = 0
        if kind != "fact":
            connection.execute(f"INSERT INTO {kind}_fts ({kind}_fts) VALUES ('delete-all')")
            connection.execute(f"INSERT INTO {kind}_fts (rowid, terms) SELECT id, terms FROM {table} WHERE {condition}")
        for (terms,) in connection.execute(f"SELECT terms FROM {table} WHERE {condition}"):
            words = terms.split()
            counts.update(set(words))
            documents += 1
            length += len(words)
        connection.executemany(
            "INSERT INTO term_df VALUES (?, ?, ?)", [(kind, *item) for item in sorted(counts.items())]
        )
        connection.execute(
            "INSERT INTO stat (kind, rows, length, generation) VALUES (?, ?, ?, 1) ON CONFLICT (kind) DO UPDATE SET"
            " rows = excluded.rows, length = excluded.length, generation = generation + 1",
            (kind, documents, length),
        )


def _wrong_counts(connection: sqlite3.Connection) -> list[str]:
    wrong = []
    for kind, (table, condition) in schema.INDEXED.items():
        rows = connection.execute(f"SELECT count(*) FROM {table} WHERE {condition}").fetchone()[0]
        stat = connection.execute("SELECT rows FROM stat WHERE kind = ?", (kind,)).fetchone()
        if rows != (stat[0] if stat else 0):
            wrong.append(f"the index of kind {kind} counts {stat[0] if stat else 0} rows and there are {rows}")
    return wrong


def _number(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
