"""Every store against task texts that try to break it: the planted row still comes first, and nothing else happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attacks_data import ATTACKS
from rune.memory import abstraction, graph_memory, memory_store, warm_neuron_store
from rune.memory.memory_consolidation import MemoryConsolidation
from rune.storage.database import Database
from rune.storage.repair import inspect

WORD = "zeppelin"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A store of each kind with ordinary rows and one that has the word."""
    path: Path = tmp_path_factory.mktemp("attacks") / "state" / "rune.sqlite3"
    ordinary = [
        *(
            "the harbour opens at nine",
            "Oslo is cold in winter",
            "bob keeps bees",
            "no milk today",
            "trains leave hourly",
        ),
        *(
            "猫が好きだ",
            "我住在北京",
            "ฉันชอบแมว",
            "मुझे चाय पसंद",
            "고양이를 좋아해요",
            "Кошки спят днём",
            "قهوة الصباح",
        ),
    ]
    with Database(path) as db:
        for place, text in enumerate([*ordinary * 20, f"the {WORD} over the sea", *ordinary * 20]):
            memory_store.add(db, f"{text} {'' if WORD in text else f'item{place:03}x'}")
        memory_store.add_many(db, [f"the {WORD} speaks", *ordinary], kind="persona")
        facts = abstraction.connect(db)
        for text in (*ordinary, f"{WORD}s are filled with gas", *(f"bees in hive{number:02}x" for number in range(50))):
            facts.add(text)
        graph_memory.add_edge(db, WORD, "is filled with", "gas")
        graph_memory.add_edge(db, "Oslo", "lies in", "Norway")
        for name in ("coffee", WORD, "unmentioned"):
            warm_neuron_store.add(db, name)
        MemoryConsolidation(db).consolidate()
        yield db


def test_there_are_fifty_of_them() -> None:
    assert len(ATTACKS) == 50


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_the_planted_row_comes_first(planted: Database, attack: str) -> None:
    task = attack.format(*[WORD] * 9)
    assert WORD in memory_store.recall(planted, task)[0].text
    assert WORD in memory_store.recall(planted, task, kind="persona")[0].text
    assert WORD in str(memory_store.cached_recall(planted, task))
    assert WORD in abstraction.connect(planted).search(task)[0].text
    assert graph_memory.connections(planted, task)[0].src == WORD
    assert warm_neuron_store.warmest(planted, task)[0].name == WORD
    text = MemoryConsolidation(planted).collect(task)
    assert text is None or text.startswith("## Consolidated knowledge\n- ")


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_the_attack_itself_can_be_stored_and_found(tmp_path: Path, attack: str) -> None:
    text = attack.format(*[WORD] * 9)[:90_000]
    if WORD not in text:
        text = f"{WORD} {text}"
    with Database(tmp_path / "state" / "rune.sqlite3") as db:
        memory_store.add(db, text, source=text[:100])
        abstraction.connect(db).add(text)
        assert len(memory_store.recall(db, WORD)) == len(abstraction.connect(db).search(WORD)) == 1
        for block in (memory_store.cached_recall(db, WORD), abstraction.connect(db).facts(WORD)):
            assert block is not None
            assert len(block.splitlines()) == 2
            block.encode("utf-8")
        memory_store.forget(db, 1)
        abstraction.connect(db).forget(1)
    assert inspect(tmp_path / "state" / "rune.sqlite3").state == "ok"


def test_the_stores_are_whole_afterwards(planted: Database) -> None:
    condition = inspect(planted.path)
    assert (condition.state, condition.detail) == ("ok", "")
