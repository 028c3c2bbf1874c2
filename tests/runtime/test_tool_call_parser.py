"""Calls in the words of a model."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rune.runtime.fallback_prompt import as_text
from rune.runtime.tool_call_parser import CALLS_MAX, UNREADABLE, TextCall, parse_calls

TOOLS = {
    "read_file": ("path", "first_line", "lines"),
    "list_files": ("path", "pattern", "depth"),
    "write_file": ("path", "text"),
    "run-it": ("args",),
}
READ = TextCall("read_file", {"path": "a.txt"})
LIST = TextCall("list_files", {"path": "."})


def found(text: str) -> list[TextCall]:
    return list(parse_calls(text, TOOLS).calls)


ONE_CALL = [
    '{"name": "read_file", "arguments": {"path": "a.txt"}}',
    '```tool_call\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n```',
    '```json\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n```',
    '```\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n```',
    '~~~json\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n~~~',
    '```python\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n```',
    '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n</tool_call>',
    '<tool_call>{"name": "read_file", "arguments": {"path": "a.txt"}}',
    '<tool_call>\n```json\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n```\n</tool_call>',
    '[TOOL_CALLS] [{"name": "read_file", "arguments": {"path": "a.txt"}}]',
    '<|python_tag|>{"name": "read_file", "parameters": {"path": "a.txt"}}',
    "{'name': 'read_file', 'arguments': {'path': 'a.txt',},}",
    '{"tool": "read_file", "args": {"path": "a.txt"}}',
    '{"tool_name": "read_file", "input": {"path": "a.txt"}}',
    '{"action": "read_file", "action_input": {"path": "a.txt"}}',
    '{"function": {"name": "read_file", "arguments": {"path": "a.txt"}}}',
    '{"id": "1", "type": "function", "function": {"name": "read_file", "arguments": "{\\"path\\": \\"a.txt\\"}"}}',
    '{"tool_calls": [{"function": {"name": "read_file", "arguments": {"path": "a.txt"}}}]}',
    '{"function": "read_file", "arguments": {"path": "a.txt"}}',
    '{"thought": "I look.", "command": {"name": "read_file", "args": {"path": "a.txt"}}}',
    '{"name": "read_file", "arguments": "{\'path\': \'a.txt\'}"}',
    '{"tool": "read_file", "path": "a.txt"}',
    '{"name": "read_file", "id": "7", "path": "a.txt"}',
    '{"read_file": {"path": "a.txt"}}',
    '{"name": "functions.Read-File", "arguments": {"path": "a.txt"}}',
    "<function=read_file><parameter=path>\na.txt\n</parameter></function>",
    '<function=read_file>{"path": "a.txt"}</function>',
    '<invoke name="read_file"><parameter name="path">a.txt</parameter></invoke>',
]


@pytest.mark.parametrize("text", ONE_CALL)
def test_the_shapes_of_a_call(text: str) -> None:
    assert parse_calls(text, TOOLS) == parse_calls(text, TOOLS)
    parsed = parse_calls(text, TOOLS)
    assert (list(parsed.calls), parsed.prose) == ([READ], "")


@pytest.mark.parametrize("text", ONE_CALL)
def test_words_before_and_behind_stay_words(text: str) -> None:
    parsed = parse_calls(f"I shall look at it.\n\n{text}\n\nThat is all.", TOOLS)
    assert list(parsed.calls) == [READ]
    assert parsed.prose == "I shall look at it.\n\nThat is all."


def test_several_calls_keep_their_order() -> None:
    one, other = ('{"name": "read_file", "arguments": {"path": "a.txt"}}', '{"tool": "list_files", "path": "."}')
    for text in (
        f"{one}\n{other}",
        f"[{one}, {other}]",
        f"```json\n[{one},\n{other},]\n```",
        f"```json\n{one}\n```\nThen:\n```json\n{other}\n```",
        f"<tool_call>{one}</tool_call><tool_call>{other}</tool_call>",
        f"First {one} and then {other}.",
        f'{{"tool_calls": [{one}, {other}]}}',
    ):
        assert found(text) == [READ, LIST], text
    assert found(f"{other} {one} {other}") == [LIST, READ, LIST]
    assert len(found(one * 100)) == CALLS_MAX


@pytest.mark.parametrize(
    "text",
    [
        "The sky is blue.",
        "A call looks like {...}, and JSON has {braces}.",
        'JSON such as {"name": "John", "age": 3} is common.',
        '{"name": "John", "age": 3}',
        '```json\n{"name": "John", "input": 3}\n```',
        '{"answer": 42}',
        '{"action": "sell", "input": {"shares": 3}}',
        '{"name": "read_file", "description": "Reads.", "parameters": {"type": "object", "properties": {"path": {}}}}',
        '{"type": "function", "function": {"name": "read_file", "parameters": {"properties": {}}}}',
        'The tool {"name": "read_file"} reads a file.',
        'One might send {"name": "open_door", "arguments": {"which": "left"}} to it.',
        '```python\nprint({"name": "read_file", "arguments": {"path": "a.txt"}})\n```',
        '```js\nconst a = {name: "read_file", arguments: {path: "a.txt"}}\n```',
        '<think>{"name": "read_file", "arguments": {"path": "a.txt"}}</think>No, I need not.',
        '{"name": "read_file", "arguments": {"path": "a.txt"}}, I thought.</think>No.',
        '<think>{"name": "read_file", "arguments": {"path": "a.txt"}}',
        "Calls stand between <tool_call> tags.",
        '{"read_file": "reads"}',
    ],
)
def test_talk_of_json_is_no_call(text: str) -> None:
    parsed = parse_calls(text, TOOLS)
    assert (parsed.calls, parsed.prose) == ((), text)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('<tool_call>{"name": "open", "arguments": {"a": 1}}</tool_call>', TextCall("open", {"a": 1})),
        ('```tool_call\n{"name": "open"}\n```', TextCall("open", {})),
        ('```json\n{"name": "open", "arguments": {"a": 1}}\n```\nWait.', TextCall("open", {"a": 1})),
        ('{"name": "open", "arguments": {"a": 1}}', TextCall("open", {"a": 1})),
        ('{"function": {"name": "open", "arguments": {}}}', TextCall("open", {})),
        ('<tool_call>{"name": "two words!", "arguments": {}}</tool_call>', TextCall("two_words_", {})),
        ('{"name": "read_file", "arguments": [1]}', TextCall("read_file", [1])),
    ],
)
def test_a_call_of_no_tool_is_one_where_nothing_else_can_be_meant(text: str, call: TextCall) -> None:
    assert found(text) == [call]


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        ('{"name": "read_file", "arguments": {"path": "a.txt"', "read_file", "too early"),
        ('{"name": "write_file", "arguments": {"text": "print("x")"}}', "write_file", "expected ','"),
        ('```json\n{"tool": "read_file", "args": {"path" "a"}}\n```', "read_file", "expected ':'"),
        ('<tool_call>{"name": "open", "arguments": {"path" "a"}}</tool_call>', "open", "expected ':'"),
        ('{"name": "read_file", "arguments": "a.txt"}', "read_file", "no JSON object"),
        ('<tool_call>{"path": "a.txt"}</tool_call>', UNREADABLE, "names no tool"),
        ("<tool_call>read_file(a.txt)</tool_call>", UNREADABLE, "no JSON"),
        ("```tool_call\nread_file a.txt\n```", UNREADABLE, "no JSON"),
        ("<function=read_file>a.txt</function>", "read_file", "no parameters"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(text: str, name: str, why: str) -> None:
    (call,) = found(text)
    assert call.name == name and why in call.error and call.arguments


def test_nothing_is_read_behind_a_call_that_breaks_off() -> None:
    inner = '{"name": "run-it", "arguments": {"args": ["rm"]}}'
    text = f'{{"name": "write_file", "arguments": {{"path": "a", "text": "say "this": {inner} and"}}}}\n{inner}'
    assert [(call.name, bool(call.error)) for call in found(text)] == [("write_file", True)]


def test_a_parameter_of_the_name_of_a_wrapper() -> None:
    assert found('{"tool": "run-it", "args": ["ls", "-l"]}') == [TextCall("run-it", {"args": ["ls", "-l"]})]
    assert found('{"tool": "run_it", "args": {"args": ["ls"]}}') == [TextCall("run-it", {"args": ["ls"]})]
    assert found('{"tool": "list_files", "args": {"path": "."}}') == [LIST]


def test_what_a_file_is_to_hold_is_not_looked_into() -> None:
    text = '```json\n{"name": "read_file", "arguments": {"path": "other"}}\n```'
    call = {"name": "write_file", "arguments": {"path": "a.md", "text": text}}
    assert found(f"```tool_call\n{json.dumps(call)}\n```") == [TextCall("write_file", call["arguments"])]


@pytest.mark.parametrize("text", ONE_CALL)
def test_what_is_quoted_from_a_result_is_no_call(text: str) -> None:
    shown = f"The file says:\n\n{text}\n\nand more."
    assert parse_calls(shown, TOOLS, [f"# Notes\n{text}\nend"]).calls == ()
    assert parse_calls(shown, TOOLS, ["# Notes", "nothing"]).calls == (READ,)
    own = '{"name": "list_files", "arguments": {"path": "."}}'
    assert parse_calls(f"{shown} {own}", TOOLS, [text]).calls == (LIST,)


def test_without_tools_everything_is_an_answer() -> None:
    assert parse_calls(ONE_CALL[1], {}).calls == ()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["path", "text", "pattern", "``` x", "}"]), VALUES, max_size=3)


@given(
    st.lists(st.tuples(st.sampled_from(sorted(TOOLS)), ARGUMENTS), min_size=1, max_size=5), st.text(alphabet="ab \n")
)
def test_calls_that_were_written_out_are_read_back(wanted: list[tuple[str, Any]], words: str) -> None:
    calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in wanted]
    (message,) = as_text([{"role": "assistant", "content": words.strip(), "tool_calls": calls}])
    parsed = parse_calls(message["content"], TOOLS)
    assert [(call.name, call.arguments, call.error) for call in parsed.calls] == [(n, a, "") for n, a in wanted]
    assert parsed.prose == words.strip()


PIECES = [
    *("{", "}", "[", "]", '"', "'", ":", ",", "\\", "\n", " ", "```", "~~~", "json", "tool_call", "python", "<think>"),
    *("</think>", "<tool_call>", "</tool_call>", "<function=read_file>", "</function>", "<parameter=path>"),
    *(
        "</parameter>",
        "name",
        "read_file",
        "arguments",
        "path",
        '{"name": "read_file", "arguments": ',
        "//",
        "#",
        "1e999",
    ),
    *('{"tool": "nothing", "args": {}}', "[TOOL_CALLS]", "<|python_tag|>", "\ud800", "\0", "é", "x" * 50),
]


@settings(max_examples=400)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40).map("".join))
def test_no_text_whatever_makes_it_raise(text: str) -> None:
    parsed = parse_calls(text, TOOLS)
    assert len(parsed.calls) <= CALLS_MAX
    assert parsed.calls or parsed.prose == text
    for call in parsed.calls:
        assert call.name == UNREADABLE or all(c.isalnum() or c in "_.:-" for c in call.name)
        json.dumps(call.arguments, allow_nan=False)


HOSTILE = [
    *("{", '{"a":', '{"a":1}', "<tool_call>x", "<function=x><parameter=a>", "```\n", "```x\n", '{"', "{'a':'", "{#"),
    *('{"""', '{"a":["', "<think>", "<function=x>", '{"name":"zzz","arguments":', "</think>", '<tool_call>{"a":'),
    *(
        "<invoke name='x'>",
        "<tool_call>" + " " * 500,
        "{" + " " * 500,
        "```tool_call\n",
        '{"\\"',
        "[",
        "<tool_call>```",
    ),
    *('{"a":{"name":"read_file","arguments":{}', "```json\n{", "<|tool_call|>[", '{"name":"read_file",', "~~~\n```\n"),
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_time_is_linear(piece: str) -> None:
    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        begun = time.perf_counter()
        parse_calls(text, TOOLS)
        return time.perf_counter() - begun

    seconds(1_000)
    # A square would be hours; measured for a million: 0 to 3 s.
    assert seconds(1_000_000 if piece == "{" else 250_000) < 30


def test_a_long_noise() -> None:
    noise = random.Random(3)
    text = "".join(noise.choice(PIECES) for _ in range(50_000))
    begun = time.perf_counter()
    parse_calls(text, TOOLS)
    assert time.perf_counter() - begun < 30
