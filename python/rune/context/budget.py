"""Budget math: what of a window is left for the prompt, and the error for prompts that do not fit it.

window  = what the model holds
budget  = window - max(2048, window // 4)     reserve for the completion
                 - window // 20               safety margin, 5 %
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rune.errors import ContextOverflowError, InvalidInput

__all__ = ["LEAST_RESERVE", "WINDOW_MAX", "Budget", "budget_of", "check_window", "overflow", "window_for"]

LEAST_RESERVE = 2048
WINDOW_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens: ``budget + reserve + margin == window``; the budget is 0 or less for windows up to 2155."""

    window: int
    reserve: int
    margin: int
    budget: int


def check_window(window: Any) -> int:
    """The window as an int. Raises InvalidInput unless it is a whole number from 1 to 2^31-1."""
    whole = isinstance(window, int) or (isinstance(window, float) and window.is_integer())
    if isinstance(window, bool) or not whole or not 1 <= window <= WINDOW_MAX:
        raise InvalidInput(f"a window must be a whole number of tokens from 1 to {WINDOW_MAX}, not {window!r}")
    return int(window)


def budget_of(window: Any) -> Budget:
    """The budget of a window. Raises InvalidInput for what is no window."""
    size = check_window(window)
    reserve = max(LEAST_RESERVE, size // 4)
    margin = size // 20
    return Budget(window=size, reserve=reserve, margin=margin, budget=size - reserve - margin)


def window_for(tokens: int) -> int | None:
    """The smallest window whose budget holds so many tokens; None when there is none."""
    window = max(1, tokens)
    while window <= WINDOW_MAX:
        missing = tokens - budget_of(window).budget
        if missing <= 0:
            return window
        window += missing  # a window of one token more has a budget of at most one token more
    return None


def overflow(
    budget: Budget,
    mandatory: Sequence[tuple[str, int]],
    *,
    failed: int | None,
    used_before: int,
    trace: dict[str, Any],
    origin: str = "broker",
) -> ContextOverflowError:
    """The error for mandatory blocks (name, tokens; assembly order) that do not fit; ``failed`` is the first that did not."""
    total = sum(tokens for _, tokens in mandatory)
    listed = ", ".join(f"{name} {tokens}" for name, tokens in mandatory) or "none"
    why = (
        f"The mandatory blocks need {total} tokens, but the budget is {budget.budget} "
        f"(window {budget.window}, less {budget.reserve} reserved for the reply and a margin of {budget.margin})."
    )
    name, tokens = mandatory[failed] if failed is not None else (None, 0)
    if budget.budget <= 0:
        what = "A window of this size leaves no room for any prompt."
    else:
        what = f"{name!r} is the first that does not fit: {tokens} tokens, {budget.budget - used_before} left."
    return ContextOverflowError(
        f"{why} {what} Mandatory: {listed}. Nothing was cut and nothing was sent. {_advice(name, total)}",
        window=budget.window,
        reserve=budget.reserve,
        margin=budget.margin,
        budget=budget.budget,
        blocks=[{"name": name, "tokens": tokens} for name, tokens in mandatory],
        block=name,
        block_tokens=tokens,
        used_before=used_before,
        trace=trace,
        origin=origin,
    )


def _advice(name: str | None, total: int) -> str:
    needed = window_for(max(1, total))
    ways = [f"use a window of at least {needed} tokens (a larger num_ctx or another model)"] if needed else []
    if name == "user":
        ways.insert(0, "shorten the task or split it")
    elif name in ("tools", "tool_schemas", "fallback_tool_prompt"):
        ways.insert(0, "offer fewer tools")
    elif name is not None:
        ways.insert(0, f"shorten {name!r}")
    return "What would help: " + ", or ".join(ways) + "."
