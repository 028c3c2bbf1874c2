"""Admission: the rules one by one, reported cases, and an oracle that shares nothing with the kernels."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from kernel_strategies import INT_MAX, INT_MIN, Blocks, Index, blocks, facts, oracle
from rune.errors import InvalidInput

SHARED = Path(os.environ.get("RUNE_SHARED", Path(__file__).parents[2] / ".." / "shared"))


def test_the_oracle_agrees(kernels: ModuleType) -> None:
    @settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(blocks())
    def agrees(given_blocks: Blocks) -> None:
        assert facts(kernels.admit(*given_blocks.arguments())) == oracle(given_blocks)

    agrees()


def test_small_blocks_exhaustively(kernels: ModuleType) -> None:
    from itertools import product

    shapes = list(product([0, 1, 2], [0, 1], [True, False]))
    for chosen in product(shapes, repeat=3):
        tokens, priorities, evictable = (list(values) for values in zip(*chosen, strict=True))
        for budget in range(-1, 6):
            case = Blocks(tokens, priorities, evictable, None, budget)
            assert facts(kernels.admit(*case.arguments())) == oracle(case), case


def test_a_small_block_enters_after_a_large_one_did_not(kernels: ModuleType) -> None:
    found = kernels.admit([5, 9, 4], [0, 9, 1], [False, True, True], None, 10)
    assert found.reasons == ("mandatory", "over_budget", "fits")
    assert found.admitted == (True, False, True)
    assert (found.total, found.overflow, found.overflow_index, found.used_before) == (9, False, None, 0)


def test_among_equals_the_later_goes_first(kernels: ModuleType) -> None:
    assert kernels.admit([4, 4, 4], [5, 5, 5], [True] * 3, None, 8).admitted == (False, True, True)


def test_reported_case(kernels: ModuleType) -> None:
    path = SHARED / "cases" / "C17.json"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    case = json.loads(path.read_text(encoding="utf-8"))
    given_blocks, expected = case["input"]["blocks"], case["expected"]
    texts = [block["content"]["repeat"] * block["content"]["n"] for block in given_blocks]
    tokens = kernels.chars4_many(texts)
    priorities = [block["priority"] for block in given_blocks]
    found = kernels.admit(tokens, priorities, [block["evictable"] for block in given_blocks], None, expected["budget"])
    names = [block["name"] for block in given_blocks]
    assert [name for name, entered in zip(names, found.admitted, strict=True) if entered] == expected["admitted"]
    assert found.total == expected["admitted_total"]
    dropped = [
        {"name": block["name"], "tokens": size, "priority": block["priority"]}
        for block, size, entered in zip(given_blocks, tokens, found.admitted, strict=True)
        if not entered
    ]
    assert dropped == expected["dropped"]


def test_the_newest_parts_enter_without_a_gap(kernels: ModuleType) -> None:
    found = kernels.admit([4, 12], [0, 0], [False, True], [None, [1, 1, 5, 2, 3]], 10)
    assert found.reasons == ("mandatory", "older_parts")
    assert found.kept_parts == (None, 2)  # the parts of 1 would fit, but not behind the one of 5
    assert found.tokens == (4, 5)
    whole = kernels.admit([4, 6], [0, 0], [False, True], [None, [1, 5]], 10)
    assert (whole.reasons, whole.kept_parts) == (("mandatory", "fits"), (None, 2))
    none = kernels.admit([4, 14], [0, 0], [False, True], [None, [7, 7]], 10)
    assert (none.reasons, none.kept_parts, none.tokens) == (("mandatory", "over_budget"), (None, 0), (4, 0))


def test_a_mandatory_block_is_never_parted(kernels: ModuleType) -> None:
    found = kernels.admit([12], [0], [False], [[6, 6]], 10)
    assert (found.overflow, found.overflow_index, found.kept_parts) == (True, 0, (0,))


def test_an_overflow_names_the_block_and_what_came_before_it(kernels: ModuleType) -> None:
    found = kernels.admit([3, 1, 4, 5, 1], [0] * 5, [False, True, False, False, False], None, 9)
    assert (found.overflow, found.overflow_index, found.used_before, found.total) == (True, 3, 7, 7)
    assert found.reasons == ("mandatory", "over_budget", "mandatory", "over_budget", "over_budget")


@pytest.mark.parametrize("budget", [0, -1, INT_MIN])
def test_no_budget_is_an_overflow(kernels: ModuleType, budget: int) -> None:
    nothing = kernels.admit([], [], [], None, budget)
    assert (nothing.overflow, nothing.overflow_index, nothing.total) == (True, None, 0)
    found = kernels.admit([0, 0], [0, 0], [True, False], None, budget)
    assert (found.overflow, found.overflow_index, found.admitted) == (True, 1, (False, False))


def test_a_text_of_no_tokens_enters(kernels: ModuleType) -> None:
    assert kernels.admit([0], [0], [True], None, 1).reasons == ("fits",)


def test_sums_do_not_wrap(kernels: ModuleType) -> None:
    found = kernels.admit([INT_MAX, 1, INT_MAX], [2, 1, 0], [True] * 3, None, INT_MAX)
    assert (found.total, found.admitted) == (INT_MAX, (True, False, False))
    found = kernels.admit([INT_MAX, INT_MAX], [0, 0], [False, False], None, INT_MAX)
    assert (found.overflow, found.overflow_index, found.used_before) == (True, 1, INT_MAX)


def test_bitmap(kernels: ModuleType) -> None:
    tokens = [1 if i % 3 else 50 for i in range(19)]
    found = kernels.admit(tokens, [0] * 19, [True] * 19, None, 20)
    assert found.bitmap() == sum(1 << i for i in range(19) if i % 3).to_bytes(3, "little")
    assert kernels.admit([], [], [], None, 1).bitmap() == b""


def test_what_counts_as_an_integer(kernels: ModuleType) -> None:
    found = kernels.admit([Index(2), True], iter([0, 0]), (1, []), None, Index(5))
    assert (found.tokens, found.reasons) == ((2, 1), ("fits", "mandatory"))


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (([-1], [0], [True], None, 1), f"tokens[0] must be from 0 to {INT_MAX}"),
        (([0, 2**63], [0, 0], [True, True], None, 1), f"tokens[1] must be from 0 to {INT_MAX}"),
        (([0], [-(2**63) - 1], [True], None, 1), f"priorities[0] must be from {INT_MIN} to {INT_MAX}"),
        (([0], [0], [True], None, 2**63), f"budget must be from {INT_MIN} to {INT_MAX}"),
        (([0], [0], [True], None, 10**5000), f"budget must be from {INT_MIN} to {INT_MAX}"),
        (([1.0], [0], [True], None, 1), "tokens[0] must be an integer, not float"),
        (([0], [0], [True], None, "1"), "budget must be an integer, not str"),
        ((0, [0], [True], None, 1), "tokens must be a list, not int"),
        (("12", [0], [True], None, 1), "tokens must be a list, not one text"),
        (([0], [], [True], None, 1), "priorities has 0 values, but 1 are needed"),
        (([0], [0], [True, True], None, 1), "evictable has 2 values, but 1 are needed"),
        (([0], [0], [True], [], 1), "parts has 0 values, but 1 are needed"),
        (([3], [0], [True], [[1, 1]], 1), "parts[0] must add up to tokens[0]"),
        (([INT_MAX], [0], [True], [[INT_MAX, INT_MAX, 2]], 1), "parts[0] must add up to tokens[0]"),
        (([0], [0], [True], [[-1, 1]], 1), f"parts[0][0] must be from 0 to {INT_MAX}"),
        (([0], [0], [True], [7], 1), "parts[0] must be a list, not int"),
    ],
)
def test_what_is_refused(kernels: ModuleType, arguments: tuple[Any, ...], fault: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        kernels.admit(*arguments)
    assert str(caught.value) == fault


def test_an_admission_cannot_be_changed(kernels: ModuleType) -> None:
    found = kernels.admit([1], [0], [True], None, 1)
    with pytest.raises(AttributeError):
        found.total = 7
