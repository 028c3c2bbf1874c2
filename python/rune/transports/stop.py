"""A stop signal of a call that several can give: its caller by an event of theirs, and the transport when it closes."""

from __future__ import annotations

import threading
import time

__all__ = ["StopSignal"]

_POLL_S = 0.05


class StopSignal(threading.Event):
    """An event that counts as set when it, or the outer event given, is set."""

    def __init__(self, outer: threading.Event | None = None) -> None:
        super().__init__()
        self._outer = outer

    def is_set(self) -> bool:
        return super().is_set() or (self._outer is not None and self._outer.is_set())

    def wait(self, timeout: float | None = None) -> bool:
        if self._outer is None:
            return super().wait(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            left = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
            if left <= 0:
                break
            # The outer event wakes at once; the inner one, which only a close sets, within the poll.
            self._outer.wait(left)
        return self.is_set()
