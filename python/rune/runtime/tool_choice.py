"""Which tools there are for a run, and which of them are offered without being asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rune.runtime.tools import Tool

__all__ = ["unasked", "usable"]


def usable(tools: Iterable[Tool], *, memory: bool, http: bool) -> dict[str, Tool]:
    """The tools that have what they need, by name: those of memory only where it is on, those of the web only where allowed."""
    there = {"": True, "memory": memory, "http": http}
    return {tool.name: tool for tool in tools if there.get(tool.needs, True)}


def unasked(tools: Iterable[Tool], approved: Collection[str] = ()) -> list[str]:
    """Names of the tools to offer without being asked: those on by default, and of those that need an approval the approved.

    A tool whose every call would be refused only costs the model tokens and steps.
    """
    return [tool.name for tool in tools if (tool.name in approved if tool.approval else tool.default_on)]
