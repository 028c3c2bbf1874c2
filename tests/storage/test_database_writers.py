"""Writers of one process wait in line for a database, and do not starve one another by polling."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from rune.errors import StorageError
from rune.storage import database as module
from rune.storage.database import Database


def bump(db: Database) -> None:
    with db.write() as connection:
        connection.execute(
            "INSERT INTO setting (name, value) VALUES ('n', 1) ON CONFLICT DO UPDATE SET value = value + 1"
        )


def value(db: Database) -> int:
    with db.read() as connection:
        row = connection.execute("SELECT value FROM setting WHERE name = 'n'").fetchone()
    return 0 if row is None else int(row[0])


def test_many_threads_with_databases_of_their_own_all_get_their_turn(tmp_path: Path) -> None:
    path = tmp_path / "state" / "rune.sqlite3"
    databases = [Database(path, timeout=20) for _ in range(32)]
    errors: list[BaseException] = []

    def work(db: Database) -> None:
        try:
            for _ in range(20):
                bump(db)
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=work, args=(db,)) for db in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and value(databases[0]) == 640
    for db in databases:
        db.close()


def test_one_that_waits_too_long_is_told_and_has_written_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state" / "rune.sqlite3"
    first, second = Database(path), Database(path, timeout=0.05)
    with first.write() as connection:
        connection.execute("INSERT INTO setting (name, value) VALUES ('n', 7)")
        told: list[str] = []

        def late() -> None:
            with pytest.raises(StorageError) as caught:
                bump(second)
            told.append(str(caught.value))

        thread = threading.Thread(target=late)
        thread.start()
        thread.join()
        assert "Another writer has held it" in told[0]
    bump(second)
    assert value(first) == 8


def test_the_line_is_given_back_after_every_kind_of_failure(tmp_path: Path) -> None:
    db = Database(tmp_path / "state" / "rune.sqlite3", timeout=1)
    bump(db)
    with pytest.raises(ZeroDivisionError), db.write():
        raise ZeroDivisionError
    with pytest.raises(StorageError), db.write() as connection:
        connection.execute("SELECT * FROM nothing")
    broken = Database(tmp_path / "file" / "rune.sqlite3", timeout=1)
    (tmp_path / "file").write_text("in the way")
    for _ in range(2):
        with pytest.raises(StorageError):
            bump(broken)
    begun = time.monotonic()
    bump(db)
    assert value(db) == 2 and time.monotonic() - begun < 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_does_not_wait_for_what_its_parent_held(tmp_path: Path) -> None:
    db = Database(tmp_path / "state" / "rune.sqlite3", timeout=10)
    bump(db)
    with module._writers_lock:
        line = module._writers[os.path.abspath(db.path)]
    assert line.acquire(timeout=1)  # as a thread of the parent would hold it in the moment of the fork
    child = os.fork()
    if child == 0:
        try:
            fresh = Database(db.path, timeout=2)
            bump(fresh)
            os._exit(0)
        except BaseException:
            os._exit(1)
    line.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert value(db) == 2


def test_an_error_that_only_speaks_of_full_is_no_full_disk(tmp_path: Path) -> None:
    import sqlite3

    told = str(
        module.storage_error(sqlite3.OperationalError("phrase queries are not supported (detail!=full)"), tmp_path)
    )
    assert "no room" not in told
    assert "no room" in str(module.storage_error(sqlite3.OperationalError("database or disk is full"), tmp_path))
