"""What a run finds by ``find_capability`` and is offered from its next model call on: measured, within the room, on record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rune.kernels import EstimatorLike
from rune.messages import compact_json
from rune.operator_run import Run

__all__ = ["FOUND_DO_NOT_FIT", "found_tokens", "offer_found", "withdraw_found"]

FOUND_DO_NOT_FIT = "found_tools_do_not_fit"


def offer_found(run: Run, estimator: EstimatorLike) -> None:
    """Adds the schemas of tools found since the last call to what the next one is sent."""
    capability = run.capability
    names = [] if capability is None else capability.take(run.offered)
    if capability is None or not names or run.runtime is None:
        return
    native = bool(run.schemas)  # else the tools are told of in words, and so is what was found: in the call's result
    schemas = [capability.tools[name].schema() for name in names]
    tokens = estimator.many([compact_json(schemas)])[0] if native else 0
    row: dict[str, Any] = {"call": len(run.runtime.result.replies), "tools": names, "tokens": tokens, "offered": native}
    capability.rows.append(row)
    if native:
        run.offered = [*run.offered, *names]
        run.schemas = [*run.schemas, *schemas]
        run.asked = replace(run.asked, tools=(*(run.asked.tools or ()), *names))  # for another model that goes on, too


def found_tokens(run: Run, estimator: EstimatorLike) -> int:
    """Tokens of the schemas that are offered past those in the capsule's ledger."""
    if run.capability is None or not run.schemas:
        return 0
    there = set(run.capability.measured)
    past = [schema for schema in run.schemas if schema["function"]["name"] not in there]
    return estimator.many([compact_json(past)])[0] if past else 0


def withdraw_found(run: Run) -> bool:
    """Takes back what was found, because there is no room for it; whether there was anything. It can be called all the same."""
    capability = run.capability
    if capability is None or not run.schemas:
        return False
    there = set(capability.measured)
    kept = [name for name in run.offered if name in there]
    if len(kept) == len(run.offered):
        return False
    taken_back = set(run.offered) - there
    run.offered = kept
    run.asked = replace(run.asked, tools=tuple(name for name in run.asked.tools or () if name not in taken_back))
    run.schemas = [schema for schema in run.schemas if schema["function"]["name"] in there]
    for row in capability.rows:
        row["offered"] = False
    run.warnings.append(FOUND_DO_NOT_FIT)
    return True
