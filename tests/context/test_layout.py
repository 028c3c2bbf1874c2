"""Layouts: order as a pure function, and the front of history that stays put."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_helpers import add, tokens, turn, use_kernels, window_with_budget
from rune.context.blocks import ContributionBlock
from rune.context.conversation import Conversation
from rune.context.layout import assembly_order, front_of_history, join, keep_half, section_of
from rune.context_broker import ContextBroker, LedgerEntry
from rune.contributors import history, user


@pytest.fixture(autouse=True)
def _both_backends(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels(kernels, monkeypatch)


def cache_broker(window: int = 32768) -> ContextBroker:
    broker = ContextBroker(lambda model_id: window, layout="cache")
    add(broker, "persona", "You are Rune.", bucket=1, priority=100, evictable=False)
    add(broker, "tools", "## Available tools\n- read", bucket=2, priority=90, evictable=False)
    add(broker, "memory", "## Context\n- a note", bucket=3, priority=70)
    add(broker, "neurons", "## My neurons (warm, firing)\n- n", bucket=6, priority=55)
    add(broker, "model_profile", "## Model\nqwen", bucket=9, priority=40)
    add(broker, "history", history(), bucket=10, priority=30)
    add(broker, "user", user(), bucket=11, priority=100, evictable=False)
    return broker


def test_cache_puts_what_stays_first_and_volatile_notes_behind_the_users_text() -> None:
    session = Conversation.from_messages("s", turn(1))
    capsule, trace = cache_broker().assemble("next", session, "m", extra_blocks=[LedgerEntry("tool_schemas", tokens=5)])
    assert capsule.to_messages() == [
        {"role": "system", "content": "You are Rune.\n\n## Available tools\n- read\n\n## Model\nqwen"},
        *turn(1),
        {"role": "user", "content": "next\n\n## Context\n- a note\n\n## My neurons (warm, firing)\n- n"},
    ]
    assert trace["admitted"] == [
        "persona",
        "tools",
        "tool_schemas",
        "model_profile",
        "history",
        "user",
        "memory",
        "neurons",
    ]
    last = capsule.to_messages()[-1]["content"]
    for name, (start, end) in trace["ext"]["user_spans"].items():
        assert last[start:end] == capsule.block(name).content
    assert set(trace["ext"]["spans"]) == {"persona", "tools", "model_profile"}


def test_cache_admits_the_same_blocks_as_seed() -> None:
    session = Conversation.from_messages("s", turn(1))
    by_layout = {}
    for layout in ("seed", "cache"):
        broker = cache_broker()
        broker.layout = layout
        by_layout[layout] = broker.assemble("next", session, "m")[1]
    assert sorted(by_layout["seed"]["admitted"]) == sorted(by_layout["cache"]["admitted"])
    assert by_layout["seed"]["admitted_total"] == by_layout["cache"]["admitted_total"]


def test_a_change_of_the_users_text_flows_through_beside_the_notes() -> None:
    capsule, _ = cache_broker().assemble("next", None, "m")
    capsule.block("user").content = "[refused]"
    assert capsule.to_messages()[-1]["content"].startswith("[refused]\n\n## Context")


def test_without_a_user_block_notes_stand_in_the_system_text() -> None:
    broker = ContextBroker(lambda model_id: 8192, layout="cache")
    add(broker, "memory", "a note")
    capsule, _ = broker.assemble("t", None, "m")
    assert capsule.to_messages() == [{"role": "system", "content": "a note"}]


def test_the_front_of_history_grows_from_8_turns_to_16_and_is_cut_back_to_8() -> None:
    session, broker = Conversation("s"), cache_broker(1_000_000)
    offered = []
    for n in range(40):
        _, trace = broker.assemble("next", session, "m")
        offered.append(trace["ext"]["history"]["offered"])
        session.append(turn(n))
    assert offered[:17] == list(range(17))
    assert offered[17:40] == [*range(8, 17), *range(8, 17), *range(8, 13)]


def test_history_stays_word_for_word_the_same_prefix_until_the_front_moves() -> None:
    session, broker = Conversation("s"), cache_broker(1_000_000)
    last: list[Any] = []
    moved = 0
    for n in range(60):
        capsule, _ = broker.assemble(f"question {n}", session, "m")
        stable = capsule.to_messages()[:-1]
        if stable[: len(last)] != last:
            moved += 1
        last = stable
        session.append(turn(n))
    assert moved == 5  # after 17, 26, 35, 44 and 53 turns


def test_when_the_budget_demands_history_is_cut_at_a_turn_to_half_of_its_room_and_stays_there() -> None:
    session = Conversation("s")
    broker = cache_broker(window_with_budget(1000))
    _, trace = broker.assemble("next", session, "m")
    room = 1000 - trace["admitted_total"]
    admitted, fronts = [], []
    for n in range(14):
        capsule, trace = broker.assemble("next", session, "m")
        facts = trace["ext"]["history"]
        admitted.append(facts["admitted"])
        fronts.append(capsule.to_messages()[1])
        assert trace["admitted_total"] <= trace["budget"]
        session.append(turn(n, 100))
    whole = room // 100
    half = room // 2 // 100
    assert admitted[: whole + 1] == list(range(whole + 1))
    assert admitted[whole + 1 :] == list(range(half, half + 13 - whole))
    assert len({str(front) for front in fronts[whole + 1 : whole + 4]}) == 1


def test_a_dry_run_and_a_smaller_budget_for_once_do_not_move_the_front_back() -> None:
    session = Conversation("s")
    for n in range(9):
        session.append(turn(n, 100))
    broker = cache_broker(window_with_budget(600))
    _, planned = broker.assemble("next", session, "m", dry=True)
    assert len(session.offered_with_steady_front()) == 9
    _, trace = broker.assemble("next", session, "m")
    assert planned["admitted_total"] == trace["admitted_total"]
    kept = trace["ext"]["history"]["admitted"]
    assert len(session.offered_with_steady_front()) == kept < 9
    broker.assemble("next", session, "m", window=100_000)
    assert len(session.offered_with_steady_front()) == kept


def test_the_newest_turn_stays_whenever_it_fits_even_over_half_of_the_room() -> None:
    session = Conversation.from_messages("s", [*turn(1, 100), *turn(2, 400)])
    broker = cache_broker(window_with_budget(480))
    _, trace = broker.assemble("next", session, "m")
    assert trace["ext"]["history"]["admitted"] == 1


def test_a_cut_leaves_its_room_to_what_is_admitted_after_history() -> None:
    broker = ContextBroker(lambda model_id: window_with_budget(100), layout="cache")
    add(broker, "history", ContributionBlock(parts=[turn(n, 30) for n in range(4)]), bucket=10, priority=30)
    add(broker, "later", tokens(50), bucket=3, priority=10)
    _, trace = broker.assemble("t", None, "m")
    assert {row["name"]: row["tokens"] for row in trace["blocks"]} == {"history": 30, "later": 50}
    row = next(row for row in trace["blocks"] if row["name"] == "history")
    assert row["reason"] == "older_parts"
    assert trace["dropped"] == [{"name": "history", "tokens": 90, "priority": 30, "reason": "older_parts", "count": 3}]


def test_a_contributor_that_fails_when_told_of_a_cut_does_not_fail_the_turn() -> None:
    def broken(kept: int) -> None:
        raise OSError("no place to note it")

    broker = ContextBroker(lambda model_id: window_with_budget(100), layout="cache")
    add(broker, "history", ContributionBlock(parts=[turn(n, 30) for n in range(4)], on_cut=broken), bucket=10)
    _, trace = broker.assemble("t", None, "m")
    assert (trace["degraded"], trace["admitted_total"]) == (["history"], 30)


# The pure functions


@given(st.integers(0, 300))
def test_the_front_is_the_same_whether_or_not_every_turn_was_assembled(turns: int) -> None:
    front = 0
    for n in range(turns + 1):
        front = front_of_history(n, front)
        assert min(n, 8) <= n - front <= 16
    assert front == front_of_history(turns)


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(0, 400))
def test_keep_half_keeps_what_fits_half_of_the_room_or_the_newest_part(parts: list[int], room: int) -> None:
    kept = keep_half(parts, room)
    size = sum(parts[len(parts) - kept :])
    assert size <= room and (kept <= 1 or size <= room // 2)
    if kept < len(parts) and kept > 0:
        assert size + parts[len(parts) - kept - 1] > room // 2
    if kept == 0 and parts:
        assert parts[-1] > room


def test_seed_places_texts_in_the_system_message_and_messages_in_history() -> None:
    for evictable in (True, False):
        assert section_of("memory", layout="seed", has_messages=False, evictable=evictable) == "system"
        assert section_of("history", layout="seed", has_messages=True, evictable=evictable) == "history"
        assert section_of("user", layout="seed", has_messages=False, evictable=evictable) == "user"


def test_order_is_by_bucket_then_registration() -> None:
    class Placed:
        def __init__(self, bucket: int, registered: int) -> None:
            self.section: Any = "system"
            self.bucket = bucket
            self.registered = registered

    blocks = [Placed(2, 0), Placed(1, 3), Placed(1, 1), Placed(0, 2)]
    assert assembly_order(blocks, "seed") == [3, 2, 1, 0]


@given(st.lists(st.text(min_size=1, max_size=9), max_size=6))
def test_spans_cut_the_joined_text_into_the_texts_again(texts: list[str]) -> None:
    named = [(str(n), text) for n, text in enumerate(texts)]
    joined, spans = join(named)
    assert [joined[start:end] for start, end in spans.values()] == texts
