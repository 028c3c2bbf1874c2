"""Consolidation: merges what is the same, promotes what comes back, loses nothing, and does nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from database_helpers import Clock
from rune import subsystem_health
from rune.memory import interchange, memory_store
from rune.memory.memory_consolidation import NEW_PER_TURN, MemoryConsolidation, Saved
from rune.memory.memory_writer import level_of
from rune.storage.database import Database


@pytest.fixture
def pipeline(db: Database) -> MemoryConsolidation:
    return MemoryConsolidation(db)


def snapshot(db: Database) -> list[list[tuple[object, ...]]]:
    tables = ("memory", "memory_queue", "term_df", "stat", "setting")
    with db.read() as connection:
        return [connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables]


def changes(db: Database) -> int:
    """A number that grows with every row that is written."""
    with db.read() as connection:
        return int(connection.execute("PRAGMA data_version").fetchone()[0])


def test_an_empty_store_has_no_knowledge_and_makes_no_file(pipeline: MemoryConsolidation, path: Path) -> None:
    assert pipeline.collect("tea") is None
    assert not path.parent.parent.exists()


def test_the_same_said_thrice_becomes_one_and_every_original_stays(
    db: Database, pipeline: MemoryConsolidation, clock: Clock
) -> None:
    for text, source in (("User likes tea", "chat 1"), ("likes tea.", "chat 2"), ("the user likes TEA!", "import")):
        memory_store.add(db, text, source=source)
        clock.now += 10
    assert pipeline._save_knowledge() == Saved(merged=2, promoted=1)
    (standing,) = memory_store.list_memories(db)
    assert (standing.id, standing.text, standing.said, standing.seen) == (1, "User likes tea", 3, 1_000_020.0)
    originals = memory_store.sources(db, 1)
    assert [(row.text, row.source, row.superseded_by) for row in originals] == [
        ("User likes tea", "chat 1", None),
        ("likes tea.", "chat 2", 1),
        ("the user likes TEA!", "import", 1),
    ]
    assert memory_store.get(db, 2) == originals[1]
    assert len(memory_store.list_memories(db, superseded=True)) == 3
    assert [memory.id for memory in memory_store.recall(db, "tea")] == [1]
    assert pipeline.collect("the weather") == "## Consolidated knowledge\n- User likes tea"


def test_later_repetitions_join_the_one_that_stands(db: Database, pipeline: MemoryConsolidation) -> None:
    for said in range(1, 6):
        memory_store.add(db, "User likes tea" + "!" * said)
        pipeline._save_knowledge()
    (standing,) = memory_store.list_memories(db)
    assert (standing.id, standing.said) == (1, 5)
    assert [row.superseded_by for row in memory_store.sources(db, 1)] == [None, 1, 1, 1, 1]


def test_an_older_one_that_comes_by_import_takes_over_with_all_that_stood_for_the_other(
    db: Database, pipeline: MemoryConsolidation
) -> None:
    interchange.import_lines(db, ['{"id": 5, "text": "likes tea"}', '{"id": 6, "text": "likes tea."}'], "memory")
    pipeline._save_knowledge()
    interchange.import_lines(db, ['{"id": 2, "text": "User likes tea"}'], "memory")
    pipeline._save_knowledge()
    assert [(row.id, row.superseded_by) for row in memory_store.sources(db, 2)] == [(2, None), (5, 2), (6, 2)]
    assert memory_store.sources(db, 2)[0].said == 3


def test_different_facts_are_not_merged(db: Database, pipeline: MemoryConsolidation) -> None:
    memory_store.add_many(db, ["code 4711", "code 4712", "likes tea", "likes no tea", "prefers C", "prefers C++"])
    assert pipeline._save_knowledge() == Saved()
    assert len(memory_store.list_memories(db)) == 6


def test_kinds_are_not_merged_and_persona_is_not_promoted(db: Database, pipeline: MemoryConsolidation) -> None:
    memory_store.add(db, "be brief")
    memory_store.add_many(db, ["be brief", "Be brief."], kind="persona")
    assert pipeline._save_knowledge() == Saved(merged=1)
    assert [memory.said for memory in memory_store.list_memories(db, kind="persona")] == [2]
    assert pipeline.collect("x") is None


def test_a_second_run_on_the_same_store_writes_nothing(db: Database, pipeline: MemoryConsolidation, path: Path) -> None:
    memory_store.add_many(db, ["likes tea", "Likes tea", "lives in Oslo", "Likes tea."])
    pipeline.consolidate()
    before = snapshot(db)
    with Database(path, readonly=True) as other:
        version = changes(other)
        for _ in range(3):
            assert pipeline._save_knowledge() == Saved()
            assert pipeline.consolidate() == Saved()
            pipeline.collect("nothing that is recalled")
        assert changes(other) == version
    assert snapshot(db) == before


def test_what_keeps_being_recalled_is_promoted(db: Database, pipeline: MemoryConsolidation, clock: Clock) -> None:
    memory_store.add_many(db, ["User lives in Oslo", "User likes tea"])
    for turn in range(3):
        assert pipeline.collect("the weather") is None, turn
        pipeline.collect("something about Oslo")
        clock.now += 60
    assert pipeline.collect("the weather") == "## Consolidated knowledge\n- User lives in Oslo"
    oslo = memory_store.get(db, 1)
    assert oslo is not None
    assert (oslo.recalls, oslo.recalled) == (3, 1_000_120.0)


def test_what_stands_in_the_memory_block_is_not_said_twice(db: Database, pipeline: MemoryConsolidation) -> None:
    memory_store.add_many(db, ["User lives in Oslo", "lives in Oslo", "Likes tea", "likes tea"])
    pipeline.consolidate()
    assert pipeline.collect("the weather") == "## Consolidated knowledge\n- User lives in Oslo\n- Likes tea"
    assert "Oslo" in str(memory_store.cached_recall(db, "Oslo"))
    assert pipeline.collect("Oslo") == "## Consolidated knowledge\n- Likes tea"


def test_collecting_saves_exactly_once(
    db: Database, pipeline: MemoryConsolidation, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_store.add(db, "likes tea")
    saved = []
    save = MemoryConsolidation._save_knowledge
    monkeypatch.setattr(
        MemoryConsolidation,
        "_save_knowledge",
        lambda self, *recalled: (saved.append(recalled), save(self, *recalled))[1],
    )
    pipeline.collect("tea")
    assert saved == [([1],)]
    pipeline.collect("tea", dry=True)
    assert len(saved) == 1


def test_a_dry_run_changes_nothing_and_reads_the_same(db: Database, pipeline: MemoryConsolidation, path: Path) -> None:
    memory_store.add_many(db, ["likes tea", "likes tea.", "lives in Oslo"])
    pipeline.consolidate()
    memory_store.add(db, "LIKES TEA")
    before = snapshot(db)
    assert pipeline.collect("Oslo", dry=True) == "## Consolidated knowledge\n- likes tea"
    with Database(path, readonly=True) as readonly:
        assert MemoryConsolidation(readonly).collect("Oslo", dry=True) == "## Consolidated knowledge\n- likes tea"
    assert snapshot(db) == before


def test_the_work_of_a_turn_is_bounded_by_what_is_new(db: Database, pipeline: MemoryConsolidation) -> None:
    number = 3 * NEW_PER_TURN + 5
    memory_store.add_many(db, [f"memory number {i}" for i in range(number)])
    runs = 0
    while pipeline._save_knowledge().pending:
        runs += 1
    assert runs == 3
    with db.read() as connection:
        assert connection.execute("SELECT count(*) FROM memory_queue").fetchone() == (0,)


def test_the_result_does_not_hang_on_how_the_work_was_parted(tmp_path: Path) -> None:
    texts = [f"{'The ' * (i % 2)}memory number {i % 40}{'.' * (i % 3)}" for i in range(300)]
    dumps = []
    for place, at_once in enumerate((300, 7, 1)):
        with Database(tmp_path / str(place) / "rune.sqlite3", clock=lambda: 5.0) as db:
            pipeline = MemoryConsolidation(db)
            for start in range(0, 300, at_once):
                memory_store.add_many(db, texts[start : start + at_once])
                if at_once < 300:
                    pipeline._save_knowledge()
            pipeline.consolidate()
            dumps.append(list(interchange.export_lines(db)))
    assert dumps[0] == dumps[1] == dumps[2]


def test_forgetting_takes_the_originals_along(db: Database, pipeline: MemoryConsolidation) -> None:
    memory_store.add_many(db, ["likes tea", "likes tea.", "lives in Oslo", "Likes tea"])
    pipeline.consolidate()
    assert memory_store.forget(db, 4) == [1, 2, 4]
    assert [memory.text for memory in memory_store.list_memories(db, superseded=True)] == ["lives in Oslo"]
    assert pipeline.collect("x") is None
    pipeline.consolidate()


def test_knowledge_is_the_best_established_in_stable_order(db: Database, pipeline: MemoryConsolidation) -> None:
    for number in range(8):
        memory_store.add_many(db, [f"topic {number}"] * (2 + 6 * (number % 3)))
    pipeline.consolidate()
    text = pipeline.knowledge()
    assert text == "## Consolidated knowledge\n" + "\n".join(f"- topic {number}" for number in (1, 2, 4, 5, 7))
    assert [level_of(said, recalls) for said, recalls in ((1, 0), (1, 2), (1, 3), (2, 0), (3, 0), (5, 0), (1, 12))] == [
        0,
        0,
        1,
        1,
        2,
        3,
        3,
    ]


def test_a_store_that_cannot_be_written_is_a_recorded_failure_and_is_still_read(db: Database, path: Path) -> None:
    memory_store.add_many(db, ["likes tea", "likes tea.", "lives in Oslo"])
    MemoryConsolidation(db).consolidate()
    with Database(path, readonly=True) as readonly, subsystem_health.turn() as health:
        text = MemoryConsolidation(readonly).collect("Oslo")
        assert text == "## Consolidated knowledge\n- likes tea"
        assert health.degraded == ["consolidated"]
