"""Failures show in the registry, the turn, the journal and the log; turns that run at once do not mix."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rune import paths
from rune.storage.log import DurableLog
from rune.subsystem_health import (
    ERROR_TEXT_MAX,
    current_degraded,
    current_run_id,
    error_text,
    journal_event,
    record_failure,
    registry,
    reset_registry,
    turn,
)


@pytest.fixture(autouse=True)
def empty_registry() -> Iterator[None]:
    reset_registry()
    yield
    reset_registry()


@pytest.fixture
def journal(tmp_path: Path) -> DurableLog:
    return DurableLog(paths.journal(tmp_path))


# The registry and the log


def test_the_registry_counts_and_keeps_the_last_failure() -> None:
    record_failure("graphs", ValueError("first"))
    record_failure("neurons", OSError("disk"), tier=2)
    record_failure("graphs", KeyError("second"), tier=1)
    found = registry()
    assert list(found) == ["graphs", "neurons"]
    assert (found["graphs"].count, found["graphs"].tier, found["graphs"].error) == (2, 1, "KeyError: 'second'")
    assert (found["neurons"].count, found["neurons"].tier) == (1, 2)
    assert found["graphs"].as_row().keys() == {"name", "count", "tier", "error", "time"}
    assert found["graphs"].time.endswith("+00:00")
    found.clear()
    assert len(registry()) == 2
    reset_registry()
    assert registry() == {}


def test_failures_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rune.subsystem_health"):
        record_failure("graphs", ValueError("x"), tier=2)
    assert [r.getMessage() for r in caplog.records] == ["graphs failed (tier 2): ValueError: x"]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (ValueError("x"), "ValueError: x"),
        (ValueError(), "ValueError"),
        ("words", "words"),
        (Unspeakable(), "Unspeakable"),
        (ValueError("a \udcb2 b"), "ValueError: a \\udcb2 b"),
        (OSError("http://me:hunter2@host/x"), "OSError: http://***@host/x"),
        (OSError("Authorization: Bearer abc.def-1"), "OSError: Authorization: Bearer ***"),
        (OSError("https://me:p@s&s'w@host:1/x http://token@h"), "OSError: https://***@host:1/x http://***@h"),
        (OSError('{"Authorization": "Basic bWU6cA=="}'), 'OSError: {"Authorization": "Basic ***"}'),
        (OSError("no bearers of bad news //host/x@y"), "OSError: no bearers of bad news //host/x@y"),
        (OSError("{'api_key': 'sk-123', 'x': 1}"), "OSError: {'api_key': '***', 'x': 1}"),
        (OSError("GET /v1?api_key=sk-123&n=1"), "OSError: GET /v1?api_key=***&n=1"),
    ],
)
def test_the_text_of_an_error(exc: Any, text: str) -> None:
    assert error_text(exc) == text


def test_the_text_of_an_error_is_short() -> None:
    assert len(error_text(ValueError("x" * 10_000))) == ERROR_TEXT_MAX == 300
    assert len(error_text(ValueError("\ud800" * 10_000))) == 300
    assert "hunter2" not in error_text("x" * 290 + "http://me:hunter2@h")


# Turns


def test_degraded_names_stand_once_and_in_order() -> None:
    with turn() as health:
        assert health.degraded == current_degraded() == []
        for name in ("b", "a", "b"):
            record_failure(name, ValueError())
        assert current_degraded() == ["b", "a"]
        current_degraded().append("c")
    assert health.degraded == ["b", "a"]
    assert current_degraded() == []
    record_failure("d", ValueError())
    assert health.degraded == ["b", "a"]


def test_a_turn_that_raises_is_over_too() -> None:
    with pytest.raises(KeyError), turn():
        raise KeyError
    assert current_degraded() == []


def test_a_turn_within_a_turn_is_part_of_it(journal: DurableLog) -> None:
    with turn(journal, "r1") as outer:
        record_failure("before", ValueError())
        with turn() as inner:
            assert current_run_id() == "r1"
            record_failure("inside", ValueError())
            journal_event("step")
            assert current_degraded() == ["inside"]
        assert current_degraded() == ["before", "inside"]
    assert (inner.degraded, outer.degraded) == (["inside"], ["before", "inside"])
    assert [(row["event"], row["run_id"]) for row in journal.read()] == [("failure", "r1")] * 2 + [("step", "r1")]


def test_threads_do_not_mix() -> None:
    barrier = threading.Barrier(8)
    found: dict[int, list[str]] = {}

    def work(number: int) -> None:
        with turn() as health:
            barrier.wait()
            for n in range(50):
                record_failure(f"{number}.{n}", ValueError())
            found[number] = health.degraded

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [f"{n}.{i}" for i in range(50)] for n in range(8)}


def test_tasks_do_not_mix_and_a_tasks_own_tasks_belong_to_it() -> None:
    async def step(name: str) -> None:
        await asyncio.sleep(0)
        record_failure(name, ValueError())

    async def work(number: int) -> list[str]:
        with turn() as health:
            await asyncio.gather(step(f"{number}.a"), step(f"{number}.b"))
            await step(f"{number}.c")
            return health.degraded

    async def main() -> list[list[str]]:
        return await asyncio.gather(*(work(n) for n in range(20)))

    assert asyncio.run(main()) == [[f"{n}.a", f"{n}.b", f"{n}.c"] for n in range(20)]


def test_threads_in_a_copy_of_the_context_belong_to_the_turn_until_it_is_over() -> None:
    late = threading.Event()

    def contributor() -> None:
        record_failure("in time", ValueError())
        late.wait()
        record_failure("late", ValueError())

    with turn() as outer:
        with turn() as inner:
            thread = threading.Thread(target=contextvars.copy_context().run, args=(contributor,))
            thread.start()
            while "in time" not in inner.degraded:
                pass
        late.set()
        thread.join()
        assert (inner.degraded, outer.degraded) == (["in time"], ["in time", "late"])
    assert registry()["late"].count == 1


def test_a_name_that_many_threads_report_stands_once() -> None:
    names = [str(n) for n in range(300)]
    barrier = threading.Barrier(6)

    def work() -> None:
        barrier.wait()
        for name in names:
            record_failure(name, ValueError())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with turn() as health:
            contexts = [contextvars.copy_context() for _ in range(6)]
            threads = [threading.Thread(target=context.run, args=(work,)) for context in contexts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(health.degraded, key=int) == names
    assert {failure.count for failure in registry().values()} == {6}


# The journal


def test_events_and_failures_are_in_the_journal(journal: DurableLog) -> None:
    with turn(journal, run_id="r1"):
        journal_event("run_started", model="m")
        record_failure("graphs", ValueError("x"), tier=2, table="t")
    with turn(journal):
        journal_event("other")
    started, failed, other = journal.read()
    assert list(started) == ["time", "event", "run_id", "model"]
    assert (started["event"], started["run_id"], started["model"]) == ("run_started", "r1", "m")
    del failed["time"]
    assert failed == {
        "event": "failure",
        "run_id": "r1",
        "subsystem": "graphs",
        "tier": 2,
        "error": "ValueError: x",
        "table": "t",
    }
    assert "run_id" not in other


def test_without_a_journal_nothing_is_written(tmp_path: Path) -> None:
    journal_event("x")
    with turn():
        journal_event("x")
        record_failure("graphs", ValueError())
    assert list(tmp_path.iterdir()) == []


def test_a_journal_that_cannot_be_written_marks_the_turn_once(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    for _ in range(2):
        with turn(DurableLog(paths.journal(tmp_path))) as health:
            for _ in range(3):
                journal_event("x")
            record_failure("graphs", ValueError())
            assert health.degraded == ["storage.degraded", "graphs"]
    assert registry()["storage.degraded"].count == 2 and registry()["storage.degraded"].tier == 2
    assert "StorageError" in registry()["storage.degraded"].error


def test_what_is_no_json_raises_nothing(journal: DurableLog) -> None:
    with turn(journal) as health:
        journal_event("x", odd=object())
        record_failure("graphs", ValueError(), odd=object())
        journal_event("y", text="\ud800")
    assert health.degraded == ["storage.degraded", "graphs"]
    assert [row["event"] for row in journal.read()] == ["y"]


def test_no_secret_reaches_the_journal(journal: DurableLog) -> None:
    with turn(journal):
        record_failure("x", OSError("POST http://me:hunter2@host failed; Bearer hunter2"))
    assert b"hunter2" not in journal.path.read_bytes()
    assert json.loads(journal.path.read_bytes())["subsystem"] == "x"
