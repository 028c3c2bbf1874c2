"""The body of a ``/api/chat`` request, and a reply put together from the objects that come back. No IO.

Every request asks the server to refuse rather than to cut (``truncate: false``) and not to shift the window while it writes
(``shift: false``), with a window and a length of its own: left to itself a server uses 4096 tokens and cuts in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rune.errors import BadReply, InvalidInput, TransportError
from rune.messages import Message, normalise_one
from rune.transports.base import ChatReply, Event, TextDelta, ThinkingDelta, Verdict
from rune.transports.discovery import ModelFacts
from rune.transports.measure import chars4_tokens
from rune.transports.ollama_version import Version, effective_window, traits
from rune.transports.server_errors import read_error, to_exception
from rune.transports.verdict import judge
from rune.transports.wire import ollama_messages, utf8_size, wire_digest, wire_value, word_count

__all__ = ["ChatRequest", "PromptSize", "ReplyBuilder", "build_request", "is_remote_name", "judge_reply", "token_limit"]


TEMPLATE_TOKENS_PER_MESSAGE = 16
TEMPLATE_TOKENS_UNKNOWN = 1024
"""What a template may add when it is not known: default system prompts and tool preambles of known models stay below."""


@dataclass(frozen=True, slots=True)
class PromptSize:
    """What is known of a prompt's size: ``chars4`` tokens, UTF-8 bytes, words parted by whitespace, number of messages."""

    estimate: int
    utf8_bytes: int
    words: int
    messages: int

    def upper_bound(self, added_bytes: int | None) -> int:
        """The most tokens that a byte-level tokenizer can make of it, with what the template may add."""
        overhead = TEMPLATE_TOKENS_UNKNOWN if added_bytes is None else added_bytes
        return self.utf8_bytes + TEMPLATE_TOKENS_PER_MESSAGE * (self.messages + 1) + overhead


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request ready to be sent, and what the verdict needs to know of it."""

    body: dict[str, Any]
    model: str
    num_ctx: int
    num_predict: int
    num_keep: int | None
    size: PromptSize
    wire_digest: str


def token_limit(value: Any, name: str) -> int | None:
    """A count of tokens given by a caller: None, or an integer (or integral float) from 1 to 2^31-1.

    Raises:
        InvalidInput: anything else; 0 or less would make a server take a window of 4 tokens.
    """
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**31 - 1:
        raise InvalidInput(f"{name} must be a whole number of tokens from 1 to 2147483647, not {value!r}")
    return value


def is_remote_name(model: str) -> bool:
    """Whether the name itself says that the local server hands the call to a cloud."""
    return model.endswith((":cloud", "-cloud"))


def build_request(
    messages: Sequence[Message],
    *,
    model: str,
    num_ctx: int,
    num_predict: int | None = None,
    num_keep: int | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    format: Any = None,
    think: bool | str | None = None,
    keep_alive: str | int | None = None,
    options: Mapping[str, Any] | None = None,
    estimate: int | None = None,
    stream: bool = True,
) -> ChatRequest:
    """The request for a message list in normal form.

    ``num_ctx`` is the window to run; the caller's other ``options`` go out as they are. Without ``num_predict`` (its own or
    in ``options``; 0 and less mean "no limit" there) the reply may fill what ``estimate`` leaves of the window.

    Raises:
        InvalidInput: a count of tokens that is none, or no model.
    """
    if not model:
        raise InvalidInput("no model was named; give one, or set RUNE_MODEL")
    sent: dict[str, Any] = wire_value(dict(options or {}))
    estimate = chars4_tokens(messages, tools) if estimate is None else estimate
    num_predict = token_limit(num_predict, "num_predict")
    if num_predict is None and _limits(sent.get("num_predict")):
        num_predict = token_limit(sent["num_predict"], "options.num_predict")
    if num_predict is None:
        num_predict = max(1, num_ctx - 1 - estimate)
    if num_keep is None and "num_keep" in sent:
        num_keep = sent["num_keep"] if isinstance(sent["num_keep"], int) else None
    sent["num_ctx"] = num_ctx
    sent["num_predict"] = num_predict
    if num_keep is not None:
        sent["num_keep"] = num_keep
    wire = ollama_messages(messages)
    schemas = wire_value(list(tools))
    body: dict[str, Any] = {"model": wire_value(model), "messages": wire}
    if schemas:
        body["tools"] = schemas
    body |= {"stream": stream, "truncate": False, "shift": False, "options": sent}
    for name, value in (("format", format), ("think", think), ("keep_alive", keep_alive)):
        if value is not None:
            body[name] = wire_value(value)
    return ChatRequest(
        body=body,
        model=model,
        num_ctx=num_ctx,
        num_predict=num_predict,
        num_keep=num_keep,
        size=PromptSize(estimate, utf8_size(wire, schemas), word_count(wire), len(wire)),
        wire_digest=wire_digest(wire),
    )


def _limits(value: Any) -> bool:
    """Whether an option num_predict sets a limit: Ollama reads 0 and less as none."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value is not None and not (is_number and value <= 0)


@dataclass(slots=True)
class ReplyBuilder:
    """A reply put together from the objects of a stream, or from the one object of a reply that is not streamed."""

    model: str
    url: str = ""
    secrets: tuple[str, ...] = ()
    done: bool = False
    final: dict[str, Any] = field(default_factory=dict)
    remote: str = ""
    _text: list[str] = field(default_factory=list)
    _thinking: list[str] = field(default_factory=list)
    _calls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text that has arrived."""
        return "".join(self._text)

    def feed(self, item: Mapping[str, Any]) -> list[Event]:
        """Takes one object and returns what it adds.

        Raises:
            TransportError: the object is an error of the server's (its kind by ``server_errors``).
            BadReply: the object has a shape that no reply has.
        """
        if item.get("error"):
            raise self.failure(item)
        message = item.get("message")
        if message is not None and not isinstance(message, Mapping):
            raise self.bad(f"a message that is no object: {str(message)[:100]}")
        events: list[Event] = []
        if message is not None:
            events = self._take(message)
        self.remote = str(item.get("remote_host") or item.get("remote_model") or self.remote)
        if item.get("done") is True:
            self.done = True
            self.final = dict(item)
        return events

    def _take(self, message: Mapping[str, Any]) -> list[Event]:
        events: list[Event] = []
        for key, store, kind in (("thinking", self._thinking, ThinkingDelta), ("content", self._text, TextDelta)):
            value = message.get(key)
            if value is None or value == "":
                continue
            if not isinstance(value, str):
                raise self.bad(f"a {key} that is no text: {str(value)[:100]}")
            store.append(value)
            events.append(kind(value))
        if message.get("tool_calls"):
            try:
                calls = normalise_one({"role": "assistant", "content": "", "tool_calls": message["tool_calls"]})
            except InvalidInput as exc:
                raise self.bad(f"a tool call that is none ({exc})") from exc
            for call in calls["tool_calls"]:
                # Ollama numbers the calls inside the function; the number says nothing and would cost tokens on every turn.
                function = {key: value for key, value in call["function"].items() if key != "index"}
                self._calls.append({**call, "function": function})
        return events

    def bad(self, what: str) -> BadReply:
        """The error for something that is no reply."""
        return BadReply(
            f"The server at {self.url} answered with {what}. Is it really Ollama?",
            partial_text=self.text,
            url=self.url,
            server_words=what,
        )

    def failure(self, item: Mapping[str, Any]) -> TransportError:
        """The error for an ``error`` object inside a stream that had begun."""
        error = to_exception(
            read_error(dict(item)), status=None, server="Ollama", url=self.url, model=self.model, secrets=self.secrets
        )
        if isinstance(error, BadReply):
            error.partial_text = self.text
        return error

    def reply(self, request: ChatRequest) -> ChatReply:
        """The reply so far; counts are None where the server gave none (its counters leave out zeros)."""
        final = self.final
        return ChatReply(
            text=self.text,
            thinking="".join(self._thinking),
            tool_calls=list(self._calls),
            done=self.done,
            done_reason=str(final.get("done_reason") or ""),
            prompt_tokens=_count(final.get("prompt_eval_count")) or None,
            output_tokens=_count(final.get("eval_count")),
            total_duration_ns=_count(final.get("total_duration")),
            prompt_duration_ns=_count(final.get("prompt_eval_duration")),
            model=request.model,
            num_ctx=request.num_ctx,
            num_predict=request.num_predict,
            wire_digest=request.wire_digest,
            remote=self.remote,
        )


def judge_reply(
    reply: ChatReply,
    size: PromptSize,
    *,
    version: Version | None,
    facts: ModelFacts | None,
    num_ctx: int | None,
    num_keep: int | None = None,
    asked_to_refuse: bool = True,
    allocated: int | None = None,
) -> Verdict:
    """The verdict of a reply of an Ollama server of this version (see ``verdict``).

    ``num_ctx`` is the value sent, None when none was; ``allocated`` the window that ``/api/ps`` reported for it.
    """
    window = None
    if num_ctx is not None:
        window = effective_window(num_ctx, facts.trained_window if facts is not None else None, version)
        window = min(window, allocated or window)
    return judge(
        traits=traits(version),
        done=reply.done,
        asked_to_refuse=asked_to_refuse,
        prompt_tokens=reply.prompt_tokens,
        output_tokens=reply.output_tokens,
        window=window,
        estimate=size.estimate,
        num_keep=num_keep,
        add_bos=facts.add_bos if facts is not None else None,
        upper_bound=size.upper_bound(facts.added_bytes if facts is not None else None),
        words=size.words,
    )


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value < 2**63 else None
