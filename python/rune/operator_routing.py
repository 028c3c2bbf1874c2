"""A run over its tiers: where it begins, and when and how it goes on with the next model.

A tier is left when the turn does not fit its window, by the broker's, the server's or the tool loop's word, and when its tool
calls fail again and again or go in circles. What was collected for the turn stays; only blocks that depend on the model are
collected anew. Calls that were made are not made again: the next model is shown them. All of it is one run with one row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rune.errors import ContextOverflowError, RuneError, TransportError
from rune.operator_run import Run
from rune.runtime.events import TierChanged
from rune.runtime.local_tool_runtime import RunResult
from rune.runtime.router import TIERED, Route, Tier, route, tiers_of
from rune.runtime.tool_executor import NO_APPROVAL, ToolOutcome
from rune.settings import Settings
from rune.transports.discovery import facts_or_none, resolve_window

if TYPE_CHECKING:
    from rune.context.capsule import AttentionCapsule

__all__ = ["TOOL_FAILURES_MAX", "Router", "ToolsFailing", "Watch", "run_tiers"]

TOOL_FAILURES_MAX = 3
"""Tool calls of one tier that fail in a row before the next tier is asked."""

ROUTING = "routing"
_ERROR_MAX = 300

Watch = Callable[[RunResult], None]
"""Looks at a tool loop before each further call, and raises ``ToolsFailing`` to end it."""

Attempt = Callable[["AttentionCapsule | None", Watch], None]
"""Runs the turn on ``run.model``; what was collected before is in the capsule (None: nothing yet)."""


class ToolsFailing(RuneError):
    """A model's tool calls failed again and again; the next tier goes on. Never the error of a run."""


class Router:
    """The router of an operator. ``named`` is a model that its caller or its settings name: it counts before the tiers."""

    def __init__(self, settings: Settings, named: str | None) -> None:
        self.settings = settings
        self.named = named or ""
        self.tiers: tuple[Tier, ...] = tiers_of(settings.tiers)

    @property
    def chosen_from(self) -> tuple[Tier, ...]:
        """The tiers that tasks are given to; none where one model runs everything."""
        return self.tiers if len(self.tiers) > 1 and not self.named else ()

    @property
    def first(self) -> str | None:
        """The model to open an engine with: the named one, else the first tier's; None where nothing says."""
        return self.named or (self.tiers[0].model if self.tiers else None)

    def begin(self, run: Run) -> None:
        """Puts the route into ``run``, and the model that it begins on. A server is asked for images only: who can see."""
        found = route(run.task.task, self.tiers, images=bool(run.task.images), explicit=self.named)
        if found.mode == TIERED and run.task.images and run.transport is not None:
            found = _that_sees(run, found)
        run.route = found
        run.model = found.model or run.model
        run.ext[ROUTING] = {"mode": found.mode, "family": found.family, "reason": found.reason, "model": run.model}
        if found.mode == TIERED:
            tiers = [{"name": tier.name, "model": tier.model} for tier in found.tiers]
            name = found.tiers[found.start].name
            run.ext[ROUTING] |= {"tier": name, "start": name, "tiers": tiers, "escalations": []}


def _that_sees(run: Run, found: Route) -> Route:
    """From the tier on that the rules chose, the first whose model is not known to be blind."""
    assert run.transport is not None
    for position in range(found.start, len(found.tiers)):
        facts = facts_or_none(run.transport, found.tiers[position].model)
        if facts is None or facts.capabilities is None or "vision" in facts.capabilities:
            if position == found.start:
                return found
            blind = found.tiers[found.start].name
            reason = f"{found.reason}; moved to tier {found.tiers[position].name}, as {blind} cannot see images"
            return replace(found, start=position, reason=reason)
    return found


def run_tiers(run: Run, settings: Settings, attempt: Attempt) -> None:
    """Runs the turn on the model of ``run`` and, where it has tiers, on the next ones as long as one has to be left.

    Raises:
        ContextOverflowError, TransportError, InvalidInput: of the tier that was the last.
    """
    _Climb(run, settings).execute(attempt)


class _Left(NamedTuple):
    """Why a tier was left: "overflow", "refused", "tool_failures" or "loop"; the words; and the error, where there was one."""

    why: str
    words: str
    error: ContextOverflowError | None = None


class _Climb:
    def __init__(self, run: Run, settings: Settings) -> None:
        self.run = run
        self.asked = run.asked
        self.tiers = run.route.tiers if run.route is not None else ()
        self.position = run.route.start if run.route is not None else 0
        self.replies = 0  # model calls that were answered before the tier that runs now
        self.settled = len(self.tiers) < 2  # no further tier is tried
        self._settings = settings

    def execute(self, attempt: Attempt) -> None:
        run = self.run
        before: AttentionCapsule | None = None
        left: _Left | None = None  # why the tier before this one was left
        below = self.position
        while True:
            noted = len(run.warnings)
            sent = run.runtime
            before = run.capsule or before
            try:
                attempt(before, self._watch)
                if self.settled or run.cancelled or run.result.done_reason != "loop":
                    return
                leaves = _Left("loop", run.result.note)
            except ContextOverflowError as exc:
                if self.settled or run.cancelled:
                    raise
                before = run.capsule or exc.capsule
                leaves = _Left("refused" if exc.origin == "server" else "overflow", str(exc), exc)
            except ToolsFailing as exc:
                leaves = _Left("tool_failures", str(exc))
            except TransportError as exc:
                if left is None or run.cancelled or len(run.result.replies) > self.replies:
                    raise
                self._note(failed=f"{type(exc).__name__}: {exc}"[:_ERROR_MAX])
                if not self._up(left):
                    if left.error is not None:
                        raise left.error from exc
                    self._go(below)  # its model answers; there is nobody above who does
                    self.settled = True
                del run.warnings[noted:]
                continue
            finally:
                if sent is not None and run.runtime is not None and run.runtime.received is None:
                    run.runtime = sent  # what was received last is what the row shows
            below = self.position
            if not self._up(leaves):
                if leaves.error is not None:
                    raise leaves.error
                return
            left = leaves
            del run.warnings[noted:]  # they are the left tier's; what became of it is in the route

    def _watch(self, result: RunResult) -> None:
        if self.settled or self.position + 1 >= len(self.tiers):
            return
        events = result.tool_events[result.events_before :]
        failing = events[-TOOL_FAILURES_MAX:]
        if len(failing) == TOOL_FAILURES_MAX and all(map(_failed, failing)):
            last = failing[-1]
            raise ToolsFailing(f"{TOOL_FAILURES_MAX} tool calls in a row failed, the last of {last.name}: {last.text}")

    def _up(self, leaves: _Left) -> bool:
        """Moves to the next tier that can help, if there is one."""
        for position in range(self.position + 1, len(self.tiers)):
            if leaves.error is not None:
                here, there = self._reach(self.run.model, leaves.error), self._reach(self.tiers[position].model)
                if there <= here:
                    self._note_skipped(position, f"its window of {there} is no larger than {here}")
                    continue
            tier = self.tiers[position]
            step = {"from": self.tiers[self.position].name, "to": tier.name, "model": tier.model, "why": leaves.why}
            self.run.ext[ROUTING]["escalations"].append({**step, "error": leaves.words[:_ERROR_MAX]})
            self._go(position)
            if self.run.on_event is not None:
                self.run.on_event(TierChanged(tier.name, tier.model, leaves.why))
            return True
        return False

    def _go(self, position: int) -> None:
        run = self.run
        self.position = position
        tier = self.tiers[position]
        run.model = tier.model
        # Options of the model that was left are not this one's; tools that were chosen for the task, and found since, are.
        tools = run.asked.tools
        run.asked = replace(self.asked, tools=tools and tuple(dict.fromkeys([*tools, *run.offered])))
        run.result.begin_again()
        self.replies = len(run.result.replies)
        run.ext[ROUTING] |= {"tier": tier.name, "model": tier.model}

    def _reach(self, model: str, error: ContextOverflowError | None = None) -> int:
        """The largest window in tokens that a prompt can be given on a model; not over what its server named in ``error``."""
        run = self.run
        assert run.transport is not None
        window = resolve_window(
            facts_or_none(run.transport, model), num_ctx=self.asked.num_ctx, settings_num_ctx=self._settings.num_ctx
        )
        reach = window.window
        if window.explicit is None and not run.transport.fixed_window:
            reach = min(reach, self._settings.num_ctx_max)
        return min(reach, error.server_window or reach) if error is not None else reach

    def _note(self, **words: Any) -> None:
        self.run.ext[ROUTING]["escalations"][-1] |= words

    def _note_skipped(self, position: int, why: str) -> None:
        skipped = self.run.ext[ROUTING].setdefault("skipped", [])
        skipped.append({"tier": self.tiers[position].name, "why": why})


def _failed(event: ToolOutcome) -> bool:
    """Whether a call failed by the model's doing: one that a person did not allow would be refused to any model."""
    return not event.ok and NO_APPROVAL not in event.text
