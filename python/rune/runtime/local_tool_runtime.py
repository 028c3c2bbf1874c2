"""``LocalToolRuntime``: sends the assembled messages to the model, runs the tools it calls, and sends their results back."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rune.errors import ToolError
from rune.messages import Message, compact_json
from rune.runtime.tool_executor import Tool, ToolContext, execute
from rune.transports.base import ChatReply, Event, Transport
from rune.transports.discovery import _model_capabilities, context_length

__all__ = ["LocalToolRuntime", "RunResult", "ToolFinished", "ToolStarted", "_model_capabilities", "context_length"]

SAME_CALL_MAX = 3


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """The model called a tool."""

    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """A tool answered; ``error`` says that it could not."""

    name: str
    result: str
    error: bool


RunEvent = Event | ToolStarted | ToolFinished


@dataclass(slots=True)
class RunResult:
    """What a run gave: the answer, the messages that it added (thinking included), and every reply of the model."""

    text: str = ""
    new_messages: list[Message] = field(default_factory=list)
    replies: list[ChatReply] = field(default_factory=list)
    done_reason: str = ""
    tool_calls: int = 0
    stopped: str = ""


class LocalToolRuntime:
    """The tool loop over one transport and model.

    ``tools``: what the model may call, by name (the allowlist); ``tool_names`` are their names. ``received`` is the exact
    message list of the last ``run``. ``replies`` holds the replies of the last run, also of one that failed.
    ``max_steps``: model calls of one run at most.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        model: str,
        tools: Mapping[str, Tool] | None = None,
        context: ToolContext | None = None,
        max_steps: int = 12,
    ) -> None:
        self.transport = transport
        self.model = model
        self.tools = dict(tools or {})
        self.context = context
        self.max_steps = max_steps
        self.received: list[Message] = []
        self.replies: list[ChatReply] = []

    @property
    def tool_names(self) -> list[str]:
        """The allowlist."""
        return list(self.tools)

    def run(
        self,
        messages: Sequence[Message],
        *,
        num_ctx: int,
        num_predict: int,
        tools: Sequence[str] = (),
        room: Callable[[list[Message]], list[Message]] | None = None,
        on_event: Callable[[Any], None] | None = None,
        cancel: threading.Event | None = None,
        **passed: Any,
    ) -> RunResult:
        """Asks the model until it answers in text.

        ``tools``: the names whose schemas are sent. ``room`` makes a grown message list fit before each further call, or
        raises. ``passed`` goes to every call of the transport as it is.

        Raises: what the transport raises; ``received`` and ``replies`` are then as far as they got.
        """
        self.received = copy.deepcopy(list(messages))
        self.replies = []
        result = RunResult(replies=self.replies)
        current = list(messages)
        schemas = [self.tools[name].schema() for name in tools]
        seen: dict[str, int] = {}
        for step in range(1, self.max_steps + 1):
            if step > 1 and room is not None:
                current = room(current)
            reply = self.transport.chat(
                current,
                model=self.model,
                tools=schemas,
                num_ctx=num_ctx,
                num_predict=num_predict,
                on_event=on_event,
                cancel=cancel,
                **passed,
            )
            self.replies.append(reply)
            message = reply.message()
            current.append(message)
            result.new_messages.append(message)
            result.text, result.done_reason = reply.text, reply.done_reason
            if not reply.tool_calls:
                return result
            for call in reply.tool_calls:
                answer = self._answer(call, seen, on_event)
                result.tool_calls += 1
                current.append(answer)
                result.new_messages.append(answer)
            if any(count > SAME_CALL_MAX for count in seen.values()):
                result.stopped = "the model repeated the same tool call and was stopped"
                return result
        result.stopped = f"the model did not come to an answer in {self.max_steps} calls"
        return result

    def _answer(self, call: Mapping[str, Any], seen: dict[str, int], on_event: Callable[[Any], None] | None) -> Message:
        function = call["function"]
        name, arguments = function["name"], function.get("arguments")
        key = compact_json([name, arguments])
        seen[key] = seen.get(key, 0) + 1
        if on_event is not None:
            on_event(ToolStarted(name, arguments))
        error = False
        try:
            found = self.tools.get(name)
            if found is None:
                raise ToolError(f"there is no tool {name!r}; there are {', '.join(self.tools) or 'none'}")
            if self.context is None:
                raise ToolError("no workspace is set for tools")
            if seen[key] >= SAME_CALL_MAX:
                raise ToolError(f"{name} was called {SAME_CALL_MAX} times with the same arguments; answer with what is known")
            text = execute(found, arguments, self.context)
        except ToolError as exc:
            text, error = f"error: {exc}", True
        if on_event is not None:
            on_event(ToolFinished(name, text, error))
        message: Message = {"role": "tool", "content": text}
        if call.get("id"):
            message["tool_call_id"] = call["id"]
        message["tool_name"] = name
        return message
