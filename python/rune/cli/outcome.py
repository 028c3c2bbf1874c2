"""The end of a command that ran a turn: its answer, what should be known besides, and the exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rune.cli.common import EXIT_DONE, EXIT_FAILED, EXIT_FOUND, EXIT_WAITING, print_json, printable
from rune.cli.render import admission_table, console, row_summary
from rune.cli.stream import Stream, flagged, tell

if TYPE_CHECKING:
    from rune.rune_operator import OperatorResponse

__all__ = ["conclude"]


def conclude(
    response: OperatorResponse, stream: Stream, *, as_json: bool, strict: bool = False, explain: Path | None = None
) -> int:
    """Prints what is not printed yet and returns the exit code. ``explain``: the trace's file, to show the window as well."""
    code = EXIT_DONE if response.success else EXIT_FAILED
    if response.success and strict and flagged(response):
        code = EXIT_FOUND
    if response.done_reason == "pending" and response.pending_state is not None:
        code = EXIT_WAITING
    if as_json:
        print_json(_value(response))
        return code
    if stream.wrote:
        click.echo()
    elif response.text:
        click.echo(printable(response.text))
    if explain is not None and response.broker_trace is not None:
        out = console()
        out.print()
        out.print(admission_table(response.broker_trace))
        if response.trace is not None:
            out.print()
            out.print(row_summary(response.trace))
            out.print(f"trace    {explain} (run {response.run_id})", markup=False)
    tell(response)
    return code


def _value(response: OperatorResponse) -> dict[str, Any]:
    value: dict[str, Any] = {
        "success": response.success,
        "text": response.text,
        "run_id": response.run_id,
        "verdict": response.verdict,
        "degraded": response.degraded,
        "warnings": response.warnings,
        "trace": response.trace,
    }
    if response.pending_state is not None:
        value["pending_state"] = response.pending_state
    if not response.success:
        kind = type(response.exception).__name__ if response.exception else "Error"
        kind = "Pending" if response.done_reason == "pending" else kind
        value["error"] = {"type": kind, "message": response.error}
    return value
