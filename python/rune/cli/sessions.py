"""``rune sessions``: conversations on disk: list, show, import, export, delete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from rune.cli.common import EXIT_DONE, json_option, load_settings, print_json, printable
from rune.cli.render import console
from rune.errors import InvalidInput

if TYPE_CHECKING:
    from rune.context.conversation import Conversation

__all__ = ["sessions"]


@click.group(epilog="Example: rune sessions import chat.jsonl --id support-7")
def sessions() -> None:
    """Conversations that are kept under the Rune home."""


@sessions.command("list")
@json_option
def list_(as_json: bool) -> int:
    """List the sessions, the latest first."""
    from rune.context.sessions import list_sessions

    found = list_sessions(load_settings().home)
    if as_json:
        print_json(
            [{"id": i.id, "path": str(i.path), "bytes": i.bytes, "modified": i.modified, "rows": i.rows} for i in found]
        )
        return EXIT_DONE
    table = Table(box=None, pad_edge=False)
    for column in ("session", "rows", "bytes", "changed"):
        table.add_column(column)
    for info in found:
        changed = datetime.fromtimestamp(info.modified).strftime("%Y-%m-%d %H:%M")
        table.add_row(info.id, str(info.rows), f"{info.bytes:,}", changed)
    if found:
        console().print(table)
    else:
        click.echo("there are no sessions yet; rune ask TEXT --session ID begins one")
    return EXIT_DONE


@sessions.command()
@click.argument("id")
@json_option
def show(id: str, as_json: bool) -> int:
    """Show the turns of a session: which a summary stands for, and why incomplete ones are not offered to a model."""
    from rune.context.compaction import compacted

    session = _open(id)
    summary = compacted(session)
    through = summary.through if summary is not None else 0
    if as_json:
        turns = [
            {
                "turn": t.number,
                "time": t.time,
                "complete": t.complete,
                "incomplete": t.incomplete,
                "compacted": t.number < through,
                "messages": list(t),
            }
            for t in session.turns
        ]
        value = {"id": session.id, "tokens": session.tokens, "system": list(session.system), "turns": turns}
        value["summary"] = summary.summary if summary else None
        print_json({**value, "problems": session.problems})
        return EXIT_DONE
    for text in session.system:
        click.echo(f"[system] {printable(text)}")
    if summary is not None:
        click.echo(click.style(f"--- summary that stands for turns 0 to {through - 1}", dim=True))
        click.echo(printable(summary.summary))
    for turn in session.turns:
        mark = "" if turn.complete else f"   (not offered: {turn.incomplete})"
        if turn.number < through:
            mark += "   (compacted)"
        click.echo(click.style(f"--- turn {turn.number} {turn.time}{mark}", dim=True))
        for message in turn:
            calls = "".join(f" → {call['function']['name']}" for call in message.get("tool_calls", ()))
            click.echo(f"[{message['role']}{calls}] {printable(message['content'])}")
    for problem in session.problems:
        click.echo(f"note: {printable(problem)}", err=True)
    return EXIT_DONE


@sessions.command("import")
@click.argument("file", type=click.Path())
@click.option("--id", "id_", help="Id of the new session; that in the file, else the file's name when not given.")
@json_option
def import_(file: str, id_: str | None, as_json: bool) -> int:
    """Import chat messages: JSON lines, a JSON array, or objects with messages. All of FILE, or nothing."""
    from rune.context.sessions import import_messages

    path = Path(file)
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise InvalidInput(f"cannot read {file}: {exc.strerror or exc}") from exc
    try:
        made = import_messages(data, id=id_, default_id=path.stem, home=load_settings().home)
    except InvalidInput as exc:
        raise InvalidInput(f"{file}: {exc}") from exc
    rows = [{"id": c.id, "turns": len(c.turns), "incomplete": c.incomplete_count, "tokens": c.tokens} for c in made]
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            click.echo(f"{row['id']}: {row['turns']} turns ({row['incomplete']} incomplete), {row['tokens']} tokens")
    return EXIT_DONE


@sessions.command()
@click.argument("id")
@click.option(
    "--raw", is_flag=True, help="Rebuild compacted turns from the archive, and check them against the session."
)
def export(id: str, raw: bool) -> int:
    """Print a session as JSON lines of chat messages."""
    from rune.context.sessions import export_lines

    lines = _raw_lines(id) if raw else export_lines(_open(id))
    for line in lines:  # in ASCII, so that no terminal or pipe can change a character
        click.echo(line if line.isascii() else json.dumps(json.loads(line)))
    return EXIT_DONE


@sessions.command()
@click.argument("id")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(id: str, yes: bool) -> int:
    """Delete a session for good."""
    from rune.context.sessions import delete_session

    _open(id)
    if not yes:
        click.confirm(f"delete session {id} for good?", abort=True)
    delete_session(id, load_settings().home)
    click.echo(f"deleted {id}")
    return EXIT_DONE


def _raw_lines(id: str) -> Iterator[str]:
    """The lines of ``export --raw``; the session's file may be gone."""
    from rune.context.conversation import Conversation
    from rune.context.history_archive import HistoryArchive, whole_history
    from rune.context.sessions import message_lines
    from rune.paths import session_path

    home = load_settings().home
    session = Conversation.open(id, home) if session_path(id, home).exists() else None
    turns = session.turns if session is not None else ()
    messages = whole_history(turns, list(HistoryArchive(home).events(id)), id)
    return message_lines(session.system if session is not None else (), messages)


def _open(id: str) -> Conversation:
    from rune.context.conversation import Conversation
    from rune.paths import session_path

    home = load_settings().home
    if not session_path(id, home).exists():
        raise InvalidInput(f"there is no session {id!r}; rune sessions list shows those there are")
    return Conversation.open(id, home)
