"""``RuneOperator``: one turn from task to response, and one trace row for it."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rune import contributors as made
from rune.context_broker import (
    MEMORY_BLOCK_NAMES,
    ContextBroker,
    LedgerEntry,
    current_assembly,
    log_calibration,
    memory_disabled,
)
from rune.context_broker import _log_token_usage as log_token_usage
from rune.engines import open_transport
from rune.errors import ContextOverflowError, PromptRefused, RuneError, TransportError
from rune.inference_trace import InferenceTraceStore, price_for
from rune.kernels import BACKEND
from rune.messages import Message, compact_json
from rune.paths import database, journal
from rune.runtime.local_tool_runtime import LocalToolRuntime, RunResult
from rune.runtime.num_ctx import NumCtx, choose_num_ctx, next_step, sticky
from rune.runtime.room import Keep, Room, fit
from rune.runtime.task_state import TaskState
from rune.runtime.tool_executor import TOOLS, Tool
from rune.settings import Settings
from rune.storage.log import DurableLog
from rune.subsystem_health import journal_event, record_failure, turn
from rune.transports.discovery import ModelFacts, Window, facts_or_none, known_facts, resolve_window
from rune.transports.measure import safe_tokens

if TYPE_CHECKING:
    from rune.context.capsule import AttentionCapsule
    from rune.context.conversation import Conversation
    from rune.storage.database import Database
    from rune.transports.base import ChatReply, Transport, Usage

__all__ = ["OperatorResponse", "RuneOperator"]

logger = logging.getLogger("rune.operator")

_PERSONA_PROMPT = (
    "You are Rune, an assistant that runs on this person's own machine. Answer what is asked, briefly and truthfully. "
    "Say so when you do not know, and never make up what a tool or a file says."
)
_PERSONA_QUERY = "Rune personality, tone, values, and how this person wants to be spoken to"
_WORST_FIRST = ("cut", "shifted", "suspected", "incomplete", "unknown", "whole")


class _Cancelled(RuneError):
    """The caller cancelled the run."""


@dataclass(slots=True)
class OperatorResponse:
    """What a run gave.

    Attributes:
        success, text, error: the answer, or one sentence about why there is none; ``text`` may then hold a part of it.
        degraded: subsystems that failed on the way.
        verdict: ``{"kind", "basis"}``: whether the model saw the whole prompt.
        trace: the row of the run (also where it could not be stored); ``broker_trace`` that of the assembly.
        exception: the error itself, or None.
        pending_state: what an interrupted turn needs to go on, or None.
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
    exception: RuneError | None = None


@dataclass(slots=True)
class _Run:
    """One run while it goes on: what was asked, and what is known so far."""

    state: TaskState
    session: Conversation | None
    model: str
    transport: Transport | None = None
    num_ctx: int | None = None
    num_predict: int | None = None
    passed: dict[str, Any] = field(default_factory=dict)
    on_event: Callable[[Any], None] | None = None
    cancel: threading.Event | None = None
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    capsule: AttentionCapsule | None = None
    broker_trace: dict[str, Any] | None = None
    runtime: LocalToolRuntime | None = None
    selected_tools: list[str] = field(default_factory=list)
    result: RunResult | None = None
    attempts: list[dict[str, Any]] = field(default_factory=list)
    replies: list[ChatReply] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    ext: dict[str, Any] = field(default_factory=dict)


class RuneOperator:
    """Runs tasks: broker, runtime, transport, trace, wired together. May be used from several threads.

    ``transport``: the engine; opened by the settings on first use when None, and then closed by ``close``.
    ``home``, ``settings``: where things are kept and how it runs; those of the environment when None.
    ``tools``: what the model may call; the tools of ``TOOLS`` when None.
    """

    def __init__(
        self,
        transport: Transport | None = None,
        model: str | None = None,
        home: Path | str | None = None,
        settings: Settings | None = None,
        *,
        tools: Mapping[str, Tool] | None = None,
    ) -> None:
        self.settings = settings if settings is not None else Settings.load(home)
        self.home = Path(home) if home is not None else self.settings.home
        self.tools = {t.name: t for t in TOOLS.values() if t.default_on} if tools is None else dict(tools)
        self._lock = threading.RLock()
        self._transport = transport
        self._owns_transport = transport is None
        self._model = model or self.settings.model
        self._journal = DurableLog(journal(self.home))
        self._traces = InferenceTraceStore(self.home, self.settings)
        self._databases: dict[bool, Database] = {}
        self._allocated: dict[tuple[str, str], int] = {}
        self._broker = self._context_broker()

    # Engine

    def engine(self) -> tuple[Transport, str]:
        """The transport and the model, opened now if they were not. Raises what ``open_transport`` raises."""
        with self._lock:
            if self._transport is None:
                self._transport, self._model = open_transport(self.settings, model=self._model)
            if not self._model:
                listed = [m.name for m in self._transport.models() if m.chat is not False]
                if not listed:
                    raise TransportError("the server lists no model: name one")
                self._model = listed[0]
            return self._transport, self._model

    def close(self) -> None:
        """Lets go of the engine (if it was opened here), the stores and the files."""
        with self._lock:
            if self._transport is not None and self._owns_transport:
                self._transport.close()
                self._transport = None
            for db in self._databases.values():
                db.close()
            self._databases.clear()
        self._traces.close()
        self._journal.close()

    def __enter__(self) -> RuneOperator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Contributors

    def _context_broker(self) -> ContextBroker:
        """The broker with every contributor of the table registered."""
        broker = ContextBroker(
            context_length=self._window_of,
            estimator=self.settings.estimator,
            layout=self.settings.layout,
            vocab_size=self._vocabulary,
            contributor_timeout_s=self.settings.contributor_timeout_s,
            memory_off=lambda: self.settings.memory_off or memory_disabled(),
        )
        factories = self._contributors()
        inline = {"persona", "session_system", "tools", "history", "user"}
        for spec in made.CONTRIBUTORS:
            broker.register(
                spec.name,
                factories[spec.name],
                bucket=spec.bucket,
                priority=spec.priority,
                evictable=spec.evictable,
                source=spec.source,
                per_model=spec.per_model,
                inline=spec.name in inline,
            )
        return broker

    def _contributors(self) -> dict[str, Any]:
        # The stores are imported when a turn first asks them, so that importing the operator stays quick.
        def recall(task: str) -> str | None:
            from rune.memory.memory_store import cached_recall

            return cached_recall(self._database(), task, budget=3)

        def recall_persona() -> str | None:
            from rune.memory.memory_store import cached_recall

            return cached_recall(self._database(), _PERSONA_QUERY, budget=3, kind="persona")

        def consolidate(task: str, _session: Any, dry: bool) -> str | None:
            from rune.memory.memory_consolidation import MemoryConsolidation

            return MemoryConsolidation(self._database()).collect(task, dry=dry)

        def neurons(task: Any, session: Any) -> Any:
            from rune.memory.warm_neuron_store import list_neurons

            dry = current_assembly().dry
            hours = self.settings.neuron_half_life_hours
            listed = list_neurons(self._database(), made.task_text(task), half_life_hours=hours, dry=dry)
            return made.neurons(lambda: listed)(task, session)

        def connections(task: str) -> str | None:
            from rune.memory.graph_memory import resolve_entity

            return resolve_entity(self._database(), task)

        def facts(task: str) -> str | None:
            from rune.memory.abstraction import connect

            return connect(self._database()).facts(task)

        def profile(model_id: str) -> str | None:
            from rune.memory.model_profiles import get_prompt_context

            notes = (self.settings.models.get(model_id) or {}).get("notes")
            known = known_facts(self._transport, model_id) if self._transport is not None else None
            return get_prompt_context(model_id, known, notes) if known is not None or notes else None

        return {
            "persona": made.persona(_PERSONA_PROMPT),
            "session_system": made.session_system(_PERSONA_PROMPT),
            "tools": made.tools(lambda: list(self.tools)),
            "memory": made.memory(recall),
            "persona_memories": made.persona_memories(recall_persona),
            "consolidated": made.consolidated(consolidate),
            "neurons": neurons,
            "graphs": made.graphs(connections),
            "abstraction": made.abstraction(facts),
            "model_profile": made.model_profile(profile),
            "history": self._conversation_messages(),
            "user": made.user(),
        }

    def _conversation_messages(self) -> Any:
        """The history contributor: the last 8 completed turns of the session."""
        return made.history()

    def _database(self) -> Database:
        from rune.storage.database import Database

        dry = current_assembly().dry
        with self._lock:
            if dry not in self._databases:
                self._databases[dry] = Database(database(self.home), readonly=dry)
            return self._databases[dry]

    def _vocabulary(self, model_id: str) -> int | None:
        known = known_facts(self._transport, model_id) if self._transport is not None else None
        return None if known is None else known.vocab_size

    def _window_of(self, model_id: str) -> int:
        transport, _ = self.engine()
        return self._window(transport, model_id, facts_or_none(transport, model_id), None).window

    def _window(self, transport: Transport, model: str, facts: ModelFacts | None, num_ctx: int | None) -> Window:
        """The window to budget against, lowered by what the server was seen to allocate."""
        window = resolve_window(facts, num_ctx=num_ctx, settings_num_ctx=self.settings.num_ctx)
        allocated = self._allocated.get((transport.server_key, model))
        if allocated is not None and allocated < window.window:
            note = f"the server allocated {allocated} of {window.window} tokens"
            return Window(allocated, window.trained, window.explicit, "/api/ps", note)
        return window

    # Runs

    def plan(
        self,
        task: str | TaskState,
        session: Conversation | None = None,
        *,
        window: int | None = None,
        model: str | None = None,
    ) -> tuple[AttentionCapsule, dict[str, Any]]:
        """What a run would send now, assembled dry: no model is asked, nothing is written.

        With ``window`` no server is asked either. Raises ContextOverflowError when it does not fit, InvalidInput.
        """
        state = TaskState.of(task, "plan")
        name = model or self._model or ""
        if window is None and not name:
            name = self.engine()[1]
        return self._broker.assemble(state, session, name, dry=True, window=window)

    def run(
        self,
        task: str | TaskState,
        session: Conversation | None = None,
        channel: str = "cli",
        *,
        num_ctx: int | None = None,
        num_predict: int | None = None,
        format: Any = None,
        think: bool | str | None = None,
        options: Mapping[str, Any] | None = None,
        on_event: Callable[[Any], None] | None = None,
        cancel: threading.Event | None = None,
    ) -> OperatorResponse:
        """Runs one turn and records it as one trace row; the completed turn is added to ``session``.

        An error of Rune's own kind ends as ``success=False`` with its row. ``num_ctx`` and ``num_predict`` are tokens.

        Raises:
            InvalidInput: an empty task; nothing has begun then.
            KeyboardInterrupt: passed on, after the row was written.
        """
        state = TaskState.of(task, channel)
        given = dict(options or {})
        run = _Run(
            state=state,
            session=session,
            model=self._model or "",
            num_ctx=given.pop("num_ctx", None) if num_ctx is None else num_ctx,
            num_predict=num_predict or given.pop("num_predict", None) or self.settings.num_predict,
            on_event=on_event,
            cancel=cancel,
        )
        think = self.settings.think if think is None else think
        passed = {"format": format, "think": think, "keep_alive": self.settings.keep_alive, "options": given or None}
        run.passed = {name: value for name, value in passed.items() if value is not None}
        run.ext["started"] = _now()
        begun = time.perf_counter()
        with turn(journal=self._journal, run_id=run.run_id) as health:
            journal_event("run_started", task_id=state.task_id, channel=state.channel)
            usage: Usage | None = None
            error: BaseException | None = None
            try:
                run.transport, model = self.engine()
                run.model = run.model or model
                with run.transport.measure() as usage:
                    self._execute_on_model(run)
            except (RuneError, KeyboardInterrupt) as exc:
                error = exc
            except BaseException as exc:
                self._finish(run, usage, begun, health.degraded, exc)
                raise
            response = self._finish(run, usage, begun, health.degraded, error)
            if isinstance(error, KeyboardInterrupt):
                raise error
            return response

    def _execute_on_model(self, run: _Run) -> None:
        """Assembles, chooses num_ctx, sends, and climbs after a refusal; every step is kept in ``run``."""
        transport, model = run.transport, run.model
        assert transport is not None
        facts = facts_or_none(transport, model)
        window = self._window(transport, model, facts, run.num_ctx)
        if window.note:
            run.warnings.append(window.note)
            logger.warning("%s", window.note)
        run.ext |= {"trained_window": window.trained, "window_source": window.source}
        if facts is not None and facts.kv_bytes_per_token:
            run.ext["kv_bytes_per_token"] = facts.kv_bytes_per_token
        self._assemble(run, window, facts)
        choice = self._choose(run, window, facts)
        widened = False
        while True:
            try:
                self._send(run, choice)
                break
            except PromptRefused as exc:
                run.attempts.append(
                    {"num_ctx": choice.num_ctx, "error": str(exc)[:300], "n_prompt_tokens": exc.n_prompt_tokens}
                )
                step = None
                if window.explicit is None and not transport.fixed_window:
                    ceiling = self.settings.num_ctx_max
                    step = next_step(choice.num_ctx, window.window, ceiling, need=exc.n_prompt_tokens)
                if step is not None:
                    choice = self._chosen(run, window, facts, at_least=step)
                    continue
                if widened or not self._readmit_with_script(run, window, exc):
                    raise _refused(exc, run, window) from exc
                widened = True
                choice = self._choose(run, window, facts)
        self._after(run, choice)

    def _assemble(self, run: _Run, window: Window, facts: ModelFacts | None) -> None:
        try:
            found = self._broker.assemble(
                run.state, run.session, run.model, window=window.window, run={"run_id": run.run_id}
            )
        except ContextOverflowError as exc:
            run.broker_trace = exc.trace
            raise
        run.capsule, run.broker_trace = found
        names = list(self.tools)
        if not names or facts is None or facts.capabilities is None or "tools" not in facts.capabilities:
            return
        schemas = compact_json([self.tools[name].schema() for name in names])
        entry = LedgerEntry("tool_schemas", tokens_text=schemas, source="LocalToolRuntime.tool_names")
        try:
            run.capsule, run.broker_trace = self._broker.readmit(run.capsule, extra_blocks=[entry])
            run.selected_tools = names
        except ContextOverflowError:
            run.warnings.append("tools_do_not_fit")

    def _readmit(self, run: _Run, **room: Any) -> None:
        """Admits again what was collected. An overflow leaves its trace in the run."""
        assert run.capsule is not None
        try:
            run.capsule, run.broker_trace = self._broker.readmit(run.capsule, **room)
        except ContextOverflowError as exc:
            run.broker_trace = exc.trace or run.broker_trace
            raise

    def _readmit_with_script(self, run: _Run, window: Window, refused: PromptRefused) -> bool:
        """One admission by the safe estimator after a refusal; False when it would send the same again."""
        assert run.capsule is not None
        before = run.capsule.to_messages()
        try:
            self._readmit(run, estimator="script")
        except ContextOverflowError as exc:
            exc.served_prompt_tokens, exc.server_window = refused.n_prompt_tokens, refused.n_ctx
            raise
        return run.capsule.to_messages() != before

    def _choose(self, run: _Run, window: Window, facts: ModelFacts | None) -> NumCtx:
        """num_ctx for what was admitted; admits again where the ceiling, or a server that cannot refuse, makes it necessary."""
        assert run.capsule is not None and run.transport is not None
        choice = self._chosen(run, window, facts)
        if choice.over_ceiling and choice.num_ctx < run.capsule.window:
            self._readmit(run, window=choice.num_ctx)
            choice = self._chosen(run, window, facts)
        safe = self._safe(run, facts)
        if safe > choice.num_ctx - 1 and (safe > 2 * window.window or run.transport.can_refuse() is not True):
            self._readmit(run, window=choice.num_ctx, estimator="script")
            choice = self._chosen(run, window, facts)
        return choice

    def _safe(self, run: _Run, facts: ModelFacts | None) -> int:
        assert run.capsule is not None
        schemas = [self.tools[name].schema() for name in run.selected_tools]
        return safe_tokens(run.capsule.to_messages(), schemas, vocab_size=facts.vocab_size if facts else None)

    def _chosen(self, run: _Run, window: Window, facts: ModelFacts | None, at_least: int | None = None) -> NumCtx:
        transport = run.transport
        assert transport is not None
        key = (transport.server_key, run.model)
        before = sticky.get(*key)
        loaded = None
        if before is None and window.explicit is None and not transport.fixed_window:
            loaded = self._loaded_window(transport, run.model)
        return choose_num_ctx(
            window=window.window,
            explicit=window.window if transport.fixed_window else window.explicit,
            safe_tokens=self._safe(run, facts),
            num_predict=run.num_predict,
            thinking=bool(facts and facts.capabilities and "thinking" in facts.capabilities),
            loaded=loaded,
            ceiling=self.settings.num_ctx_max,
            sticky=max(before or 0, at_least or 0) or None,
        )

    @staticmethod
    def _loaded_window(transport: Transport, model: str) -> int | None:
        ask = getattr(transport, "loaded_window", None)
        if ask is None:
            return None
        try:
            loaded: int | None = ask(model)
        except TransportError:
            return None
        return loaded

    def _send(self, run: _Run, choice: NumCtx) -> None:
        assert run.capsule is not None and run.transport is not None
        run.ext |= {"num_ctx": choice.num_ctx, "num_predict": choice.num_predict, "num_ctx_reason": choice.reason}
        run.runtime = LocalToolRuntime(
            run.transport,
            model=run.model,
            tools=self.tools,
            workspace=self.settings.workspace,
            home=self.home,
            run_id=run.run_id,
            max_steps=self.settings.max_steps,
        )
        capsule, budget = run.capsule, run.capsule.budget

        def room(_given: Sequence[Message], own: Sequence[Message], keep: Keep) -> Room:
            return fit(
                own, keep, used=capsule.token_count, budget=budget, window=capsule.window, estimator=capsule.estimator
            )

        # After a refusal in the middle of a tool loop the tools that have run are not run again.
        earlier = run.result
        try:
            run.runtime.run(
                capsule.to_messages(),
                num_ctx=choice.num_ctx,
                num_predict=choice.num_predict,
                tools=run.selected_tools,
                room=room,
                on_event=run.on_event,
                cancel=run.cancel,
                resume=earlier,
                **run.passed,
            )
        finally:
            run.result = run.runtime.result
            run.replies = run.result.replies

    def _after(self, run: _Run, choice: NumCtx) -> None:
        """What an answered run teaches: the window that the server gave, the drift, and what the session keeps."""
        transport, capsule = run.transport, run.capsule
        assert transport is not None and capsule is not None and run.result is not None and run.runtime is not None
        key = (transport.server_key, run.model)
        if not transport.fixed_window and sticky.get(*key) is None:
            allocated = self._loaded_window(transport, run.model)
            if allocated is not None and allocated < choice.num_ctx:
                self._allocated[key] = allocated
                run.ext["allocated_window"] = allocated
                run.warnings.append(f"the server allocated {allocated} tokens of the {choice.num_ctx} it was asked for")
        if not transport.fixed_window and run.num_ctx is None:
            sticky.set(*key, choice.num_ctx)
        first = run.replies[0] if run.replies else None
        if first is not None and first.prompt_tokens:
            log_calibration(capsule.token_count, first.prompt_tokens, run.model)
        assert run.broker_trace is not None
        log_token_usage(run.broker_trace)
        for reply in run.replies:
            if reply.verdict.flagged:
                record_failure("context_truncation", f"{reply.verdict.kind}: {reply.verdict.basis}", tier=1)
        if run.result.done_reason == "length":
            run.warnings.append("the reply stopped at its length limit; it may be unfinished")
        if run.result.stopped:
            run.warnings.append(run.result.note)
        if run.result.done_reason == "cancelled":
            raise _Cancelled("cancelled")
        if run.session is not None:
            asked: Message = {"role": "user", "content": run.state.task}
            if run.state.images:
                asked["images"] = list(run.state.images)
            run.session.append([asked, *run.result.new_messages])

    # The record

    def _finish(
        self, run: _Run, usage: Usage | None, begun: float, degraded: Sequence[str], error: BaseException | None
    ) -> OperatorResponse:
        latency = (time.perf_counter() - begun) * 1000
        said = _error_text(error, run.cancel)
        verdict = _verdict_of(run.replies, error)
        capsule, runtime = run.capsule, run.runtime
        run.ext |= {
            "run_id": run.run_id,
            "finished": _now(),
            "session": run.session.id if run.session is not None else None,
            "backend": BACKEND,
            "verdict": verdict,
            "calls": [reply.as_row() for reply in run.replies],
            "attempts": run.attempts,
            "warnings": [*((run.broker_trace or {}).get("ext", {}).get("warnings") or ()), *run.warnings],
        }
        result = run.result
        if result is not None and result.tool_events:
            run.ext["tools"] = [event.as_row() for event in result.tool_events]
        if result is not None and result.dropped:
            run.ext["tool_loop_dropped"] = [dropped.as_row() for dropped in result.dropped]
        partial = getattr(error, "partial_text", "")
        if partial:
            run.ext["partial_text"] = partial
        journal_event("run_finished", success=error is None)
        values = {
            "broker_trace": run.broker_trace,
            "usage": usage,
            "provider": run.transport.provider if run.transport is not None else "",
            "model": run.model,
            "task_id": run.state.task_id,
            "channel": run.state.channel,
            "latency_ms": latency,
            "tools_exposed": list(self.tools),
            "selected_tools": run.selected_tools,
            "degraded": list(degraded),
            "success": error is None,
            "error": said,
            "capsule_messages": runtime.received if runtime is not None else None,
            "capsule_content_hashes": capsule.content_hashes() if capsule is not None else {},
            "capsule_token_count": capsule.token_count if capsule is not None else 0,
            "memory_block_names": MEMORY_BLOCK_NAMES,
            "price": price_for(run.model, self.settings),
            "remote": any(reply.remote for reply in run.replies),
            "ext": run.ext,
        }
        row = self._traces.record(**values)
        return OperatorResponse(
            success=error is None,
            text=run.result.text if run.result is not None else partial,
            error=said,
            degraded=list(degraded),
            run_id=run.run_id,
            trace=row,
            broker_trace=run.broker_trace,
            verdict=verdict,
            warnings=list(run.ext["warnings"]),
            exception=error if isinstance(error, RuneError) else None,
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _error_text(error: BaseException | None, cancel: threading.Event | None) -> str | None:
    if error is None:
        return None
    if isinstance(error, (KeyboardInterrupt, _Cancelled)) or (cancel is not None and cancel.is_set()):
        return "cancelled"
    return f"{type(error).__name__}: {error}"


def _verdict_of(replies: Sequence[ChatReply], error: BaseException | None) -> dict[str, str] | None:
    """The worst verdict of a run's calls."""
    if isinstance(error, PromptRefused) or (isinstance(error, ContextOverflowError) and error.origin == "server"):
        return {"kind": "refused", "basis": str(error)[:300]}
    if hasattr(error, "partial_text"):
        return {"kind": "incomplete", "basis": str(error)[:300]}
    if not replies:
        return None
    worst = min(
        (reply.verdict for reply in replies), key=lambda v: _WORST_FIRST.index(v.kind) if v.kind in _WORST_FIRST else 0
    )
    return {"kind": worst.kind, "basis": worst.basis}


def _refused(exc: PromptRefused, run: _Run, window: Window) -> ContextOverflowError:
    """The server's refusal as the overflow that it is, with the server's numbers."""
    capsule = run.capsule
    assert capsule is not None
    needed = f"{exc.n_prompt_tokens} tokens" if exc.n_prompt_tokens else "more tokens than it has"
    return ContextOverflowError(
        f"the server refused the prompt: it needs {needed} and the window is {exc.n_ctx or window.window}. "
        "Ask for a larger window (num_ctx), or for less",
        window=capsule.window,
        reserve=capsule.reserve,
        margin=capsule.margin,
        budget=capsule.budget,
        blocks=[{"name": b.name, "tokens": b.tokens} for b in capsule.blocks if not b.evictable],
        trace=run.broker_trace,
        origin="server",
        served_prompt_tokens=exc.n_prompt_tokens,
        server_window=exc.n_ctx,
    )
