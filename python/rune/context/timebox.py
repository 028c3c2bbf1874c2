"""Calls with a time limit: run in a worker thread, in a copy of the caller's context, and left behind when they hang.

Workers are daemon threads that are used again; a worker whose call hangs is not waited for, and ends when the call does.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

__all__ = ["LateCall", "TimeLimit"]

_IDLE_SECONDS = 30.0


class LateCall(Exception):
    """A call that did not return in time, or one that was not made because its predecessor still hangs."""


class _Call:
    __slots__ = ("args", "context", "error", "finished", "function", "result")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.function = function
        self.args = args
        self.context = contextvars.copy_context()
        self.finished = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.context.run(self.function, *self.args)
        except BaseException as exc:  # handed to the caller, who judges it
            self.error = exc


class _Workers:
    """Idle worker threads, the last used first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[_Call]] = []

    def start(self, call: _Call) -> None:
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = SimpleQueue()
            threading.Thread(target=self._work, args=(inbox,), name="rune-contributor", daemon=True).start()
        inbox.put(call)

    def _work(self, inbox: SimpleQueue[_Call]) -> None:
        while True:
            try:
                call = inbox.get(timeout=_IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if inbox in self._idle:
                        self._idle.remove(inbox)
                        return
                continue  # taken from the idle ones just now: the call is on its way
            call.run()
            with self._lock:  # before the caller wakes up, so that its next call finds this thread
                self._idle.append(inbox)
            call.finished.set()
            del call  # what it holds must not live until the next one


_workers = _Workers()


class TimeLimit:
    """Runs functions by name with a limit in seconds, and never two of one name while the first one hangs."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._hung: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """The function's result; what it raises is raised here.

        Raises:
            LateCall: it did not return in time, or an earlier call of that name still has not.
        """
        with self._lock:
            before = self._hung.get(name)
            if before is not None:
                if not before.is_set():
                    raise LateCall(f"an earlier call of {name} still hangs; it is not called again until that returns")
                del self._hung[name]
        call = _Call(function, args)
        finished = call.finished
        _workers.start(call)
        try:
            in_time = finished.wait(self.seconds)
        except BaseException:  # an interrupt: the call goes on without anybody waiting for it
            self._leave_behind(name, finished)
            raise
        if not in_time:
            self._leave_behind(name, finished)
            raise LateCall(f"{name} did not return within {self.seconds:g} s; the turn goes on without it")
        if call.error is not None:
            raise call.error
        return call.result

    def _leave_behind(self, name: str, finished: threading.Event) -> None:
        with self._lock:
            self._hung[name] = finished
