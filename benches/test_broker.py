"""Assembly of a turn beside a loop written by hand, which does the arithmetic alone: no trace, no digests, no capsule."""

from __future__ import annotations

from typing import Any

import pytest

from rune.context.blocks import ContributionBlock
from rune.context.conversation import Conversation
from rune.context_broker import ContextBroker
from rune.contributors import CONTRIBUTORS, history, user

Blocks = list[tuple[str, int, bool, str]]


def blocks_of(count: int) -> Blocks:
    """Name, priority, evictable and text of ``count`` blocks of about 120 tokens each."""
    text = "The quick brown fox jumps over the lazy dog, and then it rests. " * 8
    return [(f"block-{n}", n * 7919 % 100, n % 50 != 0, text[: 200 + n * 37 % 280]) for n in range(count)]


def broker_over(blocks: Blocks, window: int, *, inline: bool) -> ContextBroker:
    broker = ContextBroker(lambda model_id: window)
    for bucket, (name, priority, evictable, text) in enumerate(blocks):
        broker.register(
            name,
            lambda task, session, text=text: ContributionBlock(content=text),
            bucket=bucket,
            priority=priority,
            evictable=evictable,
            source="bench",
            inline=inline,
        )
    return broker


def by_hand(blocks: Blocks, budget: int) -> tuple[str, int]:
    """What people write: measure, sort, add while it fits, join."""
    sizes = [len(text) // 4 for _, _, _, text in blocks]
    room = budget
    kept = set()
    for i, (_, _, evictable, _) in enumerate(blocks):
        if not evictable:
            room -= sizes[i]
            kept.add(i)
    for i in sorted((i for i, b in enumerate(blocks) if b[2]), key=lambda i: (-blocks[i][1], -i)):
        if sizes[i] <= room:
            room -= sizes[i]
            kept.add(i)
    return "\n\n".join(blocks[i][3] for i in sorted(kept)), budget - room


WINDOWS = {11: 2156 + 500, 1000: 65536, 10_000: 524_288}


@pytest.mark.parametrize("count", WINDOWS)
def test_broker(benchmark: Any, count: int) -> None:
    benchmark.group = f"assemble {count} blocks"
    broker = broker_over(blocks_of(count), WINDOWS[count], inline=True)
    _, trace = benchmark(broker.assemble, "task", None, "bench")
    assert trace["admitted_total"] <= trace["budget"] and trace["dropped"]


@pytest.mark.parametrize("count", [11])
def test_broker_with_time_limit(benchmark: Any, count: int) -> None:
    benchmark.group = f"assemble {count} blocks"
    broker = broker_over(blocks_of(count), WINDOWS[count], inline=False)
    benchmark(broker.assemble, "task", None, "bench")


@pytest.mark.parametrize("count", WINDOWS)
def test_loop_by_hand(benchmark: Any, count: int) -> None:
    benchmark.group = f"assemble {count} blocks"
    blocks = blocks_of(count)
    budget = ContextBroker.budget(WINDOWS[count]).budget
    _, total = benchmark(by_hand, blocks, budget)
    _, trace = broker_over(blocks, WINDOWS[count], inline=True).assemble("task", None, "bench")
    assert total == trace["admitted_total"]


@pytest.mark.parametrize("turns", [10, 1000, 10_000])
def test_a_turn_costs_what_is_new_in_it(benchmark: Any, turns: int) -> None:
    """One append and one assembly at the end of conversations of different lengths: the times should be alike."""
    benchmark.group = "append and assemble at the end of a conversation"
    session = Conversation("bench")
    new = [{"role": "user", "content": "And then? " * 20}, {"role": "assistant", "content": "Then it rests. " * 20}]
    for _ in range(turns):
        session.append(new)
    broker = ContextBroker(lambda model_id: 8192)
    made = {"history": history(), "user": user()}
    for spec in CONTRIBUTORS:
        if spec.name in made:
            broker.register(
                spec.name,
                made[spec.name],
                bucket=spec.bucket,
                priority=spec.priority,
                evictable=spec.evictable,
                source=spec.source,
                inline=True,
            )

    def turn() -> None:
        session.append(new)
        broker.assemble("next", session, "bench")

    benchmark(turn)
