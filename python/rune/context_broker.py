"""The context broker: the one authority over what enters a model's context window.

A turn's blocks are collected from registered contributors, measured, admitted into the budget of the model's window, and
rendered into a capsule; the trace says what was admitted, what was dropped, and why. Nothing is cut in silence: what must
enter and does not fit is a ``ContextOverflowError``, and what may be left out is on record with its tokens.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from rune.context.blocks import Entry, LedgerEntry, ledger_entries
from rune.context.broker_trace import token_usage
from rune.context.budget import Budget, budget_of, check_window, window_for
from rune.context.capsule import AttentionCapsule
from rune.context.collect import (
    Assembly,
    Collected,
    Contributor,
    Registration,
    assembling,
    collect,
    current_assembly,
)
from rune.context.layout import check_layout
from rune.context.packing import Order, as_changed, pack
from rune.context.timebox import TimeLimit
from rune.errors import InvalidInput
from rune.kernels import ESTIMATOR_NAMES, EstimatorLike, get_estimator
from rune.subsystem_health import record_failure, turn

__all__ = [
    "COMPACTION_THRESHOLD",
    "MEMORY_BLOCK_NAMES",
    "Assembly",
    "Budget",
    "ContextBroker",
    "Contributor",
    "LedgerEntry",
    "current_assembly",
    "log_calibration",
    "log_fallback_tool_prompt",
    "memory_disabled",
    "token_usage",
]

logger = logging.getLogger("rune.context_broker")

COMPACTION_THRESHOLD = 0.8
"""Share of the window above which measured history is compacted."""

MEMORY_BLOCK_NAMES = {"memory", "persona_memories", "consolidated"}
"""Names of memory-derived blocks. Add the name of one of your own: the switch and the proof of absence then cover it."""

CONTRIBUTOR_TIMEOUT_S = 2.0
_FALLBACK_WINDOW = 8192

EstimatorChoice = str | EstimatorLike | Callable[[str], "str | EstimatorLike"]


def memory_disabled(env: Mapping[str, str] | None = None) -> bool:
    """Whether ``RUNE_MEMORY_OFF`` is set to 1, true, yes or on (any case, spaces around it do not matter)."""
    value = (os.environ if env is None else env).get("RUNE_MEMORY_OFF", "")
    return value.strip().lower() in ("1", "true", "yes", "on")


class ContextBroker:
    """Contributors by name, and the assembly of a capsule from them.

    ``context_length``: tokens of a model's window, as ``model_id -> int``; asks the server when None.
    ``estimator``: a name, an estimator, or ``model_id -> name or estimator``.
    ``layout``: "seed" (the specified order) or "cache".
    ``vocab_size``: ``model_id -> entries of its vocabulary or None``; which table of the ``script`` estimator is used.
    ``contributor_timeout_s``: seconds that a contributor may take before the turn goes on without it.
    ``memory_off``: whether memory is off now; ``memory_disabled`` when None.
    """

    def __init__(
        self,
        context_length: Callable[[str], int] | None = None,
        estimator: EstimatorChoice = "chars4",
        layout: str = "seed",
        *,
        vocab_size: Callable[[str], int | None] | None = None,
        contributor_timeout_s: float = CONTRIBUTOR_TIMEOUT_S,
        memory_off: Callable[[], bool] | None = None,
    ) -> None:
        if isinstance(estimator, str):
            get_estimator(estimator)  # an unknown name is said here, not on the first turn
        self.layout = check_layout(layout)
        self._context_length = context_length
        self._estimator = estimator
        self._vocab_size = vocab_size
        self._limit = TimeLimit(contributor_timeout_s)
        self._memory_off = memory_off or memory_disabled
        self._registrations: dict[str, Registration] = {}

    # Registration

    def register(
        self,
        name: str,
        contributor: Contributor,
        *,
        bucket: int,
        priority: int,
        evictable: bool,
        source: str,
        per_model: bool = False,
        inline: bool = False,
    ) -> None:
        """Adds a contributor, ``(task, session) -> ContributionBlock | None``.

        ``bucket`` is its place in the prompt, lowest first; ``priority`` decides who gets the budget, highest first.
        ``evictable=False`` makes it mandatory. ``per_model``: asked again when the turn moves to another model.
        ``inline``: called without a thread and without a time limit, for contributors that cannot block.

        Raises:
            InvalidInput: (a ValueError) a name registered twice, or a value of a wrong type.
        """
        if name in self._registrations:
            raise InvalidInput(f"a contributor named {name!r} is registered already")
        self._registrations[name] = Registration.checked(
            name=name,
            contributor=contributor,
            bucket=bucket,
            priority=priority,
            evictable=evictable,
            source=source,
            per_model=per_model,
            inline=inline,
            position=len(self._registrations),
        )

    @property
    def contributors(self) -> tuple[str, ...]:
        """The registered names, in order."""
        return tuple(self._registrations)

    # Budget

    @staticmethod
    def budget(window: int) -> Budget:
        """The budget of a window in tokens. Raises InvalidInput unless it is a whole number from 1 to 2^31-1."""
        return budget_of(window)

    @staticmethod
    def window_for(tokens: int) -> int | None:
        """The smallest window whose budget holds so many tokens, or None."""
        return window_for(tokens)

    # Assembly

    def assemble(
        self,
        task: Any,
        session: Any,
        model_id: str,
        dry: bool = False,
        window: int | None = None,
        extra_blocks: Iterable[LedgerEntry] = (),
        compaction: Sequence[Any] = (),
        run: Mapping[str, Any] | None = None,
    ) -> tuple[AttentionCapsule, dict[str, Any]]:
        """Collects, measures, admits and renders one turn: the capsule and its trace.

        ``window`` overrides discovery. ``dry``: contributors see it in ``current_assembly()`` and leave stores as they are.
        ``extra_blocks`` are what the runtime sends past the messages; ``compaction`` are events for the trace; ``run`` is
        handed to contributors.

        Raises:
            ContextOverflowError: mandatory blocks do not fit; carries the numbers, the partial trace, and the capsule that
                ``readmit`` takes, so that what was collected is not collected again.
            InvalidInput: a window that is none, or extra blocks with a name that is taken.
        """
        started = time.perf_counter()
        with turn() as health:
            warnings: list[str] = []
            budget = budget_of(window if window is not None else self._window(model_id, warnings))
            collected = self._collect(
                self._registrations.values(), task, session, self._assembly(model_id, dry, budget, run)
            )
            collected.entries += self._runtime_entries(extra_blocks, collected)
            order = self._order(model_id, budget, self._resolve(self._estimator, model_id), dry=dry)
            order = order._replace(task=task, session=session, compaction=compaction, warnings=warnings)
            return self._finish(collected, order, health.degraded, started)

    def readmit(
        self,
        capsule: AttentionCapsule,
        *,
        budget: int | None = None,
        window: int | None = None,
        estimator: EstimatorChoice | None = None,
        model_id: str | None = None,
        extra_blocks: Iterable[LedgerEntry] | None = None,
        compaction: Sequence[Any] = (),
        dry: bool = False,
        run: Mapping[str, Any] | None = None,
    ) -> tuple[AttentionCapsule, dict[str, Any]]:
        """Admits again what ``capsule`` was assembled from, dropped blocks included, into another budget, window or measure.

        No contributor runs again, except ``per_model`` ones when ``model_id`` is another. Changes made through the capsule's
        blocks stay. ``budget`` alone keeps the window; ``extra_blocks`` replaces the runtime's entries, None keeps them.

        Raises:
            ContextOverflowError, InvalidInput: as ``assemble``.
        """
        started = time.perf_counter()
        with turn() as health:
            warnings: list[str] = []
            model = capsule.model_id if model_id is None else model_id
            room = self._room(capsule, budget, window)
            collected = Collected([as_changed(entry, capsule) for entry in capsule.entries], dict(capsule.facts))
            if model != capsule.model_id:
                per_model = [r for r in self._registrations.values() if r.per_model]
                anew = {r.name for r in per_model}
                fresh = self._collect(per_model, capsule.task, capsule.session, self._assembly(model, dry, room, run))
                collected.entries = [e for e in collected.entries if e.name not in anew] + fresh.entries
                collected.facts |= fresh.facts
            if extra_blocks is not None:
                collected.entries = [e for e in collected.entries if e.section != "ledger"]
                collected.entries += self._runtime_entries(extra_blocks, collected)
            chosen: EstimatorChoice = estimator if estimator is not None else self._estimator
            if estimator is None and model == capsule.model_id:
                chosen = capsule.estimator
            for name in capsule.degraded:
                if name not in health.degraded:
                    health.degraded.append(name)
            order = self._order(model, room, self._resolve(chosen, model), dry=dry)
            order = order._replace(task=capsule.task, session=capsule.session, compaction=compaction, warnings=warnings)
            readmitted, trace = self._finish(collected, order, health.degraded, started)
            trace["ext"]["readmitted"] = {
                "model_id": capsule.model_id,
                "window": capsule.window,
                "budget": capsule.budget,
                "tokens": capsule.token_count,
                "estimator": capsule.estimator.key,
            }
            return readmitted, trace

    # Steps

    def _window(self, model_id: str, warnings: list[str]) -> int:
        """The model's window; 8192 with a T1 when it cannot be found out."""
        try:
            if self._context_length is not None:
                return check_window(self._context_length(model_id))
            from rune.transports.discovery import context_length

            return check_window(context_length(model_id))
        except Exception as exc:  # whatever an injected function raises, the turn goes on
            record_failure("context_discovery", exc, tier=1)
            warnings.append(f"the window of {model_id!r} could not be found out; {_FALLBACK_WINDOW} is assumed")
            return _FALLBACK_WINDOW

    def _room(self, capsule: AttentionCapsule, budget: int | None, window: int | None) -> Budget:
        if window is not None:
            room = budget_of(window)
        else:
            room = Budget(capsule.window, capsule.reserve, capsule.margin, capsule.budget)
        if budget is None:
            return room
        if isinstance(budget, bool) or not isinstance(budget, int):
            raise InvalidInput(f"a budget must be a whole number of tokens, not {budget!r}")
        return replace(room, budget=budget)

    def _assembly(self, model_id: str, dry: bool, budget: Budget, run: Mapping[str, Any] | None) -> Assembly:
        return Assembly(
            model_id=model_id,
            dry=dry,
            window=budget.window,
            budget=budget.budget,
            layout=self.layout,
            run=dict(run or {}),
        )

    def _resolve(self, choice: EstimatorChoice, model_id: str) -> EstimatorLike:
        if isinstance(choice, str):
            return get_estimator(choice, self._vocabulary(model_id))
        if hasattr(choice, "many"):
            return cast("EstimatorLike", choice)
        try:
            found = choice(model_id)
            return get_estimator(found, self._vocabulary(model_id)) if isinstance(found, str) else found
        except Exception as exc:  # an injected function: the turn goes on with the default
            record_failure("estimator", exc, tier=1)
            return get_estimator("chars4")

    def _vocabulary(self, model_id: str) -> int | None:
        """Entries of the model's vocabulary; None when they are unknown, which takes the table that never reads low."""
        try:
            found = None if self._vocab_size is None else self._vocab_size(model_id)
        except Exception as exc:  # an injected function again
            record_failure("context_discovery", exc, tier=1)
            return None
        return found if isinstance(found, int) and found > 0 else None

    def _second(self, first: EstimatorLike, model_id: str) -> EstimatorLike | None:
        """The estimator whose counts stand in the trace beside the first one's."""
        name = "script" if first.key.startswith("chars4/") else "chars4"
        return get_estimator(name, self._vocabulary(model_id)) if name in ESTIMATOR_NAMES else None

    def _collect(self, registrations: Iterable[Registration], task: Any, session: Any, assembly: Assembly) -> Collected:
        if self._memory_off():
            registrations = [r for r in registrations if r.name not in MEMORY_BLOCK_NAMES]
        with assembling(assembly):
            return collect(tuple(registrations), task, session, self._limit, lifted_position=len(self._registrations))

    def _runtime_entries(self, extra_blocks: Iterable[LedgerEntry], collected: Collected) -> list[Entry]:
        taken = {*self._registrations, *(entry.name for entry in collected.entries)}
        return ledger_entries(extra_blocks, taken, len(self._registrations) + 1)

    def _order(self, model_id: str, budget: Budget, estimator: EstimatorLike, *, dry: bool) -> Order:
        return Order(
            model_id=model_id,
            budget=budget,
            estimator=estimator,
            second=self._second(estimator, model_id),
            layout=self.layout,
            memory_names=MEMORY_BLOCK_NAMES,
            dry=dry,
        )

    def _finish(
        self, collected: Collected, order: Order, degraded: Sequence[str], started: float
    ) -> tuple[AttentionCapsule, dict[str, Any]]:
        capsule, trace, error = pack(collected, order)
        capsule.degraded = tuple(degraded)
        trace["degraded"] = list(degraded)
        trace["elapsed_ms"] = round((time.perf_counter() - started) * 1000, 3)
        if error is not None:
            error.capsule = capsule
            raise error
        return capsule, trace


# Log lines


def log_calibration(measured: int, served: int | None, model: str) -> None:
    """Logs the broker's total against the server's prompt count. Nothing reads it back: admission is never adjusted by it."""
    drift = f"{served - measured:+d}" if served else "unknown"
    logger.info(
        "calibration: measured=%d served=%s drift=%s model=%s (log-only, admission never auto-adjusts)",
        measured,
        served or "unknown",
        drift,
        model,
    )


def _log_token_usage(trace: Mapping[str, Any]) -> dict[str, int]:
    """Logs a broker trace's tokens: static (all but history and user), dynamic (history), user, total; returns them."""
    usage = token_usage(trace)
    logger.info(
        "token usage: static=%d dynamic=%d user=%d total=%d model=%s",
        usage["static"],
        usage["dynamic"],
        usage["user"],
        usage["total"],
        trace["model_id"],
    )
    return usage


_fallback_logged: set[tuple[str, str]] = set()
_FALLBACK_LOGGED_MAX = 10_000


def log_fallback_tool_prompt(session_id: str, model: str, tokens: int) -> None:
    """Logs, once per session and model, that the runtime put its fallback tool prompt into the system message."""
    key = (session_id, model)
    if key not in _fallback_logged:
        if len(_fallback_logged) >= _FALLBACK_LOGGED_MAX:
            _fallback_logged.clear()
        _fallback_logged.add(key)
        logger.info("fallback tool prompt injected: tokens=%d session=%s model=%s", tokens, session_id, model)
