"""What the database leaves alone, and how it bears files and folders that are not as they should be."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from database_helpers import WAYS, WRITE_AND_WAIT, damage, names, put, running, tree
from rune.errors import StorageError
from rune.storage.database import Database, storage_error


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "state" / "rune.sqlite3"


@pytest.fixture
def db(path: Path) -> Iterator[Database]:
    with Database(path, timeout=5) as found:
        yield found


# Read-only


def test_readonly_changes_nothing_beside_a_closed_database(path: Path, tmp_path: Path) -> None:
    with Database(path) as db:
        put(db, "a")
    before = tree(tmp_path)
    with Database(path, readonly=True) as dry:
        assert names(dry) == ["a"]
        with pytest.raises(StorageError, match="read-only"):
            put(dry, "b")
        assert tree(tmp_path) == before
    assert tree(tmp_path) == before


def test_readonly_changes_nothing_beside_a_live_writer_and_sees_its_rows(path: Path, tmp_path: Path) -> None:
    with running(WRITE_AND_WAIT, path):
        before = tree(tmp_path)
        assert len(before) == 5  # two folders, the file, its log and its shared memory
        with Database(path, readonly=True) as dry:
            assert names(dry) == ["theirs"]
            assert tree(tmp_path) == before
        assert tree(tmp_path) == before


def test_readonly_changes_nothing_beside_what_a_killed_writer_left(path: Path, tmp_path: Path) -> None:
    with running(WRITE_AND_WAIT, path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = tree(tmp_path)
    with Database(path, readonly=True) as dry:
        assert names(dry) == ["theirs"]
    assert tree(tmp_path) == before


def test_readonly_sees_what_was_written_since(path: Path) -> None:
    with Database(path) as db, Database(path, readonly=True) as dry:
        assert names(dry) == []
        put(db, "a")
        assert names(dry) == ["a"]
        put(db, "b")
        assert names(dry) == ["a", "b"]
        db.close()
        assert names(dry) == ["a", "b"]
        put(db, "c")
        assert names(dry) == ["a", "b", "c"]


def test_readonly_of_an_absent_database_makes_nothing(path: Path, tmp_path: Path) -> None:
    with Database(path, readonly=True) as dry:
        assert names(dry) == []
    assert list(tmp_path.iterdir()) == []


def test_private_copies_are_removed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    with Database(path) as db, Database(path, readonly=True) as dry:
        for number in range(3):
            put(db, str(number))
            assert len(names(dry)) == number + 1
            (copy,) = (tmp_path / "temp").iterdir()
            assert stat.S_IMODE(copy.stat().st_mode) == 0o700
    assert list((tmp_path / "temp").iterdir()) == []


# Damage


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("how", WAYS)
def test_a_damaged_database_is_an_error_and_is_never_replaced(path: Path, how: str, readonly: bool) -> None:
    with Database(path) as db:
        put(db, "a")
    damage(path, how)
    before = path.read_bytes()
    with Database(path, readonly=readonly) as db:
        for _ in range(2):
            with pytest.raises(StorageError, match="rune doctor --repair"):
                names(db)
            if not readonly:
                with pytest.raises(StorageError, match="rune doctor --repair"):
                    put(db, "b")
    assert path.read_bytes() == before
    assert not [entry for entry in path.parent.iterdir() if entry.name.startswith(".")]


def test_damage_that_shows_while_open_is_an_error_and_not_a_crash(path: Path) -> None:
    with Database(path) as db:
        for number in range(200):
            put(db, f"{number:04}", "x" * 2000)
    content = bytearray(path.read_bytes())
    content[20 * 4096 :] = os.urandom(len(content) - 20 * 4096)
    path.write_bytes(content)
    with Database(path) as db, pytest.raises(StorageError, match="rune doctor --repair"), db.read() as connection:
        connection.execute("SELECT sum(length(value)) FROM setting").fetchall()


def test_a_file_that_was_set_aside_or_removed_under_us_is_not_written_any_more(db: Database, path: Path) -> None:
    put(db, "a")
    for entry in list(path.parent.iterdir()):
        entry.rename(entry.with_name(f"aside-{entry.name}"))
    assert names(db) == []
    put(db, "b")
    assert names(db) == ["b"]
    shutil.rmtree(path.parent)
    assert names(db) == []
    put(db, "c")
    assert names(db) == ["c"]


def test_the_log_of_a_removed_database_is_not_taken_for_the_new_ones(path: Path) -> None:
    with running(WRITE_AND_WAIT, path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    path.unlink()
    with Database(path, clock=lambda: 0.0) as db:
        put(db, "ours")
        assert names(db) == ["ours"]
    assert (path.parent / "rune.sqlite3.orphan-19700101T000000Z-wal").stat().st_size > 0


# Places that cannot be written


def test_a_file_where_the_folder_should_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "state").write_text("in the way")
    for readonly in (False, True):
        with Database(tmp_path / "home" / "state" / "rune.sqlite3", readonly=readonly) as db:
            with pytest.raises(StorageError, match="Check that its folder exists"):
                names(db)
            with pytest.raises(StorageError):
                put(db, "a")
    assert (tmp_path / "home" / "state").read_text() == "in the way"


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    """A mount that the test needs; skipped where this user may not mount."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("left_open", [False, True])
def test_a_read_only_folder_is_read_and_not_written(path: Path, left_open: bool) -> None:
    with mounted(path.parent, "-t", "tmpfs", "none"):
        with Database(path) as db:
            put(db, "a")
            if left_open:  # with a log that cannot be worked off
                for side in ("", "-wal"):
                    shutil.copy(f"{path}{side}", f"{path}.kept{side}")
        if left_open:
            for side in ("", "-wal"):
                os.replace(f"{path}.kept{side}", f"{path}{side}")
        subprocess.run(["mount", "-o", "remount,ro", str(path.parent)], check=True)
        with Database(path) as db:
            assert names(db) == ["a"]
            with pytest.raises(StorageError, match="read but not written"):
                put(db, "b")
            assert names(db) == ["a"]
        with Database(path.parent / "other.sqlite3") as db:
            assert names(db) == []
            with pytest.raises(StorageError, match="read but not written"):
                put(db, "b")


def test_a_full_disk_is_a_clear_error_and_half_of_nothing_is_kept(path: Path) -> None:
    with mounted(path.parent, "-t", "tmpfs", "-o", "size=1m", "none"), Database(path) as db:
        put(db, "a")
        with pytest.raises(StorageError, match="no room left"), db.write() as connection:
            connection.executemany("INSERT INTO setting VALUES (?, ?)", [(str(n), "x" * 10_000) for n in range(1000)])
        assert names(db) == ["a"]
        put(db, "c")
        assert names(db) == ["a", "c"]


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("database is locked", "try again when it is done"),
        ("database disk image is malformed", "rune doctor --repair"),
        ("file is not a database", "rune doctor --repair"),
        ("database or disk is full", "no room left"),
        ("attempt to write a readonly database", "Make it writable"),
        ("disk I/O error", "Check the disk"),
        ("unable to open database file", "Check that its folder exists"),
    ],
)
def test_every_failure_says_what_to_do(said: str, hint: str) -> None:
    assert hint in str(storage_error(sqlite3.OperationalError(said), Path("/x/rune.sqlite3"), "read"))
