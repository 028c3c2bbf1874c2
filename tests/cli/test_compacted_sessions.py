"""What a person sees of a compacted session, and gets back of it."""

from __future__ import annotations

import json
from pathlib import Path

from cli_helpers import Rune
from rune import Conversation
from rune.context.compaction import Summary, compact
from rune.context.history_archive import HistoryArchive
from rune.paths import session_path


def compacted_session(home: Path) -> Conversation:
    session = Conversation.open("long", home)
    session.append([{"role": "system", "content": "Be brief."}])
    for number in range(8):
        session.append(
            [{"role": "user", "content": f"q{number} é " + "x " * 200}, {"role": "assistant", "content": f"a{number}"}]
        )
    outcome = compact(
        session, window=300, summarise=lambda _: Summary("Session intent: x\x1b[31m"), archive=HistoryArchive(home)
    )
    assert outcome.event is not None and outcome.event["outcome"] == "compacted"
    return session


def test_show_marks_what_a_summary_stands_for(rune: Rune) -> None:
    compacted_session(rune.home)
    shown = rune("sessions", "show", "long").stdout
    assert "summary that stands for turns 0 to 2" in shown and "Session intent: x" in shown and "\x1b[31m" not in shown
    assert shown.count("(compacted)") == 3
    value = rune.json("sessions", "show", "long")
    assert [turn["compacted"] for turn in value["turns"]] == [True] * 3 + [False] * 5
    assert value["summary"].startswith("Session intent")


def test_raw_export_comes_out_of_the_archive_and_survives_the_session(rune: Rune) -> None:
    session = compacted_session(rune.home)
    session.append([{"role": "user", "content": "new"}, {"role": "assistant", "content": "yes"}])
    raw, plain = rune("sessions", "export", "long", "--raw"), rune("sessions", "export", "long")
    assert raw.returncode == plain.returncode == 0 and raw.stdout == plain.stdout
    assert [json.loads(line) for line in raw.stdout.splitlines()][1:] == session.messages()
    session_path("long", rune.home).unlink()
    gone = rune("sessions", "export", "long", "--raw")
    assert [json.loads(line) for line in gone.stdout.splitlines()] == session.messages()[:16]
    assert rune("sessions", "export", "nosuch", "--raw").returncode == 2


def test_an_archive_that_was_changed_is_told(rune: Rune) -> None:
    compacted_session(rune.home)
    archive = rune.home / "state" / "history_archive.jsonl"
    archive.write_text(archive.read_text(encoding="utf-8").replace("q1 ", "Q1 "), encoding="utf-8")
    done = rune("sessions", "export", "long", "--raw")
    assert done.returncode == 1 and "not the same" in done.stderr
