"""A bug in a small folder, found, mended with leave and tested: real files, a real run of their tests, a scripted model.

Once with tools in the request and a callback that approves, once with a model that is told of its tools in words and a
person who decides call by call, each decision in another operator.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from operator_helpers import facts_of, operator_of, rows, sent_by
from rune import Conversation
from rune.messages import Message, is_complete
from rune.runtime.fallback_prompt import as_text
from rune.runtime.local_tool_runtime import LocalToolRuntime
from rune.runtime.tool_executor import TOOLS, Tool
from scripted import ScriptedTransport, Sent, calls

BROKEN = "def median(numbers):\n    ordered = sorted(numbers)\n    return ordered[len(ordered) // 2 + 1]\n"
TEST = """\
import unittest

from stats import median


class Median(unittest.TestCase):
    def test_of_three(self):
        self.assertEqual(median([3, 1, 2]), 2)

    def test_of_five(self):
        self.assertEqual(median([9, 1, 5, 3, 7]), 5)
"""
TASK = "The tests fail. Find the bug, mend it and run the tests."
PYTHON = [sys.executable, "-m", "unittest", "-v"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (work / "stats.py").write_text(BROKEN, encoding="utf-8")
    (work / "test_stats.py").write_text(TEST, encoding="utf-8")
    (work / "readme.txt").write_text("Numbers.\n", encoding="utf-8")
    return work


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    """What the model asks for, one after the other; each says what it must have seen before."""
    yield "list_files", {}
    yield "run_command", {"command": PYTHON}
    yield "read_file", {"path": "stats.py"}
    yield "edit_file", {"path": "stats.py", "old": "len(ordered) // 2 + 1", "new": "len(ordered) // 2"}
    yield "run_command", {"command": PYTHON}


SEES = ["stats.py", "FAILED", "// 2 + 1", "replaced", "OK"]
ANSWER = "The median was taken one place too far; its tests pass now."


def model(*, words: bool) -> list[Any]:
    """The scripted model: it goes on only when the result before was what a real tool gives."""

    def step(number: int, name: str, arguments: dict[str, Any]) -> Any:
        def play(sent: Sent) -> Any:
            if number:
                assert SEES[number - 1] in sent.messages[-1]["content"], sent.messages[-1]
            if words:
                return f"```tool_call\n{json.dumps({'name': name, 'arguments': arguments})}\n```"
            return calls((name, arguments))

        return play

    def answer(sent: Sent) -> str:
        assert SEES[-1] in sent.messages[-1]["content"]
        return ANSWER

    return [*(step(number, *one) for number, one in enumerate(steps())), answer]


def test_with_tools_in_the_request_and_a_callback(folder: Path, tmp_path: Path) -> None:
    asked: list[tuple[str, Mapping[str, Any], str]] = []

    def approve(tool: Tool, arguments: Mapping[str, Any]) -> bool:
        asked.append((tool.name, dict(arguments), (folder / "stats.py").read_text()))
        return True

    names = ("list_files", "read_file", "edit_file", "run_command")
    runtime = LocalToolRuntime(
        ScriptedTransport(model(words=False)),
        model="scripted",
        tools=[TOOLS[name] for name in names],
        workspace=folder,
        home=tmp_path / "home",
        approve=approve,
    )
    given: list[Message] = [{"role": "user", "content": TASK}]
    result = runtime.run(given)
    assert (result.text, result.done_reason) == (ANSWER, "stop")
    assert [event.ok for event in result.tool_events] == [True] * 5
    assert [name for name, _, _ in asked] == ["run_command", "edit_file", "run_command"]
    assert asked[1][2] == BROKEN  # nothing was changed before leave was given
    assert "len(ordered) // 2]" in (folder / "stats.py").read_text()
    assert "Ran 2 tests" in result.tool_events[-1].text and "exit code 0" in result.tool_events[-1].text
    assert is_complete([*given, *result.new_messages])


def test_without_leave_the_file_stays_as_it_is(folder: Path, tmp_path: Path) -> None:
    script = [
        calls(("edit_file", {"path": "stats.py", "old": "// 2 + 1", "new": "// 2"})),
        lambda sent: sent.messages[-1]["content"],
    ]
    runtime = LocalToolRuntime(
        ScriptedTransport(script),
        model="scripted",
        tools=[TOOLS["edit_file"]],
        workspace=folder,
        home=tmp_path / "home",
        approve=lambda tool, arguments: False,
    )
    result = runtime.run([{"role": "user", "content": TASK}])
    assert "approval" in result.text and not result.tool_events[0].ok
    assert (folder / "stats.py").read_text() == BROKEN


def test_with_tools_in_words_and_a_person_who_decides(folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    script = model(words=True)
    session = Conversation.open("bug", home)
    sent: list[list[Message]] = []

    def operator() -> Any:
        return operator_of(
            home, ScriptedTransport(script, facts=facts_of(8192)), workspace=str(folder), tool_prompt="auto"
        )

    one = operator()
    response = one.run(TASK, session)
    while response.pending_state is not None:
        sent += [call.messages for call in sent_by(one)]
        del script[: len(sent_by(one))]
        waits = response.pending_state["pending_calls"][0]["function"]
        if waits["name"] == "edit_file":
            assert (folder / "stats.py").read_text() == BROKEN
        one = operator()  # as another process would
        response = one.resume(response.pending_state["id"], "approve")
    sent += [call.messages for call in sent_by(one)]
    assert (response.success, response.text) == (True, ANSWER)
    assert "len(ordered) // 2]" in (folder / "stats.py").read_text()
    found = rows(home)
    assert [row["ext"].get("resumed", {}).get("decision") for row in found] == [None, "approve", "approve", "approve"]
    for before, after in itertools.pairwise(sent):  # one conversation, over four operators
        assert after[: len(before)] == before
    prompt = found[0]["ext"]["fallback_tool_prompt"]["text"]
    (turn,) = Conversation.open("bug", home).turns
    assert sent[-1] == as_text([found[0]["capsule_messages"][0], *turn[:-1]], prompt)
    assert [m["role"] for m in turn] == ["user", *["assistant", "tool"] * 5, "assistant"] and is_complete(turn)
