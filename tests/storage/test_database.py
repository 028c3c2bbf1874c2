"""The database's promises to threads and processes, and its schema."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from database_helpers import HOLD, WRITE_AND_WAIT, names, put, running, start, tree
from rune.errors import StorageError
from rune.storage import schema
from rune.storage.database import Database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "state" / "rune.sqlite3"


@pytest.fixture
def db(path: Path) -> Iterator[Database]:
    with Database(path, timeout=5) as found:
        yield found


# Making and reading


def test_reading_an_absent_database_finds_nothing_and_makes_nothing(db: Database, tmp_path: Path) -> None:
    assert names(db) == []
    assert list(tmp_path.iterdir()) == []


def test_the_first_write_makes_private_files(db: Database, path: Path) -> None:
    assert names(db) == []
    put(db, "a")
    assert names(db) == ["a"]
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700
    files = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in path.parent.iterdir()}
    assert files == {"rune.sqlite3": 0o600, "rune.sqlite3-wal": 0o600, "rune.sqlite3-shm": 0o600}


def test_a_file_that_others_may_read_is_closed_to_them(db: Database, path: Path) -> None:
    put(db, "a")
    db.close()
    path.chmod(0o644)
    assert names(db) == ["a"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_closing_leaves_one_file_and_use_afterwards_opens_anew(db: Database, path: Path) -> None:
    put(db, "a")
    db.close()
    assert [entry.name for entry in path.parent.iterdir()] == ["rune.sqlite3"]
    put(db, "b")
    assert names(db) == ["a", "b"]


def test_an_error_inside_a_write_takes_everything_back(db: Database) -> None:
    put(db, "a")

    class Stop(Exception):
        pass

    def stop_half_way() -> None:
        with db.write() as connection:
            connection.execute("INSERT INTO setting VALUES ('b', '1')")
            raise Stop

    with pytest.raises(Stop):
        stop_half_way()
    assert names(db) == ["a"]
    put(db, "c")
    assert names(db) == ["a", "c"]


def test_a_read_stands_on_one_snapshot(db: Database) -> None:
    put(db, "a")
    with db.read() as connection:
        put(db, "b")
        assert connection.execute("SELECT count(*) FROM setting").fetchone() == (1,)
    assert names(db) == ["a", "b"]


def test_the_schema_has_the_tables_that_are_required(db: Database) -> None:
    put(db, "a")
    with db.read() as connection:
        assert schema.verify(connection, "here") == schema.LATEST
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for kind in ("memory", "persona"):
            assert f"{kind}_fts" in tables
        for table in schema.CONTENT_TABLES:
            assert table in tables


# Threads and processes


def test_threads_share_one_database(db: Database) -> None:
    faults: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(40):
                put(db, f"{number}-{i}")
                assert f"{number}-{i}" in names(db)
        except BaseException as exc:
            faults.append(exc)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert len(names(db)) == 240


def test_a_thread_for_every_call_reuses_the_connection_of_the_one_before(db: Database, path: Path) -> None:
    put(db, "a")
    for _ in range(60):
        thread = threading.Thread(target=names, args=(db,))
        thread.start()
        thread.join()
    opened = sum(os.path.realpath(f"/proc/self/fd/{fd}") == str(path) for fd in os.listdir("/proc/self/fd"))
    assert opened == 1


def test_processes_that_start_at_once_make_one_database(path: Path) -> None:
    code = """
import sys
from rune.storage.database import Database
sys.stdin.readline()
db = Database(sys.argv[1])
for i in range(25):
    with db.write() as connection:
        connection.execute("INSERT INTO setting VALUES (?, '1')", (f"{sys.argv[2]}-{i}",))
"""
    processes = [start(code, path, number) for number in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    with Database(path) as db:
        assert len(names(db)) == 100
    assert [entry.name for entry in path.parent.iterdir()] == ["rune.sqlite3"]


def test_a_forked_child_opens_connections_of_its_own(path: Path) -> None:
    code = """
import os, sys
from rune.storage.database import Database
db = Database(sys.argv[1])
def put(name):
    with db.write() as connection:
        connection.execute("INSERT INTO setting VALUES (?, '1')", (name,))
put("before")
parents = set(db._idle)
child = os.fork()
with db.read() as connection:
    shared = connection in parents
for i in range(50):
    put(f"{'child' if child == 0 else 'parent'}-{i}")
if child == 0:
    db.close()
    os._exit(shared)
assert os.waitpid(child, 0)[1] == 0
with db.read() as connection:
    assert connection.execute("SELECT count(*) FROM setting").fetchone() == (101,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
"""
    process = start(code, path)
    process.communicate()
    assert process.returncode == 0


def test_a_writer_waits_for_another_process_and_readers_do_not(db: Database, path: Path) -> None:
    put(db, "a")
    with running(HOLD, path) as holder:
        began = time.monotonic()
        assert names(db) == ["a"]
        assert time.monotonic() - began < 1
        release = threading.Timer(0.3, holder.terminate)
        release.start()
        put(db, "b")
        release.join()
    assert names(db) == ["a", "b"]


def test_a_lock_held_for_longer_than_the_timeout_is_a_clear_error(path: Path) -> None:
    with Database(path, timeout=0.2) as db:
        put(db, "a")
        with running(HOLD, path):
            with pytest.raises(StorageError, match="Another writer has held it") as caught:
                put(db, "b")
            assert str(path) in str(caught.value)
            assert names(db) == ["a"]
        put(db, "c")
        assert names(db) == ["a", "c"]


def test_a_killed_writer_loses_nothing_that_was_committed(db: Database, path: Path) -> None:
    with running(WRITE_AND_WAIT, path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert names(db) == ["theirs"]


# Versions


def older(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database at ``path`` to which a second step is still to come."""
    with Database(path) as db:
        put(db, "a")
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, (2, "ALTER TABLE setting ADD COLUMN note TEXT DEFAULT 'new'")))
    monkeypatch.setattr(schema, "LATEST", 2)


def test_an_older_schema_is_brought_up_to_date_and_keeps_its_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older(path, monkeypatch)
    with Database(path) as db, db.read() as connection:
        assert connection.execute("SELECT * FROM setting").fetchall() == [("a", "1", "new")]
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)


def test_readonly_reads_an_older_schema_without_touching_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older(path, monkeypatch)
    before = tree(tmp_path)
    with Database(path, readonly=True) as dry, dry.read() as connection:
        assert connection.execute("SELECT note FROM setting").fetchall() == [("new",)]
    assert tree(tmp_path) == before


def test_a_step_that_fails_leaves_the_version_before(path: Path) -> None:
    with Database(path) as db:
        put(db, "a")
    connection = sqlite3.connect(path, isolation_level=None)
    steps = (*schema.STEPS, (2, "CREATE TABLE extra (x); CREATE TABLE setting (y)"))
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        schema.migrate(connection, "here", steps)
    connection.close()
    with Database(path) as db, db.read() as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'extra'").fetchone() == (0,)


@pytest.mark.parametrize("readonly", [False, True])
def test_a_newer_schema_is_refused_and_left_as_it_is(path: Path, tmp_path: Path, readonly: bool) -> None:
    with Database(path) as db:
        put(db, "a")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    with Database(path, readonly=readonly) as db:
        with pytest.raises(StorageError, match="schema version 99.*versions up to 1.*use the newer Rune"):
            names(db)
        if not readonly:
            with pytest.raises(StorageError, match="99"):
                put(db, "b")
    assert path.read_bytes() == before
