"""Putting a file in its place whole or not at all, whatever ends the process in the middle."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat

__all__ = ["put"]

_PLAIN = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NEW = _PLAIN | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
_NAMELESS = _PLAIN | getattr(os, "O_TMPFILE", 0)
_NAME_MAX = 100  # characters of the name that stay in the temporary one


def put(folder: int | None, name: str, data: bytes) -> bool:
    """Writes ``data`` under ``name`` in ``folder`` (a descriptor; None: ``name`` is the path). True when a file was replaced.

    The data is on disk before the name changes over. A file that was there keeps its permissions; other links to it keep
    the old text. Raises OSError: IsADirectoryError also for what is neither a file nor a folder, PermissionError also for a
    file that nobody may write.
    """
    try:
        before = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        before = None
    if before is not None and not stat.S_ISREG(before.st_mode):
        raise IsADirectoryError(0, "it is a folder, or no regular file")
    if before is not None and not stat.S_IMODE(before.st_mode) & 0o222:
        raise PermissionError(0, "it is read-only")
    at, bare = os.path.split(name)
    other = os.path.join(at, f".{bare[:_NAME_MAX]}.{secrets.token_hex(6)}.tmp")
    mode = 0o666 if before is None else stat.S_IMODE(before.st_mode)
    try:
        _fill(folder, other, data, mode, exact=before is not None)
        os.replace(other, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(other, dir_fd=folder)
        raise
    return before is not None


def _fill(folder: int | None, name: str, data: bytes, mode: int, *, exact: bool) -> None:
    """A new file, on disk when this returns; on Linux it has no name until it is whole, so that a kill leaves nothing."""
    descriptor = _nameless(folder, mode)
    nameless = descriptor is not None
    if descriptor is None:
        descriptor = os.open(name, _NEW, mode, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        if exact and hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        if nameless:
            os.link(f"/proc/self/fd/{file.fileno()}", name, dst_dir_fd=folder, follow_symlinks=True)


def _nameless(folder: int | None, mode: int) -> int | None:
    if folder is None or _NAMELESS == _PLAIN or not os.path.exists("/proc/self/fd"):
        return None
    try:
        return os.open(".", _NAMELESS, mode, dir_fd=folder)
    except OSError:
        return None  # a file system that has no such thing
