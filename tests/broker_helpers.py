"""Small brokers for tests: blocks out of texts, the case files of the field, and both kernel backends under one broker."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rune.context.assembly
import rune.context.broker_trace
import rune.context.capsule
import rune.context.collect
import rune.context.conversation
import rune.context_broker
from rune.context.blocks import ContributionBlock
from rune.context_broker import ContextBroker

SHARED = Path(os.environ.get("RUNE_SHARED") or Path(__file__).resolve().parents[1] / ".." / "shared")

_KERNEL_USERS = (
    rune.context.assembly,
    rune.context.broker_trace,
    rune.context.capsule,
    rune.context.collect,
    rune.context.conversation,
    rune.context_broker,
)


def use_kernels(kernels: ModuleType, patch: pytest.MonkeyPatch) -> None:
    """Puts one backend's functions under everything that the broker stands on."""
    for module in _KERNEL_USERS:
        for name in ("admit", "digest", "get_estimator", "Ledger", "Turns", "ESTIMATOR_NAMES"):
            if name in vars(module):
                patch.setattr(module, name, getattr(kernels, name))


def case(name: str) -> dict[str, Any]:
    """A case file; the test is skipped where the folder is not there."""
    path = SHARED / "cases" / f"{name}.json"
    if not path.exists():
        pytest.skip(f"the case files are not here ({name})")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def content_of(value: Any) -> Any:
    """The text that a case means: itself, or prefix + repeat * n + suffix."""
    if isinstance(value, Mapping):
        return value.get("prefix", "") + value["repeat"] * value["n"] + value.get("suffix", "")
    return value


def tokens(count: int, letter: str = "abcd") -> str:
    """A text that measures ``count`` under chars4."""
    return letter * count


def giving(content: Any) -> Callable[[Any, Any], Any]:
    """A contributor of a fixed text, block or other value."""
    block = ContributionBlock(content=content) if isinstance(content, str) else content
    return lambda task, session: block


def add(broker: ContextBroker, name: str, contributor: Any, **options: Any) -> None:
    """Registers a text, a block or a function with the least that must be said."""
    given = contributor if callable(contributor) else giving(contributor)
    options = {"bucket": len(broker.contributors) + 1, "priority": 50, "evictable": True, "source": "test", **options}
    broker.register(name, given, **options)


def broker_of(window: int, blocks: Iterable[Mapping[str, Any]], **options: Any) -> ContextBroker:
    """A broker over blocks such as those of a case: name, priority, evictable, content."""
    broker = ContextBroker(lambda model_id: window, **options)
    for block in blocks:
        add(
            broker,
            block["name"],
            content_of(block["content"]),
            priority=block["priority"],
            evictable=block["evictable"],
        )
    return broker


def window_with_budget(budget: int) -> int:
    """A window whose budget is exactly this (where there is one)."""
    window = ContextBroker.window_for(budget)
    assert window is not None and ContextBroker.budget(window).budget == budget, f"no window has a budget of {budget}"
    return window


def turn(n: int, size: int = 0) -> list[dict[str, Any]]:
    """A completed turn of a question and an answer that measure ``size`` together (least: as they are)."""
    question, answer = f"Question {n}?", f"Answer {n}."
    padded = answer + "x" * max(0, 4 * (size - len(question) // 4) - len(answer))
    return [{"role": "user", "content": question}, {"role": "assistant", "content": padded}]
