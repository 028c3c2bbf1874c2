"""Runs of the operator over a scripted model: what was sent, what was recorded, and one row for every outcome."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from rune import ContextOverflowError, Conversation, RuneOperator, Settings, read_traces
from rune.errors import InvalidInput, PromptRefused, ServerUnreachable, StreamCut
from rune.runtime.num_ctx import sticky
from rune.traces.record import verify_row
from rune.traces.schema import defaults
from rune.transports.base import Verdict
from scripted import FACTS, ScriptedTransport, calls, reply


@pytest.fixture
def home(tmp_path: Path) -> Path:
    sticky.clear()
    return tmp_path / "home"


def operator(home: Path, script: Any, **options: Any) -> RuneOperator:
    settings = Settings.load(home, env={}, workspace=str(home.parent), **options)
    return RuneOperator(ScriptedTransport(script, repeat=True), "scripted", home, settings)


def only_row(home: Path) -> dict[str, Any]:
    rows = read_traces(home)
    assert len(rows) == 1
    return rows[0]


def test_a_run_is_answered_and_recorded_with_every_field(home: Path) -> None:
    with operator(home, [reply("blue", prompt_tokens=70, output_tokens=1, total_duration_ns=5_000_000)]) as rune:
        response = rune.run("Which colour?", channel="test")
    assert (response.success, response.text, response.error, response.degraded) == (True, "blue", None, [])
    row = only_row(home)
    assert set(defaults()) <= set(row)
    assert row == response.trace
    assert verify_row(row) is True
    assert (row["provider"], row["model"], row["channel"]) == ("ollama", "scripted", "test")
    assert (row["model_calls"], row["prompt_tokens_served"], row["output_tokens"], row["model_time_ms"]) == (
        1,
        70,
        1,
        5.0,
    )
    assert (row["resolved_context_window"], row["input_budget"]) == (8192, 5735)
    assert row["prompt_tokens_estimated"] == sum(row["per_block_tokens"].values()) == row["capsule_token_count"]
    assert row["ext"]["verdict"]["kind"] == "whole"


def test_what_is_logged_is_what_was_sent(home: Path) -> None:
    with operator(home, ["one", "two"]) as rune:
        session = Conversation("s")
        rune.run("first", session)
        rune.run("second", session)
        sent = [call.messages for call in rune.engine()[0].sent]  # type: ignore[attr-defined]
    rows = read_traces(home)
    assert [row["capsule_messages"] for row in rows] == sent
    assert [m["content"] for m in sent[1][1:]] == ["first", "one", "second"]


def test_the_tools_that_are_sent_are_measured_and_listed(home: Path) -> None:
    (home.parent / "a.txt").write_text("hello", encoding="utf-8")
    with operator(home, [calls(("read_file", {"path": "a.txt"})), "It says hello."]) as rune:
        session = Conversation("s")
        response = rune.run("What does a.txt say?", session)
        first, second = rune.engine()[0].sent  # type: ignore[attr-defined]
    assert response.success
    row = only_row(home)
    assert row["per_block_tokens"]["tool_schemas"] > 100
    assert row["selected_tools"] == row["tools_exposed"] == first.tool_names
    assert second.messages[-1]["role"] == "tool"
    assert "hello" in second.messages[-1]["content"]
    assert row["capsule_messages"] == first.messages
    assert row["model_calls"] == 2
    assert [m["role"] for m in session.turns[0]] == ["user", "assistant", "tool", "assistant"]
    assert session.turns[0].complete


def test_tools_that_do_not_fit_are_left_out_and_said(home: Path) -> None:
    with operator(home, ["fine"], num_ctx=2700) as rune:
        response = rune.run("x" * 1200)
    assert response.success
    assert "tools_do_not_fit" in response.warnings
    assert only_row(home)["selected_tools"] == []


def test_thinking_stays_out_of_history(home: Path) -> None:
    with operator(home, [reply("4", thinking="abcd" * 2000)]) as rune:
        session = Conversation("s")
        for _ in range(3):
            rune.run("2+2?", session)
        assert session.tokens <= 60
        assert "abcdabcd" not in json.dumps(rune.engine()[0].sent[-1].messages)  # type: ignore[attr-defined]


def test_an_overflow_sends_nothing_and_leaves_a_row(home: Path) -> None:
    with operator(home, ["never"]) as rune:
        response = rune.run("z" * 642_756)
        assert rune.engine()[0].sent == []  # type: ignore[attr-defined]
    assert not response.success
    assert isinstance(response.exception, ContextOverflowError)
    assert response.exception.block == "user"
    assert response.exception.block_tokens == 160_689
    row = only_row(home)
    assert row["success"] is False
    assert row["error"].startswith("ContextOverflowError")
    assert len(row["error"]) <= 300
    assert row["model_calls"] == 0


@pytest.mark.parametrize(
    ("failure", "words", "text"),
    [
        (ServerUnreachable("No connection"), "ServerUnreachable", ""),
        (StreamCut("The stream ended before done", partial_text="The sum is"), "StreamCut", "The sum is"),
    ],
)
def test_errors_of_the_server_end_the_run_with_a_row(home: Path, failure: Exception, words: str, text: str) -> None:
    session = Conversation("s")
    with operator(home, [failure]) as rune:
        response = rune.run("add", session)
    assert (response.success, response.text) == (False, text)
    assert words in str(response.error)
    assert only_row(home)["success"] is False
    assert session.turns == ()


def test_a_refusal_climbs_to_the_step_that_the_server_named(home: Path) -> None:
    refusal = PromptRefused("too long", n_prompt_tokens=9000, n_ctx=8192, status=400)
    facts = FACTS.__class__(
        "scripted", trained_window=32768, capabilities=frozenset({"completion"}), source="/api/show"
    )
    transport = ScriptedTransport([refusal, "answer"], facts=facts)
    with RuneOperator(transport, "scripted", home, Settings.load(home, env={})) as rune:
        response = rune.run("hi")
    assert response.success
    assert [call.options["num_ctx"] for call in transport.sent] == [8192, 16384]
    row = only_row(home)
    assert row["ext"]["attempts"][0]["n_prompt_tokens"] == 9000
    assert row["ext"]["num_ctx"] == 16384


def test_an_explicit_num_ctx_does_not_climb(home: Path) -> None:
    refusal = PromptRefused("too long", n_prompt_tokens=25837, n_ctx=25088, status=400)
    facts = FACTS.__class__("scripted", trained_window=131072, capabilities=frozenset(), source="/api/show")
    transport = ScriptedTransport([refusal], facts=facts, repeat=True)
    with RuneOperator(transport, "scripted", home, Settings.load(home, env={})) as rune:
        response = rune.run("hi", num_ctx=25088)
    error = response.exception
    assert isinstance(error, ContextOverflowError)
    assert (error.origin, error.served_prompt_tokens, error.server_window) == ("server", 25837, 25088)
    assert len(transport.sent) == 1
    assert only_row(home)["ext"]["verdict"]["kind"] == "refused"


@pytest.mark.parametrize(("asked", "window"), [(32768, 32768), (4096, 4096), (200_000, 131_072)])
def test_the_callers_num_ctx_is_budget_and_wire(home: Path, asked: int, window: int) -> None:
    facts = FACTS.__class__("scripted", trained_window=131_072, capabilities=frozenset(), source="/api/show")
    transport = ScriptedTransport(["ok"], facts=facts)
    with RuneOperator(transport, "scripted", home, Settings.load(home, env={})) as rune:
        response = rune.run("hi", options={"num_ctx": asked, "temperature": 0.2})
    row = only_row(home)
    assert row["resolved_context_window"] == window
    assert transport.sent[0].options["num_ctx"] == window
    assert transport.sent[0].options["options"] == {"temperature": 0.2}
    assert any("capped" in warning for warning in response.warnings) is (asked > 131_072)


def test_a_cut_prompt_is_never_passed_off_as_whole(home: Path) -> None:
    cut = reply("what?", prompt_tokens=2050, verdict=Verdict("cut", "2050 of 5520"))
    with operator(home, [cut]) as rune:
        response = rune.run("abcd" * 1000)
    assert response.success
    assert "context_truncation" in response.degraded
    assert only_row(home)["degraded"] == ["context_truncation"]
    assert response.verdict == {"kind": "cut", "basis": "2050 of 5520"}


def test_calibration_compares_the_first_call_and_is_silent_without_a_count(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="rune.context_broker")
    with operator(home, [reply("a", prompt_tokens=100), reply("b", prompt_tokens=0)]) as rune:
        for _ in range(2):
            rune.run("hi")
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("calibration:")]
    assert len(lines) == 1
    assert "served=100" in lines[0]
    assert [row["prompt_tokens_served"] for row in read_traces(home)] == [100, 0]


def test_an_empty_task_is_refused_before_anything_begins(home: Path) -> None:
    with operator(home, ["x"]) as rune, pytest.raises(InvalidInput, match="empty"):
        rune.run("  \n")
    assert not home.exists()


def test_a_cancelled_run_has_its_row(home: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    with operator(home, ["x"]) as rune:
        response = rune.run("hi", cancel=cancel)
    assert (response.success, response.error) == (False, "cancelled")
    assert only_row(home)["error"] == "cancelled"


def test_ctrl_c_writes_the_row_and_goes_on_up(home: Path) -> None:
    with operator(home, [KeyboardInterrupt()]) as rune, pytest.raises(KeyboardInterrupt):
        rune.run("hi")
    assert only_row(home)["error"] == "cancelled"


def test_a_file_in_place_of_the_state_folder_does_not_stop_the_turn(home: Path) -> None:
    home.mkdir()
    (home / "state").write_text("in the way", encoding="utf-8")
    with operator(home, ["blue"]) as rune:
        response = rune.run("Which colour?")
    assert response.success
    assert "storage.degraded" in response.degraded
    assert (home / "state").read_text(encoding="utf-8") == "in the way"


def test_content_off_keeps_counts_and_hashes(home: Path) -> None:
    with operator(home, ["secret answer"], trace="content-off") as rune:
        rune.run("a secret question")
    raw = (home / "state" / "inference_traces.jsonl").read_text(encoding="utf-8")
    assert "secret" not in raw
    row = only_row(home)
    assert row["capsule_messages"] is None
    assert row["capsule_content_hashes"]["user"]
    assert row["prompt_tokens_estimated"] > 0


def test_trace_off_stores_nothing(home: Path) -> None:
    with operator(home, ["x"], trace="off") as rune:
        assert rune.run("hi").success
    assert len(read_traces(home)) == 0


def test_files_are_for_the_owner_alone(home: Path) -> None:
    with operator(home, ["x"]) as rune:
        rune.run("hi", Conversation.open("s", home))
    paths = list(home.rglob("*"))
    assert {path.name for path in paths if path.is_dir()} >= {"state", "sessions", "index"}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {0o600}


def test_a_plan_asks_nothing_and_writes_nothing(home: Path) -> None:
    with operator(home, []) as rune:
        _, trace = rune.plan("What is due today?", window=8192)
        assert rune.engine()[0].sent == []  # type: ignore[attr-defined]
    assert trace["admitted"] == ["persona", "tools", "tool_schemas", "user"]
    assert trace["budget"] == 5735
    assert not home.exists()


def test_threads_do_not_mix_their_runs(home: Path) -> None:
    def echo(sent: Any) -> Any:
        return reply("re " + sent.messages[-1]["content"], prompt_tokens=10)

    with operator(home, [echo]) as rune:
        answers: dict[str, str] = {}

        def work(number: int) -> None:
            for turn in range(5):
                task = f"task {number}.{turn}"
                answers[task] = rune.run(task).text

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = read_traces(home)
    assert len(rows) == 40
    assert all(text == "re " + task for task, text in answers.items())
    assert {row["capsule_messages"][-1]["content"] for row in rows} == set(answers)
    assert len({row["task_id"] for row in rows}) == 40
    assert {row["prompt_tokens_served"] for row in rows} == {10}
