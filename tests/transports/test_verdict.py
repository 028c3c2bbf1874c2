"""The judgement of a call, rule by rule, and against every recorded call of real servers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rune.transports.base import Verdict
from rune.transports.ollama_version import effective_window, parse_version, ps_window_is_exact, traits
from rune.transports.verdict import ServerTraits, halved_count, judge

ROOT = Path(__file__).resolve().parents[2]


def verdict(version: str = "0.24.0", **given_values: Any) -> Verdict:
    values: dict[str, Any] = {
        "done": True,
        "asked_to_refuse": True,
        "prompt_tokens": 100,
        "output_tokens": 10,
        "window": 512,
        "estimate": 100,
    }
    return judge(traits=traits(parse_version(version)), **(values | given_values))


# --- what a version means --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.12.5", (0, 12, 5)),
        ("v0.3.14", (0, 3, 14)),
        (" 0.32.15-rc1+cpu\n", (0, 32, 15)),
        ("0.0.0", None),
        ("0.0.0-dev", None),
        ("1.2", None),
        ("main", None),
        ("", None),
        (None, None),
        (12, None),
    ],
)
def test_versions(text: object, version: tuple[int, int, int] | None) -> None:
    assert parse_version(text) == version


def test_traits_at_the_versions_where_they_change() -> None:
    def of(version: str) -> ServerTraits:
        return traits(parse_version(version))

    assert [of(v).can_refuse for v in ("0.12.5", "0.12.6", "0.0.0")] == [False, True, None]
    counting = ("0.3.14", "0.4.0", "0.24.0", "0.30.0", "0.30.1", "0.0.0")
    assert [of(v).counts_all for v in counting] == [False, True, True, False, True, True]
    assert [of(v).halves for v in ("0.24.0", "0.30.10", "0.30.11", "0.0.0")] == [False, False, True, None]
    assert [of(v).takes_full_window for v in ("0.24.0", "0.30.0", "0.0.0")] == [True, False, False]
    assert [of(v).reply_slack for v in ("0.24.0", "0.30.0", "0.0.0")] == [1, 0, 1]


def test_the_window_a_server_works_with() -> None:
    assert effective_window(32768, 8192, (0, 9, 2)) == 32768
    assert effective_window(32768, 8192, (0, 9, 3)) == 8192
    assert effective_window(32768, 8192, None) == 8192
    assert effective_window(32768, None, (0, 24, 0)) == 32768
    assert [effective_window(n, 8192, (0, 24, 0)) for n in (0, 1, -5, 4, 512)] == [4, 4, 4, 4, 512]
    assert [ps_window_is_exact(v) for v in (None, (0, 15, 4), (0, 15, 5))] == [False, False, True]


@pytest.mark.parametrize(
    ("window", "num_keep", "left"),
    [
        (512, 0, 256),
        (512, 4, 258),
        (512, 64, 288),
        (512, 400, 456),
        (512, -1, 511),
        (512, 9999, 511),
        (1024, 4, 514),
        (2048, 4, 1026),
        (4096, 4, 2050),
    ],
)
def test_what_a_halving_cut_leaves(window: int, num_keep: int, left: int) -> None:
    assert halved_count(window, num_keep) == left


# --- the rules, in their order ---------------------------------------------------------------------------------------------


def test_no_end_is_incomplete_whatever_else() -> None:
    assert verdict(done=False).kind == "incomplete"


def test_whole_by_the_server_that_can_refuse_and_was_asked() -> None:
    assert verdict().kind == "whole"
    assert verdict(prompt_tokens=None).kind == "whole"
    assert verdict(asked_to_refuse=False).kind == "unknown"
    assert verdict("0.12.5").kind == "unknown"
    assert verdict("0.0.0").kind == "unknown"


def test_whole_by_bytes_up_to_one_below_the_window() -> None:
    assert verdict("0.12.5", upper_bound=511).kind == "whole"
    assert verdict("0.12.5", upper_bound=512).kind == "unknown"
    assert verdict("0.12.5", upper_bound=511, window=None).kind == "unknown"
    assert verdict("0.12.5", upper_bound=511, prompt_tokens=None).kind == "whole"


def test_cut_by_the_halving_value() -> None:
    asked_not = {"asked_to_refuse": False, "estimate": 259}
    assert verdict("0.32.15", prompt_tokens=258, **asked_not).kind == "cut"
    assert verdict("0.32.15", prompt_tokens=257, **asked_not).kind == "unknown"
    assert verdict("0.32.15", prompt_tokens=258, asked_to_refuse=False, estimate=258).kind == "unknown"
    assert verdict("0.32.15", prompt_tokens=288, num_keep=64, asked_to_refuse=False, estimate=300).kind == "cut"
    assert verdict("0.32.15", prompt_tokens=511, num_keep=-1, asked_to_refuse=False, estimate=600).kind == "cut"


def test_a_bos_token_is_kept_beside_num_keep() -> None:
    assert (halved_count(512, 4), halved_count(512, 5)) == (258, 259)
    values = {"asked_to_refuse": False, "estimate": 300}
    kinds = {
        bos: [verdict("0.32.15", prompt_tokens=n, add_bos=bos, **values).kind for n in (258, 259)]
        for bos in (False, True, None)
    }
    assert kinds == {False: ["cut", "unknown"], True: ["unknown", "cut"], None: ["cut", "cut"]}


def test_versions_that_do_not_halve_are_only_suspected_of_it() -> None:
    assert verdict("0.24.0", prompt_tokens=258, estimate=300).kind == "whole"
    assert verdict("0.12.5", prompt_tokens=258, estimate=300).kind == "suspected"
    assert verdict("0.24.0", prompt_tokens=258, estimate=300, asked_to_refuse=False).kind == "suspected"
    assert verdict("0.0.0", prompt_tokens=258, estimate=300).kind == "cut"


def test_a_count_that_contradicts_beats_the_refusal_that_did_not_come() -> None:
    """As when a proxy drops the fields that it does not know."""
    assert verdict("0.32.15", prompt_tokens=258, estimate=2000).kind == "cut"
    assert verdict("0.32.15", prompt_tokens=258, estimate=259).kind == "cut"
    assert verdict("0.32.15", prompt_tokens=258, estimate=258).kind == "whole"
    assert verdict("0.32.15", prompt_tokens=512).kind == "suspected"
    assert verdict("0.24.0", prompt_tokens=100, words=101).kind == "suspected"


def test_a_count_that_contradicts_beats_the_bytes() -> None:
    assert verdict("0.12.5", prompt_tokens=40, upper_bound=400, words=60).kind == "suspected"
    assert verdict("0.12.5", prompt_tokens=512, upper_bound=400).kind == "suspected"
    # Whitespace and rules read far below chars4; the bytes prove that they fit, and no word is missing.
    assert verdict("0.12.5", prompt_tokens=20, upper_bound=500, estimate=110, words=3).kind == "whole"


def test_suspected_at_and_over_the_window() -> None:
    assert verdict("0.12.5", prompt_tokens=512).kind == "suspected"
    assert verdict("0.12.5", prompt_tokens=600).kind == "suspected"
    assert verdict("0.12.5", prompt_tokens=511, output_tokens=1).kind == "unknown"
    assert verdict("0.24.0", prompt_tokens=512, output_tokens=1).kind == "whole"  # this runner takes a full window
    assert verdict("0.24.0", prompt_tokens=513, output_tokens=1).kind == "suspected"


def test_suspected_below_six_tenths_of_the_estimate_only_where_the_server_cannot_refuse() -> None:
    assert verdict("0.12.5", prompt_tokens=100, estimate=167).kind == "suspected"
    assert verdict("0.12.5", prompt_tokens=100, estimate=166).kind == "unknown"
    assert verdict("0.24.0", prompt_tokens=100, estimate=5000).kind == "whole"
    assert verdict("0.24.0", prompt_tokens=100, estimate=5000, asked_to_refuse=False).kind == "suspected"
    assert verdict("0.12.5", prompt_tokens=100, estimate=5000, window=None).kind == "suspected"


def test_a_smaller_window_whose_cut_leaves_the_count_is_named() -> None:
    found = verdict("0.9.0", prompt_tokens=2050, estimate=5520, window=8192)
    assert found.kind == "suspected" and "a window of 4096" in found.basis
    assert "a window of 2048" in verdict("0.9.0", prompt_tokens=2048, estimate=5520, window=8192).basis


def test_shifted() -> None:
    assert verdict("0.12.5", prompt_tokens=482, output_tokens=90).kind == "shifted"
    assert verdict("0.24.0", prompt_tokens=490, output_tokens=23).kind == "whole"
    assert verdict("0.24.0", prompt_tokens=490, output_tokens=24).kind == "shifted"
    assert verdict("0.32.15", prompt_tokens=482, output_tokens=30).kind == "whole"
    assert verdict("0.32.15", prompt_tokens=482, output_tokens=31).kind == "shifted"
    assert verdict("0.24.0", prompt_tokens=490, output_tokens=None).kind == "whole"


@pytest.mark.parametrize("version", ["0.3.14", "0.30.0"])
def test_counts_of_the_uncached_part_are_never_used(version: str) -> None:
    """They say 3 for a cached prompt of 3,000: neither a proof nor a suspicion."""
    for count in (3, 258, 512, 600):
        found = verdict(version, prompt_tokens=count, output_tokens=400, estimate=3000, words=700)
        assert found.kind == ("whole" if version == "0.30.0" else "unknown")
    assert verdict(version, prompt_tokens=3, asked_to_refuse=False, upper_bound=300, estimate=3000).kind == "whole"


@given(
    st.sampled_from(["0.3.14", "0.9.0", "0.12.5", "0.24.0", "0.30.0", "0.32.15", "0.0.0"]),
    st.none() | st.integers(0, 10_000),
    st.none() | st.integers(0, 10_000),
    st.none() | st.integers(4, 9000),
    st.integers(0, 20_000),
    st.none() | st.integers(-1, 9000),
    st.booleans(),
)
def test_every_verdict_has_a_basis(
    version: str,
    prompt: int | None,
    output: int | None,
    window: int | None,
    estimate: int,
    keep: int | None,
    asked: bool,
) -> None:
    found = verdict(
        version,
        prompt_tokens=prompt,
        output_tokens=output,
        window=window,
        estimate=estimate,
        num_keep=keep,
        asked_to_refuse=asked,
    )
    assert found.basis
    assert found.flagged == (found.kind in ("cut", "suspected", "shifted"))


@given(st.integers(4, 9000), st.integers(1, 20_000), st.integers(-1, 9000), st.sampled_from(["0.12.5", "0.32.15"]))
def test_a_cut_prompt_is_never_called_whole(window: int, size: int, keep: int, version: str) -> None:
    """Cuts as these servers make them: to the window, or to half of it behind what is kept."""
    new = version == "0.32.15"
    if size < window or (size == window and not new):
        return
    served = halved_count(window, keep) if new else window
    found = verdict(
        version,
        prompt_tokens=min(served, size),
        output_tokens=1,
        window=window,
        estimate=size,
        num_keep=keep,
        asked_to_refuse=False,
        upper_bound=size * 4,
    )
    assert found.kind in ("cut", "suspected")


# --- the recordings --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verdict_table", ROOT / "scripts" / "verdict_table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["verdict_table"] = module
    spec.loader.exec_module(module)
    if module.recordings_folder() is None:
        pytest.skip("no recordings (set RUNE_SHARED)")
    return module


def test_every_recorded_call(table: ModuleType) -> None:
    calls = table.load_calls(table.recordings_folder())
    assert len(calls) > 400
    allowed = {
        "fits": {"whole", "unknown"},
        "fits, exactly full": {"whole", "unknown", "suspected"},
        "cut": {"cut", "suspected", "unknown"},
        "shifted while writing": {"shifted", "suspected"},
        "no end": {"incomplete"},
        "refused": {"refused"},
    }
    wrong = [
        f"{c.file} {c.id}: {c.truth} (true size {c.true_tokens}), {c.verdict}"
        for c in calls
        if c.verdict.kind not in allowed[c.truth]
        or (c.truth == "fits, exactly full" and c.verdict.kind == "suspected" and c.asked_to_refuse)
    ]
    assert wrong == []


def test_true_sizes_are_those_that_were_measured(table: ModuleType) -> None:
    """Sizes named in the notes of the recordings, worked out from the data by the script."""
    calls = {(c.file, c.id): c for c in table.load_calls(table.recordings_folder())}
    sizes = {
        ("overlong-v0.12.5.json", "single-user-ctx512-default"): 2025,
        ("overlong-v0.24.0.json", "multi-plain-ctx512-default"): 1025,
        ("overlong-v0.12.5.json", "system1500+short-user"): 1526,
        ("overlong-v0.12.5.json", "system300+user300"): 625,
        ("overlong-v0.24.0.json", "boundary-plain-ctx512+0-default"): 512,
        ("wire-v0.32.15.json", "chat-num-ctx-0"): 10,
    }
    assert {key: calls[key].true_tokens for key in sizes} == sizes


def test_as_rune_asks_no_call_is_left_in_doubt(table: ModuleType) -> None:
    for call in table.load_calls(table.recordings_folder()):
        if call.as_rune_asks and call.version >= (0, 12, 6):
            expected = {"fits": "whole", "fits, exactly full": "whole", "refused": "refused", "no end": "incomplete"}
            assert call.verdict.kind == expected[call.truth], call.id


def test_the_page_of_verdicts_is_current(table: ModuleType) -> None:
    assert table.main(["--check"]) == 0, "run python scripts/verdict_table.py"
