"""``http_get``: pages of the web as text, and nothing of this machine or its network."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from playback import PlaybackServer, Step, json_answer, reset, silent, text_answer, unused_port
from rune.runtime import http_tools
from rune.runtime.html_text import html_text
from rune.runtime.http_tools import is_public
from rune.runtime.services import Services


@pytest.fixture
def get(approved: Any) -> Any:
    """Fetches from a server of this machine, as somebody who named it may."""

    def fetch(server: PlaybackServer | str, path: str = "/page", **options: Any) -> Any:
        url = server + path if isinstance(server, str) else f"http://127.0.0.1:{server.port}{path}"
        return approved("http_get", {"url": url}, services=Services(http_hosts=frozenset({"127.0.0.1"})), **options)

    return fetch


def test_a_page_is_its_text(get: Any) -> None:
    page = (
        "<html><head><title> A  page </title><style>p {}</style></head><body><script>evil()</script>"
        "<h1>Head</h1><p>One &amp; <b>two</b></p><ul><li>a<li>b</ul><table><tr><td>1<td>2</table></body></html>"
    )
    with PlaybackServer({"/page": text_answer(page, content_type="text/html; charset=utf-8")}) as server:
        outcome = get(server)
        (request,) = server.requests_to("/page")
        port = server.port
    assert outcome.text == f"[http://127.0.0.1:{port}/page]\nA page\n\nHead\nOne & two\na\nb\n1 2"
    assert request.headers["host"] == f"127.0.0.1:{port}"
    assert not {"cookie", "authorization", "referer"} & set(request.headers)


def test_other_answers(get: Any) -> None:
    routes = {
        "/json": json_answer({"a": 1}),
        "/gone": text_answer("no such page", 404),
        "/empty": text_answer("", content_type="text/html"),
        "/image": text_answer("\x89PNG\0", content_type="image/png"),
        "/binary": text_answer("a\0b", content_type="text/plain"),
        "/latin": text_answer("ok", content_type="text/plain; charset=no-such-charset"),
        "/zip": text_answer("ok", headers={"Content-Encoding": "gzip"}),
    }
    with PlaybackServer(routes) as server:
        assert get(server, "/json").text.endswith('/json]\n{"a": 1}')
        assert ", HTTP 404]\nno such page" in get(server, "/gone").text
        assert "no text" in get(server, "/empty").text
        assert "is image/png (6 bytes), not text" in get(server, "/image").text
        assert "not text" in get(server, "/binary").text
        assert get(server, "/latin").text.endswith("]\nok")
        assert "compressed" in get(server, "/zip").text


def test_a_page_without_end_is_cut_with_a_note(get: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_tools, "BODY_BYTES_MAX", 1000)
    with PlaybackServer({"/page": text_answer("word " * 1000)}) as server:
        outcome = get(server)
    assert outcome.ok and "only the first 1,000 bytes" in outcome.text and len(outcome.text) < 1200


def test_redirects_are_followed_and_each_is_checked(get: Any) -> None:
    def onward(to: str) -> Step:
        return text_answer("", 302, headers={"Location": to})

    with PlaybackServer() as server:
        server.routes |= {
            "/page": onward("/second?a=b#part"),
            "/second?a=b": text_answer("arrived"),
            "/round": onward("/round"),
            "/out": onward("http://localhost.localdomain.invalid/x"),
            "/inward": onward(f"http://[::1]:{server.port}/page"),
            "/file": onward("file:///etc/passwd"),
        }
        assert get(server).text.endswith("/second?a=b#part]\narrived")
        assert "more than 5 redirects" in get(server, "/round").text
        assert "is not known" in get(server, "/out").text
        assert "of this machine or its network" in get(server, "/inward").text
        assert "only http:// and https://" in get(server, "/file").text


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://127.1:{port}/",
        "http://2130706433:{port}/",
        "http://0x7f000001:{port}/",
        "http://0:{port}/",
        "http://[::1]:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/",
        "http://192.168.1.1/",
        "http://user@127.0.0.1:{port}/",
        "http://a:b@example.com/",
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "gopher://127.0.0.1:{port}/",
        "//127.0.0.1:{port}/",
        "http:///x",
        "http://",
        "",
        "http://[::1",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:{port}\r\nX: y/",
    ],
)
def test_what_is_not_of_the_web_is_not_fetched(approved: Any, url: str) -> None:
    with PlaybackServer() as server:
        outcome = approved("http_get", {"url": url.replace("{port}", str(server.port))})
        assert not outcome.ok and server.requests == []


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::5db8:d822", True),
        ("no address", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_a_name_is_looked_up_once_and_all_its_addresses_count(approved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(2, 1, 6, "", (address, port)) for address in ("93.184.216.34", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    outcome = approved("http_get", {"url": "http://two-faced.example/"})
    assert not outcome.ok and "two-faced.example is 127.0.0.1" in outcome.text and asked == ["two-faced.example"]


def test_the_address_that_was_checked_is_the_one_connected_to(approved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["127.0.0.1", "127.0.0.9"])  # of a name server that changes its mind
    real = socket.getaddrinfo

    def look_up(host: str, port: int, *args: Any, **options: Any) -> list[Any]:
        if host == "rebound.example":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]
        return real(host, port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with PlaybackServer({"/": text_answer("checked")}) as server:
        services = Services(http_hosts=frozenset({f"rebound.example:{server.port}"}))
        outcome = approved("http_get", {"url": f"http://rebound.example:{server.port}/"}, services=services)
        (request,) = server.requests
        port = server.port
    assert outcome.ok and outcome.text.endswith("checked") and next(answers) == "127.0.0.9"
    assert request.headers["host"] == f"rebound.example:{port}"


def test_servers_that_fail_are_a_result(get: Any) -> None:
    assert "cannot be fetched" in get(f"http://127.0.0.1:{unused_port()}").text
    with PlaybackServer({"/page": reset()}) as server:
        assert "cannot be fetched" in get(server).text


def test_a_silent_server_is_left_in_time_and_on_cancel(get: Any) -> None:
    with PlaybackServer({"/page": silent()}) as server:
        outcome = get(server, timeout=0.3)
        assert not outcome.ok and "within 0.3 s" in outcome.text and outcome.elapsed_ms < 3_000
        cancel = threading.Event()
        threading.Timer(0.2, cancel.set).start()
        outcome = get(server, cancel=cancel)
        assert "cancelled" in outcome.text and outcome.elapsed_ms < 3_000


def test_pages_that_are_broken_html_still_have_their_text() -> None:
    assert html_text("<p>a<p>b</div></p><unknown>c") == "a\nb\nc"
    assert html_text("<head><title>t</title><body>x") == "t\n\nx"
    assert html_text("<script>never closed") == ""
    assert html_text("&#x41;&nbsp;B &lt;c&gt;") == "A B <c>"
    assert html_text("") == ""
