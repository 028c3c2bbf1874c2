"""Where things live, what may name a session, and that asking makes nothing."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rune import paths
from rune.errors import InvalidInput, StorageError

GETTERS = {
    paths.state_dir: "state",
    paths.inference_traces: "state/inference_traces.jsonl",
    paths.history_archive: "state/history_archive.jsonl",
    paths.journal: "state/journal.jsonl",
    paths.database: "state/rune.sqlite3",
    paths.tool_results_dir: "state/tool_results",
    paths.pending_dir: "state/pending",
    paths.sessions_dir: "sessions",
    paths.config_file: "config.toml",
}


@pytest.mark.parametrize("getter", GETTERS, ids=lambda getter: getter.__name__)
def test_every_file_has_its_place_under_the_home(getter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tmp_path / "home" / GETTERS[getter]
    assert getter(tmp_path / "home") == getter(str(tmp_path / "home")) == expected
    monkeypatch.setenv("RUNE_HOME", str(tmp_path / "home"))
    assert getter() == getter(None) == expected
    assert list(tmp_path.iterdir()) == []


def test_a_sessions_file(tmp_path: Path) -> None:
    expected = tmp_path / "sessions" / "a-1.jsonl"
    assert paths.session_path("a-1", tmp_path) == paths.session_file(tmp_path, "a-1") == expected
    assert list(tmp_path.iterdir()) == []


def test_the_home_of_the_environment() -> None:
    assert paths.rune_home({"RUNE_HOME": " /x/y "}) == Path("/x/y")
    assert paths.rune_home({"RUNE_HOME": "~/r"}) == Path.home() / "r"
    assert paths.rune_home({"RUNE_HOME": "r"}) == Path.cwd() / "r"


@pytest.mark.parametrize("env", [{}, {"RUNE_HOME": ""}, {"RUNE_HOME": "  "}])
def test_the_platforms_folder_is_the_default(env: dict[str, str]) -> None:
    import platformdirs

    assert paths.rune_home(env) == Path(platformdirs.user_data_dir("rune", appauthor=False))


def test_a_home_of_nobody_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no-such-user-at-all"):
        paths.rune_home({"RUNE_HOME": "~no-such-user-at-all/x"})


def test_importing_makes_nothing(tmp_path: Path) -> None:
    code = (
        "import rune, rune.paths, rune.settings, rune.storage.log, rune.subsystem_health, rune.inference_trace\n"
        "rune.settings.Settings.load(); rune.inference_trace.read_traces()"
    )
    env = {**os.environ, "HOME": str(tmp_path / "user"), "RUNE_HOME": str(tmp_path / "home"), "XDG_DATA_HOME": ""}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert list(tmp_path.iterdir()) == []


GOOD_IDS = ["a", "_", "A-b_c.d", "2024-01-02T03.04.05Z", "x" * paths.SESSION_ID_MAX, "a..b", "console", "com10"]
BAD_IDS = [
    *(
        "",
        " ",
        ".",
        "..",
        "../a",
        "a/b",
        "a\\b",
        "/etc/passwd",
        "-a",
        ".a",
        "a.",
        "a\0",
        "a\n",
        "a b",
        "é",
        "a:b",
        "a*",
    ),
    *("NUL", "con", "lpt1", "com1.x", "x" * (paths.SESSION_ID_MAX + 1), "\ud800", None, 3, b"a", "٣"),
]


@pytest.mark.parametrize("id", GOOD_IDS)
def test_what_may_name_a_session(id: str) -> None:
    assert paths.check_session_id(id) == id


@pytest.mark.parametrize("id", BAD_IDS)
def test_what_may_not_name_a_session(id: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="id of a session"):
        paths.check_session_id(id)
    with pytest.raises(InvalidInput):
        paths.session_path(id, tmp_path)


def test_private_folders_are_made_with_their_parents(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = paths.private_dir(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert made == tmp_path / "a" / "b" / "c"
    for folder in (made, made.parent, made.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert paths.private_dir(tmp_path) == tmp_path
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


@pytest.mark.parametrize("below", ["file", "file/x", "file/x/y"])
def test_a_file_in_the_place_of_a_folder_is_an_error_that_says_what_to_do(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="RUNE_HOME"):
        paths.private_dir(tmp_path / below)
