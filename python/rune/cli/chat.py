"""``rune chat``: a conversation in the terminal, in which one can see what the model sees."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rune.cli.calls import go_on
from rune.cli.chat_approval import Answer, ask_person
from rune.cli.chat_commands import slash
from rune.cli.common import EXIT_DONE, load_settings, printable
from rune.cli.render import error_console
from rune.cli.stream import Stream, tell
from rune.context.compaction import PENDING_APPROVAL
from rune.errors import InvalidInput, RuneError
from rune.paths import private_dir
from rune.runtime.approvals import PendingRuns

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
    read: Callable[..., str]
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

    def use_tiers(self) -> None:
        """Lets the router choose again. Raises InvalidInput where there are no tiers."""
        from dataclasses import replace

        from rune.rune_operator import RuneOperator

        if len(self.settings.tiers) < 2:
            raise InvalidInput("there are no tiers: name two models or more under [tiers] in config.toml")
        self.operator.close()
        self.operator = RuneOperator(settings=replace(self.settings, model=None))

    def say(self, text: str) -> None:
        """Runs one turn and shows it as it comes. Ctrl-C ends the turn, and leaves the session as it was before."""
        self.decide(
            self._show(lambda stream: self.operator.run(text, self.session, "chat", tools=self.tools, on_event=stream))
        )

    def decide(self, state: Mapping[str, Any] | None) -> None:
        """Asks about the call that a turn waits for (if it waits), and goes on with the turn until it has ended."""
        while state is not None:
            answer = ask_person(state, self.read)
            if answer is None:
                click.echo(go_on(state), err=True)
                return
            again = self._show(self._resume(str(state["id"]), answer))
            # Where nothing came of it (arguments that cannot be used, a server that is away) it still waits.
            state = again if again is not None or self._pending.status(state["id"]) is None else state

    def _resume(self, id: str, answer: Answer) -> Callable[[Stream], OperatorResponse]:
        return lambda stream: self.operator.resume(
            id, answer.decision, answer.arguments, reason=answer.reason, session=self.session, on_event=stream
        )

    def waiting(self) -> Mapping[str, Any] | None:
        """The turn of this session that waits since an earlier day, or None."""
        mark = self.session.state_of(PENDING_APPROVAL)
        id = str(mark.get("id", "")) if isinstance(mark, Mapping) else ""
        return self._pending.read(id) if self._pending.status(id) in ("waiting", "answer missing") else None

    @property
    def _pending(self) -> PendingRuns:
        return PendingRuns(self.settings.home)

    def _show(self, run: Callable[[Stream], OperatorResponse]) -> Mapping[str, Any] | None:
        """Shows a run as it comes; gives the state of a turn that waits for an approval."""
        stream = Stream(False, error_console(), details=True)
        try:
            response = run(stream)
        except KeyboardInterrupt:
            stream.stop()
            stream.end_line()
            click.echo("cancelled; the session is as it was before this turn", err=True)
            return None
        except RuneError as exc:
            stream.stop()
            click.echo(f"error: {printable(str(exc))}", err=True)
            return None
        stream.stop()
        self.last = response
        if not stream.wrote and response.text:
            click.echo(printable(response.text), nl=False)
            click.echo()
        stream.end_line()
        _conclude(response)
        return response.pending_state


def _conclude(response: OperatorResponse) -> None:
    """What a person should know of the turn besides its answer."""
    tell(response, asks=True)
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
def _reader(home: Path) -> Iterator[Callable[..., str]]:
    """Reads one line of a person, after a prompt and with a text to begin with: with history and editing in a terminal, plainly
    from a pipe. Raises EOFError at the end."""
    if not sys.stdin.isatty():
        yield _read_plain
        return
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    except ImportError:
        yield lambda prompt=PROMPT, default="": input(prompt)
        return
    history: History
    try:
        history = FileHistory(_history_file(home))
    except (OSError, RuneError) as exc:
        click.echo(f"note: lines are not kept for later: {exc}", err=True)
        history = InMemoryHistory()
    session: Any = PromptSession(history=history)
    other: Any = PromptSession()  # what is answered to a question is not among the lines to come back to

    def read(prompt: str = PROMPT, default: str = "") -> str:
        return str((session if prompt == PROMPT else other).prompt(prompt, default=default))

    yield read


def _history_file(home: Path) -> str:
    """Where the lines are kept; for its owner alone, as they are what people ask. Raises OSError, StorageError."""
    path = home / "state" / "chat_history"
    private_dir(path.parent)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    return str(path)


def _read_plain(prompt: str = "", default: str = "") -> str:
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
    state = Chat(settings, RuneOperator(settings=settings), session, tools, _read_plain)
    try:
        _, found = state.operator.engine()
        turns = f", {len(session.turns)} turns so far" if len(session.turns) else ""
        found = " → ".join(tier.model for tier in state.operator.router.chosen_from) or found
        click.echo(
            f"{printable(found)} · session {printable(name)}{turns} · /help lists commands, Ctrl-D ends", err=True
        )
        with _reader(settings.home) as state.read:
            state.decide(state.waiting())
            _talk(state)
    finally:
        state.operator.close()
    click.echo(f"session {printable(name)} is kept: rune chat --session {printable(name)} goes on", err=True)
    return EXIT_DONE


def _talk(state: Chat) -> None:
    while not state.over:
        try:
            text = state.read().strip()
        except EOFError:
            return
        except KeyboardInterrupt:  # takes back the line; Ctrl-D ends the chat
            continue
        if text.startswith("/"):
            slash(state, text[1:])
        elif text:
            state.say(text)
