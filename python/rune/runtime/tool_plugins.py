"""Tools of installed packages: what the entry points of the group ``rune.tools`` name.

    [project.entry-points."rune.tools"]
    weather = "weather_package.rune_tools"

An entry names a module whose functions are decorated with ``rune.tool``, or one function, one ``Tool``, or several in a list.
A package that is broken costs its own tools and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from rune.errors import InvalidInput
from rune.runtime.tools import TOOLS, Tool, make_tool
from rune.subsystem_health import error_text

__all__ = ["GROUP", "Plugin", "plugins"]

GROUP = "rune.tools"
_lock = threading.Lock()
_loaded: list[Plugin] | None = None


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry: its name, what it points to, the package it belongs to, the tools that came of it, and what went wrong."""

    name: str
    value: str
    package: str = ""
    tools: tuple[str, ...] = ()
    error: str = ""


def plugins() -> list[Plugin]:
    """Every entry, by name; their tools are in ``TOOLS`` afterwards. Loaded once in a process; never raises for one."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = [_load(entry) for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)]
        return list(_loaded)


def _load(entry: EntryPoint) -> Plugin:
    package = entry.dist.name if entry.dist is not None else ""
    before = dict(TOOLS)
    try:
        found = entry.load()
        for made in _tools_of(found):
            there = TOOLS.get(made.name)
            if there is None:
                TOOLS[made.name] = made
            elif there.function is not made.function:
                raise InvalidInput(f"there is a tool named {made.name!r} already (of {there.function.__module__})")
        names = tuple(name for name, one in TOOLS.items() if before.get(name) is not one)
        if not names and not isinstance(found, ModuleType):
            names = tuple(made.name for made in _tools_of(found))  # another entry has imported its module
        if not names:
            names = tuple(name for name, one in TOOLS.items() if one.function.__module__ == entry.module)
        if not names:
            raise InvalidInput("it has no tools: decorate its functions with rune.tool")
        return Plugin(entry.name, entry.value, package, names)
    except (Exception, SystemExit) as exc:  # the code of somebody else, which may do anything when it is imported
        for name in [name for name in TOOLS if name not in before]:
            del TOOLS[name]
        TOOLS.update(before)
        return Plugin(entry.name, entry.value, package, error=error_text(exc))


def _tools_of(found: Any) -> list[Tool]:
    """The tools that a loaded entry names; none for a module, whose functions registered themselves. Raises InvalidInput."""
    if isinstance(found, ModuleType):
        return []
    if isinstance(found, Tool):
        return [found]
    if isinstance(found, Mapping):
        found = found.values()
    if isinstance(found, Iterable) and not isinstance(found, (str, bytes)):
        return [made for one in found for made in _tools_of(one)]
    if callable(found):
        return [next((one for one in TOOLS.values() if one.function is found), None) or make_tool(found)]
    raise InvalidInput(
        f"it names {type(found).__name__}, which is no tool: name a module, a function or a list of tools"
    )
