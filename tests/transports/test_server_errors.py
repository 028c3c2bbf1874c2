"""What servers say when they refuse or fail, in every shape that it comes in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rune.errors import BadReply, ModelNotFound, PromptRefused, ServerBusy, TransportError
from rune.transports.server_errors import is_load_failure, lacks_capability, read_error, to_exception

OVERFLOW = {
    "code": 400,
    "message": "request (2046 tokens) exceeds the available context size (512 tokens), try increasing it",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 2046,
    "n_ctx": 512,
}


def error(body: Any, status: int | None, **options: Any) -> TransportError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return to_exception(read_error(data), status=status, server="Ollama", url="http://h", model="m", **options)


@pytest.mark.parametrize("status", [400, 413, 500, 503])
@pytest.mark.parametrize(
    "body",
    [
        {"error": OVERFLOW},
        {"error": json.dumps({"error": OVERFLOW})},
        {"error": {"message": json.dumps({"error": OVERFLOW}), "type": "invalid_request_error"}},
        {"error": {k: v for k, v in OVERFLOW.items() if not k.startswith("n_")}},
    ],
    ids=["object", "text that is json", "openai form of it", "numbers in words only"],
)
def test_refusals_with_their_numbers(body: Any, status: int) -> None:
    refused = error(body, status)
    assert isinstance(refused, PromptRefused)
    assert (refused.n_prompt_tokens, refused.n_ctx, refused.status) == (2046, 512, status)
    assert "2046 tokens for a window of 512" in str(refused)


@pytest.mark.parametrize(
    "words",
    [
        "the input length exceeds the context length",
        "the prompt is longer than the context length currently available to the model; shorten the prompt",
        "prompt too long; exceeded max context length by 712 tokens",
        "This model's context window is too small",
    ],
)
def test_refusals_by_their_words_with_a_400_only(words: str) -> None:
    assert isinstance(error({"error": words}, 400), PromptRefused)
    assert not isinstance(error({"error": words}, 500), PromptRefused)
    assert not isinstance(error({"error": words}, 404), PromptRefused)


def test_a_400_about_something_else_stays_an_error() -> None:
    for words in ("invalid model name", "unexpected EOF", "context canceled", "model is required"):
        assert type(error({"error": words}, 400)) is BadReply


def test_numbers_of_the_openai_form() -> None:
    words = "This model's maximum context length is 8192 tokens. However, you requested 9001 tokens"
    refused = error({"error": {"message": words, "code": "context_length_exceeded"}}, 400)
    assert isinstance(refused, PromptRefused)
    assert (refused.n_prompt_tokens, refused.n_ctx) == (9001, 8192)


def test_kinds() -> None:
    missing = error({"error": "model 'nosuch:1b' not found"}, 404, model_hint="Fetch it with `ollama pull m`.")
    assert isinstance(missing, ModelNotFound) and "ollama pull m" in str(missing)
    assert isinstance(error({"error": "server busy, please try again."}, 503), ServerBusy)
    assert type(error(b"404 page not found", 404)) is BadReply
    key = error({"error": "unauthorized", "signin_url": "https://x"}, 401, key_hint="Set OLLAMA_API_KEY.")
    assert type(key) is BadReply and "OLLAMA_API_KEY" in str(key)
    assert "redirects" in str(error(b"", 307))


@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        ("registry.ollama.ai/library/m does not support tools", "tools"),
        ('"m" does not support thinking', "thinking"),
        ("this model is missing data required for multimodal input", "images"),
    ],
)
def test_capabilities(words: str, lacks: str) -> None:
    failure = error({"error": words}, 400)
    assert lacks_capability(failure) == lacks
    assert f"does not support {lacks}" in str(failure)
    assert lacks_capability(ValueError(words)) == ""


@pytest.mark.parametrize(
    "words",
    [
        "llama runner process has terminated: exit status 2",
        "llama-server process has terminated: signal: killed",
        "model requires more system memory (9.1 GiB) than is available (3.0 GiB)",
        "unable to allocate CUDA0 buffer",
    ],
)
def test_load_failures(words: str) -> None:
    assert is_load_failure(error({"error": words}, 500))
    assert not is_load_failure(error({"error": "invalid format"}, 500))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html><head><title>502</title></head>Bad Gateway</html>", "502 Bad Gateway"),
        (b"", ""),
        (b"null", "null"),
        (b"\x1b[31mred\x07\r\n", "[31mred"),
        (json.dumps({"detail": [{"loc": ["x"]}]}).encode(), '[{"loc": ["x"]}]'),
        (json.dumps({"error": {}}).encode(), '{"error": {}}'),
    ],
)
def test_words_are_plain_text(body: bytes, words: str) -> None:
    assert read_error(body).words == words


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda t: json.dumps({"error": t}).encode()))
def test_no_body_can_break_the_reading(body: bytes) -> None:
    failure = error(body, 500)
    assert len(failure.server_words) <= 300
    assert failure.server_words.isprintable()


def test_words_are_at_most_300_characters() -> None:
    failure = error({"error": "x" * 10_000}, 500)
    assert failure.server_words == "x" * 300
    assert len(str(failure)) < 450


def test_a_key_that_the_server_echoes_is_not_repeated() -> None:
    failure = error({"error": "bad token sk-secret"}, 401, secrets=["sk-secret"])
    assert "sk-secret" not in str(failure) + failure.server_words
    assert "***" in failure.server_words
