"""Compaction: it comes due as specified, archives first, cannot lose, cannot loop, and can be read back byte for byte."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_helpers import case
from operator_helpers import facts_of, operator_of, rows, sent_by
from rune import Conversation
from rune.context.compaction import KEEP_TURNS, PENDING_APPROVAL, PIECES_MAX, Summary, compact, compacted, is_due
from rune.context.history_archive import HistoryArchive, whole_history
from rune.context.summary import cleaned, pieces
from rune.errors import BadReply, InvalidInput, StorageError
from rune.kernels import get_estimator
from rune.messages import Message
from rune.storage.log import DurableLog
from scripted import Sent, calls, reply

WINDOW = 8192


def words(chars: int) -> str:
    """So many characters of ordinary words, which estimators and tokenizers agree on."""
    return ("the house stands by the river and the people walk there " * (chars // 56 + 1))[:chars]


def turn_of(tokens: int, text: str = "") -> list[Message]:
    """A turn of exactly so many tokens by chars4."""
    question = (text + " " + words(4 * tokens))[: 4 * (tokens - tokens // 2)]
    return [{"role": "user", "content": question}, {"role": "assistant", "content": words(4 * (tokens // 2))}]


def session_of(sizes: list[int], id: str = "s") -> Conversation:
    session = Conversation(id)
    for number, size in enumerate(sizes):
        session.append(turn_of(size, f"turn {number}"))
    return session


def asks_for_summary(sent: Sent) -> bool:
    return sent.options.get("num_predict") == 256 and sent.messages[-1]["content"].endswith("Write the summary now.")


def summarising(summary: Any, answer: str = "fine") -> Callable[[Sent], Any]:
    """A model that gives ``summary`` (a step, or a function of the call) where it is asked for one, else ``answer``."""

    def step(sent: Sent) -> Any:
        if not asks_for_summary(sent):
            return answer
        return summary(sent) if callable(summary) else summary

    return step


def archived(home: Path) -> list[dict[str, Any]]:
    return list(DurableLog(home / "state" / "history_archive.jsonl", backups=None).read())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


# When


def test_c25_strictly_over_four_fifths_in_integers() -> None:
    given, expected = case("C25")["input"]["cases"], case("C25")["expected"]["compacts"]
    assert [is_due(one["history_tokens"], one["window"]) for one in given] == expected


@pytest.mark.parametrize("one", range(6))
def test_c25_a_real_history_at_the_edge(one: int, home: Path) -> None:
    given = case("C25")["input"]["cases"][one]
    share, rest = divmod(given["history_tokens"], 8)
    session = session_of([share] * 7 + [share + rest])
    assert session.tokens == given["history_tokens"]
    asked: list[Any] = []

    def summarise(messages: list[Message]) -> Summary:
        asked.append(messages)
        return Summary("short")

    outcome = compact(session, window=given["window"], summarise=summarise, archive=HistoryArchive(home))
    assert bool(asked) is case("C25")["expected"]["compacts"][one] is outcome.check["due"]
    assert (outcome.event is not None) is bool(asked)


# What it does


def test_the_last_five_turns_stay_and_a_pair_stands_for_the_rest(home: Path) -> None:
    operator = operator_of(
        home, [summarising("Session intent: count.\nDecisions: 42.")], facts=facts_of(WINDOW, "thinking")
    )
    session = session_of([900] * 9)
    before = session.tokens
    response = operator.run("go on", session, format="json")
    assert response.success and response.degraded == []
    summariser, turn = sent_by(operator)
    assert summariser.tools == [] and summariser.options["num_predict"] == 256
    assert summariser.options["think"] is False and "format" not in summariser.options
    assert summariser.options["num_ctx"] == turn.options["num_ctx"]
    for number in range(4):
        assert f"turn {number} " in summariser.messages[-1]["content"]
    assert "turn 4 " not in summariser.messages[-1]["content"]
    roles = [message["role"] for message in turn.messages]
    assert roles == ["system", *["user", "assistant"] * 6, "user"]
    assert "Decisions: 42." in turn.messages[1]["content"]
    assert turn.messages[3:-1] == [message for one in session.turns[4:9] for message in one]
    (row,) = rows(home)
    (event,) = row["ext"]["compaction"]
    assert event["outcome"] == "compacted" and event["tokens_before"] == before > event["tokens_after"] > 4500
    assert (event["turns"], event["through"], event["kept_turns"], event["summariser_calls"]) == (4, 4, 5, 1)
    assert row["ext"]["compaction_check"] == {"tokens": before, "threshold": 6553, "due": True}
    assert row["per_block_tokens"]["history_summary"] > 0 and row["ext"]["history"]["summarised"] == 4
    assert row["model_calls"] == 1
    assert len(session.turns) == 10, "the session itself loses nothing"
    again = operator.run("and on", session)
    assert again.trace is not None and "compaction" not in again.trace["ext"]
    assert again.trace["ext"]["compaction_check"]["due"] is False
    assert "Decisions: 42." in sent_by(operator)[2].messages[1]["content"]


def test_a_second_compaction_rolls_the_first_summary_in_and_archives_only_what_is_new(home: Path) -> None:
    operator = operator_of(home, [summarising(lambda sent: f"Summary {len(archived(home))}")])
    session = session_of([900] * 9)
    operator.run("one", session)
    for number in range(9, 14):
        session.append(turn_of(900, f"turn {number}"))
    operator.run("two", session)
    asked = [sent for sent in sent_by(operator) if asks_for_summary(sent)]
    assert len(asked) == 2 and "Earlier summary:\nSummary 1" in asked[1].messages[-1]["content"]
    assert "turn 3 " not in asked[1].messages[-1]["content"]
    events = archived(home)
    assert [len(event["messages"]) for event in events] == [18, 12]
    assert not any("Summary" in message["content"] for event in events for message in event["messages"])
    kept = compacted(session)
    assert kept is not None and kept.summary == "Summary 2"
    assert whole_history(session.turns[:15], list(HistoryArchive(home).events("s")), "s") == session.messages()[:30]


def test_c32_the_archive_is_the_history_byte_for_byte(home: Path) -> None:
    given, expected = case("C32")["input"]["history_messages"], case("C32")["expected"]
    session = Conversation.from_messages("s", given)
    archive = HistoryArchive(home)
    compact(session, window=session.tokens, summarise=lambda _: Summary("s"), archive=archive)
    session.append(turn_of(400, "more"))
    compact(session, window=300, summarise=lambda _: Summary("s"), archive=archive)
    first, second = archived(home)
    assert list(first) == expected["archive_keys"]
    assert first["messages"] == given and second["messages"] == list(session.turns[-1])
    assert whole_history(session.turns, list(archive.events("s")), "s") == session.messages()
    assert whole_history((), list(archive.events("s")), "s") == session.messages()


def test_c19_calls_and_results_stay_together() -> None:
    given, expected = case("C19")["input"], case("C19")["expected"]
    session = Conversation.from_messages("s", given["history_messages"])
    compact(session, window=200, summarise=lambda _: Summary("s"), archive=_Kept())
    found = compacted(session)
    assert found is not None and list(range(found.through, len(session.turns))) == expected["kept_turns"]
    assert session.turns[found.through][0] == expected["first_kept_message"]


def test_c22_the_persona_is_there_after_every_turn(home: Path) -> None:
    given = case("C22")["input"]
    operator = operator_of(home, [summarising("They talk about bread.", words(4 * 450))])
    operator.__class__._PERSONA_PROMPT = given["persona"]  # type: ignore[misc]
    try:
        session = Conversation("s")
        for number in range(given["turns"] + 6):
            operator.run(turn_of(given["turn_tokens"], f"turn {number}")[0]["content"], session)
    finally:
        from rune.rune_operator import _PERSONA_PROMPT

        operator.__class__._PERSONA_PROMPT = _PERSONA_PROMPT  # type: ignore[misc]
    assert compacted(session) is not None
    for sent in sent_by(operator):
        if not asks_for_summary(sent):
            assert [message["role"] for message in sent.messages].count("system") == 1
            assert given["persona"] in sent.messages[0]["content"]


def test_c34_the_summarisers_cost_is_in_the_event_and_nowhere_else(home: Path) -> None:
    summariser, turn = case("C34")["input"]["replies"]

    def counted(of: dict[str, Any], text: str) -> Any:
        counts = {"prompt_tokens": of["prompt_eval_count"], "output_tokens": of["eval_count"]}
        return reply(text, total_duration_ns=of["total_duration"], **counts)

    operator = operator_of(home, [summarising(counted(summariser, "short"), counted(turn, "done"))])  # type: ignore[arg-type]
    operator.run("go on", session_of([900] * 9))
    (row,) = rows(home)
    expected = case("C34")["expected"]["trace.compaction[0]"]
    event = row["ext"]["compaction"][0]
    assert event["tokens_before"] > event["tokens_after"] > 0
    assert {name: event[name] for name in expected if not name.startswith("tokens")} == {
        name: value for name, value in expected.items() if not name.startswith("tokens")
    }
    assert (row["model_calls"], row["prompt_tokens_served"], row["output_tokens"]) == (1, 2100, 50)


def test_a_history_longer_than_the_summarisers_window_goes_in_pieces_of_whole_turns() -> None:
    session = session_of([700] * 40)
    seen: list[list[Message]] = []

    def summarise(messages: list[Message]) -> Summary:
        seen.append(messages)
        assert sum(get_estimator("script").many([m["content"] for m in messages])) + 256 < 8192
        return Summary(f"summary {len(seen)}")

    outcome = compact(session, window=8192, summarise=summarise, archive=_Kept())
    assert outcome.event is not None and 1 < len(seen) == outcome.event["summariser_calls"] <= PIECES_MAX
    assert f"summary {len(seen) - 1}" in seen[-1][1]["content"]
    assert outcome.event["turns"] + outcome.event["turns_left"] == 35 and outcome.event["turns_shortened"] == 0


def test_a_turn_that_is_too_long_for_the_summariser_is_shortened_and_told() -> None:
    session = session_of([10, 40_000, 10, 10, 10, 10, 10, 10])
    outcome = compact(session, window=8192, summarise=lambda _: Summary("s"), archive=_Kept())
    assert outcome.event is not None and outcome.event["turns_shortened"] == 1
    (piece, *_) = pieces(session.turns_from(1)[:1], window=8192, estimator=get_estimator("script"), limit=1)
    assert "characters are left out here" in piece.text


def test_inline_thinking_is_no_summary() -> None:
    assert cleaned("<think>hm\nhm</think>\n Decisions: x ") == "Decisions: x"
    assert cleaned("<think>never ends") == ""


# What it does not do


def test_c27_no_progress_is_no_loop(home: Path) -> None:
    given, expected = case("C27")["input"], case("C27")["expected"]
    operator = operator_of(home, [summarising("s" * 800, "a" * 20)])
    session = session_of([turn["tokens"] for turn in given["turns"]])
    reasons: list[str] = []
    for _ in range(6):
        before = len([sent for sent in sent_by(operator) if asks_for_summary(sent)])
        response = operator.run("u" * 20, session)
        assert response.success and response.trace is not None
        after = len([sent for sent in sent_by(operator) if asks_for_summary(sent)])
        assert after - before <= expected["summariser_calls_per_turn_max"]
        reasons += [event["reason"] for event in response.trace["ext"].get("compaction", ())]
    assert after <= expected["summariser_calls_in_total_max"]
    assert reasons[0].startswith("no progress")
    assert rows(home)[0]["degraded"] == ["history_compaction"]


def test_c29_without_an_archive_nothing_is_compressed(home: Path) -> None:
    (home / "state" / "history_archive.jsonl").mkdir(parents=True)
    operator = operator_of(home, [summarising("short")])
    session = session_of([700] * 10)
    response = operator.run("go on", session)
    assert response.success and "history_archive" in response.degraded
    assert not any(asks_for_summary(sent) for sent in sent_by(operator)) and compacted(session) is None
    kept = response.trace["ext"]["history"]["admitted"]  # type: ignore[index]
    sent = sent_by(operator)[0].messages
    assert 0 < kept < 10 and sent[1:-1] == [m for turn in session.turns[10 - kept : 10] for m in turn]


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "  \n",
        calls(("read", {"n": 1})),
        BadReply("HTTP 500", status=500),
        BadReply("timed out"),
        "<think>x</think>",
    ],
)
def test_c30_a_summary_that_is_none(answer: Any, home: Path) -> None:
    operator = operator_of(home, [summarising(answer)])
    session = session_of([700] * 10)
    response = operator.run("go on", session, tools=False)
    assert response.success and response.degraded == ["history_compaction"] and compacted(session) is None
    assert len(archived(home)) == 1, "the archive came first"
    asked = sent_by(operator)[0]
    assert asked.tools == [] and asked.options["num_predict"] == 256
    kept = response.trace["ext"]["history"]["admitted"]  # type: ignore[index]
    assert sent_by(operator)[1].messages[1:-1] == [m for turn in session.turns[10 - kept : 10] for m in turn]


def test_c69_off_is_off(home: Path) -> None:
    operator = operator_of(home, [summarising("short")], compaction=False)
    response = operator.run("go on", session_of([700] * 10))
    assert len(sent_by(operator)) == 1 and not (home / "state" / "history_archive.jsonl").exists()
    assert response.trace is not None and response.trace["ext"]["history"]["admitted"] <= 8
    assert "compaction_check" not in response.trace["ext"]


def test_nothing_while_an_approval_is_pending_and_nothing_on_a_dry_run(home: Path) -> None:
    operator = operator_of(home, [summarising("short")])
    session = session_of([700] * 10)
    operator.plan("what would it be?", session)
    assert sent_by(operator) == [] and compacted(session) is None
    session.set_state(PENDING_APPROVAL, {"id": "p-1"})
    outcome = compact(session, window=8192, summarise=lambda _: Summary("short"), archive=HistoryArchive(home))
    assert outcome.event is None and "approval" in outcome.check["not_compacted"]
    assert compacted(session) is None
    operator.run("go on", session)  # no turn waits there any more
    assert session.state_of(PENDING_APPROVAL) is None and compacted(session) is not None


def test_a_summary_of_other_turns_does_not_count() -> None:
    session = session_of([100] * 8)
    session.set_state("compaction", {"through": 3, "chain": "0" * 64, "summary": "of another session"})
    assert compacted(session) is None
    session.set_state("compaction", {"through": 99, "chain": "", "summary": "beyond the end"})
    assert compacted(session) is None


def test_five_hundred_turns_with_a_summariser_that_always_fails(home: Path) -> None:
    rng = random.Random(3)
    failing: list[Any] = [
        "",
        "<think>only</think>",
        "long " * 60_000,
        BadReply("cut"),
        TimeoutError,
        OSError("disk full"),
    ]

    def fail(sent: Sent) -> Any:
        answer = rng.choice(failing)
        return BadReply(repr(answer)) if not isinstance(answer, (str, BadReply)) else answer

    operator = operator_of(home, [summarising(fail, "a" * 200)])
    session = session_of([1000] * 8)
    attempts: list[int] = []
    for number in range(500):
        response = operator.run(f"task {number}", session)
        assert response.success and response.trace is not None
        attempts.append(len(response.trace["ext"].get("compaction", ())))
        sent_by(operator).clear()
    assert max(attempts) == 1 and 3 < sum(attempts) <= 12
    assert len(session.turns) == 508 and compacted(session) is None
    assert whole_history(session.turns, list(HistoryArchive(home).events("s")), "s") == session.messages()


# Reading back


def test_an_archive_that_is_not_the_session_is_an_error(home: Path) -> None:
    archive = HistoryArchive(home)
    session = session_of([10] * 4)
    archive.append("s", session.turns_from(0)[:2])
    archive.append(
        "s", session.turns_from(0)[:3]
    )  # written again by a process that died before it could note the first
    assert whole_history(session.turns, list(archive.events("s")), "s") == session.messages()
    archive.append("s", session.turns_from(0)[3:])
    events = list(archive.events("s"))
    with pytest.raises(StorageError, match="no turns"):
        whole_history((), [events[-1]], "s")
    changed = [event._replace(messages=[]) for event in events]
    with pytest.raises(StorageError, match="not the same"):
        whole_history(session.turns, changed, "s")
    with pytest.raises(InvalidInput):
        whole_history((), [], "s")
    other = session_of([20] * 5)  # deleted and begun anew under the same id
    archive.append("s", other.turns_from(0))
    assert whole_history(other.turns, list(archive.events("s")), "s") == other.messages()
    assert whole_history(session.turns, list(archive.events("s")), "s") == session.messages()
    assert whole_history((), list(archive.events("s")), "s") == other.messages()


_TURNS = """
import sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from operator_helpers import facts_of, operator_of
from test_compaction import asks_for_summary
from rune import Conversation
home = Path(sys.argv[1])
def step(sent):
    return f"Summary up to {len(sent.messages[-1]['content'])}" if asks_for_summary(sent) else "a" * 2000
operator = operator_of(home, [step], facts=facts_of(4096))
session = Conversation.open("s", home)
print("open", len(session.turns), flush=True)
for number in range(len(session.turns), len(session.turns) + 500):
    response = operator.run(f"turn {number} " + "q" * 400, session)
    assert response.success, response.error
    print("done", number, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_session_survives_being_killed_at_any_point(home: Path, tmp_path: Path) -> None:
    """Killed at random points, again and again: no acknowledged turn is lost or doubled, and the raw history is whole."""
    rng = random.Random(int(os.environ.get("RUNE_SEED", "5")))
    acknowledged = kills = 0
    wanted = int(os.environ.get("RUNE_KILLS", "6"))
    # A busy machine may do little before a kill.
    while kills < wanted or (len(archived(home)) < 2 and kills < 20 * wanted):
        kills += 1
        command = [sys.executable, "-c", _TURNS, str(home), "", str(Path(__file__).parent)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stderr is not None
            first = process.stdout.readline()
            assert first.startswith("open"), process.stderr.read()
            assert int(first.split()[1]) in (acknowledged, acknowledged + 1)
            time.sleep(rng.uniform(0.02, 0.5))
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read()
        acknowledged = max(
            [acknowledged, *(int(line.split()[1]) + 1 for line in rest.splitlines() if line[:4] == "done")]
        )
        session = Conversation.open("s", home)
        assert acknowledged <= len(session.turns) <= acknowledged + 1 and session.incomplete_count == 0
        acknowledged = len(session.turns)
        asked = [turn[0]["content"].split(" q")[0] for turn in session.turns]
        assert asked == [f"turn {number}" for number in range(len(asked))]
        assert (
            not asked or whole_history(session.turns, list(HistoryArchive(home).events("s")), "s") == session.messages()
        )
    assert acknowledged > 10 and compacted(session) is not None and len(archived(home)) > 1


class _Kept:
    """An archive in memory, for what the archive is not asked about."""

    def append(self, session: str, turns: Any, /) -> None:
        json.dumps([list(turn) for turn in turns])


def test_five_turns_are_kept() -> None:
    assert KEEP_TURNS == 5
