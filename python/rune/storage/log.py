"""A log of rows that survives kills, full disks, several writers and its own rotation.

``append`` returns when the row is whole in the file, or raises. One ``write`` puts a row on an O_APPEND descriptor, under a
lock between processes. A torn end left by a killed writer gets a newline first, so that no two rows fuse; a write that came
short is taken back. The reader skips what is torn and counts it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rune.errors import InvalidInput, StorageError
from rune.paths import private_dir
from rune.storage.file_lock import FileLock
from rune.storage.log_reader import numbered, read_from, read_newest_first, read_oldest_first
from rune.storage.rows import Row, encode_row

__all__ = ["BACKUPS", "MAX_BYTES", "DurableLog"]

MAX_BYTES = 10_485_760
BACKUPS = 3

_OPEN_FLAGS = os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class DurableLog:
    """Rows of JSON in ``path``, older ones in ``path.1`` … ``path.<backups>``.

    ``max_bytes``: no file grows past it, except that a row larger than it stands alone in a file of its own.
    ``backups``: rotated files kept; None: never rotates and never deletes.
    ``fsync``: a row has reached the disk, not only the system, when ``append`` returns.
    ``lock_timeout``: seconds to wait for another writer before ``append`` gives up.

    Any number of threads and processes may use logs of one path at once. ``skipped`` counts the lines that the last ``read``
    or ``tail`` had to leave out.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        max_bytes: int = MAX_BYTES,
        backups: int | None = BACKUPS,
        fsync: bool = False,
        lock_timeout: float = 5.0,
    ) -> None:
        if max_bytes < 1 or (backups is not None and backups < 0):
            raise InvalidInput(f"max_bytes must be at least 1 and backups at least 0; got {max_bytes} and {backups}")
        self.path = Path(path)
        self.max_bytes = max_bytes
        self.backups = backups
        self.fsync = fsync
        self.skipped = 0
        self._name = os.fspath(self.path)
        # Beside an fsync, opening anew costs nothing; and Windows does not rename a file that anybody holds open.
        self._keep_open = not fsync and os.name == "posix"
        self._lock = FileLock(
            self.path.with_name(self.path.name + ".lock"), timeout=lock_timeout, keep_open=self._keep_open
        )
        self._fd = -1
        self._identity = (0, 0)
        self._whole = -1  # size up to which this log knows that the file ends with a newline

    def __repr__(self) -> str:
        return f"DurableLog({self._name!r}, max_bytes={self.max_bytes}, backups={self.backups}, fsync={self.fsync})"

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # a constructor that raised
            self._close_file()

    def close(self) -> None:
        """Lets descriptors go; the next append opens the file anew."""
        with self._lock.between_threads:
            self._close_file()
            self._lock.close()

    # Writing

    def append(self, row: Mapping[str, Any]) -> tuple[int, int]:
        """Adds a row; it is whole in the file when this returns. Gives the bytes where its line begins and ends.

        Raises:
            InvalidInput: the row is not JSON.
            StorageError: it could not be written; then nothing of it is in the file.
        """
        line = encode_row(row) + b"\n"
        try:
            end = self._append(line)
        except FileNotFoundError:  # the folder: not made yet, or removed meanwhile
            private_dir(self.path.parent)
            try:
                end = self._append(line)
            except OSError as exc:
                raise self._error(exc) from exc
        except OSError as exc:
            raise self._error(exc) from exc
        return end - len(line), end - 1

    def _append(self, line: bytes) -> int:
        """Adds a line and returns the size of the file after it."""
        with self._lock:
            try:
                size = self._open_current()
                if self.backups is not None and 0 < size and size + len(line) > self.max_bytes:
                    self._rotate()
                    size = self._open_current()
                if size != self._whole and size > 0 and not self._ends_with_newline(size):
                    line = b"\n" + line
                self._write(line, size)
                return self._whole
            finally:
                if not self._keep_open:
                    self._close_file()

    def _write(self, line: bytes, size: int) -> None:
        try:
            written = os.write(self._fd, line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes could be written; is the disk full?")
            if self.fsync:
                os.fsync(self._fd)
        except OSError:
            # If this fails too, the torn row has no newline: the next append gives it one, and the reader skips it.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, size)
            raise
        self._whole = size + len(line)

    def _open_current(self) -> int:
        """Makes the descriptor that of the file which now has the name, and returns its size."""
        if self._fd >= 0:
            try:
                found = os.stat(self._name)
                if (found.st_dev, found.st_ino) == self._identity:
                    return found.st_size
            except FileNotFoundError:
                pass
            self._close_file()  # rotated or removed by another process
        try:
            self._fd = os.open(self._name, _OPEN_FLAGS)
        except FileNotFoundError:
            self._fd = os.open(self._name, _OPEN_FLAGS | os.O_CREAT, 0o600)
            self._sync_folder()
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            self._close_file()
            raise OSError("it is no regular file")
        if found.st_mode & 0o077 and hasattr(os, "fchmod"):
            with contextlib.suppress(PermissionError):  # another user's file, which this one may write
                os.fchmod(self._fd, 0o600)
        self._identity = (found.st_dev, found.st_ino)
        self._whole = -1
        return found.st_size

    def _ends_with_newline(self, size: int) -> bool:
        os.lseek(self._fd, size - 1, os.SEEK_SET)
        return os.read(self._fd, 1) == b"\n"

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    # Rotation

    def _rotate(self) -> None:
        """Moves every file up by one number. Killed in between, it leaves a free number, which the next rotation fills."""
        assert self.backups is not None
        self._close_file()
        taken = numbered(self.path)
        for number in taken:
            if number > self.backups:  # kept by a setting that was larger
                os.unlink(self._backup(number))
        free = next((n for n in range(1, self.backups + 1) if n not in taken), None)
        if free is None:
            free = self.backups
            if free > 0:
                os.unlink(self._backup(free))
        for number in range(free, 0, -1):
            os.rename(self._backup(number - 1), self._backup(number))
        if free == 0:
            os.unlink(self._name)
        self._sync_folder()

    def _backup(self, number: int) -> str:
        return f"{self._name}.{number}" if number else self._name

    def _sync_folder(self) -> None:
        if not self.fsync or os.name != "posix":
            return
        fd = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # Reading

    def read(self, *, newest_first: bool = False) -> Iterator[Row]:
        """The rows, those of the oldest file first; from the end backwards with ``newest_first``.

        Nothing is made by reading, and a rotation meanwhile loses none of the rows that were there at the start. Raises
        StorageError when a file is there and cannot be read.
        """
        self.skipped = 0
        reader = read_newest_first if newest_first else read_oldest_first
        return self._counted(reader(self.path))

    def read_from(self, offset: int) -> Iterator[tuple[int, int, Row]]:
        """The rows of a log that never rotates from the line at ``offset`` (bytes) on, each with where it begins and ends.

        Raises StorageError as ``read``.
        """
        self.skipped = 0
        try:
            for start, end, row in read_from(self.path, offset):
                if row is None:
                    self.skipped += 1
                else:
                    yield start, end, row
        except OSError as exc:
            raise self._unreadable(exc) from exc

    def _counted(self, rows: Iterator[Row | None]) -> Iterator[Row]:
        try:
            for row in rows:
                if row is None:
                    self.skipped += 1
                else:
                    yield row
        except OSError as exc:
            raise self._unreadable(exc) from exc

    def _unreadable(self, exc: OSError) -> StorageError:
        return StorageError(f"{self._name} cannot be read: {exc.strerror or exc}. Check its owner and its rights")

    def tail(self, n: int) -> list[Row]:
        """The last ``n`` rows, the oldest of them first; reads no more of the files than they take."""
        rows: list[Row] = []
        if n > 0:
            for row in self.read(newest_first=True):
                rows.append(row)
                if len(rows) == n:
                    break
        rows.reverse()
        return rows

    def _error(self, exc: OSError) -> StorageError:
        return StorageError(
            f"{self._name} could not be written: {exc.strerror or exc}. Nothing of the row was kept; free some room on the "
            "disk, make the folder writable, or set RUNE_HOME to a folder that is"
        )
