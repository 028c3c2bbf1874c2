"""The index beside a session's log: what is known of every row, so that a long session opens without being read.

``sessions/index/<id>.<estimator>`` holds a line that names its form, then one record of 96 bytes for every row of the log (see
``kernels.pure_turns.RECORD``). It can be deleted at any time: what it does not say is read from the log, and the next turn
writes it anew. A reader that finds anything odd in it does without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from rune.kernels.turn_records import CHECK_BYTES, FAULTS, OTHER, RECORD
from rune.paths import private_dir

__all__ = ["SessionIndex", "other_record", "turn_record"]

RECORD_BYTES = RECORD.size + CHECK_BYTES
_HEADER = b"rune turns 1\n".ljust(RECORD_BYTES - 1) + b"\n"
_NONE = b"\0" * 32


def turn_record(span: tuple[int, int], tokens: int, digest: str, chain: str, reason: str) -> bytes:
    """The record of a turn whose row stands at ``span`` (bytes) in the log."""
    kind = FAULTS.index(reason) + 1 if reason else 0
    return _checked(RECORD.pack(*span, tokens, bytes.fromhex(digest), bytes.fromhex(chain), kind))


def other_record(span: tuple[int, int]) -> bytes:
    """The record of a row that is no turn."""
    return _checked(RECORD.pack(*span, 0, _NONE, _NONE, OTHER))


def _checked(record: bytes) -> bytes:
    return record + hashlib.sha256(record).digest()[:CHECK_BYTES]


class SessionIndex:
    """The index of one session under one estimator (its key)."""

    def __init__(self, session: Path, estimator: str) -> None:
        plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in estimator)
        self.path = session.parent / "index" / f"{session.stem}.{plain}"

    def read(self) -> bytes:
        """The records, as many of them as are whole; nothing when there is no index, or one of another form."""
        try:
            data = self.path.read_bytes()
        except OSError:
            return b""
        if not data.startswith(_HEADER):
            return b""
        return data[len(_HEADER) : len(data) - len(data) % RECORD_BYTES]

    def write(self, before: int, records: Iterable[bytes]) -> None:
        """Puts ``records`` behind the first ``before``, but for those that another process has written meanwhile.

        What cannot be written is left out: the next reader does without it.
        """
        with contextlib.suppress(OSError):
            private_dir(self.path.parent)
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
            fd = os.open(self.path, flags, 0o600)
            try:
                self._write(fd, before, b"".join(records))
            finally:
                os.close(fd)

    def _write(self, fd: int, before: int, records: bytes) -> None:
        there = os.fstat(fd).st_size // RECORD_BYTES - 1
        if before > 0 and (there < before or os.read(fd, RECORD_BYTES) != _HEADER):
            self.remove()  # it was cut, or is not ours: what stood there before is not known any more
            return
        if before == 0:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
            os.write(fd, _HEADER + records)
            return
        os.lseek(fd, (there + 1) * RECORD_BYTES, os.SEEK_SET)
        os.write(fd, records[(there - before) * RECORD_BYTES :])

    def remove(self) -> None:
        """Deletes the index."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    @staticmethod
    def remove_all(session: Path) -> None:
        """Deletes every index of a session."""
        with contextlib.suppress(OSError):
            for path in (session.parent / "index").glob(f"{session.stem}.*"):
                if path.name.rpartition(".")[0] == session.stem:
                    path.unlink(missing_ok=True)
