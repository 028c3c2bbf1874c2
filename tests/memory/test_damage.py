"""Every store with every kind of trouble: a clear error for each, nothing silently replaced, and the turn can go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from database_helpers import HOLD, WAYS, damage, running
from rune import subsystem_health
from rune.errors import StorageError
from rune.memory import abstraction, graph_memory, interchange, kinds, memory_store, warm_neuron_store
from rune.memory.memory_consolidation import MemoryConsolidation
from rune.storage.database import Database
from rune.storage.repair import repair

Read = Callable[[Database], object]

READS: dict[str, Read] = {
    "memory": lambda db: memory_store.cached_recall(db, "tea"),
    "persona_memories": lambda db: memory_store.cached_recall(db, memory_store.PERSONA_QUERY, kind="persona"),
    "consolidated": lambda db: MemoryConsolidation(db).collect("tea"),
    "neurons": lambda db: warm_neuron_store.list_neurons(db, "tea"),
    "graphs": lambda db: graph_memory.resolve_entity(db, "tea"),
    "abstraction": lambda db: abstraction.connect(db).facts("tea"),
}
TEXTS = {kind: "tea -> grows in -> China" if kind == "edge" else "tea" for kind in kinds.KINDS}


def fill(db: Database) -> None:
    for kind, text in TEXTS.items():
        kinds.add(db, kind, text)
    memory_store.add_many(db, ["Standing knowledge", "standing knowledge"])
    MemoryConsolidation(db).consolidate()


def test_every_store_says_something_when_all_is_well(db: Database) -> None:
    fill(db)
    for name, read in READS.items():
        assert read(db), name


@pytest.mark.parametrize("how", WAYS)
def test_a_damaged_database_is_a_storage_error_from_every_store(path: Path, how: str) -> None:
    with Database(path) as db:
        fill(db)
    damage(path, how)
    before = path.read_bytes()
    with Database(path) as db:
        for name, read in READS.items():
            with pytest.raises(StorageError, match="rune doctor --repair"):
                read(db)
            assert path.read_bytes() == before, name
        for kind, text in TEXTS.items():
            for act in (
                lambda: kinds.add(db, kind, text),  # noqa: B023
                lambda: kinds.list_rows(db, kind),  # noqa: B023
                lambda: kinds.search(db, kind, "tea"),  # noqa: B023
                lambda: kinds.forget(db, kind, 1),  # noqa: B023
                lambda: list(interchange.export_lines(db, kind)),  # noqa: B023
            ):
                with pytest.raises(StorageError):
                    act()
        with pytest.raises(StorageError):
            interchange.import_lines(db, ['{"text": "x"}'], "memory")
    assert path.read_bytes() == before
    repair(path)
    with Database(path) as db:
        fill(db)
        for name, read in READS.items():
            assert read(db), name


def test_a_database_locked_for_longer_than_the_timeout_is_read_all_the_same(path: Path) -> None:
    with Database(path, timeout=0.1) as db:
        fill(db)
        with running(HOLD, path), subsystem_health.turn() as health:
            for name, read in READS.items():
                assert read(db), name
            assert health.degraded == ["consolidated", "neurons"]  # what they learned this turn was not kept
            for kind, text in TEXTS.items():
                with pytest.raises(StorageError, match="Another writer"):
                    kinds.add(db, kind, text)
        with subsystem_health.turn() as health:
            for read in READS.values():
                assert read(db)
            assert health.degraded == []


def test_a_file_in_the_place_of_the_folder_is_a_storage_error_from_every_store(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    with Database(tmp_path / "state" / "rune.sqlite3") as db:
        for read in READS.values():
            with pytest.raises(StorageError, match="Check that its folder"):
                read(db)
    assert (tmp_path / "state").read_text() == "in the way"


def test_an_absent_database_says_nothing_and_makes_nothing(path: Path) -> None:
    with Database(path) as db:
        for name, read in READS.items():
            assert read(db) is None, name
    assert not path.parent.parent.exists()
