"""``rune chat``: a conversation in the terminal, in which one can see what the model sees."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rune.cli.chat_commands import slash
from rune.cli.common import EXIT_DONE, load_settings, printable
from rune.cli.render import error_console
from rune.cli.stream import Stream, tell
from rune.errors import InvalidInput, RuneError
from rune.paths import private_dir

if TYPE_CHECKING:
    from rune.context.conversation import Conversation
    from rune.rune_operator import OperatorResponse, RuneOperator
    from rune.settings import Settings

__all__ = ["Chat", "chat"]

PROMPT = "› "


@dataclass(slots=True)
class Chat:
    """What a running chat holds; the commands behind a slash read and change it."""

    settings: Settings
    operator: RuneOperator
    session: Conversation
    tools: bool
    last: OperatorResponse | None = None
    over: bool = False

    def use_model(self, name: str) -> None:
        """Goes on with another model; the one in use stays when that one is not there. Raises as ``RuneOperator.engine``."""
        from rune.rune_operator import RuneOperator

        other = RuneOperator(model=name, settings=self.settings)
        try:
            listed = {listing.name for listing in other.engine()[0].models()}
            if listed and not {name, f"{name}:latest"} & listed:
                raise InvalidInput(f"there is no model {name!r}; there are: {', '.join(sorted(listed)[:12])}")
        except BaseException:
            other.close()
            raise
        self.operator.close()
        self.operator = other

    def say(self, text: str) -> None:
        """Runs one turn and shows it as it comes. Ctrl-C ends the turn, and leaves the session as it was before."""
        stream = Stream(False, error_console(), details=True)
        try:
            response = self.operator.run(text, self.session, "chat", tools=self.tools, on_event=stream)
        except KeyboardInterrupt:
            stream.stop()
            stream.end_line()
            click.echo("cancelled; the session is as it was before this turn", err=True)
            return
        except RuneError as exc:
            stream.stop()
            click.echo(f"error: {printable(str(exc))}", err=True)
            return
        stream.stop()
        self.last = response
        if not stream.wrote and response.text:
            click.echo(printable(response.text), nl=False)
            click.echo()
        stream.end_line()
        _conclude(response)


def _conclude(response: OperatorResponse) -> None:
    """What a person should know of the turn besides its answer."""
    tell(response)
    trace, row = response.broker_trace, response.trace
    if trace is None or row is None:
        return
    parts = [
        f"{trace['admitted_total']:,} of {trace['budget']:,} tokens",
        (response.verdict or {}).get("kind", "no answer"),
    ]
    parts.append(f"{row['latency_ms'] / 1000:.1f} s")
    if trace["dropped"]:
        names = list(dict.fromkeys(str(dropped["name"]) for dropped in trace["dropped"]))
        parts.append(f"left out: {', '.join(names)}")
    error_console().print(f"[{' · '.join(printable(part) for part in parts)}]", style="dim", markup=False)


@contextmanager
def _reader(home: Path) -> Iterator[Callable[[], str]]:
    """Reads one line of a person: with history and editing in a terminal, plainly from a pipe. Raises EOFError at the end."""
    if not sys.stdin.isatty():
        yield _read_plain
        return
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    except ImportError:
        yield lambda: input(PROMPT)
        return
    history: History
    try:
        history = FileHistory(_history_file(home))
    except (OSError, RuneError) as exc:
        click.echo(f"note: lines are not kept for later: {exc}", err=True)
        history = InMemoryHistory()
    session: Any = PromptSession(history=history)
    yield lambda: str(session.prompt(PROMPT))


def _history_file(home: Path) -> str:
    """Where the lines are kept; for its owner alone, as they are what people ask. Raises OSError, StorageError."""
    path = home / "state" / "chat_history"
    private_dir(path.parent)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    return str(path)


def _read_plain() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


@click.command(epilog="Example: rune chat ~/project --session project · then /context, /memory, /traces, /model, /help")
@click.argument("folder", required=False, type=click.Path())
@click.option("--session", "session_id", help="Go on with, or begin, the session of this id.")
@click.option("--model", help="The model to talk to.")
@click.option("--engine", type=click.Choice(["auto", "ollama", "llama.cpp", "openai"]), help="What runs the model.")
@click.option("--num-ctx", type=click.IntRange(1), help="Window in tokens to ask the server for.")
@click.option("--estimator", type=click.Choice(["chars4", "script"]), help="What measures tokens.")
@click.option("--layout", type=click.Choice(["seed", "cache"]), help="The order of blocks in the prompt.")
@click.option("--tools/--no-tools", default=True, help="Whether the model may call tools.")
def chat(
    folder: str | None,
    session_id: str | None,
    model: str | None,
    engine: str | None,
    num_ctx: int | None,
    estimator: str | None,
    layout: str | None,
    tools: bool,
) -> int:
    """Talk with a local model; its tools work in FOLDER (the current one when not given)."""
    from rune.context.conversation import Conversation
    from rune.rune_operator import RuneOperator

    workspace = None
    if folder is not None:
        workspace = Path(folder).expanduser()
        if not workspace.is_dir():
            raise InvalidInput(f"{folder} is no folder")
    settings = load_settings(
        model=model, engine=engine, num_ctx=num_ctx, estimator=estimator, layout=layout, workspace=workspace
    )
    name = session_id or datetime.now().strftime("chat-%Y%m%d-%H%M%S")
    session = Conversation.open(name, settings.home, estimator=settings.estimator)
    state = Chat(settings, RuneOperator(settings=settings), session, tools)
    try:
        _, found = state.operator.engine()
        turns = f", {len(session.turns)} turns so far" if len(session.turns) else ""
        tiers = state.operator.router.tiers if not state.operator.router.named else ()
        found = " → ".join(tier.model for tier in tiers) or found
        click.echo(
            f"{printable(found)} · session {printable(name)}{turns} · /help lists commands, Ctrl-D ends", err=True
        )
        with _reader(settings.home) as read:
            _talk(state, read)
    finally:
        state.operator.close()
    click.echo(f"session {printable(name)} is kept: rune chat --session {printable(name)} goes on", err=True)
    return EXIT_DONE


def _talk(state: Chat, read: Callable[[], str]) -> None:
    while not state.over:
        try:
            text = read().strip()
        except EOFError:
            return
        except KeyboardInterrupt:  # takes back the line; Ctrl-D ends the chat
            continue
        if text.startswith("/"):
            slash(state, text[1:])
        elif text:
            state.say(text)
