"""The broker's contract, proved again on this machine: ``python -m rune.canary_context_broker``.

One line for each check; exit 0 when all hold, 3 when one does not. No model, no network; files go to a temporary home.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from rune.context.assembly import Offer, admit_offers
from rune.context.blocks import ContributionBlock
from rune.context.capsule import AttentionCapsule
from rune.context.conversation import Conversation
from rune.context_broker import MEMORY_BLOCK_NAMES, ContextBroker, LedgerEntry, token_usage
from rune.contributors import CONTRIBUTORS, history, session_system
from rune.contributors import user as user_text
from rune.errors import ContextOverflowError
from rune.messages import incomplete_reason, split_turns

__all__ = ["CHECKS", "main"]

WINDOW = 8192
TRACE_KEYS = (
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
)
ROW_KEYS = ("name", "priority", "tokens", "source", "evictable", "admitted", "reason")


class CheckFailed(Exception):
    """A check that does not hold; the message says what was found."""


def _expect(holds: bool, found: object) -> None:
    if not holds:
        raise CheckFailed(f"found {found!r}")


@contextmanager
def _environment(**values: str | None) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    try:
        _set(values)
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _broker(window: int = WINDOW, **contents: Any) -> tuple[ContextBroker, list[str]]:
    """A broker with the operator's table; blocks hold their own name unless given. Also who was called, in order."""
    broker = ContextBroker(lambda model_id: window)
    called: list[str] = []

    def contributor(name: str) -> Callable[[Any, Any], Any]:
        def contribute(task: Any, session: Any) -> Any:
            called.append(name)
            given = contents.get(name, f"The text of {name}.")
            return given(task, session) if callable(given) else given

        return contribute

    for spec in CONTRIBUTORS:
        broker.register(
            spec.name,
            contributor(spec.name),
            bucket=spec.bucket,
            priority=spec.priority,
            evictable=spec.evictable,
            source=spec.source,
            per_model=spec.per_model,
        )
    return broker, called


def _sized(size: int, task: Any, session: Any) -> ContributionBlock:
    return ContributionBlock(content="abcd" * size)


def _session(turns: int, words: int = 20) -> Conversation:
    session = Conversation("canary")
    for n in range(turns):
        call = {"id": f"call_{n}", "type": "function", "function": {"name": "read", "arguments": {"part": n}}}
        session.append(
            [
                {"role": "user", "content": f"Read part {n}."},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"call_{n}", "content": "word " * words},
                {"role": "assistant", "content": f"Part {n} is read."},
            ]
        )
    return session


def check_budget_is_window_less_reserve_and_margin() -> str:
    for window, budget in ((4096, 1844), (8192, 5735), (32768, 22938), (131072, 91751)):
        found = ContextBroker.budget(window)
        _expect(found.budget == budget == window - max(2048, window // 4) - window // 20, found)
    return "4096 gives 1844, 8192 gives 5735, 32768 gives 22938, 131072 gives 91751"


def check_every_contributor_runs_once_in_registration_order() -> str:
    broker, called = _broker(memory="m" * 400_000)
    capsule, trace = broker.assemble("task", None, "canary")
    broker.readmit(capsule, window=4096)
    _expect(called == [spec.name for spec in CONTRIBUTORS], called)
    _expect([row["name"] for row in trace["dropped"]] == ["memory"], trace["dropped"])
    return f"{len(called)} contributors, once each, a dropped one too"


def check_every_block_is_in_the_trace_admitted_or_dropped_with_tokens() -> str:
    broker, _ = _broker(memory="m" * 400_000)
    _, trace = broker.assemble("task", None, "canary")
    _expect(list(trace)[: len(TRACE_KEYS)] == list(TRACE_KEYS), list(trace))
    _expect(all(tuple(row) == ROW_KEYS for row in trace["blocks"]), trace["blocks"])
    _expect({row["name"] for row in trace["blocks"]} == {spec.name for spec in CONTRIBUTORS}, trace["blocks"])
    admitted = sum(row["tokens"] for row in trace["blocks"] if row["admitted"])
    _expect(admitted == trace["admitted_total"] <= trace["budget"], trace["admitted_total"])
    usage = token_usage(trace)
    _expect(usage["static"] + usage["dynamic"] + usage["user"] == usage["total"] == admitted, usage)
    return f"{len(trace['blocks'])} blocks, {admitted} of {trace['budget']} tokens"


def check_admission_takes_priority_then_recency_and_goes_on() -> str:
    broker = ContextBroker(lambda model_id: WINDOW)
    sizes = {"must": 5000, "large": 900, "first": 400, "second": 400, "small": 300}
    priorities = {"must": 0, "large": 90, "first": 50, "second": 50, "small": 10}
    for bucket, (name, size) in enumerate(sizes.items()):
        broker.register(
            name,
            partial(_sized, size),
            bucket=bucket,
            priority=priorities[name],
            evictable=name != "must",
            source="canary",
        )
    _, trace = broker.assemble("task", None, "canary")
    _expect(trace["admitted"] == ["must", "second", "small"], trace["admitted"])
    return "mandatory, then by priority, the later registered first, smaller ones after one that did not fit"


def check_what_must_enter_and_does_not_fit_is_an_error() -> str:
    broker, _ = _broker(user="z" * 40_000)
    try:
        broker.assemble("task", None, "canary")
    except ContextOverflowError as exc:
        found = (exc.block, exc.block_tokens, exc.budget, exc.window)
        _expect(found == ("user", 10_000, 5735, WINDOW) and exc.trace is not None, found)
        return "user with 10000 tokens is refused, nothing is cut"
    raise CheckFailed("10000 mandatory tokens entered a budget of 5735")


def check_render_is_system_history_user() -> str:
    broker, _ = _broker(history=history(), user=user_text())
    capsule, trace = broker.assemble("the task", _session(2), "canary")
    messages = capsule.to_messages()
    roles = [message["role"] for message in messages]
    _expect(roles == ["system", *["user", "assistant", "tool", "assistant"] * 2, "user"], roles)
    system = messages[0]["content"]
    spans = trace["ext"]["spans"]
    _expect(all(system[a:b] == capsule.block(name).content for name, (a, b) in spans.items()), spans)
    order = [spec.name for spec in CONTRIBUTORS]
    _expect(list(spans) == order[:-2] and trace["admitted"] == order, list(spans))
    return "one system message, whole turns, the task last"


def check_a_change_of_a_block_flows_through() -> str:
    broker, _ = _broker(user=user_text())
    capsule, _ = broker.assemble("delete everything", None, "canary")
    before = capsule.content_hashes()["user"]
    capsule.block("user").content = "[refused] delete everything"
    block = capsule.block("user")
    _expect(capsule.to_messages()[-1]["content"] == "[refused] delete everything", capsule.to_messages()[-1])
    _expect((block.tokens_before, block.tokens) == (4, 6) and block.digest != before, (block.tokens, block.digest))
    return "message, tokens and hash follow; tokens before are kept"


def check_a_failing_contributor_degrades_and_the_turn_goes_on() -> str:
    def broken(task: Any, session: Any) -> None:
        raise OSError("the disk is gone")

    broker, _ = _broker(graphs=broken, neurons=123)
    _, trace = broker.assemble("task", None, "canary")
    _expect(trace["degraded"] == ["neurons", "graphs"], trace["degraded"])
    _expect("user" in trace["admitted"], trace["admitted"])
    return "graphs and neurons are named, the rest is there"


def check_memory_off_proves_zero_memory_tokens() -> str:
    with _environment(RUNE_MEMORY_OFF="1"):
        broker, called = _broker()
        _, trace = broker.assemble("task", None, "canary")
    names = {row["name"] for row in trace["blocks"]}
    _expect(trace["memory_tokens"] == 0 and not names & MEMORY_BLOCK_NAMES, (trace["memory_tokens"], names))
    _expect(not set(called) & MEMORY_BLOCK_NAMES, called)
    with _environment(RUNE_MEMORY_OFF=None):
        broker, _ = _broker()
        _, trace = broker.assemble("task", None, "canary")
    _expect(trace["memory_tokens"] > 0, trace["memory_tokens"])
    return f"{', '.join(sorted(MEMORY_BLOCK_NAMES))} are not called and not in the trace"


def check_tool_schemas_are_counted() -> str:
    broker, _ = _broker()
    capsule, trace = broker.assemble(
        "task", None, "canary", extra_blocks=[LedgerEntry("tool_schemas", tokens_text="s" * 4000)]
    )
    row = next(row for row in trace["blocks"] if row["name"] == "tool_schemas")
    _expect((row["tokens"], row["evictable"]) == (1000, False), row)
    _expect(not any("ssss" in message["content"] for message in capsule.to_messages()), "rendered")
    return "1000 tokens in the ledger, none in the messages"


def check_calls_and_results_never_part() -> str:
    session = _session(8, words=900)
    session.append([{"role": "user", "content": "never answered"}])
    broker, _ = _broker(history=history(), user=user_text())
    capsule, trace = broker.assemble("the task", session, "canary")
    facts = trace["ext"]["history"]
    kept = capsule.to_messages()[1:-1]
    _expect(all(incomplete_reason(turn) is None for turn in split_turns(kept)), [m["role"] for m in kept])
    _expect(0 < facts["admitted"] < facts["offered"] == 8 and facts["incomplete"] == 1, facts)
    return f"{facts['admitted']} of 8 turns admitted, each whole; an unanswered one is named and not offered"


def check_one_system_message_whatever_the_session_brings() -> str:
    brought = [{"role": "system", "content": "Be brief."}, {"role": "system", "content": "The text of persona."}]
    session = Conversation.from_messages(
        "canary", [*brought, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    )
    broker, _ = _broker(session_system=session_system("The text of persona."), history=history(), user=user_text())
    capsule, _ = broker.assemble("the task", session, "canary")
    messages = capsule.to_messages()
    _expect([message["role"] for message in messages] == ["system", "user", "assistant", "user"], messages)
    _expect(messages[0]["content"].startswith("The text of persona.\n\nBe brief.\n\n"), messages[0]["content"])
    return "the session's own stands behind the persona, once"


def check_the_trace_admits_again_what_it_says() -> str:
    broker, _ = _broker(history=history(), memory="m" * 9000)
    _, trace = broker.assemble("task", _session(8, words=500), "canary")
    ledger = trace["ext"]["ledger"]
    offers = [
        Offer(r["offered"], r["priority"], r["evictable"], r["registered"], r["section"], r["parts"]) for r in ledger
    ]
    decision = admit_offers(offers, trace["budget"], trace["ext"]["layout"])
    _expect(decision.total == trace["admitted_total"], decision.total)
    _expect([o.reason for o in decision.outcomes] == [row["reason"] for row in ledger], decision.outcomes)
    return f"{len(ledger)} blocks from their numbers alone"


def check_the_capsule_survives_json() -> str:
    broker, _ = _broker(history=history(), user=user_text())
    first, _ = broker.assemble("list \udcb2.txt", _session(2), "canary")
    for capsule in (first, broker.readmit(first, estimator="script")[0]):
        again = AttentionCapsule.from_dict(json.loads(json.dumps(capsule.to_dict())))
        _expect(again.to_messages() == capsule.to_messages(), "other messages")
        _expect(again.content_hashes() == capsule.content_hashes(), "other hashes")
        _expect(again.token_count == capsule.token_count, "other tokens")
    return "same messages, same hashes, same tokens"


def check_a_conversation_survives_being_opened_again() -> str:
    with tempfile.TemporaryDirectory(prefix="rune-canary-") as home:
        first = Conversation.open("canary", home)
        first.append([{"role": "user", "content": "kept?"}, {"role": "assistant", "content": "kept."}])
        _expect(first.unsaved == 0, first.unsaved)
        again = Conversation.open("canary", home)
        _expect(again.turns == first.turns and again.chain == first.chain, again.turns)
    return "turns and chain digest are the same"


def check_both_backends_admit_alike() -> str:
    from rune.kernels import native, pure

    if native is None:
        return "only the pure one is here"
    sizes, ranks = [100, 20, 2600, 1200, 900, 400, 400, 200, 135], [100, 90, 70, 68, 60, 55, 55, 30, 100]
    evictable = [rank < 90 for rank in ranks]
    for budget in (-1, 0, 255, 300, 1500, 3000, 5735, 10**6):
        here, there = (k.admit(sizes, ranks, evictable, None, budget) for k in (native, pure))
        _expect(tuple(here.reasons) == tuple(there.reasons) and here.total == there.total, (budget, here, there))
    return "native and pure, 8 budgets"


CHECKS: dict[str, Callable[[], str]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}
"""Every check by name; a check returns one sentence, or raises."""


def main() -> int:
    """Runs all checks, prints one line for each, and returns the exit code."""
    logging.getLogger("rune").addHandler(logging.NullHandler())  # failures are made on purpose here
    failed = 0
    with tempfile.TemporaryDirectory(prefix="rune-canary-") as home, _environment(RUNE_HOME=home, RUNE_MEMORY_OFF=None):
        for name, check in CHECKS.items():
            try:
                print(f"ok    {name}: {check()}")
            except CheckFailed as exc:
                failed += 1
                print(f"FAIL  {name}: {exc}")
            except Exception:
                failed += 1
                print(f"FAIL  {name}: {traceback.format_exc(limit=3).strip().splitlines()[-1]}")
    print(f"{len(CHECKS) - failed} of {len(CHECKS)} checks hold")
    return 3 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
