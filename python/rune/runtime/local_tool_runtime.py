"""One run against a local model: the call, the tools it asks for, the next call, until there is an answer.

What ``run`` received is kept exactly (``received``), and what came of it so far is at hand at every moment (``result``), so
that an interrupt or a broken connection loses nothing that had arrived.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rune import paths
from rune.context.turns import message_tokens
from rune.errors import BadReply, InvalidInput, StreamCut
from rune.kernels import EstimatorLike
from rune.messages import Message, compact_json, copy_message
from rune.runtime.approvals import Decision
from rune.runtime.call_filter import CallFilter
from rune.runtime.events import OnEvent, RunEvent, ToolFinished, ToolStarted
from rune.runtime.fallback_prompt import FallbackPrompt, ToolMode, as_text, shared_prompt
from rune.runtime.room import Dropped, RoomRule
from rune.runtime.services import Services
from rune.runtime.task_state import new_id
from rune.runtime.text_calls import ReadReply, read_native, read_text, tool_parameters
from rune.runtime.tool_choice import unasked, usable
from rune.runtime.tool_executor import TOOLS, Approve, Tool, ToolContext, ToolExecutor, ToolOutcome
from rune.runtime.tool_plugins import plugins
from rune.runtime.tool_results import ResultStore
from rune.runtime.tools import shared_schema
from rune.runtime.workspace import Workspace
from rune.transports.base import ChatReply, TextDelta, Transport
from rune.transports.discovery import _model_capabilities, context_length

__all__ = ["MAX_STEPS", "PENDING", "LocalToolRuntime", "RunResult", "_model_capabilities", "context_length"]

MAX_STEPS = 8
PENDING = "pending"
"""``done_reason`` of a run that waits for a person's approval of a call."""
SAME_CALL_MAX = 3
"""The same call with the same arguments is made this often less one; asked for again, the run stops."""


@dataclass(slots=True)
class RunResult:
    """What came of a run, or has come of it so far.

    ``text`` is the answer (the part that arrived, when the run broke off). ``new_messages`` are the run's own messages in
    normal form, thinking included, every call with its result. ``replies`` are the model's answers in order; ``tool_events``
    the calls that were made or refused; ``dropped`` what made way in the tool loop.

    ``done_reason``: the server's word for the last answer ("stop", "length", …), or "step_limit", "loop", "cancelled",
    "pending"; "" while the run goes on. ``note`` says in one sentence why a run stopped without an answer of the model's.

    ``made`` counts the calls that were made, by tool and arguments. Of a run that is pending, ``waiting`` are the calls
    without a result, the one that needs an approval first, and ``sent`` is ``new_messages`` as the model was sent them, with
    lines where results made way.
    """

    text: str = ""
    new_messages: list[Message] = field(default_factory=list)
    replies: list[ChatReply] = field(default_factory=list)
    done_reason: str = ""
    tool_events: list[ToolOutcome] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    note: str = ""
    made: Counter[str] = field(default_factory=Counter)
    waiting: list[dict[str, Any]] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)
    replies_before: int = 0
    events_before: int = 0

    def begin_again(self) -> None:
        """For another model that goes on from here: limits of steps and of equal calls count anew. What was done stays."""
        self.replies_before, self.events_before = len(self.replies), len(self.tool_events)
        self.made = Counter()

    @property
    def stopped(self) -> bool:
        """Whether the run ended without an answer of the model's: at its limit, in a loop, or cancelled."""
        return self.done_reason in ("step_limit", "loop", "cancelled")


class LocalToolRuntime:
    """Runs message lists on one model of one transport. One run at a time; another thread takes another runtime.

    Attributes:
        model: the model's name.
        tool_mode: how the model is given tools ("native", "text"); None finds it out from what its server says.
        received: a deep copy of the messages that the last ``run`` was given; None before the first.
        result: the result of the last run, also while it goes on and after it failed.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        model: str,
        tools: Mapping[str, Tool] | Iterable[Tool] | None = None,
        workspace: Workspace | Path | str | None = None,
        home: Path | str | None = None,
        run_id: str = "",
        max_steps: int = MAX_STEPS,
        approve: Approve | None = None,
        services: Services | None = None,
        pends: bool = False,
        decision: Decision | None = None,
        tool_mode: ToolMode | None = None,
    ) -> None:
        """``tools`` are those of ``TOOLS`` that are on by default when None; ``workspace`` is the current folder when None.

        ``approve`` decides on calls of tools that need an approval; those that it does not approve (all, when None) are
        refused, or end the run as pending where ``pends``. ``decision`` is that on the first waiting call of a run to resume.
        ``services`` is what tools use of the rest of Rune. ``max_steps`` bounds the model calls of one run. Raises
        InvalidInput when it is less than 1.
        """
        if type(max_steps) is not int or max_steps < 1:
            raise InvalidInput(f"max_steps must be a whole number of model calls, 1 or more, not {max_steps!r}")
        services = services or Services()
        if tools is None:
            plugins()  # of other packages, loaded on first use
            there = usable(TOOLS.values(), memory=services.memory is not None, http=False)
            tools = [there[name] for name in unasked(there.values())]
        elif isinstance(tools, Mapping):
            tools = tools.values()
        run_id = run_id or new_id()
        folder = paths.tool_results_dir(home)
        if not isinstance(workspace, Workspace):
            workspace = Workspace("." if workspace is None else workspace, closed=[folder.parent.parent])
        context = ToolContext(workspace, ResultStore(folder, run_id), run_id, services=services)
        self.transport = transport
        self.model = model
        self.max_steps = max_steps
        self.tool_mode = tool_mode
        self.received: list[Message] | None = None
        self.result = RunResult()
        self.pends = pends
        self.decision = decision
        self._prompts: dict[tuple[str, ...], FallbackPrompt] = {}
        self._executor = ToolExecutor({tool.name: tool for tool in tools}, context, approve=approve)

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools of the allowlist by name."""
        return self._executor.tools

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The allowlist: the tools that this runtime may run at all."""
        return tuple(self._executor.tools)

    @property
    def workspace(self) -> Workspace:
        """Where the tools work."""
        return self._executor.context.workspace

    def schemas(self, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """The schemas of the named tools (of all when None), as they are sent, not to be changed. Raises InvalidInput for an
        unknown name."""
        return [shared_schema(tool) for tool in self._named(names)]

    def fallback_prompt(self, names: Iterable[str] | None = None) -> FallbackPrompt:
        """What a model without tools of its own is told of the named ones (of all when None). Raises InvalidInput."""
        tools = self._named(names)
        key = tuple(tool.name for tool in tools)
        if key not in self._prompts:
            made = shared_prompt(tools)
            # The tools that it has room for stand for the same prompt.
            self._prompts[key] = self._prompts[made.names] = made
        return self._prompts[key]

    def keep_prompt(self, prompt: FallbackPrompt) -> None:
        """Tells of the tools in ``prompt`` as it does, whatever would be written of them today: a turn that goes on."""
        self._prompts[prompt.names] = prompt

    def as_sent(self, messages: Sequence[Message], names: Iterable[str] = ()) -> list[Message]:
        """The messages as the transport gets them when the named tools are offered: the same, or written out as text."""
        if self.tool_mode != "text":
            return list(messages)
        return as_text(messages, self.fallback_prompt(names).text)

    def written_out(self, messages: Sequence[Message], estimator: EstimatorLike) -> int:
        """Tokens that messages take more when they are written out as text; 0 for a model that takes them as they are."""
        if self.tool_mode != "text":
            return 0
        return max(0, message_tokens(as_text(messages), estimator) - message_tokens(messages, estimator))

    def _named(self, names: Iterable[str] | None) -> list[Tool]:
        known = self._executor.tools
        names = known if names is None else list(names)
        for name in names:
            if name not in known:
                raise InvalidInput(f"there is no tool {name!r}; there are: {', '.join(known) or 'none'}")
        return [known[name] for name in names]

    def _find_mode(self, named: bool) -> ToolMode:
        """Tools go into the request of a model that takes them, and into the prompt of any other; tools that were asked for
        by name also into the request of one of which nothing is known: its server may say no."""
        capabilities = _model_capabilities(self.model, self.transport)
        if capabilities is None:
            return "native" if named else "text"
        return "native" if "tools" in capabilities else "text"

    def run(
        self,
        messages: Sequence[Message],
        *,
        num_ctx: int | None = None,
        num_predict: int | None = None,
        tools: Sequence[str] | Callable[[], Sequence[str]] | None = None,
        room: RoomRule | None = None,
        on_event: OnEvent | None = None,
        cancel: threading.Event | None = None,
        resume: RunResult | None = None,
        **passthrough: Any,
    ) -> RunResult:
        """Sends messages in normal form, runs the tools that are asked for, and goes on until there is an answer.

        Args:
            tools: names of the tools to offer, or a function that gives them before every call; None offers all.
            room: asked before every further call for what may be sent (see ``rune.runtime.room``).
            resume: the result of an earlier attempt at the same task: its calls are not made again.
            passthrough: further arguments of ``Transport.chat`` (format, think, keep_alive, options, …).

        With ``cancel`` set the run ends where it is: ``done_reason`` "cancelled" and what had arrived.

        Raises:
            TransportError, ContextOverflowError (origin "tool_loop"), InvalidInput (an unknown tool name). What had come until
            then is in ``result``.
        """
        self.received = [copy_message(message) for message in messages]
        result = self.result = resume or RunResult()
        result.done_reason = result.note = ""
        if self.tool_mode is None and self._executor.tools and (tools is None or tools):
            self.tool_mode = self._find_mode(named=tools is not None)
        names = self.tool_names if tools is None else tools
        offered = names if callable(names) else lambda: names
        loop = _Loop(self, result, list(messages), offered, on_event, cancel)
        loop.run(room, {"num_ctx": num_ctx, "num_predict": num_predict, **passthrough})
        return result


class _Loop:
    """The calls of one ``run``."""

    def __init__(
        self,
        runtime: LocalToolRuntime,
        result: RunResult,
        given: list[Message],
        offered: Callable[[], Sequence[str]],
        on_event: Callable[[RunEvent], None] | None,
        cancel: threading.Event | None,
    ) -> None:
        self.runtime = runtime
        self.executor = runtime._executor
        self.result = result
        self.given = given
        # As sent: results that made way are lines here, and whole in the result.
        self.own = list(result.sent or result.new_messages)
        result.sent = []
        self.text = runtime.tool_mode == "text"
        self.offered = offered
        self.names = self._names()
        self.parameters = tool_parameters(self.executor.tools)
        self.on_event = on_event
        self.cancel = cancel
        self.made = result.made

    @property
    def cancelled(self) -> bool:
        return self.cancel is not None and self.cancel.is_set()

    def run(self, room: RoomRule | None, arguments: dict[str, Any]) -> None:
        if self.result.waiting and not self.cancelled and not self._answer(self.result.waiting, self.runtime.decision):
            return None
        while True:
            if self.cancelled:
                return self._stop("cancelled", "cancelled")
            if len(self.result.replies) - self.result.replies_before >= self.runtime.max_steps:
                return self._stop(
                    "step_limit", f"Stopped after {len(self.result.replies)} model calls without an answer."
                )
            if self.own and room is not None:
                fitted = room(self.given, self.own, self._keep)
                self.own = list(fitted.messages)
                self.result.dropped += fitted.dropped
                sizes = {"num_ctx": fitted.num_ctx, "num_predict": fitted.num_predict}
                arguments |= {name: value for name, value in sizes.items() if value is not None}
            self.names = self._names()
            reply = self._ask(arguments)
            if reply is None:
                return self._stop("cancelled", "cancelled")
            read = self._read(reply)
            self._add(read.message)
            self.result.text = read.message["content"]
            if not read.calls:
                self.result.done_reason = reply.done_reason
                return None
            if not self._answer(read.calls, errors=read.errors):
                return None

    def _ask(self, arguments: dict[str, Any]) -> ChatReply | None:
        """The next reply, or None when the run was cancelled meanwhile."""
        came: list[str] = []
        shown: CallFilter | None = None
        if self.text and self.names and self.on_event is not None:
            shown = CallFilter(self.parameters, lambda text: self._tell(TextDelta(text)))

        def hear(event: RunEvent) -> None:
            if isinstance(event, TextDelta):
                came.append(event.text)
                if shown is not None:
                    return shown.feed(event.text)
            return self._tell(event)

        try:
            reply = self.runtime.transport.chat(
                self.runtime.as_sent([*self.given, *self.own], self.names),
                model=self.runtime.model,
                tools=[] if self.text else self.runtime.schemas(self.names),
                on_event=hear,
                cancel=self.cancel,
                **arguments,
            )
        except KeyboardInterrupt:
            self.result.text = "".join(came) or self.result.text  # what was shown is part of the record
            raise
        except (StreamCut, BadReply) as exc:
            if shown is not None:
                shown.finish()
            if exc.partial_text:
                self.result.text = exc.partial_text
            if self.cancelled:
                return None
            raise
        if shown is not None:
            shown.finish()
        self.result.replies.append(reply)
        return reply

    def _read(self, reply: ChatReply) -> ReadReply:
        seed = f"{self.executor.context.run_id} {len(self.result.replies)}"
        parameters = self.parameters if self.names else {}
        results = [message["content"] for message in (*self.given, *self.own) if message["role"] == "tool"]
        return (read_text if self.text else read_native)(reply, parameters, seed=seed, results=results)

    def _names(self) -> list[str]:
        """The tools of the next call. Raises InvalidInput for one that there is not."""
        return [tool.name for tool in self.runtime._named(self.offered())]

    def _answer(
        self,
        calls: Sequence[dict[str, Any]],
        decision: Decision | None = None,
        errors: Mapping[int, str] | None = None,
    ) -> bool:
        """Runs the calls of one reply in their order, so that each has its result; False when the run is to stop.

        ``decision`` is that on the first of them. A call that waits for one ends the run, and those behind it wait as well.
        ``errors``: what the model is told instead of making a call, by its position.
        """
        stop: tuple[str, str] | None = None
        waiting = list(calls)
        self.result.waiting = []
        try:
            while waiting:
                call = waiting[0]
                name, given = str(call["function"]["name"]), call["function"].get("arguments")
                signature = _signature(name, given)
                if stop is None and self.cancelled:
                    stop = ("cancelled", "cancelled")
                if stop is None and self.made[signature] + 1 >= SAME_CALL_MAX:
                    stop = (
                        "loop",
                        f"Stopped: the model asked for the same call of {name} {SAME_CALL_MAX} times, with the same "
                        "arguments, and would go on so.",
                    )
                error = (errors or {}).get(len(calls) - len(waiting))
                asks = error is None and decision is None and self.runtime.pends
                if stop is None and asks and self.executor.waits(call):
                    self.result.waiting, waiting = waiting, []
                    self.result.sent = list(self.own)
                    self._stop(PENDING, f"waiting for an approval of {name}")
                    return False
                if stop is not None:
                    outcome = self.executor.refuse(call, stop[1])
                else:
                    self.made[signature] += 1
                    if error:
                        outcome = self.executor.refuse(call, error)
                    else:
                        if decision is None or decision.approved:
                            changed = None if decision is None else decision.arguments
                            self._tell(
                                ToolStarted(name, given if changed is None else changed, len(self.result.replies))
                            )
                        outcome = self.executor.execute(call, self.cancel, decision)
                decision = None
                del waiting[0]
                self._took(outcome)
        finally:
            for call in waiting:  # interrupted: no call is left without its result
                self._took(self.executor.refuse(call, "interrupted"), tell=False)
        if stop is not None:
            self._stop(*stop)
        return stop is None

    def _took(self, outcome: ToolOutcome, *, tell: bool = True) -> None:
        self.result.tool_events.append(outcome)
        self._add(outcome.message())
        if tell:
            step = len(self.result.replies)
            self._tell(ToolFinished(outcome.name, step, outcome.ok, outcome.text, outcome.elapsed_ms, outcome.kept))

    def _add(self, message: Message) -> None:
        self.own.append(message)
        self.result.new_messages.append(message)

    def _stop(self, reason: str, note: str) -> None:
        self.result.done_reason, self.result.note = reason, note

    def _tell(self, event: RunEvent) -> None:
        if self.on_event is not None:
            self.on_event(event)

    def _keep(self, message: Message) -> str:
        """Keeps the text of a result on disk; one that was kept when it came has its name already."""
        for event in self.result.tool_events:
            if event.kept and event.text == message["content"]:
                return event.kept
        return self.executor.context.results.keep(message["content"])


def _signature(name: str, arguments: Any) -> str:
    if isinstance(arguments, Mapping):
        arguments = dict(sorted(arguments.items()))
    return f"{name} {compact_json(arguments)}"
