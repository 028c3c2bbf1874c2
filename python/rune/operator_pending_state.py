"""A run that waits for a person as one JSON object, and a run made of it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rune.context.capsule import AttentionCapsule
from rune.errors import ApprovalError, InvalidInput
from rune.operator_run import Asked, Resumed, Run, now
from rune.runtime.approvals import PENDING_VERSION, Decision, expiry
from rune.runtime.capability_authority import Capability, Selection
from rune.runtime.fallback_prompt import FallbackPrompt
from rune.runtime.local_tool_runtime import RunResult
from rune.runtime.num_ctx import sticky
from rune.runtime.router import Route
from rune.runtime.task_state import TaskState

if TYPE_CHECKING:
    from rune.runtime.tool_executor import Tool

__all__ = ["decision_of", "restore", "run_of", "state_of"]

_STAYS = ("safety", "routing")
"""What the row of a pending run says of its prompt, and that of the run that goes on with it says as well."""


def state_of(run: Run, waits_for: str, days: float) -> dict[str, Any]:
    """All that a run needs to go on in another process: what it was sent, what it did, and what it asked for.

    ``waits_for`` is "approval", or "answer" where the call was made and the model's answer to it is missing; ``days`` is how
    long it may wait.
    """
    assert run.capsule is not None and run.runtime is not None and run.transport is not None
    result, capability = run.result, run.capability
    return {
        "pending_version": PENDING_VERSION,
        "id": run.run_id,
        "created": now(),
        "expires": expiry(days),
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
        "tool_mode": run.tool_mode,
        "tool_prompt": asdict(run.prompt),
        "found": [] if capability is None else capability.take(run.offered),
        "selection": None if capability is None else asdict(capability.selection),
        "measured": [] if capability is None else list(capability.measured),
        "made": dict(result.made),
        "workspace": str(run.runtime.workspace.root),
        "window": None if run.window is None else run.window.explicit,
        "num_ctx": None if run.choice is None else run.choice.num_ctx,
        "num_predict": run.asked.num_predict,
        "passed": dict(run.asked.passed),
        "broker_trace": run.broker_trace,
        "route": None if run.route is None else [run.route.mode, run.route.family, run.route.reason],
        "ext": {name: run.ext[name] for name in _STAYS if name in run.ext},
    }


def run_of(state: Mapping[str, Any], resumed: Resumed, model: str | None = None) -> Run:
    """The run that goes on from a state. Raises ApprovalError unless its capsule gives the very messages that were sent."""
    return Run(
        task=TaskState(**state["task"], channel=state["channel"]),
        asked=Asked(state["window"], state["num_predict"], tools=(), passed=dict(state["passed"])),
        model=model or str(state["model"]),
        resumed=resumed,
        capability=_capability(state, resumed.tools),
        route=None if state["route"] is None else Route(*state["route"]),  # without tiers: it stays on its model
        capsule=_capsule(state),
        broker_trace={**(state["broker_trace"] or {}), "compaction": []},  # those events have their row
        result=_result(state),
        ext=dict(state["ext"]),
    )


def restore(run: Run) -> None:
    """Instead of an assembly: the run shows the model the tools that it was shown, in the window that it had."""
    assert run.resumed is not None and run.transport is not None and run.window is not None
    state = run.resumed.state
    run.offered, run.schemas = list(state["offered"]), list(state["schemas"])
    assert run.runtime is not None
    run.tool_mode = run.runtime.tool_mode = state.get("tool_mode", "native")
    if run.tool_mode == "text":
        told = state["tool_prompt"]
        run.prompt = FallbackPrompt(told["text"], tuple(told["names"]), tuple(told["left_out"]), told["form"])
        run.runtime.keep_prompt(run.prompt)
    sized = run.window.explicit is not None or run.transport.fixed_window
    if not sized and state["num_ctx"] and sticky.get(run.transport.server_key, run.model) is None:
        # Another num_ctx would load the model anew, and throw away the prefix that the server may still have.
        sticky.set(run.transport.server_key, run.model, state["num_ctx"])


def decision_of(
    state: Mapping[str, Any], decision: str, arguments: Mapping[str, Any] | None, reason: str
) -> Decision | None:
    """What was decided on the first waiting call; None where only an answer is waited for. Raises InvalidInput."""
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
