"""Real conversations through the broker, turn by turn, as a table.

    python scripts/history_table.py            writes docs/histories.md
    python scripts/history_table.py --check    exit 3 when that file is not current

The conversations are read from ``$RUNE_SHARED/data``, else ``../shared/data``. Each one is replayed as it happened: for every
turn there is one assembly with the turns before it as the session and the turn's user text as the task.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from rune.context.capsule import AttentionCapsule
from rune.context.conversation import Conversation
from rune.context_broker import ContextBroker
from rune.contributors import CONTRIBUTORS, history, persona, session_system, user
from rune.errors import ContextOverflowError
from rune.messages import normalise, split_system, split_turns

OUT = ROOT / "docs" / "histories.md"
WINDOWS = (8192, 16384)
LAYOUTS = ("seed", "cache")
DATA_SETS = {
    "tau_airline": "customer service with tool calls, from tau-bench (MIT)",
    "swe_agent": "coding and capture-the-flag, from SWE-agent (MIT)",
    "toolbench": "web APIs in the old function form, from ToolBench (Apache-2.0)",
    "oasst_en": "people talking, from Open-Assistant (Apache-2.0)",
    "long": "one session of all of tau_airline, end to end",
}
PERSONA = "You are Rune, an assistant that works on this machine."


@dataclass
class Assembled:
    """One assembly of a replayed conversation; capsule and trace are None and the error is set when it overflowed."""

    session: Conversation
    task: str
    system: list[str]
    capsule: AttentionCapsule | None = None
    trace: dict[str, Any] | None = None
    error: ContextOverflowError | None = None


@dataclass
class Row:
    """Sums over the assemblies of one data set at one window."""

    sessions: int = 0
    assemblies: int = 0
    overflows: int = 0
    offered: int = 0
    admitted: int = 0
    dropped: int = 0
    cut_assemblies: int = 0
    incomplete: int = 0
    over_budget: int = 0
    orphans: int = 0
    shared_share: list[float] = field(default_factory=list)
    fill: list[float] = field(default_factory=list)


def data_folder() -> Path:
    return Path(os.environ.get("RUNE_SHARED") or ROOT / ".." / "shared") / "data"


def sessions_of(name: str) -> Iterator[list[dict[str, Any]]]:
    """The messages of each session of a data set, as they stand there."""
    if name == "long":
        every = list(sessions_of("tau_airline"))
        yield [every[0][0], *chain.from_iterable(messages[1:] for messages in every)]
        return
    with (data_folder() / name / "sessions.jsonl").open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["messages"]


def broker_for(window: int, layout: str) -> ContextBroker:
    """Persona, the session's system text, history and user, registered as the operator registers them."""
    broker = ContextBroker(lambda model_id: window, layout=layout)
    made = {
        "persona": persona(PERSONA),
        "session_system": session_system(PERSONA),
        "history": history(),
        "user": user(),
    }
    for spec in CONTRIBUTORS:
        if spec.name in made:
            broker.register(
                spec.name,
                made[spec.name],
                bucket=spec.bucket,
                priority=spec.priority,
                evictable=spec.evictable,
                source=spec.source,
                inline=True,
            )
    return broker


def replay(messages: list[dict[str, Any]], broker: ContextBroker) -> Iterator[Assembled]:
    """One assembly for every turn that a user began, the turns before it being the session."""
    system, rest = split_system(normalise(messages))
    session = Conversation("replayed")
    session.append([{"role": "system", "content": text} for text in system])
    for turn in split_turns(rest):
        asked = [m["content"] for m in turn if m["role"] == "user"]
        if asked:
            found = Assembled(session, "\n\n".join(asked), system)
            try:
                found.capsule, found.trace = broker.assemble(found.task, session, "replayed")
            except ContextOverflowError as exc:
                found.error, found.trace = exc, exc.trace
            yield found
        session.append(turn)


def orphans(messages: list[dict[str, Any]]) -> int:
    """Tool results that no call before them asked for, and calls that have no result."""
    open_calls: list[Any] = []
    lost = 0
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") in open_calls:
                open_calls.remove(message.get("tool_call_id"))
            else:
                lost += 1
            continue
        lost += len(open_calls)
        open_calls = [call.get("id") for call in message.get("tool_calls") or ()]
    return lost + len(open_calls)


@cache
def measure(name: str, window: int, layout: str = "seed") -> Row:
    """The row of one data set at one window."""
    row = Row()
    broker = broker_for(window, layout)
    for messages in sessions_of(name):
        row.sessions += 1
        steady: list[bool] = []
        last_front: dict[str, Any] | None = None
        found: Assembled | None = None
        for found in replay(messages, broker):
            row.assemblies += 1
            if found.capsule is None or found.trace is None:
                row.overflows += 1
                last_front = None
                continue
            facts = found.trace["ext"]["history"]
            row.offered += facts["offered"]
            row.admitted += facts["admitted"]
            row.dropped += facts["dropped"]
            row.cut_assemblies += facts["dropped"] > 0
            row.over_budget += found.trace["admitted_total"] > found.trace["budget"]
            row.fill.append(found.trace["admitted_total"] / found.trace["budget"])
            sent = found.capsule.to_messages()
            row.orphans += orphans(sent)
            front = sent[1] if len(sent) > 2 else None
            if last_front is not None:
                steady.append(front == last_front)
            last_front = front
        if steady:
            row.shared_share.append(sum(steady) / len(steady))
        row.incomplete += found.session.incomplete_count if found is not None else 0
    return row


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def page() -> str:
    """The text of docs/histories.md."""
    lines = [
        "# Real conversations through the broker",
        "",
        "Conversations that people and agents really had, replayed turn by turn: one assembly for every turn, with the turns",
        "before it as history and a short persona in front. This page is written by `scripts/history_table.py`, and a test",
        "checks that it is current; `tests/test_histories.py` holds what must be true of every single assembly.",
        "",
        *(f"- `{name}`: {what}" for name, what in DATA_SETS.items()),
        "",
        "Offered are the last 8 completed turns before the one that is asked; admitted and dropped are sums of turns over all",
        "assemblies. An overflow is a right answer: what must enter (the session's own system message and the user's text) is",
        "larger than the budget, and nothing was cut. Fill is admitted tokens by the budget, the mean over assemblies. Tokens",
        "are estimates (`chars4`).",
        "",
        "| conversations | window | sessions | assemblies | overflow | offered | admitted | dropped | assemblies with a cut "
        "| mean fill | over budget | orphaned calls or results |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name in DATA_SETS:
        for window in WINDOWS:
            row = measure(name, window)
            lines.append(
                f"| {name} | {window} | {row.sessions} | {row.assemblies} | {row.overflows} | {row.offered} | {row.admitted} "
                f"| {row.dropped} | {row.cut_assemblies} | {mean(row.fill):.0%} | {row.over_budget} | {row.orphans} |"
            )
    lines += [
        "",
        "## A front that stays put",
        "",
        "A server that keeps the computed prefix of the last prompt reads only what is new, as long as the prompt begins as it",
        "did. With the `seed` layout the window of history moves on with every turn once a session is longer than 8 turns; with",
        "`cache` its front stays for 8 turns and more. The share is of assemblies whose history begins with the same message as",
        "the one before.",
        "",
        "| conversations | window | layout | assemblies | admitted | dropped | same front |",
        "|---|--:|---|--:|--:|--:|--:|",
    ]
    for name in ("tau_airline", "long"):
        for window in WINDOWS:
            for layout in LAYOUTS:
                row = measure(name, window, layout)
                lines.append(
                    f"| {name} | {window} | {layout} | {row.assemblies} | {row.admitted} | {row.dropped} "
                    f"| {mean(row.shared_share):.0%} |"
                )
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    text = page()
    if "--check" in arguments:
        return 0 if OUT.exists() and OUT.read_text(encoding="utf-8") == text else 3
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
