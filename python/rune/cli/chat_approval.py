"""The question that ``rune chat`` asks when a call needs an approval."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import click

from rune.cli.calls import call_lines
from rune.cli.common import printable

__all__ = ["Answer", "ask_person"]

_LINES_SHOWN = 40
_PROMPT = "y run it · n [why] refuse · e change the arguments · l later › "


class Answer(NamedTuple):
    """What a person said; the arguments of ``RuneOperator.resume``."""

    decision: Literal["approve", "deny"]
    arguments: dict[str, Any] | None = None
    reason: str = ""


def ask_person(state: Mapping[str, Any], read: Callable[..., str]) -> Answer | None:
    """Shows the waiting call and asks until there is an answer; None is later (also at the end of the input, and Ctrl-C)."""
    if not state["pending_calls"]:
        click.echo("the call was made, and the model's answer to it is missing", err=True)
        prompt = "y ask for it again · l later › "
    else:
        for number, line in enumerate(call_lines(state["pending_calls"][0], most=_LINES_SHOWN)):
            click.echo(f"{line} needs your approval" if not number else line, err=True)
        prompt = _PROMPT
    while True:
        try:
            word, _, rest = read(prompt).strip().partition(" ")
            if word.lower() in ("y", "yes"):
                return Answer("approve")
            if word.lower() in ("l", "later"):
                return None
            if state["pending_calls"] and word.lower() in ("n", "no"):
                return Answer("deny", reason=rest.strip())
            if state["pending_calls"] and word.lower() in ("e", "edit"):
                arguments = _edited(state["pending_calls"][0]["function"].get("arguments"), rest, read)
                if arguments is not None:
                    return Answer("approve", arguments)
                continue
        except (EOFError, KeyboardInterrupt):
            return None
        if word:
            click.echo(f"note: {printable(word)!r} is none of these", err=True)


def _edited(arguments: Any, given: str, read: Callable[..., str]) -> dict[str, Any] | None:
    """The arguments as a person wants them, from the line itself or from one with the present ones to begin with."""
    text = given.strip() or read("arguments as JSON › ", json.dumps(arguments, ensure_ascii=False))
    try:
        found = json.loads(text)
    except ValueError as exc:
        click.echo(f"error: that is no JSON: {exc}", err=True)
        return None
    if isinstance(found, dict):
        return found
    click.echo("error: arguments are a JSON object with names", err=True)
    return None
