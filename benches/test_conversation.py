"""Conversations beside hand-written loops and bare hashing, native and pure: one group per job.

pytest benches/test_conversation.py --benchmark-enable
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rune.context.conversation
import rune.kernels
from rune import Conversation

Benchmark = Callable[..., Any]
BUDGET = 8_000
WORDS = ["the", "window", "holds", "what", "a", "budget", "lets", "in", "窗口", "память"]
RIVALS = ["loop", "rust", "python"]


def history(many: int) -> list[dict[str, Any]]:
    """So many chat messages; one turn in six goes through a tool. Lengths lognormal, some 400 characters in the middle."""
    chance = random.Random(7)
    pool = " ".join(chance.choices(WORDS, k=60_000))

    def text() -> str:
        length = max(8, min(20_000, int(chance.lognormvariate(5.5, 1.0))))
        start = chance.randrange(len(pool) - length)
        return pool[start : start + length]

    found: list[dict[str, Any]] = []
    while len(found) < many:
        found.append({"role": "user", "content": text()})
        if chance.random() < 1 / 6:
            call = {
                "id": f"c{len(found)}",
                "function": {"name": "read", "arguments": '{"path": "/srv/a.txt", "lines": 40}'},
            }
            found.append({"role": "assistant", "content": "", "tool_calls": [call]})
            found.append({"role": "tool", "tool_call_id": call["id"], "content": text()})
        found.append({"role": "assistant", "content": text()})
    return found


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Puts the kernels of that name under conversations; "loop" needs none."""
    name: str = request.param
    kernels: ModuleType | None = {"rust": rune.kernels.native, "python": rune.kernels.pure}.get(name)
    if name != "loop":
        if kernels is None:
            pytest.skip("the native module is not built")
        monkeypatch.setattr(rune.context.conversation, "Turns", kernels.Turns)
        monkeypatch.setattr(rune.context.conversation, "get_estimator", kernels.get_estimator)
    return name


class Loop:
    """The least that keeps counts: a list, its counts, and a pointer that moves. No ledger, no digest, no copies, no turns."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = list(messages)
        self.sizes = [len(message["content"]) // 4 for message in messages]
        self.left, self.total = 0, sum(self.sizes)

    def turn(self, pair: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for message in pair:
            self.messages.append(message)
            self.sizes.append(len(message["content"]) // 4)
            self.total += self.sizes[-1]
        while self.total > BUDGET:
            self.total -= self.sizes[self.left]
            self.left += 1
        return self.messages[self.left :]


def turn_of(backend: str, many: int, home: Path | None) -> Callable[[], list[dict[str, Any]]]:
    given = history(many)
    pair = [{"role": "user", "content": "x" * 300}, {"role": "assistant", "content": "y" * 500}]
    if backend == "loop":
        loop = Loop(given)
        loop.turn(pair)
        return lambda: loop.turn(pair)
    session = Conversation.from_messages("bench", given)
    if home is not None:
        session.save_as_new(home)
        session = Conversation.open("bench", home, fsync=False)

    def turn() -> list[dict[str, Any]]:
        session.append(pair)
        return session.window(BUDGET)

    turn()
    return turn


@pytest.mark.parametrize("many", [100, 100_000])
@pytest.mark.parametrize("backend", RIVALS, indirect=True)
def test_turn(benchmark: Benchmark, backend: str, many: int) -> None:
    """A question and an answer more, and the newest turns that fit 8,000 tokens; Rune with tokens, digest and chain."""
    benchmark.group = "a turn in memory, on 100 and on 100,000 messages"  # type: ignore[attr-defined]
    found = benchmark(turn_of(backend, many, None))
    assert found[-1]["content"] == "y" * 500
    assert sum(len(message["content"]) // 4 for message in found) <= BUDGET


@pytest.mark.parametrize("many", [100, 100_000])
@pytest.mark.parametrize("backend", ["rust", "python"], indirect=True)
def test_persisted_turn(benchmark: Benchmark, backend: str, many: int, tmp_path: Path) -> None:
    benchmark.group = "a turn on disk without fsync, on 100 and on 100,000 messages"  # type: ignore[attr-defined]
    assert benchmark(turn_of(backend, many, tmp_path))[-1]["content"] == "y" * 500


@pytest.mark.parametrize("backend", ["sha256", "rust", "python"])
def test_one_shot(benchmark: Benchmark, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole history with tokens, digest and chain of every turn, beside the bare SHA-256 of its texts."""
    benchmark.group = "100,000 messages at once: full ledger"  # type: ignore[attr-defined]
    given = history(100_000)
    texts = [message["content"] for message in given]
    if backend == "sha256":
        one = hashlib.sha256
        assert len(benchmark(lambda: [one(text.encode()).hexdigest() for text in texts])) == len(texts)
        return
    kernels = {"rust": rune.kernels.native, "python": rune.kernels.pure}[backend]
    if kernels is None:
        pytest.skip("the native module is not built")
    monkeypatch.setattr(rune.context.conversation, "Turns", kernels.Turns)
    monkeypatch.setattr(rune.context.conversation, "get_estimator", kernels.get_estimator)
    found = benchmark(Conversation.from_messages, "bench", given)
    assert found.incomplete_count == 0 and len(found.messages()) == len(given)


@pytest.mark.parametrize("indexed", [True, False], ids=["by its index", "without one"])
def test_open(benchmark: Benchmark, indexed: bool, tmp_path: Path) -> None:
    """Opening a session of 100,000 messages on disk."""
    benchmark.group = "open 100,000 messages"  # type: ignore[attr-defined]
    made = Conversation.from_messages("bench", history(100_000))
    made.save_as_new(tmp_path)
    if not indexed:
        for path in (tmp_path / "sessions" / "index").iterdir():
            path.unlink()
    again = benchmark(Conversation.open, "bench", tmp_path)
    assert (len(again.turns), again.tokens, again.chain) == (len(made.turns), made.tokens, made.chain)
