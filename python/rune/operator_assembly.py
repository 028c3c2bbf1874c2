"""The capsule of a turn for the model that it runs on: with the schemas of its tools in the ledger, without where these do not
fit, and for another model from what was collected already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rune.context_broker import ContextBroker, LedgerEntry
from rune.errors import ContextOverflowError
from rune.messages import compact_json
from rune.operator_run import Run

if TYPE_CHECKING:
    from rune.context.capsule import AttentionCapsule

__all__ = ["TOOLS_DO_NOT_FIT", "assemble_turn"]

TOOLS_DO_NOT_FIT = "tools_do_not_fit"


def assemble_turn(
    run: Run, broker: ContextBroker, *, dry: bool = False, before: AttentionCapsule | None = None
) -> None:
    """Puts the capsule and the broker's trace of the turn into ``run``.

    ``before``: a capsule of this turn; what it was assembled from is admitted again, and only blocks that depend on the model
    are collected anew.

    Raises:
        ContextOverflowError: the mandatory blocks do not fit the window of ``run``, even without tools.
    """
    assert run.window is not None
    about = {"run_id": run.run_id, "channel": run.task.channel, "tools": list(run.offered)}
    common: dict[str, Any] = {"window": run.window.window, "compaction": run.compaction, "dry": dry}
    entries = [_schemas_entry(run.schemas)] if run.schemas else []
    try:
        if before is None:
            found = broker.assemble(run.task, run.session, run.model, extra_blocks=entries, run=about, **common)
        else:
            found = broker.readmit(before, model_id=run.model, extra_blocks=entries, run=about, **common)
    except ContextOverflowError as exc:
        if not entries or exc.capsule is None:
            raise
        capsule: AttentionCapsule = exc.capsule
        capsule.entries = tuple(entry for entry in capsule.entries if entry.name != "tools")
        found = broker.readmit(capsule, extra_blocks=(), run={**about, "tools": []}, **common)
        run.offered, run.schemas = [], []
        run.warnings.append(TOOLS_DO_NOT_FIT)
    run.capsule, run.broker_trace = found


def _schemas_entry(schemas: list[dict[str, Any]]) -> LedgerEntry:
    return LedgerEntry("tool_schemas", tokens_text=compact_json(schemas), source="LocalToolRuntime.schemas")
