"""The run record, sentence by sentence: what it promises whoever reads it, and whoever is waiting for an answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rune
from broker_helpers import broker_of, case
from rune import inference_trace
from rune.canary_p0_07 import main as canary
from rune.context_broker import MEMORY_BLOCK_NAMES
from rune.inference_trace import InferenceTraceStore, append_trace, build_record, price_for, read_traces, verify_row
from rune.settings import Settings
from rune.subsystem_health import registry, reset_registry, turn

FILE = "state/inference_traces.jsonl"


@pytest.fixture(autouse=True)
def empty_registry() -> Iterator[None]:
    reset_registry()
    yield
    reset_registry()


def record(number: int = 0, **changes: Any) -> dict[str, Any]:
    return build_record(**{"broker_trace": None, "model": f"m{number}", "provider": "ollama", **changes})


def run(*args: str, home: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "rune.inference_trace", *args],
        env={**os.environ, "RUNE_HOME": str(home), **env},
        capture_output=True,
        check=False,
    )


def printed(result: subprocess.CompletedProcess[bytes]) -> list[str]:
    assert result.returncode == 0, result.stderr
    return [json.loads(line)["model"] for line in result.stdout.splitlines()]


# The store


def test_the_store_is_one_object_a_line_in_the_state_folder(tmp_path: Path) -> None:
    for n in range(3):
        assert append_trace(tmp_path, record(n))
    lines = (tmp_path / FILE).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["model"] for line in lines] == ["m0", "m1", "m2"]
    assert {p.name for p in (tmp_path / "state").iterdir()} == {"inference_traces.jsonl", "inference_traces.jsonl.lock"}


def test_it_rotates_at_10_mb_with_three_backups(tmp_path: Path) -> None:
    store = InferenceTraceStore(tmp_path, Settings.load(tmp_path, {}))
    assert (store.log.max_bytes, store.log.backups) == (10_485_760, 3)
    big = [{"role": "user", "content": "x" * 4_000_000}]
    for n in range(11):
        assert store.append(record(n, capsule_messages=big))
    store.close()
    names = {p.name for p in (tmp_path / "state").iterdir() if not p.name.endswith(".lock")}
    assert names == {f"inference_traces.jsonl{suffix}" for suffix in ("", ".1", ".2", ".3")}
    assert [row["model"] for row in read_traces(tmp_path)] == [f"m{n}" for n in range(4, 11)]


def test_size_and_number_of_backups_can_be_set(tmp_path: Path) -> None:
    settings = Settings.load(tmp_path, {}, trace_max_bytes=4096, trace_backups=1)
    store = InferenceTraceStore(tmp_path, settings)
    for n in range(50):
        store.append(record(n))
    store.close()
    sizes = [p.stat().st_size for p in (tmp_path / "state").glob("*.jsonl*") if not p.name.endswith(".lock")]
    assert len(sizes) == 2 and max(sizes) <= 4096
    assert read_traces(tmp_path)[-1]["model"] == "m49"


def test_a_tail_reads_across_the_rotation(tmp_path: Path) -> None:
    store = InferenceTraceStore(tmp_path, Settings.load(tmp_path, {}, trace_max_bytes=4096))
    for n in range(12):
        store.append(record(n))
    store.close()
    assert len(list((tmp_path / "state").glob("*.jsonl.[0-9]"))) > 1
    assert printed(run("9", home=tmp_path)) == [f"m{n}" for n in range(3, 12)]
    assert [row["model"] for row in read_traces(tmp_path, limit=9)] == [f"m{n}" for n in range(3, 12)]


def test_it_is_read_back_with_read_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [record(n, capsule_messages=[{"role": "user", "content": "Ω 😊 \udcb2"}]) for n in range(3)]
    for row in rows:
        append_trace(tmp_path, row)
    found = read_traces(tmp_path)
    assert found == rows and found.skipped == 0 and not found.bad_fields
    assert all(verify_row(row) for row in found)
    monkeypatch.setenv("RUNE_HOME", str(tmp_path))
    assert read_traces() == rune.read_traces() == rows
    assert read_traces(str(tmp_path), limit=1) == rows[-1:]


def test_nothing_is_made_by_reading(tmp_path: Path) -> None:
    assert read_traces(tmp_path / "home") == []
    assert printed(run(home=tmp_path / "home")) == []
    assert list(tmp_path.iterdir()) == []


# python3 -m rune.inference_trace [n]


def test_the_module_prints_the_last_n_records_as_lines_of_json(tmp_path: Path) -> None:
    for n in range(15):
        append_trace(tmp_path, record(n))
    assert printed(run("2", home=tmp_path)) == ["m13", "m14"]
    assert printed(run(home=tmp_path)) == [f"m{n}" for n in range(5, 15)]
    assert printed(run("0", home=tmp_path)) == []
    assert printed(run("999", home=tmp_path)) == [f"m{n}" for n in range(15)]


@pytest.mark.parametrize("args", [["x"], ["-1"], ["1.5"], ["1", "2"], [""], ["9" * 5000], ["\udcff"], ["--tail"]])
def test_a_wrong_n_is_one_clear_error(args: list[str], tmp_path: Path) -> None:
    result = run(*args, home=tmp_path)
    assert result.returncode == 2 and result.stdout == b""
    assert b"usage: python3 -m rune.inference_trace [n]" in result.stderr and b"Traceback" not in result.stderr


def test_help_is_no_error(tmp_path: Path) -> None:
    result = run("--help", home=tmp_path)
    assert result.returncode == 0 and b"usage" in result.stdout


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("odd", ["", "\udcb2"], ids=["text", "lone surrogate"])
@pytest.mark.parametrize("env", [{}, ASCII, {"PYTHONIOENCODING": "cp1252"}, {"PYTHONIOENCODING": "utf-16"}])
def test_any_terminal_can_show_any_text(env: dict[str, str], odd: str, tmp_path: Path) -> None:
    text = f"Ω ≥ 5 — 完成 😊 {odd} \0 \x1b[31m \u2028 \x85 \u202e"
    append_trace(tmp_path, record(capsule_messages=[{"role": "user", "content": text}]))
    result = run(home=tmp_path, **env)
    assert result.returncode == 0 and result.stderr == b""
    encoding = env.get("PYTHONIOENCODING", "utf-8")
    shown = result.stdout.decode(encoding)
    assert json.loads(shown)["capsule_messages"][0]["content"] == text
    assert not any(c in shown for c in "\x1b\u2028\x85\u202e\0") and shown.count("\n") == 1


def test_the_public_case_of_an_ascii_locale(tmp_path: Path) -> None:
    given = case("C64")
    answer = given["input"]["answer"]
    code = (
        "import sys; from rune.inference_trace import append_trace, build_record\n"
        "text = sys.stdin.buffer.read().decode()\n"
        "row = build_record(broker_trace=None, capsule_messages=[{'role': 'assistant', 'content': text}])\n"
        "assert append_trace(sys.argv[1], row)"
    )
    env = {**os.environ, **given["input"]["env"]}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], input=answer.encode(), env=env, check=True)
    (row,) = read_traces(tmp_path)
    assert row["capsule_messages"][0]["content"] == answer
    assert answer.encode() in (tmp_path / FILE).read_bytes()
    assert run(home=tmp_path, **given["input"]["env"]).returncode == 0


@pytest.mark.parametrize("rows", [1, 2, 200])
def test_a_reader_that_has_gone_is_no_error(rows: int, tmp_path: Path) -> None:
    for n in range(rows):
        append_trace(tmp_path, record(n, capsule_messages=[{"role": "user", "content": "x" * 5000}]))
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "rune.inference_trace", str(rows)],
            env={**os.environ, "RUNE_HOME": str(tmp_path), "PYTHONUNBUFFERED": ""},
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (0, b"")


def test_faults_in_the_file_are_told_on_standard_error(tmp_path: Path) -> None:
    append_trace(tmp_path, record(1))
    with (tmp_path / FILE).open("a") as file:
        file.write('{"schema_version":4,"model":"m2","model_calls":"many"}\n{"torn')
    result = run(home=tmp_path)
    assert printed(result) == ["m1", "m2"]
    assert b"skipped lines: 1" in result.stderr and b"model_calls in 1" in result.stderr


def test_what_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir(parents=True)
    result = run(home=tmp_path)
    assert result.returncode == 1 and b"inference_traces.jsonl cannot be read" in result.stderr
    assert b"Traceback" not in result.stderr


# The record


def test_it_builds_from_the_brokers_trace_and_the_transports_counters() -> None:
    """The broker is the one source for window, budget, blocks and estimate; the transport for what was served."""
    blocks = [
        {"name": "persona", "priority": 100, "evictable": False, "content": "You are Rune."},
        {"name": "memory", "priority": 70, "evictable": True, "content": "abcd" * 30},
        {"name": "graphs", "priority": 50, "evictable": True, "content": "abcd" * 100_000},
        {"name": "user", "priority": 100, "evictable": False, "content": "hello there"},
    ]
    broker = broker_of(8192, blocks)
    capsule, trace = broker.assemble("hello there", None, "m")
    usage = {"calls": 3, "prompt_tokens": 1234, "output_tokens": 56, "total_duration_ns": 7_000_000}
    row = build_record(
        broker_trace=trace,
        usage=usage,
        capsule_messages=capsule.to_messages(),
        capsule_content_hashes=capsule.content_hashes(),
        capsule_token_count=capsule.token_count,
        memory_block_names=MEMORY_BLOCK_NAMES,
    )
    admitted = {b["name"]: b["tokens"] for b in trace["blocks"] if b["admitted"]}
    assert row["resolved_context_window"] == trace["window"] and row["input_budget"] == trace["budget"]
    assert row["prompt_tokens_estimated"] == trace["admitted_total"] == sum(row["per_block_tokens"].values())
    assert row["per_block_tokens"] == admitted and row["dropped_blocks"] == [{"name": "graphs", "tokens": 100_000}]
    assert row["memories_exposed"] == ["memory"] and row["memory_tokens"] == trace["memory_tokens"] == 30
    assert (row["model_calls"], row["prompt_tokens_served"], row["output_tokens"]) == (3, 1234, 56)
    assert row["model_time_ms"] == 7.0
    assert row["capsule_messages"] == capsule.to_messages()
    assert row["capsule_content_hashes"] == capsule.content_hashes()
    assert row["ext"]["ledger"] == trace["ext"]["ledger"]


def test_unknown_served_counts_are_zero() -> None:
    assert record(usage={"calls": 1})["prompt_tokens_served"] == 0


def test_a_local_record_has_no_cache_no_cost_and_says_so() -> None:
    row = record()
    assert (row["provider"], row["cache"], row["cost_usd"], row["cost_basis"]) == (
        "ollama",
        None,
        None,
        "local-unpriced",
    )


def test_a_model_that_runs_elsewhere_is_never_called_local() -> None:
    assert not record(remote=True)["cost_basis"].startswith("local")


def test_the_price_map_fills_the_cost(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[prices."m0"]\ninput = 1\noutput = 10\n')
    settings = Settings.load(tmp_path, {})
    usage = {"calls": 1, "prompt_tokens": 1_000_000, "output_tokens": 100_000}
    row = record(price=price_for("m0", settings), usage=usage)
    assert (row["cost_usd"], row["cost_basis"]) == (2.0, "price-map")
    assert price_for("m1", settings) is None and rune.price_for is price_for


def test_every_provider_has_one_shape() -> None:
    local, cloud = record(), record(provider="openai-compatible", remote=True)
    assert list(local) == list(cloud)


# Other versions


def test_rows_of_older_and_newer_versions_parse(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    given = case("C63")
    (tmp_path / FILE).write_text("\n".join(given["input"]["lines"]), encoding="utf-8")
    rows = read_traces(tmp_path)
    assert [row["model"] for row in rows] == given["expected"]["rows_returned"]
    assert rows.skipped == given["expected"]["skipped"]
    assert rows[0]["capsule_content_hashes"] == {} and rows[0]["routing_reason"] == ""
    assert printed(run(home=tmp_path)) == given["expected"]["rows_returned"]


# Failure


def test_a_failure_to_record_is_seen_and_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a regular file where the folder should be")
    with turn() as health:
        assert append_trace(tmp_path, record()) is False
    assert health.degraded == ["storage.degraded"]
    assert registry()["storage.degraded"].tier == 2
    assert read_traces(tmp_path) == []
    assert printed(run(home=tmp_path)) == []


def test_a_home_that_is_a_file_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    assert append_trace(tmp_path / "home", record()) is False
    assert read_traces(tmp_path / "home") == []


@pytest.mark.parametrize("row", [{"odd": object()}, [], None])
def test_a_row_that_is_no_json_fails_nothing(row: Any, tmp_path: Path) -> None:
    assert append_trace(tmp_path, row) is False
    assert registry()["storage.degraded"].count == 1


def test_settings_that_cannot_be_used_record_nothing(tmp_path: Path) -> None:
    """Whether texts may be kept is not known then."""
    (tmp_path / "config.toml").write_text("trace = 'sometimes'")
    assert append_trace(tmp_path, record()) is False
    assert registry()["storage.degraded"].count == 1 and not (tmp_path / "state").exists()


def test_a_record_that_cannot_be_built_fails_nothing(tmp_path: Path) -> None:
    store = InferenceTraceStore(tmp_path, Settings.load(tmp_path, {}))
    assert store.record(broker_trace=None, ext={"odd": object()}) is None
    assert store.record(broker_trace={"blocks": [{}]}) is None
    assert registry()["storage.degraded"].count == 2
    row = store.record(broker_trace=None, model="m")
    assert row is not None and store.read() == [row]
    store.close()


# The switch


def test_content_can_be_switched_off(tmp_path: Path) -> None:
    settings = Settings.load(tmp_path, {"RUNE_TRACE": "content-off"})
    messages = [{"role": "user", "content": "secret words"}]
    row = record(capsule_messages=messages, capsule_content_hashes={"user": "ab"}, capsule_token_count=3)
    assert append_trace(tmp_path, row, settings=settings)
    (found,) = read_traces(tmp_path)
    assert found["capsule_messages"] is None
    assert (found["capsule_content_hashes"], found["capsule_token_count"]) == ({"user": "ab"}, 3)
    assert verify_row(found) is True and b"secret" not in (tmp_path / FILE).read_bytes()
    assert row["capsule_messages"] == messages


def test_the_trace_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNE_TRACE", "off")
    assert append_trace(tmp_path, record()) is True
    assert list(tmp_path.iterdir()) == [] and registry() == {}


def test_the_switch_is_read_from_the_home_where_no_settings_are_given(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("trace = 'content-off'")
    append_trace(tmp_path, record(capsule_messages=[{"role": "user", "content": "secret"}]))
    assert read_traces(tmp_path)[0]["capsule_messages"] is None


# The canary


def test_the_canary_proves_the_contract_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert canary() == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok    ") for line in lines[:-1])
    assert lines[-1] == f"{len(lines) - 1} of {len(lines) - 1} checks hold" and len(lines) > 8


def test_the_canary_finds_a_broken_contract(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inference_trace.DurableLog, "append", lambda self, row: None)
    assert canary() == 3
    assert "FAIL  record_reads_back_as_written" in capsys.readouterr().out
