"""From an assembled turn to an answer: which window is asked for, and every way up, down and out after a refusal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from operator_helpers import facts_of, only_row, operator_of, rows, sent_by
from rune import Conversation, RuneOperator
from rune.errors import BadReply, ContextOverflowError, PromptRefused
from rune.operator_attempts import REPLY_LEAST
from rune.runtime.num_ctx import sticky
from rune.runtime.tool_executor import make_tool
from rune.transports.base import Verdict
from scripted import ScriptedTransport, calls, reply


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    sticky.clear()
    yield
    sticky.clear()


def refusal(prompt: int | None = None, window: int | None = None) -> PromptRefused:
    return PromptRefused("too long", n_prompt_tokens=prompt, n_ctx=window, status=400)


def num_ctxs(operator: RuneOperator) -> list[int]:
    return [sent.options["num_ctx"] for sent in sent_by(operator)]


def session_of(turns: int, size: int, letter: str = "abcd") -> Conversation:
    """A session of turns that measure ``size`` tokens each by chars4."""
    session = Conversation("s")
    for number in range(turns):
        question, answer = f"Q{number:03}", letter * (size - 1)
        session.append([{"role": "user", "content": question}, {"role": "assistant", "content": answer}])
    return session


DENSE = "7391"  # one token a digit for many tokenizers: chars4 reads a quarter of the truth, script does not


# What is asked for


def test_the_first_step_and_the_room_that_it_leaves(home: Path) -> None:
    operator = operator_of(home, ["ok"], facts=facts_of(131_072))
    operator.run("hi")
    (sent,) = sent_by(operator)
    assert sent.options["num_ctx"] == 8192
    assert 7900 < sent.options["num_predict"] < 8192
    row = only_row(home)
    assert (row["resolved_context_window"], row["ext"]["trained_window"], row["ext"]["num_ctx"]) == (
        131_072,
        131_072,
        8192,
    )
    assert row["input_budget"] == 131_072 - 131_072 // 4 - 131_072 // 20


def test_a_long_prompt_takes_the_step_that_holds_it_and_the_next_turn_stays_there(home: Path) -> None:
    operator = operator_of(home, ["ok"], facts=facts_of(131_072))
    operator.run("some words " * 3000)
    operator.run("hi")
    assert num_ctxs(operator) == [16384, 16384]
    assert rows(home)[1]["ext"]["num_ctx_reason"] == "as before"


def test_what_is_loaded_is_not_gone_below(home: Path) -> None:
    operator = operator_of(home, ["ok"], facts=facts_of(131_072), server={"loaded": lambda: 32768})
    operator.run("hi")
    assert num_ctxs(operator) == [32768]


def test_the_callers_limit_of_the_reply_is_sent_as_it_is(home: Path) -> None:
    operator = operator_of(home, ["ok"], num_predict=77)
    operator.run("hi")
    operator.run("hi", num_predict=5)
    operator.run("hi", options={"num_predict": 6, "top_k": 3})
    assert [sent.options["num_predict"] for sent in sent_by(operator)] == [77, 5, 6]
    assert sent_by(operator)[2].options["options"] == {"top_k": 3}


def test_a_thinking_model_gets_more_room(home: Path) -> None:
    operator = operator_of(home, ["ok"], facts=facts_of(131_072, "thinking"))
    operator.run("some words " * 300)
    assert num_ctxs(operator) == [16384]


def test_a_high_estimate_does_not_leave_the_reply_a_word_or_two(home: Path) -> None:
    # 5,000 tokens by chars4 and over 8,000 by the safe estimate: the server itself stops at its window.
    operator = operator_of(home, ["ok"], num_ctx=8192)
    operator.run("ab12 " * 4000)
    assert sent_by(operator)[0].options["num_predict"] >= REPLY_LEAST
    blind = operator_of(home, ["ok"], num_ctx=8192, server={"refuses": None})
    blind.run("ab12 " * 4000)
    assert sent_by(blind)[0].options["num_predict"] < REPLY_LEAST


# The ceiling


def test_above_the_ceiling_the_turn_is_admitted_into_it(home: Path) -> None:
    operator = operator_of(home, ["ok"], facts=facts_of(131_072), num_ctx_max=16384)
    response = operator.run("hi", session_of(8, 4000))
    assert response.success
    assert num_ctxs(operator) == [16384]
    row = only_row(home)
    assert (row["resolved_context_window"], row["input_budget"]) == (16384, 16384 - 4096 - 819)
    assert 0 < row["ext"]["history"]["admitted"] < 8 and row["dropped_blocks"] == []
    assert row["ext"]["trained_window"] == 131_072
    assert row["ext"]["readmitted"]["window"] == 131_072


def test_what_must_enter_and_does_not_fit_under_the_ceiling_names_it(home: Path) -> None:
    operator = operator_of(home, ["never"], facts=facts_of(131_072), num_ctx_max=16384)
    response = operator.run("word " * 16_000)
    assert isinstance(response.exception, ContextOverflowError)
    assert "RUNE_NUM_CTX_MAX=16384" in str(response.error) and "131072" in str(response.error)
    assert (response.exception.window, response.exception.block) == (16384, "user")
    assert sent_by(operator) == [] and only_row(home)["success"] is False


# Refusals


def test_a_refusal_climbs_to_the_step_that_holds_prompt_and_reply(home: Path) -> None:
    operator = operator_of(home, [refusal(16_380, 8192), "ok"], facts=facts_of(131_072))
    response = operator.run("hi")
    assert response.success
    assert num_ctxs(operator) == [8192, 32768]
    assert sent_by(operator)[1].options["num_predict"] == 32768 - 1 - 16_380
    first, second = only_row(home)["ext"]["attempts"]
    assert (first["outcome"], first["n_prompt_tokens"], first["n_ctx"]) == ("refused", 16_380, 8192)
    assert (second["outcome"], second["num_ctx"], second["first_call"]) == ("answered", 32768, 0)


def test_refusals_without_numbers_climb_step_by_step(home: Path) -> None:
    script = [refusal(), refusal(), "ok"]
    operator = operator_of(home, script, facts=facts_of(131_072))
    assert operator.run("hi").success
    assert num_ctxs(operator) == [8192, 16384, 32768]
    row = only_row(home)
    assert row["model_calls"] == 1 and len(row["ext"]["attempts"]) == 3
    assert sent_by(operator)[0].messages == sent_by(operator)[2].messages == row["capsule_messages"]
    operator.run("again")
    assert num_ctxs(operator)[3:] == [32768]


def test_without_a_step_the_script_estimator_admits_once(home: Path) -> None:
    transport = ScriptedTransport([refusal(9000, 8192), "ok"], facts=facts_of(8192))
    operator = operator_of(home, transport)
    response = operator.run("hi", session_of(8, 400, DENSE))
    assert response.success
    assert len(transport.sent[0].messages) > len(transport.sent[1].messages)
    row = only_row(home)
    assert [a["estimator"].startswith("script") for a in row["ext"]["attempts"]] == [False, True]
    assert row["ext"]["estimator"].startswith("script")
    assert row["capsule_messages"] == transport.sent[1].messages
    assert row["prompt_tokens_estimated"] == sum(row["per_block_tokens"].values())
    assert row["ext"]["history"]["dropped"] > 0


@pytest.mark.parametrize("script", [[refusal(9000, 8192)], [refusal(9000, 8192), refusal(8500, 8192)]])
def test_when_nothing_helps_the_servers_numbers_are_the_error(home: Path, script: list[Any]) -> None:
    operator = operator_of(home, script)
    session = session_of(8, 400, DENSE) if len(script) > 1 else None
    response = operator.run("hi", session)
    error = response.exception
    assert isinstance(error, ContextOverflowError)
    last = script[-1]
    assert (error.origin, error.served_prompt_tokens, error.server_window) == ("server", last.n_prompt_tokens, 8192)
    assert error.blocks[0]["name"] == "persona" and str(last.n_prompt_tokens) in str(error)
    assert len(sent_by(operator)) == len(script)
    row = only_row(home)
    assert row["success"] is False and len(row["error"]) <= 300
    assert row["ext"]["verdict"]["kind"] == response.verdict["kind"] == "refused"  # type: ignore[index]
    assert row["ext"]["overflow"]["served_prompt_tokens"] == last.n_prompt_tokens


def test_mandatory_blocks_that_script_finds_too_long_are_the_servers_refusal(home: Path) -> None:
    operator = operator_of(home, [refusal(15_000, 8192)])
    response = operator.run(DENSE * 4500)
    assert isinstance(response.exception, ContextOverflowError)
    assert (response.exception.origin, response.exception.served_prompt_tokens) == ("server", 15_000)
    assert len(sent_by(operator)) == 1


@pytest.mark.parametrize("whose", ["caller", "settings", "Modelfile"])
def test_an_explicit_num_ctx_does_not_climb(home: Path, whose: str) -> None:
    facts = facts_of(131_072, modelfile_num_ctx=4096 if whose == "Modelfile" else None)
    settings = {"num_ctx": 4096} if whose == "settings" else {}
    operator = operator_of(home, [refusal(5000, 4096)], facts=facts, **settings)
    response = operator.run("hi", num_ctx=4096 if whose == "caller" else None)
    assert isinstance(response.exception, ContextOverflowError) and response.exception.origin == "server"
    assert num_ctxs(operator) == [4096]
    assert sticky.get(operator.engine()[0].server_key, "scripted") is None


def test_a_window_that_is_fixed_does_not_climb_but_admits_by_script(home: Path) -> None:
    script = [refusal(9000, 8192), "ok"]
    operator = operator_of(home, script, facts=facts_of(8192), server={"fixed_window": True})
    assert operator.run("hi", session_of(8, 400, DENSE)).success
    assert num_ctxs(operator) == [8192, 8192]
    assert len(only_row(home)["ext"]["attempts"]) == 2


def test_a_server_that_allocates_less_than_it_was_sent_is_not_sent_more(home: Path) -> None:
    script = [refusal(5000, 4096), "ok"]
    operator = operator_of(home, script, facts=facts_of(131_072))
    assert operator.run("hi", session_of(8, 300, "see ")).success
    assert num_ctxs(operator) == [8192, 8192]
    assert rows(home)[0]["resolved_context_window"] == 4096
    operator.run("hi")
    assert num_ctxs(operator)[2:] == [8192]
    assert rows(home)[1]["resolved_context_window"] == 4096
    assert any("allocates a window of 4096" in warning for warning in rows(home)[1]["ext"]["warnings"])


def test_a_step_that_cannot_be_loaded_goes_back_and_admits_by_script(home: Path) -> None:
    failed = BadReply("model requires more system memory (9 GiB)", status=500)
    transport = ScriptedTransport([refusal(9000, 8192), failed, "ok"], facts=facts_of(131_072))
    operator = operator_of(home, transport)
    response = operator.run("hi", session_of(8, 300, "see "))
    assert response.success
    assert num_ctxs(operator) == [8192, 16384, 8192]
    row = only_row(home)
    assert [a["outcome"] for a in row["ext"]["attempts"]] == ["refused", "failed", "answered"]
    assert row["resolved_context_window"] == 8192 and row["ext"]["estimator"].startswith("script")
    assert any("more system memory" in warning for warning in row["ext"]["warnings"])


def test_an_error_that_is_none_of_that_is_the_runs_error(home: Path) -> None:
    for status in (500, 400):
        operator = operator_of(home, [BadReply("something broke", status=status)])
        response = operator.run("hi")
        assert not response.success and "something broke" in str(response.error)
        assert len(sent_by(operator)) == 1


# Refusals in a tool loop


def test_a_refusal_in_a_tool_loop_does_not_run_the_tools_again(home: Path) -> None:
    made: list[int] = []

    def count(number: int) -> str:
        """Counts."""
        made.append(number)
        return f"seen {number}"

    script = [calls(("count", {"number": 1})), refusal(9000, 8192), calls(("count", {"number": 2})), "Two."]
    transport = ScriptedTransport(script, facts=facts_of(131_072, "tools"))
    operator = operator_of(home, transport, tools={"count": make_tool(count)})
    session = Conversation("s")
    response = operator.run("count", session)
    assert (response.success, response.text, made) == (True, "Two.", [1, 2])
    assert num_ctxs(operator) == [8192, 8192, 16384, 16384]
    assert transport.sent[2].messages == transport.sent[1].messages
    row = only_row(home)
    assert row["capsule_messages"] == transport.sent[0].messages
    assert [a["first_call"] for a in row["ext"]["attempts"]] == [0, 1]
    assert row["model_calls"] == 3
    assert [m["role"] for m in session.turns[0]] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


def test_a_resumed_attempt_is_not_compared_with_the_assembly(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rune.context_broker")

    def look() -> str:
        """Looks."""
        return "x" * 400

    script = [calls(("look", {})), refusal(9000, 8192), reply("ok", prompt_tokens=9000)]
    operator = operator_of(home, script, facts=facts_of(131_072, "tools"), tools={"look": make_tool(look)})
    operator.run("look")
    assert not [r for r in caplog.records if r.getMessage().startswith("calibration")]


# The tool loop's room


def long_result(chars: int) -> str:
    """Gives a long text."""
    return "and so it went on " * (chars // 18)


def test_a_growing_tool_loop_takes_larger_steps(home: Path) -> None:
    script = [*(calls(("long_result", {"chars": 5000 - n})) for n in range(6)), "Done."]
    transport = ScriptedTransport(script, facts=facts_of(131_072, "tools"))
    operator = operator_of(home, transport, tools={"long_result": make_tool(long_result)})
    assert operator.run("go").success
    steps = num_ctxs(operator)
    assert steps[0] == 8192 and steps[-1] == 16384 and steps == sorted(steps)
    predicts = [sent.options["num_predict"] for sent in transport.sent]
    assert predicts[0] > predicts[1] > predicts[2]
    assert only_row(home)["ext"]["calls"][-1]["num_ctx"] == only_row(home)["ext"]["num_ctx"] == 16384


def test_results_make_way_under_the_ceiling(home: Path) -> None:
    script = [*(calls(("long_result", {"chars": 7990 - n})) for n in range(6)), "Done."]
    transport = ScriptedTransport(script, facts=facts_of(131_072, "tools"))
    operator = operator_of(home, transport, tools={"long_result": make_tool(long_result)}, num_ctx_max=8192)
    response = operator.run("go")
    assert response.success
    assert set(num_ctxs(operator)) == {8192}
    dropped = only_row(home)["ext"]["tool_loop"]["dropped"]
    assert dropped and all(d["tool"] == "long_result" and d["kept"].startswith("tool_result:") for d in dropped)
    assert (home / "state" / "tool_results").is_dir()
    results = [m["content"] for m in transport.sent[-1].messages if m["role"] == "tool"]
    assert results[0].startswith("[The result of long_result") and len(results[-1]) > 7000


def test_a_loop_that_outgrows_its_room_is_an_overflow_with_a_row(home: Path) -> None:
    script = [calls(("long_result", {"chars": 7990}))]
    operator = operator_of(home, script, facts=facts_of(3000, "tools"), tools={"long_result": make_tool(long_result)})
    response = operator.run("go")
    assert isinstance(response.exception, ContextOverflowError)
    assert (response.exception.origin, response.exception.block) == ("tool_loop", "long_result")
    row = only_row(home)
    assert row["model_calls"] == 1 and row["ext"]["overflow"]["origin"] == "tool_loop"
    assert row["ext"]["tools"][0]["ok"] is True


# Servers that cannot refuse


def test_a_server_that_cannot_refuse_is_sent_what_script_admits(home: Path) -> None:
    operator = operator_of(home, ["ok"], num_ctx=8192, server={"refuses": False})
    assert operator.run("hi", session_of(8, 400, DENSE)).success
    row = only_row(home)
    assert row["ext"]["estimator"].startswith("script") and row["ext"]["history"]["dropped"] > 0
    assert len(row["ext"]["attempts"]) == 1
    able = operator_of(home, ["ok"], num_ctx=8192)
    able.run("hi", session_of(8, 400, DENSE))
    assert rows(home)[1]["ext"]["estimator"].startswith("chars4/")


def test_what_is_surely_too_long_for_it_is_not_sent(home: Path) -> None:
    operator = operator_of(home, ["never"], num_ctx=8192, server={"refuses": None})
    response = operator.run(DENSE * 5000)
    assert isinstance(response.exception, ContextOverflowError) and response.exception.origin == "broker"
    assert sent_by(operator) == []
    assert only_row(home)["ext"]["estimator"].startswith("script")


# What the server allocated


def test_less_than_was_sent_is_told_and_the_next_turn_reckons_with_it(home: Path) -> None:
    allocated = iter([None, 4096, 4096, 8192])  # None: nothing is loaded before the first call
    operator = operator_of(home, ["ok"], facts=facts_of(131_072), server={"loaded": lambda: next(allocated)})
    for _ in range(4):
        operator.run("hi")
    found = rows(home)
    assert [row["resolved_context_window"] for row in found] == [131_072, 4096, 4096, 131_072]
    assert num_ctxs(operator) == [8192] * 4
    assert [sent.options["num_predict"] < 4096 for sent in sent_by(operator)] == [False, True, True, False]
    assert [row["ext"].get("allocated_window") for row in found] == [4096, 4096, None, None]
    assert any("allocated a window of 4096" in warning for warning in found[0]["ext"]["warnings"])


def test_an_explicit_value_stays_on_the_wire_when_less_is_allocated(home: Path) -> None:
    operator = operator_of(home, ["ok"], facts=facts_of(131_072), num_ctx=8192, server={"loaded": lambda: 4096})
    operator.run("hi")
    operator.run("hi")
    assert num_ctxs(operator) == [8192, 8192]
    assert [row["resolved_context_window"] for row in rows(home)] == [8192, 4096]


def test_a_prompt_that_outgrew_what_was_allocated_is_not_passed_off_as_whole(home: Path) -> None:
    allocated = iter([None, 4096])
    whole = reply("ok", prompt_tokens=2050, verdict=Verdict("whole", "as far as it knows"))
    operator = operator_of(home, [whole], server={"loaded": lambda: next(allocated)})
    response = operator.run("abcd" * 4500)
    assert response.verdict is not None and response.verdict["kind"] == "suspected"
    assert "4096, not 8192" in response.verdict["basis"]
    assert response.degraded == ["context_truncation"] == only_row(home)["degraded"]
    assert only_row(home)["ext"]["calls"][0]["verdict"] == "suspected"
