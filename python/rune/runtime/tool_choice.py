"""Which tools there are for a run, and which of them are offered without being asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rune.runtime.tools import Tool

__all__ = ["unasked", "usable"]


def usable(tools: Iterable[Tool], *, memory: bool, http: bool) -> dict[str, Tool]:
    """The tools that have what they need, by name: those of memory only where it is on, those of the web only where allowed."""
    there = {"": True, "memory": memory, "http": http}
    return {tool.name: tool for tool in tools if there.get(tool.needs, True)}


def unasked(tools: Iterable[Tool], approved: Collection[str] = (), *, asks: bool = False) -> list[str]:
    """Names of the tools to offer without being asked: those on by default, and those that are approved.

    Of the tools that need an approval the others are offered only where a person can be asked (``asks``): a tool whose every
    call would be refused only costs the model tokens and steps.
    """
    return [tool.name for tool in tools if tool.name in approved or (tool.default_on and (asks or not tool.approval))]
