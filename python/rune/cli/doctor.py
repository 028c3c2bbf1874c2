"""``rune doctor``: what is set and where from, which engines answer, what is stored, and what is wrong."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from rune.cli.common import EXIT_DONE, EXIT_FOUND, json_option, load_settings, print_json, printable
from rune.cli.render import console
from rune.errors import RuneError

__all__ = ["doctor"]


@click.command(epilog="Example: rune doctor --json · rune doctor --model qwen3:8b · rune doctor --repair")
@click.option("--model", help="Look at this model of the server alone.")
@click.option("--repair", is_flag=True, help="Set a damaged database aside and save every row that can be read.")
@json_option
def doctor(model: str | None, repair: bool, as_json: bool) -> int:
    """Check this installation. Exit 3 when something is found."""
    from rune.cli.doctor_router import router_checks
    from rune.cli.doctor_tools import tool_checks
    from rune.cli.doctor_wire import engine_checks

    settings = load_settings()
    checks = [_repair(settings)] if repair else []
    checks += [*_kernel_checks(), *_storage_checks(settings), *engine_checks(settings, model)]
    checks += [*router_checks(settings), *tool_checks(settings), *_run_checks(settings), *_approval_checks(settings)]
    checks += [{"check": "config.toml", "ok": False, "says": text} for text in settings.warnings]
    found = any(check["ok"] is False for check in checks)
    rows = [row._asdict() for row in settings.explain()]
    if as_json:
        print_json({"ok": not found, "checks": checks, "settings": rows})
        return EXIT_FOUND if found else EXIT_DONE
    table = Table(box=None, pad_edge=False)
    table.add_column("check", overflow="fold")
    table.add_column("")
    table.add_column("", overflow="fold")
    for check in checks:
        mark = {True: "ok", False: "PROBLEM", None: "note"}[check["ok"]]
        table.add_row(Text(printable(check["check"])), mark, Text(printable(str(check["says"]))))
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


def _repair(settings: Any) -> dict[str, Any]:
    """What ``--repair`` did. A database that is whole, or not there, is left as it is and that is no problem."""
    from rune.paths import database
    from rune.storage.repair import inspect, repair

    path = database(settings.home)
    try:
        condition = inspect(path)
        if condition.state in ("ok", "absent"):
            return {"check": "repair", "ok": True, "says": f"nothing to repair: the database is {condition.state}"}
        done = repair(path)
    except RuneError as exc:
        return {"check": "repair", "ok": False, "says": str(exc)}
    rows = ", ".join(f"{count} of {table}" for table, count in done.saved.items() if count) or "no row"
    lost = f"; not all could be read of {', '.join(sorted(set(done.incomplete)))}" if done.incomplete else ""
    says = f"the damaged file is now {done.aside}; saved {rows}{lost}"
    return {"check": "repair", "ok": True, "says": says, "aside": str(done.aside), "saved": done.saved}


def _storage_checks(settings: Any) -> list[dict[str, Any]]:
    import os

    from rune.paths import database, state_dir
    from rune.storage.repair import inspect

    folder = state_dir(settings.home)
    at = folder
    while not os.path.exists(at) and at != at.parent:  # unlike Path.exists it takes "may not look" for "is not there"
        at = at.parent
    # The rights that count are those the program runs with, not those of who started it.
    effective = os.access in os.supports_effective_ids
    writable = os.path.isdir(at) and os.access(at, os.W_OK | os.X_OK, effective_ids=effective)
    says = f"{settings.home}" if writable else f"{at} cannot be written; set RUNE_HOME to a folder that can"
    checks: list[dict[str, Any]] = [{"check": "home", "ok": writable, "says": says}]
    path = database(settings.home)
    try:
        condition = inspect(path)
    except RuneError as exc:
        return [*checks, {"check": "database", "ok": False, "says": str(exc)}]
    if condition.state == "absent":
        return [*checks, {"check": "database", "ok": True, "says": condition.detail}]
    rows = ", ".join(f"{count} {table}" for table, count in condition.rows.items() if count) or "no rows"
    says = f"{path}: {rows}" if condition.state == "ok" else condition.detail
    if condition.state == "damaged" and "--repair" not in says:
        says = f"{path}: {says}. `rune doctor --repair` sets it aside and saves every row that can be read"
    return [*checks, {"check": "database", "ok": condition.state == "ok", "says": says}]


def _approval_checks(settings: Any) -> list[dict[str, Any]]:
    """Turns that wait for an approval, and those of which nothing will come."""
    from rune.runtime.approvals import PendingRuns

    try:
        counts = Counter(info.status for info in PendingRuns(settings.home).entries())
    except RuneError as exc:
        return [{"check": "approvals", "ok": False, "says": str(exc)}]
    if not counts:
        return []
    says = ", ".join(f"{count} {status}" for status, count in counts.items())
    ended = counts.keys() & {"interrupted", "changed", "expired"}
    advice = "; rune pending list shows them" + (", rune pending forget ID removes one" if ended else "")
    return [{"check": "approvals", "ok": None, "says": f"{says}{advice}", "counts": dict(counts)}]


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
