"""A workspace, and a way to call tools in it as the tool loop does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rune.runtime.services import Services
from rune.runtime.tool_executor import TOOLS, Tool, ToolContext, ToolExecutor
from rune.runtime.tool_results import ResultStore
from rune.runtime.workspace import Workspace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("first\nsecond\nthird\n")
    (folder / "inner").mkdir()
    (folder / "inner" / "code.py").write_text("import os\n\ndef Wanted():\n    return 'needle'\n")
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0needle")
    (tmp_path / "secret.txt").write_text("secret")
    return folder


@pytest.fixture
def context(root: Path, tmp_path: Path) -> ToolContext:
    home = tmp_path / "home"
    return ToolContext(Workspace(root, closed=[home]), ResultStore(home / "state" / "tool_results", "0123456789abcdef"))


@pytest.fixture
def execute(context: ToolContext) -> Callable[..., Any]:
    """Calls a tool and gives its outcome; options of the executor, ``cancel``, ``services`` and ``timeout`` by name."""

    def run(name: str, arguments: Any = None, tools: Mapping[str, Tool] = TOOLS, **options: Any) -> Any:
        cancel = options.pop("cancel", None)
        services = options.pop("services", Services())
        if (timeout := options.pop("timeout", None)) is not None:
            tools = {**tools, name: replace(tools[name], timeout=timeout)}
        call = {"id": "call_7", "function": {"name": name, "arguments": {} if arguments is None else arguments}}
        executor = ToolExecutor(tools, replace(context, services=services), **options)
        return executor.execute(call, cancel)

    return run


@pytest.fixture
def approved(execute: Callable[..., Any]) -> Callable[..., Any]:
    """As ``execute``, with every call approved."""

    def run(name: str, arguments: Any = None, **options: Any) -> Any:
        return execute(name, arguments, approve=lambda tool, given: True, **options)

    return run
