"""The tools that look and change nothing: read a file, list files, search their texts. All of them stay in the workspace."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from rune.errors import ToolError
from rune.runtime.tool_results import RESULT_CHARS_MAX
from rune.runtime.tools import ToolContext, tool
from rune.runtime.workspace import Entry

__all__ = ["list_files", "read_file", "search_text"]

LINES = 400
LINE_MAX = 2_000  # characters of one line that are shown
ENTRIES_MAX = 400
HITS_MAX = 100
HIT_MAX = 200  # characters of a line around what was found
SEARCHED_BYTES_MAX = 5_000_000  # of one file
VISITED_MAX = 50_000  # entries looked at by one call
_READ_CHARS = RESULT_CHARS_MAX - 300  # what a header and a note on the rest leave
_SKIPPED_FOLDERS = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules"})
_SNIFFED = 8_192


@tool()
def read_file(
    context: ToolContext,
    path: Annotated[str, Meta(description="file in the workspace, or the name of a kept tool result")],
    first_line: Annotated[int, Meta(ge=1, description="line to begin with, from 1")] = 1,
    lines: Annotated[int, Meta(ge=1, description="how many lines at most")] = LINES,
) -> str:
    """Reads lines of a text file."""
    kept = context.results.find(path)
    found = context.workspace.resolve(path) if kept is None else kept
    shown: list[str] = []
    size = number = 0
    more = False
    with context.workspace.open(found) if kept is None else found.open("rb") as file:
        if b"\0" in file.read(_SNIFFED):
            raise ToolError(f"{path!r} is a binary file, not text")
        file.seek(0)
        while raw := file.readline(LINE_MAX * 4):
            number += 1
            rest = 0
            while not raw.endswith(b"\n") and (piece := file.readline(1 << 20)):
                context.check()
                rest += len(piece)
                if piece.endswith(b"\n"):
                    break
            if number % 1000 == 0:
                context.check()
            if number < first_line:
                continue
            line = _line(raw, rest)
            if len(shown) >= lines or size + len(line) + 1 > _READ_CHARS:
                more = True
                break
            shown.append(line)
            size += len(line) + 1
    if not shown and first_line > 1:
        raise ToolError(f"{path!r} has {number} lines; there is no line {first_line}")
    if not shown:
        return f"{path} is empty"
    last = first_line + len(shown) - 1
    note = f"\n[line {last + 1} and more follow: read on with first_line={last + 1}]" if more else ""
    return "\n".join(shown) + note


def _line(raw: bytes, rest: int) -> str:
    text = raw.decode("utf-8", "replace").rstrip("\r\n")
    if rest or len(text) > LINE_MAX:
        return f"{text[:LINE_MAX]}… [the line goes on]"
    return text


@tool()
def list_files(
    context: ToolContext,
    path: Annotated[str, Meta(description="folder in the workspace")] = ".",
    pattern: Annotated[str, Meta(description="names to show, such as *.py")] = "*",
    depth: Annotated[int, Meta(ge=1, le=20, description="levels of folders to go down")] = 1,
) -> str:
    """Lists files with their sizes in bytes; folders end in a slash."""
    top = _folder(context, path)
    shown: list[str] = []
    left_out = 0
    for entry in _walk(context, top, depth, sizes=True):
        if not fnmatch.fnmatch(entry.path.name, pattern):
            continue
        if len(shown) >= ENTRIES_MAX:
            left_out += 1
            continue
        name = context.workspace.name(entry.path)
        if entry.kind == "folder":
            shown.append(f"{name}/")
        elif entry.kind == "link":
            shown.append(f"{name} (a link)")
        else:
            shown.append(f"{name} {'?' if entry.size is None else entry.size}")
    if left_out:
        shown.append(f"[{left_out} more were left out: name a folder or a pattern]")
    return "\n".join(shown) or "nothing is there"


@tool()
def search_text(
    context: ToolContext,
    text: Annotated[str, Meta(min_length=1, max_length=1000, description="literal text, not a pattern; of one line")],
    path: Annotated[str, Meta(description="file or folder in the workspace")] = ".",
    files: Annotated[str, Meta(description="names of files to search, such as *.py")] = "*",
    ignore_case: bool = False,
) -> str:
    """Finds a text in files; each hit is given as file:line: text. Binary and very large files are skipped."""
    top = context.workspace.resolve(path)
    wanted = text.lower() if ignore_case else text
    hits: list[str] = []
    large = 0
    for found in [top] if not top.is_dir() else _files(context, top, files):
        if len(hits) >= HITS_MAX:
            hits.append(f"[stopped after {HITS_MAX} hits: search for a longer text, or in fewer files]")
            break
        try:
            with context.workspace.open(found) as file:
                data = file.read(SEARCHED_BYTES_MAX + 1)
        except ToolError:
            if found == top:
                raise
            continue  # gone meanwhile, a pipe, or not ours to read
        if len(data) > SEARCHED_BYTES_MAX:
            large += 1
        elif b"\0" not in data[:_SNIFFED]:
            _hits(context.workspace.name(found), data.decode("utf-8", "replace"), wanted, ignore_case, hits)
    if large:
        hits.append(f"[{large} files of more than {SEARCHED_BYTES_MAX:,} bytes were not searched]")
    return "\n".join(hits) or f"{text!r} was not found"


def _hits(name: str, content: str, wanted: str, ignore_case: bool, hits: list[str]) -> None:
    if wanted not in (content.lower() if ignore_case else content):
        return
    for number, line in enumerate(content.split("\n"), start=1):
        at = (line.lower() if ignore_case else line).find(wanted)
        if at >= 0 and len(hits) < HITS_MAX:
            start = max(0, at - HIT_MAX // 4)
            shown = line[start : start + HIT_MAX].strip()
            hits.append(f"{name}:{number}: {'…' if start else ''}{shown}{'…' if start + HIT_MAX < len(line) else ''}")


def _folder(context: ToolContext, path: str) -> Path:
    found = context.workspace.resolve(path)
    if not found.is_dir():
        raise ToolError(f"{path!r} is no folder" if found.exists() else f"there is no folder {path!r}")
    return found


def _files(context: ToolContext, top: Path, pattern: str) -> Iterator[Path]:
    for entry in _walk(context, top, 100):
        if entry.kind == "file" and fnmatch.fnmatch(entry.path.name, pattern):
            yield entry.path


def _walk(context: ToolContext, top: Path, depth: int, *, sizes: bool = False) -> Iterator[Entry]:
    """What is under a folder, folders first named then entered, by name. Links are named and not followed."""
    visited = 0
    waiting = [(top, depth)]
    while waiting:
        folder, left = waiting.pop()
        context.check()
        try:
            entries = context.workspace.entries(folder, sizes=sizes)
        except OSError:
            continue  # not ours to read, or gone meanwhile
        inner: list[tuple[Path, int]] = []
        for entry in entries:
            visited += 1
            if visited > VISITED_MAX:
                raise ToolError(
                    f"there are more than {VISITED_MAX:,} entries under {top.name!r}; name a folder below it"
                )
            yield entry
            if left > 1 and entry.kind == "folder" and entry.path.name not in _SKIPPED_FOLDERS:
                inner.append((entry.path, left - 1))
        waiting += reversed(inner)
