"""The tools that change files of the workspace: each call puts a whole file in its place, or changes nothing."""

from __future__ import annotations

import difflib
from typing import Annotated

from msgspec import Meta

from rune.errors import ToolError
from rune.runtime.tools import ToolContext, tool

__all__ = ["edit_file", "write_file"]

TEXT_MAX = 1_000_000  # characters of one call
EDITED_BYTES_MAX = 5_000_000
_NEAREST_LINES_MAX = 5_000


@tool(approval=True)
def write_file(
    context: ToolContext,
    path: Annotated[str, Meta(min_length=1, description="file in the workspace; missing folders are made")],
    text: Annotated[str, Meta(max_length=TEXT_MAX, description="the whole new content")],
) -> str:
    """Writes a text file, in place of what it held before."""
    found = context.workspace.resolve(path)
    data = _encoded(text)
    context.check()
    replaced = context.workspace.write(found, data)
    return f"{'replaced' if replaced else 'made'} {context.workspace.name(found)} ({len(data):,} bytes)"


@tool(approval=True)
def edit_file(
    context: ToolContext,
    path: Annotated[str, Meta(min_length=1, description="file in the workspace")],
    old: Annotated[
        str, Meta(min_length=1, max_length=TEXT_MAX, description="text that stands in the file exactly once")
    ],
    new: Annotated[str, Meta(max_length=TEXT_MAX, description="text to put in its place")],
) -> str:
    """Replaces one piece of a text file; give enough lines around it to make it unique."""
    found = context.workspace.resolve(path)
    context.workspace.check_writable(found)
    with context.workspace.open(found) as file:
        data = file.read(EDITED_BYTES_MAX + 1)
    if len(data) > EDITED_BYTES_MAX:
        raise ToolError(f"{path!r} has more than {EDITED_BYTES_MAX:,} bytes; edit_file is for smaller files")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise ToolError(f"{path!r} is no UTF-8 text (byte {exc.start}) and cannot be edited") from None
    if "\r\n" in text and "\r\n" not in old:  # models write \n whatever the file has
        old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
    times = _times(text, old)
    if times == 0:
        raise ToolError(f"that text is not in {path!r}{_nearest(text, old)}; read the file and copy it exactly")
    if times > 1:
        raise ToolError(
            f"that text is in {path!r} {times} times; give more of the lines around it, so that it is unique"
        )
    if old == new:
        raise ToolError("the old and the new text are the same; nothing was changed")
    line = text.count("\n", 0, text.index(old)) + 1
    changed = _encoded(text.replace(old, new, 1))
    context.check()
    context.workspace.write(found, changed)
    return f"replaced the text at line {line} of {context.workspace.name(found)}"


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise ToolError(f"the text holds half a character at {exc.start} (a lone surrogate); leave it out") from None


def _times(text: str, piece: str) -> int:
    """How often a piece stands in a text, overlapping places too."""
    count, at = 0, text.find(piece)
    while at >= 0:
        count, at = count + 1, text.find(piece, at + 1)
        if count >= 1000:
            break
    return count


def _nearest(text: str, old: str) -> str:
    """Where a line like the first one of ``old`` stands, to be told to the model."""
    first = next((line.strip() for line in old.splitlines() if line.strip()), "")
    lines = text.splitlines()
    if not first or len(first) > 300 or len(lines) > _NEAREST_LINES_MAX:
        return ""
    close = difflib.get_close_matches(first, [line.strip()[:300] for line in lines], n=1, cutoff=0.7)
    if not close:
        return ""
    number = next(number for number, line in enumerate(lines, 1) if line.strip()[:300] == close[0])
    return f" (line {number} is like it: {close[0][:120]!r})"
