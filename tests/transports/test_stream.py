"""Decoders of streamed bodies: the network may cut the bytes anywhere, and nothing may be lost at an error."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rune.transports import stream
from rune.transports.stream import LineError, NdjsonDecoder, SseDecoder, SseEvent


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def ndjson(chunks: list[bytes]) -> list[dict[str, object]]:
    decoder = NdjsonDecoder()
    found = [item for chunk in chunks for item in decoder.feed(chunk)]
    return [*found, *decoder.finish()]


def sse(chunks: list[bytes]) -> list[SseEvent]:
    decoder = SseDecoder()
    found = [item for chunk in chunks for item in decoder.feed(chunk)]
    return [*found, *decoder.finish()]


objects = st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers(), max_size=3), max_size=6)


@given(objects, st.integers(1, 60), st.booleans(), st.booleans())
def test_ndjson_gives_the_same_objects_whatever_the_chunks(
    items: list[dict[str, object]], size: int, last_newline: bool, blank_lines: bool
) -> None:
    lines = [json.dumps(item, ensure_ascii=False).encode("utf-8", "surrogatepass") for item in items]
    data = (b"\n\n" if blank_lines else b"\n").join(lines) + (b"\n" if last_newline else b"")
    data = data.decode("utf-8", "replace").encode()
    assert ndjson(cut(data, size)) == [json.loads(json.dumps(i).encode()) for i in ndjson([data])]
    assert len(ndjson([data])) == len(items)


def test_ndjson_splits_at_newlines_only() -> None:
    """U+2028 and NEL inside a text are no line ends, as they are for ``str.splitlines``."""
    item = {"content": "a\u2028b\u0085c\x0bd"}
    assert ndjson([json.dumps(item, ensure_ascii=False).encode() + b"\r\n"]) == [item]


def test_ndjson_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    assert ndjson([b'{"content":"\xff"}\n']) == [{"content": "\ufffd"}]


@pytest.mark.parametrize(
    "bad", [b"internal server error (not JSON)", b"[1]", b'"text"', b"<html>", b'{"a":', b"{" * 100_000]
)
def test_ndjson_hands_out_what_stands_before_a_bad_line(bad: bytes) -> None:
    decoder = NdjsonDecoder()
    feed = decoder.feed(b'{"n":1}\n{"n":2}\n' + bad + b"\n")
    assert [next(feed), next(feed)] == [{"n": 1}, {"n": 2}]
    with pytest.raises(LineError) as failure:
        next(feed)
    assert failure.value.line == bad.decode()[:300]


def test_ndjson_a_bad_last_line_without_newline_is_an_error_too() -> None:
    decoder = NdjsonDecoder()
    assert list(decoder.feed(b'{"n":1')) == []
    with pytest.raises(LineError):
        list(decoder.finish())


def test_a_line_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_LINE_BYTES", 100)
    decoder = NdjsonDecoder()
    assert list(decoder.feed(b"x" * 100)) == []
    with pytest.raises(LineError):
        list(decoder.feed(b"x"))


SSE = 'event: token\ndata: {"a":1}\n\n: comment\ndata: one €\ndata:two\nid: 7\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_sse_gives_the_same_events_whatever_the_chunks(size: int, newline: str) -> None:
    events = sse(cut(SSE.replace("\n", newline).encode(), size))
    assert events == [SseEvent("token", '{"a":1}'), SseEvent("message", "one €\ntwo"), SseEvent("message", "[DONE]")]
    assert events[0].json() == {"a": 1}
    with pytest.raises(LineError):
        events[1].json()


def test_sse_last_event_without_blank_line_is_not_lost() -> None:
    assert sse([b"data: a\n\ndata: b"]) == [SseEvent("message", "a"), SseEvent("message", "b")]
    assert sse([b"data: a\n\ndata: b\n"]) == [SseEvent("message", "a"), SseEvent("message", "b")]


def test_sse_an_error_object_in_the_place_of_an_event_is_an_event() -> None:
    assert sse([b'data: a\n\n{"error":"boom"}\n']) == [SseEvent("message", "a"), SseEvent("error", '{"error":"boom"}')]


def test_sse_an_event_name_without_data_is_no_event() -> None:
    assert sse([b"event: ping\n\ndata: a\n\n"]) == [SseEvent("message", "a")]
