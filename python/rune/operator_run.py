"""One run of the operator while it goes on, what it gives in the end, and the row that is kept of it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rune.context_broker import MEMORY_BLOCK_NAMES
from rune.errors import ContextOverflowError, PromptRefused, RuneError
from rune.runtime.fallback_prompt import FallbackPrompt, ToolMode
from rune.runtime.local_tool_runtime import PENDING, RunResult
from rune.runtime.task_state import TaskState, new_id
from rune.settings import Settings
from rune.traces.prices import price_of_calls
from rune.transports.base import Usage, Verdict

if TYPE_CHECKING:
    from rune.context.capsule import AttentionCapsule
    from rune.context.conversation import Conversation
    from rune.runtime.approvals import Decision
    from rune.runtime.capability_authority import Capability
    from rune.runtime.events import OnEvent
    from rune.runtime.local_tool_runtime import LocalToolRuntime
    from rune.runtime.num_ctx import NumCtx
    from rune.runtime.router import Route
    from rune.runtime.tool_executor import Tool, ToolOutcome
    from rune.transports.base import Transport
    from rune.transports.discovery import ModelFacts, Window

__all__ = [
    "CANCELLED",
    "PENDING",
    "Asked",
    "OperatorResponse",
    "Resumed",
    "Run",
    "now",
    "record_values",
    "worst_verdict",
]

CANCELLED = "cancelled"
_WORST_FIRST = ("cut", "suspected", "shifted", "incomplete", "unknown", "whole")


def now() -> str:
    """The time, ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(slots=True)
class OperatorResponse:
    """What a run gave.

    Attributes:
        success, text, error: the answer, or in one sentence why there is none; ``text`` may then hold the part that came.
        degraded: subsystems that failed on the way, each once.
        pending_state: what a turn that waits for an approval needs to go on, or None.
        run_id: joins the response, its row and the journal.
        trace: the row of the run, also where it could not be stored; None when none could be built.
        broker_trace: that of the assembly that was sent (a partial one after an overflow), or None.
        verdict: ``{"kind", "basis"}``: whether the model saw the whole prompt; None when no model answered.
        warnings: sentences, and the word ``tools_do_not_fit``.
        done_reason: why the answer ended ("stop", "length", …, "step_limit", "loop", "cancelled", "pending"), or "".
        tool_events: the calls that were made or refused, in order.
        exception: the error itself where one ended the run.
    """

    success: bool
    text: str = ""
    error: str | None = None
    degraded: list[str] = field(default_factory=list)
    pending_state: dict[str, Any] | None = None
    run_id: str = ""
    trace: dict[str, Any] | None = None
    broker_trace: dict[str, Any] | None = None
    verdict: dict[str, str] | None = None
    warnings: list[str] = field(default_factory=list)
    done_reason: str = ""
    tool_events: list[ToolOutcome] = field(default_factory=list)
    exception: RuneError | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What the caller asked of a run besides the task; None where the settings or the server decide. Tokens."""

    num_ctx: int | None = None
    num_predict: int | None = None
    tools: Sequence[str] | None = None
    think: bool | str | None = None
    passed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a run goes on from after an approval: the kept state, the decision, and the tools as the model saw them."""

    state: Mapping[str, Any]
    decision: Decision | None
    tools: Mapping[str, Tool]


@dataclass(slots=True)
class Run:
    """What is known of a run so far. Filled step by step, so that whatever ends it the row can say what there was."""

    task: TaskState
    session: Conversation | None = None
    asked: Asked = field(default_factory=Asked)
    on_event: OnEvent | None = None
    cancel: threading.Event | None = None
    run_id: str = field(default_factory=new_id)
    started: str = field(default_factory=now)
    latency_ms: float = 0.0
    transport: Transport | None = None
    model: str = ""
    facts: ModelFacts | None = None
    window: Window | None = None
    capability: Capability | None = None
    tool_names: tuple[str, ...] = ()
    offered: list[str] = field(default_factory=list)
    schemas: list[dict[str, Any]] = field(default_factory=list)
    tool_mode: ToolMode = "native"
    prompt: FallbackPrompt = field(default_factory=FallbackPrompt)
    capsule: AttentionCapsule | None = None
    broker_trace: dict[str, Any] | None = None
    compaction: list[dict[str, Any]] = field(default_factory=list)
    choice: NumCtx | None = None
    runtime: LocalToolRuntime | None = None
    route: Route | None = None
    result: RunResult = field(default_factory=RunResult)
    answered: int = 0
    usage: Usage = field(default_factory=Usage)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    ext: dict[str, Any] = field(default_factory=dict)
    resumed: Resumed | None = None
    pending: dict[str, Any] | None = None
    success: bool = False
    error: str | None = None
    exception: BaseException | None = None

    @property
    def family(self) -> str:
        """The family of the task by the router, or ""."""
        return "" if self.route is None else self.route.family

    @property
    def cancelled(self) -> bool:
        return self.result.done_reason == CANCELLED or (self.cancel is not None and self.cancel.is_set())

    def fail(self, exc: BaseException) -> None:
        """Notes what ended the run."""
        self.success = False
        self.exception = exc
        interrupted = isinstance(exc, KeyboardInterrupt) or self.cancelled
        self.error = CANCELLED if interrupted else f"{type(exc).__name__}: {exc}"
        if isinstance(exc, ContextOverflowError) and exc.origin == "broker" and exc.trace is not None:
            self.broker_trace = exc.trace

    @property
    def verdict(self) -> Verdict | None:
        """Whether the model saw the whole prompt, over all calls of the run; None when none was answered."""
        exc = self.exception
        if isinstance(exc, PromptRefused) or (isinstance(exc, ContextOverflowError) and exc.origin == "server"):
            return Verdict("refused", str(exc))
        found = worst_verdict([reply.verdict for reply in self.result.replies])
        if hasattr(exc, "partial_text") and (found is None or not found.flagged):
            return Verdict("incomplete", str(exc))
        return found

    def response(self, row: dict[str, Any] | None, degraded: Sequence[str]) -> OperatorResponse:
        """The response of a run that is over."""
        verdict = self.verdict
        return OperatorResponse(
            success=self.success,
            text=self.result.text,
            error=self.error,
            degraded=list(degraded),
            pending_state=self.pending,
            run_id=self.run_id,
            trace=row,
            broker_trace=self.broker_trace,
            verdict=None if verdict is None else {"kind": verdict.kind, "basis": verdict.basis},
            warnings=all_warnings(self),
            done_reason=self.result.done_reason,
            tool_events=list(self.result.tool_events),
            exception=self.exception if isinstance(self.exception, RuneError) else None,
        )


def worst_verdict(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The verdict that says the worst of a run's calls; the first of equals."""
    return min(verdicts, key=lambda verdict: _WORST_FIRST.index(verdict.kind), default=None)


def all_warnings(run: Run) -> list[str]:
    """The broker's warnings and the run's own, each once."""
    ext = (run.broker_trace or {}).get("ext") or {}
    return list(dict.fromkeys([*(ext.get("warnings") or ()), *run.warnings]))


def record_values(run: Run, settings: Settings, degraded: Sequence[str]) -> dict[str, Any]:
    """The arguments of ``build_record`` for a run that is over: the sums of the transport and the words of the broker."""
    capsule, result, verdict, window = run.capsule, run.result, run.verdict, run.window
    remote = any(reply.remote for reply in result.replies)
    ext: dict[str, Any] = {
        "run_id": run.run_id,
        "started": run.started,
        "finished": now(),
        "session": run.session.id if run.session is not None else None,
        "trained_window": None if window is None else window.trained,
        "window_source": None if window is None else window.source,
        "num_ctx": None if run.choice is None else run.choice.num_ctx,
        "num_predict": None if run.choice is None else run.choice.num_predict,
        "num_ctx_reason": None if run.choice is None else run.choice.reason,
        "verdict": None if verdict is None else {"kind": verdict.kind, "basis": verdict.basis},
        "done_reason": result.done_reason,
        "calls": [reply.as_row() for reply in result.replies],
        "attempts": run.attempts,
        "tool_mode": run.tool_mode,
        **run.ext,
        "warnings": all_warnings(run),
    }
    if run.facts is not None and run.facts.kv_bytes_per_token and run.choice is not None:
        ext["kv_cache_bytes"] = run.facts.kv_bytes_per_token * run.choice.num_ctx
    if run.prompt.text:
        ext["fallback_tool_prompt"] = run.prompt.as_row()
    if result.tool_events:
        ext["tools"] = [event.as_row() for event in result.tool_events]
    if run.capability is not None and run.capability.rows:
        ext["capability"] = {"found": run.capability.rows}
    if result.dropped:
        ext["tool_loop"] = {"dropped": [dropped.as_row() for dropped in result.dropped]}
    if not run.success and result.text:
        ext["partial_text"] = result.text
    if isinstance(run.exception, RuneError):
        ext["error_type"] = type(run.exception).__name__
    if isinstance(run.exception, ContextOverflowError):
        ext["overflow"] = {
            name: getattr(run.exception, name)
            for name in ("origin", "block", "block_tokens", "used_before", "served_prompt_tokens", "server_window")
        }
    return {
        "broker_trace": run.broker_trace,
        "usage": run.usage,
        "provider": run.transport.provider if run.transport is not None else "",
        "model": run.model,
        "task_id": run.task.task_id,
        "channel": run.task.channel,
        "latency_ms": run.latency_ms,
        "tools_exposed": run.tool_names,
        "selected_tools": run.offered,
        "capability_reason": "" if run.capability is None else run.capability.reason,
        "find_capability_calls": sum(event.name == "find_capability" for event in result.tool_events),
        "routing_reason": "" if run.route is None else run.route.reason,
        "routing_mode": "" if run.route is None else run.route.mode,
        "task_family": run.family,
        "degraded": degraded,
        "success": run.success,
        "error": run.error,
        "capsule_messages": None if run.runtime is None else run.runtime.received,
        "capsule_content_hashes": {} if capsule is None else capsule.content_hashes(),
        "capsule_token_count": 0 if capsule is None else capsule.token_count,
        "memory_block_names": MEMORY_BLOCK_NAMES,
        "price": price_of_calls(_calls_by_model(run), run.model, settings),
        "remote": remote,
        "ext": ext,
    }


def _calls_by_model(run: Run) -> list[tuple[str, int | None, int | None]]:
    """Every answered call by the model that was asked (a server may give it another name), with its counts."""
    names = [run.model] * len(run.result.replies)
    for attempt in run.attempts:
        names[attempt["first_call"] :] = [attempt["model"]] * (len(names) - attempt["first_call"])
    return [(n, r.prompt_tokens, r.output_tokens) for n, r in zip(names, run.result.replies, strict=True)]
