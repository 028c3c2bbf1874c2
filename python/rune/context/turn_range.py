"""Turns of a conversation as a sequence that makes each of them when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from rune.context.turns import Turn

__all__ = ["TurnRange"]


class TurnRange(Sequence[Turn]):
    """The turns of these numbers. Equal to any list or tuple of equal turns."""

    __slots__ = ("_numbers", "_turn")

    def __init__(self, turn: Callable[[int], Turn], numbers: range) -> None:
        self._turn = turn
        self._numbers = numbers

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> TurnRange: ...
    def __getitem__(self, index: int | slice) -> Turn | TurnRange:
        if isinstance(index, slice):
            return TurnRange(self._turn, self._numbers[index])
        return self._turn(self._numbers[index])

    def __iter__(self) -> Iterator[Turn]:
        return map(self._turn, self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (TurnRange, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __repr__(self) -> str:
        return f"<{len(self)} turns>"
