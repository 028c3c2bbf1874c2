"""A run shown while it goes on: progress on standard error, the answer on standard output, tools as they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from rune.cli.calls import call_line, go_on
from rune.cli.common import printable
from rune.cli.render import WHY_LEFT

if TYPE_CHECKING:
    from rune.rune_operator import OperatorResponse

__all__ = ["Stream", "flagged", "tell"]

_ARGUMENTS_SHOWN = 160


class Stream:
    """The ``on_event`` of the commands. ``quiet`` shows nothing; ``wrote`` says whether a part of an answer was printed.

    ``details`` shows what a tool was called with, and how it ended.
    """

    def __init__(self, quiet: bool, status: Console, *, details: bool = False) -> None:
        self.quiet = quiet
        self.wrote = False
        self._details = details
        self._status = status
        self._spinner: Any = None
        self._in_line = False

    def __call__(self, event: Any) -> None:
        kind = type(event).__name__
        if kind == "TextDelta":
            self.stop()
            if not self.quiet:
                text = printable(event.text)
                click.echo(text, nl=False)
                self.wrote = True
                self._in_line = not text.endswith("\n")
        elif kind == "Progress":
            done = f"reading the prompt {event.done:,}/{event.total:,}"
            stages = {"loading": "loading the model …", "summarising": f"summarising the history, part {event.done} …"}
            self._say(stages.get(event.stage, done))
        elif kind == "TierChanged":
            self.stop()
            self.end_line()
            if not self.quiet:
                tier = f"{printable(event.tier)} ({printable(event.model)})"
                self._status.print(f"going on with tier {tier}: {WHY_LEFT[event.why]}", style="dim", markup=False)
        elif kind == "ToolStarted":
            self.stop()
            self.end_line()
            self._status.print(f"tool: {self._call(event)}", style="dim", markup=False)
        elif kind == "ToolFinished" and self._details and not self.quiet:
            first, _, rest = event.text.strip().partition("\n")
            more = f" … ({len(event.text):,} characters)" if rest or len(first) > _ARGUMENTS_SHOWN else ""
            mark = "→" if event.ok else "failed:"
            self._status.print(f"  {mark} {printable(first[:_ARGUMENTS_SHOWN])}{more}", style="dim", markup=False)

    def _call(self, event: Any) -> str:
        return call_line(event.name, event.arguments) if self._details else printable(event.name)

    def _say(self, text: str) -> None:
        if self.quiet or not self._status.is_terminal:
            return
        if self._spinner is None:
            self._spinner = self._status.status(text)
            self._spinner.start()
        else:
            self._spinner.update(text)

    def stop(self) -> None:
        """Takes the progress away."""
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None

    def end_line(self) -> None:
        """Ends the line of the answer, if it is in one."""
        if self._in_line:
            click.echo()
            self._in_line = False


def flagged(response: OperatorResponse) -> bool:
    """Whether the server may have cut the prompt."""
    from rune.transports.base import Verdict

    return response.verdict is not None and Verdict(**response.verdict).flagged  # type: ignore[arg-type]


def tell(response: OperatorResponse, *, asks: bool = False) -> None:
    """What a person should know of a run besides its answer, a line each on standard error.

    How a turn that waits for an approval goes on is among it, unless the caller ``asks`` at once.
    """
    waits = response.done_reason == "pending" and response.pending_state is not None
    if not response.success and not waits:
        click.echo(f"error: {printable(response.error or 'the run failed')}", err=True)
    if response.pending_state is not None and not asks:
        click.echo(go_on(response.pending_state), err=True)
    if flagged(response):
        basis = (response.verdict or {}).get("basis", "")
        click.echo(f"warning: the server may have cut the prompt ({printable(basis)})", err=True)
    for warning in response.warnings:
        click.echo(f"note: {printable(str(warning))}", err=True)
    if response.degraded:
        click.echo(f"degraded: {printable(', '.join(response.degraded))} (rune doctor says more)", err=True)
