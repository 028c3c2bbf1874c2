"""Facts looked up by LIKE."""

from __future__ import annotations

from pathlib import Path

import pytest

from rune.errors import InvalidInput
from rune.memory import abstraction
from rune.storage.database import Database


@pytest.fixture
def facts(db: Database) -> abstraction.Abstraction:
    return abstraction.connect(db)


def test_an_empty_store_says_nothing_and_makes_nothing(facts: abstraction.Abstraction, path: Path) -> None:
    assert facts.facts("tea") is None
    assert facts.search("tea") == facts.list() == []
    assert not path.parent.parent.exists()


def test_the_three_best_in_the_order_of_ids(facts: abstraction.Abstraction) -> None:
    for text in (
        "Water boils at 100 degrees",
        "Tea needs hot water",
        "Ice is cold water",
        "Water is wet",
        "Oslo is cold",
    ):
        facts.add(text)
    text = facts.facts("hot water for tea")
    assert text is not None
    assert text.splitlines()[0] == "## My learned knowledge"
    assert len(text.splitlines()) == 4
    assert facts.search("hot water for tea")[0].text == "Tea needs hot water"
    shown = [line[2:] for line in text.splitlines()[1:]]
    assert shown == [fact.text for fact in sorted(facts.search("hot water for tea", 3), key=lambda fact: fact.id)]


@pytest.mark.parametrize(
    ("task", "found"),
    [
        ("data", "The database is on port 5432"),  # a beginning
        ("the table", "Timetables hang at the station"),  # inside
        ("databases", "The database is on port 5432"),  # a stem
        ("5432", "The database is on port 5432"),
        ("go", "Go is a game"),  # shorter than a trigram
        ("MÖBIUS", "Mobius strips have one side"),
        ("京都", "京都は古い都です"),  # a pair
        ("都", "京都は古い都です"),  # one character
        ("हिन्दी", "हिन्दी एक भाषा है"),
    ],
)
def test_words_their_beginnings_and_parts_are_found(facts: abstraction.Abstraction, task: str, found: str) -> None:
    for text in (
        "The database is on port 5432",
        "Timetables hang at the station",
        "Go is a game",
        "Mobius strips have one side",
        "京都は古い都です",
        "हिन्दी एक भाषा है",
        "Nothing of the kind",
    ):
        facts.add(text)
    assert facts.search(task)[0].text == found


def test_a_whole_word_beats_a_beginning_and_a_beginning_beats_an_inside(facts: abstraction.Abstraction) -> None:
    for text in ("A steak is meat", "The teapot is blue", "Some tea is green"):
        facts.add(text)
    assert [fact.text for fact in facts.search("tea")] == ["Some tea is green", "The teapot is blue", "A steak is meat"]


def test_wildcards_of_a_task_are_no_wildcards(facts: abstraction.Abstraction) -> None:
    facts.add("The cat sat on the mat")
    for task in ("%", "_", "c_t", "%%%", "c%t", "'; DROP TABLE fact; --", '"', "\\", "c*t"):
        assert facts.facts(task) is None, task
    assert facts.facts("cat") is not None


def test_of_equal_facts_the_latest_comes_first(facts: abstraction.Abstraction) -> None:
    ids = [facts.add(f"tea number {word}") for word in ("one", "two", "three")]
    assert [fact.id for fact in facts.search("tea")] == ids[::-1]


def test_a_rare_word_counts_more_than_a_common_one(facts: abstraction.Abstraction) -> None:
    rare = facts.add("tea in zanzibar")
    for number in range(30):
        facts.add(f"tea fact {number}")
    assert facts.search("tea zanzibar")[0].id == rare


def test_a_fact_is_stored_once(facts: abstraction.Abstraction) -> None:
    first = facts.add("Tea is green", source="a")
    assert facts.add("Tea is green", source="b") == first
    assert facts.add("tea is GREEN") != first
    assert len(facts.list()) == 2


def test_forgetting_leaves_no_word_in_the_files(facts: abstraction.Abstraction, path: Path) -> None:
    for number in range(300):
        facts.add(f"fact number {number}")
    secret = facts.add("the password is xyzzyplugh")
    assert any(b"xyzzyplugh" in file.read_bytes() for file in path.parent.iterdir())
    assert facts.forget(secret) == [secret]
    assert facts.facts("xyzzyplugh") is None
    for file in path.parent.iterdir():
        assert b"xyzzyplugh" not in file.read_bytes()
    assert facts.search("number 299")[0].text == "fact number 299"
    with pytest.raises(InvalidInput, match="no fact"):
        facts.forget(secret)


@pytest.mark.parametrize("text", ["", " \n", None, 3, "x" * 100_001])
def test_text_that_cannot_be_a_fact_is_refused(facts: abstraction.Abstraction, text: str) -> None:
    with pytest.raises(InvalidInput):
        facts.add(text)
    assert facts.list() == []
