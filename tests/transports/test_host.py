"""OLLAMA_HOST, read as the official client reads it, with what is known to go wrong put right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rune.errors import InvalidInput
from rune.transports.host import is_loopback, parse_ollama_host, parse_url


@pytest.mark.parametrize(
    ("value", "url"),
    [
        (None, "http://127.0.0.1:11434"),
        ("", "http://127.0.0.1:11434"),
        ("  ", "http://127.0.0.1:11434"),
        ("1.2.3.4", "http://1.2.3.4:11434"),
        ("1.2.3.4:56789", "http://1.2.3.4:56789"),
        (":56789", "http://127.0.0.1:56789"),
        ("localhost", "http://localhost:11434"),
        ("http://h", "http://h:80"),
        ("https://h", "https://h:443"),
        ("HTTPS://h:1234", "https://h:1234"),
        ("http://h:11434/", "http://h:11434"),
        ("h/path", "http://h:11434/path"),
        ("https://h/a/b/", "https://h:443/a/b"),
        ("https://h/a?x=1#y", "https://h:443/a"),
        ("ollama.com", "https://ollama.com:443"),
        ("  example.com:8080 ", "http://example.com:8080"),
        ('"example.com:8080"', "http://example.com:8080"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:8000", "http://127.0.0.1:8000"),
        ("http://0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:11434"),
        ("[::]:8000", "http://[::1]:8000"),
        ("::1", "http://[::1]:11434"),
        ("[::1]", "http://[::1]:11434"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("http://[fe80::1]:8000/p", "http://[fe80::1]:8000/p"),
        ("h:0", "http://h:11434"),
        ("h:99999", "http://h:11434"),
        ("h:-1", "http://h:11434"),
        ("http://h:abc", "http://h:80"),
    ],
)
def test_forms(value: str | None, url: str) -> None:
    assert parse_ollama_host(value).url == url


def test_a_bad_port_is_put_right_and_said() -> None:
    assert "'99999' is no port; 11434 is used" in parse_ollama_host("h:99999").note
    assert parse_ollama_host("h:1").note == ""


def test_credentials_are_taken_out_and_never_shown() -> None:
    address = parse_ollama_host("http://ann:p%40ss@h:11434/x")
    assert address.url == "http://h:11434/x"
    assert address.auth == ("ann", "p@ss")
    assert "p@ss" not in repr(address) and "p%40ss" not in repr(address)


@pytest.mark.parametrize("value", ["ftp://h", "unix:///run/x.sock", "h h", "http://h\\x", "http://secret word@h h"])
def test_what_is_no_address_is_one_clear_error(value: str) -> None:
    with pytest.raises(InvalidInput) as failure:
        parse_ollama_host(value)
    assert "OLLAMA_HOST" in str(failure.value) and "secret" not in str(failure.value)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_the_clear_error(value: str) -> None:
    try:
        address = parse_ollama_host(value)
    except InvalidInput:
        return
    assert address.url.startswith(("http://", "https://"))
    assert parse_ollama_host(address.url).url == address.url


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("a.localhost", True),
        ("127.8.8.8", True),
        ("[::1]", True),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    assert parse_ollama_host(host).loopback is loopback


def test_base_urls() -> None:
    assert parse_url("https://u:p@h/v1/").url == "https://h:443/v1"
    for bad in ("h:8080", "", "http://", "file:///x"):
        with pytest.raises(InvalidInput):
            parse_url(bad)
