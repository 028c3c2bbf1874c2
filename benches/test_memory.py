"""The stores of a turn beside what one would write first: FTS5's own ranking, LIKE over the table, a look at every name.

Sizes: 1,000 rows of each kind, and 100,000 memories with 50,000 edges, 10,000 neurons and 20,000 facts (2,000 rows and fewer
where benches run as tests). 200 varied tasks go round and round; every call hears another one, so nothing comes from the cache.
"""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rune.memory import abstraction, graph_memory, interchange, memory_store, model_profiles, warm_neuron_store
from rune.memory.memory_consolidation import MemoryConsolidation
from rune.memory.terms import query_terms
from rune.storage.database import Database

SYLLABLES = (
    "a an ar ba bel bor ca cel con da del dor e en er fa fen fi ga gor ha hel i in is ka kel la len li lo ma mar men mi na ne"
    " nor o on or pa per pol ra re ri ro sa sel sen si so ta ten ter ti to tra u un ur va ver vi vo wa wen za zo"
)
RELATIONS = ("lives in", "works with", "knows", "owns", "wrote", "is part of", "leads to", "replaces")
FACTS = {"family": "qwen3", "parameter_size": "8.2B", "quantization": "Q4_K_M", "trained_window": 40960}


class Language:
    """Words of one to four syllables; the n-th commonest is about 1/n as frequent as the first."""

    def __init__(self, seed: int = 7, words: int = 30_000) -> None:
        self.random = random.Random(seed)
        syllables = SYLLABLES.split()
        found: dict[str, None] = {}
        while len(found) < words:
            found["".join(self.random.choices(syllables, k=self.random.choice((1, 2, 2, 3, 3, 3, 4))))] = None
        self.words = list(found)
        self._weights = list(itertools.accumulate(1 / (rank + 2) for rank in range(words)))

    def text(self, low: int, high: int) -> str:
        """A sentence of ``low`` to ``high`` words."""
        return " ".join(self.random.choices(self.words, cum_weights=self._weights, k=self.random.randint(low, high)))

    def name(self) -> str:
        """A name of one to three of the rarer words."""
        return " ".join(self.random.choices(self.words[500:], k=self.random.choice((1, 1, 2, 2, 3)))).title()

    def lines(self, memories: int, edges: int, neurons: int, facts: int) -> Iterator[str]:
        """Import lines of that many rows; the edges lie between a fifth as many entities."""
        for _ in range(memories):
            yield json.dumps({"kind": "memory", "text": self.text(5, 20), "created": 1.0, "source": "bench"})
        for _ in range(min(200, memories)):
            yield json.dumps({"kind": "persona", "text": self.text(5, 15)})
        for _ in range(facts):
            yield json.dumps({"kind": "fact", "text": self.text(5, 20)})
        names = list({self.name(): None for _ in range(max(2, edges // 5))})
        for name in names:
            yield json.dumps({"kind": "entity", "name": name, "aliases": [self.name()]})
        for _ in range(edges):
            src, dst = self.random.choices(names, k=2)
            weight = self.random.random() + 0.1
            relation = self.random.choice(RELATIONS)
            yield json.dumps({"kind": "edge", "src": src, "relation": relation, "dst": dst, "weight": weight})
        for name in {self.name(): None for _ in range(neurons)}:
            yield json.dumps({"kind": "neuron", "name": name, "note": self.text(3, 8)})

    def tasks(self, number: int = 200) -> list[str]:
        """Tasks of a few words up to several paragraphs, each with a name."""
        lengths = itertools.cycle(((3, 12), (8, 25), (5, 15), (20, 60), (3, 12), (8, 25), (30, 80), (100, 300)))
        return [f"{self.text(*next(lengths))} {self.name()} {self.text(2, 5)}?" for _ in range(number)]


class Stores:
    """A filled database and the tasks, of which every call of ``task`` gives the next."""

    def __init__(self, path: str, sizes: tuple[int, int, int, int]) -> None:
        language = Language()
        self.db = Database(path)
        interchange.import_lines(self.db, language.lines(*sizes))
        self.pipeline = MemoryConsolidation(self.db)
        self.pipeline.consolidate()
        self.facts = abstraction.connect(self.db)
        self.tasks = language.tasks()
        self._turn = itertools.count()

    def task(self) -> str:
        turn = next(self._turn)
        return f"{self.tasks[turn % len(self.tasks)]} turn{turn}"

    def all_blocks(self) -> list[str | None]:
        """What the seven contributors that stand on stores do in one turn, writes included."""
        task = self.task()
        return [
            memory_store.cached_recall(self.db, task),
            memory_store.cached_recall(self.db, memory_store.PERSONA_QUERY, kind="persona"),
            self.pipeline.collect(task),
            warm_neuron_store.list_neurons(self.db, task),
            graph_memory.resolve_entity(self.db, task),
            self.facts.facts(task),
            model_profiles.get_prompt_context("qwen3:8b", FACTS),
        ]


def measuring(config: pytest.Config) -> bool:
    return bool(config.getoption("benchmark_enable") or not config.getoption("benchmark_disable"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stores]:
    rows = 1000 if measuring(request.config) else 100
    stores = Stores(str(tmp_path_factory.mktemp("small") / "rune.sqlite3"), (rows, rows, rows, rows))
    yield stores
    stores.db.close()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stores]:
    sizes = (100_000, 50_000, 10_000, 20_000) if measuring(request.config) else (2000, 500, 200, 400)
    stores = Stores(str(tmp_path_factory.mktemp("large") / "rune.sqlite3"), sizes)
    yield stores
    stores.db.close()


@pytest.fixture(scope="module")
def plain(large: Stores) -> Iterator[sqlite3.Connection]:
    """The same memories and facts as one would store them first."""
    with large.db.read() as connection:
        memories = connection.execute("SELECT id, text FROM memory WHERE kind = 'memory'").fetchall()
        facts = connection.execute("SELECT text FROM fact").fetchall()
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE VIRTUAL TABLE memory USING fts5(text)")
    connection.executemany("INSERT INTO memory (rowid, text) VALUES (?, ?)", memories)
    connection.execute("CREATE TABLE fact (text)")
    connection.executemany("INSERT INTO fact VALUES (?)", facts)
    yield connection
    connection.close()


@pytest.mark.benchmark(group="memory: all stores of a turn, 1,000 rows of each kind")
def test_turn_small(benchmark: Any, small: Stores) -> None:
    assert any(benchmark.pedantic(small.all_blocks, rounds=200, warmup_rounds=20))


@pytest.mark.benchmark(group="memory: all stores of a turn, 180,000 rows")
def test_turn_large(benchmark: Any, large: Stores) -> None:
    assert any(benchmark.pedantic(large.all_blocks, rounds=200, warmup_rounds=20))


@pytest.mark.benchmark(group="memory: recall over 100,000 memories")
def test_recall(benchmark: Any, large: Stores) -> None:
    benchmark.pedantic(lambda: memory_store.cached_recall(large.db, large.task()), rounds=200, warmup_rounds=10)


@pytest.mark.benchmark(group="memory: recall over 100,000 memories")
def test_recall_kept(benchmark: Any, large: Stores) -> None:
    task = large.task()
    memory_store.cached_recall(large.db, task)
    benchmark(memory_store.cached_recall, large.db, task)


@pytest.mark.benchmark(group="memory: recall over 100,000 memories")
def test_recall_by_fts5_rank(benchmark: Any, large: Stores, plain: sqlite3.Connection) -> None:
    def recall() -> list[Any]:
        question = " OR ".join(f'"{term}"' for term in query_terms(large.task())[0])
        return plain.execute(
            "SELECT text FROM memory WHERE memory MATCH ? ORDER BY rank LIMIT 3", (question,)
        ).fetchall()

    benchmark.pedantic(recall, rounds=20, warmup_rounds=1)


@pytest.mark.benchmark(group="memory: facts among 20,000")
def test_facts(benchmark: Any, large: Stores) -> None:
    benchmark.pedantic(lambda: large.facts.facts(large.task()), rounds=200, warmup_rounds=10)


@pytest.mark.benchmark(group="memory: facts among 20,000")
def test_facts_by_like_over_the_table(benchmark: Any, large: Stores, plain: sqlite3.Connection) -> None:
    def facts() -> list[Any]:
        words = [f"%{term}%" for term in query_terms(large.task())[0][:4]]
        scored = " + ".join("(text LIKE ?)" for _ in words)
        return plain.execute(
            f"SELECT text, {scored} AS n FROM fact WHERE n > 0 ORDER BY n DESC LIMIT 3", words
        ).fetchall()

    benchmark.pedantic(facts, rounds=20, warmup_rounds=1)


@pytest.mark.benchmark(group="memory: names in a task, 10,000 stored")
def test_neurons_dry(benchmark: Any, large: Stores) -> None:
    benchmark.pedantic(
        lambda: warm_neuron_store.list_neurons(large.db, large.task(), dry=True), rounds=200, warmup_rounds=10
    )


@pytest.mark.benchmark(group="memory: names in a task, 10,000 stored")
def test_names_by_trying_each(benchmark: Any, large: Stores) -> None:
    with large.db.read() as connection:
        names = [row[0].lower() for row in connection.execute("SELECT name FROM neuron")]

    def look() -> list[str]:
        task = large.task().lower()
        return [name for name in names if name in task]

    benchmark.pedantic(look, rounds=50, warmup_rounds=1)


def importing(benchmark: Any, tmp_path_factory: pytest.TempPathFactory, rows: list[str], kind: str) -> None:
    def fresh() -> tuple[tuple[Database, list[str], str], dict[str, Any]]:
        return (Database(tmp_path_factory.mktemp("import") / "rune.sqlite3"), rows, kind), {}

    def run(db: Database, lines: list[str], kind: str) -> int:
        with db:
            return interchange.import_lines(db, lines, kind).added

    benchmark.extra_info["rows"] = len(rows)
    assert benchmark.pedantic(run, setup=fresh, rounds=3) == len(rows)


@pytest.mark.parametrize("kind", ["memory", "fact", "edge", "neuron"])
@pytest.mark.benchmark(group="memory: import of 20,000 lines")
def test_import(
    benchmark: Any, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, kind: str
) -> None:
    number = 20_000 if measuring(request.config) else 200
    language = Language(11)
    names = [language.name() for _ in range(max(2, number // 5))]
    make: dict[str, Callable[[int], dict[str, Any]]] = {
        "memory": lambda n: {"text": language.text(5, 20)},
        "fact": lambda n: {"text": language.text(5, 20)},
        "edge": lambda n: {
            "src": names[n % len(names)],
            "relation": f"{RELATIONS[n % 8]} {n}",
            "dst": names[n * 7 % len(names)],
        },
        "neuron": lambda n: {"name": f"{language.name()} {n}"},
    }
    importing(benchmark, tmp_path_factory, [json.dumps(make[kind](n)) for n in range(number)], kind)


@pytest.mark.benchmark(group="memory: import of 20,000 lines")
def test_import_into_plain_fts5(
    benchmark: Any, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    language = Language(11)
    number = 20_000 if measuring(request.config) else 200
    rows = [json.dumps({"text": language.text(5, 20)}) for _ in range(number)]

    def run() -> None:
        connection = sqlite3.connect(tmp_path_factory.mktemp("plain") / "plain.sqlite3")
        connection.execute("CREATE TABLE memory (id INTEGER PRIMARY KEY, text)")
        connection.execute("CREATE VIRTUAL TABLE found USING fts5(text, content='memory', content_rowid='id')")
        texts = [(json.loads(row)["text"],) for row in rows]
        connection.executemany("INSERT INTO memory (text) VALUES (?)", texts)
        connection.execute("INSERT INTO found (found) VALUES ('rebuild')")
        connection.commit()
        connection.close()

    benchmark.pedantic(run, rounds=3)
