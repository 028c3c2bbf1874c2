"""``rune traces``: the records of past runs."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table
from rich.text import Text

from rune.cli.common import EXIT_DONE, EXIT_FOUND, json_option, load_settings, print_json, printable
from rune.cli.render import console, row_summary
from rune.errors import InvalidInput

__all__ = ["traces"]


@click.group(epilog="Example: rune traces tail -n 5 · rune traces show RUN_ID --json")
def traces() -> None:
    """What the model saw in past runs, and what it cost."""


@traces.command()
@click.option("-n", "--n", "count", type=click.IntRange(1), default=10, show_default=True, help="How many records.")
@json_option
def tail(count: int, as_json: bool) -> int:
    """Show the last records."""
    from rune.inference_trace import read_traces

    rows = read_traces(load_settings().home, limit=count)
    if as_json:
        print_json(list(rows))
        return EXIT_DONE
    table = Table(box=None, pad_edge=False)
    for column in ("run", "model", "estimated", "served", "output", "ms", "verdict", "ok"):
        table.add_column(column)
    for row in rows:
        ext = row.get("ext") or {}
        table.add_row(
            Text(printable(str(ext.get("run_id", "")))[:12]),
            Text(printable(str(row["model"]))),
            str(row["prompt_tokens_estimated"]),
            str(row["prompt_tokens_served"] or "?"),
            str(row["output_tokens"]),
            f"{row['latency_ms']:.0f}",
            str((ext.get("verdict") or {}).get("kind", "")),
            "yes" if row["success"] else "no",
        )
    if rows:
        console().print(table)
    else:
        click.echo("there are no records yet")
    if rows.skipped:
        click.echo(f"note: {rows.skipped} torn lines were skipped", err=True)
    return EXIT_DONE


@traces.command()
@click.argument("run_id")
@json_option
def show(run_id: str, as_json: bool) -> int:
    """Show one record whole; the beginning of its run id (or task id) is enough."""
    from rune.inference_trace import find_rows, verify_row
    from rune.paths import inference_traces
    from rune.storage.log import DurableLog
    from rune.traces.query import run_id_of

    def begins(row: dict[str, Any]) -> bool:
        return run_id_of(row).startswith(run_id) or str(row["task_id"]).startswith(run_id)

    found = find_rows(DurableLog(inference_traces(load_settings().home)), where=begins, limit=2)
    if len(found) != 1:
        how_many = "several" if found else "no"
        raise InvalidInput(f"{how_many} records begin with {run_id!r}; rune traces tail lists the last ones")
    row = found[0]
    changed = verify_row(row) is False
    if as_json:
        print_json(row)
        return EXIT_FOUND if changed else EXIT_DONE
    console().print(row_summary(row))
    for name, tokens in row["per_block_tokens"].items():
        click.echo(f"  {printable(name)}: {tokens}")
    for block in row["dropped_blocks"]:
        click.echo(f"  left out: {printable(str(block['name']))}: {block['tokens']}")
    for message in row["capsule_messages"] or ():
        click.echo(f"\n[{message['role']}]\n{printable(message['content'])}")
    if changed:
        click.echo("warning: this record is not as it was written (its digest does not fit)", err=True)
    return EXIT_FOUND if changed else EXIT_DONE
