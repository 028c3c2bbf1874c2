"""The wire forms: what servers accept, and texts that UTF-8 cannot hold."""

from __future__ import annotations

import hashlib
import json
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rune.errors import InvalidInput
from rune.messages import normalise
from rune.transports.wire import (
    json_body,
    ollama_messages,
    openai_messages,
    utf8_size,
    wire_digest,
    wire_text,
    wire_value,
    word_count,
)

any_text = st.text(st.characters(exclude_categories=()), max_size=30)


@given(any_text)
def test_every_text_becomes_valid_utf8(text: str) -> None:
    sent = wire_text(text)
    assert sent.encode("utf-8").decode("utf-8") == sent
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert sent == text


def test_lone_surrogates_become_replacement_characters_and_pairs_their_character() -> None:
    assert wire_text("list \udcb2ber.txt") == "list \ufffdber.txt"
    assert wire_text("ok \ud83d") == "ok \ufffd"
    assert wire_text("\ud83d\ude00") == "😀"
    assert wire_text("\ude00\ud83d") == "\ufffd\ufffd"


@given(
    st.dictionaries(any_text, st.lists(any_text | st.booleans() | st.none() | st.integers(), max_size=3), max_size=3)
)
def test_values_are_cleaned_to_the_last_key(value: dict[str, list[object]]) -> None:
    before = deepcopy(value)
    body = json_body(wire_value(value))
    assert json.loads(body.decode("utf-8")) is not None
    assert value == before


CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"n": 1}'}}
HISTORY = normalise(
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "look \ud83d", "images": ["iVBORw0KGgo="], "name": "ann"},
        {"role": "assistant", "content": None, "thinking": "hm", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": None},
        {"role": "assistant", "content": None},
    ]
)


def test_ollama_form() -> None:
    before = deepcopy(HISTORY)
    assert ollama_messages(HISTORY) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "look \ufffd", "images": ["iVBORw0KGgo="]},
        {
            "role": "assistant",
            "content": "",
            "thinking": "hm",
            "tool_calls": [{"id": "call_1", "function": {"name": "read", "arguments": {"n": 1}}}],
        },
        {"role": "tool", "content": "", "tool_name": "read", "tool_call_id": "call_1"},
        {"role": "assistant", "content": ""},
    ]
    assert HISTORY == before


def test_openai_form() -> None:
    before = deepcopy(HISTORY)
    sent = openai_messages(HISTORY)
    assert sent[1]["content"] == [
        {"type": "text", "text": "look \ufffd"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
    ]
    assert sent[1]["name"] == "ann"
    assert sent[2]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"n":1}'}}
    ]
    assert sent[2]["content"] == "" and sent[4]["content"] == ""
    assert sent[3] == {"role": "tool", "content": "", "tool_call_id": "call_1"}
    assert HISTORY == before


def test_arguments_that_are_no_object_do_not_get_a_conversation_refused_for_good() -> None:
    call = {"function": {"name": "f", "arguments": "not json"}}
    (message,) = normalise([{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert ollama_messages([message])[0]["tool_calls"][0]["function"]["arguments"] == {"arguments": "not json"}
    assert openai_messages([message])[0]["tool_calls"][0]["function"]["arguments"] == "not json"


def test_results_without_ids_find_their_calls_in_order() -> None:
    calls = [{"function": {"name": n, "arguments": {}}} for n in ("a", "b")]
    history = normalise(
        [
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_name": "a", "content": "1"},
            {"role": "tool", "tool_name": "b", "content": "2"},
        ]
    )
    sent = openai_messages(history)
    ids = [call["id"] for call in sent[0]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [m["tool_call_id"] for m in sent[1:]] == ids


def test_digest_is_the_sha256_of_the_compact_json_that_was_sent() -> None:
    sent = ollama_messages(HISTORY)
    text = json.dumps(sent, ensure_ascii=False, separators=(",", ":"))
    assert wire_digest(sent) == hashlib.sha256(text.encode()).hexdigest()


def test_sizes() -> None:
    messages = [{"role": "user", "content": "a €\tb\n c", "images": ["A" * 1000]}]
    assert utf8_size(messages) == len("a €\tb\n c".encode())
    tool = {"type": "function", "function": {"name": "f"}}
    assert utf8_size(messages, [tool]) == utf8_size(messages) + len(json.dumps(tool, indent=4))
    assert word_count(messages) == 4


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object()])
def test_values_that_json_does_not_have_are_one_clear_error(value: object) -> None:
    with pytest.raises(InvalidInput, match="a value that JSON does not have"):
        json_body(wire_value({"temperature": value}))
