"""Import and export: nothing lost either way, all or nothing, and a wrong line named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from database_helpers import Clock
from rune.errors import InvalidInput, StorageError
from rune.memory import abstraction, graph_memory, interchange, kinds, memory_store, warm_neuron_store
from rune.memory.interchange import export_lines, import_lines
from rune.memory.memory_consolidation import MemoryConsolidation
from rune.storage.database import Database
from rune.storage.repair import inspect


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "other" / "state" / "rune.sqlite3", clock=lambda: 5.0) as found:
        yield found


def fill(db: Database, clock: Clock) -> None:
    """Every kind, with counts, supersessions, aliases, activations and odd text."""
    memory_store.add_many(
        db, ["User likes tea", "likes tea.", "lives in Oslo\n## x", "sehr schön", "nul \0 rtl \u202e"], source="chat"
    )
    clock.now += 0.123456789
    memory_store.add_many(db, ["Be brief", "BE BRIEF"], kind="persona")
    pipeline = MemoryConsolidation(db)
    for _ in range(4):
        pipeline.collect("Oslo")
        clock.hours(1.7)
    memory_store.forget(db, memory_store.add(db, "gone"))
    for text in ("Tea is 100% green", "京都は古い都です"):
        abstraction.connect(db).add(text, source="book")
    graph_memory.add_entity(db, "Anna Karenina", aliases=["Anya", "A. K."], of_type="person")
    graph_memory.add_edge(db, "Anya", "lives in", "Moscow", weight=0.1)
    graph_memory.add_edge(db, "Anya", "lives in", "Moscow", weight=0.2)
    for name in ("tea", "never mentioned"):
        warm_neuron_store.add(db, name, note="note")
    warm_neuron_store.list_neurons(db, "tea")


def test_an_empty_store_exports_nothing_and_importing_nothing_makes_no_file(db: Database, path: Path) -> None:
    assert list(export_lines(db)) == []
    assert import_lines(db, []) == interchange.Imported()
    assert import_lines(db, ["", "  \n"]) == interchange.Imported()
    assert not path.parent.parent.exists()


def test_the_round_trip_loses_nothing(db: Database, other: Database, clock: Clock) -> None:
    fill(db, clock)
    lines = list(export_lines(db))
    assert all("\n" not in line for line in lines)
    assert {json.loads(line)["kind"] for line in lines} == set(kinds.KINDS)
    report = import_lines(other, lines)
    assert (report.added, report.unchanged, report.renumbered) == (len(lines), 0, 0)
    assert list(export_lines(other)) == lines
    assert inspect(other.path).state == "ok"


def test_an_imported_store_answers_as_the_one_it_came_from(db: Database, other: Database, clock: Clock) -> None:
    fill(db, clock)
    import_lines(other, export_lines(db))
    other.clock = clock
    for task in ("tea", "Oslo", "京都", "Anya", "schon"):
        for ask in (
            memory_store.cached_recall,
            graph_memory.resolve_entity,
            lambda db, task: MemoryConsolidation(db).collect(task, dry=True),
            lambda db, task: warm_neuron_store.list_neurons(db, task, dry=True),
            lambda db, task: abstraction.connect(db).facts(task),
        ):
            assert ask(other, task) == ask(db, task)


def test_importing_twice_changes_nothing(db: Database, other: Database, clock: Clock) -> None:
    fill(db, clock)
    lines = list(export_lines(db))
    import_lines(other, lines)
    report = import_lines(other, lines)
    assert (report.added, report.unchanged) == (0, len(lines))
    assert list(export_lines(other)) == lines


def test_taken_ids_give_way_and_references_follow(db: Database, other: Database) -> None:
    memory_store.add_many(other, [f"already here {number}" for number in range(4)])
    abstraction.connect(other).add("a fact that was here")
    memory_store.add_many(db, ["likes tea", "likes tea.", "Likes tea!"])
    MemoryConsolidation(db).consolidate()
    abstraction.connect(db).add("a fact from elsewhere")
    report = import_lines(other, export_lines(db))
    assert (report.added, report.renumbered) == (4, 4)
    found = memory_store.search(other, "tea")[0]
    assert found.id == 5
    assert [(row.id, row.text) for row in memory_store.sources(other, 5)] == [
        (5, "likes tea"),
        (6, "likes tea."),
        (7, "Likes tea!"),
    ]
    again = list(export_lines(other))
    with Database(other.path.with_name("third.sqlite3")) as third:
        import_lines(third, again)
        assert list(export_lines(third)) == again


def test_one_kind_at_a_time_and_lines_without_their_kind(db: Database, other: Database, clock: Clock) -> None:
    fill(db, clock)
    for kind in kinds.KINDS:
        lines = list(export_lines(db, kind))
        assert lines
        bare = [json.dumps({k: v for k, v in json.loads(line).items() if k != "kind"}) for line in lines]
        assert import_lines(other, bare, kind).by_kind == {kind: len(lines)}
        assert list(export_lines(other, kind)) == lines
    report = import_lines(other, ['{"text": "just this"}'], "persona")
    assert report.added == 1
    assert memory_store.list_memories(other, kind="persona")[0].created == 5.0
    with pytest.raises(InvalidInput, match="'facts' is no kind"):
        list(export_lines(db, "facts"))
    with pytest.raises(InvalidInput, match="'facts' is no kind"):
        import_lines(db, [], "facts")


def test_lines_may_be_bytes_with_a_mark_and_other_line_ends(db: Database) -> None:
    lines = [b'\xef\xbb\xbf{"text": "one"}\r\n', b"\r\n", '{"text": "zwei \u00e4"}\n', b'{"text": "\\ud800 three"}']
    assert import_lines(db, lines, "memory").added == 3
    assert {memory.text for memory in memory_store.list_memories(db)} == {"one", "zwei ä", "\ufffd three"}


BAD = [
    ("not json", "memory"),
    ('{"text": "x"', "memory"),
    ('["text"]', "memory"),
    ("null", None),
    ('{"text": "x"}', None),
    ('{"kind": "fact", "text": "x"}', "memory"),
    ('{"kind": "weather", "text": "x"}', None),
    ("{}", "memory"),
    ('{"text": 3}', "memory"),
    ('{"text": "  "}', "memory"),
    ('{"text": "x", "colour": "red"}', "memory"),
    ('{"text": "x", "said": 0}', "memory"),
    ('{"text": "x", "id": 0}', "memory"),
    ('{"text": "x", "id": 1.5}', "memory"),
    ('{"text": "x", "created": "yesterday"}', "memory"),
    ('{"text": "x", "created": NaN}', "memory"),
    ('{"text": "x", "superseded_by": 77}', "memory"),
    ('{"text": "x", "id": 1}', "memory"),
    (b'{"text": "\xff"}', "memory"),
    ('{"text": ""}', "fact"),
    ('{"name": "!?"}', "entity"),
    ('{"name": "x", "aliases": ["--"]}', "entity"),
    ('{"src": "a", "relation": " ", "dst": "b"}', "edge"),
    ('{"src": "a", "relation": "r", "dst": "b", "weight": 0}', "edge"),
    ('{"src": "a", "relation": "r"}', "edge"),
    ('{"name": "x", "activation": 1.5}', "neuron"),
    (json.dumps({"name": "w " * 33}), "neuron"),
    (json.dumps({"text": "x" * 100_001}), "fact"),
]


@pytest.mark.parametrize(("line", "kind"), BAD)
def test_a_bad_line_is_named_and_nothing_is_written(
    db: Database, path: Path, line: str | bytes, kind: str | None
) -> None:
    good = '{"kind": "memory", "text": "good", "id": 1}'
    first = [good] if kind in (None, "memory") else [""]
    with pytest.raises(InvalidInput, match=r"line 2501: .*Nothing was imported") as caught:
        import_lines(db, [*first, *[""] * 2499, line, good], kind)
    assert "Traceback" not in str(caught.value)
    assert not path.exists()


def test_a_store_that_fails_half_way_has_nothing_of_the_import(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    memory_store.add(db, "before")

    def fail(done: int) -> None:
        if done >= 2 * interchange.PORTION:
            raise StorageError("the disk went away")

    lines = [json.dumps({"kind": "memory", "text": f"memory {number}"}) for number in range(3 * interchange.PORTION)]
    with pytest.raises(StorageError, match="went away"):
        import_lines(db, lines, progress=fail)
    assert [memory.text for memory in memory_store.list_memories(db, limit=9)] == ["before"]
    assert inspect(db.path).state == "ok"
    assert import_lines(db, lines).added == len(lines)


def test_progress_is_told(db: Database) -> None:
    told: list[int] = []
    lines = [json.dumps({"text": f"memory {number}"}) for number in range(interchange.PORTION + 5)]
    import_lines(db, iter(lines), "memory", told.append)
    assert told == [interchange.PORTION, interchange.PORTION + 5]


def test_an_import_that_waits_for_its_lines_holds_up_nobody(db: Database, path: Path) -> None:
    def slowly() -> Iterator[str]:
        yield '{"text": "first"}'
        with Database(path, timeout=0.2) as another:
            memory_store.add(another, "meanwhile")
        yield '{"text": "second"}'

    import_lines(db, slowly(), "memory")
    assert [memory.text for memory in memory_store.list_memories(db)] == ["second", "first", "meanwhile"]


def test_an_export_stands_on_one_snapshot(db: Database) -> None:
    memory_store.add_many(db, [f"memory {number}" for number in range(50)])
    exported = export_lines(db)
    first = next(exported)
    memory_store.forget(db, 40)
    memory_store.add(db, "later")
    assert len([first, *exported]) == 50


def test_a_huge_id_cannot_use_up_the_numbers(db: Database) -> None:
    for kind, line in (
        ("memory", {"text": "x"}),
        ("fact", {"text": "x"}),
        ("entity", {"name": "x"}),
        ("neuron", {"name": "x"}),
    ):
        report = import_lines(db, [json.dumps({**line, "id": (1 << 53) - 1})], kind)
        assert report.renumbered == 1
        assert kinds.add(db, kind, "another one") == 2


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40).filter(lambda text: text.strip())
TIMES = st.floats(0, 4e9)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.fixed_dictionaries(
            {"kind": st.sampled_from(["memory", "persona", "fact"]), "text": TEXTS, "created": TIMES},
            optional={"source": TEXTS},
        ),
        max_size=20,
    )
)
def test_whatever_comes_in_goes_out_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    with Database(folder / "a" / "a.sqlite3") as one, Database(folder / "b" / "b.sqlite3") as two:
        import_lines(one, map(json.dumps, rows))
        lines = list(export_lines(one))
        import_lines(two, lines)
        assert list(export_lines(two)) == lines
    out = [json.loads(line) for line in lines]
    for kind in ("memory", "persona", "fact"):
        given_rows = [(row["text"], row["created"], row.get("source", "")) for row in rows if row["kind"] == kind]
        assert [
            (row["text"], row["created"], row.get("source", "")) for row in out if row["kind"] == kind
        ] == given_rows
    assert msgspec.json.decode(f"[{','.join(lines)}]") == out
