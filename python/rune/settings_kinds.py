"""Kinds of settings: each takes a value from the environment (text) or from TOML and returns it in its own type.

A wrong value is a ValueError whose text says what is allowed; ``Doubtful`` carries a value that is taken all the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "Doubtful",
    "choice",
    "days",
    "hours",
    "http_url",
    "keep_alive",
    "loose_switch",
    "names",
    "path",
    "prices",
    "seconds",
    "switch",
    "table",
    "tables",
    "text",
    "think",
    "tokens",
    "whole",
]

TOKENS_MAX = 2**31 - 1
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_DURATION = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|ms|s|m|h))+")
THINK_LEVELS = ("low", "medium", "high")


class Doubtful(ValueError):
    """A value that is taken as ``value``, and deserves a warning."""

    def __init__(self, message: str, value: Any) -> None:
        super().__init__(message)
        self.value = value


def text(value: Any) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("it must be text that is not empty")
    return value.strip()


def choice(*allowed: str) -> Callable[[Any], str]:
    """One of the words, in any case."""

    def parse(value: Any) -> str:
        word = value.strip().lower() if isinstance(value, str) else value
        if word not in allowed:
            raise ValueError("it must be one of " + ", ".join(allowed))
        return str(word)

    return parse


def switch(value: Any) -> bool:
    """On or off."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower() if isinstance(value, (str, int)) else ""
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError("it must be one of " + ", ".join(_TRUE + _FALSE))


def loose_switch(value: Any) -> bool:
    """On for the words that mean on, off for everything else."""
    try:
        return switch(value)
    except ValueError as exc:
        raise Doubtful(f"{str(value)[:40]!r} counts as off; {exc}", False) from exc


def whole(least: int, most: int = 2**63 - 1) -> Callable[[Any], int]:
    """A whole number within limits."""

    def parse(value: Any) -> int:
        number = value
        if isinstance(value, str):
            number = int(value) if re.fullmatch(r"[+-]?[0-9]{1,20}", value.strip()) else None
        elif isinstance(value, float) and value.is_integer():
            number = int(value)
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise ValueError(f"it must be a whole number from {least} to {most}")
        return number

    return parse


def names(value: Any) -> tuple[str, ...]:
    """Names, parted by commas or as a list, each once; "none" is none."""
    if isinstance(value, str):
        value = [] if value.strip().lower() == "none" else value.split(",")
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise ValueError("it must be names, parted by commas or as a list")
    found = tuple(dict.fromkeys(name.strip() for name in value if name.strip()))
    if any(re.search(r"\s", name) for name in found):
        raise ValueError("it must be names parted by commas; a name holds no spaces")
    return found


tokens = whole(1, TOKENS_MAX)
"""A number of tokens."""


def _above_zero(what: str) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number) or number <= 0:
            raise ValueError(f"it must be a number of {what} above 0")
        return number

    return parse


seconds = _above_zero("seconds")
hours = _above_zero("hours")
days = _above_zero("days")


def path(value: Any) -> Path:
    """A path, ``~`` expanded and absolute."""
    if not isinstance(value, (str, Path)) or not str(value).strip():
        raise ValueError("it must be a path")
    try:
        return Path(value).expanduser().absolute()
    except (RuntimeError, ValueError) as exc:
        raise ValueError(f"it must be a path: {exc}") from exc


def http_url(value: Any) -> str:
    """An address that begins with http:// or https://."""
    if not isinstance(value, str) or not re.match(r"https?://[^/\s]", value.strip()):
        raise ValueError("it must be an address that begins with http:// or https://")
    return value.strip()


def keep_alive(value: Any) -> str | int:
    """Seconds as a whole number (negative: for ever), or a duration such as "5m" or "1h30m"."""
    if isinstance(value, str) and _DURATION.fullmatch(value.strip()):
        return value.strip()
    try:
        return whole(-(2**31), 2**31 - 1)(value)
    except ValueError:
        raise ValueError('it must be seconds as a whole number (-1: for ever) or a duration such as "5m"') from None


def think(value: Any) -> bool | str:
    """On, off, or a level."""
    word = value.strip().lower() if isinstance(value, str) else value
    if word in THINK_LEVELS:
        return str(word)
    try:
        return switch(word)
    except ValueError:
        raise ValueError("it must be on, off, " + ", ".join(THINK_LEVELS)) from None


def table(value: Any) -> dict[str, Any]:
    """A table of TOML."""
    if not isinstance(value, Mapping):
        raise ValueError("it must be a table")
    return dict(value)


def tables(value: Any) -> dict[str, Any]:
    """A table of tables."""
    found = table(value)
    for name, inner in found.items():
        if not isinstance(inner, Mapping):
            raise ValueError(f"{name!r} in it must be a table")
    return found


def prices(value: Any) -> dict[str, Any]:
    """A table per model with ``input`` and ``output``, in USD per million tokens."""
    found = tables(value)
    for name, inner in found.items():
        for key in ("input", "output"):
            number = inner.get(key)
            fit = isinstance(number, (int, float)) and not isinstance(number, bool)
            if not fit or not math.isfinite(number) or number < 0:
                raise ValueError(
                    f"[prices.{name!r}] needs {key} as a number of USD per million tokens, 0 or more; it has {number!r}"
                )
        if unknown := sorted(set(inner) - {"input", "output"}):
            raise ValueError(f"[prices.{name!r}] has {', '.join(unknown)}; only input and output are known")
    return found
