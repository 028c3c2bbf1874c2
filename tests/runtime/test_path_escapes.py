"""Ways out of the workspace, for every tool that takes a path: nothing outside is ever read, listed, made or changed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rune.errors import ToolError
from rune.runtime.tool_executor import ToolContext
from rune.runtime.workspace import Workspace

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the ways out are those of POSIX")

SECRET = "the-secret-of-outside"


def _link(path: Path, target: str | Path) -> None:
    path.symlink_to(target)


def _chain(root: Path) -> None:
    _link(root / "c3", root.parent)
    _link(root / "c2", "c3")
    _link(root / "c1", "c2")


def _swap(root: Path) -> None:
    (root / "swap").mkdir()
    (root / "swap" / "secret.txt").write_text("inside")


def _socket(root: Path) -> None:
    here = os.getcwd()
    os.chdir(root)  # the address of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("socket")
    finally:
        os.chdir(here)


# Each: what is prepared in the workspace (its parent holds secret.txt and folder/secret.txt), and the path that is asked for.
Prepare = Callable[[Path], Any]
ESCAPES: dict[str, tuple[Prepare | None, str]] = {
    "dots": (None, "../secret.txt"),
    "dots in the middle": (None, "inner/../../secret.txt"),
    "dots behind dots": (None, "./inner/./.././../secret.txt"),
    "dots behind what is not there": (None, "absent/../../secret.txt"),
    "dots behind a file": (None, "a.txt/../../secret.txt"),
    "many dots": (None, "../" * 60 + "etc/passwd"),
    "absolute": (None, "{outside}/secret.txt"),
    "absolute with dots": (None, "{root}/../secret.txt"),
    "absolute with two slashes": (None, "/{outside}/secret.txt"),
    "a name that begins like the root": (None, "{root}-twin/secret.txt"),
    "link to a file": (lambda root: _link(root / "l", root.parent / "secret.txt"), "l"),
    "link to a folder": (lambda root: _link(root / "l", root.parent / "folder"), "l/secret.txt"),
    "link to the parent": (lambda root: _link(root / "l", ".."), "l/secret.txt"),
    "link to the root of all": (lambda root: _link(root / "l", "/"), "l{outside}/secret.txt"),
    "link deep inside, relative": (lambda root: _link(root / "inner/l", "../../folder"), "inner/l/secret.txt"),
    "links to links": (_chain, "c1/secret.txt"),
    "link and dots": (lambda root: _link(root / "l", root.parent / "folder"), "l/../secret.txt"),
    "link to what is not there yet": (lambda root: _link(root / "l", root.parent / "made.txt"), "l"),
    "link to a folder not there yet": (lambda root: _link(root / "l", root.parent / "made"), "l/x.txt"),
    "link to itself": (lambda root: _link(root / "l", "l"), "l"),
    "/proc/self/root": (None, "/proc/self/root{outside}/secret.txt"),
    "/proc/self/cwd": (None, "/proc/self/cwd/../secret.txt"),
    "link to /proc/self/root": (lambda root: _link(root / "l", "/proc/self/root"), "l{outside}/secret.txt"),
    "link to an open file": (lambda root: _link(root / "l", "/proc/self/fd/0"), "l"),
    "standard input": (None, "/dev/stdin"),
    "a device": (None, "/dev/null"),
    "link to a device": (lambda root: _link(root / "l", "/dev/zero"), "l"),
    "a pipe": (lambda root: os.mkfifo(root / "pipe"), "pipe"),
    "a socket": (_socket, "socket"),
    "home": (None, "~/secret.txt"),
    "home of somebody": (None, "~root/secret.txt"),
    "home alone": (None, "~"),
    "NUL": (None, "a.txt\0/../../secret.txt"),
    "NUL at the end": (None, "../secret.txt\0.py"),
    "dots in full width": (None, "\uff0e\uff0e/secret.txt"),
    "two dots in one character": (None, "\u2025/secret.txt"),
    "leaders": (None, "\u2024\u2024/secret.txt"),
    "dots and slash in full width": (None, "\uff0e\uff0e\uff0fsecret.txt"),
    "percent signs": (None, "%2e%2e/secret.txt"),
    "percent signs all over": (None, "..%2fsecret.txt"),
    "backslashes": (None, "..\\secret.txt"),
    "backslashes and slashes": (None, "inner\\..\\..\\secret.txt"),
    "a drive": (None, "C:\\secret.txt"),
    "a share": (None, "\\\\host\\share\\secret.txt"),
    "file URL": (None, "file://{outside}/secret.txt"),
    "file URL, short": (None, "file:{outside}/secret.txt"),
    "file URL, loud": (None, "FILE:///{outside}/secret.txt"),
    "other URL": (None, "ftp://localhost/secret.txt"),
    "a name too long": (None, "x" * 300),
    "a path too long": (None, "x/" * 3000 + "secret.txt"),
    "half a character": (None, "\ud800/secret.txt"),
    "a byte of no text": (None, "\udcff/../../secret.txt"),
    "the home of Rune": (None, "home/config.toml"),
    "the home of Rune by dots": (None, "inner/../home/config.toml"),
    "the home of Rune by a link": (lambda root: _link(root / "l", "home"), "l/config.toml"),
    "a result that is none": (None, "tool_result:../../../secret"),
}

CALLS: dict[str, dict[str, Any]] = {
    "read_file": {},
    "list_files": {"depth": 3},
    "search_text": {"text": SECRET},
    "write_file": {"text": "overwritten"},
    "edit_file": {"old": SECRET, "new": "overwritten"},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "outside" / "work"
    (root / "inner").mkdir(parents=True)
    (root / "a.txt").write_text("inside")
    (root / "home").mkdir()
    (root / "home" / "config.toml").write_text(f"openai_api_key = '{SECRET}'")
    outside = root.parent
    (outside / "secret.txt").write_text(SECRET)
    (outside / "folder").mkdir()
    (outside / "folder" / "secret.txt").write_text(SECRET)
    (outside / "work-twin").mkdir()
    (outside / "work-twin" / "secret.txt").write_text(SECRET)
    return root


@pytest.fixture
def context(root: Path, tmp_path: Path) -> ToolContext:
    from rune.runtime.tool_results import ResultStore

    return ToolContext(Workspace(root, closed=[root / "home"]), ResultStore(root / "home" / "state" / "r", "a" * 32))


def picture(root: Path) -> dict[str, Any]:
    """Everything that tools must leave as it is: what is outside, and the home of Rune."""
    found: dict[str, Any] = {}
    for folder, folders, files in os.walk(root.parent):
        if Path(folder) == root:
            folders[:] = [name for name in folders if name == "home"]
            files = []
        for name in (*folders, *files):
            path = Path(folder) / name
            found[str(path)] = path.read_bytes() if path.is_file() else "folder"
    return found


def inside(root: Path) -> set[str]:
    return {str(path) for path in root.rglob("*")}


@pytest.mark.parametrize("tool", CALLS)
@pytest.mark.parametrize("kind", ESCAPES)
def test_no_way_leads_out(approved: Any, root: Path, kind: str, tool: str) -> None:
    prepare, path = ESCAPES[kind]
    if prepare is not None:
        prepare(root)
    path = path.replace("{outside}", str(root.parent)).replace("{root}", str(root))
    if tool == "write_file" and kind == "a result that is none":
        pytest.skip("a name of a result is a name like others where files are written")
    before, names = picture(root), inside(root)
    begun = time.monotonic()
    outcome = approved(tool, {"path": path, **CALLS[tool]}, timeout=5)
    assert not outcome.ok, outcome.text
    assert SECRET not in outcome.text
    assert picture(root) == before and inside(root) == names  # nothing strange is made inside either
    assert time.monotonic() - begun < 4  # and nothing hangs


def test_there_are_enough_ways() -> None:
    assert len(ESCAPES) >= 20


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root makes devices")
@pytest.mark.parametrize("tool", CALLS)
def test_a_device_in_the_workspace_is_no_file(approved: Any, root: Path, tool: str) -> None:
    import stat

    try:
        os.mknod(root / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("devices cannot be made here")
    assert not approved(tool, {"path": "zero", **CALLS[tool]}, timeout=5).ok
    assert stat.S_ISCHR((root / "zero").stat().st_mode)


def test_what_walks_meets_no_links_pipes_or_closed_folders(approved: Any, root: Path) -> None:
    _link(root / "l", root.parent)
    _link(root / "f", root.parent / "secret.txt")
    os.mkfifo(root / "pipe")
    listing = approved("list_files", {"depth": 20}).text
    assert "l (a link)" in listing and "secret" not in listing and "config" not in listing
    assert "was not found" in approved("search_text", {"text": SECRET}, timeout=5).text
    for pattern in ("../*", "/*", "l/*"):
        assert approved("list_files", {"pattern": pattern, "depth": 5}).text == "nothing is there"


# Between the check and the use


@pytest.mark.parametrize("what", ["file", "folder"])
@pytest.mark.parametrize("tool", CALLS)
def test_a_link_that_comes_after_the_check_leads_nowhere(
    approved: Any, root: Path, monkeypatch: pytest.MonkeyPatch, tool: str, what: str
) -> None:
    _swap(root)
    resolve = Workspace.resolve

    def resolve_then_swap(self: Workspace, path: str) -> Path:
        found = resolve(self, path)
        if what == "file":
            (root / "swap" / "secret.txt").unlink()
            _link(root / "swap" / "secret.txt", root.parent / "secret.txt")
        else:
            (root / "swap").rename(root / "was")
            _link(root / "swap", root.parent / "folder")
        return found

    monkeypatch.setattr(Workspace, "resolve", resolve_then_swap)
    before = picture(root)
    path = "swap" if tool == "list_files" else "swap/secret.txt"
    outcome = approved(tool, {"path": path, **CALLS[tool]}, timeout=5)
    assert SECRET not in outcome.text and picture(root) == before
    if tool != "list_files":
        assert not outcome.ok
    elif what == "folder":
        assert outcome.text == "nothing is there"


@contextlib.contextmanager
def swapping(root: Path) -> Iterator[None]:
    """A folder that is now itself and now a link to the outside, as fast as it goes."""
    (root / "real").mkdir()
    (root / "real" / "secret.txt").write_text("inside")
    _link(root / "fake", root.parent / "folder")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for name in ("real", "fake"):
                try:
                    os.rename(root / name, root / "swap")
                    time.sleep(0)
                    os.rename(root / "swap", root / name)
                except OSError:  # the other side made the folder in the moment without one
                    if not (root / "swap").is_symlink():
                        shutil.rmtree(root / "swap", ignore_errors=True)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_a_race_between_links_and_tools_is_never_lost(root: Path) -> None:
    workspace = Workspace(root)
    before = picture(root)
    read = written = 0
    with swapping(root):
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            with contextlib.suppress(ToolError), workspace.open(workspace.resolve("swap/secret.txt")) as file:
                assert file.read() == b"inside"
                read += 1
            with contextlib.suppress(ToolError):
                workspace.write(workspace.resolve("swap/secret.txt"), b"inside")
                written += 1
            with contextlib.suppress(ToolError):
                workspace.write(workspace.resolve("swap/new.txt"), b"new")
    assert read and written  # the race did take place
    assert picture(root) == before
