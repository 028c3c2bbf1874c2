"""HTTP over real sockets: what is tried again and what is not, time limits, cancelling, proxies, secrets."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from playback import PlaybackServer, Step, json_answer, ndjson, reset, silent, unused_port
from rune.errors import InvalidInput, ServerUnreachable, StreamCut
from rune.transports.base import CallAttempt
from rune.transports.http import Answer, HttpClient, Retry, Timeouts

Serve = Callable[..., PlaybackServer]
OK = json_answer({"ok": 1})


def client(server: PlaybackServer | str, **options: Any) -> HttpClient:
    address = server if isinstance(server, str) else server.url
    options.setdefault("retry", Retry(attempts=4, first_wait=0.005, longest_wait=0.01))
    return HttpClient(address, loopback=True, unreachable_hint="Start it with `x serve`.", **options)


def call(http: HttpClient, asynchronous: bool, log: list[CallAttempt], **options: Any) -> Answer:
    if asynchronous:
        return asyncio.run(http.arequest("POST", "/p", {"a": "ü"}, log=log, **options))
    try:
        return http.request("POST", "/p", {"a": "ü"}, log=log, **options)
    finally:
        http.close()


both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@both
def test_a_reset_before_the_first_byte_is_tried_again(serve: Serve, asynchronous: bool) -> None:
    server = serve({"/p": [reset(), reset(), OK]})
    log: list[CallAttempt] = []
    assert call(client(server), asynchronous, log).status == 200
    assert [a.error for a in log] == ["connection closed before the first byte"] * 2 + [""]
    assert [r.body for r in server.requests] == ['{"a":"ü"}'.encode()] * 3


@both
def test_resets_without_end_are_an_error_that_says_what_to_do(serve: Serve, asynchronous: bool) -> None:
    server = serve({"/p": reset()})
    log: list[CallAttempt] = []
    with pytest.raises(ServerUnreachable, match=r"closed the connection before it answered. Start it with `x serve`"):
        call(client(server), asynchronous, log)
    assert len(log) == len(server.requests) == 4


@both
def test_no_connection(asynchronous: bool) -> None:
    log: list[CallAttempt] = []
    with pytest.raises(ServerUnreachable, match="No connection to http://127.0.0.1") as failure:
        call(client(f"http://127.0.0.1:{unused_port()}"), asynchronous, log)
    assert [a.error for a in log] == ["no connection"] * 4
    assert failure.value.status is None


@both
def test_503_is_tried_again_and_handed_out_in_the_end(serve: Serve, asynchronous: bool) -> None:
    busy = json_answer({"error": "server busy"}, 503)
    log: list[CallAttempt] = []
    server = serve({"/p": [busy, busy, OK]})
    assert call(client(server), asynchronous, log).status == 200
    assert [a.error for a in log] == ["HTTP 503", "HTTP 503", ""]
    server = serve({"/p": busy})
    answer = call(client(server), asynchronous, [])
    assert (answer.status, answer.body) == (503, b'{"error": "server busy"}')
    assert len(server.requests) == 4


@both
@pytest.mark.parametrize("status", [400, 404, 429, 500, 502])
def test_other_statuses_are_never_tried_again(serve: Serve, asynchronous: bool, status: int) -> None:
    server = serve({"/p": json_answer({"error": "no"}, status)})
    assert call(client(server), asynchronous, []).status == status
    assert len(server.requests) == 1


@both
def test_a_silent_server_ends_in_a_named_time_limit_and_one_request(serve: Serve, asynchronous: bool) -> None:
    server = serve({"/p": silent()})
    log: list[CallAttempt] = []
    with pytest.raises(ServerUnreachable, match=r"(?s)Read timeout.*0\.2 s.*raise RUNE_READ_TIMEOUT"):
        call(client(server, timeouts=Timeouts(read=0.2)), asynchronous, log)
    assert [a.error for a in log] == ["read timeout"]
    assert len(server.requests) == 1
    assert server.hung_up.acquire(timeout=5), "the connection stayed open"


@both
@pytest.mark.parametrize("how", ["eof", "reset"])
def test_a_break_after_the_first_byte_is_never_tried_again(serve: Serve, asynchronous: bool, how: str) -> None:
    server = serve({"/p": Step(chunks=[b"part"], pause=0.02, cut=how)})
    with pytest.raises(StreamCut, match="broke in the middle"):
        call(client(server), asynchronous, [])
    assert len(server.requests) == 1


@both
def test_silence_in_the_middle_of_a_reply(serve: Serve, asynchronous: bool) -> None:
    server = serve({"/p": Step(chunks=[b"part"], cut="hang")})
    with pytest.raises(StreamCut, match=r"Read timeout.*in the middle of its reply.*RUNE_READ_TIMEOUT"):
        call(client(server, timeouts=Timeouts(read=0.2)), asynchronous, [])
    assert len(server.requests) == 1


def test_the_default_limits_outlast_a_cold_load() -> None:
    assert Timeouts().connect == 5
    assert Timeouts().read >= 300


def test_limits_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Timeouts.from_environment() == Timeouts()
    monkeypatch.setenv("RUNE_READ_TIMEOUT", " 900 ")
    monkeypatch.setenv("RUNE_CONNECT_TIMEOUT", "0.5")
    assert Timeouts.from_environment() == Timeouts(connect=0.5, read=900)
    for bad in ("0", "-1", "soon", "nan", "inf"):
        monkeypatch.setenv("RUNE_READ_TIMEOUT", bad)
        with pytest.raises(InvalidInput, match="RUNE_READ_TIMEOUT must be a number of seconds above 0"):
            Timeouts.from_environment()


@pytest.mark.parametrize("step", [silent(), Step(chunks=[b"part"], cut="hang")], ids=["before", "in the middle"])
def test_cancel_closes_the_connection_at_once(serve: Serve, step: Step) -> None:
    server = serve({"/p": step})
    cancel = threading.Event()
    threading.Timer(0.15, cancel.set).start()
    begun = time.monotonic()
    with pytest.raises(StreamCut, match="cancelled"):
        call(client(server), False, [], cancel=cancel)
    assert time.monotonic() - begun < 5
    assert server.hung_up.acquire(timeout=5)
    assert len(server.requests) == 1


def test_cancel_before_the_call_and_between_attempts(serve: Serve) -> None:
    server = serve({"/p": reset()})
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(StreamCut, match="cancelled"):
        call(client(server), False, [], cancel=cancel)
    assert server.requests == []
    cancel.clear()
    threading.Timer(0.1, cancel.set).start()
    slow = client(server, retry=Retry(attempts=3, first_wait=30, longest_wait=30))
    begun = time.monotonic()
    with pytest.raises(StreamCut, match="cancelled"):
        call(slow, False, [], cancel=cancel)
    assert time.monotonic() - begun < 10


def test_a_cancelled_task_closes_the_connection(serve: Serve) -> None:
    server = serve({"/p": silent()})

    async def run() -> None:
        task = asyncio.create_task(client(server).arequest("GET", "/p"))
        while not server.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert server.hung_up.acquire(timeout=5)


def test_leaving_the_block_closes_the_connection(serve: Serve) -> None:
    """As on Ctrl-C or when a caller's event handler raises."""
    server = serve({"/p": ndjson({"a": 1}, cut="hang")})
    http = client(server)
    with pytest.raises(KeyboardInterrupt), http.stream("GET", "/p") as stream:  # noqa: PT012 - the block is what is left
        for _ in stream.chunks():
            raise KeyboardInterrupt
    assert server.hung_up.acquire(timeout=5)
    http.close()


def test_a_redirect_is_not_followed(serve: Serve) -> None:
    other = serve({"/p": OK})
    server = serve({"/p": Step(307, headers={"Location": f"{other.url}/p"})})
    assert call(client(server, headers={"Authorization": "Bearer sk"}), False, []).status == 307
    assert other.requests == []


def test_proxies_of_the_environment_are_not_used_for_loopback(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve({"/p": OK})
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{unused_port()}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert call(client(server), False, []).status == 200
    assert call(client(server), True, []).status == 200


def test_proxies_of_the_environment_are_used_for_other_hosts(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = serve({"http://model.test:80/p": OK})
    monkeypatch.setenv("http_proxy", proxy.url)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    http = HttpClient("http://model.test:80")
    assert http.request("GET", "/p").status in (200, 404)
    assert [r.headers["host"] for r in proxy.requests] == ["model.test"]
    http.close()


def test_secrets_are_sent_and_never_shown(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve({"/p": [reset(), OK]})
    caplog.set_level(logging.DEBUG)
    http = client(server, headers={"Authorization": "Bearer sk-secret"})
    call(http, False, [])
    basic = client(server, auth=("ann", "sk-secret"))
    call(basic, False, [])
    assert server.requests[1].headers["authorization"] == "Bearer sk-secret"
    assert server.requests[2].headers["authorization"].startswith("Basic ")
    assert "sk-secret" not in caplog.text + repr(http) + repr(basic)


def test_many_threads_share_a_client(serve: Serve) -> None:
    server = serve({"/p": lambda request: json_answer(request.json)})
    http = client(server)
    answers: dict[int, bytes] = {}

    def ask(n: int) -> None:
        answers[n] = http.request("POST", "/p", {"n": n}).body

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert answers == {n: b'{"n": %d}' % n for n in range(32)}
    http.close()
