"""The native kernels beside the pure twin: one group per job, the same work on both sides, the same results asserted.

pytest benches/test_kernels.py --benchmark-enable
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import rune.kernels

Benchmark = Callable[..., Any]
WORDS = ["the", "window", "holds", "what", "a", "budget", "lets", "in", "窗口", "память"]


@pytest.fixture(params=["rust", "python"])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "python":
        return rune.kernels.pure
    if rune.kernels.native is None:
        pytest.skip("the native module is not built")
    return rune.kernels.native


def messages(many: int) -> list[str]:
    """Texts as conversations have them: lengths lognormal, some 400 characters in the middle."""
    chance = random.Random(7)
    return [" ".join(chance.choices(WORDS, k=max(1, int(chance.lognormvariate(4.2, 1.0))))) for _ in range(many)]


def measured_blocks(many: int) -> tuple[list[int], list[int], list[bool], None, int]:
    chance = random.Random(11)
    tokens = [chance.randrange(400) for _ in range(many)]
    return (
        tokens,
        [chance.randrange(100) for _ in range(many)],
        [i % 50 > 0 for i in range(many)],
        None,
        sum(tokens) // 4,
    )


@pytest.mark.parametrize("name", rune.kernels.ESTIMATOR_NAMES)
def test_estimate_batch(benchmark: Benchmark, kernels: ModuleType, name: str) -> None:
    benchmark.group = f"estimate 10,000 texts: {name}"  # type: ignore[attr-defined]
    texts = messages(10_000)
    found = benchmark(kernels.get_estimator(name).many, texts)
    assert found == rune.kernels.pure.get_estimator(name).many(texts)


def test_digest_batch(benchmark: Benchmark, kernels: ModuleType) -> None:
    benchmark.group = "digest 10,000 texts"  # type: ignore[attr-defined]
    texts = messages(10_000)
    assert benchmark(kernels.digest_many, texts)[0] == rune.kernels.pure.digest(texts[0])


@pytest.mark.parametrize("many", [11, 1_000, 10_000, 100_000])
def test_admission(benchmark: Benchmark, kernels: ModuleType, many: int) -> None:
    benchmark.group = f"admit {many:,} blocks"  # type: ignore[attr-defined]
    arguments = measured_blocks(many)
    found = benchmark(kernels.admit, *arguments)
    assert found.total <= arguments[-1]
    assert not found.overflow


def filled(kernels: ModuleType, many: int) -> Any:
    texts = messages(1_000)
    ledger = kernels.Ledger()
    ledger.extend(
        [[texts[i % 1_000]] for i in range(many)],
        [texts[i % 1_000] for i in range(many)],
        names=[f"turn {i}" for i in range(many)],
        sources=["conversation"] * many,
    )
    ledger.chain(many - 1)
    return ledger


@pytest.mark.parametrize("many", [1_000, 100_000])
def test_conversation_turn(benchmark: Benchmark, kernels: ModuleType, many: int) -> None:
    """Two messages more, their hashes, and from where on the newest fit. It must not grow with the conversation."""
    benchmark.group = f"one turn more on {many:,}: append, chain, newest_fitting"  # type: ignore[attr-defined]
    ledger = filled(kernels, many)
    question, answer = messages(2)

    def turn() -> int:
        ledger.append([question], question, source="conversation")
        last = ledger.append([answer], answer, source="conversation")
        ledger.chain(last)
        fitting: int = ledger.newest_fitting(32_000)
        return fitting

    assert benchmark(turn) >= many // 2 - 1_000 or many < 10_000


@pytest.mark.parametrize("many", [1_000, 100_000])
def test_ledger_turn(benchmark: Benchmark, kernels: ModuleType, many: int) -> None:
    """A whole turn over all blocks: append what is new, admit, and the block ledger as JSON."""
    benchmark.group = f"a whole turn over {many:,} blocks: append, admit, to_json"  # type: ignore[attr-defined]
    ledger = filled(kernels, many)
    question, answer = messages(2)

    def turn() -> bytes:
        ledger.append([question], question, name="question", source="conversation")
        ledger.append([answer], answer, name="answer", source="conversation")
        ledger.admit(32_000)
        written: bytes = ledger.to_json()
        return written

    assert benchmark(turn).count(b'"name":') >= many


def test_extend(benchmark: Benchmark, kernels: ModuleType) -> None:
    benchmark.group = "extend a ledger by 10,000"  # type: ignore[attr-defined]
    texts = messages(10_000)
    listed = [[text] for text in texts]

    def extend() -> int:
        ledger = kernels.Ledger()
        ledger.extend(listed, texts)
        total: int = ledger.total()
        return total

    assert benchmark(extend) == sum(rune.kernels.pure.chars4_many(texts))
