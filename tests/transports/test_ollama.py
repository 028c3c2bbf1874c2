"""``OllamaChatTransport`` against a real HTTP server that plays replies and faults."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from playback import (
    SHOW,
    PlaybackServer,
    json_answer,
    ndjson,
    reply_lines,
    reset,
    silent,
    text_answer,
    unused_port,
    user,
)
from rune.errors import (
    BadReply,
    InvalidInput,
    ModelNotFound,
    PromptRefused,
    RemoteModelRefused,
    ServerBusy,
    ServerUnreachable,
    StreamCut,
    TransportError,
)
from rune.transports.base import ChatReply, Event, TextDelta, ThinkingDelta, Transport
from rune.transports.http import Timeouts
from rune.transports.ollama import OllamaChatTransport

Serve = Callable[..., PlaybackServer]
Connect = Callable[..., OllamaChatTransport]
SECRET = "sk-secret"


def ask(transport: OllamaChatTransport, asynchronous: bool = False, **options: Any) -> ChatReply:
    arguments: dict[str, Any] = {"model": "m", "num_ctx": 4096, "num_predict": 50} | options
    messages = arguments.pop("messages", [user("Say hello.")])
    if asynchronous:
        return asyncio.run(transport.achat(messages, **arguments))
    return transport.chat(messages, **arguments)


both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@both
def test_a_call(serve: Serve, connect: Connect, asynchronous: bool) -> None:
    server = serve({"/api/chat": ndjson(*reply_lines("Hello there."))})
    transport = connect(server)
    assert isinstance(transport, Transport)
    events: list[Event] = []
    reply = ask(transport, asynchronous, on_event=events.append, keep_alive="30m", options={"temperature": 0.2})
    assert events == [TextDelta("Hello"), TextDelta(" there.")]
    assert (reply.text, reply.done_reason, reply.prompt_tokens, reply.output_tokens) == ("Hello there.", "stop", 20, 2)
    assert reply.verdict.kind == "whole"
    assert [a.error for a in reply.attempts] == [""]
    (request,) = server.requests_to("/api/chat")
    assert request.json["options"] == {"num_ctx": 4096, "num_predict": 50, "temperature": 0.2}
    assert request.json["keep_alive"] == "30m"
    assert (transport.provider, transport.server_key) == ("ollama", f"ollama {server.url}")


def test_facts_and_version_are_asked_for_once(serve: Serve, connect: Connect) -> None:
    server = serve({"/api/chat": ndjson(*reply_lines())})
    transport = connect(server)
    for _ in range(3):
        ask(transport)
    assert [r.path for r in server.requests] == ["/api/show", "/api/version", *["/api/chat"] * 3]


@both
def test_counters(serve: Serve, connect: Connect, asynchronous: bool) -> None:
    server = serve({"/api/chat": [ndjson(*reply_lines()), ndjson(*reply_lines(prompt_eval_count=0))]})
    transport = connect(server)
    with transport.measure() as usage:
        ask(transport, asynchronous)
    assert transport.last_prompt_eval_count == 20
    ask(transport, asynchronous)
    assert (transport.usage_calls, transport.usage_prompt_tokens, transport.usage_output_tokens) == (2, 20, 4)
    assert transport.usage_total_duration_ns == 10_000_000
    assert transport.last_prompt_eval_count is None
    assert (usage.calls, usage.prompt_tokens) == (1, 20)


@both
def test_not_streamed(serve: Serve, connect: Connect, asynchronous: bool) -> None:
    whole = {"message": {"role": "assistant", "content": "Hi."}, "done": True, "prompt_eval_count": 9, "eval_count": 2}
    server = serve({"/api/chat": json_answer(whole)})
    reply = ask(connect(server, stream=False), asynchronous)
    assert (reply.text, reply.prompt_tokens) == ("Hi.", 9)
    assert server.requests_to("/api/chat")[0].json["stream"] is False


# --- faults: each class with its outcome -----------------------------------------------------------------------------------

LINES = reply_lines("The sum is")
OVERFLOW = (
    '{"error":{"code":400,"message":"request (25837 tokens) exceeds the available context size (25088 tokens), try '
    'increasing it","type":"exceed_context_size_error","n_prompt_tokens":25837,"n_ctx":25088}}'
)

FAULTS: dict[str, tuple[Any, type[TransportError], str, int]] = {
    "busy": (
        json_answer({"error": "server busy, please try again.  maximum pending requests exceeded"}, 503),
        ServerBusy,
        "maximum pending requests exceeded",
        4,
    ),
    "reset before the first byte": (reset(), ServerUnreachable, "closed the connection before it answered", 4),
    "silence": (silent(), ServerUnreachable, "Read timeout", 1),
    "silence in mid-stream": (ndjson(*LINES[:2], cut="hang"), StreamCut, "Read timeout", 1),
    "reset in mid-stream": (ndjson(*LINES[:2], pause=0.03, cut="reset"), StreamCut, "broke in the middle", 1),
    "server killed in mid-stream": (ndjson(*LINES[:2], cut="eof"), StreamCut, "broke in the middle", 1),
    "clean end before done": (ndjson(*LINES[:2]), StreamCut, "ended before the server said that it was done", 1),
    "done_reason without done": (
        ndjson(*LINES[:2], {"message": {"content": ""}, "done": False, "done_reason": "stop"}),
        StreamCut,
        "ended before",
        1,
    ),
    "runner killed in mid-stream": (
        ndjson(*LINES[:2], {"error": "an error was encountered while running the model: unexpected EOF"}),
        BadReply,
        "unexpected EOF",
        1,
    ),
    "a line that is no json": (ndjson(*LINES[:2], "internal server error (not JSON)"), BadReply, "internal server", 1),
    "half a json line at the end": (ndjson(*LINES[:2], '{"message":{"cont'), BadReply, "no JSON object", 1),
    "a page of a proxy with 200": (text_answer("<html>hello</html>", 200, "text/html"), BadReply, "Is it really", 1),
    "no body": (text_answer("", 200), StreamCut, "ended before", 1),
    "refusal, json in a text": (json_answer({"error": OVERFLOW}, 400), PromptRefused, "25837 tokens", 1),
    "refusal in words": (
        json_answer({"error": "the input length exceeds the context length"}, 400),
        PromptRefused,
        "longer than the model's window",
        1,
    ),
    "missing model": (json_answer({"error": "model 'm' not found"}, 404), ModelNotFound, "ollama pull m", 1),
    "unknown path": (text_answer("404 page not found", 404), BadReply, "is it really Ollama", 1),
    "wrong method": (text_answer("405 method not allowed", 405), BadReply, "does not know this path", 1),
    "no tools": (
        json_answer({"error": "registry.ollama.ai/library/m does not support tools"}, 400),
        BadReply,
        "does not support tools",
        1,
    ),
    "load failure": (
        json_answer({"error": "llama-server process has terminated: signal: killed"}, 500),
        BadReply,
        "could not be loaded",
        1,
    ),
    "option of a wrong type": (
        json_answer({"error": 'option "num_ctx" must be of type integer'}, 500),
        BadReply,
        "must be of type integer",
        1,
    ),
    "bad gateway": (text_answer("<html>502 Bad Gateway</html>", 502, "text/html"), BadReply, "502 Bad Gateway", 1),
    "key wanted": (json_answer({"error": "unauthorized"}, 401), BadReply, "OLLAMA_API_KEY", 1),
}


@both
@pytest.mark.parametrize("name", FAULTS)
def test_fault(serve: Serve, connect: Connect, name: str, asynchronous: bool) -> None:
    step, kind, words, requests = FAULTS[name]
    server = serve({"/api/chat": step})
    transport = connect(server, timeouts=Timeouts(read=0.3), api_key=SECRET)
    with pytest.raises(kind, match=words) as failure:
        ask(transport, asynchronous)
    assert type(failure.value) is kind
    assert len(server.requests_to("/api/chat")) == requests
    assert transport.usage_calls == 0 and transport.usage_prompt_tokens == 0
    assert failure.value.url == server.url
    assert SECRET not in f"{failure.value!r}{failure.value.server_words}"
    if isinstance(failure.value, (StreamCut, BadReply)) and failure.value.partial_text:
        assert failure.value.partial_text == "The sum"
    if "mid-stream" in name or "done" in name or "json" in name.split():
        assert getattr(failure.value, "partial_text", "The sum") == "The sum"


@both
def test_after_a_fault_the_transport_works_as_before(serve: Serve, connect: Connect, asynchronous: bool) -> None:
    good = ndjson(*reply_lines())
    server = serve({"/api/chat": [*(step for step, _, _, n in FAULTS.values() if n == 1 and not step.before), good]})
    transport = connect(server, timeouts=Timeouts(read=0.3))
    for _ in range(sum(n == 1 and not step.before for step, _, _, n in FAULTS.values())):
        with pytest.raises(TransportError):
            ask(transport, asynchronous)
    assert ask(transport, asynchronous).text == "Hello there."
    assert transport.usage_calls == 1


@both
def test_no_server(connect: Connect, asynchronous: bool) -> None:
    transport = connect(f"http://127.0.0.1:{unused_port()}")
    with pytest.raises(ServerUnreachable, match=r"ollama serve.*OLLAMA_HOST"):
        ask(transport, asynchronous)


def test_a_refusal_carries_the_numbers(serve: Serve, connect: Connect) -> None:
    server = serve({"/api/chat": json_answer({"error": OVERFLOW}, 400)})
    with pytest.raises(PromptRefused) as failure:
        ask(connect(server))
    assert (failure.value.n_prompt_tokens, failure.value.n_ctx, failure.value.status) == (25837, 25088, 400)


@both
def test_not_streamed_without_done_is_incomplete(serve: Serve, connect: Connect, asynchronous: bool) -> None:
    """What Ollama answers when it gives up on a text that repeats itself: 200, done false, no counters."""
    server = serve({"/api/chat": json_answer({"message": {"role": "assistant", "content": "apple"}, "done": False})})
    transport = connect(server, stream=False)
    with pytest.raises(StreamCut) as failure:
        ask(transport, asynchronous)
    assert failure.value.partial_text == "apple"
    assert transport.usage_calls == 0


@pytest.mark.parametrize("size", [1, 2, 5, 17, 4096])
def test_chunks_split_anywhere(serve: Serve, connect: Connect, size: int) -> None:
    server = serve({"/api/chat": ndjson(b"", *reply_lines("5 € für 漢字 😀"), b"", size=size)})
    assert ask(connect(server)).text == "5 € für 漢字 😀"


def test_what_follows_done_is_not_waited_for(serve: Serve, connect: Connect) -> None:
    server = serve({"/api/chat": ndjson(*reply_lines(), cut="hang")})
    assert ask(connect(server)).text == "Hello there."


def test_thinking_is_kept_apart(serve: Serve, connect: Connect) -> None:
    lines = [{"message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": False}, *reply_lines("4")]
    server = serve({"/api/chat": ndjson(*lines)})
    events: list[Event] = []
    reply = ask(connect(server), on_event=events.append)
    assert (reply.text, reply.thinking) == ("4", "hm")
    assert events == [ThinkingDelta("hm"), TextDelta("4")]


# --- cancelling ------------------------------------------------------------------------------------------------------------


def test_cancel_by_event(serve: Serve, connect: Connect) -> None:
    server = serve({"/api/chat": ndjson(*LINES[:2], cut="hang")})
    cancel = threading.Event()
    with pytest.raises(StreamCut, match="cancelled") as failure:
        ask(connect(server), cancel=cancel, on_event=lambda event: cancel.set())
    assert failure.value.partial_text.startswith("The")
    assert server.hung_up.acquire(timeout=5)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupt_or_a_broken_handler_closes_the_connection(
    serve: Serve, connect: Connect, error: type[BaseException]
) -> None:
    server = serve({"/api/chat": ndjson(*LINES[:2], cut="hang")})

    def handler(event: Event) -> None:
        raise error

    transport = connect(server)
    with pytest.raises(error):
        ask(transport, on_event=handler)
    assert server.hung_up.acquire(timeout=5)
    assert transport.usage_calls == 0


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("step", [silent(), ndjson(*LINES[:2], cut="hang")], ids=["before", "in mid-stream"])
def test_ctrl_c_ends_a_blocked_call_at_once(serve: Serve, step: Any) -> None:
    server = serve({"/api/chat": step})
    code = (
        "from rune.transports.ollama import OllamaChatTransport as T;"
        f"T({server.url!r}).chat([{{'role': 'user', 'content': 'x'}}], model='m', num_ctx=512)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=environment)
    try:
        end = time.monotonic() + 20
        while not server.requests_to("/api/chat") and time.monotonic() < end:
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=10)
    finally:
        child.kill()
    assert "KeyboardInterrupt" in errors
    assert server.hung_up.acquire(timeout=5)


def test_a_bad_port_is_said_on_the_log(caplog: pytest.LogCaptureFixture) -> None:
    OllamaChatTransport("127.0.0.1:99999").close()
    assert "11434 is used" in caplog.text


def test_a_cancelled_task_closes_the_connection(serve: Serve, connect: Connect) -> None:
    server = serve({"/api/chat": ndjson(*LINES[:2], cut="hang")})
    transport = connect(server)

    async def run() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(
            transport.achat([user("x")], model="m", num_ctx=512, on_event=lambda event: begun.set())
        )
        await asyncio.wait_for(begun.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert server.hung_up.acquire(timeout=5)


# --- the version -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "can_refuse"),
    [("0.12.5", False), ("0.12.6", True), ("0.32.15-rc2", True), ("0.0.0", None), ("main-abc", None), ("", None)],
)
def test_can_refuse_by_version(serve: Serve, connect: Connect, version: str, can_refuse: bool | None) -> None:
    server = serve(version=version)
    transport = connect(server)
    assert transport.can_refuse() is can_refuse
    assert transport.can_refuse() is can_refuse
    assert transport.version() == version
    assert len(server.requests) == 2


def test_a_server_without_a_version_counts_as_old(serve: Serve, connect: Connect) -> None:
    server = serve({"/api/version": text_answer("404 page not found", 404), "/api/chat": ndjson(*reply_lines())})
    transport = connect(server)
    assert transport.can_refuse() is None
    assert ask(transport, num_ctx=512).verdict.kind != "refused"
    assert len(server.requests_to("/api/version")) == 1


def test_the_version_is_asked_again_after_a_lost_connection(serve: Serve, connect: Connect) -> None:
    server = serve({"/api/chat": [ndjson(*LINES[:2], cut="eof"), ndjson(*reply_lines())]}, version="0.12.5")
    transport = connect(server)
    with pytest.raises(StreamCut):
        ask(transport)
    server.routes["/api/version"] = json_answer({"version": "0.24.0"})
    assert transport.can_refuse() is True
    assert ask(transport).verdict.kind == "whole"
    assert len(server.requests_to("/api/version")) == 2


def test_servers_that_cannot_refuse_are_asked_to_keep_the_system_block(serve: Serve, connect: Connect) -> None:
    pytest.importorskip("rune.kernels")
    server = serve({"/api/chat": ndjson(*reply_lines())}, version="0.12.5")
    transport = connect(server)
    system = {"role": "system", "content": "Answer in French. " * 40}
    ask(transport, messages=[system, user("x")])
    ask(transport, messages=[system, user("x")], num_ctx=200)
    ask(transport, messages=[system, user("x")], num_keep=11)
    ask(transport, messages=[user("x")])
    keeps = [r.json["options"].get("num_keep") for r in server.requests_to("/api/chat")]
    assert len(system["content"].split()) <= keeps[0] < 400
    assert keeps[1:] == [100, 11, None]
    new = serve({"/api/chat": ndjson(*reply_lines())})
    ask(connect(new), messages=[system, user("x")])
    assert "num_keep" not in new.requests_to("/api/chat")[0].json["options"]


# --- windows ---------------------------------------------------------------------------------------------------------------


def test_an_explicit_num_ctx_in_the_options_is_sent_as_it_is(serve: Serve, connect: Connect) -> None:
    server = serve({"/api/chat": ndjson(*reply_lines())})
    transport = connect(server)
    reply = ask(transport, num_ctx=None, num_predict=None, options={"num_ctx": 2048.0, "temperature": 0.2})
    assert reply.num_ctx == 2048
    assert server.requests_to("/api/chat")[0].json["options"]["num_ctx"] == 2048
    ask(transport, num_ctx=None)
    assert server.requests_to("/api/chat")[1].json["options"]["num_ctx"] == 8192


@pytest.mark.parametrize("options", [{"num_ctx": 0}, {"options": {"num_ctx": 0}}, {"options": {"num_ctx": "big"}}])
def test_a_window_that_is_none_is_never_sent(serve: Serve, connect: Connect, options: dict[str, Any]) -> None:
    server = serve({"/api/chat": ndjson(*reply_lines())})
    with pytest.raises(InvalidInput):
        ask(connect(server), **options)
    assert server.requests_to("/api/chat") == []


def test_the_window_really_loaded(serve: Serve, connect: Connect) -> None:
    loaded = {"models": [{"name": "other", "context_length": 9}, {"name": "m:latest", "context_length": 4096}]}
    lines = reply_lines(prompt_eval_count=4096)
    server = serve({"/api/chat": ndjson(*lines), "/api/ps": json_answer(loaded)}, version="0.24.0")
    transport = connect(server)
    assert ask(transport, num_ctx=8192).verdict.kind == "whole"
    assert transport.loaded_window("m") == 4096
    assert transport.loaded_window("nosuch") is None
    # A server that runs less than it was sent has been caught: its full window is now known to be a cut.
    assert ask(transport, num_ctx=8192, messages=[user("word " * 6000)]).verdict.kind == "suspected"
    assert ask(transport, num_ctx=8000).verdict.kind == "whole"


def test_the_window_loaded_is_not_above_the_trained_one_on_servers_that_misreport_it(
    serve: Serve, connect: Connect
) -> None:
    loaded = {"models": [{"name": "m:latest", "context_length": 32768}]}
    routes = {"/api/chat": ndjson(*reply_lines()), "/api/ps": json_answer(loaded)}
    transport = connect(serve(routes, version="0.12.5"))
    ask(transport)
    assert transport.loaded_window("m") == 8192
    transport = connect(serve({**routes, "/api/ps": json_answer({"models": []})}))
    assert transport.loaded_window("m") is None


def test_preload_uses_the_same_window_and_shift_as_calls(serve: Serve, connect: Connect) -> None:
    server = serve({"/api/chat": json_answer({"done": True, "done_reason": "load", "message": {"content": ""}})})
    transport = connect(server)
    transport.preload("m", num_ctx=16384, keep_alive="30m")
    (sent,) = [r.json for r in server.requests_to("/api/chat")]
    assert sent["messages"] == [] and sent["shift"] is False and sent["options"] == {"num_ctx": 16384}
    assert sent["keep_alive"] == "30m"
    assert transport.usage_calls == 0
    server.routes["/api/chat"] = json_answer({"error": "model requires more system memory"}, 500)
    with pytest.raises(BadReply, match="could not be loaded"):
        transport.preload("m", num_ctx=16384)


# --- remote models ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["gpt-oss:120b-cloud", "m:cloud"])
@both
def test_cloud_names_are_refused_before_anything_is_sent(
    serve: Serve, connect: Connect, model: str, asynchronous: bool
) -> None:
    server = serve()
    transport = connect(server)
    with pytest.raises(RemoteModelRefused, match="RUNE_ALLOW_REMOTE"):
        ask(transport, asynchronous, model=model)
    with pytest.raises(RemoteModelRefused):
        transport.preload(model, num_ctx=8192)
    assert server.requests == []


@both
def test_a_model_that_the_server_proxies_is_refused_whatever_its_name(
    serve: Serve, connect: Connect, asynchronous: bool
) -> None:
    remote = {**SHOW, "remote_model": "gpt-oss:120b", "remote_host": "https://ollama.com:443"}
    server = serve({"/api/show": json_answer(remote), "/api/chat": ndjson(*reply_lines())})
    with pytest.raises(RemoteModelRefused, match="https://ollama.com"):
        ask(connect(server), asynchronous, model="mine")
    assert server.requests_to("/api/chat") == []


def test_allowed_remote_calls_carry_the_mark(serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line | {"remote_host": "https://ollama.com:443"} for line in reply_lines()]
    server = serve({"/api/chat": ndjson(*lines)})
    assert ask(connect(server, allow_remote=True), model="m:cloud").remote == "https://ollama.com:443"
    monkeypatch.setenv("RUNE_ALLOW_REMOTE", "1")
    assert ask(connect(server), model="m:cloud").remote == "https://ollama.com:443"


# --- models, keys ----------------------------------------------------------------------------------------------------------


def test_models_with_their_capabilities(serve: Serve, connect: Connect) -> None:
    tags = {
        "models": [
            {"name": "a:1b", "size": 5, "details": {"family": "llama"}, "capabilities": ["completion", "tools"]},
            {"name": "e:1b", "capabilities": ["embedding"]},
            {"name": "c:cloud", "remote_model": "c", "remote_host": "https://ollama.com"},
            "nonsense",
            {"size": 1},
        ]
    }
    server = serve({"/api/tags": json_answer(tags)})
    listings = connect(server).models()
    assert [(m.name, m.chat, m.remote) for m in listings] == [
        ("a:1b", True, ""),
        ("e:1b", False, ""),
        ("c:cloud", None, "https://ollama.com"),
    ]
    assert (listings[0].size_bytes, listings[0].family) == (5, "llama")
    assert server.requests_to("/api/show") == []


def test_older_servers_are_asked_for_the_capabilities_of_each_model(serve: Serve, connect: Connect) -> None:
    def show(request: Any) -> Any:
        if request.json["model"] == "gone":
            return json_answer({"error": "model 'gone' not found"}, 404)
        return json_answer({**SHOW, "capabilities": ["embedding" if request.json["model"] == "e" else "completion"]})

    tags = {"models": [{"name": "a"}, {"name": "e"}, {"name": "gone"}]}
    server = serve({"/api/tags": json_answer(tags), "/api/show": show})
    assert [(m.name, m.chat) for m in connect(server).models()] == [("a", True), ("e", False), ("gone", None)]


def test_the_key_is_sent_and_never_shown(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OLLAMA_API_KEY", SECRET)
    server = serve({"/api/chat": json_answer({"error": f"bad token {SECRET}"}, 401)})
    transport = connect(server)
    with pytest.raises(BadReply) as failure:
        ask(transport)
    assert all(r.headers["authorization"] == f"Bearer {SECRET}" for r in server.requests)
    assert SECRET not in f"{failure.value!r}{failure.value.server_words}{transport!r}{vars(transport)}{caplog.text}"


def test_credentials_of_the_address_are_sent_and_never_shown(serve: Serve, connect: Connect) -> None:
    server = serve({"/api/chat": [ndjson(*reply_lines()), json_answer({"error": "no"}, 500)]})
    transport = connect(f"http://ann:{SECRET}@127.0.0.1:{server.port}")
    ask(transport)
    assert server.requests[0].headers["authorization"].startswith("Basic ")
    with pytest.raises(BadReply) as failure:
        ask(transport)
    assert SECRET not in f"{failure.value!r}{failure.value.url}{transport!r}{transport.server_key}"


def test_host_and_settings_of_the_environment(serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve({"/api/chat": ndjson(*reply_lines())})
    monkeypatch.setenv("OLLAMA_HOST", f" 0.0.0.0:{server.port} ")
    transport = OllamaChatTransport()
    assert ask(transport).text == "Hello there."
    transport.close()
    transport.close()


def test_importing_the_transport_loads_no_http_client() -> None:
    code = (
        "import sys, rune.transports.ollama, rune.transports.discovery, rune.runtime.num_ctx;"
        "print([m for m in ('httpx', 'tenacity', 'ssl', 'asyncio', 'numpy') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
