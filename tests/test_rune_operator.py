"""The operator: what is sent is what is recorded, one row for every end, and what a session and a memory keep of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from operator_helpers import facts_of, only_row, operator_of, rows, sent_by
from rune import Conversation, RuneOperator, Settings, TaskState
from rune.context.blocks import ContributionBlock
from rune.errors import (
    ContextOverflowError,
    InvalidInput,
    ModelNotFound,
    PromptRefused,
    ServerUnreachable,
    StreamCut,
    TransportError,
)
from rune.kernels import digest, get_estimator
from rune.messages import measured_text
from rune.operator_prefix import shared_prefix
from rune.operator_run import worst_verdict
from rune.rune_operator import _PERSONA_PROMPT
from rune.runtime.events import ToolStarted
from rune.runtime.num_ctx import sticky
from rune.runtime.tool_executor import make_tool
from rune.storage.log import DurableLog
from rune.traces.record import verify_row
from rune.transports.base import TextDelta, Verdict
from scripted import ScriptedTransport, calls, reply


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("RUNE_MEMORY_OFF", raising=False)
    sticky.clear()
    yield
    sticky.clear()


def run_script(script: str, home: Path) -> str:
    """What a script prints in a process of its own; the home is its argument."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    command = [sys.executable, "-c", script, str(home)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def journal_of(home: Path) -> list[dict[str, Any]]:
    return list(DurableLog(home / "state" / "journal.jsonl").read())


# Exactness


def test_what_was_sent_is_what_the_row_says_block_by_block(home: Path) -> None:
    operator = operator_of(home, ["one", "two"])
    session = Conversation("s")
    operator.run("first \udcb2 question", session)
    response = operator.run("second", session)
    sent = sent_by(operator)[1].messages
    row = rows(home)[1]
    assert row["capsule_messages"] == sent
    assert row == response.trace and verify_row(row)
    system = sent[0]["content"]
    for name, (start, end) in row["ext"]["spans"].items():
        assert digest(system[start:end]) == row["capsule_content_hashes"][name]
    assert row["capsule_content_hashes"]["user"] == digest("second")
    assert row["capsule_token_count"] == row["prompt_tokens_estimated"] == response.broker_trace["admitted_total"]  # type: ignore[index]
    assert system.startswith(_PERSONA_PROMPT)


def test_a_change_of_a_block_before_sending_reaches_wire_and_row(home: Path) -> None:
    class Decorating(RuneOperator):
        def _assemble(self, run: Any, **options: Any) -> None:
            super()._assemble(run, **options)
            run.capsule.block("user").content = "[careful] " + run.capsule.block("user").content

    transport = ScriptedTransport(["ok"])
    operator = Decorating(transport, "scripted", home, Settings.load(home, env={}))
    operator.run("delete it")
    row = only_row(home)
    assert transport.sent[0].messages[-1]["content"] == "[careful] delete it" == row["capsule_messages"][-1]["content"]
    assert row["capsule_content_hashes"]["user"] == digest("[careful] delete it")
    assert row["capsule_token_count"] == row["prompt_tokens_estimated"] + 2


def test_a_task_with_ids_images_and_a_channel(home: Path) -> None:
    operator = operator_of(home, ["a cat"])
    session = Conversation("s")
    operator.run(TaskState("What is it?", "task-7", "api", ["aGk="]), session, "cli")
    row = only_row(home)
    assert (row["task_id"], row["channel"]) == ("task-7", "api")
    assert sent_by(operator)[0].messages[-1]["images"] == ["aGk="] == session.turns[0][0]["images"]
    assert row["per_block_tokens"]["user"] == 768 + len("What is it?") // 4


def test_options_of_the_call_and_of_the_model(home: Path) -> None:
    models = {"scripted": {"options": {"temperature": 0.1, "seed": 1}, "notes": "Answers in verse."}}
    home.mkdir()
    (home / "config.toml").write_text(
        'think = true\nkeep_alive = "5m"\n[models.scripted]\nnotes = "Answers in verse."\n'
        "[models.scripted.options]\ntemperature = 0.1\nseed = 1\n"
    )
    operator = operator_of(home, ["ok"])
    assert operator.settings.models == models
    operator.run("hi", options={"temperature": 0.9}, format="json")
    (sent,) = sent_by(operator)
    assert sent.options["options"] == {"temperature": 0.9, "seed": 1}
    assert (sent.options["format"], sent.options["keep_alive"]) == ("json", "5m")
    assert "think" not in sent.options  # this model cannot think; a server would refuse the word
    assert "Answers in verse." in sent.messages[0]["content"]
    thinking = operator_of(home, ["ok", "ok"], facts=facts_of(8192, "thinking"))
    thinking.run("hi")
    thinking.run("hi", think=False)
    assert [sent.options["think"] for sent in sent_by(thinking)] == [True, False]


def test_what_a_call_shares_with_the_one_before(home: Path) -> None:
    operator = operator_of(home, ["one", "two", "three"])
    session = Conversation("s")
    for task in ("first", "second", "third"):
        operator.run(task, session)
    found = rows(home)
    assert "prefix" not in found[0]["ext"]
    system = found[1]["capsule_messages"][0]["content"]
    sent, script = [measured_text(m) for m in found[1]["capsule_messages"]], get_estimator("script")
    tokens, of_tokens = sum(script.many(sent[:3])) + 3 * 8, sum(script.many(sent)) + 4 * 8
    assert found[1]["ext"]["prefix"] == {
        "messages": 3,
        "chars": len(system) + len("first") + len("one"),
        "of_chars": sum(map(len, sent)),
        "tokens": tokens,
        "of_tokens": of_tokens,
        "share": round(tokens / of_tokens, 4),
    }
    assert found[2]["ext"]["prefix"]["messages"] == 5


def test_the_shared_prefix_is_exact() -> None:
    chars4 = get_estimator("chars4")
    before = [{"role": "system", "content": "abcdef" * 50}, {"role": "user", "content": "x"}]
    for at in (0, 1, 57, 299, 300):
        other = before[0]["content"][:at] + "?" + before[0]["content"][at + 1 :]
        sent = [{"role": "system", "content": other}, before[1]]
        found = shared_prefix(before, sent, chars4)
        assert found["chars"] == (at if at < 300 else 300)
        assert found["tokens"] == at // 4
    assert shared_prefix(before, before, chars4) == {
        "messages": 2,
        "chars": 301,
        "of_chars": 301,
        "tokens": 75 + 16,
        "of_tokens": 75 + 16,
        "share": 1.0,
    }
    assert shared_prefix(before, [{"role": "user", "content": "abc"}], chars4)["chars"] == 0
    assert shared_prefix([], before, chars4)["messages"] == 0
    assert shared_prefix([], [], chars4)["share"] == 0.0


def test_the_worst_verdict_counts() -> None:
    kinds = ["whole", "unknown", "suspected", "whole"]
    assert worst_verdict([Verdict(kind, "") for kind in kinds]).kind == "suspected"  # type: ignore[union-attr,arg-type]
    assert worst_verdict([]) is None


# Tools


OFFERED = ["read_file", "list_files", "search_text", "write_file", "edit_file", "run_command", "remember", "recall"]


def test_tools_are_named_and_measured_where_they_are_offered(home: Path) -> None:
    operator = operator_of(home, ["ok"], facts=facts_of(8192, "tools"))
    operator.run("hi")
    operator.run("hi", tools=["read_file"])
    operator.run("hi", tools=False)
    found = rows(home)
    assert [sent.tool_names for sent in sent_by(operator)] == [OFFERED, ["read_file"], []]
    assert [row["selected_tools"] for row in found] == [OFFERED, ["read_file"], []]
    assert all(row["tools_exposed"] == OFFERED for row in found)
    assert "## Available tools\n- read_file" in found[1]["capsule_messages"][0]["content"]
    assert "list_files" not in found[1]["capsule_messages"][0]["content"]
    assert "tools" not in found[2]["per_block_tokens"] and "tool_schemas" not in found[2]["per_block_tokens"]
    assert found[0]["per_block_tokens"]["tool_schemas"] > found[1]["per_block_tokens"]["tool_schemas"] > 80
    with pytest.raises(InvalidInput, match="'nothing'"):
        operator.run("hi", tools=["nothing"])


@pytest.mark.parametrize("capabilities", [frozenset({"completion"}), None])
def test_a_model_that_is_not_known_to_take_tools_hears_of_none(home: Path, capabilities: Any) -> None:
    from dataclasses import replace

    operator = operator_of(home, ["ok"], facts=replace(facts_of(8192), capabilities=capabilities))
    operator.run("hi")
    row = only_row(home)
    assert sent_by(operator)[0].tools == [] and row["selected_tools"] == []
    assert set(row["per_block_tokens"]) & {"tools", "tool_schemas"} == set()
    assert row["tools_exposed"] == OFFERED


def test_tools_that_do_not_fit_cost_no_second_collection(home: Path) -> None:
    operator = operator_of(home, ["fine"], facts=facts_of(8192, "tools"), num_ctx=2700)
    asked: list[str] = []

    def counting(task: Any, session: Any) -> ContributionBlock:
        asked.append(task.task)
        return ContributionBlock(content="noted")

    operator._context_broker().register("mine", counting, bucket=3, priority=10, evictable=True, source="test")
    response = operator.run("x" * 1200)
    assert response.success and response.warnings == ["tools_do_not_fit"]
    assert asked == ["x" * 1200]
    row = only_row(home)
    assert row["selected_tools"] == [] and sent_by(operator)[0].tools == []
    assert "Available tools" not in row["capsule_messages"][0]["content"]
    assert row["ext"]["warnings"] == ["tools_do_not_fit"]
    too_long = operator.run("x" * 4000)
    assert isinstance(too_long.exception, ContextOverflowError) and "tools_do_not_fit" not in too_long.warnings


def test_a_run_with_tools_is_one_turn_and_its_calls_are_on_record(home: Path) -> None:
    (home.parent / "a.txt").write_text("hello")
    script = [calls(("read_file", {"path": "a.txt"}), ("read_file", {"path": "../x"})), "It says hello."]
    operator = operator_of(home, script, facts=facts_of(8192, "tools"))
    session = Conversation("s")
    events: list[Any] = []
    response = operator.run("What does a.txt say?", session, on_event=events.append)
    assert (response.text, response.done_reason, [e.ok for e in response.tool_events]) == (
        "It says hello.",
        "stop",
        [True, False],
    )
    assert [type(event) for event in events].count(ToolStarted) == 2
    assert any(isinstance(event, TextDelta) for event in events)
    row = only_row(home)
    first, second = row["ext"]["tools"]
    assert (first["tool"], first["ok"], first["text"], first["chars"]) == ("read_file", True, None, 5)
    assert second["ok"] is False and "outside" in second["text"]
    assert row["model_calls"] == len(row["ext"]["calls"]) == 2
    assert row["prompt_tokens_served"] == sum(call["prompt_tokens"] for call in row["ext"]["calls"])
    assert [m["role"] for m in session.turns[0]] == ["user", "assistant", "tool", "tool", "assistant"]
    assert session.turns[0].complete


@pytest.mark.skipif(os.name != "posix", reason="a folder in use can be removed")
def test_a_folder_that_is_gone_costs_the_tools_and_not_the_answer(home: Path) -> None:
    script = (
        "import os, pathlib, sys\n"
        "from operator_helpers import facts_of, operator_of\n"
        "gone = pathlib.Path(sys.argv[1]).parent / 'gone'\n"
        "gone.mkdir()\n"
        "os.chdir(gone)\n"
        "gone.rmdir()\n"
        "operator = operator_of(pathlib.Path(sys.argv[1]), ['blue'], facts=facts_of(8192, 'tools'), workspace=None)\n"
        "response = operator.run('Which colour?')\n"
        "print(response.text, response.trace['tools_exposed'], response.warnings)\n"
    )
    done = run_script(script, home)
    assert done.startswith("blue [] ['no tools are offered: the workspace '.' cannot be used") or (
        'blue [] ["no tools are offered' in done
    )


@pytest.mark.parametrize("end", ["loop", "step_limit"])
def test_a_run_that_was_stopped_is_no_success_and_the_session_knows(home: Path, end: str) -> None:
    def look(number: int = 0) -> str:
        """Looks."""
        return "seen"

    script = [lambda sent, n=n: calls(("look", {"number": 0 if end == "loop" else n})) for n in range(9)]
    operator = operator_of(home, script, facts=facts_of(8192, "tools"), tools={"look": make_tool(look)}, max_steps=4)
    session = Conversation("s")
    response = operator.run("look", session)
    assert (response.success, response.done_reason, response.exception) == (False, end, None)
    assert response.error is not None and response.error.startswith("Stopped")
    row = only_row(home)
    assert (row["success"], row["error"], row["ext"]["done_reason"]) == (False, response.error, end)
    assert session.turns[0].complete and session.turns[0][-1]["content"] == response.error


# Ends: each has its row


@pytest.mark.parametrize(
    ("end", "kind", "text"),
    [
        (ServerUnreachable("No connection to http://127.0.0.1:1"), "ServerUnreachable", ""),
        (ModelNotFound("no such model"), "ModelNotFound", ""),
        (
            StreamCut("the reply ended before the server said that it was done", partial_text="The sum"),
            "StreamCut",
            "The sum",
        ),
        (PromptRefused("too long", n_prompt_tokens=9000, n_ctx=8192), "ContextOverflowError", ""),
        (TransportError("x" * 1000), "TransportError", ""),
    ],
)
def test_every_error_is_a_response_and_one_row(home: Path, end: Exception, kind: str, text: str) -> None:
    operator = operator_of(home, [end])
    session = Conversation("s")
    response = operator.run("add", session)
    assert (response.success, response.text, type(response.exception).__name__) == (False, text, kind)
    row = only_row(home)
    assert row["error"] == str(response.error)[:300] and row["error"].startswith(kind)
    assert (row["success"], row["output_tokens"], row["model_calls"]) == (False, 0, 0)
    assert row["capsule_messages"] == sent_by(operator)[0].messages
    assert row["ext"]["error_type"] == kind and row["ext"]["attempts"][-1]["outcome"] in ("failed", "refused")
    assert row["ext"].get("partial_text", "") == text
    assert session.turns == ()
    assert [event["event"] for event in journal_of(home)] == ["run_started", "run_finished"]
    assert journal_of(home)[1]["success"] is False


def test_an_engine_that_cannot_be_opened_has_its_row_too(home: Path) -> None:
    settings = Settings.load(home, env={}, engine="openai")
    with RuneOperator(home=home, settings=settings) as operator:
        response = operator.run("hi")
    assert isinstance(response.exception, InvalidInput) and "RUNE_OPENAI_BASE_URL" in str(response.error)
    row = only_row(home)
    assert (row["success"], row["provider"], row["capsule_messages"]) == (False, "", None)


def test_facts_that_cannot_be_found_out_are_assumed_and_told(home: Path) -> None:
    operator = operator_of(home, ["ok"], facts=TransportError("no answer"))
    response = operator.run("hi")
    assert response.success and response.degraded == ["context_discovery"]
    row = only_row(home)
    assert (row["resolved_context_window"], row["degraded"]) == (8192, ["context_discovery"])
    assert row["ext"]["window_source"] == "fallback"


def test_a_cancel_in_the_middle_keeps_the_text_and_has_its_row(home: Path) -> None:
    cancel = threading.Event()
    operator = operator_of(home, ["The sum is"])
    session = Conversation("s")
    response = operator.run("add", session, cancel=cancel, on_event=lambda event: cancel.set())
    assert (response.success, response.error, response.text) == (False, "cancelled", "The sum is")
    row = only_row(home)
    assert row["error"] == "cancelled" and row["ext"]["partial_text"] == "The sum is"
    assert session.turns == ()


def test_ctrl_c_in_a_tool_writes_the_row_and_goes_on_up(home: Path) -> None:
    def interrupting(event: Any) -> None:
        if isinstance(event, ToolStarted):
            raise KeyboardInterrupt

    operator = operator_of(home, [calls(("list_files", {}))], facts=facts_of(8192, "tools"))
    with pytest.raises(KeyboardInterrupt):
        operator.run("list", on_event=interrupting)
    row = only_row(home)
    assert (row["error"], row["success"], row["model_calls"]) == ("cancelled", False, 1)
    assert row["ext"]["tools"][0]["text"] == "Not run: interrupted"
    assert journal_of(home)[-1]["event"] == "run_finished"


def test_a_fault_of_a_callback_is_recorded_and_not_hidden(home: Path) -> None:
    operator = operator_of(home, ["ok"])
    with pytest.raises(ZeroDivisionError):
        operator.run("hi", on_event=lambda event: 1 / 0)
    assert only_row(home)["error"].startswith("ZeroDivisionError")


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_ctx": 0},
        {"num_ctx": "many"},
        {"num_ctx": 2**31},
        {"options": {"num_ctx": -5}},
        {"num_predict": 0},
        {"num_predict": 1.5},
        {"options": [1]},
        {"session": "an id"},
    ],
)
def test_arguments_that_cannot_be_used_are_refused_before_anything_begins(
    home: Path, arguments: dict[str, Any]
) -> None:
    operator = operator_of(home, ["never"])
    with pytest.raises(InvalidInput):
        operator.run("hi", **arguments)
    assert not home.exists() and sent_by(operator) == []


def test_no_answer_in_words_is_told(home: Path) -> None:
    operator = operator_of(home, [reply("", thinking="Hm.", done_reason="length")])
    session = Conversation("s")
    response = operator.run("hi", session)
    assert response.success and response.done_reason == "length"
    assert len(response.warnings) == 2
    assert session.incomplete_count == 1 and session.completed_count == 0


# Storage that fails


def _file_in_the_way(home: Path) -> None:
    home.mkdir()
    (home / "state").write_text("in the way")


def _no_folder(home: Path) -> None:
    home.write_text("in the way")


@pytest.mark.parametrize("spoil", [_file_in_the_way, _no_folder])
def test_storage_that_fails_degrades_and_the_answer_comes(home: Path, spoil: Any) -> None:
    spoil(home)
    operator = operator_of(home, ["blue"], workspace=str(home.parent))
    session = Conversation("s")
    response = operator.run("Which colour?", session)
    assert (response.success, response.text) == (True, "blue")
    assert "storage.degraded" in response.degraded
    assert response.trace is not None and "storage.degraded" in response.trace["degraded"]
    assert session.completed_count == 1
    assert rows(home) == []


@pytest.mark.skipif(os.name != "posix", reason="needs limits on the size of files")
def test_a_full_disk_degrades_and_leaves_no_part_of_a_row(home: Path) -> None:
    script = (
        "import pathlib, resource, signal, sys\n"
        "from operator_helpers import operator_of\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))\n"  # takes the journal's first row
        "response = operator_of(pathlib.Path(sys.argv[1]), ['blue']).run('Which colour?')\n"
        "print(response.success, response.text, response.degraded, response.trace['success'])\n"
    )
    assert run_script(script, home) == "True blue ['storage.degraded'] True\n"
    assert rows(home) == [] and (home / "state" / "inference_traces.jsonl").read_bytes() == b""
    assert journal_of(home)[0]["event"] == "run_started"


def test_a_session_that_cannot_be_written_is_told_in_the_row(home: Path) -> None:
    home.mkdir()
    (home / "sessions").write_text("in the way")
    session = Conversation.open("s", home)
    operator = operator_of(home, ["blue"])
    response = operator.run("Which colour?", session)
    assert response.success and session.completed_count == 1 and session.unsaved == 1
    assert response.degraded == only_row(home)["degraded"] == ["storage.degraded"]


def test_a_damaged_database_costs_the_memory_and_not_the_turn(home: Path) -> None:
    (home / "state").mkdir(parents=True)
    (home / "state" / "rune.sqlite3").write_bytes(b"this is no database" * 100)
    response = operator_of(home, ["blue"]).run("Which colour?")
    assert response.success
    assert {"memory", "persona_memories", "consolidated", "neurons", "graphs", "abstraction"} <= set(response.degraded)
    assert (home / "state" / "rune.sqlite3").read_bytes().startswith(b"this is no database")


# Switches


def test_content_off_and_off_keep_no_words(home: Path) -> None:
    (home.parent / "secret.txt").write_text("a secret text")
    script = [calls(("read_file", {"path": "secret.txt"}), ("read_file", {"path": "no-secret.txt"})), "a secret answer"]
    session = Conversation("s")
    response = operator_of(home, script, facts=facts_of(8192, "tools"), trace="content-off").run("a secret?", session)
    raw = (home / "state" / "inference_traces.jsonl").read_text()
    assert "secret" not in raw and "secret" not in json.dumps(response.trace)
    row = only_row(home)
    assert row["capsule_messages"] is None and row["capsule_content_hashes"]["user"] == digest("a secret?")
    assert row == response.trace and verify_row(row) and row["ext"]["tools"][0]["tool"] == "read_file"
    off = operator_of(home, ["x"], trace="off").run("a secret?")
    assert off.success and off.trace is not None and off.trace["capsule_messages"] is None
    assert len(rows(home)) == 1


def test_an_overflow_with_content_off(home: Path) -> None:
    response = operator_of(home, ["never"], trace="content-off").run("secret " * 9000)
    assert not response.success
    assert "secret " not in (home / "state" / "inference_traces.jsonl").read_text()


# Memory


def fill(home: Path) -> None:
    from rune.memory import abstraction, graph_memory, memory_store, warm_neuron_store
    from rune.paths import database
    from rune.storage.database import Database

    with Database(database(home)) as db:
        memory_store.add(db, "The lighthouse keeper drinks green tea.")
        memory_store.add(db, "Rune speaks plainly.", kind="persona")
        abstraction.connect(db).add("A lighthouse is built on rock.")
        graph_memory.add_edge(db, "Lighthouse", "stands on", "Skerry")
        warm_neuron_store.add(db, "lighthouse")


MEMORY = {"memory", "persona_memories", "neurons", "graphs", "abstraction"}


def test_what_is_remembered_enters_the_prompt_and_the_row(home: Path) -> None:
    fill(home)
    operator = operator_of(home, ["ok"])
    operator.run("Tell me of the lighthouse")
    row = only_row(home)
    assert set(row["per_block_tokens"]) >= MEMORY | {"model_profile"}
    assert set(row["memories_exposed"]) == {"memory", "persona_memories"} and row["memory_tokens"] > 0
    system = row["capsule_messages"][0]["content"]
    for words in (
        "## Context\n- The lighthouse keeper",
        "## Identity context",
        "## My neurons (warm, firing)",
        "Skerry",
        "## My learned knowledge",
        "## Model",
    ):
        assert words in system
    assert row["degraded"] == []
    operator.close()


def test_memory_off_is_absence_by_name_and_number(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(home)
    monkeypatch.setenv("RUNE_MEMORY_OFF", "1")
    operator_of(home, ["ok"]).run("Tell me of the lighthouse")
    monkeypatch.delenv("RUNE_MEMORY_OFF")
    operator_of(home, ["ok"], memory_off=True).run("Tell me of the lighthouse")
    for row in rows(home):
        assert row["memory_tokens"] == 0 and row["memories_exposed"] == []
        assert not {"memory", "persona_memories", "consolidated"} & {r["name"] for r in row["ext"]["ledger"]}
        assert "green tea" not in row["capsule_messages"][0]["content"]


# Plans


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_plan_says_what_would_be_sent_and_changes_no_byte(home: Path) -> None:
    fill(home)
    session = Conversation.open("s", home)
    session.append([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])
    before = snapshot(home)
    operator = operator_of(home, ["ok"], facts=facts_of(8192, "tools"))
    capsule, trace = operator.plan("Tell me of the lighthouse", session, window=8192)
    assert snapshot(home) == before
    transport = operator.engine()[0]
    assert isinstance(transport, ScriptedTransport) and transport.facts_asked == 0 and transport.sent == []
    assert trace["ext"]["tools_assumed"] is True
    assert set(trace["admitted"]) >= MEMORY | {"tools", "tool_schemas", "history", "user"}
    capsule, trace = operator.plan("Tell me of the lighthouse", session)
    assert transport.facts_asked == 1 and transport.sent == [] and trace["ext"]["tools_assumed"] is False
    planned = capsule.to_messages()
    operator.run("Tell me of the lighthouse", session)
    assert transport.sent[0].messages == planned
    assert only_row(home)["per_block_tokens"] == {b["name"]: b["tokens"] for b in trace["blocks"] if b["admitted"]}


def test_a_plan_that_does_not_fit_and_one_with_a_window_that_is_none(home: Path) -> None:
    operator = operator_of(home, [])
    with pytest.raises(ContextOverflowError):
        operator.plan("x" * 40_000, window=8192)
    for window in (0, -1, 2**31):
        with pytest.raises(InvalidInput, match="window"):
            operator.plan("hi", window=window)
    capsule, trace = operator.plan("hi", window=8192, tools=False)
    assert trace["admitted"] == ["persona", "user"]
    assert capsule.model_id == "scripted"
    assert not home.exists()


def test_a_plan_of_a_model_without_tools(home: Path) -> None:
    _, trace = operator_of(home, []).plan("hi")
    assert trace["admitted"] == ["persona", "model_profile", "user"]


# Several threads, several operators


def test_threads_do_not_mix(home: Path) -> None:
    def echo(sent: Any) -> Any:
        last = sent.messages[-1]["content"]
        if last.endswith("7"):
            return StreamCut("cut", partial_text="part of " + last)
        if last.endswith("3") and sent.messages[-1]["role"] == "user":
            return calls(("note", {"what": last}))
        return reply("re " + last, prompt_tokens=len(last), output_tokens=1)

    def note(what: str) -> str:
        """Notes."""
        return "noted " + what

    operator = operator_of(home, [echo], facts=facts_of(8192, "tools"), tools={"note": make_tool(note)})
    answers: dict[str, Any] = {}

    def work(number: int) -> None:
        session = Conversation(f"s{number}")
        for step in range(20):
            task = f"task {number}.{step}"
            answers[task] = operator.run(task, session)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {row["ext"]["run_id"]: row for row in rows(home)}
    assert len(found) == 320 == len({row["task_id"] for row in found.values()})
    for task, response in answers.items():
        row = found[response.run_id]
        assert row == response.trace
        assert row["capsule_messages"][-1]["content"] == task
        number = task.split()[1].split(".")[0]
        mine = [m["content"] for m in row["capsule_messages"] if m["role"] == "user"]
        assert all(content.startswith(f"task {number}.") for content in mine)
        assert row["ext"]["session"] == f"s{number}"
        if task.endswith("7"):
            assert (response.success, response.text) == (False, "part of " + task)
        elif task.endswith("3"):
            assert response.text == "re noted " + task and row["model_calls"] == 2
        else:
            assert (response.text, row["prompt_tokens_served"]) == ("re " + task, len(task))
    transport = operator.engine()[0]
    assert isinstance(transport, ScriptedTransport) and transport.facts_asked == 1


def test_two_operators_of_one_home_share_the_files(home: Path) -> None:
    one, two = operator_of(home, ["a"]), operator_of(home, ["b"])
    one.run("hi")
    two.run("hi")
    one.run("hi")
    assert len(rows(home)) == 3
    for operator in (one, two):
        operator.close()
    assert one.run("again").success  # closed is not the end
    assert one.engine()[0].closed is False  # type: ignore[attr-defined]


def test_the_import_is_light() -> None:
    script = (
        "import sys; import rune.rune_operator; "
        "print(sorted({'httpx', 'numpy', 'rich', 'click', 'xllamacpp', 'sqlite3'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
