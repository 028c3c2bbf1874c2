"""Writers in processes of their own, and faults put into the system calls of a log, for tests of durable logs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rune.storage.log import DurableLog


def spawn(work: Callable[[], object]) -> int:
    """The pid of a forked child that does ``work`` and ends with 0, or 1 when it raised."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException as exc:  # the child of a test run must not go on as a second test run
        with contextlib.suppress(OSError):
            os.write(2, f"child: {exc!r}\n".encode())
    finally:
        os._exit(status)


def wait(pid: int) -> int:
    """The exit code of a child; minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait(pid)


@contextlib.contextmanager
def acknowledgements() -> Iterator[tuple[Callable[[str], None], Callable[[], list[str]]]]:
    """A pipe from children: a function that they call once a row is appended, and one that gives the words so far.

    Words arrive whole: a write of a few bytes to a pipe is one step.
    """
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    rest = b""
    words: list[str] = []

    def told() -> list[str]:
        nonlocal rest
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(reading, 1 << 16):
                rest += chunk
        *whole, rest = rest.split(b"\n")
        words.extend(word.decode() for word in whole)
        return words

    try:
        yield lambda word: (os.write(writing, word.encode() + b"\n"), None)[1], told
    finally:
        os.close(reading)
        os.close(writing)


def die(*_: Any) -> None:
    """As a SIGKILL at this very place."""
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def dying_after(calls: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """``real``, with the process killed right after its n-th call (0: before the first)."""
    made = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        if calls == 0:
            die()
        result = real(*args, **kwargs)
        made += 1
        if made == calls:
            die()
        return result

    return call


def files_of(path: Path) -> dict[str, int]:
    """Name and size of a log's files."""
    return {p.name: p.stat().st_size for p in sorted(path.parent.glob(path.name + "*")) if not p.name.endswith(".lock")}


def ids(log: DurableLog) -> list[Any]:
    """The ids of all rows, in the order of the log."""
    return [row["id"] for row in log.read()]
