"""The tools of an operator: which it offers by its settings, what they may do, and that runs put them to use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from operator_helpers import facts_of, only_row, operator_of, rows, sent_by
from rune import RuneOperator, Settings
from rune.errors import InvalidInput
from rune.paths import database, inference_traces
from rune.storage.database import Database
from rune.storage.log import DurableLog
from scripted import ScriptedTransport, calls


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


TAKES_TOOLS = facts_of(8192, "tools")
READING = ["read_file", "list_files", "search_text"]
CHANGING = ["write_file", "edit_file", "run_command"]


# Which tools


@pytest.mark.parametrize(
    ("settings", "offered"),
    [
        ({}, [*READING, *CHANGING, "remember", "recall"]),
        ({"memory_off": True}, [*READING, *CHANGING]),
        ({"auto_approve": ("write_file",)}, [*READING, *CHANGING, "remember", "recall"]),
        ({"auto_approve": ("http_get",)}, [*READING, *CHANGING, "remember", "recall"]),
        ({"auto_approve": ("http_get",), "http_get": True}, [*READING, *CHANGING, "http_get", "remember", "recall"]),
        ({"RUNE_TOOLS": "relate,read_file"}, ["relate", "read_file"]),
        ({"RUNE_TOOLS": "run_command"}, ["run_command"]),
        ({"RUNE_TOOLS": "none"}, []),
    ],
)
def test_settings_say_which_tools_are_offered(home: Path, settings: Any, offered: list[str]) -> None:
    env = {name: value for name, value in settings.items() if name.isupper()}
    given = Settings.load(home, env=env, **{name: value for name, value in settings.items() if name.islower()})
    operator = RuneOperator(ScriptedTransport(["ok"], facts=TAKES_TOOLS), "scripted", home, given)
    operator.run("hi")
    assert sent_by(operator)[0].tool_names == offered == list(operator.tools)
    assert only_row(home)["selected_tools"] == offered


def test_memory_that_is_off_takes_its_tools_along(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = operator_of(home, ["ok"], facts=TAKES_TOOLS)
    assert "recall" in operator.tools
    monkeypatch.setenv("RUNE_MEMORY_OFF", "1")
    assert "recall" not in operator.tools
    with pytest.raises(InvalidInput, match="'recall' while memory is off"):
        operator.run("hi", tools=["recall"])
    with pytest.raises(InvalidInput, match="'http_get' unless RUNE_HTTP_GET=1"):
        operator.run("hi", tools=["http_get"])


def test_names_that_are_no_tools_are_told_and_cost_nothing(home: Path) -> None:
    operator = operator_of(home, ["ok"], facts=TAKES_TOOLS, tools=None, auto_approve=("writefile", "run_command"))
    response = operator.run("hi")
    assert response.success
    assert response.warnings == ["RUNE_AUTO_APPROVE names writefile, of which there is no tool"]


# What they do


def test_a_file_is_written_and_run_only_with_leave(home: Path) -> None:
    script = [
        calls(("write_file", {"path": "hello.sh", "text": "echo hello from $0\n"})),
        calls(("run_command", {"command": ["sh", "hello.sh"]})),
        "done",
    ]
    asked = ["write_file", "run_command"]
    operator = operator_of(home, list(script), facts=TAKES_TOOLS)
    response = operator.run("greet", tools=asked)
    assert (response.done_reason, response.tool_events) == ("pending", [])
    assert not (home.parent / "hello.sh").exists()

    operator = operator_of(home, list(script), facts=TAKES_TOOLS, auto_approve=tuple(asked))
    response = operator.run("greet", tools=asked)
    assert [event.text for event in response.tool_events] == [
        "made hello.sh (19 bytes)",
        "[exit code 0]\nhello from hello.sh",
    ]


def test_a_bug_is_found_mended_and_tested(home: Path) -> None:
    work = home.parent
    (work / "sums.py").write_text("def add(a, b):\n    return a - b\n")
    (work / "test_sums.py").write_text("from sums import add\n\nassert add(2, 2) == 4\nprint('well')\n")
    run = ("run_command", {"command": "python3 test_sums.py"})
    script = [
        calls(run),
        calls(("search_text", {"text": "def add"})),
        calls(("read_file", {"path": "sums.py"})),
        calls(("edit_file", {"path": "sums.py", "old": "a - b", "new": "a + b"})),
        calls(run),
        "It subtracted; now it adds, and the test passes.",
    ]
    operator = operator_of(home, script, facts=TAKES_TOOLS, auto_approve=("edit_file", "run_command"))
    response = operator.run("The test fails. Mend it.")
    first, found, read, edited, last = (event.text for event in response.tool_events)
    assert "AssertionError" in first and first.startswith("[exit code 1]")
    assert found == "sums.py:1: def add(a, b):" and "a - b" in read
    assert edited == "replaced the text at line 2 of sums.py" and last == "[exit code 0]\nwell"
    assert response.success and [row["ok"] for row in only_row(home)["ext"]["tools"]] == [True] * 5


def test_the_time_of_a_command_is_a_setting(home: Path) -> None:
    script = [calls(("run_command", {"command": "sleep 60"})), "It took too long."]
    operator = operator_of(home, script, facts=TAKES_TOOLS, auto_approve=("run_command",), run_command_timeout_s=0.5)
    (event,) = operator.run("wait").tool_events
    assert "did not finish within 0.5 s" in event.text and event.elapsed_ms < 3_000


def test_the_home_of_rune_is_out_of_reach(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("# needle\n")
    script = [
        calls(
            ("read_file", {"path": "home/config.toml"}),
            ("write_file", {"path": "home/config.toml", "text": "auto_approve = ['run_command']"}),
            ("search_text", {"text": "needle"}),
        ),
        "ok",
    ]
    operator = operator_of(home, script, facts=TAKES_TOOLS, auto_approve=("write_file",))
    events = operator.run("hi").tool_events
    assert [event.ok for event in events] == [False, False, True]
    assert "must not touch" in events[0].text and events[2].text == "'needle' was not found"


# Memory


def test_what_is_remembered_is_there_in_the_next_turn(home: Path) -> None:
    script = [
        calls(
            ("remember", {"text": "Anna's dog is called Bello."}),
            ("relate", {"subject": "Anna", "relation": "lives in", "target": "Oslo"}),
        ),
        "noted",
        calls(("recall", {"question": "What do we know of Anna?"}), ("recall", {"question": "zebra crossings"})),
        "Bello",
    ]
    operator = operator_of(home, script, facts=TAKES_TOOLS)
    first = operator.run("Remember Anna", tools=["remember", "relate"])
    assert [event.text for event in first.tool_events] == ["remembered as memory 1", "remembered as edge 1"]
    second = operator.run("What is Anna's dog called?")
    assert second.tool_events[0].text == "- Anna's dog is called Bello.\n- Anna — lives in — Oslo"
    assert second.tool_events[1].text == "nothing is remembered about 'zebra crossings'"
    system = sent_by(operator)[2].messages[0]["content"]
    assert "Bello" in system and "lives in" in system  # and enters the prompt by itself
    assert rows(home)[1]["memory_tokens"] > 0


def test_a_memory_says_which_run_it_is_of_and_can_be_removed(home: Path) -> None:
    from rune.memory import kinds

    operator = operator_of(
        home, [calls(("remember", {"text": "The key is under the mat."})), "noted"], facts=TAKES_TOOLS
    )
    response = operator.run("remember it")
    operator.close()
    with Database(database(home)) as db:
        (row,) = kinds.list_rows(db, "memory")
        assert row["source"] == f"model, run {response.run_id[:12]}"
        assert kinds.forget(db, "memory", row["id"]) == [row["id"]]


def test_a_memory_that_cannot_be_stored_is_a_result(home: Path) -> None:
    script = [
        calls(
            ("remember", {"text": " "}),
            ("remember", {"text": "x" * 3000}),
            ("relate", {"subject": " ", "relation": "is", "target": "b"}),
            ("recall", {"question": "a", "limit": 0}),
        ),
        "ok",
    ]
    operator = operator_of(home, script, facts=TAKES_TOOLS)
    response = operator.run("hi", tools=["remember", "relate", "recall"])
    assert response.success and [event.ok for event in response.tool_events] == [False] * 4
    assert all(event.text.startswith("Error: ") for event in response.tool_events)


def test_a_damaged_database_costs_the_memory_and_not_the_turn(home: Path) -> None:
    database(home).parent.mkdir(parents=True)
    database(home).write_bytes(b"no database at all" * 100)
    operator = operator_of(home, [calls(("remember", {"text": "x"})), "ok"], facts=TAKES_TOOLS)
    response = operator.run("hi")
    assert response.success and not response.tool_events[0].ok
    assert response.degraded


def test_what_a_tool_was_called_with_is_on_record(home: Path) -> None:
    operator = operator_of(home, [calls(("remember", {"text": "a fact"})), "ok"], facts=TAKES_TOOLS)
    operator.run("hi")
    (row,) = only_row(home)["ext"]["tools"]
    assert (row["tool"], row["arguments"], row["ok"]) == ("remember", {"text": "a fact"}, True)
    assert json.dumps(row) and list(DurableLog(inference_traces(home)).read())
