"""From collected entries to a capsule and its trace: places them by the layout, measures, admits and renders."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rune.context.assembly import Decision, Offer, admit_offers, measure
from rune.context.blocks import Entry
from rune.context.broker_trace import build_trace
from rune.context.budget import Budget, overflow
from rune.context.capsule import AttentionCapsule, CapsuleBlock
from rune.context.collect import Collected
from rune.context.layout import USER_BLOCK, assembly_order, section_of
from rune.context.turns import Turn
from rune.errors import ContextOverflowError
from rune.kernels import EstimatorLike
from rune.messages import split_turns
from rune.subsystem_health import record_failure

__all__ = ["Order", "as_changed", "pack"]


class Order(NamedTuple):
    """What to pack for: the model, the budget, the measures and the layout.

    ``second`` is the estimator whose counts stand in the trace beside the first one's; None for none. ``dry``: contributors
    are not told what was cut. ``compaction`` and ``warnings`` go into the trace.
    """

    model_id: str
    budget: Budget
    estimator: EstimatorLike
    second: EstimatorLike | None
    layout: str
    memory_names: Collection[str]
    dry: bool = False
    compaction: Sequence[Any] = ()
    warnings: Sequence[str] = ()
    task: Any = None
    session: Any = None


def pack(collected: Collected, order: Order) -> tuple[AttentionCapsule, dict[str, Any], ContextOverflowError | None]:
    """The capsule, the trace, and the error when mandatory entries do not fit (the trace is then a partial one).

    ``degraded`` and ``elapsed_ms`` of the trace are left for the caller, who knows when the turn began.
    """
    entries = _placed(collected.entries, order.layout)
    sizes = measure(entries, order.estimator)
    offers = [
        Offer(sum(parts), e.priority, e.evictable, e.registered, e.section, parts if e.divisible else None)
        for e, parts in zip(entries, sizes, strict=True)
    ]
    budget = order.budget
    decision = admit_offers(offers, budget.budget, order.layout)
    blocks = {
        i: CapsuleBlock(
            entry, kept=outcome.kept, tokens=outcome.tokens, reason=outcome.reason, estimator=order.estimator
        )
        for i, (entry, outcome) in enumerate(zip(entries, decision.outcomes, strict=True))
        if outcome.admitted
    }
    capsule = AttentionCapsule(
        list(blocks.values()),
        model_id=order.model_id,
        window=budget.window,
        reserve=budget.reserve,
        margin=budget.margin,
        budget=budget.budget,
        layout=order.layout,
        estimator=order.estimator,
        entries=entries,
        task=order.task,
        session=order.session,
        facts=collected.facts,
    )
    trace = build_trace(
        model_id=order.model_id,
        budget=budget,
        entries=entries,
        sizes=sizes,
        decision=decision,
        blocks=blocks,
        estimator=order.estimator,
        second=order.second,
        layout=order.layout,
        memory_names=order.memory_names,
        compaction=order.compaction,
        spans=capsule.system_spans(),
        user_spans=capsule.user_spans(),
        facts=collected.facts,
        warnings=order.warnings,
    )
    if decision.overflow:
        return capsule, trace, _overflow(entries, offers, decision, budget, trace)
    if order.layout == "cache" and not order.dry:
        _tell_cuts(entries, decision)
    return capsule, trace, None


def _placed(entries: Sequence[Entry], layout: str) -> list[Entry]:
    """The entries with their sections, in assembly order."""
    # Notes stand behind the user's text; without one they have no message to stand in.
    layout = layout if any(e.name == USER_BLOCK and e.turns is None for e in entries) else "seed"
    placed = [_placed_entry(entry, layout) for entry in entries]
    return [placed[i] for i in assembly_order(placed, layout)]


def _placed_entry(entry: Entry, layout: str) -> Entry:
    if entry.section == "ledger":
        return entry
    section = section_of(entry.name, layout=layout, has_messages=entry.turns is not None, evictable=entry.evictable)
    return entry if section == entry.section else replace(entry, section=section)


def _overflow(
    entries: Sequence[Entry], offers: Sequence[Offer], decision: Decision, budget: Budget, trace: dict[str, Any]
) -> ContextOverflowError:
    mandatory = [i for i, entry in enumerate(entries) if not entry.evictable]
    return overflow(
        budget,
        [(entries[i].name, offers[i].tokens) for i in mandatory],
        failed=None if decision.failed is None else mandatory.index(decision.failed),
        used_before=decision.used_before,
        trace=trace,
    )


def _tell_cuts(entries: Sequence[Entry], decision: Decision) -> None:
    """Lets contributors of cut history know where its front is now."""
    for entry, outcome in zip(entries, decision.outcomes, strict=True):
        if outcome.reason == "older_parts" and entry.on_cut is not None:
            try:
                entry.on_cut(outcome.kept or 0)
            except Exception as exc:  # a contributor's own code
                record_failure(entry.name, exc, tier=1)


def as_changed(entry: Entry, capsule: AttentionCapsule) -> Entry:
    """The entry with the content that its block has now, when that was changed through the capsule."""
    if entry.name not in capsule:
        return entry
    block = capsule.block(entry.name)
    if not block.changed and block.images == entry.images:
        return entry
    if block.has_messages:
        messages = block.rendered_messages()
        turns = split_turns(messages) if entry.divisible else [messages]
        return replace(entry, turns=[Turn(turn) for turn in turns])
    return replace(entry, text=block.content, texts=None, divisible=False, images=list(block.images))
