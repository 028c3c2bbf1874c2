"""Reading a rotated log of JSON lines, forwards or backwards, while others write to it and rotate it.

Rows come as dicts, and None stands for a line that had to be skipped. Lines end at ``\\n`` only.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rune.storage.rows import Row, decode_row

if sys.platform != "win32":
    import fcntl

__all__ = ["numbered", "read_from", "read_newest_first", "read_oldest_first"]

_CHUNK = 1 << 18
_TRIES, _PAUSE_S = 200, 0.005


def numbered(path: Path) -> set[int]:
    """The numbers of the rotated files ``path.<number>`` that are there."""
    prefix = path.name + "."
    found = set()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(path.parent) as entries:
        for entry in entries:
            tail = entry.name.removeprefix(prefix)
            if entry.name.startswith(prefix) and tail.isascii() and tail.isdecimal() and not tail.startswith("0"):
                found.add(int(tail))
    return found


def read_oldest_first(path: Path) -> Iterator[Row | None]:
    """Every row, oldest file first."""
    with contextlib.ExitStack() as stack:
        files = _snapshot(path)
        for file in files:
            stack.callback(file.close)
        for file in reversed(files):
            yield from (row for _, _, row in _forwards(file, path))
            file.close()


def read_from(path: Path, offset: int) -> Iterator[tuple[int, int, Row | None]]:
    """Every row of a log that is never rotated, from ``offset`` on, with the bytes where its line begins and ends."""
    file = _open(path)
    if file is not None:
        with file:
            yield from _forwards(file, path, offset)


def read_newest_first(path: Path) -> Iterator[Row | None]:
    """Every row, from the end of the newest file backwards; reads blocks from the end as they are asked for."""
    with contextlib.ExitStack() as stack:
        files = _snapshot(path)
        for file in files:
            stack.callback(file.close)
        for file in files:
            yield from _backwards(file, path)
            file.close()


def _snapshot(path: Path) -> list[BinaryIO]:
    """The log's files, open, newest first, as they were at one moment.

    Files only ever move to the next number. Looked at in that direction, a file that moves meanwhile is met again rather than
    missed; whatever was found since it was first met is newer than this moment, and is left out. Should the first file be
    rotated all the way out meanwhile, it is looked at anew.
    """
    for _ in range(_TRIES):
        held: list[BinaryIO] = []
        try:
            _collect(path, held)
            if not held or os.fstat(held[0].fileno()).st_nlink > 0:
                return held
        except BaseException:
            _close(held)
            raise
        _close(held)
    raise OSError("it is rotated faster than it can be read")


def _collect(path: Path, held: list[BinaryIO]) -> None:
    number, last = 0, -1
    # One number past the last is looked at too, and the last is looked up again: files may have moved there meanwhile.
    while number <= last + 1 or number <= (last := max(numbered(path), default=0)) + 1:
        file = _open(path.with_name(f"{path.name}.{number}") if number else path)
        number += 1
        if file is None:
            continue
        known = next((i for i, other in enumerate(held) if os.path.sameopenfile(other.fileno(), file.fileno())), None)
        if known is None:
            held.append(file)
        else:
            _close([file, *held[known + 1 :]])
            del held[known + 1 :]


def _close(files: list[BinaryIO]) -> None:
    for file in files:
        file.close()


def _open(path: Path) -> BinaryIO | None:
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        fd = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path.name} is no regular file")
    return open(fd, "rb", buffering=0)  # closed by the readers


def _forwards(file: BinaryIO, path: Path, start: int = 0) -> Iterator[tuple[int, int, Row | None]]:
    """Rows from the line that begins at ``start``, with where each begins and ends."""
    pieces: list[bytes] = []
    file.seek(start)
    while chunk := file.read(_CHUNK):
        lines = chunk.split(b"\n")
        for line in lines[:-1]:
            if pieces:
                pieces.append(line)
                line = b"".join(pieces)
                pieces.clear()
            for row in _row(line):
                yield start, start + len(line), row
            start += len(line) + 1
        if lines[-1]:
            pieces.append(lines[-1])
    if pieces:
        line = b"".join(pieces)
        for row in _last_row(file, start, line, path):
            yield start, start + len(line), row


def _backwards(file: BinaryIO, path: Path) -> Iterator[Row | None]:
    at = file.seek(0, os.SEEK_END)
    pieces: list[bytes] = []  # of the line whose beginning was not found yet, last piece first
    ended = False  # whether a newline stands behind the line in the pieces
    while at > 0:
        size = min(_CHUNK, at)
        at -= size
        file.seek(at)
        chunk = file.read(size)
        lines = chunk.split(b"\n")
        if len(lines) > 1:
            line = lines[-1] + b"".join(reversed(pieces))
            pieces.clear()
            start = at + len(chunk) - len(lines[-1])
            yield from _row(line) if ended else _last_row(file, start, line, path)
            ended = True
            for line in reversed(lines[1:-1]):
                yield from _row(line)
        if lines[0]:
            pieces.append(lines[0])
    if pieces:
        line = b"".join(reversed(pieces))
        yield from _row(line) if ended else _last_row(file, 0, line, path)


def _row(line: bytes) -> Iterator[Row | None]:
    """The row of a line; nothing for an empty one."""
    if line and not line.isspace():
        yield decode_row(line)


def _last_row(file: BinaryIO, start: int, line: bytes, path: Path) -> Iterator[Row | None]:
    """The row of a line without a newline: whole, torn, or just being written. ``start`` is its place in the file."""
    if not line or line.isspace():
        return
    row = decode_row(line)
    if row is None and _wait_for_writer(path):
        file.seek(start)
        pieces: list[bytes] = []
        while (chunk := file.read(_CHUNK)) and not (pieces and b"\n" in pieces[-1]):
            pieces.append(chunk)
        row = decode_row(b"".join(pieces).split(b"\n", 1)[0])
    yield row


def _wait_for_writer(path: Path) -> bool:
    """Waits until no append is under way; False where that cannot be known, or one goes on for too long."""
    if sys.platform == "win32":
        return False
    try:
        fd = os.open(path.with_name(path.name + ".lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        for _ in range(_TRIES):
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return True
            time.sleep(_PAUSE_S)
        return False
    finally:
        os.close(fd)
