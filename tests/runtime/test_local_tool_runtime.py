"""The tool loop over a scripted model: what is sent, in which order, and every way that it can end."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rune.errors import BadReply, ContextOverflowError, InvalidInput, ServerUnreachable, StreamCut
from rune.kernels import get_estimator
from rune.messages import Message, is_complete
from rune.runtime.events import ToolFinished, ToolStarted
from rune.runtime.local_tool_runtime import LocalToolRuntime, _model_capabilities, context_length
from rune.runtime.room import Room, fit
from rune.runtime.task_state import TaskState
from rune.runtime.tool_executor import make_tool
from rune.transports.base import ModelListing, TextDelta, Transport
from rune.transports.discovery import ModelFacts
from scripted import FACTS, ScriptedTransport, calls, reply

GIVEN: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How long is a.txt?"},
]


def numbered(count: int = 1) -> str:
    """Gives a text of so many characters."""
    return "n" * count


def failing() -> str:
    """Fails."""
    raise ValueError("as it must")


TOOLS = [make_tool(numbered), make_tool(failing)]


@pytest.fixture
def runtime(tmp_path: Path) -> Callable[..., LocalToolRuntime]:
    def make(transport: Transport, **options: Any) -> LocalToolRuntime:
        options.setdefault("tools", TOOLS)
        return LocalToolRuntime(
            transport, model="scripted", workspace=tmp_path, home=tmp_path / "home", run_id="ab" * 16, **options
        )

    return make


def test_an_answer_without_tools(runtime: Any) -> None:
    transport = ScriptedTransport(["Four lines."])
    one = runtime(transport)
    result = one.run(GIVEN, num_ctx=8192, num_predict=100, think=False, options={"temperature": 0})
    assert (result.text, result.done_reason, result.note) == ("Four lines.", "stop", "")
    assert result.new_messages == [{"role": "assistant", "content": "Four lines."}]
    assert not result.stopped
    (sent,) = transport.sent
    assert sent.messages == GIVEN and sent.tool_names == ["numbered", "failing"]
    assert sent.options == {"num_ctx": 8192, "num_predict": 100, "think": False, "options": {"temperature": 0}}


def test_what_was_received_is_kept_exactly(runtime: Any) -> None:
    given = copy.deepcopy(GIVEN)
    given.insert(
        1, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "x", "arguments": {"a": [1]}}}]}
    )
    before = copy.deepcopy(given)
    transport = ScriptedTransport([calls(("numbered", {})), "Done."])
    one = runtime(transport)
    one.run(given)
    assert given == before
    given[1]["tool_calls"][0]["function"]["arguments"]["a"].append(2)
    assert one.received == before == transport.sent[0].messages


def test_calls_and_results_go_back_in_order(runtime: Any) -> None:
    asked = calls(("numbered", {"count": 2}), ("failing", {}), ("numbered", {"count": 3}), text="Let me see.")
    transport = ScriptedTransport([asked, "Five."])
    events: list[Any] = []
    one = runtime(transport)
    result = one.run(GIVEN, on_event=events.append)
    first, second = transport.sent
    assert second.messages[: len(GIVEN)] == first.messages
    own = second.messages[len(GIVEN) :]
    assert own[0] == {"role": "assistant", "content": "Let me see.", "tool_calls": asked.tool_calls}
    assert [(m["tool_call_id"], m["tool_name"], m["content"]) for m in own[1:]] == [
        ("call_0", "numbered", "nn"),
        ("call_1", "failing", "Error: failing failed: ValueError: as it must"),
        ("call_2", "numbered", "nnn"),
    ]
    assert result.new_messages == [*own, {"role": "assistant", "content": "Five."}]
    assert is_complete([GIVEN[1], *result.new_messages])
    assert [e.name for e in events if isinstance(e, ToolStarted)] == ["numbered", "failing", "numbered"]
    assert [(e.ok, e.step) for e in events if isinstance(e, ToolFinished)] == [(True, 1), (False, 1), (True, 1)]
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "Let me see. Five. "
    assert [e.as_row()["tool"] for e in result.tool_events] == ["numbered", "failing", "numbered"]
    assert len(result.replies) == 2


def test_bad_calls_are_results_and_the_model_may_mend_them(runtime: Any) -> None:
    transport = ScriptedTransport(
        [calls(("nothing", {})), calls(("numbered", {"count": "many"})), calls(("numbered", "{broken")), "I give up."]
    )
    result = runtime(transport).run(GIVEN)
    assert result.text == "I give up."
    assert [m["content"][:30] for m in result.new_messages if m["role"] == "tool"] == [
        "Error: there is no tool 'nothi",
        "Error: the arguments of number",
        "Error: the arguments of number",
    ]


def test_calls_without_ids(runtime: Any) -> None:
    asked = reply(tool_calls=[{"function": {"name": "numbered", "arguments": {}}}])
    result = runtime(ScriptedTransport([asked, "Done."])).run(GIVEN)
    assert result.new_messages[1] == {"role": "tool", "content": "n", "tool_name": "numbered"}
    assert is_complete([GIVEN[1], *result.new_messages])


def test_thinking_stays_in_the_loop(runtime: Any) -> None:
    transport = ScriptedTransport([calls(("numbered", {}), thinking="I need it."), "Done."])
    runtime(transport).run(GIVEN)
    assert transport.sent[1].messages[2]["thinking"] == "I need it."


# Which tools are offered


@pytest.mark.parametrize(
    ("capabilities", "offered"),
    [({"completion", "tools"}, ["numbered", "failing"]), ({"completion"}, []), (None, [])],
)
def test_tools_are_offered_to_models_that_are_known_to_take_them(runtime: Any, capabilities: Any, offered: Any) -> None:
    facts = ModelFacts("m", trained_window=4096, capabilities=None if capabilities is None else frozenset(capabilities))
    transport = ScriptedTransport(["Hi."], facts=facts)
    one = runtime(transport)
    one.run(GIVEN)
    assert transport.sent[0].tool_names == offered
    assert one.tool_names == ("numbered", "failing")


def test_the_offer_may_be_named(runtime: Any) -> None:
    transport = ScriptedTransport(["Hi.", "Hi."])
    one = runtime(transport)
    one.run(GIVEN, tools=["failing"])
    one.run(GIVEN, tools=())
    assert [sent.tool_names for sent in transport.sent] == [["failing"], []]
    assert transport.facts_asked == 1
    with pytest.raises(InvalidInput, match="'other'"):
        one.run(GIVEN, tools=["other"])


def test_the_defaults_and_the_names_that_are_handed_on(tmp_path: Path) -> None:
    one = LocalToolRuntime(ScriptedTransport(), model="scripted", home=tmp_path)
    assert one.tool_names == ("read_file", "list_files", "search_text")
    assert one.received is None
    transport = ScriptedTransport()
    assert context_length("scripted", transport) == 8192
    assert _model_capabilities("scripted", transport) == FACTS.capabilities
    assert transport.facts_asked == 1
    with pytest.raises(InvalidInput, match="max_steps"):
        LocalToolRuntime(transport, model="m", home=tmp_path, max_steps=0)


# Ends


def test_the_limit_of_steps(runtime: Any) -> None:
    transport = ScriptedTransport([lambda sent, n=n: calls(("numbered", {"count": n})) for n in range(1, 20)])
    result = runtime(transport, max_steps=3).run(GIVEN)
    assert (result.done_reason, len(transport.sent)) == ("step_limit", 3)
    assert "3 model calls" in result.note and result.stopped
    assert [m["role"] for m in result.new_messages] == ["assistant", "tool"] * 3


def test_the_same_call_again_and_again_is_stopped(runtime: Any) -> None:
    transport = ScriptedTransport([calls(("numbered", {"count": 5}), ("failing", {}))], repeat=True)
    made: list[int] = []
    result = runtime(transport).run(
        GIVEN, on_event=lambda event: made.append(1) if isinstance(event, ToolStarted) else None
    )
    assert (result.done_reason, len(transport.sent)) == ("loop", 3)
    assert "same call of numbered 3 times" in result.note
    assert len(made) == 4
    own = result.new_messages
    assert [m["role"] for m in own] == ["assistant", "tool", "tool"] * 3
    assert all(m["content"].startswith("Not run: Stopped") for m in own[-2:])


def test_the_same_arguments_in_another_order_are_the_same_call(runtime: Any) -> None:
    def pair(a: int, b: int) -> int:
        """Adds."""
        return a + b

    orders = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 2}]
    result = runtime(ScriptedTransport([calls(("pair", o)) for o in orders]), tools=[make_tool(pair)]).run(GIVEN)
    assert result.done_reason == "loop"


def test_a_cancel_before_a_call(runtime: Any) -> None:
    cancel = threading.Event()
    cancel.set()
    transport = ScriptedTransport(["never"])
    result = runtime(transport).run(GIVEN, cancel=cancel)
    assert (result.done_reason, transport.sent) == ("cancelled", [])


def test_a_cancel_in_the_middle_of_an_answer_keeps_what_came(runtime: Any) -> None:
    cancel = threading.Event()
    transport = ScriptedTransport(["The sum is"])
    result = runtime(transport).run(GIVEN, cancel=cancel, on_event=lambda event: cancel.set())
    assert (result.text, result.done_reason, result.new_messages) == ("The sum is", "cancelled", [])


def test_a_cancel_between_two_tools_leaves_no_call_without_result(runtime: Any) -> None:
    cancel = threading.Event()

    def stopping() -> str:
        """Stops."""
        cancel.set()
        return "late"

    transport = ScriptedTransport([calls(("stopping", {}), ("numbered", {}), ("numbered", {}))])
    result = runtime(transport, tools=[make_tool(stopping), *TOOLS]).run(GIVEN, cancel=cancel)
    assert result.done_reason == "cancelled"
    assert [m["content"] for m in result.new_messages[2:]] == ["Not run: cancelled"] * 2
    assert is_complete([GIVEN[1], *result.new_messages, {"role": "assistant", "content": "x"}])


def test_an_interrupt_leaves_no_call_without_result(runtime: Any) -> None:
    def interrupt(event: Any) -> None:
        if isinstance(event, ToolStarted) and event.name == "failing":
            raise KeyboardInterrupt

    one = runtime(ScriptedTransport([calls(("numbered", {}), ("failing", {}), ("numbered", {}), text="Now:")]))
    with pytest.raises(KeyboardInterrupt):
        one.run(GIVEN, on_event=interrupt)
    assert [m["content"] for m in one.result.new_messages] == [
        "Now:",
        "n",
        "Not run: interrupted",
        "Not run: interrupted",
    ]
    assert one.result.text == "Now:" and one.result.done_reason == ""


@pytest.mark.parametrize("error", [StreamCut("cut", partial_text="The sum"), BadReply("bad", partial_text="The sum")])
def test_a_broken_reply_keeps_what_came(runtime: Any, error: Exception) -> None:
    one = runtime(ScriptedTransport([calls(("numbered", {})), error]))
    with pytest.raises(type(error)):
        one.run(GIVEN)
    assert one.result.text == "The sum"
    assert len(one.result.replies) == 1 and len(one.result.new_messages) == 2


def test_an_attempt_goes_on_where_the_last_one_broke_off(runtime: Any) -> None:
    transport = ScriptedTransport([calls(("numbered", {"count": 7})), ServerUnreachable("gone"), "Seven."])
    one = runtime(transport)
    with pytest.raises(ServerUnreachable):
        one.run(GIVEN, num_ctx=4096)
    first = one.result
    result = one.run(GIVEN, num_ctx=8192, resume=first)
    assert result.text == "Seven." and one.received == GIVEN
    assert [sent.options["num_ctx"] for sent in transport.sent] == [4096, 4096, 8192]
    assert transport.sent[2].messages == transport.sent[1].messages
    assert len(result.tool_events) == 1 and len(result.replies) == 2


# Room


def room(budget: int, used: int = 0) -> Any:
    estimator = get_estimator("chars4")

    def rule(given: Sequence[Message], own: Sequence[Message], keep: Any) -> Room:
        return fit(own, keep, used=used, budget=budget, window=8192, estimator=estimator)

    return rule


def test_results_make_way_from_the_oldest_on_and_stay_readable(tmp_path: Path, runtime: Any) -> None:
    script = [calls(("numbered", {"count": 4000 + n})) for n in range(5)]
    transport = ScriptedTransport([*script, "Done."])
    one = runtime(transport)
    result = one.run(GIVEN, room=room(2600))
    last = transport.sent[-1].messages[len(GIVEN) :]
    results = [m["content"] for m in last if m["role"] == "tool"]
    assert all(text.startswith("[The result of numbered (1000 tokens) made way") for text in results[:3])
    assert [len(text) for text in results[3:]] == [4003, 4004]
    assert [d.tool for d in result.dropped] == ["numbered"] * 3 and [d.tokens for d in result.dropped] == [1000] * 3
    for number, dropped in enumerate(result.dropped):
        assert dropped.kept in results[number]
        path = one._executor.context.results.find(dropped.kept)
        assert path is not None and len(path.read_text()) == 4000 + number
    assert [len(m["content"]) for m in result.new_messages if m["role"] == "tool"] == [4000, 4001, 4002, 4003, 4004]
    assert one.received == GIVEN


def test_a_result_kept_when_it_came_is_not_kept_twice(tmp_path: Path, runtime: Any) -> None:
    script = [calls(("numbered", {"count": 20_000 + n})) for n in range(3)]
    one = runtime(ScriptedTransport([*script, "Done."]))
    result = one.run(GIVEN, room=room(4500))
    assert [d.kept for d in result.dropped] == [result.tool_events[0].kept]
    assert len(list((tmp_path / "home" / "state" / "tool_results").iterdir())) == 3


def test_the_newest_result_never_makes_way(runtime: Any) -> None:
    transport = ScriptedTransport([calls(("numbered", {"count": 800})), calls(("numbered", {"count": 7000}))])
    one = runtime(transport)
    with pytest.raises(ContextOverflowError) as caught:
        one.run(GIVEN, room=room(1700, used=50))
    error = caught.value
    assert (error.origin, error.block, error.block_tokens, error.budget) == ("tool_loop", "numbered", 1750, 1700)
    assert "fewer lines" in str(error)
    assert len(transport.sent) == 2 and len(one.result.tool_events) == 2


def test_thinking_makes_way_before_results() -> None:
    own: list[Message] = [
        {"role": "assistant", "content": "", "thinking": "t" * 4000, "tool_calls": []},
        {"role": "tool", "content": "r" * 2000, "tool_name": "a"},
        {"role": "assistant", "content": "", "thinking": "t" * 400},
        {"role": "tool", "content": "r" * 2000, "tool_name": "b"},
    ]
    before = copy.deepcopy(own)
    kept: list[Message] = []
    estimator = get_estimator("chars4")

    def keep(message: Message) -> str:
        kept.append(message)
        return ""

    fitted = fit(own, keep, used=10, budget=1200, window=8192, estimator=estimator)
    assert [d.tool for d in fitted.dropped] == ["thinking"] and not kept
    assert "thinking" not in fitted.messages[0] and "thinking" in fitted.messages[2]
    fitted = fit(own, keep, used=10, budget=1000, window=8192, estimator=estimator)
    assert [d.tool for d in fitted.dropped] == ["thinking", "a"] and kept == [own[1]]
    assert "could not be kept" in fitted.messages[1]["content"]
    assert own == before
    assert fit(own, keep, used=10, budget=9999, window=8192, estimator=estimator) == Room(own)


def test_short_results_do_not_grow_into_lines() -> None:
    own: list[Message] = [{"role": "tool", "content": "short", "tool_name": "a"}] * 3
    with pytest.raises(ContextOverflowError):
        fit(own, lambda m: pytest.fail("kept"), used=100, budget=101, window=8192, estimator=get_estimator("chars4"))


def test_the_room_may_change_what_is_asked_for(runtime: Any) -> None:
    transport = ScriptedTransport([calls(("numbered", {})), calls(("numbered", {"count": 2})), "Done."])

    def rule(given: Sequence[Message], own: Sequence[Message], keep: Any) -> Room:
        assert list(given) == GIVEN
        return Room(list(own), num_ctx=16384 if len(own) > 2 else None, num_predict=len(own))

    runtime(transport).run(GIVEN, num_ctx=8192, num_predict=99, room=rule)
    assert [(s.options["num_ctx"], s.options["num_predict"]) for s in transport.sent] == [
        (8192, 99),
        (8192, 2),
        (16384, 4),
    ]


# The task, and the scripted model itself


def test_a_task() -> None:
    task = TaskState.of("Do it.", "api")
    assert (task.task, task.channel, len(task.task_id), task.images) == ("Do it.", "api", 32, ())
    assert TaskState.of(task, "cli") is task
    assert TaskState.of("Do it.").task_id != task.task_id
    for bad in ("", " \n", None, 3):
        with pytest.raises(InvalidInput):
            TaskState.of(bad)
    with pytest.raises(InvalidInput, match="images"):
        TaskState("x", images="abc")


def test_the_scripted_model_is_a_transport() -> None:
    transport = ScriptedTransport(["a"])
    assert isinstance(transport, Transport)
    assert transport.models() == [ModelListing("scripted", chat=True)]
    answer = transport.chat(GIVEN, model="m")
    assert (transport.usage_calls, transport.usage_prompt_tokens) == (1, answer.prompt_tokens)
