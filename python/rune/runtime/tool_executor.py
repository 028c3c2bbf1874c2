"""Tools: functions that a model may call, their schemas, and how a call is checked, run and bounded.

A schema is made from a function's type hints; arguments are checked against it before anything runs. Whatever goes wrong in
a call is a ``ToolError`` whose text goes back to the model. Results are bounded: the rest is kept on disk, and named.
"""

from __future__ import annotations

import inspect
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rune.errors import StorageError, ToolError
from rune.paths import private_dir
from rune.subsystem_health import record_failure

__all__ = ["RESULT_MAX", "TOOLS", "Tool", "ToolContext", "execute", "tool"]

RESULT_MAX = 8000
"""Characters of a result that go to the model."""

_LISTED_MAX = 500
_MATCHES_MAX = 100
_SEARCHED_BYTES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Where tools work: ``workspace`` is the folder that they may touch, ``results`` where long results are kept."""

    workspace: Path
    results: Path | None = None

    def inside(self, path: str) -> Path:
        """A path under the workspace, links followed. Raises ToolError for one that leads out of it."""
        root = self.workspace.resolve()
        try:
            found = (root / path).resolve()
        except (OSError, ValueError, RuntimeError) as exc:
            raise ToolError(f"the path {path!r} cannot be used: {exc}") from exc
        if found != root and root not in found.parents:
            raise ToolError(f"the path {path!r} leads out of the workspace; give one inside of it")
        return found


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its name, what it does in one sentence, the JSON schema of its arguments, and the function."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[..., str]
    arguments: type[msgspec.Struct]
    needs_approval: bool = False

    def schema(self) -> dict[str, Any]:
        """The tool as it is sent to a server."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)},
        }


TOOLS: dict[str, Tool] = {}
"""Every known tool by name."""


def tool(function: Callable[..., str]) -> Callable[..., str]:
    """Registers a function as a tool: the first parameter is the ToolContext, the docstring's first line what it does."""
    hints = inspect.get_annotations(function, eval_str=True)
    fields: list[Any] = []
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        kind = hints[name]
        fields.append((name, kind) if parameter.default is inspect.Parameter.empty else (name, kind, parameter.default))
    arguments = msgspec.defstruct(function.__name__, fields, forbid_unknown_fields=True)
    _, components = msgspec.json.schema_components([arguments], ref_template="#/{name}")
    parameters = {k: v for k, v in next(iter(components.values())).items() if k in ("type", "properties", "required")}
    description = (inspect.getdoc(function) or "").split("\n", 1)[0]
    TOOLS[function.__name__] = Tool(function.__name__, description, parameters, function, arguments)
    return function


def execute(found: Tool, arguments: Any, context: ToolContext) -> str:
    """Runs a tool and returns its bounded result. Raises ToolError; its text is meant for the model."""
    try:
        checked = msgspec.convert(arguments, found.arguments)
    except msgspec.ValidationError as exc:
        raise ToolError(f"the arguments of {found.name} are wrong: {exc}") from exc
    values = {name: getattr(checked, name) for name in checked.__struct_fields__}
    try:
        return bounded(found.function(context, **values), found.name, context)
    except ToolError:
        raise
    except Exception as exc:  # a tool's own mistake is the model's to read, and never ends the turn
        raise ToolError(f"{found.name} failed: {type(exc).__name__}: {exc}") from exc


def bounded(text: str, name: str, context: ToolContext) -> str:
    """The first 8,000 characters of a result, and where the whole of it is kept."""
    if len(text) <= RESULT_MAX:
        return text
    where = "the rest is not kept"
    if context.results is not None:
        path = context.results / f"{name}-{uuid.uuid4().hex}.txt"
        try:
            private_dir(context.results)
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            where = f"the whole is kept as {path.name}"
        except (OSError, StorageError) as exc:
            record_failure("storage.degraded", exc, tier=2)
    return f"{text[:RESULT_MAX]}\n[{len(text) - RESULT_MAX} more characters were left out; {where}]"


# The tools that only read


def _text_of(path: Path, shown: str) -> str:
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise ToolError(f"{shown} is a folder; use list_files") from None
    except OSError as exc:
        raise ToolError(f"{shown} cannot be read: {exc.strerror or exc}") from exc
    if b"\0" in data[:4096]:
        raise ToolError(f"{shown} is no text file")
    return data.decode("utf-8", errors="replace")


def _files(root: Path, below: Path) -> Iterator[Path]:
    for path in sorted(below.iterdir()):
        if path.name == ".git" or path.is_symlink():
            continue
        if path.is_dir():
            yield from _files(root, path)
        else:
            yield path


@tool
def read_file(context: ToolContext, path: str, first_line: int = 1, lines: int = 400) -> str:
    """Reads a text file of the workspace, from a line on."""
    text = _text_of(context.inside(path), path).split("\n")
    start = max(1, first_line)
    part = text[start - 1 : start - 1 + max(1, lines)]
    rest = len(text) - (start - 1) - len(part)
    return "\n".join(part) + (f"\n[{rest} more lines]" if rest > 0 else "")


@tool
def list_files(context: ToolContext, path: str = ".") -> str:
    """Lists the files below a folder of the workspace."""
    folder = context.inside(path)
    if not folder.is_dir():
        raise ToolError(f"{path} is no folder")
    root = context.workspace.resolve()
    names = [found.relative_to(root).as_posix() for found in _files(root, folder)]
    more = [f"[{len(names) - _LISTED_MAX} more files]"] if len(names) > _LISTED_MAX else []
    return "\n".join([*names[:_LISTED_MAX], *more]) or "there are no files"


@tool
def search_text(context: ToolContext, text: str, path: str = ".") -> str:
    """Finds lines that contain a text (any case) in the files below a folder of the workspace."""
    if not text.strip():
        raise ToolError("say which text to look for")
    start, root = context.inside(path), context.workspace.resolve()
    wanted = re.compile(re.escape(text), re.IGNORECASE)
    found: list[str] = []
    for file in [start] if start.is_file() else _files(root, start):
        if file.stat().st_size > _SEARCHED_BYTES_MAX:
            continue
        shown = file.relative_to(root).as_posix()
        try:
            lines = _text_of(file, shown).split("\n")
        except ToolError:
            continue
        for number, line in enumerate(lines, start=1):
            if wanted.search(line):
                found.append(f"{shown}:{number}: {line.strip()[:200]}")
                if len(found) >= _MATCHES_MAX:
                    return "\n".join([*found, "[there are more; search for something narrower]"])
    return "\n".join(found) or "nothing was found"
