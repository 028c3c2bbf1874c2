"""The command ``rune``."""

from __future__ import annotations

import importlib
import io
import logging
import sys
from collections.abc import Sequence
from typing import Any

import click

from rune.cli.common import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_USAGE,
    error_json,
    exit_code,
    print_json,
    printable,
    quiet_stdout,
)
from rune.errors import RuneError

__all__ = ["cli", "main"]

_COMMANDS = {
    "ask": "rune.cli.ask:ask",
    "chat": "rune.cli.chat:chat",
    "doctor": "rune.cli.doctor:doctor",
    "memory": "rune.cli.memory:memory",
    "models": "rune.cli.models:models",
    "pending": "rune.cli.pending:pending",
    "plan": "rune.cli.plan:plan",
    "sessions": "rune.cli.sessions:sessions",
    "tools": "rune.cli.tools:tools",
    "traces": "rune.cli.traces:traces",
}


class _Notes(logging.Handler):
    """What Rune's modules log, as notes on standard error; several subsystems with one and the same reason give one note."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reasons: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "rune.subsystem_health" and isinstance(record.args, tuple):
            reason = str(record.args[-1])
            if reason in self.reasons:
                return
            self.reasons.add(reason)
        click.echo(printable(record.getMessage()), err=True)


class _Commands(click.Group):
    """Imports a command when it is called, so that ``rune --help`` does not load an HTTP client."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = _COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, name = target.split(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog='Examples: rune ask "Why is the sky blue?" --explain · rune plan "Hi" --window 8192 --json · rune doctor',
)
@click.version_option(package_name="rune-context", prog_name="rune")
def cli() -> None:
    """Decide what enters a local model's context window, cut nothing in silence, keep one record per run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; every error becomes one line, or one JSON value with ``--json``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    notes = _Notes()
    logging.getLogger("rune").addHandler(notes)
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    finally:
        logging.getLogger("rune").removeHandler(notes)


def _run(args: list[str]) -> int:
    before_dashes = args[: args.index("--")] if "--" in args else args
    wants_json = "--json" in before_dashes
    try:
        result: Any = cli.main(args=args, prog_name="rune", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        if isinstance(exc, click.UsageError) and exc.ctx is not None and not wants_json:
            click.echo(exc.ctx.get_usage(), err=True)
        return _fail(exc, exc.format_message(), EXIT_USAGE, wants_json)
    except RuneError as exc:
        return _fail(exc, str(exc), exit_code(exc), wants_json)
    except (KeyboardInterrupt, click.Abort):
        click.echo("cancelled", err=True)
        return 130
    except BrokenPipeError:
        quiet_stdout()
        return EXIT_FAILED
    return result if isinstance(result, int) else EXIT_DONE


def _fail(exc: BaseException, message: str, code: int, wants_json: bool) -> int:
    if wants_json:
        print_json(error_json(exc) if isinstance(exc, RuneError) else {"error": {"type": "Usage", "message": message}})
    else:
        click.echo(f"error: {printable(message)}", err=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
