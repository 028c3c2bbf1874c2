"""Calls with a time limit: results, errors and context pass through; a hung call is left behind."""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar

import pytest

from rune.context import timebox
from rune.context.timebox import LateCall, TimeLimit

where: ContextVar[str] = ContextVar("where", default="nowhere")


def test_results_and_errors_pass_through() -> None:
    limit = TimeLimit(5)
    assert limit.call("add", lambda a, b: a + b, 1, 2) == 3
    with pytest.raises(ZeroDivisionError):
        limit.call("divide", lambda: 1 / 0)
    with pytest.raises(SystemExit):
        limit.call("leave", lambda: (_ for _ in ()).throw(SystemExit(1)))


def test_the_call_sees_the_callers_context_and_does_not_change_it() -> None:
    def look() -> str:
        seen = where.get()
        where.set("inside")
        return seen

    token = where.set("outside")
    try:
        assert TimeLimit(5).call("look", look) == "outside" and where.get() == "outside"
    finally:
        where.reset(token)


def test_workers_are_used_again() -> None:
    limit = TimeLimit(5)
    assert len({limit.call("who", threading.get_ident) for _ in range(20)}) == 1
    assert limit.call("who", threading.get_ident) != threading.get_ident()


def test_a_hung_call_is_not_made_twice_and_others_go_on() -> None:
    limit, release, made = TimeLimit(0.02), threading.Event(), []

    def hang() -> None:
        made.append(1)
        release.wait(20)

    try:
        with pytest.raises(LateCall, match=r"hang did not return within 0\.02 s"):
            limit.call("hang", hang)
        with pytest.raises(LateCall, match="still hangs"):
            limit.call("hang", hang)
        assert made == [1]
        assert TimeLimit(5).call("other", lambda: "on") == "on"
    finally:
        release.set()
    for _ in range(500):
        try:
            limit.call("hang", lambda: made.append(2))
            break
        except LateCall:
            time.sleep(0.01)
    assert made == [1, 2]


def test_an_idle_worker_ends_and_the_next_call_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timebox, "_IDLE_SECONDS", 0.01)
    monkeypatch.setattr(timebox, "_workers", timebox._Workers())
    limit = TimeLimit(5)
    worker = limit.call("who", threading.current_thread)
    worker.join(10)
    assert not worker.is_alive()
    assert limit.call("who", threading.current_thread) is not worker


def test_an_interrupted_wait_leaves_the_call_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    limit = TimeLimit(5)

    def interrupted(self: threading.Event, timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    wait = threading.Event.wait
    monkeypatch.setattr(threading.Event, "wait", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            limit.call("slow", release.is_set)
        monkeypatch.setattr(threading.Event, "wait", wait)
        limit._hung["slow"].wait(5)
        assert limit.call("slow", lambda: "again") == "again"
    finally:
        release.set()


def test_many_threads_get_their_own_results() -> None:
    limit = TimeLimit(20)
    found: dict[int, int] = {}

    def work(n: int) -> None:
        found[n] = limit.call(f"n{n}", lambda: (time.sleep(0.001), n * n)[1])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: n * n for n in range(60)}


def test_calls_made_together_run_in_one_thread_in_their_order() -> None:
    made: list[tuple[int, int]] = []

    def note(n: int) -> int:
        made.append((n, threading.get_ident()))
        if n == 2:
            raise ValueError("two")
        return n * n

    outcomes = TimeLimit(5).call_all([(f"n{n}", note, (n,)) for n in range(5)])
    assert [n for n, _ in made] == [0, 1, 2, 3, 4] and len({thread for _, thread in made}) == 1
    assert [outcome.result for outcome in outcomes] == [0, 1, None, 9, 16]
    assert isinstance(outcomes[2].error, ValueError) and outcomes[1].error is None


def test_one_that_hangs_among_others_is_left_behind_and_none_is_made_twice() -> None:
    release, made = threading.Event(), []

    def note(n: int) -> int:
        made.append(n)
        if n in (1, 3):
            release.wait(20)
        return n

    limit = TimeLimit(0.02)
    calls = [(f"n{n}", note, (n,)) for n in range(5)]
    try:
        outcomes = limit.call_all(calls)
        assert [outcome.result for outcome in outcomes] == [0, None, 2, None, 4]
        assert all(isinstance(outcomes[n].error, LateCall) for n in (1, 3)) and made == [0, 1, 2, 3, 4]
        again = limit.call_all(calls)
        assert "still hangs" in str(again[1].error) and made == [0, 1, 2, 3, 4, 0, 2, 4]
    finally:
        release.set()


def test_each_call_has_the_whole_limit_to_itself() -> None:
    limit = TimeLimit(0.4)
    outcomes = limit.call_all([(f"n{n}", time.sleep, (0.15,)) for n in range(5)])  # 0.75 s in all
    assert [outcome.error for outcome in outcomes] == [None] * 5


def test_what_stands_behind_an_interrupted_call_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    release, begun, made = threading.Event(), threading.Event(), []
    limit = TimeLimit(5)
    wait = threading.Event.wait

    def first() -> None:
        begun.set()
        wait(release, 20)

    def interrupted(self: threading.Event, timeout: float | None = None) -> bool:
        wait(begun, 20)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Event, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        limit.call_all([("first", first, ()), ("second", made.append, (2,))])
    monkeypatch.setattr(threading.Event, "wait", wait)
    hung = limit._hung["first"]
    release.set()
    assert hung.wait(5) and limit.call("second", lambda: "fresh") == "fresh"
    assert made == []
