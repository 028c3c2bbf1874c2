"""Faults that people reported of other tools, as tests of the broker: each case file states the right outcome."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from broker_helpers import add, broker_of, case, content_of, giving, use_kernels
from rune.context.conversation import Conversation
from rune.context_broker import ContextBroker, LedgerEntry
from rune.contributors import history, session_system, user
from rune.errors import ContextOverflowError
from rune.messages import compact_json, incomplete_reason, split_turns
from rune.transports.discovery import ModelFacts, resolve_window


@pytest.fixture(autouse=True)
def _both_backends(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels(kernels, monkeypatch)


def session_broker(persona: str, window: int = 8192) -> ContextBroker:
    """Persona, the session's system text, history and user, as the operator registers them."""
    broker = ContextBroker(lambda model_id: window)
    add(broker, "persona", persona, bucket=1, priority=100, evictable=False)
    add(broker, "session_system", session_system(persona), bucket=1, priority=100, evictable=False)
    add(broker, "history", history(), bucket=10, priority=30)
    add(broker, "user", user(), bucket=11, priority=100, evictable=False)
    return broker


def test_c01_a_prompt_far_over_the_window_is_refused_with_the_numbers() -> None:
    given, expected = case("C01")["input"], case("C01")["expected"]
    with pytest.raises(ContextOverflowError) as caught:
        broker_of(given["window"], given["blocks"]).assemble("t", None, "m")
    error = caught.value
    assert {k: getattr(error, k) for k in ("block", "block_tokens", "used_before", "budget")} == {
        k: expected[k] for k in ("block", "block_tokens", "used_before", "budget")
    }


def test_c04_the_num_ctx_that_is_sent_is_the_window_that_is_budgeted() -> None:
    given, expected = case("C04")["input"], case("C04")["expected"]
    trained = given["show"]["model_info"]["llama.context_length"]
    window = resolve_window(ModelFacts("m", trained_window=trained), num_ctx=given["num_ctx_sent"])
    assert window.window == expected["effective_window"]
    with pytest.raises(ContextOverflowError) as caught:
        broker_of(trained, given["blocks"]).assemble("t", None, "m", window=window.window)
    error = caught.value
    assert (error.block, error.block_tokens, error.used_before, error.budget) == ("user", 6000, 120, 5735)


def test_c06_budget_reserve_and_margin_make_the_window() -> None:
    given, expected = case("C06")["input"], case("C06")["expected"]
    for window in given["windows"]:
        found = ContextBroker.budget(window)
        assert found.budget == expected["budget"][str(window)]
        assert found.budget + found.reserve + found.margin == window


def test_c09_code_points_are_counted_not_bytes_and_not_utf16_units() -> None:
    given, expected = case("C09")["input"], case("C09")["expected"]
    for text, count in zip(given["strings"], expected["tokens"], strict=True):
        broker = ContextBroker(lambda model_id: 8192)
        add(broker, "x", text)
        _, trace = broker.assemble("t", None, "m")
        assert trace["admitted_total"] == count


def test_c13_tool_schemas_are_a_measured_part_of_what_must_enter() -> None:
    given, expected = case("C13")["input"], case("C13")["expected"]

    def schemas(count: int) -> LedgerEntry:
        tools = []
        for n in range(count):
            tool = json.loads(json.dumps(given["tool_template"]))
            tool["function"]["name"] = f"tool_{n:03}"
            tools.append(tool)
        return LedgerEntry("tool_schemas", tokens_text="".join(compact_json(tool) for tool in tools), source="runtime")

    broker = broker_of(given["window"], given["blocks"])
    with pytest.raises(ContextOverflowError) as caught:
        broker.assemble("t", None, "m", extra_blocks=[schemas(given["tool_count"])])
    low, high = (int(n.replace(",", "")) for n in expected["schema_tokens_at_300_tools"].split(" to "))
    needed = {block["name"]: block["tokens"] for block in caught.value.blocks}
    assert low <= needed["tool_schemas"] <= high and caught.value.budget == expected["budget"]
    _, trace = broker.assemble("t", None, "m", extra_blocks=[schemas(3)])
    row = next(row for row in trace["blocks"] if row["name"] == "tool_schemas")
    assert row["admitted"] and not row["evictable"] and abs(row["tokens"] - 3 * expected["schema_tokens_each"]) <= 3


def test_c16_contributors_that_give_nothing_or_fail_leave_the_turn_whole() -> None:
    given, expected = case("C16")["input"], case("C16")["expected"]
    broker = ContextBroker(lambda model_id: given["window"])
    add(broker, "persona", "You are Rune.", priority=100, evictable=False)
    add(broker, "tools", "## Available tools\n- read", priority=90, evictable=False)
    for name, value in given["contributors"].items():
        if isinstance(value, str) and value.startswith("raises "):
            add(broker, name, lambda task, session: int("no number"))
        else:
            add(broker, name, giving(value) if not isinstance(value, str) else value)
    add(broker, "user", user(), priority=100, evictable=False)
    capsule, trace = broker.assemble(given["user"], None, "m")
    assert trace["admitted"] == expected["blocks_present"]
    assert set(expected["degraded_contains"]) <= set(trace["degraded"])
    assert capsule.to_messages()[-1] == {"role": "user", "content": given["user"]}


def test_c17_order_of_admission() -> None:
    given, expected = case("C17")["input"], case("C17")["expected"]
    _, trace = broker_of(given["window"], given["blocks"]).assemble("t", None, "m")
    assert (trace["admitted"], trace["admitted_total"]) == (expected["admitted"], expected["admitted_total"])
    assert [{k: row[k] for k in ("name", "tokens", "priority")} for row in trace["dropped"]] == expected["dropped"]
    assert trace["budget"] == expected["budget"]


@pytest.mark.parametrize("budget", [30, 60, 100, 150, 10_000])
def test_c19_a_cut_never_parts_a_call_from_its_result(budget: int) -> None:
    given = case("C19")["input"]
    session = Conversation.from_messages("s", given["history_messages"])
    broker = session_broker("You are Rune.", window=32768)
    capsule, _ = broker.assemble("next", session, "m")
    capsule, trace = broker.readmit(capsule, budget=budget)
    kept = [m for block in capsule.blocks if block.section == "history" for m in block.rendered_messages()]
    assert [incomplete_reason(t) for t in split_turns(kept)] == [None] * trace["ext"]["history"]["admitted"]
    assert kept == given["history_messages"][len(given["history_messages"]) - len(kept) :]


def test_c19_the_last_5_turns_begin_at_a_user_message() -> None:
    given, expected = case("C19")["input"], case("C19")["expected"]
    session = Conversation.from_messages("s", given["history_messages"])
    kept = session.completed_turns(given["keep_turns"])
    assert [turn.number for turn in kept] == expected["kept_turns"]
    assert kept[0][0] == expected["first_kept_message"]


def test_c21_a_dangling_call_is_not_replayed_and_not_gone() -> None:
    given, expected = case("C21")["input"], case("C21")["expected"]
    session = Conversation.from_messages("s", given["history_messages"])
    capsule, trace = session_broker("You are Rune.").assemble(given["user"], session, "m")
    assert capsule.to_messages()[1:-1] == expected["history_sent"]
    assert trace["ext"]["history"]["incomplete"] == 1
    assert trace["ext"]["history"]["incomplete_turns"] == [{"turn": 1, "reason": "tool call without result"}]
    assert session.messages()[-1]["content"] == "Deploying."


def test_c22_the_system_message_is_there_after_every_turn() -> None:
    given, expected = case("C22")["input"], case("C22")["expected"]
    session = Conversation("s")
    broker = session_broker(given["persona"], given["window"])
    for n in range(given["turns"]):
        capsule, _ = broker.assemble(f"question {n}", session, "m")
        messages = capsule.to_messages()
        assert messages[0]["role"] == expected["messages[0].role"] and given["persona"] in messages[0]["content"]
        assert sum(m["role"] == "system" for m in messages) == expected["count_of_system_messages"]
        answer = "abcd" * given["turn_tokens"]
        session.append([{"role": "user", "content": f"question {n}"}, {"role": "assistant", "content": answer}])


def test_c23_a_system_message_in_imported_history_is_not_a_second_one() -> None:
    given, expected = case("C23")["input"], case("C23")["expected"]
    session = Conversation.from_messages("s", given["history_messages"])
    capsule, _ = session_broker(given["persona"]).assemble(given["user"], session, "m")
    assert [m["role"] for m in capsule.to_messages()] == expected["roles"]
    assert capsule.to_messages()[0]["content"] == given["persona"]


def test_c50_a_lone_surrogate_does_not_stop_a_turn() -> None:
    given = case("C50")["input"]
    task = json.loads(given["user_json"])
    answer = json.loads(given["history_json"][0])
    session = Conversation.from_messages(
        "s", [{"role": "user", "content": task}, {"role": "assistant", "content": answer}]
    )
    capsule, trace = session_broker("You are Rune.").assemble(task, session, "m")
    assert trace["degraded"] == [] and capsule.to_messages()[-1]["content"] == task
    assert json.loads(json.dumps(trace).encode("utf-8")) == trace
    assert all(len(found) == 64 for found in capsule.content_hashes().values())


def test_c52_null_content_is_text_and_an_answer_of_nothing_completes_no_turn() -> None:
    given = case("C52")["input"]
    session = Conversation.from_messages("s", given["history_messages"])
    assert [type(m["content"]) for m in session.messages()] == [str] * 4
    assert session.completed_turns() == [] and session.turns[0].incomplete == "no answer"
    capsule, trace = session_broker("You are Rune.").assemble("next", session, "m")
    assert [m["role"] for m in capsule.to_messages()] == ["system", "user"]
    assert trace["ext"]["history"]["incomplete"] == 1


def test_c66_thinking_of_earlier_turns_does_not_fill_the_window() -> None:
    given, expected = case("C66")["input"], case("C66")["expected"]
    session = Conversation("s")
    for reply in given["replies"]:
        answer: dict[str, Any] = {
            "role": "assistant",
            "content": reply["content"],
            "thinking": content_of(reply["thinking"]),
        }
        session.append([{"role": "user", "content": "What is 2+2?"}, answer])
    assert session.tokens <= expected["history_tokens_after_3_turns_max"]
    capsule, _ = session_broker("You are Rune.", given["window"]).assemble("next", session, "m")
    assert not any("thinking" in m for m in capsule.to_messages())
    assert "thinking" not in capsule.block("history").content
