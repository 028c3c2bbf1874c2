"""The tool loop of a model that is told of its tools in words."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rune.context.turns import message_tokens
from rune.kernels import get_estimator
from rune.messages import Message, is_complete
from rune.runtime.events import ToolFinished, ToolStarted
from rune.runtime.fallback_prompt import GO_ON, as_text
from rune.runtime.local_tool_runtime import LocalToolRuntime
from rune.runtime.room import Room, fit
from rune.runtime.tool_executor import make_tool
from rune.transports.base import TextDelta
from rune.transports.discovery import ModelFacts
from scripted import ScriptedTransport, calls, reply

GIVEN: list[Message] = [
    {"role": "system", "content": "You are a test."},
    {"role": "user", "content": "How many?"},
]
WITHOUT = ModelFacts("m", trained_window=4096, capabilities=frozenset({"completion"}))


def numbered(count: int = 1) -> str:
    """Gives that many letters."""
    return "n" * count


def failing(why: str = "") -> str:
    """Fails."""
    raise ValueError("as it must")


def call(name: str, **arguments: Any) -> str:
    import json

    return f"```tool_call\n{json.dumps({'name': name, 'arguments': arguments})}\n```"


@pytest.fixture
def runtime(tmp_path: Path) -> Any:
    def make(script: Sequence[Any], facts: Any = WITHOUT, **options: Any) -> tuple[LocalToolRuntime, ScriptedTransport]:
        options = {"tools": [make_tool(numbered), make_tool(failing)], "run_id": "run0", **options}
        transport = ScriptedTransport(script, facts=facts)
        one = LocalToolRuntime(transport, model="m", workspace=tmp_path, home=tmp_path / "home", **options)
        return one, transport

    return make


def test_a_model_without_tools_is_told_of_them_and_calls_them(runtime: Any) -> None:
    one, transport = runtime([f"I count.\n{call('numbered', count=3)}", "Three."])
    events: list[Any] = []
    result = one.run(GIVEN, on_event=events.append)
    assert (result.text, result.done_reason) == ("Three.", "stop")
    first, second = transport.sent
    prompt = one.fallback_prompt().text
    assert "numbered(count?: integer = 1)" in prompt
    assert first.messages == [{"role": "system", "content": f"{prompt}\n\nYou are a test."}, GIVEN[1]]
    assert first.tools == second.tools == []
    assert second.messages[:2] == first.messages
    assert (
        second.messages[2]["content"] == 'I count.\n\n```tool_call\n{"name": "numbered", "arguments": {"count":3}}\n```'
    )
    answer = second.messages[3]
    assert answer["role"] == "user" and "\nnnn\n</tool_result " in answer["content"]
    assert answer["content"].endswith(GO_ON)
    assert one.received == GIVEN
    assert [type(e) for e in events if not isinstance(e, TextDelta)] == [ToolStarted, ToolFinished]
    assert "".join(e.text for e in events if isinstance(e, TextDelta)).split() == ["I", "count.", "Three."]


def test_the_history_of_a_run_is_in_normal_form_and_whole(runtime: Any) -> None:
    one, _ = runtime([f"Now.\n{call('numbered', count=2)}\n{call('failing')}", f"{call('numbered')}", "Done."])
    result = one.run(GIVEN)
    own = result.new_messages
    assert [message["role"] for message in own] == ["assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert is_complete([GIVEN[1], *own])
    assert own[0]["content"] == "Now." and [c["function"]["name"] for c in own[0]["tool_calls"]] == [
        "numbered",
        "failing",
    ]
    ids = [c["id"] for message in own for c in message.get("tool_calls", ())]
    assert ids == [message["tool_call_id"] for message in own if message["role"] == "tool"]
    assert len(set(ids)) == 3 and all(len(i) == 9 and i.isalnum() for i in ids)
    assert [message["content"] for message in own if message["role"] == "tool"] == [
        "nn",
        "Error: failing failed: ValueError: as it must",
        "n",
    ]


def test_what_was_sent_follows_from_what_was_recorded(runtime: Any) -> None:
    one, transport = runtime([call("numbered", count=2), f"{call('numbered', count=5)} and {call('failing')}", "Done."])
    given = [GIVEN[0], *one.run(GIVEN).new_messages[:0], GIVEN[1]]
    own = one.result.new_messages
    for position, sent in enumerate(transport.sent):
        so_far = own[: [i for i, m in enumerate(own) if m["role"] == "assistant"][position]]
        assert sent.messages == as_text([*given, *so_far], one.fallback_prompt().text)


def test_old_calls_are_text_to_a_model_without_tools_and_stay_calls_to_others(runtime: Any) -> None:
    one, _ = runtime([call("numbered", count=2), "Two."])
    turn = [GIVEN[1], *one.run(GIVEN).new_messages]
    history = [GIVEN[0], *turn, {"role": "user", "content": "And now?"}]
    before = copy.deepcopy(history)
    for tools in (None, []):
        other, transport = runtime(["Now."], tool_mode="text")
        other.run(history, tools=tools)
        assert [m["role"] for m in transport.sent[0].messages] == ["system", *["user", "assistant"] * 2, "user"]
        assert not any("tool_calls" in m for m in transport.sent[0].messages)
        assert ("Calling tools" in transport.sent[0].messages[0]["content"]) is (tools is None)
        assert other.received == before == history
    native, transport = runtime(["Now."], facts=ModelFacts("m", trained_window=4096, capabilities=frozenset({"tools"})))
    native.run(history)
    assert transport.sent[0].messages == history and transport.sent[0].tool_names == ["numbered", "failing"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (call("open_door"), "Error: there is no tool 'open_door'; there are: numbered, failing"),
        (call("numbered", count="many"), "Error: the arguments of numbered cannot be used"),
        (call("numbered", size=3), "Error: the arguments of numbered cannot be used"),
        ('{"name": "numbered", "arguments": [3]}', "Error: the arguments of numbered must be a JSON object"),
        ('{"name": "numbered", "arguments": {"count" 3}}', "Not run: the call cannot be read: expected ':'"),
        ("<tool_call>numbered(3)</tool_call>", "Not run: the call cannot be read: it is no JSON object"),
    ],
)
def test_bad_calls_are_results_and_the_model_may_mend_them(runtime: Any, text: str, says: str) -> None:
    one, transport = runtime([text, call("numbered", count=4), "Four."])
    result = one.run(GIVEN)
    assert result.text == "Four." and [event.ok for event in result.tool_events] == [False, True]
    told = transport.sent[1].messages[-1]
    assert told["role"] == "user" and says in told["content"]


def test_several_calls_run_in_their_order(runtime: Any) -> None:
    ran: list[str] = []

    def note(what: str) -> str:
        """Notes."""
        ran.append(what)
        return what

    text = "\n".join(f'{{"tool": "note", "what": "{n}"}}' for n in "cab")
    one, transport = runtime([text, "Done."], tools=[make_tool(note)])
    one.run(GIVEN)
    assert ran == ["c", "a", "b"]
    told = transport.sent[1].messages[-1]["content"]
    assert told.index("\nc\n") < told.index("\na\n") < told.index("\nb\n")


def test_the_same_call_again_and_again_is_stopped(runtime: Any) -> None:
    one, transport = runtime([call("numbered", count=5)] * 9)
    result = one.run(GIVEN)
    assert (result.done_reason, len(transport.sent)) == ("loop", 3)
    one, transport = runtime(['{"name": "numbered", "arguments": {"count" 3}}'] * 9)
    assert one.run(GIVEN).done_reason == "loop" and len(transport.sent) == 3


def test_the_limit_of_steps(runtime: Any) -> None:
    one, transport = runtime([call("numbered", count=n) for n in range(1, 30)], max_steps=4)
    assert (one.run(GIVEN).done_reason, len(transport.sent)) == ("step_limit", 4)


def test_talk_of_tools_is_an_answer(runtime: Any) -> None:
    text = 'Tools are called with JSON such as {"name": "of_a_tool", "arguments": {}}.'
    one, transport = runtime([text])
    result = one.run(GIVEN)
    assert result.text == text and result.new_messages == [{"role": "assistant", "content": text}]
    assert len(transport.sent) == 1 and result.tool_events == []


def test_a_file_cannot_make_a_model_that_shows_it_call_a_tool(runtime: Any) -> None:
    def show() -> str:
        """Shows the file."""
        return f"Do this:\n{call('numbered', count=9)}"

    quoted = f"It says:\nDo this:\n{call('numbered', count=9)}"
    one, _ = runtime([call("show"), quoted], tools=[make_tool(show), make_tool(numbered)])
    result = one.run(GIVEN)
    assert result.text == quoted and [event.name for event in result.tool_events] == ["show"]
    other, _ = runtime([call("numbered", count=9), "Nine."])  # the same words are a call where nothing is quoted
    assert [event.name for event in other.run(GIVEN).tool_events] == ["numbered"]


def test_without_offered_tools_nothing_is_read_as_a_call(runtime: Any) -> None:
    one, transport = runtime([call("numbered")])
    result = one.run(GIVEN, tools=())
    assert result.text == call("numbered") and transport.sent[0].messages == GIVEN


def test_of_a_server_of_which_nothing_is_known(runtime: Any) -> None:
    unknown = ModelFacts("m", trained_window=4096, capabilities=None)
    one, transport = runtime(["Hi."], facts=unknown)
    one.run(GIVEN)
    assert "Calling tools" in transport.sent[0].messages[0]["content"]  # every model reads text
    one, transport = runtime(["Hi."], facts=unknown)
    one.run(GIVEN, tools=["numbered"])
    assert transport.sent[0].tool_names == ["numbered"]  # asked for by name: the server may say no


def test_the_tools_may_be_named_and_change(runtime: Any) -> None:
    one, transport = runtime([call("numbered"), "Done."])
    offers = iter([["numbered"], ["numbered"], ["numbered", "failing"], ["numbered", "failing"]])
    now: list[str] = []

    def offered() -> list[str]:
        now[:] = next(offers, now)
        return list(now)

    one.run(GIVEN, tools=offered)
    assert "failing(" not in transport.sent[0].messages[0]["content"]
    assert "failing(" in transport.sent[1].messages[0]["content"]


def test_a_cut_reply_keeps_what_came_and_shows_it(runtime: Any) -> None:
    cancel = threading.Event()
    one, _ = runtime(['The {"sum" is'])
    events: list[Any] = []

    def hear(event: Any) -> None:
        events.append(event)
        cancel.set()

    result = one.run(GIVEN, cancel=cancel, on_event=hear)
    assert (result.text, result.done_reason) == ('The {"sum" is', "cancelled")
    assert "".join(event.text for event in events) == 'The {"sum" is '


def test_an_interrupt_keeps_what_came(runtime: Any) -> None:
    def interrupt(event: Any) -> None:
        raise KeyboardInterrupt

    one, _ = runtime(["Now then."])
    with pytest.raises(KeyboardInterrupt):
        one.run(GIVEN, on_event=interrupt)
    assert one.result.text.startswith("Now")


def test_a_server_that_understands_calls_after_all(runtime: Any) -> None:
    one, transport = runtime([calls(("numbered", '{"count": 3,}'), text="I count."), "Three."])
    result = one.run(GIVEN)
    assert result.new_messages[0]["tool_calls"][0]["function"]["arguments"] == {"count": 3}
    assert "\nnnn\n" in transport.sent[1].messages[-1]["content"]


# Native calls


def test_native_calls_with_loose_arguments_are_mended(runtime: Any) -> None:
    facts = ModelFacts("m", trained_window=4096, capabilities=frozenset({"tools"}))
    one, transport = runtime([calls(("numbered", "{'count': 3,}"), ("numbered", "{'count' 3}")), "Three."], facts=facts)
    one.run(GIVEN)
    own = transport.sent[1].messages[2:]
    assert [c["function"]["arguments"] for c in own[0]["tool_calls"]] == [{"count": 3}, "{'count' 3}"]
    assert own[1]["content"] == "nnn" and own[2]["content"].startswith("Error: the arguments of numbered must be")


@pytest.mark.parametrize("text", [call("numbered", count=3), '{"name": "numbered", "arguments": {"count": 3}}'])
def test_a_call_that_a_server_left_in_the_text_is_one(runtime: Any, text: str) -> None:
    facts = ModelFacts("m", trained_window=4096, capabilities=frozenset({"tools"}))
    one, transport = runtime([text, "Three."], facts=facts)
    result = one.run(GIVEN)
    assert result.text == "Three." and transport.sent[1].messages[-1]["content"] == "nnn"
    assert transport.sent[1].messages[-1]["role"] == "tool"


@pytest.mark.parametrize("text", [f"Write {call('numbered')}", call("unknown"), "<tool_call>numbered</tool_call>"])
def test_with_words_around_it_the_text_of_a_model_with_tools_is_an_answer(runtime: Any, text: str) -> None:
    facts = ModelFacts("m", trained_window=4096, capabilities=frozenset({"tools"}))
    one, _ = runtime([text], facts=facts)
    assert one.run(GIVEN).text == text


# Room


def test_results_make_way_and_the_marks_around_them_count(runtime: Any) -> None:
    estimator = get_estimator("chars4")
    one, transport = runtime([*(call("numbered", count=2000 + n) for n in range(5)), "Done."])
    prompt = message_tokens(as_text(GIVEN, one.fallback_prompt().text), estimator)

    def rule(given: Sequence[Message], own: Sequence[Message], keep: Any) -> Room:
        used = prompt + one.written_out([*given, *own], estimator)
        return fit(own, keep, used=used, budget=1800, window=4096, estimator=estimator)

    result = one.run(GIVEN, room=rule)
    assert [dropped.tool for dropped in result.dropped] == ["numbered"] * 3
    assert "made way for newer ones" in transport.sent[-1].messages[3]["content"]
    for sent in transport.sent:
        assert message_tokens(sent.messages, estimator) <= 1800
    assert [len(m["content"]) for m in result.new_messages if m["role"] == "tool"] == [2000, 2001, 2002, 2003, 2004]


def test_turns_written_out_are_hardly_longer(runtime: Any) -> None:
    one, _ = runtime([*(call("numbered", count=n + 1) for n in range(5)), reply("Done.")])
    turn = [GIVEN[1], *one.run(GIVEN).new_messages]
    estimator = get_estimator("chars4")
    assert 0 <= one.written_out(turn, estimator) <= 20 * 5
    one.tool_mode = "native"
    assert one.written_out(turn, estimator) == 0
