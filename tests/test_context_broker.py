"""The broker against the sentences that state its behaviour: one test for each, over both kernel backends."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import threading
import time
from types import ModuleType
from typing import Any

import pytest

from broker_helpers import add, giving, tokens, turn, use_kernels, window_with_budget
from rune.context.capsule import AttentionCapsule, CapsuleBlock, ContributionBlock
from rune.context.conversation import Conversation
from rune.context_broker import (
    COMPACTION_THRESHOLD,
    MEMORY_BLOCK_NAMES,
    ContextBroker,
    LedgerEntry,
    _log_token_usage,
    current_assembly,
    log_calibration,
    log_fallback_tool_prompt,
    memory_disabled,
)
from rune.contributors import history, session_system, user
from rune.errors import ContextOverflowError, InvalidInput
from rune.subsystem_health import record_failure
from rune.subsystem_health import turn as health_turn

TRACE_KEYS = [
    "model_id",
    "window",
    "budget",
    "blocks",
    "admitted",
    "admitted_total",
    "dropped",
    "memory_tokens",
    "degraded",
    "compaction",
    "elapsed_ms",
    "ext",
]
ROW_KEYS = ["name", "priority", "tokens", "source", "evictable", "admitted", "reason"]


@pytest.fixture(autouse=True)
def _both_backends(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels(kernels, monkeypatch)
    monkeypatch.delenv("RUNE_MEMORY_OFF", raising=False)


def small_broker(window: int = 8192, **options: Any) -> ContextBroker:
    """Persona and user, so that a turn has what every turn has."""
    broker = ContextBroker(lambda model_id: window, **options)
    add(broker, "persona", "You are Rune.", priority=100, evictable=False)
    return broker


def with_user(broker: ContextBroker) -> ContextBroker:
    add(broker, "user", user(), bucket=1000, priority=100, evictable=False)
    return broker


# Authority


def test_every_injected_block_is_a_registered_contributor() -> None:
    broker = with_user(small_broker())
    capsule, trace = broker.assemble("hello", None, "m")
    assert {block.name for block in capsule.blocks} <= set(broker.contributors)
    assert capsule.to_messages() == [
        {"role": "system", "content": "You are Rune."},
        {"role": "user", "content": "hello"},
    ]
    assert trace["admitted"] == ["persona", "user"]


def test_what_the_runtime_sends_past_the_messages_is_measured_and_in_the_ledger() -> None:
    broker = with_user(small_broker())
    schemas = LedgerEntry("tool_schemas", tokens_text="s" * 400, source="runtime")
    prompt = LedgerEntry("fallback_tool_prompt", tokens=2500, source="runtime", digest_text="the prompt")
    capsule, trace = broker.assemble("hello", None, "m", extra_blocks=[schemas, prompt])
    rows = {row["name"]: row for row in trace["blocks"]}
    assert (rows["tool_schemas"]["tokens"], rows["tool_schemas"]["reason"]) == (100, "mandatory")
    assert (rows["fallback_tool_prompt"]["tokens"], rows["fallback_tool_prompt"]["evictable"]) == (2500, False)
    assert trace["admitted_total"] == capsule.token_count == 3 + 100 + 2500 + 1
    assert [m["content"] for m in capsule.to_messages()] == ["You are Rune.", "hello"]
    assert capsule.content_hashes()["fallback_tool_prompt"] == hashlib.sha256(b"the prompt").hexdigest()


@pytest.mark.parametrize(
    "entry",
    [
        LedgerEntry("persona", tokens=1),
        LedgerEntry("x"),
        LedgerEntry("x", tokens_text="a", tokens=1),
        LedgerEntry("x", tokens_text="a", digest_text="b"),
        LedgerEntry("x", tokens=-1),
    ],
)
def test_a_ledger_entry_that_cannot_be_counted_is_refused(entry: LedgerEntry) -> None:
    with pytest.raises(InvalidInput, match=entry.name):
        small_broker().assemble("hello", None, "m", extra_blocks=[entry])


def test_admission_is_budgeted_against_the_models_real_context_length() -> None:
    lengths = {"small": 4096, "large": 131072}
    broker = ContextBroker(lengths.__getitem__)
    add(broker, "persona", "You are Rune.", evictable=False)
    assert [broker.assemble("t", None, m)[1]["budget"] for m in lengths] == [1844, 91751]


def test_a_window_given_by_the_caller_is_the_one_that_counts() -> None:
    _, trace = small_broker(131072).assemble("t", None, "m", window=8192)
    assert (trace["window"], trace["budget"]) == (8192, 5735)


# COLLECT


def test_collect_runs_every_registered_contributor_once_in_registration_order() -> None:
    broker = ContextBroker(lambda model_id: 8192)
    seen: list[str] = []
    for name, bucket in (("c", 3), ("a", 1), ("b", 2)):
        add(broker, name, lambda task, session, name=name: seen.append(name), bucket=bucket)
    broker.assemble("t", None, "m")
    assert seen == ["c", "a", "b"]


def test_side_effects_run_exactly_once_per_turn_before_admission_even_when_the_block_is_dropped() -> None:
    broker = small_broker()
    saved: list[str] = []

    def consolidated(task: Any, session: Any) -> ContributionBlock:
        saved.append(task)
        return ContributionBlock(content=tokens(100_000))

    add(broker, "consolidated", consolidated, priority=60)
    capsule, trace = broker.assemble("t", None, "m")
    assert saved == ["t"] and trace["dropped"][0]["name"] == "consolidated"
    broker.readmit(capsule, window=1_000_000)
    assert saved == ["t"]


def test_side_effects_have_run_even_when_the_turn_overflows() -> None:
    broker = small_broker()
    saved: list[str] = []
    add(broker, "consolidated", lambda task, session: saved.append(task), priority=60)
    add(broker, "user", tokens(9000), priority=100, evictable=False)
    with pytest.raises(ContextOverflowError):
        broker.assemble("t", None, "m")
    assert saved == ["t"]


def test_contributors_get_task_and_session_as_given() -> None:
    broker = small_broker()
    session, task = Conversation("s"), object()
    got: list[Any] = []
    add(broker, "x", lambda *args: got.append(args))
    broker.assemble(task, session, "m")
    assert got == [(task, session)]


# MEASURE


def test_measure_every_block_with_len_text_over_4() -> None:
    texts = {"a": "x" * 403, "b": "你好世界" * 25, "c": "🙂" * 7, "d": "\udc80" * 9}
    broker = ContextBroker(lambda model_id: 8192)
    for name, text in texts.items():
        add(broker, name, text)
    _, trace = broker.assemble("t", None, "m")
    assert {row["name"]: row["tokens"] for row in trace["blocks"]} == {n: len(t) // 4 for n, t in texts.items()}


def test_measure_is_deterministic_and_uses_no_tokenizer() -> None:
    first = with_user(small_broker()).assemble("hello", None, "m")[1]
    second = with_user(small_broker()).assemble("hello", None, "m")[1]
    assert {**first, "elapsed_ms": 0} == {**second, "elapsed_ms": 0}
    assert "tiktoken" not in sys.modules


def test_a_block_of_messages_measures_the_sum_of_its_messages() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "read", "arguments": {"n": "é"}}}
    messages = [
        {"role": "user", "content": "x" * 7},
        {"role": "assistant", "content": "y" * 5, "tool_calls": [call]},
        {"role": "tool", "content": "z" * 3, "tool_call_id": "1"},
    ]
    broker = small_broker()
    add(broker, "history", ContributionBlock(messages=messages))
    _, trace = broker.assemble("t", None, "m")
    calls = json.dumps([call], ensure_ascii=False, separators=(",", ":"))
    assert trace["blocks"][1]["tokens"] == 7 // 4 + (5 + len(calls)) // 4 + 3 // 4


def test_an_image_costs_a_flat_768_tokens_and_its_base64_is_not_text() -> None:
    broker = small_broker()
    add(broker, "user", ContributionBlock(content="look", images=["A" * 100_000, "B" * 100_000]), evictable=False)
    capsule, trace = broker.assemble("t", None, "m")
    assert trace["blocks"][1]["tokens"] == 1 + 2 * 768
    assert capsule.to_messages()[-1] == {"role": "user", "content": "look", "images": ["A" * 100_000, "B" * 100_000]}


# ADMIT


def test_admit_non_evictable_blocks_first_whatever_their_priority() -> None:
    broker = ContextBroker(lambda model_id: window_with_budget(100))
    add(broker, "greedy", tokens(60), priority=1000)
    add(broker, "must", tokens(60), priority=-5, evictable=False)
    _, trace = broker.assemble("t", None, "m")
    assert trace["admitted"] == ["must"]
    assert trace["dropped"] == [{"name": "greedy", "tokens": 60, "priority": 1000, "reason": "over_budget"}]


def test_admit_evictable_blocks_by_priority_descending() -> None:
    broker = ContextBroker(lambda model_id: window_with_budget(100))
    for name, priority in (("low", 10), ("high", 90), ("middle", 50)):
        add(broker, name, tokens(50), priority=priority)
    _, trace = broker.assemble("t", None, "m")
    assert set(trace["admitted"]) == {"high", "middle"}


def test_admit_ties_go_to_the_later_registered_whatever_its_bucket() -> None:
    broker = ContextBroker(lambda model_id: window_with_budget(100))
    add(broker, "first", tokens(60), bucket=2)
    add(broker, "second", tokens(60), bucket=1)
    _, trace = broker.assemble("t", None, "m")
    assert trace["admitted"] == ["second"]


def test_admit_skips_what_does_not_fit_and_goes_on_while_the_budget_lasts() -> None:
    broker = ContextBroker(lambda model_id: window_with_budget(100))
    add(broker, "large", tokens(101), priority=90)
    add(broker, "small", tokens(100), priority=10)
    _, trace = broker.assemble("t", None, "m")
    assert trace["admitted"] == ["small"] and trace["admitted_total"] == 100


def test_dropped_blocks_are_recorded_with_token_counts_and_reason() -> None:
    broker = ContextBroker(lambda model_id: window_with_budget(10))
    add(broker, "notes", tokens(11), priority=45)
    _, trace = broker.assemble("t", None, "m")
    assert trace["dropped"] == [{"name": "notes", "tokens": 11, "priority": 45, "reason": "over_budget"}]
    assert trace["blocks"] == [
        {
            "name": "notes",
            "priority": 45,
            "tokens": 11,
            "source": "test",
            "evictable": True,
            "admitted": False,
            "reason": "over_budget",
        }
    ]


def test_a_single_mandatory_block_over_the_whole_budget_raises_and_nothing_is_cut() -> None:
    broker = small_broker(8192)
    add(broker, "user", tokens(6000), priority=100, evictable=False)
    with pytest.raises(ContextOverflowError) as caught:
        broker.assemble("t", None, "m")
    error = caught.value
    assert (error.window, error.reserve, error.margin, error.budget) == (8192, 2048, 409, 5735)
    assert (error.block, error.block_tokens, error.used_before) == ("user", 6000, 3)
    assert error.blocks == [{"name": "persona", "tokens": 3}, {"name": "user", "tokens": 6000}]
    assert error.trace is not None and list(error.trace) == TRACE_KEYS
    assert error.trace["admitted"] == ["persona"] and error.trace["admitted_total"] == 3
    for word in ("persona 3", "user 6000", "8192", "2048", "409", "5735", "shorten the task", "window of at least"):
        assert word in str(error)


def test_mandatory_blocks_that_do_not_fit_together_overflow_as_a_single_one_does() -> None:
    broker = ContextBroker(lambda model_id: window_with_budget(100))
    add(broker, "one", tokens(60), evictable=False)
    add(broker, "two", tokens(60), evictable=False)
    with pytest.raises(ContextOverflowError) as caught:
        broker.assemble("t", None, "m")
    assert (caught.value.block, caught.value.block_tokens, caught.value.used_before) == ("two", 60, 60)


@pytest.mark.parametrize("window", [1, 1000, 2155])
def test_a_budget_of_nothing_overflows(window: int) -> None:
    with pytest.raises(ContextOverflowError, match="leaves no room") as caught:
        small_broker(window).assemble("t", None, "m")
    assert caught.value.budget <= 0 and caught.value.block == "persona" and caught.value.used_before == 0


def test_the_window_that_the_overflow_advises_is_enough_and_the_smallest() -> None:
    broker = small_broker()
    add(broker, "user", tokens(6000), priority=100, evictable=False)
    with pytest.raises(ContextOverflowError) as caught:
        broker.assemble("t", None, "m")
    advised = ContextBroker.window_for(6003)
    assert advised is not None and f"at least {advised} tokens" in str(caught.value)
    broker.assemble("t", None, "m", window=advised)
    with pytest.raises(ContextOverflowError):
        broker.assemble("t", None, "m", window=advised - 1)


def test_a_divisible_block_enters_with_its_newest_parts_and_the_rest_is_one_entry_in_dropped() -> None:
    broker = ContextBroker(lambda model_id: window_with_budget(100))
    add(broker, "file", ContributionBlock(parts=[tokens(40, f"{n}bcd") for n in range(4)]), priority=30)
    capsule, trace = broker.assemble("t", None, "m")
    assert capsule.block("file").content == tokens(40, "2bcd") + "\n" + tokens(40, "3bcd")
    row = trace["blocks"][0]
    assert (row["tokens"], row["admitted"], row["reason"]) == (80, True, "older_parts")
    assert trace["dropped"] == [{"name": "file", "tokens": 80, "priority": 30, "reason": "older_parts", "count": 2}]
    assert trace["ext"]["dropped_units"] == [
        {"name": "file", "unit": 0, "tokens": 40},
        {"name": "file", "unit": 1, "tokens": 40},
    ]


def test_history_is_divided_by_whole_turns_so_that_calls_and_results_never_part() -> None:
    session = Conversation("s")
    for n in range(8):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "read", "arguments": {"n": n}}}
        session.append(
            [
                {"role": "user", "content": f"Read part {n}."},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{n}", "content": "x" * 2000},
                {"role": "assistant", "content": f"Part {n} is read."},
            ]
        )
    broker = with_user(small_broker(window_with_budget(1800)))
    add(broker, "history", history(), bucket=10, priority=30)
    capsule, trace = broker.assemble("next", session, "m")
    roles = [m["role"] for m in capsule.to_messages()]
    assert roles == ["system", *["user", "assistant", "tool", "assistant"] * 3, "user"]
    facts = trace["ext"]["history"]
    assert (facts["turns"], facts["offered"], facts["admitted"], facts["dropped"]) == (8, 8, 3, 5)


def test_a_text_of_one_to_three_characters_measures_0_and_is_still_admitted_and_listed() -> None:
    broker = small_broker()
    add(broker, "memory", "abc", priority=70)
    _, trace = broker.assemble("t", None, "m")
    assert "memory" in trace["admitted"] and trace["memory_tokens"] == 0


def test_50_mb_of_content_is_measured_and_dropped() -> None:
    broker = small_broker()
    add(broker, "memory", "x" * 50_000_000, priority=70)
    _, trace = broker.assemble("t", None, "m")
    assert trace["dropped"] == [{"name": "memory", "tokens": 12_500_000, "priority": 70, "reason": "over_budget"}]


# RENDER


def test_render_in_fixed_order_system_tools_memory_notes_history_user() -> None:
    broker = ContextBroker(lambda model_id: 8192)
    # Registered out of order: the bucket is the place.
    add(broker, "user", "the task", bucket=11, priority=100, evictable=False)
    add(broker, "history", ContributionBlock(messages=turn(1)), bucket=10, priority=30)
    add(broker, "memory", "## Context\n- note", bucket=3, priority=70)
    add(broker, "tools", "## Available tools\n- read", bucket=2, priority=90, evictable=False)
    add(broker, "persona", "You are Rune.", bucket=1, priority=100, evictable=False)
    capsule, trace = broker.assemble("t", None, "m")
    assert capsule.to_messages() == [
        {"role": "system", "content": "You are Rune.\n\n## Available tools\n- read\n\n## Context\n- note"},
        *turn(1),
        {"role": "user", "content": "the task"},
    ]
    assert trace["admitted"] == ["persona", "tools", "memory", "history", "user"]


def test_assemble_returns_a_capsule_and_a_trace() -> None:
    capsule, trace = small_broker().assemble("t", None, "m")
    assert isinstance(capsule, AttentionCapsule) and isinstance(trace, dict)


def test_the_capsule_carries_the_typed_blocks_ledger() -> None:
    capsule, trace = with_user(small_broker()).assemble("hello", None, "m")
    assert all(isinstance(block, CapsuleBlock) for block in capsule.blocks)
    assert [
        {"name": b.name, "priority": b.priority, "tokens": b.tokens, "source": b.source, "evictable": b.evictable}
        for b in capsule.blocks
    ] == [{k: v for k, v in row.items() if k not in ("admitted", "reason")} for row in trace["blocks"]]


def test_to_messages_rederives_system_history_user_and_hands_out_copies() -> None:
    session = Conversation.from_messages("s", turn(1))
    broker = with_user(small_broker())
    add(broker, "history", history(), bucket=10, priority=30)
    capsule, _ = broker.assemble("next", session, "m")
    first = capsule.to_messages()
    assert [m["role"] for m in first] == ["system", "user", "assistant", "user"]
    first[1]["content"] = "changed outside"
    assert capsule.to_messages()[1]["content"] == "Question 1?"
    assert session.messages()[0]["content"] == "Question 1?"


def test_mutation_of_a_block_always_flows_through() -> None:
    broker = with_user(small_broker())
    capsule, trace = broker.assemble("delete it all", None, "m")
    before = capsule.token_count
    capsule.block("user").content = "[refused by policy] " + capsule.block("user").content
    assert capsule.to_messages()[-1]["content"] == "[refused by policy] delete it all"
    assert capsule.block("user").tokens == len("[refused by policy] delete it all") // 4
    assert capsule.block("user").tokens_before == len("delete it all") // 4
    assert capsule.token_count == before + capsule.block("user").tokens - capsule.block("user").tokens_before
    assert capsule.content_hashes()["user"] == hashlib.sha256(b"[refused by policy] delete it all").hexdigest()
    assert trace["admitted_total"] == before
    assert capsule.changes() == [{"name": "user", "tokens_before": 3, "tokens": 8}]


def test_mutation_of_messages_in_place_flows_through() -> None:
    session = Conversation.from_messages("s", turn(1))
    broker = with_user(small_broker())
    add(broker, "history", history(), bucket=10, priority=30)
    capsule, _ = broker.assemble("next", session, "m")
    digest_before, tokens_before = capsule.block("history").digest, capsule.block("history").tokens
    capsule.block("history").messages[0]["content"] = "redacted " * 20
    assert capsule.to_messages()[1]["content"] == "redacted " * 20
    assert capsule.block("history").tokens == tokens_before + 45 - 2
    assert capsule.block("history").digest != digest_before
    assert session.messages()[0]["content"] == "Question 1?"


def test_a_change_survives_readmission() -> None:
    broker = with_user(small_broker())
    add(broker, "notes", tokens(4000), bucket=5, priority=45)
    capsule, _ = broker.assemble("delete it all", None, "m")
    capsule.block("user").content = "[refused]"
    again, trace = broker.readmit(capsule, window=4096)
    assert again.to_messages()[-1]["content"] == "[refused]"
    assert [row["name"] for row in trace["dropped"]] == ["notes"]


def test_changed_history_survives_readmission_and_is_still_divided_by_turns() -> None:
    session = Conversation.from_messages("s", [*turn(1, 50), *turn(2, 50), *turn(3, 50)])
    broker = with_user(small_broker())
    add(broker, "history", history(), bucket=10, priority=30)
    capsule, _ = broker.assemble("next", session, "m")
    capsule.block("history").messages[4]["content"] = "Redacted?"
    again, trace = broker.readmit(capsule, budget=120)
    assert trace["ext"]["history"]["admitted"] == 2
    assert [m["content"] for m in again.to_messages()][3] == "Redacted?"
    capsule.block("history").messages = turn(9)
    assert broker.readmit(capsule)[0].to_messages()[1:-1] == turn(9)


def test_images_added_through_the_block_are_counted_and_survive_readmission() -> None:
    capsule, _ = with_user(small_broker()).assemble("look here", None, "m")
    capsule.block("user").images.append("AAAA")
    assert capsule.block("user").tokens == 2 + 768
    again, trace = with_user(small_broker()).readmit(capsule)
    assert again.to_messages()[-1]["images"] == ["AAAA"] and trace["admitted_total"] == 3 + 2 + 768


def test_a_block_takes_only_what_it_is_made_of() -> None:
    broker = with_user(small_broker())
    add(broker, "history", ContributionBlock(messages=turn(1)), bucket=10)
    capsule, _ = broker.assemble("hello", None, "m", extra_blocks=[LedgerEntry("tool_schemas", tokens_text="abcd")])
    with pytest.raises(InvalidInput, match="set its messages"):
        capsule.block("history").content = "text"
    with pytest.raises(InvalidInput, match="the runtime owns it"):
        capsule.block("tool_schemas").content = "text"
    with pytest.raises(InvalidInput, match="must be text"):
        capsule.block("user").content = 3  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="set its content"):
        capsule.block("user").messages = turn(1)
    with pytest.raises(InvalidInput, match="there are persona"):
        capsule.block("memory")
    assert capsule.block("user").messages == [] and "memory" not in capsule


def test_a_budget_for_readmission_must_be_a_number_of_tokens() -> None:
    broker = with_user(small_broker())
    capsule, _ = broker.assemble("hello", None, "m")
    with pytest.raises(InvalidInput, match="budget"):
        broker.readmit(capsule, budget="100")  # type: ignore[arg-type]


# Failures of contributors


def test_a_contributor_records_its_own_failure_and_the_turn_proceeds() -> None:
    def neurons(task: Any, session: Any) -> None:
        record_failure("warm_neuron_store", OSError("disk"), tier=1)

    broker = with_user(small_broker())
    add(broker, "neurons", neurons, bucket=6)
    capsule, trace = broker.assemble("hello", None, "m")
    assert trace["degraded"] == ["warm_neuron_store"] and "neurons" not in trace["admitted"]
    assert capsule.to_messages()[-1]["content"] == "hello"


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("crash", [ValueError("x"), RecursionError(), SystemExit(3), MemoryError()])
def test_an_unexpected_crash_is_caught_by_the_broker_under_the_contributors_name(
    crash: BaseException, inline: bool
) -> None:
    def graphs(task: Any, session: Any) -> None:
        raise crash

    broker = with_user(small_broker())
    add(broker, "graphs", graphs, bucket=7, inline=inline)
    capsule, trace = broker.assemble("hello", None, "m")
    assert trace["degraded"] == ["graphs"] and trace["admitted"] == ["persona", "user"]
    assert len(capsule.to_messages()) == 2


def test_a_failure_inside_a_turn_is_in_the_turns_degraded_names_too() -> None:
    broker = small_broker()
    add(broker, "graphs", lambda task, session: 1 / 0)
    with health_turn() as health:
        broker.assemble("hello", None, "m")
        assert list(health.degraded) == ["graphs"]


def test_degraded_is_per_turn() -> None:
    broker = small_broker()
    outcomes = iter([ValueError("once"), None])

    def flaky(task: Any, session: Any) -> None:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome

    add(broker, "flaky", flaky)
    assert broker.assemble("t", None, "m")[1]["degraded"] == ["flaky"]
    assert broker.assemble("t", None, "m")[1]["degraded"] == []


@pytest.mark.parametrize(
    "nothing",
    [None, "", "   \n", ContributionBlock(), ContributionBlock(content=" "), ContributionBlock(messages=[])],
    ids=repr,
)
def test_none_or_empty_content_contributes_nothing(nothing: Any) -> None:
    broker = with_user(small_broker())
    add(broker, "memory", giving(nothing), bucket=3)
    _, trace = broker.assemble("hello", None, "m")
    assert [row["name"] for row in trace["blocks"]] == ["persona", "user"] and trace["degraded"] == []


@pytest.mark.parametrize(
    "wrong",
    [
        123,
        b"bytes",
        ContributionBlock(content=123),  # type: ignore[arg-type]
        ContributionBlock(messages=[{"role": "alien", "content": ""}]),
        ContributionBlock(messages="text"),  # type: ignore[arg-type]
        ContributionBlock(parts=["text", 3]),
        ContributionBlock(content="a", parts=["b"]),
        ContributionBlock(content="a", images="base64"),
        ContributionBlock(content="a", extra={"n": {1, 2}}),
        ContributionBlock(
            messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"n": {1}}}}]}]
        ),
    ],
    ids=repr,
)
def test_what_is_no_block_is_a_failure_of_the_contributor_and_contributes_nothing(wrong: Any) -> None:
    broker = with_user(small_broker())
    add(broker, "memory", giving(wrong), bucket=3)
    _, trace = broker.assemble("hello", None, "m")
    assert [row["name"] for row in trace["blocks"]] == ["persona", "user"] and trace["degraded"] == ["memory"]


def test_a_contributor_that_hangs_is_left_behind_and_not_called_again_until_it_returns() -> None:
    release, calls = threading.Event(), []

    def hanging(task: Any, session: Any) -> ContributionBlock:
        calls.append(task)
        release.wait(20)
        return ContributionBlock(content="late")

    broker = with_user(small_broker(contributor_timeout_s=0.05))
    add(broker, "neurons", hanging, bucket=6)
    try:
        for n in range(2):
            _, trace = broker.assemble(f"turn {n}", None, "m")
            assert trace["degraded"] == ["neurons"] and trace["admitted"] == ["persona", "user"]
        assert calls == ["turn 0"]
    finally:
        release.set()
    for _ in range(200):
        _, trace = broker.assemble("later", None, "m")
        if not trace["degraded"]:
            break
        time.sleep(0.01)
    assert calls == ["turn 0", "later"] and "neurons" in trace["admitted"]


def test_contributors_see_the_assembly_that_they_run_in() -> None:
    seen = []
    broker = small_broker(8192)
    add(broker, "x", lambda task, session: seen.append(current_assembly()))
    add(broker, "y", lambda task, session: seen.append(current_assembly()), inline=True)
    broker.assemble("t", None, "qwen", dry=True, run={"run_id": "r1"})
    for assembly in seen:
        assert (assembly.model_id, assembly.dry, assembly.window, assembly.budget) == ("qwen", True, 8192, 5735)
        assert assembly.run == {"run_id": "r1"}
    assert len(seen) == 2 and current_assembly().model_id == "" and not current_assembly().dry


# Budget


@pytest.mark.parametrize("window", [2156, 4096, 8191, 8192, 8193, 40960, 131072, 1_000_003])
def test_budget_is_the_window_less_the_completion_reserve_and_a_margin_of_5_percent(window: int) -> None:
    found = ContextBroker.budget(window)
    assert found.reserve == max(2048, window // 4) and found.margin == window // 20
    assert found.budget == window - max(2048, window // 4) - window // 20 > 0


@pytest.mark.parametrize("window", [0, -1, 2**31, 8192.5, "8192", None, True])
def test_a_window_that_is_none_is_refused(window: Any) -> None:
    with pytest.raises(InvalidInput, match="window"):
        ContextBroker.budget(window)


@pytest.mark.parametrize("found", [0, -5, None, "many", 2**40, ConnectionError("refused")])
def test_on_discovery_failure_8192_is_assumed_and_recorded_never_silent(found: Any) -> None:
    def length(model_id: str) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    broker = ContextBroker(length)
    add(broker, "persona", "You are Rune.", evictable=False)
    _, trace = broker.assemble("t", None, "m")
    assert (trace["window"], trace["degraded"]) == (8192, ["context_discovery"])
    assert "8192 is assumed" in trace["ext"]["warnings"][0]


# Compaction, calibration, usage


def test_compaction_threshold_is_80_percent() -> None:
    assert COMPACTION_THRESHOLD == 0.8


def test_compaction_events_ride_the_trace() -> None:
    event = {"archived": 12, "tokens_before": 7000, "tokens_after": 900}
    _, trace = small_broker().assemble("t", None, "m", compaction=[event])
    assert trace["compaction"] == [event]


@pytest.mark.parametrize(
    ("measured", "served", "words"),
    [
        (100, 130, "measured=100 served=130 drift=+30"),
        (100, 70, "measured=100 served=70 drift=-30"),
        (100, 100, "measured=100 served=100 drift=+0"),
        (100, None, "measured=100 served=unknown drift=unknown"),
    ],
)
def test_calibration_is_logged(measured: int, served: int | None, words: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="rune.context_broker"):
        log_calibration(measured, served, "qwen3:4b")
    assert [(r.name, r.getMessage()) for r in caplog.records] == [
        (
            "rune.context_broker",
            f"calibration: {words} model=qwen3:4b (log-only, admission never auto-adjusts)",
        )
    ]


def test_drift_is_never_fed_back_into_admission() -> None:
    broker = with_user(small_broker())
    before = broker.assemble("hello", None, "m")[1]
    for _ in range(20):
        log_calibration(before["admitted_total"], 5000, "m")
    after = broker.assemble("hello", None, "m")[1]
    assert {**before, "elapsed_ms": 0} == {**after, "elapsed_ms": 0}


def test_token_usage_is_backed_by_the_trace(caplog: pytest.LogCaptureFixture) -> None:
    broker = small_broker()
    add(broker, "memory", tokens(40), bucket=3)
    add(broker, "history", ContributionBlock(messages=[{"role": "user", "content": tokens(30)}]), bucket=10)
    add(broker, "user", tokens(20), bucket=11, evictable=False)
    add(broker, "huge", tokens(9000), bucket=4)
    _, trace = broker.assemble("t", None, "m")
    with caplog.at_level(logging.INFO, logger="rune.context_broker"):
        usage = _log_token_usage(trace)
    assert usage == {"static": 3 + 40, "dynamic": 30, "user": 20, "total": 93}
    assert "static=43 dynamic=30 user=20 total=93" in caplog.text


def test_the_fallback_tool_prompt_is_logged_once_per_session_per_model(caplog: pytest.LogCaptureFixture) -> None:
    session = f"session-{id(caplog)}"
    with caplog.at_level(logging.INFO, logger="rune.context_broker"):
        for model in ("a", "a", "b", "a"):
            log_fallback_tool_prompt(session, model, 2500)
    assert [r.getMessage().startswith("fallback tool prompt injected") for r in caplog.records] == [True, True]


def test_without_a_window_of_its_own_the_broker_asks_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    import rune.transports.discovery

    monkeypatch.setattr(rune.transports.discovery, "context_length", {"qwen": 40960}.__getitem__)
    broker = ContextBroker()
    add(broker, "persona", "You are Rune.", evictable=False)
    assert broker.assemble("t", None, "qwen")[1]["window"] == 40960


# Memory off


@pytest.mark.parametrize("value", ["1", "true", "yes", "on", "TRUE", "Yes", " on ", "oN\n"])
def test_memory_off_zeroes_memory_contributors_at_collect_time(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNE_MEMORY_OFF", value)
    broker = with_user(small_broker())
    called: list[str] = []
    for name in ("memory", "persona_memories", "consolidated"):
        add(broker, name, lambda task, session, name=name: called.append(name) or "## Context\n- a note", bucket=3)
    add(broker, "neurons", "## My neurons", bucket=6)
    _, trace = broker.assemble("hello", None, "m")
    assert called == [] and trace["memory_tokens"] == 0
    assert not {row["name"] for row in trace["blocks"]} & MEMORY_BLOCK_NAMES
    assert "neurons" in trace["admitted"]


@pytest.mark.parametrize("value", ["", "0", "false", "no", "off", "2", "onn", "y"])
def test_memory_stays_on_for_any_other_value(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNE_MEMORY_OFF", value)
    broker = small_broker()
    add(broker, "memory", tokens(25), priority=70)
    assert not memory_disabled()
    assert broker.assemble("hello", None, "m")[1]["memory_tokens"] == 25


def test_memory_tokens_sum_the_admitted_memory_blocks_alone() -> None:
    broker = small_broker(8192)
    add(broker, "memory", tokens(100), priority=70)
    add(broker, "persona_memories", tokens(50), priority=68)
    add(broker, "consolidated", tokens(6000), priority=60)
    assert broker.assemble("t", None, "m")[1]["memory_tokens"] == 150


def test_a_name_added_to_memory_block_names_is_covered_by_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = small_broker()
    add(broker, "my_notes", tokens(10))
    MEMORY_BLOCK_NAMES.add("my_notes")
    try:
        assert broker.assemble("t", None, "m")[1]["memory_tokens"] == 10
        monkeypatch.setenv("RUNE_MEMORY_OFF", "1")
        _, trace = broker.assemble("t", None, "m")
        assert trace["memory_tokens"] == 0 and [row["name"] for row in trace["blocks"]] == ["persona"]
    finally:
        MEMORY_BLOCK_NAMES.discard("my_notes")


# The trace


def test_the_trace_has_every_specified_key_in_the_specified_order_and_ext() -> None:
    broker = with_user(small_broker())
    add(broker, "memory", "## Context\n- note", bucket=3)
    add(broker, "huge", tokens(9000), bucket=4)
    _, trace = broker.assemble("hello", None, "qwen3:4b")
    assert list(trace) == TRACE_KEYS
    assert all(list(row) == ROW_KEYS for row in trace["blocks"])
    assert [list(row) for row in trace["dropped"]] == [["name", "tokens", "priority", "reason"]]
    assert trace["model_id"] == "qwen3:4b" and (trace["window"], trace["budget"]) == (8192, 5735)
    assert trace["admitted_total"] == sum(row["tokens"] for row in trace["blocks"] if row["admitted"])
    assert isinstance(trace["elapsed_ms"], float) and trace["elapsed_ms"] > 0
    assert json.loads(json.dumps(trace)) == trace


def test_a_new_contributor_is_in_the_trace_admitted_or_dropped_with_token_counts() -> None:
    broker = small_broker()
    add(broker, "mine", tokens(10))
    add(broker, "mine_too", tokens(9000))
    rows = {row["name"]: row for row in broker.assemble("t", None, "m")[1]["blocks"]}
    assert (rows["mine"]["admitted"], rows["mine"]["tokens"]) == (True, 10)
    assert (rows["mine_too"]["admitted"], rows["mine_too"]["tokens"]) == (False, 9000)


def test_spans_say_where_each_block_stands_in_the_system_text() -> None:
    broker = with_user(small_broker())
    add(broker, "memory", "## Context\n- 你好", bucket=3)
    capsule, trace = broker.assemble("hello", None, "m")
    system = capsule.to_messages()[0]["content"]
    assert trace["ext"]["spans"] == capsule.system_spans()
    for name, (start, end) in trace["ext"]["spans"].items():
        assert system[start:end] == capsule.block(name).content
    assert set(trace["ext"]["spans"]) == {"persona", "memory"}


def test_the_ledger_in_the_trace_is_enough_to_admit_again() -> None:
    from rune.context.assembly import Offer, admit_offers

    session = Conversation("s")
    for n in range(8):
        session.append(turn(n, 100))
    broker = with_user(small_broker(window_with_budget(700)))
    add(broker, "memory", tokens(80), bucket=3, priority=70)
    add(broker, "neurons", tokens(80), bucket=4, priority=70)
    add(broker, "history", history(), bucket=10, priority=30)
    _, trace = broker.assemble("next", session, "m")
    ledger = trace["ext"]["ledger"]
    offers = [
        Offer(r["offered"], r["priority"], r["evictable"], r["registered"], r["section"], r["parts"]) for r in ledger
    ]
    decision = admit_offers(offers, trace["budget"], trace["ext"]["layout"])
    assert decision.total == trace["admitted_total"]
    assert [(o.admitted, o.kept, o.reason) for o in decision.outcomes] == [
        (r["admitted"], r["kept_parts"], r["reason"]) for r in ledger
    ]
    for row in ledger:
        if row["admitted"]:
            assert len(row["digest"]) == 64


def test_admitted_blocks_are_counted_under_a_second_estimator_beside_the_first(kernels: ModuleType) -> None:
    if "script" not in kernels.ESTIMATOR_NAMES:
        pytest.skip("there is one estimator")
    broker = with_user(small_broker())
    _, trace = broker.assemble("你好世界" * 10, None, "m")
    estimates = trace["ext"]["ledger"][1]["estimates"]
    assert estimates["chars4/1"] == 10 and len(estimates) == 2
    assert max(estimates.values()) > 10
    assert trace["ext"]["estimates"]["chars4/1"] == trace["admitted_total"]


# Approval resume


def test_the_capsule_survives_json_with_token_count_ledger_and_exact_messages() -> None:
    session = Conversation.from_messages("s", turn(1))
    broker = with_user(small_broker())
    add(broker, "history", history(), bucket=10, priority=30)
    capsule, _ = broker.assemble("list \udcb2ber.txt", session, "m")
    data = json.loads(json.dumps(capsule.to_dict()))
    assert data["token_count"] == capsule.token_count
    assert [(b["name"], b["tokens"]) for b in data["blocks"]] == [(b.name, b.tokens) for b in capsule.blocks]
    again = AttentionCapsule.from_dict(data)
    assert again.to_messages() == capsule.to_messages()
    assert again.content_hashes() == capsule.content_hashes() and again.token_count == capsule.token_count
    again.block("user").content = "x" * 40
    assert again.block("user").tokens == 10


@pytest.mark.parametrize("vocabulary", [None, 30_000, 200_000])
@pytest.mark.parametrize("estimator", ["chars4", "script"])
def test_a_capsule_of_every_measure_survives(estimator: str, vocabulary: int | None) -> None:
    broker = ContextBroker(lambda model: 8192, estimator=estimator, vocab_size=lambda model: vocabulary)
    capsule, _ = with_user(broker).assemble("7391 你好世界", None, "m")
    again = AttentionCapsule.from_dict(json.loads(json.dumps(capsule.to_dict())))
    assert again.estimator.key == capsule.estimator.key and again.token_count == capsule.token_count
    again.block("user").content = "7391 你好世界" * 2
    capsule.block("user").content = "7391 你好世界" * 2
    assert again.token_count == capsule.token_count


def test_a_capsule_whose_content_was_changed_in_storage_is_refused() -> None:
    data = with_user(small_broker()).assemble("hello", None, "m")[0].to_dict()
    data["blocks"][0]["content"] = "You are Mallory."
    with pytest.raises(InvalidInput, match="persona"):
        AttentionCapsule.from_dict(data)


@pytest.mark.parametrize("data", [{}, {"capsule_version": 99}, {"capsule_version": 1, "estimator": "none/1"}, None])
def test_what_is_no_capsule_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInput):
        AttentionCapsule.from_dict(data)


# Readmission


def test_readmission_runs_no_contributor_again_except_those_of_another_model() -> None:
    calls: list[tuple[str, str]] = []

    def counted(name: str) -> Any:
        def contribute(task: Any, session: Any) -> ContributionBlock:
            calls.append((name, current_assembly().model_id))
            return ContributionBlock(content=f"{name} for {current_assembly().model_id}")

        return contribute

    broker = with_user(small_broker())
    add(broker, "memory", counted("memory"), bucket=3)
    add(broker, "model_profile", counted("model_profile"), bucket=9, per_model=True)
    capsule, _ = broker.assemble("hello", None, "small")
    broker.readmit(capsule, window=32768)
    broker.readmit(capsule, model_id="small")
    assert calls == [("memory", "small"), ("model_profile", "small")]
    again, trace = broker.readmit(capsule, model_id="large")
    assert calls[2:] == [("model_profile", "large")]
    assert again.block("model_profile").content == "model_profile for large"
    assert again.block("memory").content == "memory for small"
    assert trace["admitted"] == ["persona", "memory", "model_profile", "user"]
    assert trace["model_id"] == "large" and trace["ext"]["readmitted"]["model_id"] == "small"


def test_readmission_into_a_larger_budget_brings_back_what_was_dropped() -> None:
    broker = with_user(small_broker(window_with_budget(50)))
    add(broker, "notes", ContributionBlock(parts=[tokens(30), tokens(30)]), bucket=3)
    capsule, trace = broker.assemble("hello", None, "m")
    assert trace["blocks"][1]["tokens"] == 30
    _, trace = broker.readmit(capsule, window=8192)
    assert trace["blocks"][1]["tokens"] == 60 and trace["dropped"] == []


def test_readmission_into_a_given_budget_keeps_the_window() -> None:
    broker = with_user(small_broker(8192))
    add(broker, "notes", tokens(500), bucket=3)
    capsule, _ = broker.assemble("hello", None, "m")
    _, trace = broker.readmit(capsule, budget=100)
    assert (trace["window"], trace["budget"]) == (8192, 100)
    assert [row["name"] for row in trace["dropped"]] == ["notes"]
    with pytest.raises(ContextOverflowError):
        broker.readmit(capsule, budget=2)


def test_readmission_with_other_runtime_entries_replaces_them() -> None:
    broker = with_user(small_broker(8192))
    capsule, _ = broker.assemble("hello", None, "m", extra_blocks=[LedgerEntry("tool_schemas", tokens=5000)])
    assert "tool_schemas" in broker.readmit(capsule)[1]["admitted"]
    _, trace = broker.readmit(capsule, budget=100, extra_blocks=[])
    assert trace["admitted"] == ["persona", "user"]


def test_what_overflowed_is_readmitted_without_running_contributors_again() -> None:
    broker = with_user(small_broker(8192))
    calls: list[str] = []
    add(broker, "consolidated", lambda task, session: calls.append(task) or "knowledge", bucket=5)
    with pytest.raises(ContextOverflowError) as caught:
        broker.assemble("hello", None, "m", extra_blocks=[LedgerEntry("tool_schemas", tokens=6000)])
    capsule, trace = broker.readmit(caught.value.capsule, extra_blocks=[])
    assert trace["admitted"] == ["persona", "consolidated", "user"] and calls == ["hello"]
    assert capsule.to_messages()[-1]["content"] == "hello"


def test_readmission_keeps_the_estimator_that_the_capsule_was_measured_with() -> None:
    class Words:
        key = "words/1"

        def many(self, texts: list[str], /) -> list[int]:
            return [len(text.split()) for text in texts]

    broker = with_user(small_broker())
    capsule, trace = broker.assemble("hello there", None, "m")
    assert trace["admitted_total"] == 3 + 2
    capsule, trace = broker.readmit(capsule, estimator=Words())
    assert (trace["admitted_total"], trace["ext"]["estimator"]) == (3 + 2, "words/1")
    _, trace = broker.readmit(capsule, window=4096)
    assert trace["ext"]["estimator"] == "words/1"
    _, trace = broker.readmit(capsule, model_id="another")
    assert trace["ext"]["estimator"] == "chars4/1"


def test_a_block_that_was_emptied_leaves_no_gap() -> None:
    broker = with_user(small_broker())
    add(broker, "memory", "## Context\n- note", bucket=3)
    capsule, _ = broker.assemble("hello", None, "m")
    capsule.block("memory").content = ""
    assert capsule.to_messages()[0]["content"] == "You are Rune."
    capsule.block("user").content = ""
    assert [m["role"] for m in capsule.to_messages()] == ["system"]


def test_readmission_keeps_the_names_of_what_had_failed() -> None:
    broker = small_broker()
    add(broker, "graphs", lambda task, session: 1 / 0)
    capsule, _ = broker.assemble("t", None, "m")
    assert broker.readmit(capsule, window=4096)[1]["degraded"] == ["graphs"]


# System messages that a session brings


def test_system_messages_of_a_session_are_one_mandatory_block_behind_the_persona() -> None:
    session = Conversation.from_messages(
        "s", [{"role": "system", "content": "Answer in French."}, {"role": "system", "content": "Be brief."}, *turn(1)]
    )
    broker = small_broker()
    add(broker, "session_system", session_system(), bucket=1, priority=100, evictable=False)
    add(broker, "tools", "## Available tools", bucket=2)
    add(broker, "history", history(), bucket=10)
    capsule, trace = with_user(broker).assemble("next", session, "m")
    messages = capsule.to_messages()
    assert messages[0]["content"] == "You are Rune.\n\nAnswer in French.\n\nBe brief.\n\n## Available tools"
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"]
    assert trace["blocks"][1]["reason"] == "mandatory"


def test_a_system_message_among_contributed_messages_does_not_make_a_second_one() -> None:
    broker = with_user(small_broker())
    odd = [{"role": "system", "content": "You are Rune."}, {"role": "system", "content": "Be brief."}, *turn(1)]
    add(broker, "history", ContributionBlock(messages=odd), bucket=10)
    capsule, trace = broker.assemble("next", None, "m")
    messages = capsule.to_messages()
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"]
    assert messages[0]["content"] == "You are Rune.\n\nBe brief."
    assert trace["admitted"] == ["persona", "session_system", "history", "user"]


# Registration


def test_a_name_registered_twice_is_a_value_error() -> None:
    broker = small_broker()
    with pytest.raises(ValueError, match="persona"):
        add(broker, "persona", "again")


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": 3},
        {"contributor": "text"},
        {"bucket": "1"},
        {"priority": 1.5},
        {"priority": True},
        {"evictable": "no"},
        {"source": None},
        {"inline": 1},
    ],
    ids=str,
)
def test_a_registration_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {
        "name": "x",
        "contributor": giving("x"),
        "bucket": 1,
        "priority": 1,
        "evictable": True,
        "source": "s",
        **wrong,
    }
    broker = ContextBroker(lambda model_id: 8192)
    with pytest.raises(InvalidInput):
        broker.register(given.pop("name"), given.pop("contributor"), **given)
    assert broker.contributors == ()


def test_unknown_estimators_and_layouts_are_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match="chars4"):
        ContextBroker(estimator="none")
    with pytest.raises(InvalidInput, match="seed, cache"):
        ContextBroker(layout="none")


def test_the_estimator_may_depend_on_the_model() -> None:
    class Words:
        key = "words/1"

        def many(self, texts: list[str], /) -> list[int]:
            return [len(text.split()) for text in texts]

    broker = ContextBroker(lambda m: 8192, estimator=lambda model_id: Words() if model_id == "w" else "chars4")
    add(broker, "persona", "a b c d e f", evictable=False)
    assert broker.assemble("t", None, "w")[1]["admitted_total"] == 6
    assert broker.assemble("t", None, "other")[1]["admitted_total"] == 11 // 4
    assert broker.assemble("t", None, "w")[1]["ext"]["estimator"] == "words/1"


def test_an_estimator_that_cannot_be_found_out_degrades_to_the_default() -> None:
    broker = ContextBroker(lambda m: 8192, estimator=lambda model_id: 1 / 0)  # type: ignore[arg-type, return-value]
    add(broker, "persona", "You are Rune.", evictable=False)
    _, trace = broker.assemble("t", None, "m")
    assert (trace["degraded"], trace["ext"]["estimator"], trace["admitted_total"]) == (["estimator"], "chars4/1", 3)


@pytest.mark.parametrize("size", [0, -1, "many", None])
def test_a_vocabulary_of_unknown_size_takes_the_table_of_small_ones(size: Any) -> None:
    small = ContextBroker(lambda m: 8192, estimator="script").assemble("t", None, "m")[1]["ext"]["estimator"]
    broker = ContextBroker(lambda m: 8192, estimator="script", vocab_size=lambda model_id: size)
    assert broker.assemble("t", None, "m")[1]["ext"]["estimator"] == small


def test_several_turns_may_be_assembled_at_the_same_time() -> None:
    broker = with_user(small_broker())
    add(broker, "memory", lambda task, session: f"## Context\n- {task}" if int(task) % 2 else 1 / 0, bucket=3)
    found: dict[str, tuple[list[Any], list[str]]] = {}

    def work(n: int) -> None:
        capsule, trace = broker.assemble(str(n), None, "m")
        found[str(n)] = (capsule.to_messages(), trace["degraded"])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for task, (messages, degraded) in found.items():
        odd = bool(int(task) % 2)
        assert messages[-1]["content"] == task
        assert (f"- {task}" in messages[0]["content"], degraded) == (odd, [] if odd else ["memory"])
