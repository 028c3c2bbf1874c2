"""Whole runs of a model without tools of its own: the prompt in the ledger, the row, the log, and what was sent."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from operator_helpers import facts_of, only_row, operator_of, rows, sent_by
from rune import Conversation, RuneOperator, Settings
from rune.context_broker import ContextBroker
from rune.errors import ContextOverflowError, PromptRefused
from rune.kernels import digest
from rune.runtime.fallback_prompt import GO_ON, PROMPT_TOKENS_MAX, as_text
from rune.runtime.tool_executor import TOOLS, make_tool
from rune.traces.record import verify_row
from scripted import ScriptedTransport, calls

NAME = "fallback_tool_prompt"
LINE = "fallback tool prompt injected"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "notes.txt").write_text("The meeting is on Friday.\n", encoding="utf-8")
    return tmp_path / "home"


def call(name: str, **arguments: Any) -> str:
    return f"```tool_call\n{json.dumps({'name': name, 'arguments': arguments})}\n```"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "rune.context_broker" and LINE in r.getMessage()]


def sent_as_recorded(row: dict[str, Any]) -> list[Any]:
    """What a row says that the first call of its run was sent."""
    assert row["ext"]["tool_mode"] == "text"
    return as_text(row["capsule_messages"], row["ext"].get(NAME, {}).get("text", ""))


def test_a_tool_is_called_by_words_and_the_row_says_all_of_it(home: Path) -> None:
    operator = operator_of(home, [call("read_file", path="notes.txt"), "On Friday."], tool_prompt="auto")
    session = Conversation("s")
    response = operator.run("When is the meeting?", session)
    assert (response.success, response.text) == (True, "On Friday.")
    assert [(event.name, event.ok) for event in response.tool_events] == [("read_file", True)]
    row = only_row(home)
    assert row == response.trace and verify_row(row)
    offered = row["selected_tools"]
    assert offered == row["tools_exposed"] and {"read_file", "list_files", "search_text"} <= set(offered)
    assert row["capability_reason"]

    prompt = row["ext"][NAME]["text"]
    assert row["ext"][NAME] == {"form": "full", "left_out": [], "digest": digest(prompt), "text": prompt}
    assert row["per_block_tokens"][NAME] == len(prompt) // 4 <= PROMPT_TOKENS_MAX
    assert "tool_schemas" not in row["per_block_tokens"]
    ledger = next(entry for entry in row["ext"]["ledger"] if entry["name"] == NAME)
    assert (ledger["section"], ledger["reason"], ledger["evictable"]) == ("ledger", "mandatory", False)
    assert ledger["digest"] == digest(prompt) == row["capsule_content_hashes"][NAME]
    assert ledger["source"] == "LocalToolRuntime.fallback_prompt"
    assert row["capsule_token_count"] == sum(row["per_block_tokens"].values()) == row["prompt_tokens_estimated"]

    assert operator.engine()[0] is not None
    first, second = sent_by(operator)
    assert first.tools == second.tools == []
    assert prompt not in row["capsule_messages"][0]["content"]  # received, not sent
    assert first.messages == sent_as_recorded(row)
    assert first.messages[0]["content"] == f"{prompt}\n\n{row['capsule_messages'][0]['content']}"
    assert "The meeting is on Friday." in second.messages[-1]["content"]
    assert second.messages[-1]["role"] == "user" and second.messages[-1]["content"].endswith(GO_ON)

    kept = session.turns[0]
    assert [message["role"] for message in kept] == ["user", "assistant", "tool", "assistant"]
    assert kept[1]["tool_calls"][0]["id"] == kept[2]["tool_call_id"] and kept[2]["tool_name"] == "read_file"


def test_what_was_received_is_what_the_capsule_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    original = RuneOperator._runtime
    monkeypatch.setattr(RuneOperator, "_runtime", lambda self, run: made.append(original(self, run)) or made[-1])
    operator = operator_of(home, [call("list_files"), "Some."], tool_prompt="auto")
    session = Conversation("s")
    for task in ("What is there?", "And delete all files now"):  # the second is given a note
        operator.run(task, session)
        row = rows(home)[-1]
        assert row["capsule_messages"] == made[-1].received
    assert sent_by(operator)[0].messages == sent_as_recorded(rows(home)[0])
    assert sent_by(operator)[2].messages == sent_as_recorded(rows(home)[1])
    assert "safety" in rows(home)[1]["ext"]


def test_tool_pairs_stay_whole_from_turn_to_turn(home: Path) -> None:
    operator = operator_of(
        home, [call("read_file", path="notes.txt"), "On Friday.", "Yes, Friday.", "Bye."], tool_prompt="auto"
    )
    session = Conversation("s")
    for task in ("When is the meeting?", "Are you sure?"):
        operator.run(task, session)
    received = rows(home)[1]["capsule_messages"]
    assert [m["role"] for m in received] == ["system", "user", "assistant", "tool", "assistant", "user"]
    sent = sent_by(operator)[2].messages
    assert [m["role"] for m in sent] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert sent == sent_as_recorded(rows(home)[1])
    # What the model was sent in the turn before is the beginning of what it is sent now: a prefix cache holds.
    assert sent[1:5] == [*sent_by(operator)[1].messages[1:], {"role": "assistant", "content": "On Friday."}]

    withdrawn = operator_of(home, ["Bye."], facts=facts_of(8192, "tools"))
    withdrawn.run("Bye?", session)
    native = sent_by(withdrawn)[0].messages
    assert native[2]["tool_calls"][0]["function"]["name"] == "read_file" and native[3]["role"] == "tool"


def test_a_turn_that_waited_for_an_approval_goes_on_with_the_same_words(home: Path) -> None:
    edit = call("edit_file", path="notes.txt", old="Friday", new="Monday")
    operator = operator_of(home, [f"I change it.\n{edit}"], tool_prompt="auto")
    session = Conversation.open("waits", home)
    response = operator.run("Move the meeting to Monday.", session)
    assert response.pending_state is not None and response.done_reason == "pending"
    assert "Friday" in (home.parent / "notes.txt").read_text()

    other = operator_of(home, ["Moved."], tool_prompt="off")  # another process, with other settings
    done = other.resume(response.pending_state["id"], "approve")
    assert (done.success, done.text) == (True, "Moved.") and "Monday" in (home.parent / "notes.txt").read_text()
    before, after = rows(home)
    assert after["capsule_messages"] == before["capsule_messages"] == response.pending_state["messages"]
    assert after["ext"][NAME] == before["ext"][NAME] and after["selected_tools"] == before["selected_tools"]
    first, second = sent_by(operator)[0].messages, sent_by(other)[0].messages
    assert second[: len(first)] == first == sent_as_recorded(after)
    assert [m["role"] for m in second[len(first) :]] == ["assistant", "user"] and "replaced the text" in second[-1][
        "content"
    ]
    assert [m["role"] for m in Conversation.open("waits", home).turns[0]] == ["user", "assistant", "tool", "assistant"]


class OfTwoKinds(ScriptedTransport):
    """A server of a small model without tools and a large one with them, or the other way round."""

    able = "large"

    def fetch_facts(self, model: str) -> Any:
        return facts_of(8192, *(["tools"] if model == self.able else []))


@pytest.mark.parametrize("able", ["large", "small"])
def test_a_run_goes_on_from_a_model_without_tools_to_one_with_them_and_back(home: Path, able: str) -> None:
    wrong = {"path": "nowhere.txt"}
    asks = [{**wrong, "first_line": n + 1} for n in range(3)]
    script = [call("read_file", **one) if able == "large" else calls(("read_file", one)) for one in asks]
    transport = OfTwoKinds([*script, "It is not there."])
    transport.able = able
    tiers = {"small": "small", "large": "large"}
    operator = RuneOperator(
        transport, home=home, settings=Settings.load(home, env={}, tiers=tiers, workspace=home.parent)
    )
    response = operator.run("Hello there!")
    assert (response.success, response.text) == (True, "It is not there.")
    assert [sent.model for sent in transport.sent] == ["small"] * 3 + ["large"]
    row = only_row(home)
    assert row["model"] == "large" and row["ext"]["tool_mode"] == ("native" if able == "large" else "text")
    first, last = transport.sent[0], transport.sent[-1]
    assert bool(last.tools) is (able == "large") is not bool(first.tools)
    assert (NAME in row["per_block_tokens"]) is (able == "small")
    if able == "large":
        assert [m["role"] for m in last.messages] == ["system", "user", *["assistant", "tool"] * 3]
        assert last.messages[2]["tool_calls"][0]["function"] == {"name": "read_file", "arguments": asks[0]}
    else:
        assert [m["role"] for m in last.messages] == ["system", "user", *["assistant", "user"] * 3]
        assert last.messages[:2] == sent_as_recorded(row)


def test_tools_that_are_found_are_told_of_in_the_result_and_can_be_called(home: Path) -> None:
    tools = {
        "weather": make_tool(lambda: "sunny", name="weather", description="Says how sunny it is."),
        "find_capability": TOOLS["find_capability"],
    }
    script = [call("find_capability", what="how sunny is it"), call("weather"), "Sunny."]
    operator = operator_of(home, script, tools=tools, tool_prompt="auto")
    response = operator.run("Is it warm?", tools=["find_capability"])
    assert response.text == "Sunny." and [event.ok for event in response.tool_events] == [True, True]
    first, second, third = sent_by(operator)
    assert "weather(" not in first.messages[0]["content"] and "weather" in second.messages[-1]["content"]
    assert first.messages[0] == second.messages[0] == third.messages[0]  # the beginning stays, for the prefix cache
    assert only_row(home)["find_capability_calls"] == 1


def test_exactly_one_line_for_each_session_and_model(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rune.context_broker")
    operator = operator_of(home, ["ok"], tool_prompt="auto")
    one, two = Conversation("line-one"), Conversation("line-two")
    for session in (one, one, two, one):
        operator.run("hi", session)
    tokens = rows(home)[0]["per_block_tokens"][NAME]
    assert lines(caplog) == [f"{LINE}: tokens={tokens} session={s} model=scripted" for s in ("line-one", "line-two")]
    operator.run("hi", one, tools=False)
    operator_of(home, ["ok"], facts=facts_of(8192, "tools")).run("hi", Conversation("line-three"))
    assert len(lines(caplog)) == 2


@pytest.mark.parametrize(
    ("setting", "capabilities", "mode", "told"),
    [
        ("auto", ["completion"], "text", True),
        ("auto", None, "text", True),
        ("auto", ["completion", "tools"], "native", False),
        ("always", ["completion", "tools"], "text", True),
        ("off", ["completion"], "text", False),
        ("off", None, "native", False),
    ],
)
def test_the_setting(home: Path, setting: str, capabilities: Any, mode: str, told: bool) -> None:
    facts = replace(facts_of(8192), capabilities=None if capabilities is None else frozenset(capabilities))
    operator = operator_of(home, ["ok"], facts=facts, tool_prompt=setting)
    operator.run("hi")
    row = only_row(home)
    assert row["ext"]["tool_mode"] == mode
    assert (NAME in row["per_block_tokens"]) is told is (NAME in row["ext"])
    assert ("Calling tools" in sent_by(operator)[0].messages[0]["content"]) is told
    assert bool(row["selected_tools"]) is (told or (mode == "native" and capabilities is not None))
    _, plan = operator.plan("hi")
    assert (NAME in plan["admitted"]) is told and plan["ext"]["tool_mode"] == mode


def test_a_prompt_that_does_not_fit_costs_the_tools_and_not_the_turn(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="rune.context_broker")
    operator = operator_of(home, ["fine"], num_ctx=2450, tool_prompt="auto")
    response = operator.run("hi", Conversation("too-small"))
    assert response.success and response.warnings == ["tools_do_not_fit"]
    row = only_row(home)
    assert row["selected_tools"] == [] and NAME not in row["per_block_tokens"] and NAME not in row["ext"]
    assert sent_by(operator)[0].messages == row["capsule_messages"]
    assert "tools" not in row["per_block_tokens"]
    assert lines(caplog) == []


def test_a_prompt_with_no_room_for_all_tools_says_which(home: Path) -> None:
    tools = {f"look_{n}": make_tool(lambda: "", name=f"look_{n}", description="Looks. " * 20) for n in range(120)}
    operator = operator_of(home, ["fine"], tools=tools, facts=facts_of(32768), tool_prompt="auto")
    response = operator.run("look", tools=list(tools))
    row = only_row(home)
    left_out = row["ext"][NAME]["left_out"]
    assert left_out and row["selected_tools"] == [name for name in tools if name not in left_out]
    assert any("no room for all tools" in warning and left_out[0] in warning for warning in response.warnings)
    assert sent_by(operator)[0].messages == sent_as_recorded(row)
    assert row["per_block_tokens"][NAME] <= PROMPT_TOKENS_MAX


def test_an_answer_of_a_given_form_leaves_no_place_for_calls(home: Path) -> None:
    operator = operator_of(home, ['{"name": "read_file", "arguments": {"path": "notes.txt"}}'], tool_prompt="auto")
    response = operator.run("As JSON.", format="json")
    assert response.text.startswith("{") and response.tool_events == []
    assert only_row(home)["selected_tools"] == []


def test_the_tool_loop_counts_the_prompt(home: Path) -> None:
    (home.parent / "long.txt").write_text("".join(f"{n} {'word ' * 30}\n" for n in range(400)), encoding="utf-8")
    script = [call("read_file", path="long.txt", first_line=1 + 20 * n, lines=20) for n in range(4)]
    operator = operator_of(home, [*script, "Long."], num_ctx=4096, facts=facts_of(8192), tool_prompt="auto")
    response = operator.run("What is in it?")
    assert response.success and response.text == "Long."
    row = only_row(home)
    dropped = row["ext"]["tool_loop"]["dropped"]
    assert dropped and dropped[0]["tool"] == "read_file" and dropped[0]["kept"]
    budget = ContextBroker.budget(4096).budget
    for sent in sent_by(operator):
        assert sum(len(m["content"]) // 4 for m in sent.messages) <= budget
    # With the tools in the request, the room is another, and other results make way: the prompt is what makes the difference.
    assert row["per_block_tokens"][NAME] > 300


def test_a_result_too_long_for_what_the_prompt_leaves_is_an_overflow(home: Path) -> None:
    (home.parent / "long.txt").write_text("word " * 1500, encoding="utf-8")
    operator = operator_of(home, [call("read_file", path="long.txt")], num_ctx=2950, tool_prompt="auto")
    response = operator.run("hi")
    error = response.exception
    assert isinstance(error, ContextOverflowError) and error.origin in ("tool_loop", "broker")
    assert only_row(home)["success"] is False


def test_a_refusal_and_the_next_attempt_are_sent_the_same_way(home: Path) -> None:
    refused = PromptRefused("too long", n_prompt_tokens=9000, n_ctx=8192)
    transport = ScriptedTransport([refused, call("list_files"), "Two."], facts=facts_of(32768))
    operator = operator_of(home, transport, tool_prompt="auto")
    response = operator.run("hi", Conversation("again"))
    assert response.success and response.text == "Two."
    row = only_row(home)
    assert [attempt["outcome"] for attempt in row["ext"]["attempts"]] == ["refused", "answered"]
    assert transport.sent[0].messages == transport.sent[1].messages == sent_as_recorded(row)


def test_the_safe_size_of_what_is_sent_holds_the_prompt(home: Path) -> None:
    chosen = []
    for setting in ("off", "auto"):
        operator = operator_of(home, ["ok"], facts=facts_of(65536), tool_prompt=setting)
        operator.run("x" * 15_000)
        chosen.append(rows(home)[-1]["ext"]["num_ctx"])
    assert chosen == sorted(chosen)


def test_content_off_keeps_the_counts_of_the_prompt(home: Path) -> None:
    operator = operator_of(home, ["ok"], tool_prompt="auto", trace="content-off")
    operator.run("hi")
    row = only_row(home)
    assert row["ext"][NAME]["text"] is None and len(row["ext"][NAME]["digest"]) == 64
    assert row["per_block_tokens"][NAME] > 300


HOSTILE = [
    "{" * 50_000,
    '{"name": "read_file", "arguments": {"path": 1e999}}',
    '{"name": "read_file", "arguments": {"path": "\\ud800\\u0000"}}',
    '{"name": "remember", "arguments": {"text": "\\ud800 lone"}}',
    call("read_file", path="notes.txt", first_line=10**30),
    call("read_file", path="notes.txt", lines=-(2**70)),
    call("read_file", path="../" * 50 + "etc/passwd"),
    call("recall", question="x" * 5000),
    f"<tool_call>{'[' * 5000}</tool_call>",
    f'{{"name": "{"n" * 5000}", "arguments": {{}}}}',
    "".join(call("list_files") for _ in range(200)),
    '{"name": "list_files", "arguments": ' + '{"path": ' * 60 + '"."' + "}" * 61,
    "<tool_call>\ud83d</tool_call>",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_a_model_writes_is_a_row(home: Path, text: str) -> None:
    operator = operator_of(home, [text, text, "Done."], tool_prompt="auto")
    session = Conversation.open("s", home)
    response = operator.run("hi", session)
    assert response.success or response.error
    row = only_row(home)
    assert verify_row(row) and row == response.trace
    again = operator_of(home, ["Fine."], facts=facts_of(8192, "tools")).run("and now?", Conversation.open("s", home))
    assert again.success
