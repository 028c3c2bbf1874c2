"""What tools use of the rest of Rune. The operator gives it; a tool that finds it missing says so in its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rune.runtime.tools import Tool

__all__ = ["MemoryService", "Services"]


class MemoryService(Protocol):
    """The stores of memory, as tools use them. Every method raises InvalidInput and StorageError."""

    def remember(self, text: str) -> str:
        """Stores a text and returns what to call it."""
        ...

    def recall(self, question: str, limit: int) -> list[str]:
        """At most ``limit`` remembered texts, facts and connections that speak of ``question``, each in one line."""
        ...

    def relate(self, subject: str, relation: str, target: str) -> str:
        """Stores a connection of two names and returns what to call it."""
        ...


@dataclass(frozen=True, slots=True)
class Services:
    """``memory`` is None where memory is off. ``find_capability`` gives the tools that some words describe, best first, and may
    widen what is shown to the model; None searches the tools of the run. ``http_hosts`` are hosts ("name" or "name:port") of
    this machine or its network that ``http_get`` may ask all the same.
    """

    memory: MemoryService | None = None
    find_capability: Callable[[str], Sequence[Tool]] | None = None
    http_hosts: frozenset[str] = frozenset()
