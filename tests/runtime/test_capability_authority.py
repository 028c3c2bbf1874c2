"""Which tools a task is shown: all where there is room, else those that it speaks of, always the same."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from rune.runtime.capability_authority import FINDER, ROOM_LEAST, Capability, room_of, select, tool_tokens
from rune.runtime.capability_tools import search_tools
from rune.runtime.tool_executor import TOOLS, Tool, make_tool

BUILT_IN = {name: one for name, one in TOOLS.items() if one.function.__module__.startswith("rune.") and name != FINDER}
FIND = TOOLS[FINDER]
READING = ["read_file", "list_files", "search_text"]


def named(name: str, description: str) -> Tool:
    def function(query: str, limit: int = 10) -> str:
        return ""

    return make_tool(function, name=name, description=description)


OFFICE = {
    one.name: one
    for one in (
        named("calendar_events", "Lists the events of a calendar."),
        named("send_mail", "Sends a mail to somebody."),
        named("weather", "Tells the weather of a city."),
        named("translate", "Translates a text into another language."),
        *(named(f"crm_record_{n}", "Changes a record in the customer database.") for n in range(40)),
    )
}


def shown(task: str, tools: dict[str, Tool] | None = None, room: int = ROOM_LEAST, **options: Any) -> list[str]:
    names = select(task, BUILT_IN if tools is None else tools, room=room, finder=FIND, **options).names
    assert names[-1] == FINDER
    return list(names[:-1])


def test_all_are_shown_where_there_is_room() -> None:
    for task in ("hello", "Fix the bug in sums.py"):
        chosen = select(task, BUILT_IN, room=2000, finder=FIND)
        assert chosen.names == tuple(BUILT_IN) and chosen.left_out == ()
        assert chosen.reason == f"all 10 tools: {sum(map(tool_tokens, BUILT_IN.values()))} tokens"
    assert select("hello", BUILT_IN, room=0).names == tuple(BUILT_IN)  # no way to the rest: nothing is left out
    assert select("hello", {}, room=0, finder=FIND).names == ()


@pytest.mark.parametrize(
    ("task", "there", "not_there"),
    [
        ("hello", {*READING, "recall"}, {"run_command", "write_file", "http_get"}),
        ("What does notes.md say?", {*READING}, {"run_command", "http_get"}),
        ("Fix the bug in sums.py and run its tests", {"read_file", "edit_file", "run_command"}, {"http_get", "relate"}),
        ("Fetch https://example.com/page and tell me its title", {"http_get"}, {"run_command"}),
        ("Remember that I prefer tea", {"remember", "recall"}, {"run_command", "http_get"}),
        ("Run the build", {"run_command"}, {"http_get", "remember"}),
        ("Was steht im Kalender?", {*READING}, {"run_command"}),
    ],
)
def test_a_task_is_shown_the_tools_that_it_speaks_of(task: str, there: set[str], not_there: set[str]) -> None:
    names = set(shown(task))
    assert there <= names and not names & not_there


def test_tools_of_others_are_shown_for_the_words_of_their_names() -> None:
    tools = {**BUILT_IN, **OFFICE}
    assert "weather" in shown("What is the weather in Oslo?", tools)
    assert {"send_mail", "calendar_events"} <= set(shown("Send Anna a mail with the events of my calendar", tools))
    assert not set(shown("Why is the sky blue?", tools)) & set(OFFICE)
    assert len([name for name in shown("Change the customer record in the database", tools) if "crm" in name]) <= 5


def test_the_family_of_a_task_counts_like_its_words() -> None:
    assert "run_command" not in shown("Sort it out")
    assert {"run_command", "edit_file", "read_file"} <= set(shown("Sort it out", family="code"))
    assert shown("Sort it out", family="chat") == shown("Sort it out")


def test_the_room_is_kept_and_the_order_is_that_of_the_registry() -> None:
    tools = {**OFFICE, **BUILT_IN}
    for room in (0, 100, 300, ROOM_LEAST, 1500, 3000):
        for task in ("hello", "Fix sums.py, run the tests, remember it, mail the weather to Anna", "x" * 100_000):
            chosen = select(task, tools, room=room, finder=FIND)
            names = chosen.names[:-1]
            assert sum(tool_tokens(tools[name]) for name in names) <= max(0, room - tool_tokens(FIND))
            assert list(names) == [name for name in tools if name in names]
            assert set(names) | set(chosen.left_out) == set(tools)
            assert f"{len(names)} of {len(tools)} tools within {room} tokens" in chosen.reason


def test_the_same_task_and_tools_give_the_same_choice() -> None:
    tools = list({**BUILT_IN, **OFFICE}.items())
    first = select("Mail the weather, then fix a.py", dict(tools), room=800, finder=FIND)
    for _ in range(5):
        assert select("Mail the weather, then fix a.py", dict(tools), room=800, finder=FIND) == first
    random.Random(7).shuffle(tools)
    assert set(select("Mail the weather, then fix a.py", dict(tools), room=800, finder=FIND).names) == set(first.names)


def test_a_task_of_two_kinds_is_served_for_both() -> None:
    names = shown("Fetch https://example.com and save it into page.txt, then run the tests", room=500)
    assert {"http_get", "edit_file", "run_command"} <= set(names) or {"http_get", "write_file"} <= set(names)


@pytest.mark.parametrize("piece", ["-", "a-", ".", "/", "a.b/", "https://", "x", "\n", "weather ", "run "])
def test_no_text_makes_the_choice_slow(piece: str) -> None:
    begun = time.perf_counter()
    select(piece * 50_000, {**BUILT_IN, **OFFICE}, room=ROOM_LEAST, finder=FIND)
    assert time.perf_counter() - begun < 0.5


def test_of_a_long_task_both_ends_count_and_not_what_is_pasted_between() -> None:
    pasted = "Run the tests, then fetch https://example.com. " * 300
    assert "run_command" not in shown("hello " * 400 + pasted + "bye " * 600)
    assert "run_command" in shown("Run the tests of this: " + "word " * 5000)
    assert "run_command" in shown("word " * 5000 + " Run the tests of that.")


def test_room_follows_the_budget() -> None:
    assert room_of(5735) == 1147 and room_of(100) == room_of(-5) == ROOM_LEAST and room_of(80_000) == 16_000


def test_a_search_finds_by_name_description_and_stem() -> None:
    tools = {**BUILT_IN, **OFFICE}.values()
    assert search_tools("what will the weathers be", tools)[0].name == "weather"
    assert search_tools("translating texts", tools)[0].name == "translate"
    assert search_tools("crm_record_17", tools)[0].name == "crm_record_17"
    assert (
        search_tools("customer database", tools, limit=3)[0].name.startswith("crm")
        and len(search_tools("customer database", tools, limit=3)) == 3
    )
    assert search_tools("the of and", tools) == search_tools("", tools) == search_tools("zzz", tools) == []


def test_what_was_found_is_offered_once() -> None:
    capability = Capability(select("hello", BUILT_IN, room=700, finder=FIND), {**BUILT_IN, FINDER: FIND})
    assert "http_get" in [one.name for one in capability.find("fetch a page of the web")]
    capability.find("fetch a page")
    taken = capability.take(["read_file"])
    assert taken.count("http_get") == 1 and FINDER not in taken and "read_file" not in taken
    assert capability.take(()) == []
