"""Contributors: the table of the operator's registration, and what each factory contributes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker_helpers import add, turn
from rune import contributors
from rune.context.blocks import ContributionBlock
from rune.context.collect import Assembly, assembling
from rune.context.conversation import Conversation
from rune.context_broker import MEMORY_BLOCK_NAMES, ContextBroker
from rune.contributors import CONTRIBUTORS

TABLE = [
    ("persona", 100, False, "rune_operator._PERSONA_PROMPT"),
    ("tools", 90, False, "tool_executor.TOOLS"),
    ("memory", 70, True, "memory_store.cached_recall(db, task, budget=3)"),
    ("persona_memories", 68, True, 'cached_recall(db, "Rune personality…", budget=3)'),
    ("consolidated", 60, True, "MemoryConsolidation pipeline"),
    ("neurons", 55, True, "warm_neuron_store.list_neurons()"),
    ("graphs", 50, True, "graph_memory.resolve_entity"),
    ("abstraction", 45, True, "abstraction.connect() facts LIKE"),
    ("model_profile", 40, True, "model_profiles.get_prompt_context"),
    ("history", 30, True, "rune_operator._conversation_messages"),
    ("user", 100, False, "task text"),
]


def content(block: ContributionBlock | None) -> str:
    assert block is not None
    return block.content


def test_the_table_has_the_specified_names_priorities_eviction_and_sources_in_order() -> None:
    specified = [spec for spec in CONTRIBUTORS if spec.name not in ("session_system", "history_summary")]
    assert [(s.name, s.priority, s.evictable, s.source) for s in specified] == TABLE
    assert [s.bucket for s in specified] == list(range(1, 12))


def test_the_sessions_system_text_is_mandatory_and_stands_right_behind_the_persona() -> None:
    names = [spec.name for spec in CONTRIBUTORS]
    spec = CONTRIBUTORS[names.index("session_system")]
    assert names[:2] == ["persona", "session_system"]
    assert (spec.bucket, spec.priority, spec.evictable) == (1, 100, False)


def test_the_summary_of_the_history_stands_before_it_and_is_admitted_before_it() -> None:
    names = [spec.name for spec in CONTRIBUTORS]
    summary, history = (CONTRIBUTORS[names.index(name)] for name in ("history_summary", "history"))
    assert names.index("history_summary") + 1 == names.index("history")
    assert summary.bucket == history.bucket and summary.priority > history.priority and summary.evictable


def test_every_memory_block_is_in_the_table_and_evictable() -> None:
    assert {spec.name for spec in CONTRIBUTORS if spec.evictable} >= MEMORY_BLOCK_NAMES


def test_only_the_tools_and_the_model_profile_depend_on_the_model() -> None:
    assert [spec.name for spec in CONTRIBUTORS if spec.per_model] == ["tools", "model_profile"]


def test_persona_is_word_for_word() -> None:
    assert content(contributors.persona(" You are Rune.\n")("t", None)) == " You are Rune.\n"


def test_tools_are_names_only_under_their_heading() -> None:
    assert content(contributors.tools(["read", "write"])("t", None)) == "## Available tools\n- read\n- write"
    names = ["read"]
    current = contributors.tools(lambda: names)
    names.append("run")
    assert content(current("t", None)).endswith("- read\n- run")
    assert contributors.tools([])("t", None) is None


def test_user_is_the_task_text() -> None:
    assert content(contributors.user()("do it", None)) == "do it"
    assert content(contributors.user()(SimpleNamespace(task="do that"), None)) == "do that"
    assert content(contributors.user("fixed")("do it", None)) == "fixed"
    block = contributors.user()(SimpleNamespace(task="look", images=["AAAA"]), None)
    assert block is not None and block.images == ["AAAA"]


@pytest.mark.parametrize(
    ("factory", "heading"),
    [
        (contributors.memory, "## Context"),
        (contributors.persona_memories, "## Identity context"),
        (contributors.neurons, "## My neurons (warm, firing)"),
        (contributors.graphs, "## My graph connections"),
        (contributors.abstraction, "## My learned knowledge"),
        (contributors.model_profile, "## Model"),
    ],
)
def test_a_store_contributes_its_notes_under_the_blocks_heading(factory: Any, heading: str) -> None:
    def giving(notes: Any) -> Any:
        return factory(lambda *_: notes)("t", None)

    assert content(giving(["one", "two"])) == f"{heading}\n- one\n- two"
    assert content(giving("one note")) == f"{heading}\none note"
    assert content(giving(f"{heading}\n- there already")) == f"{heading}\n- there already"
    for nothing in (None, "", "  \n", [], ["", " "]):
        assert giving(nothing) is None


def test_stores_are_asked_with_the_task_text_or_the_model() -> None:
    asked: list[Any] = []
    task = SimpleNamespace(task="where is Ada?")
    for factory in (contributors.memory, contributors.graphs, contributors.abstraction):
        factory(asked.append)(task, None)
    with assembling(Assembly(model_id="qwen3:4b")):
        contributors.model_profile(asked.append)(task, None)
    assert asked == ["where is Ada?", "where is Ada?", "where is Ada?", "qwen3:4b"]


def test_consolidation_runs_at_collect_time_and_is_told_of_a_dry_run() -> None:
    saved: list[tuple[str, Any, bool]] = []

    def consolidate(task: str, session: Any, dry: bool) -> str:
        saved.append((task, session, dry))
        return "Ada lives in Bern."

    broker = ContextBroker(lambda model_id: 8192)
    add(broker, "consolidated", contributors.consolidated(consolidate))
    capsule, _ = broker.assemble("t", None, "m")
    broker.assemble("t", None, "m", dry=True)
    assert saved == [("t", None, False), ("t", None, True)]
    assert capsule.block("consolidated").content == "Ada lives in Bern."


def test_session_system_leaves_out_what_the_persona_says_already() -> None:
    session = Conversation.from_messages(
        "s", [{"role": "system", "content": "You are Rune.\n"}, {"role": "system", "content": "Be brief."}, *turn(1)]
    )
    assert content(contributors.session_system("You are Rune.")("t", session)) == "Be brief."
    assert content(contributors.session_system()("t", session)) == "You are Rune.\n\n\nBe brief."
    assert contributors.session_system()("t", None) is None
    assert contributors.session_system()("t", Conversation("empty")) is None


# History


def test_history_offers_the_last_8_completed_turns() -> None:
    session = Conversation("s")
    for n in range(12):
        session.append(turn(n))
    session.append([{"role": "user", "content": "unanswered"}])
    block = contributors.history()("t", session)
    assert block is not None and block.parts is not None and block.extra is not None
    assert [part[0]["content"] for part in block.parts] == [f"Question {n}?" for n in range(4, 12)]
    assert {k: block.extra[k] for k in ("turns", "completed", "not_offered", "incomplete")} == {
        "turns": 13,
        "completed": 12,
        "not_offered": 4,
        "incomplete": 1,
    }
    assert block.extra["incomplete_turns"] == [{"turn": 12, "reason": "no answer"}]


def test_an_incomplete_turn_is_in_the_trace_even_when_nothing_can_be_offered() -> None:
    session = Conversation.from_messages("s", [{"role": "user", "content": "unanswered"}])
    broker = ContextBroker(lambda model_id: 8192)
    add(broker, "history", contributors.history())
    _, trace = broker.assemble("t", session, "m")
    facts = trace["ext"]["history"]
    assert (facts["turns"], facts["incomplete"], facts["offered"], facts["admitted"]) == (1, 1, 0, 0)
    assert trace["blocks"] == []


def test_history_of_something_else_than_a_conversation_is_a_failure_that_names_history() -> None:
    broker = ContextBroker(lambda model_id: 8192)
    add(broker, "history", contributors.history())
    assert broker.assemble("t", [{"role": "user", "content": "x"}], "m")[1]["degraded"] == ["history"]
    assert broker.assemble("t", None, "m")[1]["degraded"] == []
