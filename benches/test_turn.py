"""What Rune adds to a turn, without the model: all eleven contributors, stores of 1,000 rows of each kind, a session of 20 turns.

``whole run`` is ``RuneOperator.run`` with a model that answers at once: router, assembly, safety note, tool runtime, verdict,
session, journal and trace. ``assembly, hashing, trace`` is what makes the prompt and its record, and nothing else. ``by hand``
is what one writes first: the last turns behind a system text, and a line of JSON; no stores, no budget, no digests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rune.inference_trace import InferenceTraceStore
from rune.traces.record import build_record

GROUP = "turn: everything but the model"
ROUNDS = 400


@pytest.fixture
def worker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """An operator over filled stores, and its session."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
    try:
        import many_operators as many
    finally:
        sys.path.pop(0)
    measuring = request.config.getoption("benchmark_enable") or not request.config.getoption("benchmark_disable")
    made = many.Worker(0, many.filled_home(tmp_path / "home", 1000 if measuring else 20))
    for _ in range(20):
        words = [many.sentence(made.chance, 10, 40), many.sentence(made.chance, 20, 60)]
        made.session.append([{"role": "user", "content": words[0]}, {"role": "assistant", "content": words[1]}])
    made.run(1)
    made.sentence = lambda: many.sentence(made.chance, 3, 20)
    yield made
    made.operator.close()


def test_whole_run(benchmark: Any, worker: Any) -> None:
    benchmark.group = GROUP
    benchmark.pedantic(worker.run, args=(1,), rounds=ROUNDS, warmup_rounds=30)
    assert worker.wrong == []


def test_assembly_hashing_trace(benchmark: Any, worker: Any, tmp_path: Path) -> None:
    benchmark.group = GROUP
    broker = worker.operator._context_broker()
    store = InferenceTraceStore(tmp_path / "home", worker.operator.settings)

    def turn(task: str) -> Any:
        capsule, trace = broker.assemble(task, worker.session, "instant", window=8192)
        row = build_record(
            broker_trace=trace,
            capsule_messages=capsule.to_messages(),
            capsule_content_hashes=capsule.content_hashes(),
            capsule_token_count=capsule.token_count,
        )
        return store.append(row)

    assert benchmark.pedantic(turn, setup=lambda: ((worker.sentence(),), {}), rounds=ROUNDS, warmup_rounds=30)
    store.close()


def test_by_hand(benchmark: Any, worker: Any, tmp_path: Path) -> None:
    benchmark.group = GROUP
    turns = [list(turn) for turn in worker.session.turns]

    def turn(task: str) -> None:
        messages = [{"role": "system", "content": "You are an assistant."}]
        for earlier in turns[-8:]:
            messages += earlier
        messages.append({"role": "user", "content": task})
        with open(tmp_path / "trace.jsonl", "a", encoding="utf-8") as file:
            file.write(
                json.dumps({"messages": messages, "tokens": sum(len(m["content"]) // 4 for m in messages)}) + "\n"
            )

    benchmark.pedantic(turn, setup=lambda: ((worker.sentence(),), {}), rounds=ROUNDS, warmup_rounds=30)
