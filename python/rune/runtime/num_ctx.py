"""Which window to ask the server for, and how long a reply it may hold: a pure function of numbers, the same for chat and
summariser, and a small memory of what was sent last.

A server reloads the model whenever ``num_ctx`` changes, and memory grows with it. So the value moves in steps, it does not
go down while a model stays loaded, and it stops at a ceiling; an explicit value is sent as it is.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = [
    "FIRST_STEP",
    "REPLY_ROOM",
    "REPLY_ROOM_THINKING",
    "NumCtx",
    "Sticky",
    "choose_num_ctx",
    "next_step",
    "sticky",
]

FIRST_STEP = 8192
REPLY_ROOM = 4096
REPLY_ROOM_THINKING = 8192


@dataclass(frozen=True, slots=True)
class NumCtx:
    """The window and the longest reply to ask for, in tokens; both are > 0.

    ``reason`` is a short sentence for the trace. ``over_ceiling`` is True when the need is larger than the ceiling allows:
    the prompt has to be admitted again into this smaller window before it is sent.
    """

    num_ctx: int
    num_predict: int
    reason: str
    over_ceiling: bool = False


def choose_num_ctx(
    *,
    window: int,
    explicit: int | None = None,
    safe_tokens: int,
    num_predict: int | None = None,
    thinking: bool = False,
    loaded: int | None = None,
    ceiling: int | None = None,
    sticky: int | None = None,
) -> NumCtx:
    """The values to send, in tokens.

    Args:
        window: the window that the turn was budgeted against (trained, or lowered by an explicit num_ctx).
        explicit: a num_ctx that the caller, the settings or the Modelfile set; sent as it is, capped at the window.
        safe_tokens: safe estimate of the prompt (``script`` + 8 tokens a message + tool schemas).
        num_predict: the caller's own limit for the reply.
        thinking: the model thinks, which counts as reply.
        loaded: the window that the server has the model loaded with now; not gone below.
        ceiling: the largest step taken on its own (``RUNE_NUM_CTX_MAX``).
        sticky: what was sent to this server and model before; not gone below.
    """
    window = max(1, window)
    if explicit is not None:
        num_ctx = max(1, min(explicit, window))
        return NumCtx(num_ctx, _reply_room(num_ctx, safe_tokens, num_predict), "explicit")
    room = num_predict or (REPLY_ROOM_THINKING if thinking else REPLY_ROOM)
    need = safe_tokens + room
    limit = window if ceiling is None else min(window, max(1, ceiling))
    # What runs already costs nothing to use again, even above the ceiling: going below it would reload the model.
    running = min(max(loaded or 0, sticky or 0), window)
    num_ctx = running if running >= need else max(_step_for(need, limit), running)
    over = num_ctx < min(need, window)
    if over:
        reason = f"ceiling of {limit}: {need} tokens would need a window of {_step_for(need, window)}"
    elif num_ctx == running:
        reason = "as loaded" if running == loaded else "as before"
    elif num_ctx == window:
        reason = f"the whole window for {need} tokens"
    else:
        reason = f"smallest step for {need} tokens"
    return NumCtx(num_ctx, _reply_room(num_ctx, safe_tokens, num_predict), reason, over)


def _reply_room(num_ctx: int, safe_tokens: int, num_predict: int | None) -> int:
    """The caller's limit, else what the prompt leaves; never 0, which servers read as "no limit"."""
    if num_predict is not None and num_predict > 0:
        return num_predict
    return max(1, num_ctx - 1 - safe_tokens)


def _step_for(need: int, window: int) -> int:
    """The smallest of 8192, 16384, … that holds ``need``; the last step is the window itself."""
    step = FIRST_STEP
    while step < need and step < window:
        step *= 2
    return min(step, window)


def next_step(current: int, window: int, ceiling: int | None = None, need: int | None = None) -> int | None:
    """The next larger window to try after a refusal, or None when there is none that the ceiling allows.

    Args:
        current: the num_ctx that was refused.
        need: tokens that the server said the prompt has; the step then holds one more than that.
    """
    top = window if ceiling is None else min(window, ceiling)
    wanted = max(current, need or 0) + 1
    step = _step_for(wanted, top)
    return step if step >= wanted else None


class Sticky:
    """The num_ctx last sent per server and model, for one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[tuple[str, str], int] = {}

    def get(self, server_key: str, model: str) -> int | None:
        """What was sent last, or None."""
        with self._lock:
            return self._sent.get((server_key, model))

    def set(self, server_key: str, model: str, num_ctx: int) -> None:
        """Remember what was sent (not for explicit values: they are the caller's own affair)."""
        with self._lock:
            self._sent[(server_key, model)] = num_ctx

    def forget(self, server_key: str, model: str) -> None:
        """After a load that failed: the next turn starts from the smallest step that does."""
        with self._lock:
            self._sent.pop((server_key, model), None)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._sent.clear()


sticky = Sticky()
"""The registry of this process."""
