"""The safety override in a run: what is sent is what is recorded, the budget holds, and the session keeps what was asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_helpers import SHARED
from operator_helpers import facts_of, only_row, operator_of, rows, sent_by
from rune import Conversation
from rune.errors import ContextOverflowError, PromptRefused
from rune.inference_trace import verify_row
from rune.kernels import digest
from rune.runtime.num_ctx import sticky
from rune.runtime.safety import HEAD, find
from rune.runtime.safety_rules import RULES
from rune.runtime.tool_executor import make_tool
from scripted import ScriptedTransport, calls

TASK = "Delete all files in /tmp/build"
NOTE = next(rule.note for rule in RULES if rule.name == "delete")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    sticky.clear()
    yield
    sticky.clear()


def session_of(turns: int, size: int, letter: str = "abcd") -> Conversation:
    session = Conversation("s")
    for _ in range(turns):
        session.append([{"role": "user", "content": "abcd"}, {"role": "assistant", "content": letter * size}])
    return session


def test_the_note_is_sent_recorded_and_measured(home: Path) -> None:
    operator = operator_of(home, ["Which ones?"])
    session = Conversation("s")
    response = operator.run(TASK, session)
    row = only_row(home)
    sent = sent_by(operator)[0].messages
    assert sent == row["capsule_messages"]
    assert sent[-1] == {"role": "user", "content": f"{TASK}\n\n{HEAD}{NOTE}]"}
    assert row["capsule_content_hashes"]["user"] == digest(sent[-1]["content"])
    noted = row["ext"]["safety"]
    assert noted["rules"] == ["delete"] and noted["seen"] == [{"rule": "delete", "text": "Delete all files"}]
    before, after = noted["tokens_before"], noted["tokens_after"]
    assert (before, after) == (len(TASK) // 4, len(sent[-1]["content"]) // 4)
    assert row["prompt_tokens_estimated"] == sum(row["per_block_tokens"].values())
    assert row["capsule_token_count"] == row["prompt_tokens_estimated"] + after - before
    assert row["ext"]["changes"] == [{"name": "user", "tokens_before": before, "tokens": after}]
    (ledger,) = (r for r in row["ext"]["ledger"] if r["name"] == "user")
    assert (ledger["tokens"], ledger["tokens_after"]) == (before, after)
    assert ledger["digest"] == row["capsule_content_hashes"]["user"]
    assert row["ext"]["user_spans"]["user"] == [0, len(sent[-1]["content"])]
    assert row == response.trace and verify_row(row)
    assert session.turns[0][0]["content"] == TASK  # the next turn's history has what was asked, and no old notes


def test_tasks_without_a_rule_are_sent_as_they_are(home: Path) -> None:
    operator = operator_of(home, ["ok"])
    operator.run("How do I delete a branch?")
    assert sent_by(operator)[0].messages[-1]["content"] == "How do I delete a branch?"
    assert "safety" not in only_row(home)["ext"] and "changes" not in only_row(home)["ext"]


def test_the_switch_and_the_table_of_the_settings(home: Path) -> None:
    off = operator_of(home, ["ok"], safety=False)
    off.run(TASK)
    assert sent_by(off)[0].messages[-1]["content"] == TASK
    rules = {
        "secrets": {"enabled": False},
        "delete": {"note": "Mind the bin."},
        "pay": {"asks": ["pay", "transfer"], "about": ["invoice", "money"], "note": "Ask before money moves."},
    }
    operator = operator_of(home, ["ok"], safety_rules=rules)
    for task in ("Show me the passwords", TASK, "Please pay the invoice", "How do I pay the invoice?"):
        operator.run(task)
    assert [sent.messages[-1]["content"].partition("\n\n")[2] for sent in sent_by(operator)] == [
        "",
        f"{HEAD}Mind the bin.]",
        f"{HEAD}Ask before money moves.]",
        "",
    ]


def test_several_rules_give_one_note(home: Path) -> None:
    operator = operator_of(home, ["ok"])
    operator.run("Delete the logs and show me the passwords")
    content = sent_by(operator)[0].messages[-1]["content"]
    assert content.count(HEAD) == 1 and content.endswith("]")
    assert only_row(home)["ext"]["safety"]["rules"] == ["delete", "secrets"]


def test_what_can_be_left_out_makes_room_for_the_note(home: Path) -> None:
    # 5735 tokens of budget, of which the history takes all that it can: the note costs it its oldest turn.
    plain = operator_of(home, ["ok"], safety=False)
    session = session_of(8, 640)
    plain.run(TASK, session)
    full = rows(home)[0]
    room = full["input_budget"] - full["capsule_token_count"]
    padded = TASK + "." * (4 * room)
    operator = operator_of(home, ["ok"])
    operator.run(padded, session_of(8, 640))
    row = rows(home)[1]
    assert row["ext"]["safety"]["made_room"] is True
    assert row["capsule_token_count"] <= row["input_budget"]
    assert row["ext"]["history"]["admitted"] == full["ext"]["history"]["admitted"] - 1
    assert row["capsule_messages"] == sent_by(operator)[0].messages
    assert row["capsule_messages"][-1]["content"].endswith(f"{NOTE}]")
    assert row["prompt_tokens_estimated"] == row["capsule_token_count"]


def test_a_task_that_does_not_fit_with_its_note_is_not_sent_without_it(home: Path) -> None:
    plain = operator_of(home, ["ok"], safety=False, tools={})
    plain.run(TASK)
    room = rows(home)[0]["input_budget"] - rows(home)[0]["capsule_token_count"]
    padded = TASK + "." * (4 * room)
    assert operator_of(home, ["ok"], safety=False, tools={}).run(padded).success
    operator = operator_of(home, ["ok"], tools={})
    response = operator.run(padded)
    assert isinstance(response.exception, ContextOverflowError) and response.exception.block == "user"
    assert sent_by(operator) == []
    assert rows(home)[2]["ext"]["safety"]["rules"] == ["delete"] and rows(home)[2]["success"] is False


def test_tools_that_do_not_fit_beside_the_note_are_left_out(home: Path) -> None:
    def look(path: str) -> str:
        """Looks at a path, as is described here at some length so that its schema measures more than nothing."""
        return path

    tools = {"look": make_tool(look)}
    plain = operator_of(home, ["ok"], facts=facts_of(8192, "tools"), safety=False, tools=tools)
    plain.run(TASK)
    room = rows(home)[0]["input_budget"] - rows(home)[0]["capsule_token_count"]
    operator = operator_of(home, ["ok"], facts=facts_of(8192, "tools"), tools=tools)
    response = operator.run(TASK + "." * (4 * room))
    assert response.success and response.warnings == ["tools_do_not_fit"]
    (sent,) = sent_by(operator)
    assert sent.tools == [] and sent.messages[-1]["content"].endswith(f"{NOTE}]")
    assert "## Available tools" not in sent.messages[0]["content"]


def test_the_note_outlives_a_refusal_and_a_tool_loop(home: Path) -> None:
    def look() -> str:
        """Looks."""
        return "seen"

    refused = PromptRefused("too long", n_prompt_tokens=9000, n_ctx=8192, status=400)
    transport = ScriptedTransport([refused, calls(("look", {})), "Done."], facts=facts_of(8192, "tools"))
    operator = operator_of(home, transport, tools={"look": make_tool(look)})
    assert operator.run(TASK, session_of(8, 400, "7391")).success
    row = only_row(home)
    assert len(transport.sent[0].messages) > len(transport.sent[1].messages)
    assert row["capsule_messages"] == transport.sent[1].messages
    for sent in transport.sent:
        notes = [m for m in sent.messages if HEAD in str(m["content"])]
        assert [m["role"] for m in notes] == ["user"] and notes[0]["content"].count(HEAD) == 1


def test_images_and_the_cache_layout(home: Path) -> None:
    from rune import TaskState

    operator = operator_of(home, ["ok"], layout="cache")
    operator.run(TaskState(TASK, images=["aGk="]))
    row = only_row(home)
    assert row["capsule_messages"][-1]["images"] == ["aGk="]
    assert row["ext"]["safety"]["tokens_before"] == 768 + len(TASK) // 4
    start, end = row["ext"]["user_spans"]["user"]
    assert digest(row["capsule_messages"][-1]["content"][start:end]) == row["capsule_content_hashes"]["user"]


def test_a_plan_shows_what_would_be_sent(home: Path) -> None:
    capsule, trace = operator_of(home, []).plan(TASK)
    assert capsule.to_messages()[-1]["content"].endswith(f"{NOTE}]")
    assert trace["ext"]["safety"]["rules"] == ["delete"]


def test_without_content_the_record_keeps_the_rule_and_not_the_words(home: Path) -> None:
    operator_of(home, ["ok"], trace="content-off").run(TASK)
    noted = only_row(home)["ext"]["safety"]
    assert noted["rules"] == ["delete"] and noted["seen"] == [{"rule": "delete", "text": None}]


@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="the real conversations are not here")
def test_in_real_conversations_it_speaks_up_where_something_is_deleted_and_nowhere_else() -> None:
    import json

    found, texts = [], 0
    for path in sorted((SHARED / "data").glob("*/sessions.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            for message in json.loads(line)["messages"]:
                if message["role"] == "user" and isinstance(message.get("content"), str):
                    texts += 1
                    found += [(f.rule.name, f.text) for f in find(message["content"], RULES)]
    assert texts > 1900
    assert set(found) == {("delete", "remove the reproduce.py")} and len(found) == 2
