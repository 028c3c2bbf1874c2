"""A lock between processes and threads that a killed holder lets go of, with a limit to the waiting.

``flock`` on a side file, where the system has it. Elsewhere a lock file by ``filelock``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from rune.errors import StorageError

if sys.platform != "win32":
    import fcntl

__all__ = ["FileLock"]

_NO_FLOCK = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}
_BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.000_02, 0.002


class FileLock:
    """``with FileLock(path):`` excludes every other holder of ``path``, in this process and in others.

    ``timeout``: seconds to wait before StorageError. ``keep_open``: keep the side file's descriptor between uses, for speed.
    ``between_threads`` is the lock that its holders in this process take first. OSError passes through when the
    side file cannot be made. The side file is never removed: a waiter may hold it.
    """

    def __init__(self, path: Path, *, timeout: float = 5.0, keep_open: bool = True) -> None:
        self.path = path
        self.timeout = timeout
        self._name = os.fspath(path)
        self._keep_open = keep_open
        self.between_threads = threading.Lock()
        self._fd = -1
        self._identity = (0, 0)
        self._other: Any = None  # the lock of filelock, where flock does not work
        _alive.add(self)

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> None:
        deadline = time.monotonic() + self.timeout
        if not self.between_threads.acquire(timeout=self.timeout):
            raise self._too_long()
        try:
            if self._other is None and sys.platform != "win32":
                self._flock(deadline)
            if self._other is not None or sys.platform == "win32":
                self._lock_file(deadline)
        except BaseException:
            self._release()
            raise

    def __exit__(self, *_: object) -> None:
        self._release()

    def close(self) -> None:
        """Lets the descriptor go; the next use opens it anew."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _flock(self, deadline: float) -> None:
        while True:
            if self._fd < 0:
                self._fd = os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                found = os.fstat(self._fd)
                self._identity = (found.st_dev, found.st_ino)
            try:
                self._wait(deadline)
            except OSError as exc:
                if exc.errno not in _NO_FLOCK:
                    raise
                self.close()
                self._other = _soft_lock(self._name)
                return
            try:
                found = os.stat(self._name)
                if (found.st_dev, found.st_ino) == self._identity:
                    return
            except FileNotFoundError:
                pass
            self.close()  # the side file was removed with its log: whoever comes now would lock another one

    def _wait(self, deadline: float) -> None:
        pause = _SHORTEST_WAIT_S
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as exc:
                if exc.errno not in _BUSY:
                    raise
            if time.monotonic() > deadline:
                raise self._too_long()
            time.sleep(random.uniform(0, pause))
            pause = min(pause * 2, _LONGEST_WAIT_S)

    def _lock_file(self, deadline: float) -> None:
        import filelock

        if self._other is None:
            self._other = filelock.FileLock(self._name, mode=0o600, thread_local=False)
        try:
            self._other.acquire(timeout=max(0.0, deadline - time.monotonic()), poll_interval=0.005)
        except filelock.Timeout:
            raise self._too_long() from None

    def _release(self) -> None:
        try:
            if self._other is not None:
                self._other.release()
            elif self._fd >= 0 and sys.platform != "win32":
                # Explicitly, because a forked child may hold the same descriptor open.
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        except OSError:
            self.close()
        finally:
            if not self._keep_open:
                self.close()
            self.between_threads.release()

    def _too_long(self) -> StorageError:
        return StorageError(
            f"another process or thread has held {self.path} for over {self.timeout:g} s; end it, or try again when it is done"
        )

    def _forget(self) -> None:
        """In a forked child: the parent's descriptor would share the parent's lock, and its threads are not here."""
        self.close()
        self._other = None
        self.between_threads = threading.Lock()


def _soft_lock(name: str) -> Any:
    import filelock

    return filelock.SoftFileLock(f"{name}.held", mode=0o600, thread_local=False)


_alive: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_alive):
        lock._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
