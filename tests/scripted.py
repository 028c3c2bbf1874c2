"""The scripted model: a transport that keeps exactly what it was sent and answers from a script.

    transport = ScriptedTransport([calls(("read_file", {"path": "a.txt"})), "It says hello."])
    transport.sent[0].messages     # a deep copy of what the first call was given

A step is a text, a ``ChatReply``, an exception to raise, or a function of the call that returns one of these. The last step
is played from then on when ``repeat`` is set; else a call past the end fails the test.
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rune.errors import StreamCut, TransportError
from rune.messages import Message
from rune.transports.base import ChatReply, ModelListing, TextDelta, UsageCounters, Verdict
from rune.transports.discovery import ModelFacts
from rune.transports.measure import chars4_tokens

__all__ = ["FACTS", "ScriptedTransport", "Sent", "calls", "reply"]

FACTS = ModelFacts(
    "scripted",
    trained_window=8192,
    capabilities=frozenset({"completion", "tools"}),
    vocab_size=49152,
    family="llama",
    source="/api/show",
)


@dataclass
class Sent:
    """One call as it came in."""

    messages: list[Message]
    model: str
    tools: list[Mapping[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def tool_names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.tools]


Step = str | ChatReply | BaseException | Callable[[Sent], Any]


def reply(text: str = "", **values: Any) -> ChatReply:
    """An answer with counts; ``prompt_tokens`` is the estimate of what was sent unless given."""
    return ChatReply(text, **{"done_reason": "stop", "verdict": Verdict("whole", "scripted"), **values})


def calls(*wanted: tuple[str, Any], text: str = "", **values: Any) -> ChatReply:
    """An answer that asks for tools: ``calls(("read_file", {"path": "a"}), …)``."""
    made = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(wanted)
    ]
    return reply(text, tool_calls=made, **values)


class ScriptedTransport(UsageCounters):
    """Answers from a script. ``facts`` is what it says of its model (an exception is raised instead)."""

    provider: ClassVar[str] = "ollama"
    _numbers = itertools.count()

    def __init__(
        self,
        script: Iterable[Step] = (),
        *,
        facts: ModelFacts | Exception | None = FACTS,
        repeat: bool = False,
        refuses: bool | None = True,
        fixed_window: bool = False,
        loaded: Callable[[], int | None] | None = None,
    ) -> None:
        super().__init__()
        self.script: list[Step] = list(script)
        self.sent: list[Sent] = []
        self.facts = facts
        self.facts_asked = 0
        self.fixed_window = fixed_window
        self.closed = False
        self._repeat = repeat
        self._refuses = refuses
        self._lock = threading.Lock()
        self._key = f"scripted {next(self._numbers)}"
        if loaded is not None:
            self.loaded_window = lambda model: loaded()

    @property
    def server_key(self) -> str:
        return self._key

    def chat(
        self,
        messages: Sequence[Message],
        *,
        model: str,
        tools: Sequence[Mapping[str, Any]] = (),
        on_event: Callable[[Any], None] | None = None,
        cancel: threading.Event | None = None,
        **options: Any,
    ) -> ChatReply:
        sent = Sent(copy.deepcopy(list(messages)), model, copy.deepcopy(list(tools)), copy.deepcopy(options))
        with self._lock:
            number = len(self.sent)
            self.sent.append(sent)
            step = self.script[min(number, len(self.script) - 1) if self._repeat else number]
        while callable(step):
            step = step(sent)
        if isinstance(step, BaseException):
            raise step
        answer = copy.deepcopy(step) if isinstance(step, ChatReply) else reply(step)
        for word in answer.text.split(" ") if answer.text and on_event else ():
            on_event(TextDelta(word + " "))
        if cancel is not None and cancel.is_set():
            raise StreamCut("The call was cancelled.", partial_text=answer.text)
        if answer.prompt_tokens is None:
            answer.prompt_tokens = chars4_tokens(messages, tools)
        elif answer.prompt_tokens < 0:
            answer.prompt_tokens = None
        answer.output_tokens = max(1, len(answer.text) // 4) if answer.output_tokens is None else answer.output_tokens
        answer.total_duration_ns = answer.total_duration_ns or 1_000_000
        answer.model, answer.num_ctx = model, options.get("num_ctx") or 0
        answer.num_predict = options.get("num_predict") or 0
        self.count(answer)
        return answer

    def fetch_facts(self, model: str) -> ModelFacts:
        with self._lock:
            self.facts_asked += 1
        if isinstance(self.facts, Exception):
            raise self.facts
        if self.facts is None:
            raise TransportError("there are no facts")
        return self.facts

    def models(self) -> list[ModelListing]:
        return [ModelListing("scripted", chat=True)]

    def can_refuse(self) -> bool | None:
        return self._refuses

    def close(self) -> None:
        self.closed = True
