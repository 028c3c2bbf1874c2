"""Durable logs under several writers, kills at every step, full disks and foreign file systems.

RUNE_LOG_KILLS sets how many writers are killed (a soak: 1000).
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from log_helpers import acknowledgements, die, dying_after, files_of, ids, kill, spawn, wait
from rune.errors import StorageError
from rune.storage import file_lock
from rune.storage.file_lock import FileLock
from rune.storage.log import DurableLog

fcntl = pytest.importorskip("fcntl")
resource = pytest.importorskip("resource")
# Forks of a process with threads are what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

KILLS = int(os.environ.get("RUNE_LOG_KILLS", "24"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "rows.jsonl"


def appending(log: DurableLog, name: str, rows: int, acknowledge: Callable[[str], None] = lambda word: None) -> None:
    for n in range(rows):
        log.append({"id": f"{name}-{n}", "pad": "x" * (n % 97)})
        acknowledge(f"{name}-{n}")


def assert_each_in_order(found: list[str], names: list[str], rows: int) -> None:
    """Every writer's rows, all of them, once, in its own order."""
    for name in names:
        own = [word for word in found if word.startswith(name + "-")]
        assert own == [f"{name}-{n}" for n in range(rows)]


# Several writers


def test_processes_that_write_and_rotate_at_once_lose_and_fuse_nothing(path: Path) -> None:
    names = [f"w{n}" for n in range(4)]
    pids = [
        spawn(lambda name=name: appending(DurableLog(path, max_bytes=4_000, backups=10_000), name, 400))
        for name in names
    ]
    assert [wait(pid) for pid in pids] == [0] * 4
    log = DurableLog(path, max_bytes=4_000, backups=10_000)
    assert_each_in_order(ids(log), names, 400)
    assert log.skipped == 0 and len(files_of(path)) > 20 and max(files_of(path).values()) <= 4_000


def test_with_few_backups_the_newest_rows_of_every_writer_stay(path: Path) -> None:
    names = ["a", "b", "c"]
    pids = [
        spawn(lambda name=name: appending(DurableLog(path, max_bytes=6_000, backups=3), name, 400)) for name in names
    ]
    assert [wait(pid) for pid in pids] == [0] * 3
    found = ids(DurableLog(path))
    assert len(files_of(path)) == 4 and len(found) == len(set(found)) > 100
    for name in names:
        own = [int(word.split("-")[1]) for word in found if word.startswith(name)]
        assert own == list(range(400 - len(own), 400))


def test_threads_with_one_log_and_with_their_own(path: Path) -> None:
    one = DurableLog(path, max_bytes=4_000, backups=10_000)
    names = [f"t{n}" for n in range(6)]
    logs = [one, one, one, *(DurableLog(path, max_bytes=4_000, backups=10_000) for _ in range(3))]
    threads = [threading.Thread(target=appending, args=(log, name, 200)) for log, name in zip(logs, names, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_each_in_order(ids(one), names, 200)


def test_a_fork_shares_no_lock_with_its_parent(path: Path) -> None:
    log = DurableLog(path, max_bytes=4_000, backups=10_000)
    log.append({"id": "before"})
    busy = threading.Thread(target=appending, args=(log, "thread", 300))
    busy.start()  # so that forks happen while the lock is held
    pids = [spawn(lambda name=name: appending(log, name, 100)) for name in ("child0", "child1", "child2")]
    appending(log, "parent", 100)
    assert [wait(pid) for pid in pids] == [0, 0, 0]
    busy.join()
    found = ids(log)
    assert_each_in_order(found, ["child0", "child1", "child2", "parent"], 100)
    assert len(found) == 701 and log.skipped == 0


# Kills


@pytest.mark.parametrize("fsync", [False, True])
def test_writers_killed_at_any_time_lose_no_acknowledged_row(fsync: bool, path: Path) -> None:
    def log() -> DurableLog:
        return DurableLog(path, max_bytes=8_000, backups=1_000_000, fsync=fsync)

    chance = random.Random(3)
    with acknowledgements() as (acknowledge, told):
        for n in range(KILLS):
            pids = [spawn(lambda name=f"{n}.{w}": appending(log(), name, 10**6, acknowledge)) for w in range(2)]
            time.sleep(chance.uniform(0.001, 0.04))
            for pid in pids:
                kill(pid)
            log().append({"id": f"{n}.after-0"})
        acknowledged = told()
    times = Counter(ids(reader := log()))
    assert len(acknowledged) > KILLS and all(times[word] == 1 for word in acknowledged)
    assert all(times[f"{n}.after-0"] == 1 for n in range(KILLS)) and set(times.values()) == {1}
    assert reader.skipped <= 2 * KILLS
    assert max(files_of(path).values()) <= 8_000


@pytest.mark.parametrize("written", [0, 1, 9, 30, -1])
def test_a_kill_in_the_middle_of_a_write(written: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = DurableLog(path)
    log.append({"id": 0})
    real = os.write

    def torn(fd: int, data: bytes) -> int:
        real(fd, data[:written])
        die()
        return 0

    def work() -> None:
        monkeypatch.setattr(os, "write", torn)
        log.append({"id": "€ torn", "pad": "x" * 40})

    assert wait(spawn(work)) == -signal.SIGKILL
    log.append({"id": 1})
    whole = written == -1  # all but the newline: it was not acknowledged, and is there
    assert ids(log) == ([0, "€ torn", 1] if whole else [0, 1])
    assert log.skipped == (0 if whole or written == 0 else 1)


@pytest.mark.parametrize("call", ["rename", "unlink", "open"])
@pytest.mark.parametrize("calls", range(5))
@pytest.mark.parametrize("backups", [3, 100])
def test_a_kill_in_the_middle_of_a_rotation(
    call: str, calls: int, backups: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the step, at most the file whose turn it was to go is gone, and later rotations go on from there."""
    log = DurableLog(path, max_bytes=40, backups=backups)  # four rows a file
    for n in range(16):
        log.append({"id": n})
    log.close()

    def work() -> None:
        monkeypatch.setattr(os, call, dying_after(calls, getattr(os, call)))
        log.append({"id": 16})

    wait(spawn(work))
    found = ids(log)
    assert found[-1] in (15, 16) and found == list(range(found[0], found[-1] + 1))
    assert found[0] == 0 if backups == 100 else found[0] <= 4
    for n in range(20, 24):
        log.append({"id": n})
    again = ids(log)
    assert again[-4:] == [20, 21, 22, 23] and again[:-4] == found[found.index(again[0]) :]
    assert len(again) >= 12 and log.skipped == 0


# No room


def fill(log: DurableLog) -> int:
    """Appends rows until there is no room; how many there was room for."""
    for n in range(1000):
        try:
            log.append({"id": n, "pad": "x" * 500})
        except StorageError as exc:
            assert re.search(r"rows\.jsonl could not be written: .*free some room", str(exc))  # noqa: PT017
            return n
    raise AssertionError("the disk never filled up")


def test_a_disk_that_is_full_keeps_every_row_and_takes_new_ones_when_there_is_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("may not mount a small disk here")
    try:
        (disk / "ballast").write_bytes(b"x" * 30_000)
        log = DurableLog(disk / "rows.jsonl", fsync=True)
        rows = fill(log)
        assert rows > 10 and ids(log) == list(range(rows)) and log.skipped == 0
        assert (disk / "rows.jsonl").read_bytes().endswith(b"}\n")
        with pytest.raises(StorageError):
            log.append({"id": "no", "pad": "x" * 5000})
        (disk / "ballast").unlink()
        log.append({"id": rows})
        assert ids(log) == list(range(rows + 1)) and log.skipped == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("rotating", [False, True])
def test_a_limit_on_the_size_of_files_is_a_full_disk(rotating: bool, path: Path) -> None:
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        log = DurableLog(path, max_bytes=4_000 if rotating else 10**9)
        for n in range(200):
            try:
                log.append({"id": n, "pad": "x" * 300})
            except StorageError:
                assert not rotating
                raise SystemExit(3) from None
            assert n < 40 or rotating
        with pytest.raises(StorageError, match="could not be written"):
            log.append({"id": "big", "pad": "x" * 20_000})
        log.append({"id": 200})

    assert wait(spawn(work)) == (0 if rotating else 1)
    log = DurableLog(path)
    found = ids(log)
    assert found == list(range(found[0], found[-1] + 1)) and log.skipped == 0
    assert found[-1] == (200 if rotating else 28) or not rotating
    log.append({"id": "after"})
    assert ids(log)[-1] == "after" and log.skipped == 0


@pytest.mark.parametrize("step", ["write", "fsync"])
@pytest.mark.parametrize("undo", [True, False], ids=["taken back", "not taken back"])
def test_a_write_that_fails_is_not_acknowledged_and_harms_no_other_row(
    step: str, undo: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = DurableLog(path, fsync=True)
    log.append({"id": 0})
    real = os.write

    def fail(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    def short(fd: int, data: bytes) -> int:
        return real(fd, data[:7])

    with monkeypatch.context() as patch:
        patch.setattr(os, step, short if step == "write" else fail)
        if not undo:
            patch.setattr(os, "ftruncate", fail)
        with pytest.raises(StorageError):
            log.append({"id": "lost"})
    log.append({"id": 1})
    # Where nothing works any more, a row that reached the file before its fsync failed stays.
    assert ids(log) == ([0, "lost", 1] if step == "fsync" and not undo else [0, 1])
    assert log.skipped == (1 if step == "write" and not undo else 0)


# Locks


@contextlib.contextmanager
def held_by_another(path: Path) -> Iterator[None]:
    fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


def test_a_holder_that_never_lets_go_is_an_error_and_not_a_hang(path: Path) -> None:
    log = DurableLog(path, lock_timeout=0.05)
    log.append({"id": 1})
    with held_by_another(path), pytest.raises(StorageError, match="held"):
        log.append({"id": 2})
    log.append({"id": 3})
    assert ids(log) == [1, 3]


def test_a_lock_that_was_removed_and_made_anew_still_excludes(path: Path) -> None:
    log = DurableLog(path, lock_timeout=0.05)
    log.append({"id": 1})
    path.with_name(path.name + ".lock").unlink()
    with held_by_another(path), pytest.raises(StorageError, match="held"):
        log.append({"id": 2})


def test_threads_do_not_wait_for_ever_for_one_another(path: Path) -> None:
    path.parent.mkdir()
    lock = FileLock(path, timeout=0.05)
    with lock, pytest.raises(StorageError, match="held"), lock:
        raise AssertionError("entered twice")
    with lock:
        pass


def test_a_reader_waits_for_a_row_that_is_being_written(path: Path) -> None:
    log = DurableLog(path)
    log.append({"id": 1})
    whole = b'{"id":2,"pad":"xxxxxxxx"}\n'
    rows: list[Any] = []
    with held_by_another(path), path.open("ab", buffering=0) as file:
        file.write(whole[:9])
        reader = threading.Thread(target=lambda: rows.extend(ids(log)))
        reader.start()
        time.sleep(0.05)
        file.write(whole[9:])
    reader.join()
    assert rows == [1, 2] and log.skipped == 0


@pytest.fixture
def without_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(file_lock.fcntl, "flock", flock)


@pytest.mark.usefixtures("without_flock")
def test_a_file_system_without_flock_gets_a_lock_file(path: Path) -> None:
    names = [f"w{n}" for n in range(3)]
    pids = [
        spawn(lambda name=name: appending(DurableLog(path, max_bytes=4_000, backups=1_000), name, 60)) for name in names
    ]
    assert [wait(pid) for pid in pids] == [0, 0, 0]
    log = DurableLog(path, max_bytes=4_000, backups=1_000)
    assert_each_in_order(ids(log), names, 60)
    assert log.skipped == 0


@pytest.mark.usefixtures("without_flock")
def test_a_killed_holder_of_a_lock_file_does_not_lock_the_others_out(path: Path) -> None:
    def work() -> None:
        path.parent.mkdir()
        with FileLock(path.with_name(path.name + ".lock")):
            die()

    assert wait(spawn(work)) == -signal.SIGKILL
    assert [p.name for p in path.parent.iterdir()] != []
    log = DurableLog(path)
    log.append({"id": 1})
    assert ids(log) == [1]
