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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self, TypeVar

from rune.errors import StorageError
from rune.storage import database_files as files
from rune.storage import schema

__all__ = ["Database", "storage_error"]

_IDLE_MAX = 8
_T = TypeVar("_T")
_Opener = Callable[[], sqlite3.Connection]


def storage_error(exc: BaseException, path: Path, doing: str = "use") -> StorageError:
    """What ``exc`` means for the database at ``path``, in words that say what to do."""
    low = str(exc).lower()
    if "locked" in low or "busy" in low:
        hint = "Another process has held it for longer than Rune waits. Nothing was written; try again when it is done."
    elif any(word in low for word in ("malformed", "not a database", "no such table", "no such column", "corrupt")):
        hint = f"The file is damaged or not Rune's. {files.REPAIR}"
    elif "full" in low or "no space" in low:
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

    def close(self) -> None:
        """Close what is idle; connections still leased close when they come back. Use after this opens anew."""
        with self._lock:
            self._forget_source()

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A connection on one snapshot; no rows when the database is absent. Raises StorageError."""
        with self._errors("read"), self._lease(writing=False) as connection:
            self._begin(connection, "BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A connection that holds the write lock: commits at the end, rolls back on any error. Raises StorageError."""
        with self._errors("write"), self._lease(writing=True) as connection:
            self._begin(connection, "BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def checkpoint(self) -> None:
        """Move everything into the main file and empty the log, so that no forgotten text stays there.

        Leaves it to a later one when another process is reading at this moment.
        """
        with self._errors("write"), self._lease(writing=True) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.ProgrammingError, sqlite3.InterfaceError):
            raise  # a mistake of this program, not of the file
        except (sqlite3.Error, OSError) as exc:
            raise storage_error(exc, self.path, doing) from exc

    def _begin(self, connection: sqlite3.Connection, statement: str) -> None:
        def begin() -> None:
            try:
                connection.execute(statement)
                connection.execute("SELECT generation FROM stat LIMIT 1").fetchone()  # takes the snapshot now
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

        self._patiently(begin)

    @contextlib.contextmanager
    def _lease(self, *, writing: bool) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._look(writing)
            source, opener = self._source, self._open
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._patiently(opener)
        try:
            yield connection
        except BaseException:
            connection.close()  # after an error it may stand on a broken page
            raise
        with self._lock:
            keep = self._source is source and self._pid == os.getpid() and len(self._idle) < _IDLE_MAX
            if keep:
                self._idle.append(connection)
        if not keep:
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
        frozen = self.readonly or not os.access(self.path.parent, os.W_OK)
        if writing:
            if self.readonly:
                raise StorageError(f"{self.path} was opened read-only; open it without readonly to write.")
            if files.inode(self.path) is None:
                files.create(self.path, self.clock())
            elif frozen:
                raise OSError("read-only folder")
            frozen = False
        found = files.state(self.path) if frozen else files.inode(self.path)
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


def _open_empty() -> sqlite3.Connection:
    connection = files.connect(":memory:")
    schema.migrate(connection, ":memory:")
    return connection


def _dispose(idle: list[sqlite3.Connection], copies: list[str]) -> None:
    while idle:
        idle.pop().close()
    while copies:
        shutil.rmtree(copies.pop(), ignore_errors=True)
