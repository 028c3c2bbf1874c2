"""Tiers: where a run begins, and how it goes on with the next model inside one run, with one row, and nothing done twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from operator_helpers import facts_of, only_row, rows
from rune import ContributionBlock, Conversation, RuneOperator, Settings, TaskState, read_traces
from rune.errors import BadReply, ContextOverflowError, ModelNotFound, PromptRefused, ToolError
from rune.inference_trace import verify_row
from rune.runtime.events import TierChanged
from rune.runtime.num_ctx import sticky
from rune.runtime.safety import HEAD
from rune.runtime.tool_executor import make_tool
from rune.transports.discovery import ModelFacts
from scripted import ScriptedTransport, calls, reply

TIERS = {"small": "tiny:1b", "large": "big:70b"}
THREE = {"small": "tiny:1b", "middle": "mid:8b", "large": "big:70b"}
WINDOWS = {"tiny:1b": 8192, "mid:8b": 16384, "big:70b": 32768}
CHAT, CODE = "Hello there!", "Fix the bug in this code"


class Tiered(ScriptedTransport):
    """A server of several models, each with facts of its own; a fact that is an exception is raised."""

    def __init__(
        self, script: Any, windows: Mapping[str, Any] = WINDOWS, *, can: str = "tools", **options: Any
    ) -> None:
        super().__init__(script, **{"repeat": True, **options})
        self.by_model = {
            model: window if isinstance(window, (ModelFacts, Exception)) else facts_of(window, can)
            for model, window in windows.items()
        }

    def fetch_facts(self, model: str) -> ModelFacts:
        found = self.by_model[model]
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    sticky.clear()
    yield
    sticky.clear()


def operator_on(
    home: Path, transport: ScriptedTransport, tools: Any = None, named: str | None = None, **settings: Any
) -> RuneOperator:
    loaded = Settings.load(home, env={}, **{"tiers": TIERS, "workspace": str(home.parent), **settings})
    return RuneOperator(transport, named, home, loaded, tools={} if tools is None else tools)


def refusal(prompt: int | None = None, window: int | None = None) -> PromptRefused:
    return PromptRefused("too long", n_prompt_tokens=prompt, n_ctx=window, status=400)


def models(transport: ScriptedTransport) -> list[str]:
    return [sent.model for sent in transport.sent]


def session_of(turns: int, size: int, letter: str = "abcd") -> Conversation:
    session = Conversation("s")
    for _ in range(turns):
        session.append([{"role": "user", "content": "abcd"}, {"role": "assistant", "content": letter * size}])
    return session


def fail(number: int = 0) -> str:
    """Fails."""
    raise ToolError(f"no such thing {number}")


def look(number: int = 0) -> str:
    """Looks."""
    return f"seen {number}"


TOOLS = {"fail": make_tool(fail), "look": make_tool(look)}


# Where a run begins


def test_the_family_says_where_a_run_begins_and_the_row_says_why(home: Path) -> None:
    transport = Tiered(["ok"])
    operator = operator_on(home, transport)
    for task in (CHAT, CODE):
        assert operator.run(task).success
    assert models(transport) == ["tiny:1b", "big:70b"]
    chat, code = rows(home)
    assert [chat[k] for k in ("model", "routing_mode", "task_family")] == ["tiny:1b", "tiered", "chat"]
    assert [code[k] for k in ("model", "routing_mode", "task_family")] == ["big:70b", "tiered", "code"]
    assert code["routing_reason"] == "family code (it asks for work on code) begins on tier large: heavy work"
    assert (chat["resolved_context_window"], code["resolved_context_window"]) == (8192, 32768)
    assert code["ext"]["routing"] == {
        "mode": "tiered",
        "family": "code",
        "reason": code["routing_reason"],
        "model": "big:70b",
        "tier": "large",
        "start": "large",
        "tiers": [{"name": "small", "model": "tiny:1b"}, {"name": "large", "model": "big:70b"}],
        "escalations": [],
    }


def test_the_model_block_and_the_options_are_those_of_the_model_that_runs(home: Path) -> None:
    models_ = {"tiny:1b": {"options": {"seed": 1}, "notes": "Is tiny."}, "big:70b": {"notes": "Is big."}}
    transport = Tiered(["ok"])
    operator = operator_on(home, transport, models=models_)
    operator.run(CHAT, options={"top_k": 3})
    operator.run(CODE)
    small, large = transport.sent
    assert small.options["options"] == {"seed": 1, "top_k": 3} and "options" not in large.options
    assert "Is tiny." in small.messages[0]["content"] and "Is big." in large.messages[0]["content"]


def test_one_model_is_mode_single(home: Path) -> None:
    for number, settings in enumerate(({"tiers": {}}, {"tiers": {"only": "tiny:1b"}})):
        transport = Tiered(["ok"], {"scripted": 8192, "tiny:1b": 8192})
        operator = operator_on(home, transport, **settings)
        assert operator.run(CODE).success
        row = rows(home)[number]
        assert (row["routing_mode"], row["task_family"]) == ("single", "code")
        assert models(transport) == [["scripted"], ["tiny:1b"]][number]
        assert row["routing_reason"].startswith("one model is all there is")


@pytest.mark.parametrize("how", ["argument", "settings"])
def test_a_model_that_is_named_counts_before_the_tiers_and_is_not_left(home: Path, how: str) -> None:
    transport = Tiered([refusal(9000, 8192)], {**WINDOWS, "mine": 8192})
    operator = operator_on(home, transport, **{"named" if how == "argument" else "model": "mine"})
    response = operator.run(CODE)
    assert isinstance(response.exception, ContextOverflowError)
    assert set(models(transport)) == {"mine"}
    row = only_row(home)
    assert (row["routing_mode"], row["model"]) == ("explicit", "mine") and "mine was named" in row["routing_reason"]


def test_images_begin_where_they_can_be_seen(home: Path) -> None:
    windows = {"tiny:1b": facts_of(8192, "tools"), "big:70b": facts_of(8192, "tools", "vision")}
    transport = Tiered(["a cat"], windows)
    assert operator_on(home, transport).run(TaskState("What is it?", images=["aGk="])).success
    assert models(transport) == ["big:70b"]
    assert only_row(home)["routing_reason"].endswith("moved to tier large, as small cannot see images")


# Going on with the next tier


def test_an_overflow_goes_on_with_a_larger_window_and_collects_only_what_depends_on_the_model(home: Path) -> None:
    transport = Tiered(["ok"])
    operator = operator_on(home, transport, TOOLS)
    asked = {"fixed": 0, "by_model": 0}

    def contributor(name: str) -> Any:
        def contribute(task: Any, session: Any) -> ContributionBlock:
            asked[name] += 1
            return ContributionBlock(content=f"{name} {asked[name]}")

        return contribute

    broker = operator._context_broker()
    for name in asked:
        broker.register(
            name,
            contributor(name),
            bucket=3,
            priority=95,
            evictable=False,
            source="test",
            per_model=name == "by_model",
        )
    heard: list[Any] = []
    task = "Hello there, " + "word " * 5600  # 7,000 tokens: over the budget of 8192, within that of 32768
    response = operator.run(task, session_of(2, 20), on_event=heard.append)
    assert response.success and models(transport) == ["big:70b"]
    assert asked == {"fixed": 1, "by_model": 2}
    row = only_row(home)
    (sent,) = transport.sent
    assert row["capsule_messages"] == sent.messages and verify_row(row)
    assert "fixed 1" in sent.messages[0]["content"] and "by_model 2" in sent.messages[0]["content"]
    assert "- look" in sent.messages[0]["content"] and sent.tool_names == ["fail", "look"]
    assert (row["model"], row["resolved_context_window"]) == ("big:70b", 32768)
    (step,) = row["ext"]["routing"]["escalations"]
    assert (step["from"], step["to"], step["model"], step["why"]) == ("small", "large", "big:70b", "overflow")
    assert "8192" in step["error"]
    assert [event for event in heard if isinstance(event, TierChanged)] == [TierChanged("large", "big:70b", "overflow")]
    assert response.warnings == []  # that tools did not fit was the small one's trouble
    assert row["routing_reason"].endswith("begins on tier small: middling work")


def test_a_refusal_goes_on_after_the_tier_has_tried_what_it_can(home: Path) -> None:
    transport = Tiered([refusal(9000, 8192), refusal(8500, 8192), "ok"])
    operator = operator_on(home, transport)
    session = session_of(8, 400, "7391")
    assert operator.run(CHAT, session).success
    assert models(transport) == ["tiny:1b", "tiny:1b", "big:70b"]
    row = only_row(home)
    assert row["capsule_messages"] == transport.sent[2].messages
    assert [(a["model"], a["outcome"]) for a in row["ext"]["attempts"]] == [
        ("tiny:1b", "refused"),
        ("tiny:1b", "refused"),
        ("big:70b", "answered"),
    ]
    assert row["ext"]["routing"]["escalations"][0]["why"] == "refused"
    assert row["ext"]["estimator"].startswith("chars4/")  # the stricter measure was for the small window
    assert len(transport.sent[2].messages) == len(transport.sent[0].messages) > len(transport.sent[1].messages)
    assert (row["model_calls"], row["ext"]["verdict"]["kind"], row["success"]) == (1, "whole", True)
    assert len(session.turns) == 9


def test_a_tool_loop_that_outgrows_a_tier_is_not_done_again(home: Path) -> None:
    made: list[int] = []

    def long_result(number: int) -> str:
        """Gives a long text."""
        made.append(number)
        return "word " * 1590

    script = [calls(("long_result", {"number": 1})), calls(("long_result", {"number": 2})), "Done."]
    transport = Tiered(script, {"tiny:1b": 3000, "big:70b": 32768})
    operator = operator_on(home, transport, {"long_result": make_tool(long_result)})
    session = Conversation("s")
    response = operator.run(CHAT, session)
    assert (response.success, response.text, made) == (True, "Done.", [1, 2])
    assert models(transport) == ["tiny:1b", "big:70b", "big:70b"]
    row = only_row(home)
    begun = len(row["capsule_messages"])
    assert transport.sent[1].messages[:begun] == row["capsule_messages"]
    assert [m["role"] for m in transport.sent[1].messages[begun:]] == ["assistant", "tool"]
    assert row["ext"]["routing"]["escalations"][0]["why"] == "overflow"
    assert [m["role"] for m in session.turns[0]] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert row["model_calls"] == 3 and row["prompt_tokens_served"] == sum(
        c["prompt_tokens"] for c in row["ext"]["calls"]
    )


def test_tool_calls_that_fail_three_times_in_a_row_go_on_with_the_next_tier(home: Path) -> None:
    script = [*(calls(("fail", {"number": n})) for n in range(3)), calls(("look", {})), "Found."]
    transport = Tiered(script)
    response = operator_on(home, transport, TOOLS).run(CHAT)
    assert response.text == "Found."
    assert models(transport) == ["tiny:1b"] * 3 + ["big:70b"] * 2
    row = only_row(home)
    (step,) = row["ext"]["routing"]["escalations"]
    assert step["why"] == "tool_failures" and "no such thing 2" in step["error"]
    assert [t["ok"] for t in row["ext"]["tools"]] == [False, False, False, True]
    begun = len(row["capsule_messages"])
    assert transport.sent[3].messages[:begun] == row["capsule_messages"]
    assert len(transport.sent[3].messages) == begun + 6  # what was tried is shown to the next model


def test_a_call_that_works_in_between_counts_anew(home: Path) -> None:
    wanted = [
        ("fail", {"number": 1}),
        ("fail", {"number": 2}),
        ("look", {}),
        ("fail", {"number": 3}),
        ("fail", {"number": 4}),
    ]
    transport = Tiered([*map(calls, wanted), "ok"])
    assert operator_on(home, transport, TOOLS).run(CHAT).success
    assert set(models(transport)) == {"tiny:1b"}


def test_going_in_circles_goes_on_and_limits_count_anew(home: Path) -> None:
    same = calls(("look", {"number": 1}))
    transport = Tiered([same, same, same, same, same, "Well."])
    response = operator_on(home, transport, TOOLS, max_steps=3).run(CHAT)
    assert response.text == "Well." and response.success
    assert models(transport) == ["tiny:1b"] * 3 + ["big:70b"] * 3
    assert only_row(home)["ext"]["routing"]["escalations"][0]["why"] == "loop"


def test_what_a_person_does_not_allow_is_no_failure_of_the_model(home: Path) -> None:
    tools = {"fail": make_tool(fail, approval=True)}
    transport = Tiered([*(calls(("fail", {"number": n})) for n in range(4)), "Then not."])
    operator = operator_on(home, transport, tools)
    response = operator.run(CHAT, tools=["fail"])
    for _ in range(4):
        assert response.done_reason == "pending"
        response = operator.resume(response.run_id, "deny")
    assert response.text == "Then not." and models(transport) == ["tiny:1b"] * 5
    first, *others = read_traces(home)
    for row in others:  # a turn that goes on stays on its model, and says how it came to it
        assert row["ext"]["routing"] == first["ext"]["routing"] and row["routing_reason"] == first["routing_reason"]


def test_a_tier_whose_window_is_no_larger_is_passed_over(home: Path) -> None:
    windows = {**WINDOWS, "mid:8b": 8192}
    transport = Tiered([refusal(9000, 8192), "ok"], windows)
    assert operator_on(home, transport, tiers=THREE).run(CHAT).success
    assert models(transport) == ["tiny:1b", "big:70b"]
    assert only_row(home)["ext"]["routing"]["skipped"] == [
        {"tier": "middle", "why": "its window of 8192 is no larger than 8192"}
    ]


@pytest.mark.parametrize("settings", [{"num_ctx": 4096}, {"num_ctx_max": 4096}], ids=["explicit", "ceiling"])
def test_where_every_tier_has_the_same_room_the_first_ones_error_stands(home: Path, settings: dict[str, Any]) -> None:
    transport = Tiered([refusal(5000, 4096)])
    response = operator_on(home, transport, **settings).run(CHAT)
    assert isinstance(response.exception, ContextOverflowError) and response.exception.origin == "server"
    assert set(models(transport)) == {"tiny:1b"}
    row = only_row(home)
    assert row["success"] is False and row["capsule_messages"] == transport.sent[-1].messages


def test_when_no_tier_holds_it_the_last_ones_error_stands(home: Path) -> None:
    transport = Tiered(["never"], can="completion")
    response = operator_on(home, transport, tiers=THREE).run("Hello " * 40_000)
    assert isinstance(response.exception, ContextOverflowError)
    assert transport.sent == []
    row = only_row(home)
    assert row["model"] == "big:70b" and row["resolved_context_window"] == 32768 and row["capsule_messages"] is None
    assert [step["to"] for step in row["ext"]["routing"]["escalations"]] == ["large"]  # it began in the middle


def test_a_next_tier_that_is_not_there_leaves_the_error_that_was(home: Path) -> None:
    transport = Tiered([refusal(9000, 8192), ModelNotFound("there is no big:70b")])
    response = operator_on(home, transport).run(CHAT)
    assert isinstance(response.exception, ContextOverflowError)
    row = only_row(home)
    assert row["ext"]["routing"]["escalations"][0]["failed"] == "ModelNotFound: there is no big:70b"
    assert row["capsule_messages"] == transport.sent[-1].messages


def test_a_next_tier_that_is_not_there_after_failing_tools_goes_back(home: Path) -> None:
    script = [
        *(calls(("fail", {"number": n})) for n in range(3)),
        BadReply("out of memory", status=500),
        "I could not.",
    ]
    transport = Tiered(script)
    response = operator_on(home, transport, TOOLS).run(CHAT)
    assert (response.success, response.text) == (True, "I could not.")
    assert models(transport) == ["tiny:1b"] * 3 + ["big:70b", "tiny:1b"]
    row = only_row(home)
    assert row["model"] == "tiny:1b" == row["ext"]["routing"]["model"]
    assert "out of memory" in row["ext"]["routing"]["escalations"][0]["failed"]
    begun = len(row["capsule_messages"])
    assert transport.sent[4].messages[:begun] == row["capsule_messages"]


def test_a_tier_in_the_middle_that_is_not_there_is_passed_over(home: Path) -> None:
    transport = Tiered([refusal(9000, 8192), ModelNotFound("there is no mid:8b"), "ok"])
    response = operator_on(home, transport, tiers=THREE).run(CHAT)
    assert response.success and models(transport) == ["tiny:1b", "mid:8b", "big:70b"]
    steps = only_row(home)["ext"]["routing"]["escalations"]
    assert [(s["from"], s["to"], "failed" in s) for s in steps] == [
        ("small", "middle", True),
        ("middle", "large", False),
    ]


def test_an_error_of_the_first_tier_is_the_runs(home: Path) -> None:
    transport = Tiered([ModelNotFound("there is no tiny:1b")])
    response = operator_on(home, transport).run(CHAT)
    assert isinstance(response.exception, ModelNotFound) and models(transport) == ["tiny:1b"]


def test_a_run_that_is_cancelled_goes_nowhere(home: Path) -> None:
    import threading

    cancel = threading.Event()

    def stop(sent: Any) -> Any:
        cancel.set()
        return refusal(9000, 8192)

    transport = Tiered([stop, "never"])
    response = operator_on(home, transport).run(CHAT, cancel=cancel)
    assert not response.success and models(transport) == ["tiny:1b"]


def test_the_safety_note_is_taken_along_once(home: Path) -> None:
    task = "Delete the old backups. " + "word " * 5600
    transport = Tiered(["ok"])
    assert operator_on(home, transport, tiers={"small": "tiny:1b", "large": {"model": "big:70b"}}).run(task).success
    (sent,) = transport.sent
    assert sent.model == "big:70b" and sent.messages[-1]["content"].count(HEAD) == 1
    row = only_row(home)
    assert row["capsule_messages"] == sent.messages and row["ext"]["safety"]["rules"] == ["delete"]


def test_side_effects_of_contributors_happen_once(home: Path) -> None:
    from rune.memory import kinds
    from rune.paths import database
    from rune.storage.database import Database

    with Database(database(home)) as db:
        kinds.add(db, "memory", "The lighthouse keeper is called Ada and lives by the sea.")
    transport = Tiered([refusal(9000, 8192), "ok"])
    with operator_on(home, transport) as operator:
        operator.run("Tell me of the lighthouse keeper")
    assert models(transport) == ["tiny:1b", "big:70b"]
    assert all("called Ada" in sent.messages[0]["content"] for sent in transport.sent)
    with Database(database(home)) as db:
        assert [row["recalls"] for row in kinds.list_rows(db, "memory")] == [1]


def test_the_cost_is_that_of_every_models_calls(home: Path) -> None:
    prices = {"tiny:1b": {"input": 1, "output": 2}, "big:70b": {"input": 10, "output": 20}}
    script = [*(calls(("fail", {"number": n}), prompt_tokens=1000) for n in range(3)), reply("ok", prompt_tokens=2000)]
    operator_on(home, Tiered(script), TOOLS, prices=prices).run(CHAT)
    row = only_row(home)
    outputs = [call["output_tokens"] for call in row["ext"]["calls"]]
    expected = (3 * 1000 * 1 + sum(outputs[:3]) * 2 + 2000 * 10 + outputs[3] * 20) / 1e6
    assert row["cost_basis"] == "price-map" and row["cost_usd"] == pytest.approx(expected)
    assert row["ext"]["price"]["model"] == "tiny:1b + big:70b"


def test_without_the_price_of_one_of_them_there_is_no_cost(home: Path) -> None:
    script = [*(calls(("fail", {"number": n})) for n in range(3)), "ok"]
    operator_on(home, Tiered(script), TOOLS, prices={"big:70b": {"input": 10, "output": 20}}).run(CHAT)
    assert (only_row(home)["cost_usd"], only_row(home)["cost_basis"]) == (None, "local-unpriced")


# Plans


def test_a_plan_shows_what_the_router_would_take(home: Path) -> None:
    operator = operator_on(home, Tiered([]))
    for task, tier in ((CHAT, "small"), (CODE, "large"), ("Hello there, " + "word " * 5600, "large")):
        _, trace = operator.plan(task)
        assert (
            trace["ext"]["routing"]["tier"] == tier
            and trace["model_id"] == operator.router.tiers[tier == "large"].model
        )
    assert [step["why"] for step in trace["ext"]["routing"]["escalations"]] == ["overflow"]
    _, trace = operator.plan(CODE, window=8192)
    assert (trace["model_id"], trace["window"]) == ("big:70b", 8192)
    assert not home.joinpath("state").exists()


def test_replies_of_both_models_are_in_the_row(home: Path) -> None:
    script = [*(calls(("fail", {"number": n})) for n in range(3)), reply("ok", prompt_tokens=777)]
    transport = Tiered(script)
    operator_on(home, transport, TOOLS).run(CHAT)
    row = only_row(home)
    assert row["model_calls"] == 4 and row["ext"]["calls"][-1]["prompt_tokens"] == 777
    assert row["prompt_tokens_served"] == sum(call["prompt_tokens"] for call in row["ext"]["calls"])
