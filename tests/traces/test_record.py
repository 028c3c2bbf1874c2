"""The record of a run: every field from its one source, exactly as it will be read back, and sealed."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rune.errors import InvalidInput
from rune.storage.rows import decode_row, encode_row
from rune.traces.prices import Price
from rune.traces.record import build_record, row_digest, verify_row, without_content
from rune.traces.schema import FIELDS, SINCE, defaults, normalise_row

FIELDS_IN_ORDER = (
    "schema_version provider model task_id channel resolved_context_window input_budget model_calls "
    "prompt_tokens_estimated prompt_tokens_served output_tokens latency_ms model_time_ms per_block_tokens dropped_blocks "
    "tools_exposed memories_exposed memory_tokens degraded cache cost_usd cost_basis success error routing_reason "
    "routing_mode task_family selected_tools capability_reason find_capability_calls capsule_messages "
    "capsule_content_hashes capsule_token_count"
).split()


def block(name: str, tokens: int, admitted: bool = True) -> dict[str, Any]:
    return {
        "name": name,
        "priority": 50,
        "tokens": tokens,
        "source": "test",
        "evictable": True,
        "admitted": admitted,
        "reason": "fits" if admitted else "over_budget",
    }


BROKER_TRACE: dict[str, Any] = {
    "model_id": "llama3",
    "window": 8192,
    "budget": 5735,
    "blocks": [
        *(block("persona", 20), block("memory", 7), block("persona_memories", 0), block("consolidated", 5, False)),
        *(block("graphs", 900, False), block("user", 3)),
    ],
    "admitted": ["persona", "memory", "persona_memories", "user"],
    "admitted_total": 30,
    "dropped": [{"name": "graphs", "tokens": 900, "priority": 50, "reason": "over_budget"}],
    "memory_tokens": 7,
    "degraded": ["neurons"],
    "compaction": [],
    "elapsed_ms": 1.5,
    "ext": {"estimator": "chars4/1", "layout": "seed", "ledger": [{"name": "persona", "digest": "ab"}]},
}
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Ω ≥ 5 — 完成 😊 \udcb2"}]


@dataclass
class Counted:
    calls: int = 2
    prompt_tokens: int = 55
    output_tokens: int = 11
    total_duration_ns: int = 1_500_000


def record(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "broker_trace": BROKER_TRACE,
        "usage": Counted(),
        "provider": "ollama",
        "model": "llama3",
        "task_id": "t1",
        "channel": "cli",
        "latency_ms": 12.34567,
        "tools_exposed": ("read_file", "list_dir"),
        "selected_tools": ["read_file"],
        "degraded": ["neurons"],
        "capsule_messages": MESSAGES,
        "capsule_content_hashes": {"persona": "ab"},
        "capsule_token_count": 31,
        "ext": {"run_id": "r1"},
    }
    return build_record(**{**values, **changes})


def test_the_fields_are_those_specified_in_their_order_and_one_more() -> None:
    assert list(record()) == list(build_record(broker_trace=None)) == list(defaults()) == [*FIELDS_IN_ORDER, "ext"]
    assert list(FIELDS) == FIELDS_IN_ORDER


def test_the_fields_came_with_their_versions() -> None:
    newer = {name: since for name, since in SINCE.items() if since > 1}
    assert newer == {
        **dict.fromkeys(["routing_reason", "routing_mode", "task_family"], 2),
        **dict.fromkeys(["selected_tools", "capability_reason", "find_capability_calls"], 3),
        **dict.fromkeys(["capsule_messages", "capsule_content_hashes", "capsule_token_count"], 4),
    }


def test_every_value_comes_from_its_source() -> None:
    row = record(
        routing_reason="short",
        routing_mode="auto",
        task_family="chat",
        capability_reason="named",
        find_capability_calls=2,
    )
    ext = row.pop("ext")
    assert row == {
        "schema_version": 4,
        "provider": "ollama",
        "model": "llama3",
        "task_id": "t1",
        "channel": "cli",
        "resolved_context_window": 8192,
        "input_budget": 5735,
        "model_calls": 2,
        "prompt_tokens_estimated": 30,
        "prompt_tokens_served": 55,
        "output_tokens": 11,
        "latency_ms": 12.346,
        "model_time_ms": 1.5,
        "per_block_tokens": {"persona": 20, "memory": 7, "persona_memories": 0, "user": 3},
        "dropped_blocks": [{"name": "consolidated", "tokens": 5}, {"name": "graphs", "tokens": 900}],
        "tools_exposed": ["read_file", "list_dir"],
        "memories_exposed": ["memory"],
        "memory_tokens": 7,
        "degraded": ["neurons"],
        "cache": None,
        "cost_usd": None,
        "cost_basis": "local-unpriced",
        "success": True,
        "error": None,
        "routing_reason": "short",
        "routing_mode": "auto",
        "task_family": "chat",
        "selected_tools": ["read_file"],
        "capability_reason": "named",
        "find_capability_calls": 2,
        "capsule_messages": MESSAGES,
        "capsule_content_hashes": {"persona": "ab"},
        "capsule_token_count": 31,
    }
    digest = ext.pop("row_digest")
    assert len(digest) == 64
    assert ext == {"ext_version": 1, **BROKER_TRACE["ext"], "run_id": "r1"}


def test_usage_may_be_a_mapping_or_nothing() -> None:
    row = record(usage={"calls": 1, "prompt_tokens": None, "output_tokens": 3})
    assert (row["model_calls"], row["prompt_tokens_served"], row["output_tokens"], row["model_time_ms"]) == (
        1,
        0,
        3,
        0.0,
    )
    assert record(usage=None)["model_calls"] == 0


def test_without_an_assembly_the_record_has_its_defaults() -> None:
    row = build_record(broker_trace=None, success=False, error="no server")
    expected = {**defaults(), "success": False, "error": "no server", "cost_basis": "local-unpriced"}
    ext = row.pop("ext")
    del expected["ext"]
    assert row == expected and set(ext) == {"ext_version", "row_digest"}


def test_the_model_is_the_traces_where_none_is_given() -> None:
    assert record(model="")["model"] == "llama3"
    assert record(task_id=None)["task_id"] == ""


@pytest.mark.parametrize(("error", "kept"), [("x" * 1000, "x" * 300), ("x" * 300, "x" * 300), ("", None), (None, None)])
def test_an_error_is_cut_at_300_characters(error: str | None, kept: str | None) -> None:
    assert record(error=error, success=False)["error"] == kept


def test_names_of_memory_blocks_may_be_others() -> None:
    assert record(memory_block_names={"memory", "user", "graphs"})["memories_exposed"] == ["memory", "user"]


def test_compaction_events_and_prices_are_in_ext() -> None:
    row = record(broker_trace={**BROKER_TRACE, "compaction": [{"turns": 9}]}, price=Price("llama3", 1.0, 2.0))
    assert row["ext"]["compaction"] == [{"turns": 9}]
    assert row["ext"]["price"] == {"model": "llama3", "input": 1.0, "output": 2.0, "source": "config.toml"}
    assert row["cost_usd"] == pytest.approx((55 * 1 + 11 * 2) / 1e6) and row["cost_basis"] == "price-map"


def test_what_the_caller_gives_for_ext_wins() -> None:
    assert record(ext={"layout": "cache"})["ext"]["layout"] == "cache"


def test_the_record_is_what_a_reader_gets_and_shares_nothing_with_its_sources() -> None:
    trace, messages = copy.deepcopy(BROKER_TRACE), copy.deepcopy(MESSAGES)
    row = record(broker_trace=trace, capsule_messages=messages, ext={"odd": (1, float("nan"))})
    assert decode_row(encode_row(row)) == row and normalise_row(row) == (row, [])
    assert row["ext"]["odd"] == [1, None]
    kept = copy.deepcopy(row)
    messages[0]["content"] = "changed"
    trace["ext"]["ledger"][0]["digest"] = "changed"
    assert row == kept and trace["blocks"] == BROKER_TRACE["blocks"]


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(InvalidInput):
        record(ext={"odd": object()})


# The digest


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(json_values)
def test_a_row_verifies_after_writing_and_reading(value: Any) -> None:
    row = record(ext={"value": value})
    assert verify_row(row) is True
    again = json.loads(encode_row(row))
    assert verify_row(again) is True
    assert verify_row(dict(sorted(again.items()))) is True


@pytest.mark.parametrize("name", [*FIELDS_IN_ORDER, "ext", "new"])
def test_any_change_is_noticed(name: str) -> None:
    row = record()
    if name == "ext":
        row["ext"]["run_id"] = "r2"
    else:
        row[name] = "changed"
    assert verify_row(row) is False


def test_a_row_without_a_digest_is_neither_right_nor_wrong() -> None:
    assert verify_row({"schema_version": 3}) is verify_row({"ext": {}}) is verify_row({"ext": 3}) is None
    assert len(row_digest({"schema_version": 3})) == 64


# Without content


def texts_in(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*map(texts_in, value.values()))
    if isinstance(value, list):
        return set().union(*map(texts_in, value))
    return {value} if isinstance(value, str) else set()


def test_without_content_counts_and_hashes_remain_and_texts_go() -> None:
    ext = {
        "run_id": "r1",
        "tool_events": [
            {"name": "read_file", "arguments": {"path": "secret words"}, "result": "secret words", "tokens": 3}
        ],
        "compaction": [{"summary": "secret words", "messages": [{"content": "secret words"}], "summary_tokens": 9}],
        "calls": [{"wire_digest": "cd", "prompt_tokens": 5, "images": 2}],
        "history": {"task": "secret words", "turns": 3, "text": ["secret words"]},
    }
    full = record(ext=ext, capsule_messages=[{"role": "user", "content": "secret words"}])
    row = without_content(full)
    assert not any("secret" in text for text in texts_in(row))
    assert row["capsule_messages"] is None and row["capsule_content_hashes"] == {"persona": "ab"}
    assert row["ext"]["tool_events"] == [{"name": "read_file", "arguments": None, "result": None, "tokens": 3}]
    assert row["ext"]["calls"] == ext["calls"] and row["ext"]["history"]["turns"] == 3
    assert row["ext"]["compaction"][0]["summary_tokens"] == 9
    assert row["ext"]["content"] == "off"
    assert verify_row(row) is True and list(row) == list(full)
    assert without_content(row) == row
    assert {k: v for k, v in row.items() if k not in ("ext", "capsule_messages")} == {
        k: v for k, v in full.items() if k not in ("ext", "capsule_messages")
    }
