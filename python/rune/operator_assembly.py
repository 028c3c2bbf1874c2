"""The capsule of a turn for the model that it runs on, and the note of the safety override in it.

What is sent for the tools is in its ledger; where they do not fit, the turn goes on without tools. For another model it is made
from what was collected already. A note that does not fit makes room like any other mandatory text: what can be left out is, and
a task that would have to go without its note does not go at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rune.context.broker_trace import note_changes
from rune.context.layout import USER_BLOCK
from rune.context_broker import ContextBroker
from rune.errors import ContextOverflowError
from rune.operator_offer import ledger_entries, withdraw
from rune.operator_run import Run
from rune.runtime.safety import decorated, find
from rune.runtime.safety_rules import Rule

if TYPE_CHECKING:
    from rune.context.capsule import AttentionCapsule

__all__ = ["SAFETY", "assemble_turn"]

SAFETY = "safety"
"""The key of the override in the row's ``ext``."""


def assemble_turn(
    run: Run,
    broker: ContextBroker,
    *,
    safety: Sequence[Rule] = (),
    dry: bool = False,
    before: AttentionCapsule | None = None,
) -> None:
    """Puts the capsule and the broker's trace of the turn into ``run``, and the note that a rule of ``safety`` asks for.

    ``before``: a capsule of this turn; what it was assembled from is admitted again, and only blocks that depend on the model
    are collected anew.

    Raises:
        ContextOverflowError: the mandatory blocks do not fit the window of ``run``, even without tools.
    """
    capsule = _admit(run, broker, dry, before)
    findings = find(run.task.task, safety) if SAFETY not in run.ext and USER_BLOCK in capsule else []
    if not findings:
        return
    block = capsule.block(USER_BLOCK)
    tokens = block.tokens
    block.content = decorated(block.content, findings)
    over = capsule.token_count > capsule.budget
    run.ext[SAFETY] = {
        "rules": [finding.rule.name for finding in findings],
        "seen": [{"rule": finding.rule.name, "text": finding.text} for finding in findings],
        "tokens_before": tokens,
        "tokens_after": block.tokens,
        "made_room": over,
    }
    if over:
        _admit(run, broker, dry, capsule)
    else:
        assert run.broker_trace is not None
        note_changes(run.broker_trace, capsule)


def _admit(run: Run, broker: ContextBroker, dry: bool, before: AttentionCapsule | None) -> AttentionCapsule:
    assert run.window is not None
    about = {"run_id": run.run_id, "channel": run.task.channel, "tools": list(run.offered)}
    common: dict[str, Any] = {"window": run.window.window, "compaction": run.compaction, "dry": dry}
    entries = ledger_entries(run)
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
        withdraw(run)
    if run.capability is not None:
        run.capability.measured = tuple(run.offered)
    run.capsule, run.broker_trace = found
    return found[0]
