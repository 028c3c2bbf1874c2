"""The broker's trace: what was admitted, what was dropped, and why, with the specified keys and what Rune adds under ``ext``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rune.context.assembly import Decision
from rune.context.blocks import Entry
from rune.context.budget import Budget
from rune.context.capsule import AttentionCapsule, CapsuleBlock
from rune.context.layout import USER_BLOCK, Spans
from rune.kernels import BACKEND, EstimatorLike

__all__ = ["HISTORY_BLOCKS", "build_trace", "note_changes", "token_usage"]

HISTORY_BLOCKS = ("history", "history_summary")
"""Names of blocks that hold earlier turns, or what compaction made of them."""


def build_trace(
    *,
    model_id: str,
    budget: Budget,
    entries: Sequence[Entry],
    sizes: Sequence[Sequence[int]],
    decision: Decision,
    blocks: Mapping[int, CapsuleBlock],
    estimator: EstimatorLike,
    second: EstimatorLike | None,
    layout: str,
    memory_names: Collection[str],
    compaction: Sequence[Any],
    spans: Spans,
    user_spans: Spans,
    facts: Mapping[str, Mapping[str, Any]],
    warnings: Sequence[str],
) -> dict[str, Any]:
    """The trace without ``degraded`` and ``elapsed_ms``, which are filled in last. Entries are in assembly order.

    ``blocks`` are the admitted ones by position; ``second`` is the estimator whose counts stand beside the first one's.
    """
    rows: list[dict[str, Any]] = []
    ledger: list[dict[str, Any]] = []
    dropped: list[dict[str, Any]] = []
    units: list[dict[str, Any]] = []
    memory_tokens = 0
    key = estimator.key
    second_key = "" if second is None else second.key
    other = {} if second is None else _tokens_under(second, blocks)
    for position, (entry, parts, outcome) in enumerate(zip(entries, sizes, decision.outcomes, strict=True)):
        offered = sum(parts)
        tokens = outcome.tokens if outcome.admitted else offered
        row = {
            "name": entry.name,
            "priority": entry.priority,
            "tokens": tokens,
            "source": entry.source,
            "evictable": entry.evictable,
            "admitted": outcome.admitted,
            "reason": outcome.reason,
        }
        rows.append(row)
        if not outcome.admitted:
            dropped.append(_dropped(entry, offered, outcome.reason))
        elif outcome.reason == "older_parts":
            left = len(parts) - (outcome.kept or 0)
            dropped.append({**_dropped(entry, offered - tokens, outcome.reason), "count": left})
            units += ({"name": entry.name, "unit": i, "tokens": parts[i]} for i in range(left))
        if outcome.admitted and entry.name in memory_names:
            memory_tokens += tokens
        block = blocks.get(position)
        ledger.append(
            {
                **row,
                "section": entry.section,
                "bucket": entry.bucket,
                "registered": entry.registered,
                "offered": offered,
                "parts": list(parts) if entry.divisible else None,
                "kept_parts": outcome.kept if entry.divisible else None,
                "digest": block.digest if block is not None else None,
                "estimates": {key: tokens, **({second_key: other[position]} if position in other else {})},
            }
        )
    return {
        "model_id": model_id,
        "window": budget.window,
        "budget": budget.budget,
        "blocks": rows,
        "admitted": [row["name"] for row in rows if row["admitted"]],
        "admitted_total": decision.total,
        "dropped": dropped,
        "memory_tokens": memory_tokens,
        "degraded": [],
        "compaction": list(compaction),
        "elapsed_ms": 0.0,
        "ext": {
            "estimator": estimator.key,
            "backend": BACKEND,
            "layout": layout,
            "reserve": budget.reserve,
            "margin": budget.margin,
            "spans": spans,
            "user_spans": user_spans,
            "estimates": _totals(ledger),
            "ledger": ledger,
            "history": _history(entries, sizes, decision, facts.get(HISTORY_BLOCKS[0], {})),
            "facts": {name: dict(found) for name, found in facts.items() if name != HISTORY_BLOCKS[0]},
            "dropped_units": units,
            "warnings": list(warnings),
        },
    }


def _dropped(entry: Entry, tokens: int, reason: str) -> dict[str, Any]:
    return {"name": entry.name, "tokens": tokens, "priority": entry.priority, "reason": reason}


def _tokens_under(estimator: EstimatorLike, blocks: Mapping[int, CapsuleBlock]) -> dict[int, int]:
    """Tokens of the blocks by position; those that are one text are measured in one go."""
    texts = {position: block.content for position, block in blocks.items() if block.is_plain}
    found = dict(zip(texts, estimator.many(list(texts.values())), strict=True))
    return {
        position: found[position] if position in found else block.tokens_under(estimator)
        for position, block in blocks.items()
    }


def _totals(ledger: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Tokens of all admitted blocks under each estimator."""
    totals: dict[str, int] = {}
    for row in ledger:
        if row["admitted"]:
            for key, tokens in row["estimates"].items():
                totals[key] = totals.get(key, 0) + tokens
    return totals


def _history(
    entries: Sequence[Entry], sizes: Sequence[Sequence[int]], decision: Decision, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Turns of the history block: in all, completed and incomplete (the contributor's facts), offered, admitted, dropped."""
    offered = admitted = tokens_offered = tokens_admitted = 0
    for entry, parts, outcome in zip(entries, sizes, decision.outcomes, strict=True):
        if entry.name == HISTORY_BLOCKS[0] and entry.turns is not None:
            offered = len(entry.turns)
            tokens_offered = sum(parts)
            if outcome.admitted:
                admitted = offered if outcome.kept is None else outcome.kept
                tokens_admitted = outcome.tokens
    return {
        **facts,
        "offered": offered,
        "admitted": admitted,
        "dropped": offered - admitted,
        "tokens_offered": tokens_offered,
        "tokens_admitted": tokens_admitted,
    }


def note_changes(trace: Mapping[str, Any], capsule: AttentionCapsule) -> None:
    """Writes what was changed through the capsule's blocks since they were admitted into the trace's ``ext``.

    Tokens stay those of the admission; ``changes`` and ``tokens_after`` of the ledger say what they are now. Digests and spans
    are those of the texts that are sent.
    """
    ext = trace["ext"]
    ext["changes"] = capsule.changes()
    ext["spans"], ext["user_spans"] = capsule.system_spans(), capsule.user_spans()
    for row in ext["ledger"]:
        if row["name"] in capsule and capsule.block(row["name"]).changed:
            block = capsule.block(row["name"])
            row["digest"], row["tokens_after"] = block.digest, block.tokens


def token_usage(trace: Mapping[str, Any]) -> dict[str, int]:
    """Static (admitted less history less user), dynamic (history), user and total tokens of a broker trace."""
    admitted = {row["name"]: row["tokens"] for row in trace["blocks"] if row["admitted"]}
    dynamic = sum(admitted.get(name, 0) for name in HISTORY_BLOCKS)
    user = admitted.get(USER_BLOCK, 0)
    total = trace["admitted_total"]
    return {"static": total - dynamic - user, "dynamic": dynamic, "user": user, "total": total}
