"""Room in a tool loop: what a run's own messages may take, and what makes way when they take more.

Results are the only thing that is ever taken out, the oldest first, each replaced by one line that says what it was and where
its whole text is. The newest result and the user's message never are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rune.context.turns import message_tokens
from rune.errors import ContextOverflowError
from rune.kernels import EstimatorLike
from rune.messages import Message, without_thinking

__all__ = ["Dropped", "Keep", "Room", "RoomRule", "fit"]

Keep = Callable[[Message], str]
"""Keeps the text of a result and returns its name, "" when it could not be kept."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """One thing that was taken out: the result of ``tool``, or thinking ("thinking"); its tokens and the name it is kept by."""

    tool: str
    tokens: int
    kept: str = ""
    call_id: str = ""

    def as_row(self) -> dict[str, Any]:
        """The same as a plain dict."""
        return {"tool": self.tool, "tokens": self.tokens, "kept": self.kept, "call_id": self.call_id}


@dataclass(frozen=True, slots=True)
class Room:
    """The run's own messages as they fit, and what was taken out of them just now.

    ``num_ctx`` and ``num_predict`` are for the next call; None leaves them as they are.
    """

    messages: list[Message]
    dropped: list[Dropped] = field(default_factory=list)
    num_ctx: int | None = None
    num_predict: int | None = None


RoomRule = Callable[[Sequence[Message], Sequence[Message], Keep], Room]
"""``(messages the run began with, its own messages since, keep) -> Room``; asked before every model call but the first."""


def fit(own: Sequence[Message], keep: Keep, *, used: int, budget: int, window: int, estimator: EstimatorLike) -> Room:
    """The run's own messages, cut down so that they and what came before them (``used`` tokens) fit ``budget`` tokens.

    Thinking of earlier steps goes first, then results from the oldest on. Pure but for ``keep``; nothing given is changed.

    Raises:
        ContextOverflowError: they do not fit even so.
    """
    messages = list(own)
    sizes = [_tokens(message, estimator) for message in messages]
    total = used + sum(sizes)
    dropped: list[Dropped] = []

    def replace(position: int, message: Message, what: Dropped) -> None:
        nonlocal total
        size = _tokens(message, estimator)
        total += size - sizes[position]
        messages[position], sizes[position] = message, size
        dropped.append(what)

    newest_answer = _last(messages, "assistant")
    for position, message in enumerate(messages):
        if total <= budget:
            break
        if message.get("thinking") and position != newest_answer:
            replace(position, without_thinking(message), Dropped("thinking", estimator.many([message["thinking"]])[0]))
    newest_result = _last(messages, "tool")
    for position, message in enumerate(messages):
        if total <= budget:
            break
        if message["role"] != "tool" or position == newest_result:
            continue
        # A result that is no longer than the line would be stays.
        longest = _line(message, sizes[position], "tool_result:" + "0" * 16)
        if _tokens({**message, "content": longest}, estimator) >= sizes[position]:
            continue
        kept = keep(message)
        line = {**without_images(message), "content": _line(message, sizes[position], kept)}
        what = Dropped(str(message.get("tool_name", "")), sizes[position], kept, str(message.get("tool_call_id") or ""))
        replace(position, line, what)
    if total > budget:
        raise _overflow(messages, sizes, newest_result, used=used, budget=budget, window=window, total=total)
    return Room(messages, dropped)


def without_images(message: Message) -> Message:
    """The message without images."""
    return {key: value for key, value in message.items() if key != "images"}


def _tokens(message: Message, estimator: EstimatorLike) -> int:
    thinking = message.get("thinking")
    return message_tokens([message], estimator) + (estimator.many([thinking])[0] if thinking else 0)


def _last(messages: Sequence[Message], role: str) -> int | None:
    return next((i for i in range(len(messages) - 1, -1, -1) if messages[i]["role"] == role), None)


def _line(message: Message, tokens: int, kept: str) -> str:
    where = f"the whole is {kept}, which read_file can read" if kept else "it could not be kept"
    return f"[The result of {message.get('tool_name', 'a tool')} ({tokens} tokens) made way for newer ones; {where}.]"


def _overflow(
    messages: Sequence[Message],
    sizes: Sequence[int],
    newest: int | None,
    *,
    used: int,
    budget: int,
    window: int,
    total: int,
) -> ContextOverflowError:
    name = str(messages[newest].get("tool_name", "a tool")) if newest is not None else "the calls"
    size = sizes[newest] if newest is not None else 0
    return ContextOverflowError(
        f"The tool loop needs {total} tokens, but the budget is {budget} (window {window}): the prompt takes {used}, the "
        f"newest result (of {name}) {size}, the calls and what is left of older results {total - used - size}. Nothing was "
        "cut. What would help: ask for less at once (fewer lines, a narrower search), or a larger num_ctx.",
        window=window,
        budget=budget,
        blocks=[{"name": "prompt", "tokens": used}, {"name": name, "tokens": size}],
        block=name,
        block_tokens=size,
        used_before=total - size,
        origin="tool_loop",
    )
