"""The capability authority in whole runs: what is shown and why, and what ``find_capability`` adds while a run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from operator_helpers import facts_of, only_row, operator_of, rows, sent_by
from rune import RuneOperator, Settings
from rune.errors import PromptRefused, ToolError
from rune.messages import compact_json
from rune.runtime.tool_executor import TOOLS, Tool, make_tool
from rune.traces.record import verify_row
from scripted import ScriptedTransport, calls, reply

TAKES_TOOLS = facts_of(8192, "tools")
ALL = tuple(name for name in TOOLS if name not in ("http_get", "find_capability", "relate"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def office(count: int = 60) -> dict[str, Tool]:
    """Many tools, of which no task speaks by accident, and the way to find them."""
    made: dict[str, Tool] = {}

    def answer(query: str, limit: int = 10) -> str:
        """Answers."""
        return f"answered {query}"

    for number in range(count):
        made[f"crm_{number:02}"] = make_tool(answer, name=f"crm_{number:02}", description="Changes a customer record.")
    made["weather"] = make_tool(answer, name="weather", description="Tells how sunny a city is.")
    return {**made, "find_capability": TOOLS["find_capability"]}


def schema_tokens(tools: dict[str, Tool], *names: str) -> int:
    return len(compact_json([tools[name].schema() for name in names])) // 4


def test_few_tools_are_all_shown(home: Path) -> None:
    operator_of(home, ["ok"], facts=TAKES_TOOLS).run("hi")
    row = only_row(home)
    assert row["capability_reason"].startswith("all 8 tools: ") and row["find_capability_calls"] == 0
    assert "capability" not in row["ext"]


def test_of_many_tools_those_that_the_task_speaks_of(home: Path) -> None:
    operator = operator_of(home, ["ok"], facts=facts_of(6144, "tools"))
    for task in ("Fix the bug in sums.py and run its tests", "Remember that my tea is green"):
        operator.run(task)
    fix, tea = rows(home)
    assert {"read_file", "edit_file", "run_command"} <= set(fix["selected_tools"]) < set(TOOLS)
    assert "run_command" not in tea["selected_tools"] and "remember" in tea["selected_tools"]
    for row, sent in zip((fix, tea), sent_by(operator), strict=True):
        assert row["selected_tools"] == sent.tool_names and sent.tool_names[-1] == "find_capability"
        assert row["per_block_tokens"]["tool_schemas"] == len(compact_json(sent.tools)) // 4 < 757
        assert "of 8 tools within 757 tokens: the task speaks of" in row["capability_reason"]
        assert row["capsule_messages"] == sent.messages and "- find_capability" in sent.messages[0]["content"]
        assert verify_row(row)


@pytest.mark.parametrize(
    ("asked", "env", "sent", "reason"),
    [
        (["relate", "read_file"], {}, ["relate", "read_file"], "named by the caller"),
        ("recall", {}, ["recall"], "named by the caller"),
        (False, {}, [], "none: the caller wants none"),
        (None, {"RUNE_TOOLS": ",".join(ALL)}, list(ALL), "named by RUNE_TOOLS"),
        (None, {"RUNE_TOOLS": "none"}, [], "none: RUNE_TOOLS wants none"),
        (["read_file"], {"RUNE_TOOLS": "recall"}, ["read_file"], "named by the caller"),
        (None, {"RUNE_TOOL_SELECTION": "all", "RUNE_AUTO_APPROVE": ",".join(ALL)}, list(ALL), "all 8 tools: "),
        (True, {}, list(ALL), "all 8 tools: "),
    ],
)
def test_what_is_named_is_shown_as_it_is(home: Path, asked: Any, env: Any, sent: list[str], reason: str) -> None:
    settings = Settings.load(home, env=env, workspace=str(home.parent))
    operator = RuneOperator(ScriptedTransport(["ok"], facts=TAKES_TOOLS), "scripted", home, settings)
    operator.run("hello", tools=asked)
    row = only_row(home)
    assert sent_by(operator)[0].tool_names == row["selected_tools"] == sent
    assert row["capability_reason"].startswith(reason)


def test_a_plan_shows_the_same_choice(home: Path) -> None:
    operator = operator_of(home, ["ok"], facts=TAKES_TOOLS, auto_approve=ALL)
    capsule, _ = operator.plan("Fix sums.py and run its tests")
    operator.run("Fix sums.py and run its tests")
    sent = sent_by(operator)[0]
    assert capsule.to_messages() == sent.messages
    assert capsule.block("tool_schemas").tokens == only_row(home)["per_block_tokens"]["tool_schemas"]


# Finding


def test_what_is_found_is_offered_in_the_next_call_and_counted(home: Path) -> None:
    tools = office()
    script = [
        calls(("find_capability", {"what": "how sunny is it"})),
        calls(("weather", {"query": "Oslo"})),
        "Sunny.",
    ]
    operator = operator_of(home, script, facts=TAKES_TOOLS, tools=tools)
    response = operator.run("Shall we go out?")
    first, second, third = sent_by(operator)
    assert first.tool_names == ["find_capability"]
    assert second.tool_names == third.tool_names == ["find_capability", "weather"]
    assert second.tools[-1] == tools["weather"].schema()
    found = response.tool_events[0]
    assert found.text == "weather(query, limit?): Tells how sunny a city is." and response.tool_events[1].ok
    row = only_row(home)
    assert row["selected_tools"] == ["find_capability", "weather"] and row["find_capability_calls"] == 1
    assert row["capability_reason"].endswith("the task speaks of none; found: weather")
    tokens = schema_tokens(tools, "weather")
    assert row["ext"]["capability"] == {"found": [{"call": 1, "tools": ["weather"], "tokens": tokens, "offered": True}]}
    # The ledger is that of the assembly: what the first call was sent.
    assert row["per_block_tokens"]["tool_schemas"] == schema_tokens(tools, "find_capability")
    assert row["capsule_messages"] == first.messages == second.messages[: len(first.messages)]
    assert row["tools_exposed"] == list(tools) and verify_row(row)


def test_what_was_found_takes_its_room_in_the_loop(home: Path) -> None:
    """An old result makes way earlier by just as much as the found schemas take."""
    tools = office()
    size = 0

    def page(n: int) -> str:
        """Gives a page."""
        return "x" * size

    def fake_capability(what: str) -> str:
        """Answers as the other one does, in as many letters."""
        return "\n".join(["crm_00(query, limit?): Changes a customer record."] * 5)

    tools |= {one.name: one for one in (make_tool(page), make_tool(fake_capability))}

    def made_way(finder: str) -> bool:
        script = [calls(("page", {"n": n})) for n in (1, 2)]
        script += [calls((finder, {"what": "customer record"})), calls(("page", {"n": 3})), reply("done")]
        operator = operator_of(home / finder, script, facts=TAKES_TOOLS, tools=tools)
        response = operator.run("hi", tools=["page", "find_capability", "fake_capability"])
        assert response.success and response.warnings == []
        return "tool_loop" in (response.trace or {})["ext"]

    def most(finder: str) -> int:
        """Characters of a page up to which nothing makes way."""
        nonlocal size
        low, high = 6000, 8000
        while high - low > 1:
            size = (low + high) // 2
            low, high = (low, size) if made_way(finder) else (size, high)
        return low

    found = schema_tokens(tools, *(f"crm_{n:02}" for n in range(5)))
    assert abs((most("fake_capability") - most("find_capability")) * 3 / 4 - found) < 4


def test_what_is_found_and_does_not_fit_is_not_offered_but_can_be_called(home: Path) -> None:
    tools = office(4)
    tools["huge"] = make_tool(
        tools["weather"].function, name="huge", description="Paints a picture. " + "It paints very well indeed. " * 800
    )
    script = [
        calls(("find_capability", {"what": "paint a picture"})),
        calls(("huge", {"query": "a house"})),
        "Painted.",
    ]
    operator = operator_of(home, script, facts=TAKES_TOOLS, tools=tools)
    response = operator.run("A house, please")
    assert response.success and response.tool_events[1].text == "answered a house"
    assert [sent.tool_names for sent in sent_by(operator)][1:] == [sent_by(operator)[0].tool_names] * 2
    assert response.warnings == ["found_tools_do_not_fit"]
    row = only_row(home)
    assert "huge" not in row["selected_tools"] and "found:" not in row["capability_reason"]
    assert row["ext"]["capability"]["found"][0]["offered"] is False


def test_num_ctx_makes_room_for_what_was_found(home: Path) -> None:
    tools = office(30)
    for name in ("crm_00", "crm_01"):
        tools[name] = make_tool(tools[name].function, name=name, description="Paints. " + "x" * 9000)
    script = [calls(("find_capability", {"what": "crm_00"})), calls(("find_capability", {"what": "crm_01"})), "ok"]
    operator = operator_of(home, script, facts=facts_of(32768, "tools"), tools=tools)
    operator.run("word " * 5500)
    first, second, third = (sent.options["num_ctx"] for sent in sent_by(operator))
    assert first <= second <= third and third > first


def test_what_was_found_survives_a_refusal(home: Path) -> None:
    tools = office(100)
    script = [
        calls(("find_capability", {"what": "how sunny is it"})),
        PromptRefused("too long", n_prompt_tokens=9000, n_ctx=8192),
        "Sunny.",
    ]
    operator = operator_of(home, script, facts=facts_of(32768, "tools"), tools=tools)
    response = operator.run("Shall we go out?")
    assert response.text == "Sunny."
    assert [sent.tool_names for sent in sent_by(operator)] == [
        ["find_capability"],
        ["find_capability", "weather"],
        ["find_capability", "weather"],
    ]
    assert only_row(home)["capsule_messages"] == sent_by(operator)[-1].messages[:2]


@pytest.mark.parametrize("kind", ["refused", "tools fail"])
def test_what_was_found_goes_along_to_the_next_tier(home: Path, kind: str) -> None:
    def broken(n: int) -> str:
        """Breaks."""
        raise ToolError(f"broken {n}")

    tools = office() | {"broken": make_tool(broken)}
    tools["find_capability"] = tools.pop("find_capability")
    script: list[Any] = [calls(("find_capability", {"what": "how sunny is it"}))]
    if kind == "refused":
        script.append(PromptRefused("too long", n_prompt_tokens=9000, n_ctx=8192, status=400))
    else:
        script += [calls(*[("broken", {"n": n}) for n in range(6)])]
    script.append("Sunny.")

    class Tiered(ScriptedTransport):
        def fetch_facts(self, model: str) -> Any:
            return facts_of(8192 if model == "tiny" else 32768, "tools")

    transport = Tiered(script)
    tiers = {"small": "tiny", "large": "big"}
    settings = Settings.load(home, env={}, tiers=tiers, readmission=False, workspace=str(home.parent))
    response = RuneOperator(transport, None, home, settings, tools=tools).run("Hello there!")
    assert response.text == "Sunny." and [sent.model for sent in transport.sent] == ["tiny", "tiny", "big"]
    first, second, last = (sent.tool_names for sent in transport.sent)
    assert first == ["find_capability"] and second == last == ["find_capability", "weather"]
    row = only_row(home)
    assert row["per_block_tokens"]["tool_schemas"] == schema_tokens(tools, *last)
    assert row["selected_tools"] == last and row["capsule_messages"] == transport.sent[-1].messages[:2]
    assert row["capability_reason"].endswith("found: weather") and row["find_capability_calls"] == 1


def test_a_search_that_finds_nothing_is_counted_and_widens_nothing(home: Path) -> None:
    script = [
        calls(("find_capability", {"what": "xyzzy"}), ("find_capability", {"what": ""}), ("find_capability", {})),
        "None.",
    ]
    operator = operator_of(home, script, facts=TAKES_TOOLS, tools=office())
    response = operator.run("Shall we go out?")
    assert [event.ok for event in response.tool_events] == [False] * 3
    assert "no tool does 'xyzzy'" in response.tool_events[0].text
    row = only_row(home)
    assert row["find_capability_calls"] == 3 and row["selected_tools"] == ["find_capability"]
    assert "capability" not in row["ext"]


def test_a_tool_that_needs_an_approval_is_found_and_still_needs_it(home: Path) -> None:
    script = [
        calls(("find_capability", {"what": "run a program"})),
        calls(("run_command", {"command": "true"})),
        reply("Done."),
    ]
    operator = operator_of(home, script, facts=TAKES_TOOLS)
    response = operator.run("hi", tools=["find_capability"])
    assert "run_command(command): Runs a program" in response.tool_events[0].text
    assert "(needs the user's approval)" in response.tool_events[0].text
    assert "run_command" in sent_by(operator)[1].tool_names
    assert response.done_reason == "pending" and len(response.tool_events) == 1
    again = operator.resume(response.run_id, "approve")
    assert again.text == "Done." and again.tool_events[0].ok
    assert sent_by(operator)[2].tools == sent_by(operator)[1].tools


def test_tools_that_are_off_are_not_found(home: Path) -> None:
    script = [calls(("find_capability", {"what": "fetch a page of the web"})), "ok"]
    operator = operator_of(home, script, facts=TAKES_TOOLS, memory_off=True)
    operator.run("hi", tools=["find_capability"])
    assert not {"http_get", "recall", "relate"} & set(sent_by(operator)[1].tool_names)


def test_a_tool_that_was_not_shown_cannot_be_called_by_guessing(home: Path) -> None:
    operator = operator_of(
        home, [calls(("relate", {"subject": "a", "relation": "b", "target": "c"})), "ok"], facts=TAKES_TOOLS
    )
    (event,) = operator.run("hi").tool_events
    assert not event.ok and "there is no tool 'relate'" in event.text
