"""Requests and replies of ``/v1/chat/completions`` without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rune.errors import BadReply, InvalidInput, ModelNotFound, PromptRefused, ServerBusy
from rune.transports.base import Progress, TextDelta, ThinkingDelta
from rune.transports.openai_chat import build_request, response_format, with_room
from rune.transports.openai_reply import ErrorNames, ReplyBuilder
from rune.transports.server_errors import read_error
from rune.transports.stream import LineError, SseDecoder, SseEvent

NAMES = ErrorNames("vLLM", "http://127.0.0.1:8000/v1", "Look at the list.", "Set RUNE_API_KEY.", ("s3cret",))
USER = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"type": {"type": "string"}}}


def built(*items: Any, closed: bool = True) -> ReplyBuilder:
    builder = ReplyBuilder("m", NAMES)
    for item in items:
        builder.feed(item)
    builder.closed = closed
    return builder


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def test_a_request_streams_asks_for_counts_and_leaves_ollamas_loading_options_out() -> None:
    request = build_request(
        USER,
        model="m",
        window=4096,
        num_predict=7,
        think=False,
        options={"temperature": 0, "seed": 3, "num_ctx": 99, "num_predict": 5, "num_keep": 2},
        extra={"return_progress": True},
    )
    assert request.body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "temperature": 0,
        "seed": 3,
        "max_tokens": 7,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert (request.num_ctx, request.num_predict) == (4096, 7)
    assert build_request(USER, model="m", think="low").body["reasoning_effort"] == "low"


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, None),
        ({"num_predict": -1}, None),
        ({"max_tokens": 9}, 9),
        ({"num_predict": 9}, 9),
        ({"num_predict": 0}, None),
    ],
)
def test_a_reply_is_limited_only_by_what_somebody_set(options: dict[str, int], sent: int | None) -> None:
    assert build_request(USER, model="m", options=options).body.get("max_tokens") == sent


@pytest.mark.parametrize(
    "wrong", [{"num_predict": 0}, {"num_predict": -1}, {"num_predict": True}, {"format": "yaml"}, {"model": ""}]
)
def test_unusable_arguments_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        build_request(USER, **{"model": "m", **wrong})


def test_inputs_are_not_changed_and_lone_surrogates_go_out_as_replacement_characters() -> None:
    messages = [{"role": "user", "content": "a\ud800b"}]
    options = {"stop": ["\udfff"], "num_ctx": 5}
    request = build_request(messages, model="m", options=options)
    assert request.body["messages"][0]["content"] == "a\ufffdb"
    assert request.body["stop"] == ["\ufffd"]
    assert messages == [{"role": "user", "content": "a\ud800b"}]
    assert options == {"stop": ["\udfff"], "num_ctx": 5}


def test_formats() -> None:
    assert response_format(None) == {}
    assert response_format("json") == {"response_format": {"type": "json_object"}}
    assert response_format({"grammar": 'root ::= "a"'}) == {"grammar": 'root ::= "a"'}
    forced = response_format(SCHEMA)["response_format"]
    assert forced["type"] == "json_schema"
    assert forced["json_schema"]["schema"] == SCHEMA
    assert response_format(forced) == {"response_format": forced}


def test_text_thinking_and_progress_become_events() -> None:
    builder = ReplyBuilder("m", NAMES)
    assert builder.feed({"choices": [], "prompt_progress": {"total": 9, "processed": 4}}) == [Progress("prompt", 4, 9)]
    assert builder.feed(delta(role="assistant", content=None)) == []
    assert builder.feed(delta(reasoning_content="hm", content="")) == [ThinkingDelta("hm")]
    assert builder.feed(delta(reasoning="m")) == [ThinkingDelta("m")]
    # OpenRouter sends both names with the same text.
    assert builder.feed(delta(reasoning_content="!", reasoning="!")) == [ThinkingDelta("!")]
    assert builder.feed(delta(content="Hi")) == [TextDelta("Hi")]
    builder.feed(delta("stop"))
    assert not builder.done
    assert builder.take(SseEvent("message", "[DONE]")) == []
    assert builder.done
    reply = builder.reply(build_request(USER, model="m"))
    assert (reply.text, reply.thinking, reply.done_reason) == ("Hi", "hmm!", "stop")


def test_tool_calls_come_in_pieces() -> None:
    builder = built(
        delta(tool_calls=[{"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"where":'}}]),
        delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "go", "arguments": "{broken"}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": ' "here"}'}}]),
        delta("tool_calls"),
    )
    calls = builder.tool_calls()
    assert [c["function"] for c in calls] == [
        {"name": "look", "arguments": {"where": "here"}},
        {"name": "go", "arguments": "{broken"},
    ]
    assert [c["id"] for c in calls] == ["a", "b"]


def test_whole_tool_calls_without_numbers_stay_apart() -> None:
    call = {"function": {"name": "look", "arguments": {"n": 1}}}
    builder = built({"choices": [{"message": {"tool_calls": [call, call]}, "finish_reason": "tool_calls"}]})
    assert [c["function"]["arguments"] for c in builder.tool_calls()] == [{"n": 1}, {"n": 1}]
    assert [c["id"] for c in builder.tool_calls()] == ["call_0", "call_1"]


@pytest.mark.parametrize(
    ("last", "counts"),
    [
        ({}, (None, None, None)),
        ({"usage": None}, (None, None, None)),
        ({"usage": {"prompt_tokens": 0, "completion_tokens": 5}}, (None, 5, None)),
        ({"usage": {"prompt_tokens": "9", "completion_tokens": True}}, (None, None, None)),
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 0}}, (9, 0, None)),
        (
            {"usage": {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}},
            (9, 1, 4),
        ),
        ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": None}, "timings": {"cache_n": 8}}, (9, None, 8)),
        # prompt_n is the new part alone; with the cached part it is the prompt.
        ({"timings": {"prompt_n": 3, "cache_n": 6, "predicted_n": 2}}, (9, 2, 6)),
        ({"timings": {"prompt_n": 3, "predicted_n": 2}}, (None, 2, None)),
        ({"timings": {"prompt_n": 0, "cache_n": 0}}, (None, None, 0)),
    ],
)
def test_counts_are_the_servers_or_unknown(last: dict[str, Any], counts: tuple[int | None, ...]) -> None:
    reply = built(delta("stop", content="x"), {"choices": [], **last}).reply(build_request(USER, model="m"))
    assert (reply.prompt_tokens, reply.output_tokens, reply.cached_tokens) == counts


def test_durations_are_nanoseconds() -> None:
    timings = {"prompt_ms": 1.5, "predicted_ms": 2.25}
    reply = built(delta("stop"), {"timings": timings}).reply(build_request(USER, model="m"))
    assert (reply.prompt_duration_ns, reply.total_duration_ns) == (1_500_000, 3_750_000)


@pytest.mark.parametrize(
    "wrong",
    [
        {"choices": 3},
        {"choices": ["x"]},
        {"choices": [{"delta": "x"}]},
        delta(content=["x"]),
        delta(tool_calls={"a": 1}),
        delta(tool_calls=[{"index": 0}]),
    ],
)
def test_what_is_no_chunk_is_a_bad_reply_with_the_text_so_far(wrong: dict[str, Any]) -> None:
    builder = built(delta(content="so far"), closed=False)
    with pytest.raises(BadReply, match="vLLM") as caught:
        builder.feed(wrong)
    assert caught.value.partial_text == "so far"


def test_a_call_without_a_name_is_a_bad_reply() -> None:
    builder = built(delta(tool_calls=[{"index": 0, "id": "a", "function": {"arguments": "{}"}}]), delta("tool_calls"))
    with pytest.raises(BadReply, match="without a function name"):
        builder.reply(build_request(USER, model="m"))


def test_an_error_event_raises_whatever_its_shape() -> None:
    for event in (
        SseEvent("message", '{"error": {"message": "CUDA died", "code": 500}}'),
        SseEvent("error", '{"message": "CUDA died"}'),
        SseEvent("error", '{"error": "CUDA died"}'),
    ):
        builder = built(delta(content="so far"), closed=False)
        with pytest.raises(BadReply, match="CUDA died") as caught:
            builder.take(event)
        assert caught.value.partial_text == "so far"
    with pytest.raises(LineError):
        built().take(SseEvent("message", "not json"))


@given(st.data())
def test_a_stream_reads_the_same_wherever_the_network_cuts_it(data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.text(st.characters(exclude_categories=("Cs",)), min_size=1), max_size=5))
    ending = data.draw(st.sampled_from([b"\n\n", b"\r\n\r\n"]))
    items = [*(delta(content=t) for t in texts), delta("stop"), {"choices": [], "usage": {"prompt_tokens": 3}}]
    lines = [b": ping", *(b"data: " + json.dumps(i, ensure_ascii=False).encode() for i in items), b"data: [DONE]"]
    stream = b"".join(line + ending for line in lines)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=6)))
    builder, decoder = ReplyBuilder("m", NAMES), SseDecoder()
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        for event in decoder.feed(stream[begin:end]):
            builder.take(event)
    assert builder.done
    assert builder.text == "".join(texts)
    assert builder.reply(build_request(USER, model="m")).prompt_tokens == 3


def error(status: int, body: Any, model: str = "m") -> Exception:
    return NAMES.exception(read_error(json.dumps(body).encode()), status, model)


def test_refusals_in_the_words_of_several_servers() -> None:
    for body, prompt, window in (
        (
            {"error": {"message": "request (25837 tokens) exceeds the available context size (25088 tokens), try", "code": 400,
                       "type": "exceed_context_size_error", "n_prompt_tokens": 25837, "n_ctx": 25088}},
            25837,
            25088,
        ),
        (
            {"error": {"message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens "
                       "(4500 in the messages, 500 in the completion). Please reduce the length.", "code": 400}},
            4500,
            4096,
        ),
        ({"object": "error", "message": "This model's maximum context length is 4096 tokens. However, your request has 5000 "
          "input tokens.", "type": "BadRequestError", "code": 400}, 5000, 4096),
    ):  # fmt: skip
        refused = error(400, body)
        assert isinstance(refused, PromptRefused), body
        assert (refused.n_prompt_tokens, refused.n_ctx) == (prompt, window)


def test_only_a_reply_that_is_too_long_is_asked_for_again_shorter() -> None:
    request = build_request(USER, model="m", num_predict=500)
    shorter = with_room(request, PromptRefused("", n_prompt_tokens=4000, n_ctx=4096))
    assert shorter is not None
    assert (shorter.num_predict, shorter.body["max_tokens"]) == (96, 96)
    assert "96 tokens" in shorter.notes[0]
    assert request.body["max_tokens"] == 500
    assert with_room(request, PromptRefused("", n_prompt_tokens=4096, n_ctx=4096)) is None
    assert with_room(request, PromptRefused("", n_prompt_tokens=100, n_ctx=4096)) is None
    assert with_room(request, PromptRefused("")) is None
    assert with_room(build_request(USER, model="m"), PromptRefused("", n_prompt_tokens=1, n_ctx=9)) is None


def test_other_errors_have_names_and_keep_the_key_to_themselves() -> None:
    absent = error(404, {"error": {"message": "The model `m` does not exist.", "type": "NotFoundError", "code": 404}})
    assert isinstance(absent, ModelNotFound) and "Look at the list" in str(absent)
    assert isinstance(error(404, {"error": "No models loaded. Please load one"}), ModelNotFound)
    assert isinstance(error(429, {"error": {"message": "slow down"}}), ServerBusy)
    denied = error(401, {"error": {"message": "Invalid key s3cret"}})
    assert isinstance(denied, BadReply)
    assert "RUNE_API_KEY" in str(denied) and "s3cret" not in str(denied)
    assert "s3cret" not in repr(NAMES)
    assert not isinstance(error(500, {"error": "the model does not exist"}), ModelNotFound)
