"""Rune's one SQLite database: leased connections, write transactions that wait their turn, and read-only opening.

``Database`` does nothing until it is used. Reading a database that is not there yields no rows and creates nothing;
writing creates it (folder 0700, file 0600, WAL). Several processes and threads may use it at once. Every failure of SQLite
or of the file system is a ``StorageError`` that says what to do. Nothing here replaces or removes a damaged file: that is
``rune.storage.repair``'s, when asked.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self, TypeVar

from rune.errors import StorageError
from rune.storage import database_files as files
from rune.storage import schema
from rune.storage.schema import DamagedDatabase

__all__ = ["DamagedDatabase", "Database", "storage_error"]

_IDLE_MAX = 8

# SQLite lets writers poll for its lock, with longer and longer sleeps: among many threads some would never get it. Those of
# one process wait in line here, and poll for other processes only.
_writers: dict[str, threading.Lock] = {}
_writers_lock = threading.Lock()


def _forget_writers() -> None:
    """In a forked child nobody is left who would give back what was held."""
    global _writers_lock
    _writers_lock = threading.Lock()
    _writers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_writers)

_T = TypeVar("_T")
_Opener = Callable[[], sqlite3.Connection]


def storage_error(exc: BaseException, path: Path, doing: str = "use") -> StorageError:
    """What ``exc`` means for the database at ``path``, in words that say what to do."""
    low = str(exc).lower()
    if any(word in low for word in ("malformed", "not a database", "no such table", "no such column", "corrupt")):
        return DamagedDatabase(f"cannot {doing} {path}: {exc}. The file is damaged or not Rune's. {schema.REPAIR}")
    if "locked" in low or "busy" in low:
        hint = "Another writer has held it for longer than Rune waits. Nothing was written; try again when it is done."
    elif "is full" in low or "no space" in low:
        hint = "There is no room left on the disk. Nothing was written; free some and try again."
    elif "readonly" in low or "read-only" in low:
        hint = "It can be read but not written. Make it writable, or set RUNE_HOME to a folder that is."
    elif "disk i/o" in low:
        hint = "The disk did not answer as it should. Check the disk, then run `rune doctor`."
    else:
        hint = "Check that its folder exists and may be written, or set RUNE_HOME to a folder that may."
    return StorageError(f"cannot {doing} {path}: {exc}. {hint}")


class Database:
    """Leases connections to the database at ``path`` (``rune.paths.database(home)``).

    ``readonly=True`` changes no byte and makes no file in the database's folder; ``write`` then raises StorageError. The
    same holds, unasked, where the folder may not be written. ``timeout`` (seconds) bounds the wait for other processes.
    ``clock`` gives the epoch seconds of everything stored.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        readonly: bool = False,
        timeout: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = Path(path)
        self._file = os.fspath(path)
        self._place = os.path.abspath(self._file)
        self.readonly = readonly
        self.timeout = timeout
        self.clock = clock
        self._lock = threading.RLock()
        self._idle: list[sqlite3.Connection] = []
        self._copies: list[str] = []
        self._inherited: list[sqlite3.Connection] = []
        self._source: tuple[object, ...] | None = None
        self._open: _Opener = _open_empty
        self._own_process()

    def __repr__(self) -> str:
        return f"Database({str(self.path)!r}, readonly={self.readonly})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def source(self) -> object:
        """What reads stand on at the moment: changes when another file takes the place of this one."""
        return self._source

    def close(self) -> None:
        """Close what is idle; connections still leased close when they come back. Use after this opens anew."""
        with self._lock:
            self._forget_source()

    def read(self) -> AbstractContextManager[sqlite3.Connection]:
        """A connection on one snapshot; no rows when the database is absent. Raises StorageError."""
        return _Transaction(self, writing=False)

    def write(self) -> AbstractContextManager[sqlite3.Connection]:
        """A connection that holds the write lock: commits at the end, rolls back on any error. Raises StorageError."""
        return _Transaction(self, writing=True)

    def checkpoint(self) -> None:
        """Move everything into the main file and empty the log, so that no forgotten text stays there.

        Leaves it to a later one when another process is reading at this moment.
        """
        try:
            connection, source = self._take(writing=True)
            try:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                self._give_back(connection, source)
        except (sqlite3.Error, OSError) as exc:
            raise storage_error(exc, self.path, "write") from exc

    def _queue(self) -> threading.Lock:
        """The line of this process's writers, once it is one's turn. Raises StorageError when that takes too long."""
        with _writers_lock:
            line = _writers.setdefault(self._place, threading.Lock())
        if not line.acquire(timeout=self.timeout):
            raise storage_error(sqlite3.OperationalError("database is locked"), self.path, "write")
        return line

    def _take(self, *, writing: bool) -> tuple[sqlite3.Connection, object]:
        """A connection for this thread alone, and what it stands on."""
        with self._lock:
            self._look(writing)
            source, opener = self._source, self._open
            connection = self._idle.pop() if self._idle else None
        return connection or self._patiently(opener), source

    def _give_back(self, connection: sqlite3.Connection, source: object, *, sound: bool = True) -> None:
        """Keep a connection for the next; one that met an error may stand on a broken page and is closed."""
        with self._lock:
            if sound and self._source is source and self._pid == os.getpid() and len(self._idle) < _IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _patiently(self, action: Callable[[], _T]) -> _T:
        """SQLite's own wait does not cover every case of "locked": a recovery, the last connection closing."""
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                return action()
            except sqlite3.OperationalError as exc:
                if not ("locked" in str(exc) or "busy" in str(exc)) or time.monotonic() >= deadline:
                    raise
                time.sleep(random.uniform(0.001, 0.02))

    def _look(self, writing: bool) -> None:
        """Decide what connections stand on now: a file that came, went or was set aside means new connections."""
        if self._pid != os.getpid():
            # After a fork the parent's connections are not ours, not even to close.
            self._inherited += self._idle
            self._idle, self._copies, self._source = [], [], None
            self._finalizer.detach()
            self._own_process()
        if self._source and not self._source[0] and self._source[1] and self._source[1] == files.inode(self._file):
            return  # the usual case, and on the path of every turn
        frozen = self.readonly or not os.access(self.path.parent, os.W_OK)
        if writing:
            if self.readonly:
                raise StorageError(f"{self.path} was opened read-only; open it without readonly to write.")
            if files.inode(self._file) is None:
                files.create(self.path, self.clock())
            elif frozen:
                raise OSError("read-only folder")
            frozen = False
        found = files.state(self.path) if frozen else files.inode(self._file)
        source = (frozen, found)
        if self._source == source:
            return
        self._forget_source()
        if found is None:
            self._open = _open_empty
        elif frozen:
            self._open = self._frozen_opener()
        else:
            self._patiently(self._open_first).close()
            self._open = self._open_live
        self._source = source

    def _own_process(self) -> None:
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _dispose, self._idle, self._copies)

    def _forget_source(self) -> None:
        self._source = None
        _dispose(self._idle, self._copies)

    def _open_live(self) -> sqlite3.Connection:
        connection = files.connect(files.uri(self.path, "mode=rw"), self.timeout)
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    def _open_first(self) -> sqlite3.Connection:
        """The first connection to a file checks it and brings its schema up to date."""
        files.refuse_empty(self.path)
        connection = self._open_live()
        try:
            if schema.verify(connection, str(self.path)) < schema.LATEST:
                schema.migrate(connection, str(self.path))
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if self.path.stat().st_mode & 0o077:
                with contextlib.suppress(OSError):  # somebody else's file that we may write all the same
                    self.path.chmod(0o600)
            return connection
        except BaseException:
            connection.close()
            raise

    def _frozen_opener(self) -> _Opener:
        """An opener that leaves the folder untouched.

        Without a log the file alone is the database and can be read in place as immutable. With one (another process is
        writing, or was killed) SQLite would make or change the side files, so a private copy is read instead. So is one
        of an older schema, which must be brought up to date first.
        """
        files.refuse_empty(self.path)
        in_place = files.uri(self.path, "mode=ro&immutable=1")
        if files.size(files.side(self.path, "-wal")) <= 0:
            with contextlib.closing(files.connect(in_place)) as connection:
                if schema.verify(connection, str(self.path)) == schema.LATEST:
                    return lambda: files.connect(in_place)
        self._copies.append(tempfile.mkdtemp(prefix="rune-"))
        copy = files.uri(files.copy_whole(self.path, self._copies[-1]), "mode=rw")
        with contextlib.closing(files.connect(copy)) as connection:
            if schema.verify(connection, str(self.path)) < schema.LATEST:
                schema.migrate(connection, str(self.path))
        return lambda: files.connect(copy)


class _Transaction:
    """What ``with`` holds between ``BEGIN`` and the end; a class, since a generator costs more than the transaction."""

    __slots__ = ("_connection", "_db", "_line", "_source", "_writing")

    def __init__(self, db: Database, *, writing: bool) -> None:
        self._db = db
        self._writing = writing

    def __enter__(self) -> sqlite3.Connection:
        self._line = self._db._queue() if self._writing and not self._db.readonly else None
        try:
            return self._enter()
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        if self._line is not None:
            self._line.release()
            self._line = None

    def _enter(self) -> sqlite3.Connection:
        try:
            self._connection, self._source = self._db._take(writing=self._writing)
            try:
                self._begin()
            except sqlite3.OperationalError:
                self._db._patiently(self._begin)
            return self._connection
        except (sqlite3.Error, OSError) as exc:
            if hasattr(self, "_connection"):
                self._db._give_back(self._connection, self._source, sound=False)
            raise storage_error(exc, self._db.path, self._doing) from exc

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        connection = self._connection
        sound = False
        try:
            if connection.in_transaction:
                connection.execute("COMMIT" if self._writing and exc is None else "ROLLBACK")
            sound = exc is None
        except sqlite3.Error as end:
            exc = exc or end
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        finally:
            self._leave()
            self._db._give_back(connection, self._source, sound=sound)
        mistake = isinstance(exc, sqlite3.ProgrammingError | sqlite3.InterfaceError)  # of this program, not of the file
        if isinstance(exc, sqlite3.Error) and not mistake:
            raise storage_error(exc, self._db.path, self._doing) from exc

    @property
    def _doing(self) -> str:
        return "write" if self._writing else "read"

    def _begin(self) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE" if self._writing else "BEGIN")
            self._connection.execute("SELECT generation FROM stat LIMIT 1").fetchone()  # takes the snapshot now
        except sqlite3.Error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


def _open_empty() -> sqlite3.Connection:
    connection = files.connect(":memory:")
    schema.migrate(connection, ":memory:")
    return connection


def _dispose(idle: list[sqlite3.Connection], copies: list[str]) -> None:
    while idle:
        idle.pop().close()
    while copies:
        shutil.rmtree(copies.pop(), ignore_errors=True)
