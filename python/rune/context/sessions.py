"""Sessions as files: list, import, export and delete. An import is whole or it is not there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from rune.context.conversation import Conversation
from rune.context.session_index import SessionIndex
from rune.errors import InvalidInput, StorageError
from rune.messages import Message, compact_json, normalise, normalise_one
from rune.paths import check_session_id, session_path, sessions_dir

__all__ = [
    "ImportedSession",
    "SessionInfo",
    "delete_session",
    "export_lines",
    "import_messages",
    "list_sessions",
    "message_lines",
    "parse_sessions",
]


class ImportedSession(NamedTuple):
    """Messages read from a file, and the id that stood with them (None for none)."""

    id: str | None
    messages: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session on disk: its file, size in bytes, time of the last change (seconds since 1970), and rows in the file."""

    id: str
    path: Path
    bytes: int
    modified: float
    rows: int


# Reading what others wrote


def parse_sessions(data: str | bytes) -> list[ImportedSession]:
    """Sessions out of JSON: lines of chat messages, an array of them, or ``{"messages": [...]}`` (one, an array, one a line).

    Raises:
        InvalidInput: names the line (or the session and message) that cannot be used; nothing is returned then.
    """
    text = _decoded(data)
    if not text.strip():
        raise InvalidInput("there is nothing in it: messages are expected, one JSON object on each line")
    first = next(line for line in text.split("\n") if line.strip())
    if first.lstrip().startswith("{") and _stands_alone(first):
        return _from_lines(text)
    try:
        whole = json.loads(text)
    except ValueError as exc:
        line = getattr(exc, "lineno", 1)
        raise InvalidInput(f"line {line} is no JSON: {getattr(exc, 'msg', exc)}") from exc
    values = whole if isinstance(whole, list) else [whole]
    return _from_values(values, [""] * len(values))


def _decoded(data: str | bytes) -> str:
    if isinstance(data, str):
        return data.removeprefix("\ufeff")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise InvalidInput(f"line {line} is not UTF-8: byte {data[exc.start]:#04x}") from exc


def _stands_alone(line: str) -> bool:
    """Whether a line is meant as a value of its own."""
    try:
        json.loads(line)
    except ValueError:
        # A line that looks whole is a broken line; one that does not is the start of an object over several lines.
        return line.rstrip().endswith("}")
    return True


def _from_lines(text: str) -> list[ImportedSession]:
    values: list[Any] = []
    places: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values.append(json.loads(line))
        except ValueError as exc:
            raise InvalidInput(f"line {number} is no JSON: {getattr(exc, 'msg', exc)}") from exc
        places.append(f"line {number}: ")
    return _from_values(values, places)


def _from_values(values: list[Any], places: list[str]) -> list[ImportedSession]:
    """Sessions of parsed values, which are all messages (one session) or all objects with ``messages``."""
    if not values:
        raise InvalidInput("there are no messages in it")
    if all(isinstance(value, Mapping) and "messages" in value for value in values):
        sessions = []
        for number, (value, place) in enumerate(zip(values, places, strict=True), start=1):
            where = place or (f"session {number}: " if len(values) > 1 else "")
            messages = value["messages"]
            if not isinstance(messages, list) or not messages:
                raise InvalidInput(f"{where}messages must be a list with at least one message")
            given = value.get("id")
            sessions.append(ImportedSession(None if given is None else str(given), _normal(messages, where)))
        return sessions
    for position, (value, place) in enumerate(zip(values, places, strict=True)):
        if isinstance(value, Mapping) and "messages" in value:
            raise InvalidInput(
                f"{place}a session stands among single messages; a file holds either the one or the other"
            )
        try:
            normalise_one(value, position=position)
        except InvalidInput as exc:
            raise InvalidInput(f"{place}{exc}") from exc
    return [ImportedSession(None, _normal(values, ""))]


def _normal(messages: list[Any], where: str) -> list[dict[str, Any]]:
    try:
        return normalise(messages, keep_thinking=False)
    except InvalidInput as exc:
        raise InvalidInput(f"{where}{exc}") from exc


# Files under the home


def import_messages(
    data: str | bytes, *, id: str | None = None, default_id: str | None = None, home: Path | str | None = None
) -> list[Conversation]:
    """Imports every session of ``data`` (see ``parse_sessions``) into files of its own and opens them.

    ``id`` names the session; several are ``id-1``, ``id-2`` …. Without it the ids in the data count, and ``default_id``
    (with numbers, when there are several) for a session that has none.

    Raises:
        InvalidInput: broken data, no id, one that cannot name a file, or one that is there already. Nothing is imported then.
        StorageError: the files could not be written. Nothing is imported then either.
    """
    found = parse_sessions(data)
    ids = _ids(found, id, default_id)
    for name in ids:
        if session_path(name, home).exists():
            raise InvalidInput(f"there is a session {name!r} already: delete it or import under another id")
    made: list[Path] = []
    try:
        for name, session in zip(ids, found, strict=True):
            Conversation.from_messages(name, session.messages).save_as_new(home)
            made.append(session_path(name, home))
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise
    return [Conversation.open(name, home) for name in ids]


def _ids(found: list[ImportedSession], id: str | None, default_id: str | None) -> list[str]:
    if id is None and default_id is None and any(session.id is None for session in found):
        raise InvalidInput("the messages come without an id: name the session")
    base = id or default_id
    numbered = [str(base) if len(found) == 1 else f"{base}-{n}" for n in range(1, len(found) + 1)]
    ids = [name if id is not None else session.id or name for session, name in zip(found, numbered, strict=True)]
    for name in ids:
        check_session_id(name)
    twice = next((name for name in ids if ids.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f"two sessions have the id {twice!r}")
    return ids


def list_sessions(home: Path | str | None = None) -> list[SessionInfo]:
    """The sessions under the home, the last changed first."""
    found = []
    for path in _files(home):
        try:
            stat = path.stat()
            with path.open("rb") as file:
                rows = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
        except OSError:
            continue  # deleted just now, or not ours to read
        found.append(SessionInfo(path.stem, path, stat.st_size, stat.st_mtime, rows))
    return sorted(found, key=lambda info: (-info.modified, info.id))


def _files(home: Path | str | None) -> Iterator[Path]:
    folder = sessions_dir(home)
    try:
        yield from folder.glob("*.jsonl")
    except OSError as exc:
        raise StorageError(f"the sessions in {folder} cannot be listed: {exc}") from exc


def delete_session(id: str, home: Path | str | None = None) -> None:
    """Deletes a session's file. Raises InvalidInput when there is none, StorageError when it cannot be deleted."""
    path = session_path(id, home)
    try:
        path.unlink()
    except FileNotFoundError:
        raise InvalidInput(f"there is no session {id!r}") from None
    except OSError as exc:
        raise StorageError(f"session {id!r} could not be deleted: {exc}") from exc
    for lock in (".lock", ".turns.lock"):
        path.with_name(path.name + lock).unlink(missing_ok=True)
    SessionIndex.remove_all(path)


def export_lines(conversation: Conversation) -> Iterator[str]:
    """The conversation as lines of JSON, one chat message each, system messages first; what ``parse_sessions`` reads.

    The lines can be written as UTF-8: a lone surrogate stands as its JSON escape.
    """
    return message_lines(conversation.system, conversation.messages())


def message_lines(system: Iterable[str], messages: Iterable[Message]) -> Iterator[str]:
    """Messages as lines of JSON, behind system messages of the given texts."""
    for message in chain(({"role": "system", "content": text} for text in system), messages):
        line = compact_json(message)
        yield line if line.isascii() or not _has_surrogate(line) else json.dumps(message)


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
