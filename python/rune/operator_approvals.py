"""Turns that end in a question to a person, and their other half: the same turn going on in another run, with the same context.

A run whose model asks for a call that needs an approval ends as pending. What it was sent, what it did and what it asked for
are kept (``runtime/approvals.py``). A resumed run assembles nothing and collects nothing: it takes the capsule, the messages
and the tool schemas as they were, adds the result of the decided call, and asks the model again. Each of the two runs has a
row of its own; ``task_id`` and ``ext.resumed`` join them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
from rune.operator_pending_state import decision_of, run_of, state_of
from rune.operator_run import OperatorResponse, Resumed, Run
from rune.runtime.approvals import DECIDED, Decision, PendingRuns, not_as_written
from rune.subsystem_health import journal_event, record_failure
from rune.transports.discovery import discover

if TYPE_CHECKING:
    from rune.context.conversation import Conversation
    from rune.operator_tools import OperatorTools
    from rune.runtime.events import OnEvent
    from rune.runtime.tool_executor import Tool
    from rune.settings import Settings
    from rune.transports.base import Transport

__all__ = ["ApprovalsOfOperator", "forget_pending", "refuse_while_pending"]


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
        try:
            run = self._going_on(state, decision, arguments, reason, session, model)
        except (KeyError, TypeError, AttributeError) as exc:  # its digest holds, and yet no Rune wrote it
            raise not_as_written(state["id"]) from exc
        run.on_event, run.cancel = on_event, cancel
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

    def _going_on(
        self,
        state: Mapping[str, Any],
        decision: str,
        arguments: Mapping[str, Any] | None,
        reason: str,
        session: Conversation | None,
        model: str | None,
    ) -> Run:
        """The run that goes on from a state, checked as far as that can be done without its model."""
        decided = decision_of(state, decision, arguments, reason)
        given = checked_session(session)
        if given is not None and given.id != state["session"]:
            raise InvalidInput(f"the turn is of the session {state['session']!r}, not of {given.id!r}")
        run = run_of(state, Resumed(state, decided, self._tools_of(state, decided)), model)
        run.session = given or self._session_of(state)
        if state["session"] and run.session is None:
            run.warnings.append(f"the session {state['session']!r} is not there, so the turn is not added to it")
        _check_mark(run.session, state)
        if not Path(state["workspace"]).is_dir():
            raise ApprovalError(
                f"the folder {state['workspace']}, in which the call is to be made, is gone",
                pending_id=state["id"],
                reason="tools",
            )
        return run

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
        run.pending = self._pending.save(state_of(run, waits_for, self.settings.approval_days))
        call = run.result.waiting[0]["function"] if run.result.waiting else {}
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

    def _keep_for_an_answer(self, run: Run) -> None:
        """After a call that was made and an answer that failed; where it cannot be kept, what was done is still on record."""
        try:
            self._keep(run, "answer")
        except RuneError as exc:
            record_failure("storage.degraded", exc, tier=2)

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
                self._keep_for_an_answer(run)
            journal_event(DECIDED, pending=state["id"], decision=run.ext["resumed"]["decision"])
            if run.pending is None:
                _unmark(run.session, state["id"])
            self._pending.remove(state["id"])
        except (RuneError, OSError) as exc:
            record_failure("storage.degraded", exc, tier=2)


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
