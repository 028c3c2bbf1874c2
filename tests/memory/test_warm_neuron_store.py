"""Neurons: mentions warm them, time cools them, and the warmest are found without looking at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from database_helpers import Clock
from rune import subsystem_health
from rune.errors import InvalidInput
from rune.memory import warm_neuron_store as neurons
from rune.storage.database import Database


def state(db: Database) -> list[tuple[object, ...]]:
    with db.read() as connection:
        return connection.execute("SELECT name, mentions, activation, fired, potential FROM neuron").fetchall()


def test_an_empty_store_and_a_cold_one_list_nothing(db: Database, path: Path) -> None:
    assert neurons.list_neurons(db, "tea") is None
    assert not path.parent.parent.exists()
    neurons.add(db, "tea")
    assert neurons.list_neurons(db, "the weather") is None
    assert neurons.list_neurons(db) is None


def test_a_mention_fires_and_the_block_says_so(db: Database) -> None:
    neurons.add(db, "green tea", note="a drink\n## of many")
    neurons.add(db, "Oslo")
    neurons.add(db, "weather")
    assert neurons.list_neurons(db, "Is there green tea?") == (
        "## My neurons (warm, firing)\n- green tea: a drink ## of many (firing)"
    )
    assert neurons.list_neurons(db, "And in OSLO?") == (
        "## My neurons (warm, firing)\n- green tea: a drink ## of many (warm)\n- Oslo (firing)"
    )


def test_activation_rises_with_mentions_and_halves_with_the_half_life(db: Database, clock: Clock) -> None:
    neurons.add(db, "tea")
    levels = [neurons.warmest(db, "tea")[0].activation for _ in range(4)]
    assert levels == pytest.approx([0.5, 0.75, 0.875, 0.9375])
    clock.hours(24)
    assert neurons.warmest(db)[0].activation == pytest.approx(0.46875)
    clock.hours(24)
    assert neurons.warmest(db)[0].activation == pytest.approx(0.234375)
    clock.hours(72)
    assert neurons.warmest(db) == []  # cold
    assert neurons.warmest(db, "tea")[0].activation == pytest.approx(0.5, abs=0.05)


def test_the_warmest_come_first_and_no_more_than_five(db: Database, clock: Clock) -> None:
    for number in range(12):
        neurons.add(db, f"concept{number}")
    for number in range(12):
        neurons.list_neurons(db, f"concept{number}")
        clock.hours(1)
    neurons.list_neurons(db, "concept3")
    assert [neuron.name for neuron in neurons.warmest(db)] == ["concept3", *(f"concept{n}" for n in (11, 10, 9, 8))]
    text = neurons.list_neurons(db)
    assert text is not None
    assert [line.split()[1] for line in text.splitlines()[1:]] == [f"concept{n}" for n in (3, 8, 9, 10, 11)]


def test_time_alone_does_not_change_the_order(db: Database, clock: Clock) -> None:
    for name in ("ash", "birch", "cedar"):
        neurons.add(db, name)
    for task in ("ash ash", "birch", "ash", "cedar birch"):
        neurons.list_neurons(db, task)
        clock.hours(2)
    before = [neuron.name for neuron in neurons.warmest(db)]
    clock.hours(30)
    assert [neuron.name for neuron in neurons.warmest(db)] == before


def test_the_longest_name_is_meant_and_singular_is_plural(db: Database) -> None:
    for name in ("tea", "green tea", "database", "C", "C++", "東京タワー"):
        neurons.add(db, name)
    fired = lambda task: {neuron.name for neuron in neurons.warmest(db, task, 9) if neuron.firing}  # noqa: E731
    assert fired("green teas and databases") == {"green tea", "database"}
    assert fired("C++ is hard") == {"C++"}
    assert fired("東京タワーに行きたい") == {"東京タワー"}
    assert fired("steak") == set()


def test_one_turn_writes_once_and_a_dry_run_never(db: Database, clock: Clock) -> None:
    neurons.add(db, "tea")
    before = state(db)
    dry = neurons.list_neurons(db, "tea tea tea", dry=True)
    assert state(db) == before
    assert neurons.list_neurons(db, "tea tea tea") == dry
    assert state(db) == [("tea", 1, 0.5, clock.now, pytest.approx(-1 + clock.now / 3600 / 24))]


def test_another_half_life_reorders_what_is_stored(db: Database, clock: Clock) -> None:
    for name in ("often", "lately"):
        neurons.add(db, name)
    for _ in range(6):
        neurons.warmest(db, "often")
    clock.hours(10)
    neurons.warmest(db, "lately", half_life_hours=100)
    assert [n.name for n in neurons.warmest(db, half_life_hours=100)] == ["often", "lately"]
    assert [n.name for n in neurons.warmest(db, half_life_hours=2)] == ["lately"]
    neurons.warmest(db, "lately", half_life_hours=2)
    with db.read() as connection:
        assert neurons.half_life(connection) == 2
    assert [n.name for n in neurons.warmest(db, half_life_hours=2)] == ["lately"]
    with pytest.raises(InvalidInput, match="above 0"):
        neurons.warmest(db, half_life_hours=0)


def test_a_clock_that_goes_back_cools_and_warms_nothing(db: Database, clock: Clock) -> None:
    neurons.add(db, "tea")
    neurons.warmest(db, "tea")
    clock.hours(-48)
    assert neurons.warmest(db)[0].activation == pytest.approx(0.5)
    assert neurons.warmest(db, "tea")[0].activation == pytest.approx(0.75)


def test_a_known_name_keeps_its_row_and_gets_the_new_note(db: Database) -> None:
    first = neurons.add(db, "Green Tea", note="a drink")
    assert neurons.add(db, "green teas") == first
    assert neurons.add(db, "green tea", note="hot") == first
    (row,) = neurons.list_rows(db)
    assert (row.name, row.note) == ("Green Tea", "hot")
    assert neurons.forget(db, first) == [first]
    with pytest.raises(InvalidInput, match="no neuron"):
        neurons.forget(db, first)
    with pytest.raises(InvalidInput, match="at least one letter"):
        neurons.add(db, "?!")


def test_a_store_that_cannot_be_written_is_a_recorded_failure_and_is_still_read(db: Database, path: Path) -> None:
    neurons.add(db, "tea")
    with Database(path, readonly=True) as readonly, subsystem_health.turn() as health:
        assert neurons.list_neurons(readonly, "tea") == "## My neurons (warm, firing)\n- tea (firing)"
        assert health.degraded == ["neurons"]
    assert state(db)[0][1] == 0
