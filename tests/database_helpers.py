"""What tests of the database and its stores share: processes of their own, damage, and a look at every byte of a folder."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import rune
from rune.storage.database import Database

SOURCE = Path(rune.__file__).parents[1]


def put(db: Database, name: str, value: str = "1") -> None:
    with db.write() as connection:
        connection.execute("INSERT INTO setting VALUES (?, ?)", (name, value))


def names(db: Database) -> list[str]:
    with db.read() as connection:
        return [row[0] for row in connection.execute("SELECT name FROM setting ORDER BY name")]


def tree(folder: Path) -> dict[str, tuple[bytes, int, int, float]]:
    """Every file below a folder: bytes, mode, size and time of change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.stat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (content, status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A process of its own that runs ``code`` with ``sys.argv[1:]``."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
"""

WRITE_AND_WAIT = """
import sys
from rune.storage.database import Database
db = Database(sys.argv[1])
with db.write() as connection:
    connection.execute("INSERT INTO setting VALUES ('theirs', '1')")
print("written", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def running(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """``start`` and wait for its first line; it is ended at the end."""
    process = start(code, *arguments)
    assert process.stdout is not None
    assert process.stdout.readline()
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


WAYS = (
    "garbage",
    "text",
    "truncated",
    "truncated to a part of a page",
    "empty",
    "another program's",
    "a table is gone",
)


def damage(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "garbage":
        path.write_bytes(os.urandom(len(whole)))
    elif how == "text":
        path.write_text("these are notes\n" * 400)
    elif how == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "truncated to a part of a page":
        path.write_bytes(whole[:100])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "another program's":
        path.unlink()
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE memory (id, text)")
    elif how == "a table is gone":
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("DROP TABLE term_df")
            connection.commit()


class Clock:
    """Epoch seconds that tests set."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def hours(self, number: float) -> None:
        """Let hours pass."""
        self.now += 3600 * number
