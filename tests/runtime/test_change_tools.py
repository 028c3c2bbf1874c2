"""The tools that change files: whole or not at all, and nothing that the model did not mean."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from rune.runtime import change_tools
from rune.runtime.workspace import Workspace


def test_nothing_is_written_without_an_approval(execute: Any, root: Path) -> None:
    for name, arguments in (
        ("write_file", {"path": "a.txt", "text": "new"}),
        ("edit_file", {"path": "a.txt", "old": "first", "new": "new"}),
    ):
        outcome = execute(name, arguments)
        assert not outcome.ok and "needs the user's approval" in outcome.text
    assert (root / "a.txt").read_text() == "first\nsecond\nthird\n"


def test_a_file_is_made_with_its_folders_and_replaced_whole(approved: Any, root: Path) -> None:
    assert approved("write_file", {"path": "new/deep/x.txt", "text": "grüß\n"}).text == "made new/deep/x.txt (7 bytes)"
    assert (root / "new/deep/x.txt").read_text(encoding="utf-8") == "grüß\n"
    assert approved("write_file", {"path": "a.txt", "text": ""}).text == "replaced a.txt (0 bytes)"
    assert (root / "a.txt").read_bytes() == b""
    assert sorted(path.name for path in root.iterdir()) == ["a.txt", "inner", "new", "picture.png"]


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_permissions_stay_and_other_links_keep_the_old_text(approved: Any, root: Path) -> None:
    (root / "run.sh").write_text("old")
    (root / "run.sh").chmod(0o750)
    outside = root.parent / "twin.txt"
    os.link(root / "run.sh", outside)
    assert approved("write_file", {"path": "run.sh", "text": "new"}).ok
    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o750
    assert ((root / "run.sh").read_text(), outside.read_text()) == ("new", "old")
    (root / "run.sh").chmod(0o440)
    assert "read-only" in approved("write_file", {"path": "run.sh", "text": "newer"}).text
    assert (root / "run.sh").read_text() == "new"


@pytest.mark.parametrize("path", ["inner", ".", "a.txt/below.txt"])
def test_what_is_no_place_for_a_file_is_refused(approved: Any, root: Path, path: str) -> None:
    outcome = approved("write_file", {"path": path, "text": "x"})
    assert not outcome.ok and ("cannot be written" in outcome.text or "cannot be used" in outcome.text)
    assert (root / "a.txt").read_text().startswith("first") and (root / "inner" / "code.py").exists()


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", "inner/.GIT/config", ".hg/hgrc"])
def test_what_version_control_keeps_is_read_only(approved: Any, root: Path, path: str) -> None:
    (root / path).parent.mkdir(parents=True)
    (root / path).write_text("kept")
    assert approved("read_file", {"path": path}).text == "kept"
    for name, more in (("write_file", {"text": "x"}), ("edit_file", {"old": "kept", "new": "x"})):
        assert "version control" in approved(name, {"path": path, **more}).text
    assert (root / path).read_text() == "kept"


@pytest.mark.parametrize("nameless", [True, False])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    root: Path, monkeypatch: pytest.MonkeyPatch, nameless: bool
) -> None:
    if not nameless:  # a file system without O_TMPFILE
        monkeypatch.setattr("rune.runtime.whole_file._nameless", lambda folder, mode: None)
    workspace = Workspace(root)
    assert workspace.write(root / "a.txt", b"1") and (root / "a.txt").read_bytes() == b"1"

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = sorted(path.name for path in root.iterdir())
    for path in (root / "a.txt", root / "other.txt"):
        with pytest.raises(Exception, match="No space left"):
            workspace.write(path, b"2")
    assert (root / "a.txt").read_bytes() == b"1"
    assert sorted(path.name for path in root.iterdir()) == before


def test_half_a_character_is_refused(approved: Any, root: Path) -> None:
    assert "surrogate" in approved("write_file", {"path": "x", "text": "a\ud800"}).text
    assert not (root / "x").exists()


# Edits


def test_an_edit_replaces_one_piece(approved: Any, root: Path) -> None:
    text = approved("edit_file", {"path": "a.txt", "old": "second\n", "new": "2nd\n"}).text
    assert text == "replaced the text at line 2 of a.txt"
    assert (root / "a.txt").read_text() == "first\n2nd\nthird\n"
    assert approved("edit_file", {"path": "a.txt", "old": "2nd\n", "new": ""}).ok
    assert (root / "a.txt").read_text() == "first\nthird\n"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("fourth", "x", "is not in 'a.txt'"),
        ("secnd", "x", "line 2 is like it: 'second'"),
        ("ir", "x", "2 times"),
        ("first", "first", "the same"),
        ("", "x", "old"),
    ],
)
def test_an_edit_that_is_not_clear_changes_nothing(approved: Any, root: Path, old: str, new: str, words: str) -> None:
    outcome = approved("edit_file", {"path": "a.txt", "old": old, "new": new})
    assert not outcome.ok and words in outcome.text
    assert (root / "a.txt").read_text() == "first\nsecond\nthird\n"


def test_overlapping_places_are_two(approved: Any, root: Path) -> None:
    (root / "o").write_text("ababa")
    assert "2 times" in approved("edit_file", {"path": "o", "old": "aba", "new": "x"}).text


def test_line_ends_of_windows_stay(approved: Any, root: Path) -> None:
    (root / "w.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    assert approved("edit_file", {"path": "w.txt", "old": "one\ntwo", "new": "1\n2\n2b"}).ok
    assert (root / "w.txt").read_bytes() == b"1\r\n2\r\n2b\r\nthree\r\n"


def test_what_cannot_be_edited_says_so(approved: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no UTF-8 text (byte 0)" in approved("edit_file", {"path": "picture.png", "old": "P", "new": "x"}).text
    assert "cannot be read" in approved("edit_file", {"path": "absent", "old": "a", "new": "b"}).text
    monkeypatch.setattr(change_tools, "EDITED_BYTES_MAX", 10)
    assert "more than 10 bytes" in approved("edit_file", {"path": "a.txt", "old": "first", "new": "b"}).text
