"""Entities, aliases and connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from rune.errors import InvalidInput
from rune.memory import graph_memory as graph
from rune.storage.database import Database


def test_an_empty_graph_and_a_task_without_names_say_nothing(db: Database, path: Path) -> None:
    assert graph.resolve_entity(db, "Anna") is None
    assert not path.parent.parent.exists()
    graph.add_entity(db, "Anna")
    assert graph.resolve_entity(db, "Anna") is None  # no connections
    assert graph.resolve_entity(db, "") is None


def test_connections_of_what_the_task_names_in_both_directions(db: Database) -> None:
    graph.add_edge(db, "Anna", "lives in", "Oslo")
    graph.add_edge(db, "Oslo", "capital of", "Norway")
    graph.add_edge(db, "Bob", "lives in", "Bergen")
    assert graph.resolve_entity(db, "How is anna's flat?") == "## My graph connections\n- Anna — lives in — Oslo"
    assert graph.resolve_entity(db, "Tell me of OSLO!") == (
        "## My graph connections\n- Anna — lives in — Oslo\n- Oslo — capital of — Norway"
    )


def test_aliases_lead_to_the_entity_and_a_shared_one_to_all_of_them(db: Database) -> None:
    graph.add_entity(db, "Anna Karenina", aliases=["Anya", "A. K."], of_type="person")
    graph.add_entity(db, "Anya Taylor", aliases=["Anya"])
    graph.add_edge(db, "Anna Karenina", "written by", "Tolstoy")
    graph.add_edge(db, "Anya Taylor", "plays", "Beth")
    assert [entity.name for entity in graph.find_entities(db, "anya")] == ["Anna Karenina", "Anya Taylor"]
    assert str(graph.resolve_entity(db, "Who is Anya?")).count("\n") == 2
    (found,) = graph.find_entities(db, "Mrs Anna Karenina")
    assert (found.type, found.aliases) == ("person", ("A. K.", "Anya"))


def test_the_five_strongest_and_first_those_between_named_entities(db: Database) -> None:
    for number in range(20):
        graph.add_edge(db, "Hub", "knows", f"Node{number}", weight=1 + number)
    graph.add_edge(db, "Hub", "hides from", "Node0", weight=0.5)
    weights = [edge.weight for edge in graph.connections(db, "the hub")]
    assert weights == [20, 19, 18, 17, 16]
    between = [(edge.relation, edge.dst) for edge in graph.connections(db, "hub and node0")]
    assert between[:2] == [("knows", "Node0"), ("hides from", "Node0")]
    assert len(between) == 5
    text = graph.resolve_entity(db, "the hub")
    assert text is not None
    assert [line.rsplit(" ", 1)[1] for line in text.splitlines()[1:]] == [f"Node{n}" for n in range(15, 20)]


def test_a_connection_added_again_gains_weight(db: Database) -> None:
    first = graph.add_edge(db, "Anna", "knows", "Bob")
    assert graph.add_edge(db, "ANNA", "knows", "bob", weight=2) == first
    assert [edge.weight for edge in graph.list_edges(db)] == [3]
    assert graph.add_edge(db, "Anna", "loves", "Bob") != first


def test_an_alias_names_the_end_of_a_new_connection(db: Database) -> None:
    graph.add_entity(db, "Anna Karenina", aliases=["Anya"])
    graph.add_edge(db, "Anya", "lives in", "Moscow")
    assert [entity.name for entity in graph.list_entities(db)] == ["Moscow", "Anna Karenina"]


def test_known_entities_gain_aliases_and_keep_their_name(db: Database) -> None:
    first = graph.add_entity(db, "Anna", of_type="person")
    assert graph.add_entity(db, "anna", aliases="Anya") == first
    (found,) = graph.list_entities(db)
    assert (found.name, found.type, found.aliases) == ("Anna", "person", ("Anya",))


def test_forgetting_an_entity_takes_its_aliases_and_connections_along(db: Database, path: Path) -> None:
    anna = graph.add_entity(db, "Anna Xyzzy", aliases=["Plugh"])
    graph.add_edge(db, "Anna Xyzzy", "knows", "Bob")
    edge = graph.add_edge(db, "Bob", "lives in", "Oslo")
    assert graph.forget_entity(db, anna) == [anna]
    assert graph.find_entities(db, "plugh anna xyzzy") == []
    assert [row.id for row in graph.list_edges(db)] == [edge]
    for file in path.parent.iterdir():
        assert b"Plugh" not in file.read_bytes()
        assert b"Xyzzy" not in file.read_bytes()
    assert graph.forget_edge(db, edge) == [edge]
    for forget, row in ((graph.forget_entity, anna), (graph.forget_edge, edge)):
        with pytest.raises(InvalidInput, match="there is no"):
            forget(db, row)


@pytest.mark.parametrize(
    ("src", "relation", "dst", "weight"),
    [
        ("", "knows", "Bob", 1),
        ("Anna", " ", "Bob", 1),
        ("Anna", "knows", "??", 1),
        ("A", "b", "C", 0),
        ("A", "b", "C", float("nan")),
    ],
)
def test_a_connection_that_lacks_something_is_refused(
    db: Database, src: str, relation: str, dst: str, weight: float
) -> None:
    with pytest.raises(InvalidInput):
        graph.add_edge(db, src, relation, dst, weight=weight)
    assert graph.list_edges(db) == graph.list_entities(db) == []


def test_lists_contain_what_is_asked_to_the_letter(db: Database) -> None:
    graph.add_edge(db, "100% wool", "is_not", "Cotton")
    graph.add_edge(db, "Wool", "is", "Warm")
    assert [entity.name for entity in graph.list_entities(db, containing="%")] == ["100% wool"]
    assert [edge.relation for edge in graph.list_edges(db, containing="_")] == ["is_not"]
    assert len(graph.list_edges(db, containing="wool")) == 2
    assert len(graph.list_entities(db, limit=2, offset=1)) == 2


def test_names_and_relations_cannot_break_the_block(db: Database) -> None:
    graph.add_edge(db, "Eve\n## Tools", "says\n- no", "Bob\u2028# x")
    text = graph.resolve_entity(db, "eve tools")
    assert text == "## My graph connections\n- Eve ## Tools — says - no — Bob # x"
