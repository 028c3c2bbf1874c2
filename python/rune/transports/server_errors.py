"""What a server's error says, read out of every shape it comes in, and the error of ours that stands for it. No IO.

Shapes seen on real servers: ``{"error": text}``; the same with a text that is itself JSON (the true token count and the
window are in there); ``{"error": {"message", "type", "code", …}}`` as the OpenAI form has it, whose message may again be
JSON; text/plain; a proxy's HTML; nothing at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rune.errors import (
    SERVER_WORDS_MAX,
    BadReply,
    ModelNotFound,
    PromptRefused,
    ServerBusy,
    TransportError,
)

__all__ = ["ServerError", "is_load_failure", "lacks_capability", "read_error", "redacted", "to_exception"]

REFUSAL_TYPES = frozenset({"exceed_context_size_error", "context_length_exceeded"})
_SPEAKS_OF_CONTEXT = re.compile(r"context[ _-]?(?:length|size|window)", re.IGNORECASE)
_NUMBERS = (
    re.compile(r"request \((?P<prompt>\d+) tokens\) exceeds the available context size \((?P<window>\d+) tokens\)"),
    re.compile(r"maximum context length is (?P<window>\d+) tokens\D+(?P<prompt>\d+)"),
)
_LACKS = re.compile(r"does not support (?P<what>\w+)|multimodal|image input is not supported", re.IGNORECASE)
_LOAD = re.compile(
    r"(?:runner|llama-server) process has terminated|requires more (?:system )?memory|out of memory|unable to (?:load|alloc)"
    r"|failed to (?:load|alloc)",
    re.IGNORECASE,
)
_TAGS = re.compile(r"<[^>]*>")


@dataclass(frozen=True, slots=True)
class ServerError:
    """An error as the server put it: ``words`` in plain text (at most 300 characters), and what else it gave."""

    words: str
    type: str = ""
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None
    is_json: bool = False

    def refuses(self, status: int | None) -> bool:
        """Whether this is a refusal of a prompt longer than the window."""
        if self.type in REFUSAL_TYPES:
            return True
        return status in (400, 413, 422) and bool(_SPEAKS_OF_CONTEXT.search(self.words))


def read_error(body: bytes | str | Any) -> ServerError:
    """The error in a response body, or in the ``error`` value of a streamed object. Never raises."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    value: Any = text
    found: dict[str, Any] = {}
    is_json = not isinstance(text, str)
    for _ in range(6):  # an object in a text in an object: three wrappings are known, six are enough
        if isinstance(value, str):
            stripped = value.strip()
            if not stripped.startswith("{"):
                break
            try:
                value = json.loads(stripped)
            except (ValueError, RecursionError):
                break
            is_json = True
        elif isinstance(value, dict):
            for key in ("type", "n_prompt_tokens", "n_ctx", "code"):
                if value.get(key) is not None:
                    found[key] = value[key]
            inner = next((value[k] for k in ("error", "message", "detail") if value.get(k)), None)
            if inner is None:
                break
            value = inner
        else:
            break
    words = value if isinstance(value, str) else "" if value in ({}, None) else json.dumps(value, ensure_ascii=False)
    prompt, window = _count(found.get("n_prompt_tokens")), _count(found.get("n_ctx"))
    if prompt is None or window is None:
        for pattern in _NUMBERS:
            match = pattern.search(words)
            if match:
                prompt, window = prompt or int(match["prompt"]), window or int(match["window"])
    kind = str(found.get("type") or "")
    if found.get("code") in REFUSAL_TYPES:
        kind = str(found["code"])
    return ServerError(_plain(words), kind, prompt, window, is_json)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _plain(words: str) -> str:
    if words.lstrip().startswith("<"):
        words = _TAGS.sub(" ", words)
    shown = "".join(c if c.isprintable() else " " for c in words)
    return " ".join(shown.split())[:SERVER_WORDS_MAX]


def redacted(text: str, secrets: Iterable[str]) -> str:
    """The text without any of the secrets: a server may echo the header that it was sent."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text


def to_exception(
    error: ServerError,
    *,
    status: int | None,
    server: str,
    url: str,
    model: str = "",
    model_hint: str = "",
    key_hint: str = "",
    secrets: Iterable[str] = (),
) -> TransportError:
    """The exception that stands for a server's error.

    Args:
        status: HTTP status, or None for an error inside a stream that had begun.
        server: what to call the server in the message ("Ollama").
        model_hint, key_hint: what to do when the model is missing, when the server asks for a key.
    """
    words = redacted(error.words, secrets)
    where: dict[str, Any] = {"status": status, "server_words": words, "url": url}
    said = f"{server} at {url} said: {words}" if words else f"{server} at {url} gave no reason"
    if error.refuses(status):
        numbers = ""
        if error.n_prompt_tokens and error.n_ctx:
            numbers = f" ({error.n_prompt_tokens} tokens for a window of {error.n_ctx})"
        return PromptRefused(
            f"The prompt is longer than the model's window{numbers}. {said}. "
            "Send less, or allow a larger num_ctx if the model has one.",
            n_prompt_tokens=error.n_prompt_tokens,
            n_ctx=error.n_ctx,
            **where,
        )
    if status == 404 and error.is_json and "not found" in words.lower():
        return ModelNotFound(f"The model {model!r} is not there: {said}. {model_hint}".rstrip(), **where)
    if status == 503:
        return ServerBusy(
            f"The server stayed busy through every retry. {said}. Try again when its queue is shorter.", **where
        )
    if status in (401, 403):
        return BadReply(f"The server does not allow this call (HTTP {status}). {said}. {key_hint}".rstrip(), **where)
    if status in (404, 405):
        return BadReply(f"{url} does not know this path (HTTP {status}); is it really {server}? {said}.", **where)
    if status is not None and 300 <= status < 400:
        return BadReply(f"{url} redirects elsewhere (HTTP {status}); give the final address instead.", **where)
    lacks = _LACKS.search(words)
    if lacks:
        what = lacks["what"] or "images"
        return BadReply(f"The model {model!r} does not support {what}. {said}.", **where)
    if is_load_words(words):
        return BadReply(
            f"The model {model!r} could not be loaded or stopped while running. {said}. "
            "A smaller num_ctx or a smaller model needs less memory.",
            **where,
        )
    code = f" (HTTP {status})" if status is not None else ""
    return BadReply(f"{server} reported an error{code}. {said}.", **where)


def is_load_words(words: str) -> bool:
    """Whether a server's words tell of a model that did not load or of memory that ran out."""
    return bool(_LOAD.search(words))


def is_load_failure(error: BaseException) -> bool:
    """Whether a call failed because the model could not be loaded; a smaller ``num_ctx`` may then do."""
    return isinstance(error, BadReply) and is_load_words(error.server_words)


def lacks_capability(error: BaseException) -> str:
    """What the model lacks by the server's word ("tools", "thinking", "images"), or ""."""
    if not isinstance(error, BadReply):
        return ""
    match = _LACKS.search(error.server_words)
    return "" if match is None else match["what"] or "images"
