"""Looking at a database and setting a damaged one aside: nothing lost, nothing replaced unasked."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
from pathlib import Path

import pytest

from database_helpers import WAYS, WRITE_AND_WAIT, damage, names, put, running, tree
from rune.errors import StorageError
from rune.storage.database import Database
from rune.storage.repair import inspect, rebuild, repair

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "state" / "rune.sqlite3"
    with Database(path) as db:
        put(db, "a")
    return path


def noon() -> float:
    return 43_200.0


def test_inspecting_changes_nothing(path: Path, tmp_path: Path) -> None:
    before = tree(tmp_path)
    found = inspect(path)
    assert (found.state, found.detail, found.rows["setting"], found.rows["memory"]) == ("ok", "", 1, 0)
    assert tree(tmp_path) == before
    assert inspect(tmp_path / "nowhere" / "rune.sqlite3").state == "absent"


def test_a_newer_schema_is_refused_by_inspection_and_by_repair(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    assert inspect(path).state == "refused"
    with pytest.raises(StorageError, match="left as it is"):
        repair(path)
    assert path.read_bytes() == before


def test_a_whole_or_absent_database_is_not_repaired(path: Path, tmp_path: Path) -> None:
    before = tree(tmp_path)
    with pytest.raises(StorageError, match=r"left as it is \(ok\)"):
        repair(path)
    with pytest.raises(StorageError, match="absent"):
        repair(tmp_path / "nowhere" / "rune.sqlite3")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("how", WAYS)
def test_repair_sets_the_damaged_file_aside_byte_for_byte_and_the_store_works_again(path: Path, how: str) -> None:
    damage(path, how)
    content = path.read_bytes()
    assert inspect(path).state == "damaged"
    done = repair(path, clock=noon)
    assert done.aside.name == "rune.sqlite3.damaged-19700101T120000Z"
    assert done.aside.read_bytes() == content
    assert inspect(path).state == "ok"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with Database(path) as db:
        assert ("a" in names(db)) == (how == "a table is gone")
        put(db, "b")
        assert "b" in names(db)


def test_a_second_repair_in_the_same_second_takes_another_name(path: Path) -> None:
    for expected in ("", "-2", "-3"):
        damage(path, "garbage")
        content = path.read_bytes()
        done = repair(path, clock=noon)
        assert done.aside.name == f"rune.sqlite3.damaged-19700101T120000Z{expected}"
        assert done.aside.read_bytes() == content


def fill(path: Path) -> None:
    with Database(path) as db:
        with db.write() as connection:
            connection.executemany(
                "INSERT INTO memory (kind, text, created, seen, merge_key, terms, length)"
                " VALUES ('memory', ?, 1, 1, x'', ?, 2)",
                [(f"memory {number} {'x' * 500}", f"memory {number}") for number in range(1, 1001)],
            )
        rebuild(db)


def test_the_rows_of_a_file_cut_short_are_saved_up_to_the_cut(path: Path) -> None:
    fill(path)
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"memory 800 ")])
    done = repair(path)
    assert "memory" in done.incomplete
    assert done.saved["setting"] == 1
    assert 780 <= done.saved["memory"] <= 810  # the cut is at the end of a page of a few rows
    assert inspect(path).state == "ok"


def test_rows_on_both_sides_of_a_broken_page_are_saved(path: Path) -> None:
    fill(path)
    content = bytearray(path.read_bytes())
    # A leaf in the middle of the table: the one that holds row 500.
    at = content.index(b"memory 500 ") // PAGE
    content[at * PAGE : (at + 1) * PAGE] = os.urandom(PAGE)
    path.write_bytes(content)
    condition = inspect(path)
    assert condition.state == "damaged"
    done = repair(path)
    assert done.incomplete == ("memory",)
    assert 980 <= done.saved["memory"] < 1000
    with Database(path) as db, db.read() as connection:
        texts = [row[0] for row in connection.execute("SELECT text FROM memory ORDER BY id")]
        assert texts[0].startswith("memory 1 ")
        assert texts[-1].startswith("memory 1000 ")
        found = connection.execute("SELECT rowid FROM memory_fts WHERE memory_fts MATCH '\"1000\"'").fetchall()
        assert found == [(1000,)]
    assert inspect(path).state == "ok"


def test_the_log_that_a_killed_writer_left_goes_aside_with_its_file_and_is_read(path: Path) -> None:
    with running(WRITE_AND_WAIT, path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    log = path.with_name(path.name + "-wal")
    written = log.read_bytes()
    with Database(path, readonly=True) as db, db.read() as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'memory'").fetchone()
    content = path.read_bytes()
    content = content[: (root - 1) * PAGE] + os.urandom(PAGE) + content[root * PAGE :]
    path.write_bytes(content)
    done = repair(path, clock=noon)
    assert done.incomplete == ("memory",)
    assert done.aside.read_bytes() == content
    assert done.aside.with_name(done.aside.name + "-wal").read_bytes() == written
    assert not log.exists()
    with Database(path) as db:
        assert names(db) == ["a", "theirs"]


def test_an_index_that_does_not_count_its_rows_is_found_and_rebuilt(path: Path) -> None:
    with Database(path) as db, db.write() as connection:
        connection.execute(
            "INSERT INTO memory (kind, text, created, seen, merge_key, terms, length)"
            " VALUES ('memory', 'green tea', 1, 1, x'', 'green tea', 2)"
        )
    assert "counts 0 rows and there are 1" in inspect(path).detail
    with Database(path) as db:
        rebuild(db)
        with db.read() as connection:
            assert connection.execute("SELECT term, df FROM term_df").fetchall() == [("green", 1), ("tea", 1)]
    assert inspect(path).state == "ok"
