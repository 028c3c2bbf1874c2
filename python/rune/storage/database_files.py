"""The files of an SQLite database: opening, making it whole, private copies, and what tells that a file changed.

Used by ``rune.storage.database`` and ``rune.storage.repair``. Functions here let ``sqlite3.Error`` and ``OSError`` pass;
their callers turn them into ``StorageError``.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import time
from pathlib import Path

from rune.errors import StorageError
from rune.storage import schema

__all__ = [
    "SIDE_FILES",
    "connect",
    "copy_whole",
    "create",
    "inode",
    "refuse_empty",
    "side",
    "size",
    "stamp",
    "state",
    "uri",
]

SIDE_FILES = ("-wal", "-shm")
_MIN_SQLITE = (3, 35, 0)  # RETURNING; the trigram tokenizer needs 3.34


def connect(target: str, timeout: float = 5.0) -> sqlite3.Connection:
    """A connection to a path, a ``file:`` URI or ``:memory:``, in autocommit mode, usable from any one thread at a time."""
    if sqlite3.sqlite_version_info < _MIN_SQLITE:
        raise StorageError(
            f"This Python carries SQLite {sqlite3.sqlite_version}; Rune's stores need 3.35 or newer. "
            "Use a newer Python build; turns go on without memory."
        )
    connection = sqlite3.connect(
        target,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
        uri=target.startswith("file:"),
        cached_statements=256,
    )
    try:
        for pragma in ("foreign_keys = ON", "secure_delete = ON", "cache_size = -8000", "temp_store = MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def create(path: Path, now: float) -> None:
    """Make a new database whole under another name, then give it its own: no process ever sees half of it."""
    for folder in (path.parent.parent, path.parent):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
    made = path.with_name(f".{path.name}.{os.getpid()}-{random.getrandbits(48):012x}")
    os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        connection = connect(uri(made, "mode=rw"))
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            schema.migrate(connection, str(path))
        finally:
            connection.close()
        if side(path, "-wal").exists() and not path.exists():
            # The log of a database that somebody removed would be taken for the new one's.
            side(path, "-wal").rename(path.with_name(f"{path.name}.orphan-{stamp(now)}-wal"))
        with contextlib.suppress(FileExistsError):  # another process was first: use its database
            _give_name(made, path)
    finally:
        for suffix in ("", *SIDE_FILES):
            side(made, suffix).unlink(missing_ok=True)


def copy_whole(path: Path, folder: str) -> Path:
    """A consistent copy of a database and its log in ``folder``, made while others may be writing.

    Pages in the log override those of the main file, so the copy is whole unless the log was started anew meanwhile, which
    changes the salts in its header.
    """
    copy = Path(folder) / "copy.sqlite3"
    for _ in range(50):
        before = _head(side(path, "-wal"))
        shutil.copyfile(path, copy)
        if before:
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(side(path, "-wal"), side(copy, "-wal"))
        if _head(side(path, "-wal")) == before:
            os.chmod(copy, 0o600)
            return copy
        side(copy, "-wal").unlink(missing_ok=True)
        time.sleep(0.01)
    raise StorageError(f"{path} is being written too busily to be copied for reading. Try again in a moment.")


def refuse_empty(path: Path) -> None:
    """Raise DamagedDatabase for a file of no bytes, which SQLite would take for a new database."""
    if size(path) == 0:
        raise schema.DamagedDatabase(
            f"{path} is damaged: it is an empty file, and Rune never leaves one. {schema.REPAIR}"
        )


def side(path: Path, suffix: str) -> Path:
    """The file that SQLite keeps beside ``path``: ``-wal`` or ``-shm``."""
    return path.with_name(path.name + suffix)


def uri(path: Path, query: str) -> str:
    """``path`` as the URI that SQLite opens with parameters."""
    return f"{path.absolute().as_uri()}?{query}"


def stamp(now: float) -> str:
    """``now`` (epoch seconds) in UTC as it stands in file names."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))


def inode(path: str | Path) -> tuple[int, ...] | None:
    """Which file stands under this name; None when none does."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def state(path: Path) -> tuple[int, ...] | None:
    """What tells that a database or its log changed; None when there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    try:
        log = os.stat(side(path, "-wal"))
    except FileNotFoundError:
        return found.st_ino, found.st_size, found.st_mtime_ns
    return found.st_ino, found.st_size, found.st_mtime_ns, log.st_size, log.st_mtime_ns


def size(path: Path) -> int:
    """Bytes in a file; -1 when it is absent."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return -1


def _give_name(made: Path, path: Path) -> None:
    try:
        os.link(made, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if not path.exists():
            os.rename(made, path)


def _head(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(32)
    except FileNotFoundError:
        return b""
