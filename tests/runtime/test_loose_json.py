"""JSON as models write it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rune.runtime.loose_json import DEPTH_MAX, LooseJsonError, read_object, read_value

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': 1, \"b\": 'it\\'s'}", {"a": 1, "b": "it's"}),
        ("{'on': True, 'off': False, 'no': None}", {"on": True, "off": False, "no": None}),
        ('{"a": [1, 2,], "b": {"c": 3,},}', {"a": [1, 2], "b": {"c": 3}}),
        ("{path: 'a', first_line: 3}", {"path": "a", "first_line": 3}),
        ('{"a": 1, // one\n "b": 2 # two\n}', {"a": 1, "b": 2}),
        ('{"pattern": "\\d+\\.py\\n"}', {"pattern": "\\d+\\.py\n"}),
        ('{"text": "first\nsecond"}', {"text": "first\nsecond"}),
        ('{"text": """a "quoted" word"""}', {"text": 'a "quoted" word'}),
        ("{'smile': '\\ud83d\\ude00'}", {"smile": "😀"}),
        ('{"n": -1.5e3, "m": +2, "k": .5}', {"n": -1500.0, "m": 2, "k": 0.5}),
        ("{}", {}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
    ],
)
def test_what_models_write(text: str, value: Any) -> None:
    assert read_object(text) == value


@pytest.mark.parametrize(
    ("text", "says", "position"),
    [
        ("", "too early", 0),
        ('{"a": 1', "too early", 7),
        ('{"a": 1 "b": 2}', "expected ','", 8),
        ('{"text": "print("hi")"}', "expected ','", 17),  # what was meant can only be guessed
        ('{"a" 1}', "expected ':'", 5),
        ('{"a": nothing}', "a value", 6),
        ('{"a": 1e999}', "too large", 6),
        ('{"a": ' + "9" * 5000 + "}", "too long", 6),
        ('{"a": NaN}', "a value", 6),
        ("{'a': 'open}", "closing quote", 6),
        ('{"a": 1} and more', "nothing after", 8),
        ("[1]", "an object", 0),
        ('{"a":' * 100, "deep", 5 * (DEPTH_MAX + 1)),
    ],
)
def test_what_cannot_be_read_says_where(text: str, says: str, position: int) -> None:
    with pytest.raises(LooseJsonError, match=says) as caught:
        read_object(text)
    assert caught.value.position == position


@given(JSON, st.sampled_from([None, 2]))
def test_all_json_is_read_as_json_reads_it(value: Any, indent: int | None) -> None:
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
        assert read_value(text) == (json.loads(text), len(text))


@given(st.dictionaries(st.text(), JSON, max_size=3))
def test_a_python_literal_is_read_as_python_reads_it(value: dict[str, Any]) -> None:
    assert read_object(repr(value)) == value


@given(st.text(alphabet="{}[]\"':,\\ntrue0.1e/#\n\ud800"))
def test_nothing_but_its_own_error_is_raised(text: str) -> None:
    value, end = None, 0
    try:
        value, end = read_value(text)
    except LooseJsonError as exc:
        end = exc.position
    assert 0 <= end <= len(text)
    json.dumps(value, allow_nan=False)


@pytest.mark.parametrize("piece", ["{", "[", '{"a":', "9", '{"\\"', "{'", '{"a":1,', "#", "-", "."])
def test_time_is_linear(piece: str) -> None:
    begun = time.perf_counter()
    with pytest.raises(LooseJsonError):
        read_object(piece * (1_000_000 // len(piece)) + "x")
    assert time.perf_counter() - begun < 10
