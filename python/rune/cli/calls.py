"""Calls of tools as people see them, before they decide on one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rune.cli.common import printable

__all__ = ["call_line", "call_lines", "go_on"]

_SHOWN = 160


def call_line(name: str, arguments: Any) -> str:
    """A call in one line: ``read_file(path='a.txt')``; long ones are cut short, and say so."""
    if isinstance(arguments, dict):
        arguments = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    shown = printable(str(arguments).replace("\n", "\\n"))
    return f"{printable(name)}({shown[:_SHOWN]}{' …' if len(shown) > _SHOWN else ''})"


def call_lines(call: Mapping[str, Any], most: int = 0) -> Iterator[str]:
    """A call with every argument in whole, a line for each and more for texts of several lines.

    ``most``: lines of one argument that are shown (0: all); what is left out is said.
    """
    name, arguments = call["function"]["name"], call["function"].get("arguments")
    yield printable(str(name))
    for key, value in arguments.items() if isinstance(arguments, Mapping) else [("", arguments)]:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines = printable(text).split("\n")
        label = f"  {printable(str(key))}:"
        if len(lines) == 1:
            yield f"{label} {lines[0]}"
            continue
        yield label
        shown = lines if not most or len(lines) <= most else lines[:most]
        yield from (f"    | {line}" for line in shown)
        if len(shown) < len(lines):
            yield f"    … and {len(lines) - len(shown)} more lines"


def go_on(state: Mapping[str, Any]) -> str:
    """One line that says what a turn waits for, and the command with which it goes on."""
    short = str(state["id"])[:12]
    if state["waits_for"] == "answer":
        return f"the call was made and its result is kept: rune pending approve {short} asks for the answer again"
    function = state["pending_calls"][0]["function"]
    call = call_line(str(function["name"]), function.get("arguments"))
    return f"waiting for your approval of {call}: rune pending approve {short} (or deny, show)"
