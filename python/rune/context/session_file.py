"""The file of a session: a log of its turns, an index beside it, and a lock that keeps the turns of two writers in one order.

A row is a turn (``turn``, ``time``, ``messages``, ``chain``), system texts (``system``) or a value kept with the conversation
(``state``, ``value``). Rows are only ever added.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rune.context.session_index import SessionIndex, other_record, turn_record
from rune.errors import StorageError
from rune.paths import private_dir
from rune.storage.file_lock import FileLock
from rune.storage.log import DurableLog
from rune.storage.rows import decode_row, encode_row
from rune.subsystem_health import record_failure

__all__ = ["SessionFile", "write_new"]

Span = tuple[int, int]
"""The bytes where a row begins and ends."""

Facts = tuple[int, str, str, str]
"""Of a turn: tokens, digest, chain digest, and why it cannot be offered ("" when it can)."""


class SessionFile:
    """Rows of one session.

    Attributes:
        path: the log.
        size: its bytes when it was last read or written here.
        pending: rows that are not written yet, each with the number of its turn, or None.
        skipped: torn rows that the last reading left out.
    """

    def __init__(self, path: Path, estimator: str, *, fsync: bool) -> None:
        self.path = path
        self.size = 0
        self.pending: list[tuple[dict[str, Any], int | None]] = []
        self.skipped = 0
        self._log = DurableLog(path, backups=None, fsync=fsync)
        self._lock = FileLock(path.with_name(f"{path.name}.turns.lock"), keep_open=not fsync)
        self._index = SessionIndex(path, estimator)
        self._index_fits = True
        self._indexed = 0  # rows of the log that have their record in the index, as far as is known here
        self._records: list[bytes] = []  # of the rows behind those

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other processes from appending meanwhile, so that every turn follows the one that it was written after."""
        with ExitStack() as stack:
            try:
                private_dir(self.path.parent)
                stack.enter_context(self._lock)
            except (OSError, StorageError):
                pass  # the write itself will fail as well, and says why
            yield

    def size_now(self) -> int:
        """Bytes of the log at this moment; 0 when there is none."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    # Reading

    def index_records(self) -> bytes:
        """The records of the index; nothing when there is none."""
        self._indexed, self._records, self._index_fits = 0, [], True
        return self._index.read()

    def restored(self, records: int, size: int) -> None:
        """Takes the first ``size`` bytes of the log as read: the index has their records."""
        self._indexed, self.size = records, size

    def rows(self) -> Iterator[tuple[Span, dict[str, Any]]]:
        """The rows behind the first ``size`` bytes. Raises StorageError when the file is there and cannot be read."""
        before = self.size
        self.size = self.size_now()
        for start, end, row in self._log.read_from(before):
            yield (start, end), row
        self.skipped = self._log.skipped

    def row_at(self, span: Span) -> dict[str, Any]:
        """The row that stands there; {} when there is none. Raises StorageError when the file cannot be read."""
        start, end = span
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                line = file.read(end - start)
        except OSError as exc:
            raise StorageError(f"{self.path} cannot be read: {exc.strerror or exc}") from exc
        return (decode_row(line) or {}) if len(line) == end - start else {}

    def note(self, span: Span, facts: Facts | None) -> None:
        """A row that the index has no record of: a turn with its facts, or another one (None)."""
        self._records.append(other_record(span) if facts is None else turn_record(span, *facts))

    def distrust_index(self) -> None:
        """Does without the index from now on; the next write deletes it."""
        self._index_fits = False

    # Writing

    def write(self, facts: Callable[[int], Facts]) -> None:
        """Writes what is pending, as far as it goes; a failure is recorded, and the rest stays pending."""
        try:
            while self.pending:
                row, number = self.pending[0]
                span = self._log.append(row)
                if span[0] != self.size:  # behind a torn row, or behind one that was not read here
                    self.distrust_index()
                self.size = span[1] + 1
                self.note(span, None if number is None else facts(number))
                del self.pending[0]
        except StorageError as exc:
            record_failure("storage.degraded", exc, tier=2)
            self.size = self.size_now()
        if not self._index_fits:
            self._index.remove()
        elif self._records:
            self._index.write(self._indexed, self._records)
            self._indexed += len(self._records)
        self._records = []


def write_new(path: Path, estimator: str, rows: Iterable[tuple[dict[str, Any], Facts | None]]) -> None:
    """Writes a session's file and its index; the file appears whole or not at all.

    Raises FileExistsError when there is one already, OSError when it cannot be written.
    """
    private_dir(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    records = []
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            start = 0
            for row, facts in rows:
                start, before = start + file.write(encode_row(row) + b"\n"), start
                span = before, start - 1
                records.append(other_record(span) if facts is None else turn_record(span, *facts))
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)  # unlike a rename it does not replace a file that appeared meanwhile
    finally:
        draft.unlink(missing_ok=True)
    SessionIndex(path, estimator).write(0, records)
