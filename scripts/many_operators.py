#!/usr/bin/env python3
"""Many operators in threads on one Rune home, with a model that answers at once: is every record whole, and what does it cost?

    .venv/bin/python scripts/many_operators.py [--operators 64] [--turns 200] [--rows 1000]

Each operator runs its turns in a thread of its own; some of them have a contributor that fails now and then. Afterwards every
row is read back and held against what its run returned. The throughput is compared with that of one operator alone that runs
as many turns as all of them, on a home of its own, before and after.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rune import Conversation, RuneOperator, Settings
from rune.inference_trace import InferenceTraceStore, verify_row
from rune.memory import interchange
from rune.messages import Message
from rune.paths import database, journal
from rune.storage.database import Database
from rune.storage.log import DurableLog
from rune.transports.base import ChatReply, ModelListing, UsageCounters, Verdict
from rune.transports.discovery import ModelFacts

MODEL = "instant"
WORDS = (
    "harbour lighthouse keeper letter ship island winter garden engine river bridge paper window forest market morning road "
    "copper violin station weather clock village stone silver mirror ladder candle orchard anchor"
).split()


class InstantTransport(UsageCounters):
    """Answers at once; what it was sent last is at hand for each thread."""

    provider: ClassVar[str] = "ollama"
    fixed_window: ClassVar[bool] = False
    server_key: ClassVar[str] = "instant"

    def __init__(self) -> None:
        super().__init__()
        self.last: list[Message] = []

    def chat(self, messages: Sequence[Message], *, model: str, **options: Any) -> ChatReply:
        self.last = list(messages)
        answer = ChatReply(
            "An answer in a few words.",
            done_reason="stop",
            prompt_tokens=500,
            output_tokens=8,
            total_duration_ns=1_000_000,
            model=model,
            num_ctx=options.get("num_ctx") or 0,
            num_predict=options.get("num_predict") or 0,
            verdict=Verdict("whole", "instant"),
        )
        self.count(answer)
        return answer

    def fetch_facts(self, model: str) -> ModelFacts:
        return ModelFacts(
            MODEL,
            trained_window=8192,
            capabilities=frozenset({"completion", "tools"}),
            vocab_size=151_936,
            family="llama",
            source="/api/show",
        )

    def models(self) -> list[ModelListing]:
        return [ModelListing(MODEL, chat=True)]

    def can_refuse(self) -> bool:
        return True

    def close(self) -> None:
        pass


def sentence(chance: random.Random, low: int, high: int) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randint(low, high)))


def lines(rows: int, seed: int = 7) -> Iterator[str]:
    """Import lines: so many rows of each kind of memory."""
    chance = random.Random(seed)
    names = [f"{sentence(chance, 1, 2)} {n}".title() for n in range(max(2, rows // 5))]
    for n in range(rows):
        yield json.dumps({"kind": "memory", "text": f"{sentence(chance, 5, 18)} {n}", "created": 1.0})
        yield json.dumps({"kind": "fact", "text": f"{sentence(chance, 5, 18)} {n}"})
        yield json.dumps(
            {"kind": "neuron", "name": f"{sentence(chance, 1, 2)} {n}".title(), "note": sentence(chance, 3, 8)}
        )
    for name in names:
        yield json.dumps({"kind": "entity", "name": name})
    for _ in range(rows):
        one, other = chance.sample(names, 2)
        yield json.dumps(
            {"kind": "edge", "src": one, "relation": "knows", "dst": other, "weight": chance.random() + 0.1}
        )


def settings_of(home: Path) -> Settings:
    """The trace is rotated under the operators, and nothing of it is thrown away."""
    return Settings.load(home, env={}, workspace=str(home.parent), trace_backups=1000)


def filled_home(folder: Path, rows: int) -> Path:
    """A home whose stores hold so many rows of each kind."""
    if rows:
        with Database(database(folder)) as db:
            interchange.import_lines(db, lines(rows))
    return folder


@dataclass
class Worker:
    """One operator with a session and, if ``breaks``, a contributor of its own name that fails in every third turn."""

    number: int
    home: Path
    breaks: bool = False
    seconds: list[float] = field(default_factory=list)
    expected: dict[str, tuple[list[str], list[Message], str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.transport = InstantTransport()
        settings = settings_of(self.home)
        self.operator = RuneOperator(self.transport, MODEL, self.home, settings)
        self.session = Conversation(f"worker-{self.number}")
        self.turn = 0
        self.chance = random.Random(self.number)
        if self.breaks:
            self.operator._context_broker().register(
                self.breaker, self._break, bucket=3, priority=65, evictable=True, source="bench"
            )

    @property
    def breaker(self) -> str:
        return f"breaker {self.number}"

    def _break(self, task: Any, session: Any) -> None:
        if self.turn % 3 == 0:
            raise RuntimeError(f"breaker {self.number} breaks in turn {self.turn}")

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.turn += 1
            task = f"worker {self.number}, turn {self.turn}: {sentence(self.chance, 3, 20)}"
            begun = time.perf_counter()
            response = self.operator.run(task, self.session)
            self.seconds.append(time.perf_counter() - begun)
            degraded = [self.breaker] if self.breaks and self.turn % 3 == 0 else []
            if not response.success or response.degraded != degraded:
                self.wrong.append(f"{task[:30]}: {response.error}, degraded {response.degraded}, expected {degraded}")
            self.expected[response.run_id] = (degraded, self.transport.last, task)


def check(home: Path, workers: Sequence[Worker]) -> list[str]:
    """What is wrong with the records of a home, a sentence each."""
    wrong = [words for worker in workers for words in worker.wrong]
    expected = {run_id: what for worker in workers for run_id, what in worker.expected.items()}
    rows = InferenceTraceStore(home, settings_of(home)).read()
    if rows.skipped or rows.bad_fields:
        wrong.append(f"{rows.skipped} lines of the trace are torn, bad fields: {rows.bad_fields}")
    seen = Counter(row["ext"]["run_id"] for row in rows)
    if set(seen) != set(expected) or max(seen.values(), default=0) > 1:
        wrong.append(f"{len(expected)} runs left {len(rows)} rows of {len(seen)} runs")
    for row in rows:
        degraded, sent, task = expected.get(row["ext"]["run_id"], ([], [], ""))
        if not verify_row(row) or row["degraded"] != degraded or row["capsule_messages"] != sent or not task:
            wrong.append(f"the row of {task[:40]!r} is not its run's: degraded {row['degraded']}")
        elif sent[-1]["content"] != task:
            wrong.append(f"the row of {task[:40]!r} holds another task")
    journal_rows = DurableLog(journal(home)).read()
    kinds = Counter(row["event"] for row in journal_rows)
    if kinds["run_started"] != len(expected) or kinds["run_finished"] != len(expected):
        wrong.append(f"the journal has {dict(kinds)} of {len(expected)} runs")
    return wrong


def run_together(home: Path, operators: int, turns: int) -> tuple[float, list[Worker]]:
    """Runs the operators in threads; turns per second, and the workers."""
    workers = [Worker(n, home, breaks=n % 4 == 1) for n in range(operators)]
    for worker in workers:
        worker.run(1)  # opens what is opened once
    threads = [threading.Thread(target=worker.run, args=(turns - 1,)) for worker in workers]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = operators * (turns - 1) / (time.perf_counter() - begun)
    for worker in workers:
        worker.operator.close()
    return rate, workers


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--operators", type=int, default=64)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1000, help="rows of each kind of memory")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        alone: list[float] = []
        turns = min(2000, asked.operators * asked.turns // 2)

        def one(name: str) -> None:
            rate, (worker,) = run_together(filled_home(Path(folder, name), asked.rows), 1, turns)
            alone.append(rate)
            half = sorted(worker.seconds)[len(worker.seconds) // 2]
            print(f"one operator alone: {rate:.0f} turns/s over {turns} turns, {half * 1000:.2f} ms a turn at p50")

        one("before")
        home = filled_home(Path(folder, "together"), asked.rows)
        cpu = time.process_time()
        rate, workers = run_together(home, asked.operators, asked.turns)
        cpu = time.process_time() - cpu
        print(f"{asked.operators} operators in threads: {rate:.0f} turns/s over {asked.operators * asked.turns} turns")
        print(f"  {cpu / (asked.operators * asked.turns) * 1000:.2f} ms of processor time a turn")
        one("after")
        wrong = check(home, workers)
        print(f"throughput: {rate / (sum(alone) / len(alone)):.2f} of one operator's")
        print(f"records: {len(wrong)} wrong of {asked.operators * asked.turns}")
        for words in wrong[:10]:
            print(f"  {words}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
