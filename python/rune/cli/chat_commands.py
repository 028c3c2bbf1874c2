"""The commands behind a slash in ``rune chat``. Those that exist as commands of ``rune`` are those very commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from rune.cli.common import printable
from rune.cli.render import admission_table, console, row_summary
from rune.errors import ContextOverflowError, RuneError

if TYPE_CHECKING:
    from rune.cli.chat import Chat

__all__ = ["slash"]

_HELP = """\
/context         what is in the window: each block of the last turn, its tokens, what was left out, its tools, the counts
/context TEXT    what TEXT would send now; nothing is sent
/memory [...]    rune memory ...; alone it lists, with other words it searches
/traces [...]    rune traces ...; alone it shows the last records of runs
/model [NAME]    which models there are, and which is in use; goes on with NAME ("tiers": the router chooses again)
/tools           what the model may call; /tools on, /tools off
/session         the turns of this session
/pending [...]   rune pending ...; turns that wait for an approval
/help            this list
/quit            ends the chat (and so does Ctrl-D); the session is kept"""

_MEMORY_WORDS = frozenset({"add", "list", "search", "forget", "import", "export", "-h", "--help"})
_TRACES_WORDS = frozenset({"tail", "show", "-h", "--help"})


def slash(chat: Chat, line: str) -> None:
    """Does what ``line`` (without its slash) asks; an error is told in one line, and the chat goes on."""
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    try:
        words = shlex.split(rest) if name in ("memory", "traces", "pending") else rest.split()
    except ValueError as exc:
        click.echo(f"error: {exc} in /{printable(line)}", err=True)
        return
    try:
        if name in ("quit", "exit", "q"):
            chat.over = True
        elif name in ("help", "?", ""):
            click.echo(_HELP)
        elif name == "context":
            _context(chat, rest)
        elif name == "memory":
            known = bool(words) and words[0] in _MEMORY_WORDS
            _command(["memory", *(words if known else ["search", rest] if words else ["list"])])
        elif name == "traces":
            known = bool(words) and words[0] in _TRACES_WORDS
            _command(["traces", *(words if known else ["show", *words] if words else ["tail"])])
        elif name == "pending":
            _command(["pending", *(words or ["list"])])
        elif name == "model":
            _model(chat, rest)
        elif name == "session":
            _command(["sessions", "show", chat.session.id])
        elif name == "tools":
            _tools(chat, rest)
        else:
            click.echo(f"error: there is no /{printable(name)}; /help lists the commands", err=True)
    except KeyboardInterrupt:
        click.echo("cancelled", err=True)
    except RuneError as exc:
        click.echo(f"error: {printable(str(exc))}", err=True)


def _command(args: list[str]) -> None:
    """A command of ``rune``, with its messages and its errors."""
    from rune.cli.main import main

    main(args)


def _context(chat: Chat, text: str) -> None:
    if text:
        try:
            _, trace = chat.operator.plan(text, chat.session, tools=chat.tools)
        except ContextOverflowError as exc:
            if exc.trace is not None:
                console().print(admission_table(exc.trace, title="What should enter the window"))
            raise
        console().print(admission_table(trace))
        return
    last = chat.last
    if last is None or last.broker_trace is None:
        click.echo("nothing was sent yet; /context TEXT shows what TEXT would send")
        if chat.session.turns:
            _, trace = chat.operator.plan("…", chat.session, tools=chat.tools)
            console().print(admission_table(trace, title="What the next turn would send before its own words"))
        return
    out = console()
    out.print(admission_table(last.broker_trace, title="What the last turn sent"))
    if last.trace is not None:
        for line in _tool_loop(last.trace):
            out.print(line, markup=False)
        out.print()
        out.print(row_summary(last.trace))


def _tool_loop(row: Mapping[str, Any]) -> list[str]:
    """What came into the window after the turn had begun, by its tools, and what made way for it."""
    ext = row["ext"]
    lines = []
    results = [f"{printable(str(one['tool']))} {one['chars']:,} characters" for one in ext.get("tools") or ()]
    if results:
        lines.append(f"then its tools: {', '.join(results)}")
    for one in (ext.get("tool_loop") or {}).get("dropped") or ():
        kept = f", kept as {one['kept']}" if one["kept"] else ""
        lines.append(f"made way: {printable(str(one['tool']))} {one['tokens']:,} tokens{kept}")
    return lines


def _model(chat: Chat, name: str) -> None:
    if name:
        if name == "tiers":
            chat.use_tiers()
        else:
            chat.use_model(name)
        click.echo(f"going on with {printable(name)}")
        return
    transport, used = chat.operator.engine()
    tiers = {tier.model: tier.name for tier in chat.operator.router.chosen_from}
    for listing in transport.models():
        mark = "*" if listing.name == used or listing.name in tiers else " "
        tier = f" (tier {printable(tiers[listing.name])})" if listing.name in tiers else ""
        click.echo(f"{mark} {printable(listing.name)}{tier}" + (" (remote)" if listing.remote else ""))


def _tools(chat: Chat, word: str) -> None:
    if word in ("on", "off"):
        chat.tools = word == "on"
    state = "may be called" if chat.tools else "are off"
    click.echo(f"tools {state}: {', '.join(map(printable, chat.operator.tools)) or 'none'}")
