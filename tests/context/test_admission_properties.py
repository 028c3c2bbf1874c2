"""Whatever the blocks and the budget: never over it, nothing unaccounted for, the same every time."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_helpers import add, tokens, use_kernels
from rune.context.assembly import Offer, admit_offers
from rune.context.blocks import ContributionBlock
from rune.context_broker import ContextBroker
from rune.errors import ContextOverflowError

blocks = st.lists(
    st.fixed_dictionaries(
        {
            "sizes": st.lists(st.integers(1, 60), min_size=1, max_size=4),
            "priority": st.integers(0, 4),
            "bucket": st.integers(0, 3),
            "evictable": st.integers(0, 3).map(bool),
            "kind": st.sampled_from(["text", "parts", "turns", "messages"]),
        }
    ),
    max_size=9,
)


def block_of(given_block: dict[str, Any]) -> ContributionBlock:
    texts = [tokens(size) for size in given_block["sizes"]]
    messages = [{"role": "user", "content": text} for text in texts]
    if given_block["kind"] == "text":
        return ContributionBlock(content="".join(texts))
    if given_block["kind"] == "parts":
        return ContributionBlock(parts=texts)
    if given_block["kind"] == "turns":
        return ContributionBlock(parts=[[message] for message in messages])
    return ContributionBlock(messages=messages)


def assemble(collected: list[dict[str, Any]], budget: int, layout: str) -> tuple[Any, dict[str, Any]]:
    broker = ContextBroker(lambda model_id: 100_000, layout=layout)
    for n, given_block in enumerate(collected):
        options = {k: given_block[k] for k in ("priority", "bucket", "evictable")}
        add(broker, f"b{n}", block_of(given_block), inline=True, **options)
    capsule, _ = broker.assemble("t", None, "m")
    try:
        return broker.readmit(capsule, budget=budget)
    except ContextOverflowError as exc:
        return None, exc.trace or {}


@pytest.mark.parametrize("layout", ["seed", "cache"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(blocks, st.integers(-5, 500))
def test_admission_never_passes_the_budget_and_accounts_for_everything(
    layout: str, kernels: ModuleType, collected: list[dict[str, Any]], budget: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        use_kernels(kernels, patch)
        capsule, trace = assemble(collected, budget, layout)
        offered = {f"b{n}": sum(b["sizes"]) for n, b in enumerate(collected)}
        assert trace["admitted_total"] <= max(0, budget)
        assert {row["name"] for row in trace["blocks"]} == set(offered)
        admitted = {row["name"]: row["tokens"] for row in trace["blocks"] if row["admitted"]}
        dropped = {row["name"]: row["tokens"] for row in trace["dropped"]}
        assert trace["admitted_total"] == sum(admitted.values()) and list(admitted) == trace["admitted"]
        for name, size in offered.items():
            assert admitted.get(name, 0) + dropped.get(name, 0) == size
        mandatory = {f"b{n}" for n, b in enumerate(collected) if not b["evictable"]}
        if capsule is None:
            assert budget <= 0 or sum(offered[name] for name in mandatory) > budget
            return
        assert mandatory <= set(admitted) and all(admitted[name] == offered[name] for name in mandatory)
        assert capsule.token_count == trace["admitted_total"]
        again, second = assemble(collected, budget, layout)
        assert again.to_messages() == capsule.to_messages()
        assert {**second, "elapsed_ms": 0} == {**trace, "elapsed_ms": 0}


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2), st.booleans()), max_size=12),
    st.integers(0, 150),
    st.randoms(use_true_random=False),
)
def test_what_is_admitted_does_not_depend_on_where_blocks_stand_in_the_prompt(
    given_blocks: list[tuple[int, int, bool]], budget: int, random: Any
) -> None:
    offers = [Offer(tokens, priority, True, n) for n, (tokens, priority, _) in enumerate(given_blocks)]
    shuffled = list(offers)
    random.shuffle(shuffled)
    straight = {o.registered: r for o, r in zip(offers, admit_offers(offers, budget).outcomes, strict=True)}
    mixed = {o.registered: r for o, r in zip(shuffled, admit_offers(shuffled, budget).outcomes, strict=True)}
    assert straight == mixed
