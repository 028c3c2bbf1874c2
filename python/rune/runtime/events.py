"""What happens in a run besides the stream of a reply: tools that begin and end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rune.transports.base import Event

__all__ = ["OnEvent", "RunEvent", "TierChanged", "ToolFinished", "ToolStarted"]


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool is about to run; ``arguments`` as the model gave them, ``step`` counts model calls from 1."""

    name: str
    arguments: Any
    step: int


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """A tool has run, or was refused. ``text`` is what the model is given; ``kept`` names the whole text if that was longer."""

    name: str
    step: int
    ok: bool
    text: str
    elapsed_ms: float
    kept: str = ""


@dataclass(frozen=True, slots=True)
class TierChanged:
    """The run goes on with the model of another tier; ``why`` is "overflow", "refused", "tool_failures" or "loop"."""

    tier: str
    model: str
    why: str


RunEvent = Event | ToolStarted | ToolFinished | TierChanged
OnEvent = Callable[[RunEvent], None]
