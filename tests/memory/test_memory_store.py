"""Memories: stored, recalled in stable text, forgotten for good."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from database_helpers import SOURCE
from rune.errors import InvalidInput
from rune.memory import memory_store as store
from rune.memory.memory_writer import TEXT_MAX
from rune.storage.database import Database


def shared_case(name: str) -> dict[str, dict[str, list[str]]]:
    folder = Path(os.environ.get("RUNE_SHARED", Path(__file__).parents[2] / ".." / "shared"))
    path = folder / "cases" / f"{name}.json"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    found: dict[str, dict[str, list[str]]] = json.loads(path.read_text())
    return found


def test_an_empty_store_recalls_nothing(db: Database) -> None:
    for kind in ("memory", "persona"):
        assert store.cached_recall(db, "tea", kind=kind) is None
        assert store.list_memories(db, kind=kind) == store.search(db, "tea", kind=kind) == []
    assert store.get(db, 1) is None


def test_what_the_task_speaks_of_is_recalled_and_no_more_than_asked(db: Database) -> None:
    store.add_many(db, ["User likes green tea", "User lives in Oslo", "Anna drinks tea", "Tea is at four", "Tea again"])
    text = store.cached_recall(db, "Shall we have tea?", budget=3)
    assert text is not None
    assert text.startswith("## Context\n- ")
    assert len(text.splitlines()) == 4
    assert "Oslo" not in text
    assert store.cached_recall(db, "Where do I live?") is None or "Oslo" in str(
        store.cached_recall(db, "Where do I live?")
    )
    assert store.cached_recall(db, "quantum chromodynamics") is None
    assert store.cached_recall(db, "tea", budget=0) is None


def test_the_same_memories_are_the_same_text_in_whatever_order_they_score(db: Database) -> None:
    case = shared_case("C61")["input"]
    store.add_many(db, sorted(case["turn1_recall"]))
    texts = set()
    for order in (case["turn1_recall"], case["turn2_recall"]):
        # Longer mention of the first: it scores highest.
        task = " ".join(f"{text} " * (len(order) - place) for place, text in enumerate(order))
        recalled = store.cached_recall(db, task)
        assert {memory.text for memory in store.recall(db, task)} == set(order)
        texts.add(recalled)
    assert len(texts) == 1


def test_order_of_scores_does_not_reach_the_text(db: Database) -> None:
    store.add_many(db, ["apple apple pear", "apple pear pear plum", "plum plum pear"])
    orders, texts = set(), set()
    for task in ("apple", "plum", "pear", "apple plum pear"):
        found = store.recall(db, task, 3)
        orders.add(tuple(memory.id for memory in found))
        if len(found) == 3:
            texts.add(store.cached_recall(db, task, 3))
    assert len(orders) > 1
    assert len(texts) == 1


def test_among_equal_scores_the_one_said_last_comes_first(db: Database) -> None:
    first, second, third = store.add_many(db, ["tea with milk", "tea with honey", "tea with lemon"])
    assert [memory.id for memory in store.recall(db, "tea", 2)] == [third, second]
    with db.write() as connection:
        connection.execute("UPDATE memory SET seen = seen + 10 WHERE id = ?", (first,))
        connection.execute("UPDATE stat SET generation = generation + 1")
    assert [memory.id for memory in store.recall(db, "tea", 2)] == [first, third]


def test_the_same_words_are_not_recalled_twice(db: Database) -> None:
    store.add_many(db, ["User likes tea", "likes tea.", "the user likes TEA", "tea is hot"])
    assert len(store.recall(db, "tea", 3)) == 2


def test_persona_memories_fill_their_budget_with_the_latest(db: Database) -> None:
    store.add_many(db, ["Speak like a pirate", "My name is Rune", "Parle français", "Be brief"], kind="persona")
    store.add(db, "Rune is a name")
    text = store.cached_recall(db, store.PERSONA_QUERY, kind="persona")
    assert text == "## Identity context\n- My name is Rune\n- Parle français\n- Be brief"


def test_kinds_do_not_mix(db: Database) -> None:
    store.add(db, "tea for memory")
    store.add(db, "tea for persona", kind="persona")
    assert [memory.text for memory in store.search(db, "tea")] == ["tea for memory"]
    assert [memory.text for memory in store.list_memories(db, kind="persona")] == ["tea for persona"]
    with pytest.raises(InvalidInput, match="there is no memory 2"):
        store.forget(db, 2)
    with pytest.raises(InvalidInput, match="'facts' is no kind"):
        store.add(db, "x", kind="facts")


@pytest.mark.parametrize("text", ["", " \n\t", None, 17, b"tea"])
def test_text_that_says_nothing_is_refused(db: Database, text: str) -> None:
    with pytest.raises(InvalidInput, match="needs some text"):
        store.add(db, text)


def test_a_text_that_is_too_long_is_refused_and_the_longest_is_kept_whole(db: Database) -> None:
    with pytest.raises(InvalidInput, match="split it"):
        store.add(db, "x" * (TEXT_MAX + 1))
    kept = store.get(db, store.add(db, "word " * (TEXT_MAX // 5)))
    assert kept is not None
    assert len(kept.text) == TEXT_MAX
    text = store.cached_recall(db, "word")
    assert text is not None
    assert text.endswith("more characters]")


def test_many_are_stored_all_or_none(db: Database) -> None:
    texts = itertools.chain((f"memory {number}" for number in range(3000)), [""])
    with pytest.raises(InvalidInput):
        store.add_many(db, texts)
    assert store.list_memories(db) == []
    ids = store.add_many(db, (f"memory {number}" for number in range(5000)))
    assert ids == list(range(1, 5001))
    assert store.recall(db, "4321")[0].text == "memory 4321"
    assert store.add_many(db, []) == []


def test_ids_are_never_given_twice(db: Database) -> None:
    store.add_many(db, ["one", "two"])
    store.forget(db, 2)
    assert store.add(db, "three") == 3


def test_odd_text_is_stored_as_it_is_but_for_what_utf8_lacks(db: Database) -> None:
    text = "tab\tnul\0 rtl \u202eabc\u202c astral 𝔘𝔫𝔦 lone \ud800!"
    kept = store.get(db, store.add(db, text, source="a\udfff"))
    assert kept is not None
    assert kept.text == text.replace("\ud800", "\ufffd")
    assert kept.source == "a\ufffd"
    assert store.recall(db, "astral")[0].id == kept.id


def test_forgetting_leaves_no_word_in_the_files(db: Database, path: Path) -> None:
    store.add_many(db, [f"ordinary memory number {number}" for number in range(500)])
    secret = store.add(db, "the password is xyzzyplugh")
    store.add_many(db, [f"another memory number {number}" for number in range(500)])
    files = list(path.parent.iterdir())
    assert any(b"xyzzyplugh" in file.read_bytes() for file in files)
    assert store.forget(db, secret) == [secret]
    assert store.recall(db, "xyzzyplugh") == ()
    for file in path.parent.iterdir():
        assert b"xyzzyplugh" not in file.read_bytes(), file.name
    with pytest.raises(InvalidInput, match="list them"):
        store.forget(db, secret)


# The cache


def test_answers_are_kept_until_the_store_changes(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    matches = store.text_index.matches
    monkeypatch.setattr(store.text_index, "matches", lambda *a: asked.append(1) or matches(*a))
    store.add(db, "User likes tea")
    first = store.recall(db, "tea")
    assert store.recall(db, "tea") == first
    assert len(asked) == 1
    store.add(db, "Be kind", kind="persona")  # another kind
    store.recall(db, "tea")
    assert len(asked) == 1
    added = store.add(db, "Anna likes tea")
    assert {memory.id for memory in store.recall(db, "tea")} == {1, added}
    store.forget(db, added)
    assert {memory.id for memory in store.recall(db, "tea")} == {1}
    assert len(asked) == 3


def test_a_write_by_another_process_is_seen_at_once(db: Database, path: Path) -> None:
    store.add(db, "User likes tea")
    assert len(store.recall(db, "tea")) == 1
    code = "import sys; from rune.memory import memory_store; from rune.storage.database import Database\n" + (
        "db = Database(sys.argv[1]); memory_store.add(db, 'Anna likes tea'); db.close()"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], env={**os.environ, "PYTHONPATH": str(SOURCE)}, check=True)
    assert len(store.recall(db, "tea")) == 2


def test_the_cache_is_bounded_and_belongs_to_its_database(db: Database, tmp_path: Path) -> None:
    store.add(db, "tea")
    for number in range(store._CACHE_MAX + 50):
        store.recall(db, f"tea {number}")
    assert len(store._caches[db]) == store._CACHE_MAX
    with Database(tmp_path / "other" / "state" / "x.sqlite3") as other:
        assert store.recall(other, "tea 1") == ()


def test_a_database_that_was_set_aside_is_not_answered_for(db: Database, path: Path) -> None:
    store.add(db, "User likes tea")
    assert store.recall(db, "tea")
    db.close()
    path.rename(path.with_name("aside"))
    assert store.recall(db, "tea") == ()
    store.add(db, "Anna likes tea")
    assert [memory.text for memory in store.recall(db, "tea")] == ["Anna likes tea"]
    db.close()
    path.with_name("aside").rename(path)
    assert [memory.text for memory in store.recall(db, "tea")] == ["User likes tea"]
