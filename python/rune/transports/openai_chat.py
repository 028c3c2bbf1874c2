"""The body of a ``/v1/chat/completions`` request. No IO; ``openai_reply.py`` reads what comes back.

Every request is streamed, so that it can be cancelled, and asks for the counts, which a stream leaves out otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rune.errors import InvalidInput, PromptRefused
from rune.messages import Message
from rune.transports.measure import chars4_tokens
from rune.transports.ollama_chat import PromptSize, token_limit
from rune.transports.wire import openai_messages, utf8_size, wire_digest, wire_value, word_count

__all__ = ["ChatRequest", "build_request", "response_format", "with_room"]

_NOT_ON_THIS_WIRE = frozenset({"num_ctx", "num_keep", "num_predict", "num_gpu", "num_thread", "num_batch", "use_mmap"})
"""Ollama's options for loading a model; other servers ignore them, or refuse a request for them."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request ready to be sent, and what the verdict needs to know of it. ``num_ctx`` 0: the window is unknown."""

    body: dict[str, Any]
    model: str
    num_ctx: int
    num_predict: int
    size: PromptSize
    wire_digest: str
    notes: tuple[str, ...] = ()


def build_request(
    messages: Sequence[Message],
    *,
    model: str,
    window: int | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    num_predict: int | None = None,
    format: Any = None,
    think: bool | str | None = None,
    options: Mapping[str, Any] | None = None,
    estimate: int | None = None,
    extra: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> ChatRequest:
    """The request for a message list in normal form.

    ``num_predict`` goes out as ``max_tokens``; without it the server decides. ``options`` are sampling parameters and go out
    by their own names at the top of the body; ``extra`` is what one kind of server wants besides.

    Raises:
        InvalidInput: a count of tokens that is none, no model, or a format that is none.
    """
    if not model:
        raise InvalidInput("no model was named; give one, or set RUNE_MODEL")
    given = dict(options or {})
    num_predict = token_limit(num_predict, "num_predict")
    if num_predict is None:
        # In Ollama's options 0 and less mean "no limit".
        limit = given.get("num_predict", given.get("max_tokens"))
        unlimited = isinstance(limit, (int, float)) and not isinstance(limit, bool) and limit <= 0
        num_predict = None if unlimited else token_limit(limit, "options.num_predict")
    wire = openai_messages(messages)
    schemas = wire_value(list(tools))
    body: dict[str, Any] = {"model": wire_value(model), "messages": wire}
    if schemas:
        body["tools"] = schemas
    body |= {"stream": True, "stream_options": {"include_usage": True}, **(extra or {})}
    body |= {key: wire_value(value) for key, value in given.items() if key not in _NOT_ON_THIS_WIRE}
    body.pop("max_tokens", None)
    if num_predict is not None:
        body["max_tokens"] = num_predict
    body |= wire_value(response_format(format))
    if isinstance(think, str):
        body["reasoning_effort"] = wire_value(think)
    elif think is not None:
        body["chat_template_kwargs"] = {**(body.get("chat_template_kwargs") or {}), "enable_thinking": think}
    size = PromptSize(
        chars4_tokens(messages, tools) if estimate is None else estimate,
        utf8_size(wire, schemas),
        word_count(wire),
        len(wire),
    )
    return ChatRequest(body, model, window or 0, num_predict or 0, size, wire_digest(wire), tuple(notes))


def response_format(format: Any) -> dict[str, Any]:
    """The fields of the body that force a format: "json", a JSON schema, ``{"grammar": text}``, or OpenAI's own form.

    Raises:
        InvalidInput: none of these.
    """
    if format is None or format == "":
        return {}
    if format == "json":
        return {"response_format": {"type": "json_object"}}
    if isinstance(format, Mapping):
        if set(format) == {"grammar"}:
            return {"grammar": format["grammar"]}
        if format.get("type") in ("json_object", "json_schema", "text") and "properties" not in format:
            return {"response_format": dict(format)}
        schema = {"name": "reply", "strict": True, "schema": dict(format)}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    raise InvalidInput(f'format must be "json", a JSON schema or {{"grammar": …}}, not {str(format)[:40]!r}')


def with_room(request: ChatRequest, refusal: PromptRefused) -> ChatRequest | None:
    """The same request with a shorter reply, when the server refused it for the length of the reply alone.

    Some servers refuse when prompt and ``max_tokens`` together are over the window, in the words of a refused prompt.
    """
    prompt, window = refusal.n_prompt_tokens, refusal.n_ctx
    if not request.num_predict or prompt is None or window is None:
        return None
    room = window - prompt
    if not 0 < room < request.num_predict:
        return None
    note = f"the reply was limited to {room} tokens, what {prompt} prompt tokens leave of a window of {window}"
    return replace(request, body={**request.body, "max_tokens": room}, num_predict=room, notes=(*request.notes, note))
