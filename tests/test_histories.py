"""Every assembly of real conversations: nothing over budget, nothing parted, nothing unaccounted for."""

from __future__ import annotations

import importlib.util
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rune.kernels
from broker_helpers import SHARED, use_kernels
from rune.context_broker import ContextBroker

ROOT = Path(__file__).resolve().parents[1]
SIZES = {"tau_airline": 200, "swe_agent": 22, "toolbench": 13, "oasst_en": 95, "long": 1}

pytestmark = pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="the real conversations are not here")


@pytest.fixture(scope="module")
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("history_table", ROOT / "scripts" / "history_table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["history_table"] = module
    spec.loader.exec_module(module)
    return module


def check(found: Any, window: int, orphans: Any) -> None:
    """What must be true of one assembly of a replayed conversation."""
    budget = ContextBroker.budget(window).budget
    if found.error is not None:
        needed = sum(block["tokens"] for block in found.error.blocks)
        assert needed > budget, "an overflow without need"
        assert found.trace["admitted_total"] <= budget
        return
    capsule, trace = found.capsule, found.trace
    sent = capsule.to_messages()

    assert trace["admitted_total"] <= budget and trace["admitted_total"] == capsule.token_count
    assert trace["admitted_total"] == sum(row["tokens"] for row in trace["blocks"] if row["admitted"])
    assert trace["degraded"] == []

    assert orphans(sent) == 0
    assert [m["role"] for m in sent].count("system") == 1 and sent[0]["role"] == "system"
    for text in found.system:
        assert text in sent[0]["content"]
    assert sent[-1] == {"role": "user", "content": found.task}

    facts = trace["ext"]["history"]
    completed = found.session.completed_turns()
    offered = completed[len(completed) - facts["offered"] :]
    assert facts["offered"] == min(8, len(completed)) and facts["turns"] == len(found.session.turns)
    assert facts["admitted"] + facts["dropped"] == facts["offered"]
    kept = offered[facts["dropped"] :]
    assert sent[1:-1] == [m for turn in kept for m in turn], "what is kept is there word for word"

    row = next((row for row in trace["ext"]["ledger"] if row["name"] == "history"), None)
    if row is None:
        assert not offered
        return
    room = budget - sum(r["tokens"] for r in trace["blocks"] if r["admitted"] and r["name"] != "history")
    sizes = row["parts"]
    assert sum(sizes[facts["dropped"] :]) <= room
    if facts["dropped"]:
        assert sum(sizes[facts["dropped"] - 1 :]) > room, "one more turn would have fitted"
        dropped = [d for d in trace["dropped"] if d["name"] == "history"]
        assert len(dropped) == 1 and dropped[0]["tokens"] == sum(sizes[: facts["dropped"]])


@pytest.mark.parametrize("window", [8192, 16384])
@pytest.mark.parametrize("name", SIZES)
def test_every_assembly_holds(
    name: str, window: int, table: ModuleType, kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels is rune.kernels.pure and window != 8192:
        pytest.skip("the twin is slow, and one window shows that it agrees")
    use_kernels(kernels, monkeypatch)
    broker = table.broker_for(window, "seed")
    sessions = assemblies = 0
    for messages in table.sessions_of(name):
        sessions += 1
        for found in table.replay(messages, broker):
            assemblies += 1
            check(found, window, table.orphans)
    assert sessions == SIZES[name] and assemblies >= sessions


@pytest.mark.parametrize("window", [8192, 16384])
def test_every_assembly_of_the_cache_layout_is_within_budget_and_whole(window: int, table: ModuleType) -> None:
    broker = table.broker_for(window, "cache")
    fronts: list[Any] = []
    for found in table.replay(next(iter(table.sessions_of("long"))), broker):
        trace, sent = found.trace, found.capsule.to_messages()
        assert trace["admitted_total"] <= trace["budget"] and table.orphans(sent) == 0
        assert trace["ext"]["history"]["admitted"] <= 16
        assert sent[0]["role"] == "system" and sent[-1]["content"].startswith(found.task)
        fronts.append(sent[1] if len(sent) > 2 else None)
    moves = sum(before != now for before, now in pairwise(fronts))
    assert moves < len(fronts) / 6


def test_the_page_is_current(table: ModuleType) -> None:
    assert table.main(["--check"]) == 0, "run python scripts/history_table.py"
