"""The turns of a conversation in both kernels: what is kept, measured and hashed, and the records of an index."""

from __future__ import annotations

import hashlib
import json
from collections import UserDict
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rune.messages
from kernel_strategies import Shouting, outcome, texts
from rune.context.session_index import other_record, turn_record
from rune.context.turns import message_tokens
from rune.errors import InvalidInput
from rune.kernels import get_estimator, native, pure
from rune.kernels.turn_records import FAULTS

CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"n": [1, {"m": 2.50}]}'}}
ASKED = {"role": "user", "content": "What is in it?"}
TURN = [
    ASKED,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "name": "read", "content": "nothing"},
    {"role": "assistant", "content": "Nothing."},
]


def turns(kernels: ModuleType, estimator: Any = "chars4") -> Any:
    return kernels.Turns(estimator, rune.messages)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def everything(found: Any) -> list[Any]:
    """All that can be read of it."""
    many = len(found)
    return [
        many,
        [found.messages(i) for i in range(many)],
        [(found.reason(i), found.tokens(i), found.digest(i), found.chain(i), found.span(i)) for i in range(many)],
        [found.prefix(i) for i in range(many + 1)],
        [found.window(i) for i in range(many + 1)],
        [found.newest_fitting(budget) for budget in (-1, 0, 1, 5, 50, found.total(), found.total() + 1)],
        [(found.count(kind), found.numbers(0, kind), found.numbers(1, kind)) for kind in (True, False)],
    ]


def test_a_turn_is_measured_hashed_and_chained_by_the_rules_of_messages(kernels: ModuleType) -> None:
    found = turns(kernels)
    assert found.append([{"role": "system", "content": "Be brief."}, *TURN, ASKED, TURN[3]]) == (0, ["Be brief."])
    normal = rune.messages.normalise(TURN)
    assert found.messages(0) == tuple(normal)
    assert found.tokens(0) == message_tokens(normal, get_estimator("chars4")) > 0
    own = [sha256(rune.messages.canonical_json(found.messages(i))) for i in (0, 1)]
    assert [found.digest(0), found.digest(1)] == own
    assert [found.chain(0), found.chain(1)] == [sha256(own[0]), sha256(sha256(own[0]) + own[1])]
    assert (len(found), found.count(), found.total()) == (2, 2, found.tokens(0) + found.tokens(1))


def test_what_is_kept_shares_nothing_with_what_was_given_nor_with_what_is_handed_out(kernels: ModuleType) -> None:
    arguments = {"n": [1]}
    call = {"id": "1", "function": {"name": "f", "arguments": arguments}, "more": {"a": []}}
    given_images = ["QUJD"]
    asked = {"role": "user", "content": "x", "images": given_images}
    found = turns(kernels)
    found.append([asked, {"role": "assistant", "content": "", "tool_calls": [call]}, *TURN[2:]])
    before = found.messages(0)
    arguments["n"].append(2)
    call["more"]["a"].append(3)
    given_images.append("x")
    assert found.messages(0) == before
    handed = found.window(0)
    assert handed is not None
    found.messages(0)[1]["tool_calls"][0]["function"]["arguments"]["n"].append(4)
    found.messages(0)[0]["images"].clear()
    assert found.messages(0) == before


def test_incomplete_turns_are_kept_measure_nothing_and_are_in_no_window(kernels: ModuleType) -> None:
    found = turns(kernels)
    found.append([ASKED, TURN[1]])
    found.append([{"role": "assistant", "content": "hello"}])
    found.append([ASKED, TURN[1], {**TURN[2], "tool_call_id": "other"}, TURN[3]])
    found.append([ASKED, {"role": "assistant", "content": " \n\u3000\x1f"}])
    found.append([ASKED, TURN[3]])
    assert [found.reason(i) for i in range(5)] == ["tool call without result", *FAULTS[0:1], FAULTS[2], FAULTS[3], ""]
    assert [found.tokens(i) for i in range(4)] == [0] * 4
    assert found.window(0) == list(found.messages(4))
    assert (found.numbers(0), found.numbers(1, False), found.count(False)) == ([4], [1, 2, 3], 4)


def test_a_message_that_cannot_be_used_adds_nothing(kernels: ModuleType) -> None:
    found = turns(kernels)
    for odd in ({"role": "nobody", "content": "x"}, {"role": "user", "content": 5}, "text", None):
        with pytest.raises(InvalidInput, match="^message 2 "):
            found.append([ASKED, TURN[3], odd])
    loop: list[Any] = []
    loop.append(loop)
    for value in ({1, 2}, loop):
        call = {"function": {"name": "f", "arguments": {"n": value}}}
        with pytest.raises(InvalidInput, match="^message 1 has a tool call that JSON has no words for"):
            found.append([ASKED, {"role": "assistant", "tool_calls": [call]}])
    with pytest.raises(InvalidInput, match="messages must be a list"):
        found.append("hello")
    assert len(found) == 0


def test_an_adopted_turn_keeps_the_chain_that_was_written(kernels: ModuleType) -> None:
    found, again, other = turns(kernels), turns(kernels), turns(kernels)
    found.append([*TURN, *TURN])
    assert again.adopt(TURN) and again.adopt(TURN, found.chain(1))
    assert everything(again) == everything(found)
    assert not other.adopt(TURN, "0" * 64)
    assert other.chain(0) == "0" * 64
    assert not other.adopt(TURN, "torn")
    assert other.chain(1) == sha256("0" * 64 + other.digest(1))


def test_records_bring_turns_back_and_their_messages_come_later(kernels: ModuleType) -> None:
    found, again = turns(kernels), turns(kernels)
    found.append([*TURN, ASKED, TURN[1], *TURN])
    of = [(found.tokens(i), found.digest(i), found.chain(i), found.reason(i)) for i in range(len(found))]
    spans = [(i * 100, i * 100 + 99) for i in range(len(of))]
    records = [turn_record(span, *facts) for span, facts in zip(spans, of, strict=True)]
    assert again.restore(b"".join([records[0], other_record((7, 9)), *records[1:]])) == [(7, 9)]
    assert [again.span(i) for i in range(len(of))] == spans
    assert again.window(0) is None and again.messages(0) is None and again.window(len(of)) == []
    assert not again.fill(0, TURN[:1])
    for i in range(len(of)):
        assert again.fill(i, found.messages(i))
    assert everything(again) == everything(found)


@pytest.mark.parametrize("at", [0, 8, 16, 24, 60, 88, 90, 93])
def test_a_damaged_record_is_refused_and_adds_nothing(kernels: ModuleType, at: int) -> None:
    record = bytearray(turn_record((0, 5), 3, "0" * 64, "1" * 64, ""))
    record[at] ^= 1
    found = turns(kernels)
    for data in (bytes(record), turn_record((0, 5), 3, "0" * 64, "1" * 64, "")[:-1]):
        with pytest.raises(InvalidInput, match="damaged"):
            found.restore(data)
    assert len(found) == 0


def test_odd_arguments(kernels: ModuleType) -> None:
    found = turns(kernels)
    found.append(TURN)
    for call in (found.messages, found.span, found.reason, found.tokens, found.digest, found.chain):
        with pytest.raises(InvalidInput, match="^there is no entry 1: the ledger has 1$"):
            call(1)
        with pytest.raises(InvalidInput, match="^index must be an integer, not str$"):
            call("0")
    with pytest.raises(InvalidInput, match="^budget must be an integer"):
        found.newest_fitting(1.5)
    with pytest.raises(InvalidInput):
        kernels.Turns("words", rune.messages)


def test_an_estimator_of_ones_own(kernels: ModuleType) -> None:
    class Words:
        key = "words/1"

        def many(self, texts: list[str]) -> list[int]:
            return [len(text.split()) for text in texts]

    found = turns(kernels, Words())
    found.append([{**ASKED, "images": ["QQ=="]}, TURN[3]])
    assert (found.key, found.tokens(0)) == ("words/1", 4 + 1 + rune.messages.IMAGE_TOKENS)


# Both against each other, on messages of every shape that comes along

json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)
odd = st.one_of(st.none(), st.integers(), st.just(Shouting("loud")), st.just({1, 2}), st.just({1: 2}), st.just(()))
ids = st.one_of(st.sampled_from(["a", "b", "", "é"]), st.none(), st.integers(0, 2))


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


json_texts = st.one_of(
    st.builds(
        json.dumps,
        st.dictionaries(texts, json_values, max_size=3),
        ensure_ascii=st.booleans(),
        indent=st.sampled_from([None, 1]),
    ),
    st.sampled_from(
        [
            '{"b":1,"a":[],"b":-0}',
            "{",
            "",
            '{"a":01}',
            '{"a":1.5e3}',
            '{"a":1}x',
            ' {"a" : [ ] } ',
            "[1]",
            '{"a":"\\/\\u00e9\t"}',
            '{"a":-}',
            '{"a":true,}',
            '{"a":nul}',
            '{"a":NaN}',
            '\ufeff{"a":1}',
            "{" * 5000,
            '{"a":' * 40 + "1" + "}" * 40,
        ]
    ),
    st.text(alphabet='{}[]":,\\ 0-1ae.tn', max_size=12).map(lambda text: "{" + text),
)
arguments = st.one_of(json_values, st.dictionaries(texts, json_values, max_size=3), odd, json_texts, json_texts)
functions = some(name=st.one_of(texts, texts, texts, odd), arguments=arguments, strict=json_values)
calls = some(
    id=ids, type=st.just("function"), function=st.one_of(functions, functions, functions, odd), extra=json_values
)
messages = st.fixed_dictionaries(
    {
        "role": st.one_of(
            st.sampled_from(["user", "assistant", "tool", "user", "assistant", "system", "developer", "function"]), odd
        )
    },
    optional={
        "content": st.one_of(texts, texts, texts, st.none(), st.just([{"type": "text", "text": "t"}]), odd),
        "tool_calls": st.one_of(st.lists(calls, max_size=2), odd),
        "tool_call_id": ids,
        "tool_name": st.one_of(texts, odd),
        "name": st.one_of(texts, odd),
        "thinking": texts,
        "images": st.one_of(st.lists(texts, max_size=2), odd),
        "function_call": st.one_of(functions, odd),
        "other": json_values,
    },
)
usual = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": texts}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": texts, "tool_call_id": ids, "name": texts}),
    st.fixed_dictionaries(
        {
            "role": st.just("assistant"),
            "content": texts,
            "tool_calls": st.lists(
                st.fixed_dictionaries(
                    {"id": ids, "function": st.fixed_dictionaries({"name": texts, "arguments": arguments})}
                ),
                max_size=2,
            ),
        }
    ),
)
batches = st.lists(st.one_of(usual, usual, usual, messages, messages.map(UserDict), odd), max_size=8)


@pytest.mark.usefixtures("native_kernels")
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(batches, max_size=3), st.sampled_from(["chars4", "script"]), st.sampled_from([list, tuple, iter]))
def test_both_kernels_agree(given_batches: list[Any], name: str, kind: Any) -> None:
    found, other = turns(native, name), turns(pure, name)
    for batch in given_batches:
        assert outcome(lambda batch=batch: found.append(kind(batch))) == outcome(
            lambda batch=batch: other.append(kind(batch))
        )
        assert outcome(lambda batch=batch: found.adopt(kind(batch))) == outcome(
            lambda batch=batch: other.adopt(kind(batch))
        )
    assert repr(everything(found)) == repr(everything(other))  # repr: NaN is equal to itself there, and -0.0 is not 0.0
