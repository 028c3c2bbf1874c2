"""``rune doctor``: what is set and where from, which engines answer, what is stored, and what is wrong."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table
from rich.text import Text

from rune.cli.common import EXIT_DONE, EXIT_FOUND, json_option, load_settings, print_json, printable
from rune.cli.render import console
from rune.errors import RuneError

__all__ = ["doctor"]


@click.command(epilog="Example: rune doctor --json")
@json_option
def doctor(as_json: bool) -> int:
    """Check this installation. Exit 3 when something is found."""
    settings = load_settings()
    checks = [*_kernel_checks(), *_storage_checks(settings), *_engine_checks(settings), *_run_checks(settings)]
    checks += [{"check": "config.toml", "ok": False, "says": text} for text in settings.warnings]
    found = any(check["ok"] is False for check in checks)
    rows = [row._asdict() for row in settings.explain()]
    if as_json:
        print_json({"ok": not found, "checks": checks, "settings": rows})
        return EXIT_FOUND if found else EXIT_DONE
    table = Table(box=None, pad_edge=False)
    table.add_column("check")
    table.add_column("")
    table.add_column("", overflow="fold")
    for check in checks:
        mark = {True: "ok", False: "PROBLEM", None: "note"}[check["ok"]]
        table.add_row(Text(check["check"]), mark, Text(printable(str(check["says"]))))
    console().print(table)
    click.echo()
    settings_table = Table(box=None, pad_edge=False)
    for column in ("setting", "value", "from"):
        settings_table.add_column(column, overflow="fold")
    for row in rows:
        settings_table.add_row(row["name"], Text(printable(str(row["value"]))), Text(printable(str(row["origin"]))))
    console().print(settings_table)
    return EXIT_FOUND if found else EXIT_DONE


def _kernel_checks() -> list[dict[str, Any]]:
    from rune import __version__, kernels

    reason = f": {kernels.BACKEND_REASON}" if kernels.BACKEND_REASON else ""
    return [{"check": "kernels", "ok": True, "says": f"rune {__version__}, backend {kernels.BACKEND}{reason}"}]


def _storage_checks(settings: Any) -> list[dict[str, Any]]:
    import os

    from rune.paths import database, state_dir
    from rune.storage.database import Database

    checks: list[dict[str, Any]] = []
    folder = state_dir(settings.home)
    at = folder
    while not at.exists() and at != at.parent:
        at = at.parent
    writable = at.is_dir() and os.access(at, os.W_OK)
    says = f"{settings.home}" if writable else f"{at} cannot be written; set RUNE_HOME to a folder that can"
    checks.append({"check": "home", "ok": writable, "says": says})
    if database(settings.home).exists():
        try:
            with Database(database(settings.home), readonly=True) as db, db.read() as connection:
                connection.execute("PRAGMA quick_check(1)").fetchone()
            checks.append({"check": "database", "ok": True, "says": str(database(settings.home))})
        except RuneError as exc:
            checks.append({"check": "database", "ok": False, "says": str(exc)})
    return checks


def _engine_checks(settings: Any) -> list[dict[str, Any]]:
    from dataclasses import replace

    from rune.engines import open_transport
    from rune.transports.embedded_model import available, find_gguf

    checks: list[dict[str, Any]] = []
    answered = False
    try:
        transport, _ = open_transport(replace(settings, engine="ollama", connect_timeout_s=1.0), model="any")
        try:
            names = [listing.name for listing in transport.models()]
            refuses = {True: "refuses long prompts", False: "cuts long prompts", None: "may cut long prompts"}
            version = getattr(transport, "version", lambda: "unknown")()
            says = f"version {version}, {refuses[transport.can_refuse()]}, models: {', '.join(names) or 'none'}"
            checks.append({"check": "ollama", "ok": True, "says": says})
            answered = True
        finally:
            transport.close()
    except RuneError as exc:
        checks.append({"check": "ollama", "ok": False if settings.engine == "ollama" else None, "says": str(exc)})
    ok, reason = available()
    try:
        path = find_gguf(settings.gguf) if ok else None
        says = f"model {path}" if path else reason or "no model file: set RUNE_GGUF"
        checks.append({"check": "embedded engine", "ok": True if path else None, "says": says})
        answered = answered or path is not None
    except RuneError as exc:
        checks.append({"check": "embedded engine", "ok": False, "says": str(exc)})
    if not answered and not settings.openai_base_url:
        checks.append(
            {"check": "engine", "ok": False, "says": "no engine answers: start Ollama, or install the embedded one"}
        )
    return checks


def _run_checks(settings: Any) -> list[dict[str, Any]]:
    """Runs that began and never ended, and the last failures of the journal."""
    from rune.paths import journal
    from rune.storage.log import DurableLog

    try:
        rows = list(DurableLog(journal(settings.home)).tail(500))
    except RuneError as exc:
        return [{"check": "journal", "ok": False, "says": str(exc)}]
    ended = {row.get("run_id") for row in rows if row.get("event") == "run_finished"}
    lost = [row for row in rows if row.get("event") == "run_started" and row.get("run_id") not in ended]
    checks: list[dict[str, Any]] = []
    if lost:
        says = f"{len(lost)} began and did not end (killed, or still going on), the last at {lost[-1].get('time')}"
        checks.append({"check": "runs", "ok": None, "says": says})
    failures = [row for row in rows if row.get("event") == "failure"][-5:]
    checks += [
        {"check": f"failure {row.get('subsystem')}", "ok": None, "says": f"{row.get('time')}: {row.get('error')}"}
        for row in failures
    ]
    return checks
