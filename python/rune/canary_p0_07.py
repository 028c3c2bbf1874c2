"""Proves the contract of the run record anew, with no live model and no network, in a home of its own.

``python3 -m rune.canary_p0_07`` prints one line for each check; exit code 0, or 3 when one failed.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rune.inference_trace import (
    SCHEMA_VERSION,
    InferenceTraceStore,
    append_trace,
    build_record,
    price_for,
    read_traces,
    verify_row,
)
from rune.paths import inference_traces
from rune.settings import Settings
from rune.subsystem_health import turn

__all__ = ["CHECKS", "main"]

_TRACE: dict[str, Any] = {
    "model_id": "canary",
    "window": 8192,
    "budget": 5735,
    "blocks": [
        {"name": "persona", "tokens": 12, "admitted": True},
        {"name": "memory", "tokens": 5, "admitted": True},
        {"name": "consolidated", "tokens": 0, "admitted": True},
        {"name": "graphs", "tokens": 9000, "admitted": False},
        {"name": "user", "tokens": 3, "admitted": True},
    ],
    "admitted_total": 20,
    "memory_tokens": 5,
}
_USAGE = {"calls": 2, "prompt_tokens": 61, "output_tokens": 9, "total_duration_ns": 2_500_000}
_MESSAGES = [
    {"role": "system", "content": "You are a canary."},
    {"role": "user", "content": "Ω ≥ 5 — 完成 😊 \udcb2 \0 \u2028"},
]
_FIELDS = {
    *("schema_version", "provider", "model", "task_id", "channel", "resolved_context_window", "input_budget"),
    *("model_calls", "prompt_tokens_estimated", "prompt_tokens_served", "output_tokens", "latency_ms", "model_time_ms"),
    *("per_block_tokens", "dropped_blocks", "tools_exposed", "memories_exposed", "memory_tokens", "degraded", "cache"),
    *("cost_usd", "cost_basis", "success", "error", "routing_reason", "routing_mode", "task_family", "selected_tools"),
    *(
        "capability_reason",
        "find_capability_calls",
        "capsule_messages",
        "capsule_content_hashes",
        "capsule_token_count",
    ),
}


def _record(**changes: Any) -> dict[str, Any]:
    values = {"broker_trace": _TRACE, "usage": _USAGE, "provider": "ollama", "capsule_messages": _MESSAGES}
    return build_record(**{**values, **changes})


def _store(home: Path, row: dict[str, Any]) -> bool:
    return append_trace(home, row, settings=Settings.load(home, {}))


def _expect(condition: object, what: str) -> None:
    if not condition:  # not an assert: the canary must also sing under python -O
        raise AssertionError(what)


def check_record_has_every_field_of_the_schema(home: Path) -> None:
    row = _record()
    _expect(set(row) == {*_FIELDS, "ext"}, f"fields differ: {sorted(set(row) ^ {*_FIELDS, 'ext'})}")
    _expect(row["schema_version"] == SCHEMA_VERSION == 4, "the schema version is not 4")


def check_record_repeats_the_brokers_trace(home: Path) -> None:
    row = _record()
    _expect((row["resolved_context_window"], row["input_budget"]) == (8192, 5735), "window or budget differ")
    _expect(row["prompt_tokens_estimated"] == 20, "the estimate differs")
    _expect(row["per_block_tokens"] == {"persona": 12, "memory": 5, "consolidated": 0, "user": 3}, "blocks differ")
    _expect(row["dropped_blocks"] == [{"name": "graphs", "tokens": 9000}], "dropped blocks differ")
    _expect(row["memories_exposed"] == ["memory"] and row["memory_tokens"] == 5, "exposed memories differ")


def check_record_repeats_the_transports_counters(home: Path) -> None:
    row = _record()
    counted = (row["model_calls"], row["prompt_tokens_served"], row["output_tokens"], row["model_time_ms"])
    _expect(counted == (2, 61, 9, 2.5), f"counters differ: {counted}")


def check_record_reads_back_as_written(home: Path) -> None:
    row = _record()
    _expect(_store(home, row), "the record was not stored")
    rows = read_traces(home)
    _expect(rows == [row] and rows.skipped == 0, "what was read is not what was written")
    _expect(rows[0]["capsule_messages"] == _MESSAGES, "the messages differ")
    _expect(verify_row(rows[0]) is True, "the digest does not match")


def check_changed_record_is_noticed(home: Path) -> None:
    _store(home, _record())
    (row,) = read_traces(home)
    row["output_tokens"] += 1
    _expect(verify_row(row) is False, "a changed record passed for whole")


def check_older_and_newer_rows_parse(home: Path) -> None:
    path = inference_traces(home)
    path.parent.mkdir(parents=True)
    lines = [json.dumps({"schema_version": version, "model": f"v{version}"}) for version in (1, 2, 3, 5)]
    path.write_text("\n".join([*lines, "null", '{"torn']), encoding="utf-8")
    rows = read_traces(home)
    _expect([row["model"] for row in rows] == ["v1", "v2", "v3", "v5"], "rows of other versions are missing")
    _expect(all(set(row) >= _FIELDS for row in rows), "missing keys have no default")
    _expect(rows.skipped == 2, f"{rows.skipped} lines were skipped, not 2")


def check_torn_record_is_survived(home: Path) -> None:
    _store(home, _record(model="before"))
    with inference_traces(home).open("ab") as file:
        file.write(b'{"schema_version":4,"model":"\xe2\x82')
    _store(home, _record(model="after"))
    rows = read_traces(home)
    _expect([row["model"] for row in rows] == ["before", "after"] and rows.skipped == 1, "a torn record harmed another")


def check_rotation_keeps_three_backups_and_the_newest(home: Path) -> None:
    store = InferenceTraceStore(home, Settings.load(home, {}, trace_max_bytes=8192))
    _expect(store.log.backups == 3, "backups are not three")
    for n in range(60):
        store.append(_record(model=f"m{n}"))
    store.close()
    files = sorted(p.name for p in inference_traces(home).parent.iterdir() if not p.name.endswith(".lock"))
    _expect(files == ["inference_traces.jsonl", *(f"inference_traces.jsonl.{n}" for n in (1, 2, 3))], f"files: {files}")
    models = [row["model"] for row in read_traces(home)]
    _expect(
        models == [f"m{n}" for n in range(60)][-len(models) :] and len(models) < 60, "the newest are not what is kept"
    )


def check_failed_store_degrades_and_fails_nothing(home: Path) -> None:
    home.mkdir(exist_ok=True)
    (home / "state").write_text("a regular file where the folder should be")
    with turn() as health:
        stored = _store(home, _record())
    _expect(stored is False and health.degraded == ["storage.degraded"], "the failure is not visible")
    _expect(read_traces(home) == [], "there are rows where there can be none")


def check_content_off_keeps_counts_and_hashes_only(home: Path) -> None:
    row = _record(capsule_content_hashes={"user": "ab"}, capsule_token_count=20)
    append_trace(home, row, settings=Settings.load(home, {"RUNE_TRACE": "content-off"}))
    (found,) = read_traces(home)
    _expect(
        found["capsule_messages"] is None and "完成" not in json.dumps(found, ensure_ascii=False), "a text was kept"
    )
    _expect((found["capsule_content_hashes"], found["capsule_token_count"]) == ({"user": "ab"}, 20), "counts are gone")


def check_cost_says_what_it_rests_on(home: Path) -> None:
    settings = Settings.load(home, {}, prices={"canary": {"input": 1.0, "output": 2.0}})
    local, remote = _record(), _record(remote=True)
    priced = _record(price=price_for("canary", settings))
    _expect((local["cost_usd"], local["cost_basis"]) == (None, "local-unpriced"), "a local run has a cost")
    _expect(not remote["cost_basis"].startswith("local"), "a remote run is called local")
    _expect(priced["cost_basis"] == "price-map" and priced["cost_usd"] == 79 / 1e6, "the price is not used")


CHECKS: dict[str, Callable[[Path], None]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}
"""Every check by name; a check takes a home that is not there yet, and raises when the contract is broken."""


def main() -> int:
    """Runs every check in a home of its own, prints one line for each, and returns the exit code."""
    logging.getLogger("rune").addHandler(logging.NullHandler())  # failures are made on purpose here
    failed = 0
    for name, check in CHECKS.items():
        with tempfile.TemporaryDirectory(prefix="rune-canary-") as folder:
            try:
                check(Path(folder) / "home")
            except Exception as exc:  # whatever it is, the other checks run
                failed += 1
                print(f"FAIL  {name}: {type(exc).__name__}: {exc}")
            else:
                print(f"ok    {name}")
    print(f"{len(CHECKS) - failed} of {len(CHECKS)} checks hold")
    return 3 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
