"""The window to ask for: steps, not below what runs, a ceiling, explicit values as they are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rune.runtime.num_ctx import FIRST_STEP, REPLY_ROOM, NumCtx, Sticky, choose_num_ctx, next_step


def choose(**given_values: Any) -> NumCtx:
    return choose_num_ctx(**({"window": 131072, "safe_tokens": 1000} | given_values))


@pytest.mark.parametrize(
    ("safe", "options", "num_ctx"),
    [
        (0, {}, 8192),
        (8192 - 4096, {}, 8192),
        (8192 - 4095, {}, 16384),
        (8192 - 4096, {"thinking": True}, 16384),
        (8000, {"num_predict": 192}, 8192),
        (8000, {"num_predict": 193}, 16384),
        (60_000, {}, 65536),
        (130_000, {}, 131072),
        (200_000, {}, 131072),
    ],
)
def test_the_smallest_step_that_holds_prompt_and_reply(safe: int, options: dict[str, Any], num_ctx: int) -> None:
    assert choose(safe_tokens=safe, **options).num_ctx == num_ctx


def test_the_last_step_is_the_window_itself() -> None:
    assert choose(window=40960, safe_tokens=33_000).num_ctx == 40960
    assert choose(window=2048, safe_tokens=100).num_ctx == 2048
    assert choose(window=10_000, safe_tokens=9_000).num_ctx == 10_000


def test_an_explicit_value_is_sent_as_it_is() -> None:
    for value in (512, 2048, 6144, 32768):
        found = choose(explicit=value, safe_tokens=100, loaded=65536, sticky=65536, ceiling=1024)
        assert (found.num_ctx, found.over_ceiling) == (value, False)
    assert choose(explicit=200_000).num_ctx == 131072


def test_not_below_what_is_loaded_or_was_sent_before() -> None:
    assert choose(loaded=32768).num_ctx == 32768
    assert choose(sticky=16384).num_ctx == 16384
    assert choose(loaded=10_000, safe_tokens=5_500).num_ctx == 10_000
    assert choose(loaded=10_000, safe_tokens=9_000).num_ctx == 16384
    assert choose(loaded=4096).num_ctx == 8192
    assert choose(loaded=300_000).num_ctx == 131072
    assert choose(loaded=65536, ceiling=32768).num_ctx == 65536  # it runs already: going below would reload it


def test_a_step_above_the_ceiling_is_not_taken() -> None:
    within = choose(safe_tokens=28_000, ceiling=32768)
    assert (within.num_ctx, within.over_ceiling) == (32768, False)
    over = choose(safe_tokens=29_000, ceiling=32768)
    assert (over.num_ctx, over.over_ceiling) == (32768, True)
    assert "65536" in over.reason and "32768" in over.reason
    assert choose(safe_tokens=29_000, ceiling=32768, loaded=65536).over_ceiling is False


def test_room_for_the_reply() -> None:
    assert choose(safe_tokens=1000).num_predict == 8192 - 1 - 1000
    assert choose(safe_tokens=1000, num_predict=50).num_predict == 50
    assert choose(safe_tokens=500_000).num_predict == 1
    assert choose(explicit=512, safe_tokens=400).num_predict == 111


@given(
    st.integers(1, 2**20),
    st.none() | st.integers(1, 2**21),
    st.integers(0, 2**21),
    st.none() | st.integers(1, 10_000),
    st.booleans(),
    st.none() | st.integers(0, 2**20),
    st.none() | st.integers(1, 2**20),
    st.none() | st.integers(0, 2**20),
)
def test_always_usable_values(
    window: int,
    explicit: int | None,
    safe: int,
    predict: int | None,
    thinking: bool,
    loaded: int | None,
    ceiling: int | None,
    sticky: int | None,
) -> None:
    found = choose_num_ctx(
        window=window,
        explicit=explicit,
        safe_tokens=safe,
        num_predict=predict,
        thinking=thinking,
        loaded=loaded,
        ceiling=ceiling,
        sticky=sticky,
    )
    assert 0 < found.num_ctx <= window
    assert found.num_predict > 0
    if explicit is None:
        assert found.num_ctx >= min(window, max(loaded or 0, sticky or 0))
        if ceiling is None and safe + (predict or REPLY_ROOM) <= window and not thinking:
            assert safe + (predict or REPLY_ROOM) <= found.num_ctx
    assert found.reason


def test_steps_after_a_refusal() -> None:
    assert next_step(8192, 131072) == 16384
    assert next_step(8192, 131072, need=20_000) == 32768
    assert next_step(8192, 131072, need=32768) == 65536
    assert next_step(32768, 40960) == 40960
    assert next_step(40960, 40960) is None
    assert next_step(8192, 8192) is None
    assert next_step(8192, 131072, ceiling=8192) is None
    assert next_step(8192, 131072, ceiling=32768, need=40_000) is None
    assert next_step(16384, 131072, ceiling=20_000, need=17_000) == 20_000
    assert next_step(512, 131072) == 8192
    assert next_step(8192, 131072, need=200_000) is None


@given(st.integers(1, 200_000), st.integers(1, 200_000), st.none() | st.integers(1, 200_000), st.integers(0, 200_000))
def test_a_step_is_larger_holds_the_need_and_stays_below_the_limits(
    current: int, window: int, ceiling: int | None, need: int
) -> None:
    step = next_step(current, window, ceiling, need)
    top = window if ceiling is None else min(window, ceiling)
    if step is None:
        assert top <= max(current, need)
    else:
        assert max(current, need) < step <= top
        assert step == top or step % FIRST_STEP == 0


def test_sticky_values_are_kept_by_server_and_model() -> None:
    registry = Sticky()
    assert registry.get("s", "m") is None
    registry.set("s", "m", 16384)
    registry.set("s", "n", 8192)
    assert (registry.get("s", "m"), registry.get("s", "n"), registry.get("t", "m")) == (16384, 8192, None)
    registry.forget("s", "m")
    registry.forget("s", "m")
    assert registry.get("s", "m") is None
    registry.clear()
    assert registry.get("s", "n") is None
