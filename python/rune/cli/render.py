"""What people see: the admission as a table with bars against the window, a trace row, and plain lines for warnings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rune.cli.common import printable

__all__ = ["WHY_LEFT", "admission_table", "console", "error_console", "routing_line", "row_summary", "verdict_line"]

BAR_WIDTH = 24
_REASONS = {
    "mandatory": "mandatory",
    "fits": "fits",
    "over_budget": "left out: over budget",
    "older_parts": "newest parts; older ones left out",
}


def console() -> Console:
    """Standard output; plain where it is no terminal or NO_COLOR is set (rich reads both)."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=not sys.stdout.isatty())


def error_console() -> Console:
    """Standard error, for progress and notes that are not the answer."""
    return Console(file=sys.stderr, highlight=False, stderr=True)


def _bar(tokens: int, whole: int, ascii_only: bool) -> str:
    full, empty = ("#", ".") if ascii_only else ("█", "·")
    filled = 0 if whole <= 0 else min(BAR_WIDTH, round(BAR_WIDTH * tokens / whole))
    if tokens > 0 and filled == 0:
        filled = 1
    return full * filled + empty * (BAR_WIDTH - filled)


def admission_table(trace: Mapping[str, Any], *, title: str = "What enters the window") -> Table:
    """One line per block with its share of the window, what was left out, and the sums under it."""
    window = int(trace["window"])
    ascii_only = (sys.stdout.encoding or "ascii").lower().replace("-", "") not in ("utf8", "utf16")
    table = Table(title=title, title_justify="left", show_footer=False, box=None, pad_edge=False)
    for name, justify in (("block", "left"), ("tokens", "right"), ("of the window", "left"), ("prio", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("why", overflow="fold")
    left_out = {d["name"]: d for d in trace["dropped"]}
    changes = {c["name"]: c["tokens"] - c["tokens_before"] for c in (trace.get("ext") or {}).get("changes") or ()}
    for block in trace["blocks"]:
        more = changes.get(block["name"], 0)
        admitted, tokens = bool(block["admitted"]), int(block["tokens"]) + more
        why = _REASONS.get(block["reason"], block["reason"])
        dropped = left_out.get(block["name"])
        if dropped is not None and admitted:
            count = f"{dropped['count']} " if "count" in dropped else ""
            why += f" ({count}older, {dropped['tokens']} tokens)"
        if more:
            why += f" ({more:+,} by the safety note)"
        table.add_row(
            Text(printable(str(block["name"]))),
            f"{tokens:,}",
            Text(_bar(tokens if admitted else 0, window, ascii_only)),
            str(block["priority"]),
            Text(printable(why)),
            style=None if admitted else "yellow",
        )
    budget, total = int(trace["budget"]), int(trace["admitted_total"]) + sum(changes.values())
    table.add_section()
    table.add_row(
        "admitted", f"{total:,}", Text(_bar(total, window, ascii_only)), "", f"of a budget of {budget:,} (estimated)"
    )
    table.add_row(
        "kept free", f"{window - budget:,}", Text(_bar(window - budget, window, ascii_only)), "", "reply and margin"
    )
    table.add_row("window", f"{window:,}", "", "", "")
    return table


def row_summary(row: Mapping[str, Any]) -> Table:
    """The figures of a trace row: estimated against served, the verdict, time, cost."""
    ext = row.get("ext") or {}
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    served = row.get("prompt_tokens_served") or 0
    estimated = row.get("prompt_tokens_estimated") or 0
    table.add_row("model", Text(printable(f"{row.get('model')} ({row.get('provider')})")))
    if line := routing_line(ext.get("routing")):
        table.add_row("router", Text(printable(line)))
    table.add_row(
        "window",
        f"{row.get('resolved_context_window'):,} · budget {row.get('input_budget'):,} · num_ctx {ext.get('num_ctx')}",
    )
    table.add_row("prompt", f"{estimated:,} estimated · {f'{served:,} served' if served else 'served count unknown'}")
    table.add_row("reply", f"{row.get('output_tokens') or 0:,} tokens · {row.get('latency_ms') or 0:,.0f} ms")
    if verdict := ext.get("verdict"):
        table.add_row("verdict", Text(printable(verdict_line(verdict))))
    cost = row.get("cost_usd")
    table.add_row("cost", f"{row.get('cost_basis')}" + (f" · {cost:.6f} USD" if cost is not None else ""))
    if row.get("degraded"):
        table.add_row("degraded", Text(printable(", ".join(row["degraded"]))))
    if row.get("error"):
        table.add_row("error", Text(printable(row["error"])))
    return table


WHY_LEFT = {
    "overflow": "the prompt does not fit",
    "refused": "the server refused the prompt",
    "tool_failures": "its tool calls failed again and again",
    "loop": "it went in circles",
}
"""Why a tier was left, in words."""


def routing_line(routing: Any) -> str:
    """``tier large (big:70b) after small: the prompt does not fit; family chat …``; "" where one model is all there is."""
    if not isinstance(routing, Mapping) or routing.get("mode") != "tiered":
        return ""
    steps = routing.get("escalations") or ()
    after = "".join(f" after {step.get('from')}: {WHY_LEFT.get(step.get('why'), step.get('why'))};" for step in steps)
    return f"tier {routing.get('tier')} ({routing.get('model')}){after or ';'} {routing.get('reason')}"


def verdict_line(verdict: Any) -> str:
    """``whole — the server can refuse and did not``."""
    if isinstance(verdict, Mapping):
        return f"{verdict.get('kind')} — {verdict.get('basis')}" if verdict.get("basis") else str(verdict.get("kind"))
    return str(verdict)
