"""Turns that end in a question to a person, and their other half: the same turn going on in another run, with the same context.

A run whose model asks for a call that needs an approval ends as pending. What it was sent, what it did and what it asked for
are kept (``runtime/approvals.py``). A resumed run assembles nothing and collects nothing: it takes the capsule, the messages
and the tool schemas as they were, adds the result of the decided call, and asks the model again. Each of the two runs has a
row of its own; ``task_id`` and ``ext.resumed`` join them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rune.context.capsule import AttentionCapsule
from rune.context.compaction import PENDING_APPROVAL
from rune.errors import (
    ApprovalError,
    InvalidInput,
    ModelNotFound,
    RuneError,
    ServerUnreachable,
    ToolError,
    TransportError,
)
from rune.operator_asked import checked_session
from rune.operator_async import run_in_thread
from rune.operator_run import Asked, OperatorResponse, Resumed, Run, now
from rune.runtime.approvals import DECIDED, PENDING_VERSION, Decision, PendingRuns, expiry, not_as_written
from rune.runtime.capability_authority import Capability, Selection
from rune.runtime.local_tool_runtime import RunResult
from rune.runtime.num_ctx import sticky
from rune.runtime.room import Dropped
from rune.runtime.router import Route
from rune.runtime.task_state import TaskState
from rune.subsystem_health import journal_event, record_failure
from rune.transports.discovery import discover

if TYPE_CHECKING:
    from rune.context.conversation import Conversation
    from rune.operator_tools import OperatorTools
    from rune.runtime.events import OnEvent
    from rune.runtime.tool_executor import Tool
    from rune.settings import Settings
    from rune.transports.base import Transport

__all__ = ["ApprovalsOfOperator", "forget_pending", "refuse_while_pending", "restore"]


_STAYS = ("safety", "routing")
"""What the row of a pending run says of its prompt, and that of the run that goes on with it says as well."""


class ApprovalsOfOperator:
    """The part of ``RuneOperator`` that keeps pending turns and goes on with them."""

    settings: Settings
    home: Path
    _pending: PendingRuns
    _tools: OperatorTools

    if TYPE_CHECKING:

        def engine(self, on_event: OnEvent | None = None) -> tuple[Transport, str]: ...
        def _turn(self, run: Run) -> OperatorResponse: ...

    def resume(
        self,
        pending_id: str,
        decision: Literal["approve", "deny"],
        arguments: Mapping[str, Any] | None = None,
        *,
        reason: str = "",
        session: Conversation | None = None,
        model: str | None = None,
        on_event: OnEvent | None = None,
        cancel: threading.Event | None = None,
    ) -> OperatorResponse:
        """Goes on with a pending turn: its call is made, or the model is told that it was refused, and the model goes on.

        ``pending_id`` is the id (or the beginning of one) in ``pending_state``. ``arguments`` replace those that the model gave;
        ``reason`` is told to the model with a refusal. ``session`` is the conversation to add the turn to, opened by its id
        when None. With another ``model`` that one is sent what the first one was. The response may be pending again.

        Raises:
            ApprovalError: there is no such turn, it was changed, decided or expired, or arguments and tools do not fit.
                Nothing was done.
            TransportError, InvalidInput: the model cannot be asked. Nothing was done, and the turn still waits.
            KeyboardInterrupt: passed on after the row was written.
        """
        state = self._pending.read(pending_id)
        decided = _decision(state, decision, arguments, reason)
        tools = self._tools_of(state, decided)
        given = checked_session(session)
        if given is not None and given.id != state["session"]:
            raise InvalidInput(f"the turn is of the session {state['session']!r}, not of {given.id!r}")
        run = Run(
            task=_task(state),
            session=given or self._session_of(state),
            asked=_asked(state),
            on_event=on_event,
            cancel=cancel,
            model=model or str(state["model"]),
            resumed=Resumed(state, decided, tools),
            capability=_capability(state, tools),
            route=None if state["route"] is None else Route(*state["route"]),  # without tiers: it stays on its model
            capsule=_capsule(state),
            broker_trace={**(state["broker_trace"] or {}), "compaction": []},  # those events have their row
            result=_result(state),
            ext=dict(state["ext"]),
        )
        if state["session"] and run.session is None:
            run.warnings.append(f"the session {state['session']!r} is not there, so the turn is not added to it")
        _check_mark(run.session, state)
        if not Path(state["workspace"]).is_dir():
            raise ApprovalError(
                f"the folder {state['workspace']}, in which the call is to be made, is gone",
                pending_id=state["id"],
                reason="tools",
            )
        transport, _ = self.engine(on_event)
        start = getattr(transport, "start", None)
        if start is not None:
            start(on_event)
        try:
            discover(transport, run.model)
        except (ServerUnreachable, ModelNotFound):
            raise  # before the call is made, not after it
        except TransportError:
            pass  # a server that tells nothing of its models can be asked all the same
        self._pending.claim(state["id"], state["sha256"])
        return self._turn(run)

    async def aresume(self, pending_id: str, decision: Literal["approve", "deny"], **values: Any) -> OperatorResponse:
        """``resume`` for an event loop, as ``arun`` is for ``run``; what is raised before the turn goes on is raised here."""
        return await run_in_thread(self.resume, pending_id, decision, **values)

    def _tools_of(self, state: Mapping[str, Any], decision: Decision | None) -> dict[str, Tool]:
        """The tools of the turn, described to the model as they were. Raises ApprovalError where one is gone."""
        known = self._tools.known
        names = [*state["runnable"], *state["offered"], *state["found"]]
        missing = sorted({name for name in names if name not in known})
        if missing:
            raise ApprovalError(
                f"the turn was begun with tools that are not there now: {', '.join(missing)}. Load them, or see rune tools list",
                pending_id=state["id"],
                reason="tools",
            )
        found = {name: known[name] for name in names}
        for schema in state["tools"]:
            was = schema["function"]
            found[was["name"]] = replace(
                found[was["name"]], description=was["description"], parameters=was["parameters"]
            )
        if decision is not None and decision.arguments is not None:
            try:
                found[state["pending_calls"][0]["function"]["name"]].check(decision.arguments)
            except ToolError as exc:
                raise ApprovalError(str(exc), pending_id=state["id"], reason="arguments") from exc
        return found

    def _session_of(self, state: Mapping[str, Any]) -> Conversation | None:
        from rune.context.conversation import Conversation
        from rune.paths import session_path

        if not state["session"] or not session_path(state["session"], self.home).exists():
            return None
        return Conversation.open(state["session"], self.home, estimator=self.settings.estimator)

    # What becomes of a run

    def _keep(self, run: Run, waits_for: str) -> None:
        """Keeps a run that is to go on later, and marks its session. Raises StorageError, InvalidInput."""
        assert run.capsule is not None and run.runtime is not None and run.transport is not None
        result, window, capability = run.result, run.window, run.capability
        run.pending = self._pending.save(
            {
                "pending_version": PENDING_VERSION,
                "id": run.run_id,
                "created": now(),
                "expires": expiry(self.settings.approval_days),
                "waits_for": waits_for,
                "session": None if run.session is None else run.session.id,
                "channel": run.task.channel,
                "task": {"task": run.task.task, "task_id": run.task.task_id, "images": list(run.task.images)},
                "provider": run.transport.provider,
                "model": run.model,
                "pending_calls": result.waiting,
                "context_capsule": run.capsule.to_dict(),
                "messages": run.runtime.received,
                "new_messages": result.new_messages,
                "sent_messages": result.sent or result.new_messages,
                "text": result.text,
                "runnable": list(run.runtime.tool_names),
                "offered": run.offered,
                "tools": run.runtime.schemas(run.offered),
                "schemas": run.schemas,
                "found": [] if capability is None else capability.take(run.offered),
                "selection": None if capability is None else asdict(capability.selection),
                "measured": [] if capability is None else list(capability.measured),
                "made": dict(result.made),
                "dropped": [dropped.as_row() for dropped in result.dropped],
                "workspace": str(run.runtime.workspace.root),
                "window": None if window is None else window.explicit,
                "num_ctx": None if run.choice is None else run.choice.num_ctx,
                "num_predict": run.asked.num_predict,
                "passed": dict(run.asked.passed),
                "broker_trace": run.broker_trace,
                "route": None if run.route is None else [run.route.mode, run.route.family, run.route.reason],
                "ext": {name: run.ext[name] for name in _STAYS if name in run.ext},
            }
        )
        call = result.waiting[0]["function"] if result.waiting else {}
        run.ext["pending"] = {
            "id": run.run_id,
            "waits_for": waits_for,
            "tool": call.get("name"),
            "arguments": call.get("arguments"),
            "expires": run.pending["expires"],
            "sha256": run.pending["sha256"],
        }
        journal_event("approval_pending", tool=call.get("name"), sha256=run.pending["sha256"])
        if run.session is not None:
            mark = {name: run.pending[name] for name in ("id", "sha256", "expires")}
            run.session.set_state(PENDING_APPROVAL, mark)

    def _settle(self, run: Run) -> None:
        """What becomes of the state that a run went on from, now that the run is over. Never raises."""
        if run.resumed is None:
            return
        state, decision = run.resumed.state, run.resumed.decision
        run.ext["resumed"] = {
            "run_id": state["id"],
            "decision": "go on" if decision is None else "approve" if decision.approved else "deny",
            "edited": decision is not None and decision.arguments is not None,
            "arguments": None if decision is None else decision.arguments,
            "text": None if decision is None else decision.reason,
        }
        try:
            untouched = run.result.waiting == state["pending_calls"] and not run.result.replies and not run.success
            if untouched and run.pending is None:
                self._pending.release(state["id"])  # nothing came of it: it still waits
                return
            cancelled = run.cancelled or isinstance(run.exception, KeyboardInterrupt)
            if run.pending is None and not cancelled and isinstance(run.exception, Exception):
                with suppress(RuneError):  # what was done is on record all the same
                    self._keep(run, "answer")
            journal_event(DECIDED, pending=state["id"], decision=run.ext["resumed"]["decision"])
            if run.pending is None:
                _unmark(run.session, state["id"])
            self._pending.remove(state["id"])
        except (RuneError, OSError) as exc:
            record_failure("storage.degraded", exc, tier=2)


def restore(run: Run) -> None:
    """Instead of an assembly: the run shows the model the tools that it was shown, in the window that it had."""
    assert run.resumed is not None and run.transport is not None and run.window is not None
    state = run.resumed.state
    run.offered, run.schemas = list(state["offered"]), list(state["schemas"])
    sized = run.window.explicit is not None or run.transport.fixed_window
    if not sized and state["num_ctx"] and sticky.get(run.transport.server_key, run.model) is None:
        # Another num_ctx would load the model anew, and throw away the prefix that the server may still have.
        sticky.set(run.transport.server_key, run.model, state["num_ctx"])


def refuse_while_pending(session: Conversation | None, pending: PendingRuns) -> None:
    """For a new turn. Raises ApprovalError while a turn of the session waits: the two would stand in the wrong order.

    A turn that no longer waits (expired, changed, interrupted, gone) stands in nobody's way: its mark is taken off.
    """
    if session is None:
        return
    session.refresh()
    mark = session.state_of(PENDING_APPROVAL)
    if not mark:
        return
    id = str(mark.get("id", "")) if isinstance(mark, Mapping) else ""
    if pending.status(id) not in ("waiting", "answer missing"):
        _unmark(session, id)
        return
    short = id[:12]
    raise ApprovalError(
        f"a turn of the session {session.id!r} waits for an approval: rune pending show {short} shows it, and rune pending "
        f"approve {short}, deny {short} or forget {short} ends the wait",
        pending_id=id,
        reason="waiting",
    )


def forget_pending(pending_id: str, home: Path | str | None = None) -> str:
    """Removes a pending turn without going on with it, takes its mark off its session, and returns its id.

    Raises ApprovalError when there is none, StorageError when it cannot be removed.
    """
    from rune.context.conversation import Conversation
    from rune.paths import session_path

    pending = PendingRuns(home)
    info = pending.find(pending_id)
    pending.remove(info.id)
    session = info.state.get("session") if info.state is not None else None
    if session and session_path(session, home).exists():
        _unmark(Conversation.open(session, home), info.id)
    return info.id


def _check_mark(session: Conversation | None, state: Mapping[str, Any]) -> None:
    """What a session knows of its waiting turn is a second witness. Raises ApprovalError when the two do not agree."""
    mark = None if session is None else session.state_of(PENDING_APPROVAL)
    if isinstance(mark, Mapping) and mark.get("id") == state["id"] and mark.get("sha256") != state["sha256"]:
        raise not_as_written(state["id"])


def _unmark(session: Conversation | None, id: str) -> None:
    if session is None:
        return
    mark = session.state_of(PENDING_APPROVAL)
    if mark and (not isinstance(mark, Mapping) or mark.get("id") in (id, None)):
        session.set_state(PENDING_APPROVAL, None)


# A state as the parts of a run


def _decision(
    state: Mapping[str, Any], decision: str, arguments: Mapping[str, Any] | None, reason: str
) -> Decision | None:
    if decision not in ("approve", "deny"):
        raise InvalidInput(f"the decision must be 'approve' or 'deny', not {decision!r}")
    approved = decision == "approve"
    if not state["pending_calls"] and (not approved or arguments is not None):
        raise ApprovalError(
            f"the call of {state['id'][:12]} was decided and only the model's answer is missing: approve it to go on, or "
            f"rune pending forget {state['id'][:12]}",
            pending_id=state["id"],
            reason="decided",
        )
    if arguments is not None and not (approved and isinstance(arguments, Mapping)):
        raise ApprovalError(
            "arguments are an object with names, and go with an approval only",
            pending_id=state["id"],
            reason="arguments",
        )
    return Decision(approved, reason, arguments) if state["pending_calls"] else None


def _task(state: Mapping[str, Any]) -> TaskState:
    return TaskState(**state["task"], channel=state["channel"])


def _asked(state: Mapping[str, Any]) -> Asked:
    return Asked(num_ctx=state["window"], num_predict=state["num_predict"], tools=(), passed=dict(state["passed"]))


def _capability(state: Mapping[str, Any], tools: Mapping[str, Tool]) -> Capability | None:
    chosen = state["selection"]
    if chosen is None:
        return None
    selection = Selection(tuple(chosen["names"]), chosen["reason"], tuple(chosen["left_out"]))
    capability = Capability(selection, tools, measured=tuple(state["measured"]))
    capability.put_back(state["found"])
    return capability


def _result(state: Mapping[str, Any]) -> RunResult:
    result = RunResult(
        text=state["text"],
        new_messages=list(state["new_messages"]),
        sent=list(state["sent_messages"]),
        waiting=list(state["pending_calls"]),
        dropped=[Dropped(**row) for row in state["dropped"]],
    )
    result.made.update(state["made"])
    return result


def _capsule(state: Mapping[str, Any]) -> AttentionCapsule:
    """The capsule of a state. Raises ApprovalError unless it renders to the very messages that were sent."""
    try:
        capsule = AttentionCapsule.from_dict(state["context_capsule"])
        same = capsule.to_messages() == state["messages"]
    except InvalidInput as exc:
        raise ApprovalError(f"{exc}", pending_id=state["id"], reason="changed") from exc
    if not same:
        raise ApprovalError(
            f"the context of {state['id'][:12]} cannot be put together as it was",
            pending_id=state["id"],
            reason="changed",
        )
    return capsule
