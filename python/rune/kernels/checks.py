"""Input checks of the pure kernels; the native module gives the same errors in the same words."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from rune.errors import InvalidInput

__all__ = ["INT_MAX", "INT_MIN", "entry", "integer", "integers", "items", "same_length", "text", "texts"]

INT_MIN = -(2**63)
INT_MAX = 2**63 - 1


def text(value: Any, what: str) -> str:
    """The value as an exact ``str``; a subclass's own methods are never asked."""
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    raise InvalidInput(f"{what} must be a str, not {type(value).__name__}")


def integer(value: Any, what: str, least: int = INT_MIN) -> int:
    """The value as an ``int`` of at most 64 bits with a sign, and at least ``least``."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidInput(f"{what} must be an integer, not {type(value).__name__}") from None
    if not least <= number <= INT_MAX:
        raise InvalidInput(f"{what} must be from {least} to {INT_MAX}")
    return number


def items(values: Any, what: str) -> list[Any]:
    """The values of any iterable as a list. One text is refused: its characters are hardly what was meant."""
    if type(values) is list:
        return values
    if isinstance(values, str):
        raise InvalidInput(f"{what} must be a list, not one text")
    try:
        iterator = iter(values)
    except TypeError:
        raise InvalidInput(f"{what} must be a list, not {type(values).__name__}") from None
    return list(iterator)


def texts(values: Iterable[Any], what: str) -> list[str]:
    """Many texts, each an exact ``str``."""
    found = items(values, what)
    if {*map(type, found)} <= {str}:
        return found
    return [text(value, f"{what}[{i}]") for i, value in enumerate(found)]


def integers(values: Any, what: str, least: int = INT_MIN) -> list[int]:
    """Many integers, each checked as ``integer`` checks one."""
    return [integer(value, f"{what}[{i}]", least) for i, value in enumerate(items(values, what))]


def same_length(found: int, wanted: int, what: str) -> None:
    """Refuses parallel lists of different lengths."""
    if found != wanted:
        raise InvalidInput(f"{what} has {found} values, but {wanted} are needed")


def entry(i: int, length: int) -> int:
    """The index ``i`` of one of ``length`` entries; negative ones are refused."""
    if not 0 <= i < length:
        raise InvalidInput(f"there is no entry {i}: the ledger has {length}")
    return i
