"""What a run offers of its tools, and in which way: in the request, or by the fallback tool prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rune.context_broker import LedgerEntry, log_fallback_tool_prompt
from rune.messages import compact_json
from rune.operator_run import Run
from rune.runtime.fallback_prompt import FallbackPrompt, shared_prompt, tool_mode
from rune.runtime.tools import Tool, shared_schema

__all__ = ["FALLBACK_ENTRY", "TOOLS_DO_NOT_FIT", "ledger_entries", "offer", "told_of_tools", "withdraw"]

FALLBACK_ENTRY = "fallback_tool_prompt"
TOOLS_DO_NOT_FIT = "tools_do_not_fit"


def offer(
    run: Run,
    tools: Mapping[str, Tool],
    setting: str,
    prompt_of: Callable[[Sequence[str]], FallbackPrompt] | None = None,
    *,
    assume_native: bool = False,
) -> None:
    """Notes in ``run`` which of the tools asked for are offered, and what is sent for them.

    An answer that must have a given format leaves no place for calls in words: a model without tools of its own is then
    offered none. ``prompt_of`` makes the prompt of the named tools; ``assume_native`` is for plans that know no model.
    """
    capabilities = None if run.facts is None else run.facts.capabilities
    mode, may = tool_mode(setting, capabilities)
    if assume_native and setting != "always":
        mode, may = "native", True
    if mode == "text" and run.asked.passed.get("format") is not None:
        may = False
    names = [name for name in run.asked.tools or () if name in tools] if may else []
    run.tool_mode = mode
    if mode == "native":
        run.offered, run.prompt = names, FallbackPrompt()
        run.schemas = [shared_schema(tools[name]) for name in names]
        return
    run.prompt = shared_prompt(tools[name] for name in names) if prompt_of is None else prompt_of(names)
    run.offered, run.schemas = list(run.prompt.names), []
    if run.prompt.left_out:
        listed = ", ".join(run.prompt.left_out)
        run.warnings.append(f"the tool prompt has no room for all tools; not offered: {listed}")


def withdraw(run: Run) -> None:
    """Offers nothing after all, because it does not fit."""
    run.offered, run.schemas, run.prompt = [], [], FallbackPrompt()
    run.warnings.append(TOOLS_DO_NOT_FIT)


def ledger_entries(run: Run) -> list[LedgerEntry]:
    """What the runtime sends past the capsule's messages, for the ledger."""
    if run.prompt.text:
        return [LedgerEntry(FALLBACK_ENTRY, tokens_text=run.prompt.text, source="LocalToolRuntime.fallback_prompt")]
    return [_schemas_entry(run.schemas)] if run.schemas else []


_written: dict[tuple[int, ...], tuple[list[dict[str, Any]], str]] = {}
_WRITTEN_MAX = 64


def _schemas_entry(schemas: list[dict[str, Any]]) -> LedgerEntry:
    # Turn after turn shows the same tools, by the same objects: kept here, so that no id is another's.
    key = tuple(map(id, schemas))
    if key not in _written:
        if len(_written) >= _WRITTEN_MAX:
            _written.clear()
        _written[key] = (list(schemas), compact_json(schemas))
    return LedgerEntry("tool_schemas", tokens_text=_written[key][1], source="LocalToolRuntime.schemas")


def told_of_tools(run: Run) -> None:
    """Logs, once per session and model, that the prompt enters the system message."""
    if run.prompt.text and run.capsule is not None and FALLBACK_ENTRY in run.capsule:
        session = "none" if run.session is None else run.session.id
        log_fallback_tool_prompt(session, run.model, run.capsule.block(FALLBACK_ENTRY).tokens)
