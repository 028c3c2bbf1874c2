"""``rune tools``: which tools there are, which ones a model is offered, and what each takes and costs."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from rune.cli.common import EXIT_DONE, json_option, load_settings, print_json, printable
from rune.cli.render import console
from rune.errors import InvalidInput

__all__ = ["tools"]


@click.group(epilog="Example: rune tools list · rune tools show read_file")
def tools() -> None:
    """What a model may call, and what it may not."""


@tools.command("list", epilog="Example: rune tools list --json")
@json_option
def list_tools(as_json: bool) -> int:
    """List the tools, those that are not offered too, and say why."""
    rows, problems = _rows()
    if as_json:
        print_json({"tools": rows, "problems": problems})
        return EXIT_DONE
    table = Table(box=None, pad_edge=False)
    for column in ("tool", "offered", "tokens", "from", "what it does"):
        table.add_column(column, overflow="fold")
    for row in rows:
        offered = _offered(row)
        cells = (row["name"], offered, str(row["tokens"]), row["from"], row["description"])
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console().print(table)
    for problem in problems:
        click.echo(f"plug-in {printable(problem['plugin'])} has no tools here: {printable(problem['error'])}", err=True)
    return EXIT_DONE


@tools.command(epilog="Example: rune tools show run_command --json")
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> int:
    """Show all about the tool NAME, with the schema as models are sent it."""
    rows, _ = _rows()
    row = next((row for row in rows if row["name"] == name), None)
    if row is None:
        raise InvalidInput(f"there is no tool {name!r}; there are: {', '.join(row['name'] for row in rows)}")
    if as_json:
        print_json(row)
        return EXIT_DONE
    table = Table(box=None, pad_edge=False, show_header=False)
    offered = _offered(row)
    approval = "no" if not row["approval"] else "yes" if not row["approved"] else "given by RUNE_AUTO_APPROVE"
    for what, value in (
        ("tool", row["name"]),
        ("what it does", row["description"]),
        ("offered", offered),
        ("needs approval", approval),
        ("time limit", f"{row['timeout_s']:g} s"),
        ("tokens", str(row["tokens"])),
        ("from", row["from"]),
    ):
        table.add_row(what, Text(printable(value)))
    console().print(table)
    click.echo(printable(json.dumps(row["schema"], indent=2, ensure_ascii=False)))
    return EXIT_DONE


def _offered(row: dict[str, Any]) -> str:
    if not row["offered"]:
        return f"no: {row['why_not']}"
    return "asks first" if row["approval"] and not row["approved"] else "yes"


def _rows() -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    from rune.operator_tools import tool_rows
    from rune.runtime.tool_plugins import plugins

    rows = tool_rows(load_settings())
    problems = [{"plugin": one.name, "value": one.value, "error": one.error} for one in plugins() if one.error]
    return rows, problems
