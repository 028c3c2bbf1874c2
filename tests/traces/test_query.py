"""Reading rows of every version, with their faults counted, and finding the ones asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_helpers import case
from rune.storage.log import DurableLog
from rune.traces.query import find_rows, iterate, read_rows, run_id_of
from rune.traces.record import build_record
from rune.traces.schema import FIELDS, defaults, normalise_row


@pytest.fixture
def log(tmp_path: Path) -> DurableLog:
    return DurableLog(tmp_path / "traces.jsonl")


def row(number: int, **changes: Any) -> dict[str, Any]:
    return build_record(broker_trace=None, model=f"m{number}", ext={"run_id": f"run{number:03}"}, **changes)


def test_the_public_case_of_a_tolerant_reader(log: DurableLog) -> None:
    given_case = case("C63")
    log.path.write_text("\n".join(given_case["input"]["lines"]) + "\n", encoding="utf-8")
    rows = read_rows(log)
    assert [r["model"] for r in rows] == given_case["expected"]["rows_returned"]
    assert rows.skipped == given_case["expected"]["skipped"]
    assert rows.bad_fields == {"prompt_tokens_served": 1} and rows[3]["prompt_tokens_served"] == 0
    assert [r["schema_version"] for r in rows] == [1, 3, 5, 4] and rows[2]["new_field"] == {"x": 1}
    for found in rows:
        assert list(found)[: len(FIELDS) + 1] == [*FIELDS, "ext"]
    assert {**rows[0], "model": "", "schema_version": 4} == defaults()


BAD: dict[str, list[Any]] = {
    "schema_version": ["4", None, 4.5, True],
    "model": [None, 3],
    "input_budget": ["5", None, 1.5, False],
    "latency_ms": ["1", None, True, []],
    "per_block_tokens": [None, [], {"a": "1"}, {"a": None}],
    "dropped_blocks": [None, {}, ["a"]],
    "tools_exposed": [None, "abc", [1], {"a": 1}],
    "success": [None, 1, "true"],
    "error": [3, []],
    "cost_usd": ["1", True],
    "capsule_messages": ["x", ["x"], {}],
    "capsule_content_hashes": [{"a": 1}, []],
    "ext": [None, [], "x"],
}
GOOD: dict[str, list[Any]] = {
    "schema_version": [1, 5, 4.0],
    "input_budget": [-5, 0],
    "latency_ms": [0, 1.5],
    "cost_usd": [None, 0, 0.1],
    "cache": [None, {"hits": 3}, 1],
    "capsule_messages": [None, [], [{"role": "user"}]],
    "error": [None, "x"],
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_field_falls_to_its_default_and_is_named(name: str) -> None:
    for value in BAD[name]:
        found, bad = normalise_row({**defaults(), name: value})
        assert bad == [name] and found == {**defaults(), **({"schema_version": 1} if name == "schema_version" else {})}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_field_stays(name: str) -> None:
    for value in GOOD[name]:
        found, bad = normalise_row({name: value})
        assert bad == [] and found[name] == value


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*FIELDS, "ext", "other"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([]) | st.just({}) | st.just([{}]),
    )
)
def test_whatever_a_row_holds_it_has_every_field_in_its_type(given_row: dict[str, Any]) -> None:
    found, bad = normalise_row(given_row)
    assert list(found)[: len(FIELDS) + 1] == [*FIELDS, "ext"]
    assert all(known.fits(found[name]) for name, known in FIELDS.items())
    assert normalise_row(found) == (found, []) and set(bad) <= set(given_row)


def test_defaults_are_not_shared() -> None:
    normalise_row({})[0]["tools_exposed"].append("x")
    assert normalise_row({})[0]["tools_exposed"] == []


def test_the_last_rows(log: DurableLog) -> None:
    for n in range(10):
        log.append(row(n))
    assert [r["model"] for r in read_rows(log, limit=3)] == ["m7", "m8", "m9"]
    assert [r["model"] for r in read_rows(log)] == [f"m{n}" for n in range(10)]
    assert read_rows(log, limit=0) == []
    assert [r["model"] for r in iterate(log, newest_first=True)] == [f"m{n}" for n in range(9, -1, -1)]


def test_rows_are_found_by_run_task_and_condition(log: DurableLog) -> None:
    for n in range(10):
        log.append(row(n, task_id=f"t{n % 3}", success=n % 2 == 0))
    log.append({"schema_version": 1, "model": "old", "task_id": "t0"})

    def models(**conditions: Any) -> list[str]:
        return [r["model"] for r in find_rows(log, **conditions)]

    assert models(run_id="run004") == ["m4"]
    assert models(run_id="run00", limit=2) == ["m9", "m8"]
    assert models(run_id="run9") == models(run_id="") == []
    assert models(task_id="t0") == ["old", "m9", "m6", "m3", "m0"]
    assert models(task_id="t0", where=lambda r: r["success"]) == ["m6", "m0"]
    assert models(limit=1) == ["old"] and models(limit=0) == [] and len(models()) == 11


@pytest.mark.parametrize("ext", [None, [], {}, {"run_id": 3}])
def test_rows_without_a_run_id_have_none(ext: Any) -> None:
    assert run_id_of({"ext": ext}) == run_id_of({}) == ""
