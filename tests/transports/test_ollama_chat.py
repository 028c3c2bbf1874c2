"""Request bodies and replies put together, without any IO."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playback import user
from rune.errors import BadReply, InvalidInput, PromptRefused
from rune.messages import normalise
from rune.transports.base import TextDelta, ThinkingDelta
from rune.transports.ollama_chat import PromptSize, ReplyBuilder, build_request, is_remote_name, token_limit


def body(messages: Any = None, **options: Any) -> dict[str, Any]:
    options.setdefault("num_ctx", 8192)
    return build_request(normalise(messages or [user("x" * 400)]), model="m", **options).body


def test_every_request_asks_to_refuse_and_not_to_shift_with_a_window_of_its_own() -> None:
    assert body() == {
        "model": "m",
        "messages": [{"role": "user", "content": "x" * 400}],
        "stream": True,
        "truncate": False,
        "shift": False,
        "options": {"num_ctx": 8192, "num_predict": 8192 - 1 - 100},
    }


def test_what_the_caller_gives_goes_out() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    given_options = {"temperature": 0.2, "stop": ["\ud83d"], "num_ctx": 1, "num_keep": 7}
    before = deepcopy(given_options)
    sent = body(
        tools=[tool],
        format={"type": "object"},
        think="low",
        keep_alive="30m",
        num_predict=77,
        options=given_options,
        stream=False,
    )
    assert sent["tools"] == [tool] and sent["format"] == {"type": "object"}
    assert (sent["think"], sent["keep_alive"], sent["stream"]) == ("low", "30m", False)
    assert sent["options"] == {
        "temperature": 0.2,
        "stop": ["\ufffd"],
        "num_ctx": 8192,
        "num_keep": 7,
        "num_predict": 77,
    }
    assert given_options == before


def test_falsy_values_that_mean_something_are_sent() -> None:
    sent = body(think=False, keep_alive=0, num_keep=0)
    assert sent["think"] is False and sent["keep_alive"] == 0 and sent["options"]["num_keep"] == 0
    assert {"think", "keep_alive", "format", "tools"}.isdisjoint(body())


@pytest.mark.parametrize("unlimited", [0, -1, -2, None])
def test_num_predict_of_zero_or_less_means_no_limit_of_the_caller(unlimited: int | None) -> None:
    assert body(options={"num_predict": unlimited})["options"]["num_predict"] == 8192 - 1 - 100
    assert body(options={"num_predict": 5})["options"]["num_predict"] == 5


@given(st.integers(1, 2**31 - 1), st.integers(0, 200_000))
def test_num_predict_is_always_above_zero(num_ctx: int, estimate: int) -> None:
    assert body(num_ctx=num_ctx, estimate=estimate)["options"]["num_predict"] > 0


@pytest.mark.parametrize("bad", [0, -1, True, "8192", 512.7, 2**31, float("inf"), [1]])
def test_counts_of_tokens_that_are_none(bad: Any) -> None:
    with pytest.raises(InvalidInput, match="whole number of tokens"):
        token_limit(bad, "num_ctx")
    assert token_limit(512.0, "num_ctx") == 512
    if bad not in (0, -1):
        with pytest.raises(InvalidInput):
            body(options={"num_predict": bad})


def test_no_model_is_one_clear_error() -> None:
    with pytest.raises(InvalidInput, match="RUNE_MODEL"):
        build_request([user("x")], model="", num_ctx=1)


def test_remote_names() -> None:
    assert is_remote_name("gpt-oss:120b-cloud") and is_remote_name("m:cloud")
    assert not is_remote_name("cloud") and not is_remote_name("cloud:7b")


def test_prompt_size_and_its_upper_bound() -> None:
    request = build_request(normalise([user("é b"), user("c")]), model="m", num_ctx=10)
    assert request.size == PromptSize(estimate=0, utf8_bytes=5, words=3, messages=2)
    assert request.size.upper_bound(100) == 5 + 3 * 16 + 100
    assert request.size.upper_bound(None) > 1000


# --- replies ---------------------------------------------------------------------------------------------------------------


def line(done: bool = False, **message: Any) -> dict[str, Any]:
    return {"model": "m", "message": {"role": "assistant", **message}, "done": done}


REQUEST = build_request([user("x")], model="m", num_ctx=512, num_predict=9)


def test_a_reply_with_thinking_text_and_calls() -> None:
    builder = ReplyBuilder("m")
    call = {"id": "call_1", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}
    events = builder.feed(line(thinking="hm", content=""))
    events += builder.feed(line(content="5 "))
    events += builder.feed(line(content="€", tool_calls=[call, {"function": {"name": "g", "arguments": '{"b":2}'}}]))
    final = line(True, content=None) | {"done_reason": "stop", "prompt_eval_count": 9, "eval_count": 3}
    events += builder.feed(final | {"total_duration": 5, "prompt_eval_duration": 2, "remote_host": "https://x"})
    assert events == [ThinkingDelta("hm"), TextDelta("5 "), TextDelta("€")]
    reply = builder.reply(REQUEST)
    assert (reply.text, reply.thinking, reply.done, reply.done_reason) == ("5 €", "hm", True, "stop")
    assert reply.tool_calls == [
        {"id": "call_1", "function": {"name": "f", "arguments": {"a": 1}}},
        {"function": {"name": "g", "arguments": {"b": 2}}},
    ]
    assert (reply.prompt_tokens, reply.output_tokens) == (9, 3)
    assert (reply.total_duration_ns, reply.prompt_duration_ns, reply.remote) == (5, 2, "https://x")
    assert (reply.num_ctx, reply.num_predict, reply.wire_digest) == (512, 9, REQUEST.wire_digest)
    assert normalise([reply.message()]) == [reply.message()]


def test_a_reply_without_thinking_has_no_such_key() -> None:
    builder = ReplyBuilder("m")
    builder.feed(line(True, content="a"))
    assert builder.reply(REQUEST).message() == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("final", "counts"),
    [
        ({"eval_count": 5}, (None, 5)),
        ({"prompt_eval_count": 0, "eval_count": 5}, (None, 5)),
        ({"prompt_eval_count": None}, (None, None)),
        ({"prompt_eval_count": -1, "eval_count": True}, (None, None)),
        ({"prompt_eval_count": "9", "eval_count": float("inf")}, (None, None)),
        ({"prompt_eval_count": 9.0, "eval_count": 0}, (9, 0)),
    ],
)
def test_unknown_counts_are_none(final: dict[str, Any], counts: tuple[int | None, int | None]) -> None:
    builder = ReplyBuilder("m")
    builder.feed(line(True, content="") | final)
    reply = builder.reply(REQUEST)
    assert (reply.prompt_tokens, reply.output_tokens) == counts


@pytest.mark.parametrize("done", [None, "true", 1, 0, False])
def test_only_done_true_ends_a_reply(done: Any) -> None:
    builder = ReplyBuilder("m")
    builder.feed({"message": {"content": "a"}, "done": done, "done_reason": "stop"})
    assert not builder.done


@pytest.mark.parametrize(
    "item",
    [
        {"message": "text"},
        {"message": {"content": ["parts"]}},
        {"message": {"thinking": 1}},
        {"message": {"tool_calls": "f()"}},
        {"message": {"tool_calls": [{"function": {}}]}},
    ],
)
def test_shapes_that_no_reply_has(item: dict[str, Any]) -> None:
    builder = ReplyBuilder("m", "http://h")
    builder.feed(line(content="so far"))
    with pytest.raises(BadReply) as failure:
        builder.feed(item)
    assert failure.value.partial_text == "so far"


def test_an_error_in_mid_stream_carries_the_words_and_the_text_so_far() -> None:
    builder = ReplyBuilder("m", "http://h")
    builder.feed(line(content="so far"))
    with pytest.raises(BadReply, match="CUDA out of memory") as failure:
        builder.feed({"error": "an error was encountered while running the model: CUDA out of memory"})
    assert failure.value.partial_text == "so far"
    with pytest.raises(PromptRefused):
        builder.feed({"error": {"type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 8}})
