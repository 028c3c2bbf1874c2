"""The two streams: all sessions of a data set as one long session, cut into the turns that a user began."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rune.context.conversation import Conversation
from rune.context.turns import Turn
from rune.messages import Message, normalise, split_system, split_turns

__all__ = ["STREAMS", "Recorded", "RecordedTurn", "Stream", "data_folder", "stream_of"]

ROOT = Path(__file__).resolve().parents[2]
STREAMS = {
    "tau": ("tau_airline", "200 customer-service sessions with tool calls, from tau-bench (MIT)"),
    "swe": ("swe_agent", "22 coding and capture-the-flag sessions, from SWE-agent (MIT)"),
}


@dataclass(frozen=True)
class RecordedTurn:
    """What a user asked, and everything that came of it: ``messages`` begin with the user's own, in normal form."""

    asked: str
    messages: list[Message]

    @property
    def answers(self) -> list[Message]:
        """What the model said, in order: calls, and the answer at the end where there is one."""
        return [message for message in self.messages if message["role"] == "assistant"]

    @property
    def results(self) -> list[str]:
        """The results of its calls, in order."""
        return [message["content"] for message in self.messages if message["role"] == "tool"]


@dataclass(frozen=True)
class Stream:
    """One long session. ``calls`` are the names of all tools that were called, with the names of their arguments."""

    name: str
    system: list[str]
    turns: list[RecordedTurn]
    calls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Recorded(Conversation):
    """A conversation that holds what was recorded, whatever the operator makes of a turn.

    So every window and every server is asked the same question at the same place, also after a turn that failed. What the
    operator would have kept of its last turn is in ``offered``.
    """

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.offered: list[Message] = []

    def append(self, messages: Iterable[Any]) -> list[Turn]:
        self.offered = list(messages)
        return []

    def grow(self, messages: Iterable[Any]) -> None:
        """Adds what was recorded."""
        super().append(messages)


def data_folder() -> Path:
    """The folder of the data sets: ``$RUNE_SHARED/data``, else ``../shared/data``."""
    return Path(os.environ.get("RUNE_SHARED") or ROOT / ".." / "shared") / "data"


def stream_of(name: str, turns: slice = slice(None)) -> Stream:
    """A stream by its name: the first session's system message, then the other messages of all sessions in file order."""
    system: list[str] = []
    messages: list[Message] = []
    for session in _sessions(data_folder() / STREAMS[name][0] / "sessions.jsonl"):
        texts, rest = split_system(normalise(session))
        system = system or texts
        messages += rest
    calls: dict[str, dict[str, None]] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            arguments = call["function"].get("arguments")
            known = calls.setdefault(call["function"]["name"], {})
            known.update(dict.fromkeys(arguments if isinstance(arguments, Mapping) else ()))
    found = []
    for turn in split_turns(messages):
        asked = "\n\n".join(message["content"] for message in turn if message["role"] == "user")
        if asked.strip():
            found.append(RecordedTurn(asked, turn))
    return Stream(name, system, found[turns], {tool: tuple(names) for tool, names in sorted(calls.items())})


def _sessions(path: Path) -> Iterator[list[dict[str, Any]]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["messages"]
