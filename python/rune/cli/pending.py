"""``rune pending``: turns that wait for an approval: list, show, approve, deny, forget."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from rune.cli.calls import call_line, call_lines
from rune.cli.common import EXIT_DONE, json_option, load_settings, print_json, printable
from rune.cli.outcome import conclude
from rune.cli.render import console, error_console
from rune.cli.stream import Stream
from rune.errors import InvalidInput

__all__ = ["pending"]


@click.group(
    epilog="Example: rune pending list · rune pending approve 1a2b3c · rune pending deny 1a2b3c --reason 'not now'"
)
def pending() -> None:
    """Turns that wait until you approve a call of the model, or refuse it."""


def _row(info: Any) -> dict[str, Any]:
    state: Mapping[str, Any] = info.state or {}
    calls = state.get("pending_calls") or ()
    function = calls[0]["function"] if calls else {}
    return {
        "id": info.id,
        "status": info.status,
        "tool": function.get("name"),
        "arguments": function.get("arguments"),
        "task": (state.get("task") or {}).get("task"),
        **{name: state.get(name) for name in ("session", "model", "created", "expires")},
    }


@pending.command("list")
@json_option
def list_(as_json: bool) -> int:
    """List them, the oldest first."""
    from rune.runtime.approvals import PendingRuns

    found = [_row(info) for info in PendingRuns(load_settings().home).entries()]
    if as_json:
        print_json(found)
        return EXIT_DONE
    if not found:
        click.echo("nothing waits for an approval")
        return EXIT_DONE
    table = Table(box=None, pad_edge=False)
    for column in ("id", "state", "call", "session", "expires"):
        table.add_column(column)
    for row in found:
        call = call_line(str(row["tool"]), row["arguments"]) if row["tool"] else ""
        expires = str(row["expires"] or "")[:16].replace("T", " ")
        cells = (row["id"][:12], row["status"], call, row["session"] or "", expires)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console().print(table)
    return EXIT_DONE


@pending.command()
@click.argument("id")
@json_option
def show(id: str, as_json: bool) -> int:
    """Show what waits: the task, the call with all of its arguments, and what the model was sent."""
    from rune.runtime.approvals import PendingRuns

    info = PendingRuns(load_settings().home).find(id)
    if as_json:
        print_json({**_row(info), "state": info.state})
        return EXIT_DONE
    state = info.state
    if state is None:
        click.echo(f"{info.id} is not as it was written; rune pending forget {info.id[:12]} removes it")
        return EXIT_DONE
    capsule = state["context_capsule"]
    facts = {
        "id": info.id,
        "state": f"{info.status}, expires {state['expires']}",
        "session": state["session"] or "none",
        "model": f"{state['model']} ({state['provider']})",
        "folder": state["workspace"],
        "context": f"{capsule['token_count']:,} tokens in {len(capsule['blocks'])} blocks, {len(state['messages'])} messages",
        "task": state["task"]["task"],
        "said": state["text"],
    }
    for name, value in facts.items():
        if value:
            click.echo(f"{name:<8} {printable(str(value))}")
    for number, call in enumerate(state["pending_calls"]):
        click.echo("call" if not number else "and then")
        for line in call_lines(call):
            click.echo(f"  {line}")
    return EXIT_DONE


@pending.command()
@click.argument("id")
@click.option("--arguments", metavar="JSON", help="Arguments to make the call with, instead of the model's.")
@click.option("--model", help="The model to go on with; that of the turn when not given.")
@click.option("--engine", type=click.Choice(["auto", "ollama", "llama.cpp", "openai"]), help="What runs the model.")
@json_option
def approve(id: str, arguments: str | None, model: str | None, engine: str | None, as_json: bool) -> int:
    """Make the call, and let the model go on with its result."""
    return _decide(id, "approve", as_json, model, engine, arguments=_parsed(arguments))


@pending.command()
@click.argument("id")
@click.option("--reason", default="", help="What to tell the model.")
@click.option("--model", help="The model to go on with; that of the turn when not given.")
@click.option("--engine", type=click.Choice(["auto", "ollama", "llama.cpp", "openai"]), help="What runs the model.")
@json_option
def deny(id: str, reason: str, model: str | None, engine: str | None, as_json: bool) -> int:
    """Tell the model that the call was refused, and let it go on."""
    return _decide(id, "deny", as_json, model, engine, reason=reason)


@pending.command()
@click.argument("id")
@json_option
def forget(id: str, as_json: bool) -> int:
    """Remove a turn without going on with it; the call is not made and the model not asked."""
    from rune.operator_approvals import forget_pending

    forgotten = forget_pending(id, load_settings().home)
    if as_json:
        print_json({"forgotten": forgotten})
    else:
        click.echo(f"forgotten: {forgotten}")
    return EXIT_DONE


def _decide(id: str, decision: Any, as_json: bool, model: str | None, engine: str | None, **values: Any) -> int:
    from rune.rune_operator import RuneOperator
    from rune.runtime.approvals import PendingRuns

    state = PendingRuns(load_settings().home).read(id)
    settings = load_settings(model=model or state["model"], engine=engine)
    stream = Stream(as_json, error_console())
    with RuneOperator(settings=settings) as operator:
        try:
            response = operator.resume(state["id"], decision, model=model, on_event=stream, **values)
        finally:
            stream.stop()
    return conclude(response, stream, as_json=as_json)


def _parsed(arguments: str | None) -> dict[str, Any] | None:
    if arguments is None:
        return None
    try:
        found = json.loads(arguments)
    except ValueError as exc:
        raise InvalidInput(f"--arguments is no JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise InvalidInput('--arguments must be a JSON object, as in --arguments \'{"path": "notes.txt"}\'')
    return found
