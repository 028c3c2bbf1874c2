"""Calls with a time limit: run in a worker thread, in a copy of the caller's context, and left behind when they hang.

Calls that follow one another are handed over together, as every change of threads costs more than most of them take; the limit
is each call's own. Workers are daemon threads that are used again; a worker whose call hangs is not waited for, makes none of
the calls behind that one, and ends when it returns.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

__all__ = ["LateCall", "Outcome", "TimeLimit"]

_IDLE_SECONDS = 30.0

NamedCall = tuple[str, Callable[..., Any], tuple[Any, ...]]
"""Name, function, arguments."""


class LateCall(Exception):
    """A call that did not return in time, or one that was not made because its predecessor still hangs."""


class Outcome(NamedTuple):
    """What a call returned, or what it raised."""

    result: Any = None
    error: BaseException | None = None


class _Call:
    __slots__ = ("args", "context", "finished", "function", "name", "outcome")

    def __init__(self, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.name = name
        self.function = function
        self.args = args
        self.context = contextvars.copy_context()
        self.finished = threading.Event()
        self.outcome = Outcome()

    def run(self) -> None:
        try:
            self.outcome = Outcome(self.context.run(self.function, *self.args))
        except BaseException as exc:  # handed to the caller, who judges it
            self.outcome = Outcome(error=exc)


class _Batch:
    """Calls for one worker, made in their order until the caller leaves."""

    def __init__(self, calls: Sequence[_Call]) -> None:
        self.calls = calls
        self.finished = threading.Event()
        self._lock = threading.Lock()
        self._running = 0
        self._begun = time.monotonic()
        self._left = False

    def run(self) -> None:
        for position, call in enumerate(self.calls):
            with self._lock:
                self._running, self._begun = position, time.monotonic()
                left = self._left
            if not left:
                call.run()
            call.finished.set()

    def leave(self, seconds: float | None) -> _Call | float:
        """The call that has run for ``seconds`` (None: whichever runs), behind which none is made; or what it has left."""
        with self._lock:
            left = 0.0 if seconds is None else self._begun + seconds - time.monotonic()
            if left > 0:
                return left
            self._left = True
            return self.calls[self._running]


class _Workers:
    """Idle worker threads, the last used first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[_Batch]] = []

    def start(self, batch: _Batch) -> None:
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = SimpleQueue()
            threading.Thread(target=self._work, args=(inbox,), name="rune-contributor", daemon=True).start()
        inbox.put(batch)

    def _work(self, inbox: SimpleQueue[_Batch]) -> None:
        while True:
            try:
                batch = inbox.get(timeout=_IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if inbox in self._idle:
                        self._idle.remove(inbox)
                        return
                continue  # taken from the idle ones just now: the batch is on its way
            batch.run()
            with self._lock:  # before the caller wakes up, so that its next batch finds this thread
                self._idle.append(inbox)
            batch.finished.set()
            del batch  # what it holds must not live until the next one


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
        (outcome,) = self.call_all([(name, function, args)])
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def call_all(self, calls: Sequence[NamedCall]) -> list[Outcome]:
        """What became of each call, made one after the other; one that hangs costs the others nothing but its time.

        Raises only what interrupts the wait (KeyboardInterrupt); then the rest is not made.
        """
        made = [_Call(*call) for call in calls]
        outcomes: dict[int, Outcome] = {}
        waiting: list[_Call] = []
        for position, call in enumerate(made):
            if self._hangs(call.name):
                words = f"an earlier call of {call.name} still hangs; it is not called again until that returns"
                outcomes[position] = Outcome(error=LateCall(words))
            else:
                waiting.append(call)
        while waiting:
            late = self._run(_Batch(waiting))
            if late is None:
                break
            words = f"{late.name} did not return within {self.seconds:g} s; the turn goes on without it"
            outcomes[made.index(late)] = Outcome(error=LateCall(words))
            waiting = waiting[waiting.index(late) + 1 :]
        return [outcomes.get(position, call.outcome) for position, call in enumerate(made)]

    def _run(self, batch: _Batch) -> _Call | None:
        """Runs calls; the one that hung and was left behind, or None when all are done."""
        _workers.start(batch)
        left = self.seconds
        try:
            while not batch.finished.wait(left):
                after = batch.leave(self.seconds)
                if isinstance(after, _Call):
                    self._leave_behind(after)
                    return after
                left = after
        except BaseException:  # an interrupt: the call goes on without anybody waiting for it
            running = batch.leave(None)
            assert isinstance(running, _Call)
            self._leave_behind(running)
            raise
        return None

    def _hangs(self, name: str) -> bool:
        with self._lock:
            before = self._hung.get(name)
            if before is None:
                return False
            if before.is_set():
                del self._hung[name]
            return not before.is_set()

    def _leave_behind(self, call: _Call) -> None:
        with self._lock:
            self._hung[call.name] = call.finished
