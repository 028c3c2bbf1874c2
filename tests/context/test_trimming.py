"""``trim_messages``: whole turns, whole pairs, the same objects, and an error rather than a cut."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rune import trim_messages
from rune.context.turns import message_tokens
from rune.errors import ContextOverflowError, InvalidInput
from rune.kernels import get_estimator
from rune.messages import incomplete_reason, normalise, split_turns


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


SYSTEM = {"role": "system", "content": "s" * 40}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"n": 1}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "r" * 40}


def turn(number: int) -> list[dict[str, Any]]:
    return [user(f"question {number} " + "q" * 29), CALL, RESULT, assistant("a" * 40)]


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    text = st.text(max_size=60)
    messages: list[dict[str, Any]] = []
    for number in range(draw(st.integers(0, 7))):
        kind = draw(st.sampled_from(["plain", "tool", "orphan call", "orphan result", "system", "two users", "images"]))
        calls = [{"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": {"t": draw(text)}}}]
        call = {"role": "assistant", "content": draw(text), "tool_calls": calls}
        result = {"role": "tool", "tool_call_id": f"c{number}", "content": draw(text)}
        turns: dict[str, list[dict[str, Any]]] = {
            "plain": [user(draw(text)), assistant(draw(text))],
            "tool": [user(draw(text)), call, result, assistant(draw(text))],
            "orphan call": [user(draw(text)), call],
            "orphan result": [user(draw(text)), result, assistant(draw(text))],
            "system": [{"role": "system", "content": draw(text)}],
            "two users": [user(draw(text)), user(draw(text)), assistant(draw(text))],
            "images": [{**user(draw(text)), "images": ["aGk="]}, assistant(draw(text))],
        }
        messages += turns[kind]
    return [*messages, user(draw(text))]


@given(histories(), st.integers(0, 2000), st.booleans(), st.sampled_from(["chars4", "script"]))
def test_what_holds_of_every_history_and_budget(
    messages: list[dict[str, Any]], budget: int, include_system: bool, counter: str
) -> None:
    before = copy.deepcopy(messages)
    estimator = get_estimator(counter)
    must = [m for m in messages if m["role"] == "system" and include_system]
    rest = normalise([m for m in messages if m["role"] != "system"])
    newest = split_turns(rest)[-1]
    needed = message_tokens([*normalise(must), *newest], estimator)
    options: dict[str, Any] = {"max_tokens": budget, "token_counter": counter, "include_system": include_system}
    if needed > budget:
        with pytest.raises(ContextOverflowError) as error:
            trim_messages(messages, **options)
        assert error.value.budget == budget and messages == before
        return
    kept = trim_messages(messages, **options)
    assert messages == before
    ids = [id(m) for m in messages]
    positions = [ids.index(id(m)) for m in kept]
    assert positions == sorted(positions), "the same objects in the same order"
    assert message_tokens(normalise(kept), estimator) <= budget
    assert [m for m in kept if m["role"] == "system"] == must
    assert kept[-1] is messages[-1]
    turns = split_turns(normalise([m for m in kept if m["role"] != "system"]))
    assert all(one[0]["role"] == "user" for one in turns)
    for one in turns[:-1]:
        assert not (incomplete_reason(one) or "").startswith("tool ")
    offered = [t for t in split_turns(rest)[:-1] if not (incomplete_reason(t) or "").startswith(("tool ", "no user"))]
    left_out = offered[: len(offered) - (len(turns) - 1)]
    if left_out:
        assert message_tokens([*normalise(kept), *left_out[-1]], estimator) > budget, "one more turn would have fitted"


def test_turns_pairs_and_system_stay_whole() -> None:
    messages = [assistant("Hello!"), SYSTEM, *turn(1), *turn(2), *turn(3), user("now")]
    sizes = [message_tokens(normalise(turn(n)), get_estimator("chars4")) for n in (1, 2, 3)]
    kept = trim_messages(messages, max_tokens=10 + sizes[1] + sizes[2] + 1)
    assert kept == [SYSTEM, *turn(3), user("now")] or kept == [SYSTEM, *turn(2), *turn(3), user("now")]
    assert trim_messages(messages, max_tokens=10_000) == messages[1:]
    assert trim_messages(messages, max_tokens=10_000, start_on=None) == messages
    assert trim_messages(messages, max_tokens=10_000, include_system=False) == [
        m for m in messages[1:] if m is not SYSTEM
    ]
    assert trim_messages([], max_tokens=5) == []


def test_what_must_stay_and_does_not_fit_is_an_error() -> None:
    with pytest.raises(ContextOverflowError, match="system messages") as system:
        trim_messages([SYSTEM, user("hi")], max_tokens=9)
    assert system.value.blocks == [{"name": "session_system", "tokens": 10}]
    with pytest.raises(ContextOverflowError, match="newest turn") as newest:
        trim_messages([SYSTEM, *turn(1), user("x" * 400)], max_tokens=100)
    assert newest.value.block == "user" and newest.value.block_tokens == 110


class Counts:
    def count_tokens(self, text: str) -> int:
        return len(text)


@pytest.mark.parametrize(
    ("counter", "expected"),
    [
        (len, 2),  # of a text
        (lambda message: len(message["content"]) if isinstance(message, dict) else 1 / 0, 2),
        (lambda messages: sum(len(m["content"]) for m in messages) if isinstance(messages, list) else 1 / 0, 2),
        (Counts(), 2),
    ],
)
def test_counters_of_others(counter: Any, expected: int) -> None:
    messages = [user("a" * 10), assistant("b" * 10), user("c" * 10), assistant("d" * 10)]
    assert len(trim_messages(messages, max_tokens=39, token_counter=counter)) == expected
    assert len(trim_messages(messages, max_tokens=40, token_counter=counter)) == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 5, "strategy": "first"}, "strategy"),
        ({"max_tokens": 5, "start_on": "tool"}, "start_on"),
        ({"max_tokens": 5, "allow_partial": True}, "allow_partial"),
        ({"max_tokens": 5, "token_counter": "bytes"}, "estimator"),
        ({"max_tokens": 5, "token_counter": 3}, "token_counter"),
        ({"max_tokens": 5, "token_counter": lambda _: "many"}, "token_counter"),
    ],
)
def test_wrong_arguments_are_told(options: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        trim_messages([user("hi")], **options)


def test_what_is_no_message_is_told_by_its_position() -> None:
    for wrong in ("hi", {"content": "hi"}, {"role": "user", "content": 5}):
        with pytest.raises(InvalidInput, match="message 1"):
            trim_messages([user("hi"), wrong], max_tokens=100)  # type: ignore[list-item]
