"""``rune memory``: what Rune remembers: memories, persona, facts, entities, connections, neurons."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from rune.cli.common import EXIT_DONE, json_option, load_settings, print_json, printable, read_text
from rune.cli.render import console, error_console
from rune.errors import InvalidInput

if TYPE_CHECKING:
    from rune.storage.database import Database

__all__ = ["memory"]

_KINDS = ("memory", "persona", "fact", "entity", "edge", "neuron")
_kind = click.option("--kind", type=click.Choice(_KINDS), default="memory", show_default=True, help="What kind of row.")


@contextmanager
def _database(readonly: bool) -> Iterator[Database]:
    from rune.paths import database
    from rune.storage.database import Database

    with Database(database(load_settings().home), readonly=readonly) as db:
        yield db


@click.group(epilog='Example: rune memory add "The deploy key rotates every Friday"')
def memory() -> None:
    """What is remembered, and may enter a prompt."""


@memory.command(epilog='Example: rune memory add --kind edge "Anna -> lives in -> Oslo"')
@click.argument("text", required=False)
@_kind
@click.option("--source", help="Where it comes from (memory, persona, fact, edge).")
@click.option("--type", "type_", help="The type of an entity.")
@click.option("--alias", "aliases", multiple=True, help="A further name of an entity; may be given again.")
@click.option("--weight", type=float, help="The weight of an edge.")
@click.option("--note", help="What a neuron stands for.")
@json_option
def add(
    text: str | None,
    kind: str,
    source: str | None,
    type_: str | None,
    aliases: tuple[str, ...],
    weight: float | None,
    note: str | None,
    as_json: bool,
) -> int:
    """Add TEXT (or standard input) to what is remembered."""
    from rune.memory import kinds

    fields = {"source": source, "type": type_, "aliases": list(aliases) or None, "weight": weight, "note": note}
    with _database(readonly=False) as db:
        row = kinds.add(db, kind, read_text(text).strip(), **fields)
    if as_json:
        print_json({"kind": kind, "id": row})
    else:
        click.echo(f"{kind} {row}")
    return EXIT_DONE


@memory.command("list")
@_kind
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many rows.")
@click.option("--offset", type=click.IntRange(0), default=0, help="How many to pass over.")
@json_option
def list_(kind: str, limit: int, offset: int, as_json: bool) -> int:
    """List rows of one kind."""
    from rune.memory import kinds

    with _database(readonly=True) as db:
        rows, total = kinds.list_rows(db, kind, limit, offset), kinds.count(db, kind)
    if not as_json and total > len(rows):
        click.echo(f"note: {len(rows)} of {total} are shown; --limit and --offset show others", err=True)
    return _show(rows, as_json)


@memory.command()
@click.argument("query")
@_kind
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many rows.")
@json_option
def search(query: str, kind: str, limit: int, as_json: bool) -> int:
    """Find rows of one kind, the best first."""
    from rune.memory import kinds

    with _database(readonly=True) as db:
        return _show(kinds.search(db, kind, query, limit), as_json)


@memory.command()
@click.argument("id", type=int)
@_kind
@json_option
def forget(id: int, kind: str, as_json: bool) -> int:
    """Remove a row for good."""
    from rune.memory import kinds

    with _database(readonly=False) as db:
        gone = kinds.forget(db, kind, id)
    if as_json:
        print_json({"kind": kind, "forgotten": gone})
    else:
        click.echo(f"forgot {kind} {', '.join(map(str, gone))}")
    return EXIT_DONE


@memory.command("import", epilog="Example: rune memory import notes.jsonl --kind memory")
@click.argument("file", type=click.Path())
@click.option("--kind", type=click.Choice(_KINDS), help="The kind of lines that do not say it.")
@json_option
def import_(file: str, kind: str | None, as_json: bool) -> int:
    """Import JSON lines; a line that cannot be used stops it before anything is written."""
    from rune.memory.interchange import import_lines

    status = error_console()
    try:
        with open(file, "rb") as lines, _database(readonly=False) as db:
            if status.is_terminal and not as_json:
                with status.status("checking …") as shown:
                    done = import_lines(db, lines, kind, lambda n: shown.update(f"{n:,} rows stored …"))
            else:
                done = import_lines(db, lines, kind)
    except OSError as exc:
        raise InvalidInput(f"cannot read {file}: {exc.strerror or exc}") from exc
    if as_json:
        print_json(asdict(done))
    else:
        click.echo(f"{done.added} added, {done.unchanged} were there already")
    return EXIT_DONE


@memory.command()
@click.option("--kind", type=click.Choice(_KINDS), help="Only this kind.")
def export(kind: str | None) -> int:
    """Print what is remembered as JSON lines, which import reads."""
    from rune.memory.interchange import export_lines

    with _database(readonly=True) as db:
        for line in export_lines(db, kind):
            click.echo(line)
    return EXIT_DONE


def _show(rows: list[dict[str, Any]], as_json: bool) -> int:
    if as_json:
        print_json(rows)
        return EXIT_DONE
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(str(row["id"]), Text(printable(str(row["text"]))))
    if rows:
        console().print(table)
    else:
        click.echo("nothing was found", err=True)
    return EXIT_DONE
