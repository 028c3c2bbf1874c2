"""``OpenAIChatTransport`` against a real HTTP server that plays scripted streams and faults."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from playback import PlaybackServer, Step, json_answer, reset, silent, text_answer, unused_port, user
from rune import subsystem_health
from rune.errors import (
    BadReply,
    InvalidInput,
    ModelNotFound,
    PromptRefused,
    ServerBusy,
    ServerUnreachable,
    StreamCut,
    TransportError,
)
from rune.transports.base import Event, TextDelta, Transport
from rune.transports.discovery import discover, facts_or_none, resolve_window
from rune.transports.http import Retry, Timeouts
from rune.transports.openai_compat import OpenAIChatTransport

CHAT = "/v1/chat/completions"
MODELS = "/v1/models"


def sse(*objects: Any, end: str = "data: [DONE]\n\n", size: int = 0, **options: Any) -> Step:
    """Events as a server streams them, one a chunk, or ``size`` bytes a chunk. A str stands for itself."""
    chunks = [o.encode() if isinstance(o, str) else f"data: {json.dumps(o)}\n\n".encode() for o in objects]
    chunks.append(end.encode())
    if size:
        whole = b"".join(chunks)
        chunks = [whole[i : i + size] for i in range(0, len(whole), size)]
    return Step(200, [c for c in chunks if c], content_type="text/event-stream", **options)


def piece(text: str | None = None, finish: str | None = None) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def usage(prompt: int | None = 20, output: int = 2) -> dict[str, Any]:
    return {"model": "m", "choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}}


HELLO = [piece("Hello"), piece(" there."), piece(finish="stop")]
OK = sse(*HELLO, usage())


def listing(**fields: Any) -> Step:
    return json_answer({"object": "list", "data": [{"id": "m", "object": "model", **fields}]})


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., OpenAIChatTransport]]:
    for variable in ("RUNE_API_KEY", "RUNE_OPENAI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    transports: list[OpenAIChatTransport] = []

    def make(server: PlaybackServer | str, **options: Any) -> OpenAIChatTransport:
        options.setdefault("retry", Retry(attempts=3, first_wait=0.005, longest_wait=0.01))
        options.setdefault("timeouts", Timeouts(read=10))
        transports.append(OpenAIChatTransport(server if isinstance(server, str) else server.url, **options))
        return transports[-1]

    yield make
    for transport in transports:
        transport.close()


Serve = Callable[..., PlaybackServer]
Talk = Callable[..., OpenAIChatTransport]


def served(serve: Serve, chat: Any, models: Any = None) -> PlaybackServer:
    return serve({CHAT: chat, MODELS: models or listing()})


def test_a_streamed_reply(serve: Serve, talk: Talk) -> None:
    server = served(serve, OK)
    transport = talk(server)
    assert isinstance(transport, Transport)
    events: list[Event] = []
    reply = transport.chat([user("Hi")], model="m", num_predict=50, on_event=events.append)
    assert reply.text == "Hello there."
    assert events == [TextDelta("Hello"), TextDelta(" there.")]
    assert (reply.done, reply.done_reason, reply.prompt_tokens, reply.output_tokens) == (True, "stop", 20, 2)
    assert transport.last_prompt_eval_count == 20
    assert (transport.usage_calls, transport.usage_prompt_tokens, transport.usage_output_tokens) == (1, 20, 2)
    sent = server.requests_to(CHAT)[0]
    assert sent.json["stream_options"] == {"include_usage": True}
    assert sent.json["max_tokens"] == 50
    assert "authorization" not in sent.headers
    assert (reply.num_predict, reply.remote, [a.error for a in reply.attempts]) == (50, "", [""])


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_it_matters_not_where_the_network_cuts(serve: Serve, talk: Talk, size: int) -> None:
    server = served(serve, sse(": ping\n\n", piece("Grüße 日本 🎈"), piece(finish="length"), usage(), size=size))
    reply = talk(server).chat([user("Hi")], model="m")
    assert (reply.text, reply.done_reason) == ("Grüße 日本 🎈", "length")


def test_async_gives_the_same(serve: Serve, talk: Talk) -> None:
    server = served(serve, [OK, OK])
    transport = talk(server)
    first = transport.chat([user("Hi")], model="m", num_predict=9)
    second = asyncio.run(transport.achat([user("Hi")], model="m", num_predict=9))
    assert server.requests_to(CHAT)[0].body == server.requests_to(CHAT)[1].body
    first.elapsed_ms = second.elapsed_ms = 0
    first.attempts = second.attempts = []
    assert first == second


def test_a_server_that_does_not_stream_is_read_too(serve: Serve, talk: Talk) -> None:
    whole = usage()
    whole["choices"] = [{"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]
    reply = talk(served(serve, json_answer(whole))).chat([user("Hi")], model="m")
    assert (reply.text, reply.prompt_tokens, reply.done) == ("Hi", 20, True)


@pytest.mark.parametrize(
    "step",
    [
        sse(*HELLO, usage(), end=""),
        sse(*HELLO[:2]),
        sse(*HELLO[:2], end=""),
        sse(*HELLO[:2], cut="eof"),
        sse(*HELLO[:2], cut="reset", pause=0.02),
    ],
    ids=["no DONE", "DONE without a reason to finish", "neither", "cut off", "reset"],
)
def test_a_reply_without_its_end_is_cut(serve: Serve, talk: Talk, step: Step) -> None:
    server = served(serve, step)
    transport = talk(server)
    with pytest.raises(StreamCut) as caught:
        transport.chat([user("Hi")], model="m")
    assert caught.value.partial_text == "Hello there."
    assert len(server.requests_to(CHAT)) == 1, "never again after the first byte"
    assert transport.usage_calls == 0
    with pytest.raises(StreamCut) as again:
        asyncio.run(transport.achat([user("Hi")], model="m"))
    assert again.value.partial_text == "Hello there."


def test_an_error_in_mid_stream(serve: Serve, talk: Talk) -> None:
    broken = sse(piece("Hel"), {"error": {"message": "out of memory", "code": 500}})
    with pytest.raises(BadReply, match="out of memory") as caught:
        talk(served(serve, broken)).chat([user("Hi")], model="m")
    assert caught.value.partial_text == "Hel"
    late = sse({"error": {"type": "exceed_context_size_error", "message": "x", "n_prompt_tokens": 9, "n_ctx": 8}})
    with pytest.raises(PromptRefused) as refused:
        talk(served(serve, late)).chat([user("Hi")], model="m")
    assert (refused.value.n_prompt_tokens, refused.value.n_ctx) == (9, 8)


@pytest.mark.parametrize("body", ["data: {broken\n\n", "data: [1]\n\n", 'data: {"choices": 5}\n\n'])
def test_what_is_no_stream_is_a_bad_reply(serve: Serve, talk: Talk, body: str) -> None:
    with pytest.raises(BadReply, match="http://127.0.0.1"):
        talk(served(serve, sse(piece("Hel"), body))).chat([user("Hi")], model="m")


def test_missing_counts_are_unknown_not_zero(serve: Serve, talk: Talk) -> None:
    for step in (sse(*HELLO), sse(*HELLO, usage(0)), sse(*HELLO, usage(None))):
        transport = talk(served(serve, step))
        reply = transport.chat([user("Hi")], model="m")
        assert reply.prompt_tokens is None
        assert reply.verdict.kind == "unknown"
        assert transport.last_prompt_eval_count is None
        assert transport.usage_prompt_tokens == 0


def test_the_verdict_rests_on_what_is_known(serve: Serve, talk: Talk) -> None:
    def verdict(prompt: int | None, text: str, **window: Any) -> str:
        server = served(serve, sse(*HELLO, usage(prompt)), listing(**window))
        return talk(server).chat([user(text)], model="m").verdict.kind

    text = "several words of a prompt " * 400
    assert verdict(2000, text) == "unknown"
    assert verdict(2000, text, max_model_len=32768) == "whole"  # by its bytes
    assert verdict(300, text) == "suspected"
    assert verdict(4096, text, max_model_len=4096) == "suspected"
    assert verdict(4095, text, max_model_len=4096) == "shifted"
    assert talk(served(serve, OK)).can_refuse() is None


def test_busy_servers_are_asked_again(serve: Serve, talk: Talk) -> None:
    def kind(error: str) -> str:
        return "connection" if error.startswith("connection") else error

    busy, slow = text_answer("busy", 503), json_answer({"error": {"message": "slow down"}}, 429)
    for steps, errors in (
        ([busy, OK], ["HTTP 503", ""]),
        ([slow, OK], ["HTTP 429", ""]),
        ([reset(), slow, OK], ["connection", "HTTP 429", ""]),
    ):
        server = served(serve, steps)
        reply = talk(server).chat([user("Hi")], model="m")
        assert [kind(a.error) for a in reply.attempts] == errors
        async_server = served(serve, steps)
        reply = asyncio.run(talk(async_server).achat([user("Hi")], model="m"))
        assert [kind(a.error) for a in reply.attempts] == errors
    for always in (busy, slow):
        server = served(serve, always)
        with pytest.raises(ServerBusy, match="every retry"):
            talk(server).chat([user("Hi")], model="m")
        assert len(server.requests_to(CHAT)) == 3


@pytest.mark.parametrize(("status", "kind"), [(401, BadReply), (404, ModelNotFound), (500, BadReply), (307, BadReply)])
def test_other_errors_are_not_tried_again(serve: Serve, talk: Talk, status: int, kind: type[TransportError]) -> None:
    server = served(serve, json_answer({"error": {"message": "model m not found"}}, status))
    with pytest.raises(kind) as caught:
        talk(server).chat([user("Hi")], model="m")
    assert len(server.requests_to(CHAT)) == 1
    assert caught.value.status == status
    if status == 401:
        assert "RUNE_API_KEY" in str(caught.value)


def test_nobody_there_says_what_to_start(talk: Talk) -> None:
    with pytest.raises(ServerUnreachable, match="Start the server"):
        talk(f"http://127.0.0.1:{unused_port()}", retry=Retry(attempts=1)).chat([user("Hi")], model="m")


def test_a_silent_server_is_given_up_after_the_read_limit(serve: Serve, talk: Talk) -> None:
    server = served(serve, silent())
    with pytest.raises(ServerUnreachable, match="RUNE_READ_TIMEOUT"):
        talk(server, timeouts=Timeouts(read=0.2)).chat([user("Hi")], model="m")
    assert len(server.requests_to(CHAT)) == 1


def test_the_key_is_sent_and_never_shown(
    serve: Serve, talk: Talk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    echo = json_answer({"error": {"message": "bad header Bearer hush-hush"}}, 401)
    server = served(serve, [OK, echo])
    monkeypatch.setenv("RUNE_API_KEY", "hush-hush")
    transport = talk(server)
    transport.chat([user("Hi")], model="m")
    with pytest.raises(BadReply) as caught:
        transport.chat([user("Hi")], model="m")
    assert {r.headers["authorization"] for r in server.requests} == {"Bearer hush-hush"}
    shown = f"{transport!r} {transport.server_key} {caught.value} {caught.value.server_words} {caplog.text}"
    assert "hush-hush" not in shown
    inside = talk(server.url.replace("//", "//someone:hush-hush@"))
    assert "hush-hush" not in f"{inside!r} {inside.server_key}"


def test_the_window_is_told_or_set_or_unknown(serve: Serve, talk: Talk) -> None:
    def window(context_length: int | None = None, **fields: Any) -> tuple[int | None, str]:
        facts = discover(talk(served(serve, OK, listing(**fields)), context_length=context_length), "m")
        return facts.trained_window, facts.source

    assert window(max_model_len=4096) == (4096, "/v1/models")
    assert window(2048, max_model_len=4096) == (2048, "/v1/models")
    assert window(9999, max_model_len=4096) == (4096, "/v1/models")
    assert window(2048) == (2048, "context_length")
    assert window() == (None, "/v1/models")
    assert window(max_model_len="many") == (None, "/v1/models")
    assert window(meta={"n_ctx": 512, "n_ctx_train": 8192}) == (512, "/v1/models")
    with pytest.raises(InvalidInput, match="context_length"):
        OpenAIChatTransport("http://127.0.0.1:1", context_length=0)


def test_an_unknown_window_falls_back_with_a_record(serve: Serve, talk: Talk) -> None:
    with subsystem_health.turn() as health:
        facts = facts_or_none(talk(served(serve, OK)), "m")
    assert facts is not None
    assert resolve_window(facts).window == 8192
    assert health.degraded == ["context_discovery"]


def test_the_facts_are_asked_once_and_again_after_a_lost_connection(serve: Serve, talk: Talk) -> None:
    server = served(serve, [OK, OK, sse(piece("x"), cut="eof"), OK], listing(max_model_len=4096))
    transport = talk(server)
    assert transport.chat([user("Hi")], model="m").num_ctx == 4096
    transport.chat([user("Hi")], model="m")
    assert len(server.requests_to(MODELS)) == 1
    with pytest.raises(StreamCut):
        transport.chat([user("Hi")], model="m")
    server.routes[MODELS] = listing(max_model_len=1024)
    assert transport.chat([user("Hi")], model="m").num_ctx == 1024


def test_a_server_without_a_list_still_chats(serve: Serve, talk: Talk) -> None:
    server = served(serve, OK, text_answer("no such page", 404))
    assert talk(server, context_length=4096).chat([user("Hi")], model="m").num_ctx == 4096
    assert talk(server).chat([user("Hi")], model="m").num_ctx == 0
    with pytest.raises(BadReply):
        talk(server).models()


def test_models_are_listed(serve: Serve, talk: Talk) -> None:
    entries = [{"id": "chatty"}, {"id": "text-embedding-nomic"}, {"no": "id"}, 5]
    server = served(serve, OK, json_answer({"data": entries}))
    assert [(m.name, m.chat) for m in talk(server).models()] == [("chatty", None), ("text-embedding-nomic", False)]


def test_a_reply_limit_over_the_window_is_lowered_once_and_said(serve: Serve, talk: Talk) -> None:
    words = (
        "'max_tokens' or 'max_completion_tokens' is too large: 500. This model's maximum context length is 512 tokens "
        "and your request has 20 input tokens (500 > 512 - 20)."
    )
    refusal = json_answer({"error": {"message": words, "type": "BadRequestError", "code": 400}}, 400)
    server = served(serve, [refusal, OK])
    reply = talk(server).chat([user("Hi")], model="m", num_predict=500)
    assert [r.json["max_tokens"] for r in server.requests_to(CHAT)] == [500, 492]
    assert reply.num_predict == 492
    assert "492" in reply.notes[0] and reply.as_row()["notes"] == reply.notes
    assert [a.error for a in reply.attempts] == ["max_tokens over the window", ""]
    with pytest.raises(PromptRefused):
        talk(served(serve, refusal)).chat([user("Hi")], model="m", num_predict=400)


def test_a_refusal_carries_the_servers_numbers(serve: Serve, talk: Talk, shared: Path) -> None:
    case = json.loads((shared / "cases" / "C07.json").read_text())
    server = served(serve, json_answer(case["input"]["http_body"], case["input"]["http_status"]))
    with pytest.raises(PromptRefused) as caught:
        talk(server).chat([user("Hi")], model="m", num_predict=100)
    assert caught.value.n_prompt_tokens == case["expected"]["carries"]["served_prompt_tokens"]
    assert caught.value.n_ctx == case["expected"]["carries"]["server_window"]
    assert len(server.requests_to(CHAT)) - 1 == case["expected"]["retries"]
    for variant in case["input"]["variants"]:
        transport = talk(served(serve, json_answer(variant["http_body"], variant["http_status"])))
        with pytest.raises(PromptRefused):
            transport.chat([user("Hi")], model="m")


@pytest.mark.parametrize(
    "step", [sse(piece("Hel"), end="", cut="hang"), silent()], ids=["while it writes", "before it writes"]
)
@pytest.mark.parametrize("how", ["cancel", "close"])
def test_cancel_and_close_end_a_call_at_once(serve: Serve, talk: Talk, step: Step, how: str) -> None:
    server = served(serve, step)
    transport = talk(server, timeouts=Timeouts(read=60))
    cancel = threading.Event()

    def end() -> None:
        while not server.requests_to(CHAT):
            time.sleep(0.005)
        time.sleep(0.05)
        cancel.set() if how == "cancel" else transport.close()

    threading.Thread(target=end).start()
    with pytest.raises(StreamCut, match="cancelled"):
        transport.chat([user("Hi")], model="m", cancel=cancel)
    assert server.hung_up.acquire(timeout=5), "the server learns of it"


def test_a_cancel_ends_the_wait_for_the_next_attempt(serve: Serve, talk: Talk) -> None:
    server = served(serve, json_answer({"error": "slow down"}, 429))
    transport = talk(server, retry=Retry(attempts=3, first_wait=30, longest_wait=30))
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    with pytest.raises(StreamCut, match="cancelled"):
        transport.chat([user("Hi")], model="m", cancel=cancel)


def test_cancelling_a_task_closes_its_connection(serve: Serve, talk: Talk) -> None:
    server = served(serve, sse(piece("Hel"), end="", cut="hang"))
    transport = talk(server)

    async def go() -> None:
        seen = asyncio.Event()
        task = asyncio.create_task(transport.achat([user("Hi")], model="m", on_event=lambda _: seen.set()))
        await asyncio.wait_for(seen.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())
    assert server.hung_up.acquire(timeout=5)


@pytest.mark.parametrize(
    ("base", "prefix"), [("", "/v1"), ("/", "/v1"), ("/v1", "/v1"), ("/v1/", "/v1"), ("/api/openai", "/api/openai")]
)
def test_base_urls_as_people_write_them(serve: Serve, talk: Talk, base: str, prefix: str) -> None:
    server = serve({f"{prefix}/chat/completions": OK, f"{prefix}/models": listing()})
    transport = talk(server.url + base)
    assert transport.chat([user("Hi")], model="m").text == "Hello there."
    assert transport.server_key == f"openai-compatible {server.url}{prefix}"


def test_addresses_outside_are_marked() -> None:
    from rune.transports.host import parse_url
    from rune.transports.openai_models import is_public

    for url in ("http://127.0.0.1:1", "http://localhost", "http://192.168.1.5", "http://[::1]:8", "http://nas.local"):
        assert is_public(parse_url(url)) == "", url
    assert is_public(parse_url("https://api.example.com/v1")) == "api.example.com"
    assert is_public(parse_url("http://8.8.8.8")) == "8.8.8.8"


def test_measure_keeps_threads_apart(serve: Serve, talk: Talk) -> None:
    transport = talk(served(serve, OK))
    sums: dict[int, int] = {}

    def run(n: int) -> None:
        with transport.measure() as usage_here:
            for _ in range(n):
                transport.chat([user("Hi")], model="m")
        sums[n] = usage_here.calls

    threads = [threading.Thread(target=run, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {1: 1, 2: 2, 3: 3}
    assert transport.usage_calls == 6
