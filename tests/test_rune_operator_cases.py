"""Faults that people reported of other programs, put to the operator: scripted, and over HTTP where the wire counts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_helpers import case, content_of
from operator_helpers import CaseOperator, case_operator, facts_of, only_row, operator_of, rows
from playback import PlaybackServer, json_answer, ndjson, reply_lines, reset
from rune import Conversation, RuneOperator, Settings, read_traces
from rune.context.blocks import ContributionBlock
from rune.errors import ContextOverflowError
from rune.messages import compact_json
from rune.runtime.num_ctx import sticky
from rune.runtime.tool_executor import make_tool
from rune.transports import discovery
from rune.transports.http import Retry, Timeouts
from rune.transports.ollama import OllamaChatTransport
from scripted import ScriptedTransport, calls, reply


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OLLAMA_HOST", "OLLAMA_API_KEY", "RUNE_ALLOW_REMOTE", "RUNE_MEMORY_OFF"):
        monkeypatch.delenv(name, raising=False)
    sticky.clear()
    discovery.clear_cache()
    yield
    sticky.clear()
    discovery.clear_cache()


@pytest.fixture
def ollama() -> Iterator[Callable[..., tuple[PlaybackServer, OllamaChatTransport]]]:
    """A server that plays back, and a transport to it that waits little between attempts."""
    made: list[Any] = []

    def start(chat: Any, *, version: str = "0.32.15", **routes: Any) -> tuple[PlaybackServer, OllamaChatTransport]:
        paths = {f"/api/{name}": answer for name, answer in routes.items()}
        server = PlaybackServer({"/api/ps": json_answer({"models": []}), "/api/chat": chat, **paths}, version=version)
        waits = Retry(attempts=4, first_wait=0.005, longest_wait=0.01)
        transport = OllamaChatTransport(server.url, retry=waits, timeouts=Timeouts(read=10))
        made.extend((transport, server))
        return server, transport

    yield start
    for thing in made:
        thing.close()


def show(window: int, *capabilities: str, **extra: Any) -> Any:
    return json_answer(
        {
            "model_info": {"general.architecture": "llama", "llama.context_length": window, "llama.vocab_size": 49152},
            "capabilities": ["completion", *capabilities],
            **extra,
        }
    )


def test_c01_a_prompt_that_cannot_fit_is_never_sent(home: Path) -> None:
    told = case("C01")
    wanted = told["expected"]
    transport = ScriptedTransport(["never"], facts=facts_of(told["input"]["window"]))
    response = case_operator(home, transport, told["input"]["blocks"]).run("the case")
    error = response.exception
    assert isinstance(error, ContextOverflowError)
    assert (error.block, error.block_tokens, error.used_before, error.budget) == (
        wanted["block"],
        wanted["block_tokens"],
        wanted["used_before"],
        wanted["budget"],
    )
    assert len(transport.sent) == wanted["http_requests_sent"]
    row = only_row(home)
    assert row["success"] is False and row["capsule_messages"] is None
    assert (row["input_budget"], row["model_calls"]) == (wanted["budget"], 0)


def test_c02_a_cut_that_only_the_count_tells(home: Path, ollama: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rune.context_broker")
    told = case("C02")
    answer, wanted = told["input"]["chat_reply"], told["expected"]
    server, transport = ollama(
        ndjson(answer), version=told["input"]["server"]["version"], show=show(told["input"]["window"])
    )
    operator = case_operator(home, transport, told["input"]["blocks"])
    response = operator.run("the case")
    assert response.success and response.text == answer["message"]["content"]
    assert response.degraded == ["context_truncation"]
    assert response.verdict is not None and response.verdict["kind"] in ("cut", "suspected")
    row = only_row(home)
    assert row["degraded"] == ["context_truncation"]
    assert (row["prompt_tokens_estimated"], row["input_budget"], row["prompt_tokens_served"]) == (
        wanted["admitted_total"],
        wanted["budget"],
        wanted["prompt_tokens_served"],
    )
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("calibration")]
    assert len(lines) == 1 and "measured=5520 served=2050 drift=-3470" in lines[0]
    operator.run("again")
    assert rows(home)[1]["input_budget"] == wanted["next_turn_budget"]
    assert [r.json["options"]["num_ctx"] for r in server.requests_to("/api/chat")] == [8192, 8192]


def test_c04_the_callers_window_is_the_one_that_counts(home: Path) -> None:
    told = case("C04")
    wanted = told["expected"]
    transport = ScriptedTransport(["never"], facts=facts_of(131_072))
    response = case_operator(home, transport, told["input"]["blocks"]).run("x", num_ctx=told["input"]["num_ctx_sent"])
    error = response.exception
    assert isinstance(error, ContextOverflowError)
    assert (error.block, error.block_tokens, error.used_before, error.budget, error.window) == (
        wanted["block"],
        wanted["block_tokens"],
        wanted["used_before"],
        wanted["budget"],
        wanted["effective_window"],
    )
    assert transport.sent == []


@pytest.mark.parametrize("variant", [None, 0, 1])
def test_c07_a_refusal_is_an_overflow_with_the_servers_numbers(home: Path, ollama: Any, variant: int | None) -> None:
    told = case("C07")
    given = told["input"] if variant is None else told["input"]["variants"][variant]
    server, transport = ollama(json_answer(given["http_body"], given["http_status"]), show=show(32768))
    operator = RuneOperator(transport, "m", home, Settings.load(home, env={}))
    response = operator.run("hi", num_ctx=25088)
    error = response.exception
    assert isinstance(error, ContextOverflowError) and error.origin == "server"
    numbers = given["http_body"]["error"]
    if isinstance(numbers, dict):
        assert (error.served_prompt_tokens, error.server_window) == (numbers["n_prompt_tokens"], numbers["n_ctx"])
    assert len(server.requests_to("/api/chat")) == 1 + told["expected"]["retries"]
    row = only_row(home)
    assert row["success"] is False and len(row["error"]) <= told["expected"]["trace_row"]["error_max_len"]


def test_c13_tool_schemas_are_counted_or_not_sent(home: Path) -> None:
    told = case("C13")
    schema = told["input"]["tool_template"]["function"]

    def tool_of(number: int) -> Any:
        def resource(id: str, limit: int = 0, only: str = "") -> str:
            return "ok"

        return make_tool(resource, name=f"tool_{number:03}", description=schema["description"])

    found = {}
    for count in (3, 300):
        tools = {made.name: made for made in map(tool_of, range(count))}
        transport = ScriptedTransport(["done"], facts=facts_of(32768, "tools"))
        operator = RuneOperator(transport, "scripted", home, Settings.load(home, env={}), tools=tools)
        found[count] = operator.run("Restart the web tier.")
        sent = [tool["function"]["name"] for tool in transport.sent[0].tools]
        assert sent == (list(tools) if count == 3 else [])
    few, many = rows(home)
    assert few["per_block_tokens"]["tool_schemas"] == len(compact_json(transport_schemas(tool_of, 3))) // 4
    assert 3 * 60 < few["per_block_tokens"]["tool_schemas"] < 3 * 110
    assert "tool_schemas" not in many["per_block_tokens"] and found[300].warnings == ["tools_do_not_fit"]
    assert many["tools_exposed"] == [f"tool_{n:03}" for n in range(300)] and many["selected_tools"] == []


def transport_schemas(tool_of: Callable[[int], Any], count: int) -> list[Any]:
    return [tool_of(number).schema() for number in range(count)]


def test_c34_calls_beside_the_turn_are_not_the_turns(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rune.context_broker")
    summariser, turn = case("C34")["input"]["replies"]

    def answer(of: dict[str, Any]) -> Any:
        return reply(
            "text",
            prompt_tokens=of["prompt_eval_count"],
            output_tokens=of["eval_count"],
            total_duration_ns=of["total_duration"],
        )

    operator = operator_of(home, [answer(summariser), answer(turn)], server={"repeat": False})
    transport = operator.engine()[0]
    beside: list[Any] = []

    def summary(task: Any, session: Any) -> ContributionBlock:
        with transport.unmeasured() as usage:
            transport.chat([{"role": "user", "content": "sum it up"}], model="scripted")
        beside.append(usage)
        return ContributionBlock(content="what was said before")

    operator._context_broker().register("sum", summary, bucket=3, priority=60, evictable=True, source="test")
    operator.run("go on")
    row = only_row(home)
    assert (row["model_calls"], row["prompt_tokens_served"], row["output_tokens"], row["model_time_ms"]) == (
        1,
        turn["prompt_eval_count"],
        turn["eval_count"],
        turn["total_duration"] / 1e6,
    )
    assert (beside[0].calls, beside[0].prompt_tokens) == (1, summariser["prompt_eval_count"])
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("calibration")]
    assert len(lines) == 1 and "served=2100 " in lines[0]


def test_c41_many_sessions_at_once(home: Path, ollama: Any) -> None:
    told = case("C41")
    threads, turns = told["input"]["threads"], told["input"]["turns_each"]

    def echo(request: Any) -> Any:
        return ndjson(*reply_lines("re " + request.json["messages"][-1]["content"], prompt_eval_count=300))

    server, transport = ollama(echo, show=json_answer(_SHOW, delay=told["input"]["show_delay_ms"] / 1000))
    operator = RuneOperator(transport, "m", home, Settings.load(home, env={}, tool_prompt="off"))
    start = threading.Barrier(threads)
    failed: list[Any] = []

    def work(number: int) -> None:
        session = Conversation(f"s{number}")
        start.wait()
        for step in range(turns):
            response = operator.run(f"task {number}.{step}", session)
            if not response.success or response.text != f"re task {number}.{step}":
                failed.append(response)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failed == []
    assert len(server.requests_to("/api/show")) == told["expected"]["show_requests"]
    found = rows(home)
    assert len(found) == told["expected"]["trace_rows"] == len({row["task_id"] for row in found})
    for row in found:
        number = row["ext"]["session"].removeprefix("s")
        users = [m["content"] for m in row["capsule_messages"] if m["role"] == "user"]
        assert all(text.startswith(f"task {number}.") for text in users)
        assert row["degraded"] == []


_SHOW = {
    "model_info": {"general.architecture": "llama", "llama.context_length": 8192, "llama.vocab_size": 49152},
    "capabilities": ["completion"],
}


def test_c41_a_block_is_measured_once_a_turn(home: Path) -> None:
    from rune.kernels import get_estimator

    measured: list[str] = []

    class Counting:
        name, version, key = "counting", 1, "counting/1"

        def __call__(self, text: str) -> int:
            return self.many([text])[0]

        def many(self, texts: list[str]) -> list[int]:
            measured.extend(texts)
            return get_estimator("chars4").many(texts)

    operator = operator_of(home, ["ok"], facts=facts_of(8192, "tools"))
    operator._context_broker()._estimator = Counting()
    operator.run("a task of its own")
    assert measured.count("a task of its own") == 1
    assert len([text for text in measured if text.startswith("You are Rune")]) == 1


def test_c48_a_home_that_cannot_be_used(home: Path) -> None:
    case("C48")
    home.mkdir()
    (home / "state").write_text("a file where the folder should be")
    response = operator_of(home, ["blue"]).run("Which colour?")
    assert response.success and any("storage" in name for name in response.degraded)
    assert list(read_traces(home)) == []


def test_c53_a_stream_that_ends_early_is_no_answer(home: Path, ollama: Any) -> None:
    told = case("C53")
    wanted = told["expected"]
    server, transport = ollama(ndjson(*told["input"]["ndjson"]), show=show(8192))
    session = Conversation("s")
    response = RuneOperator(transport, "m", home, Settings.load(home, env={})).run("add", session)
    assert (response.success, response.text) == (wanted["success"], wanted["partial_text_available"])
    assert "ended before the server said that it was done" in str(response.error)
    assert len(server.requests_to("/api/chat")) == 1
    row = only_row(home)
    assert (row["success"], row["output_tokens"], row["ext"]["verdict"]["kind"]) == (False, 0, "incomplete")
    assert row["ext"]["partial_text"] == "The sum is" and session.turns == ()


def test_c57_missing_counts_are_unknown_and_not_zero(home: Path, ollama: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rune.context_broker")
    answers = [
        {"message": {"role": "assistant", "content": "ok"}, **given} for given in case("C57")["input"]["replies"]
    ]
    _, transport = ollama([ndjson(answer) for answer in answers], show=show(8192))
    operator = RuneOperator(transport, "m", home, Settings.load(home, env={}))
    assert all(operator.run("hi").success for _ in answers)
    assert [row["prompt_tokens_served"] for row in rows(home)] == [0, 0, 0]
    assert [row["ext"]["calls"][0]["prompt_tokens"] for row in rows(home)] == [None, None, None]
    assert not [r for r in caplog.records if r.getMessage().startswith("calibration")]
    assert all(row["degraded"] == [] for row in rows(home))


def test_c60_an_attempt_that_failed_is_not_counted_twice(home: Path, ollama: Any) -> None:
    told = case("C60")["expected"]
    server, transport = ollama(
        [reset(), ndjson(*reply_lines("ok", prompt_eval_count=700, eval_count=9))], show=show(8192)
    )
    RuneOperator(transport, "m", home, Settings.load(home, env={})).run("hi " * 700)
    row = only_row(home)
    assert len(server.requests_to("/api/chat")) == 2
    assert (row["model_calls"], row["prompt_tokens_served"], row["output_tokens"]) == (
        1,
        told["prompt_tokens_served"],
        9,
    )
    assert len(row["ext"]["calls"][0]["attempts"]) == 2
    (bad,) = (row["ext"]["calls"][0]["attempts"][0]["error"],)
    assert bad


@pytest.mark.parametrize("how", ["400", "reset after the first byte"])
def test_c60_what_must_not_be_tried_again(home: Path, ollama: Any, how: str) -> None:
    case("C60")
    step = json_answer({"error": "bad option"}, 400) if how == "400" else ndjson(*reply_lines("a b")[:1], cut="reset")
    server, transport = ollama(step, show=show(8192))
    response = RuneOperator(transport, "m", home, Settings.load(home, env={})).run("hi")
    assert not response.success and only_row(home)["success"] is False
    assert len(server.requests_to("/api/chat")) == 1


def test_c66_thinking_stays_out_of_later_turns(home: Path) -> None:
    told = case("C66")
    script = [
        reply(given["content"], thinking=content_of(given["thinking"]), output_tokens=2001)
        for given in told["input"]["replies"]
    ]
    operator = operator_of(home, [*script, "done"], facts=facts_of(told["input"]["window"], "thinking"))
    session = Conversation("s")
    for _ in script:
        operator.run("2+2?", session)
    operator.run("And now?", session)
    assert session.tokens <= told["expected"]["history_tokens_after_3_turns_max"]
    found = rows(home)
    assert all("thinking" not in message for message in found[-1]["capsule_messages"])
    assert [row["output_tokens"] for row in found[:3]] == [2001] * 3


@pytest.mark.parametrize(
    ("asked", "window", "budget"), [(32768, 32768, 22938), (4096, 4096, 1844), (200_000, 131_072, 91_751)]
)
def test_c68_the_callers_value_is_budget_and_wire(
    home: Path, ollama: Any, caplog: pytest.LogCaptureFixture, asked: int, window: int, budget: int
) -> None:
    case("C68")
    server, transport = ollama(ndjson(*reply_lines("ok")), show=show(131_072))
    operator = RuneOperator(transport, "m", home, Settings.load(home, env={}))
    response = operator.run("hi", options={"num_ctx": asked, "temperature": 0.2})
    (request,) = server.requests_to("/api/chat")
    options = request.json["options"]
    assert (options["num_ctx"], options["temperature"]) == (window, 0.2)
    row = only_row(home)
    assert (row["resolved_context_window"], row["input_budget"]) == (window, budget)
    capped = [text for text in response.warnings if "capped to the trained 131072" in text]
    assert bool(capped) is (asked > window) and capped == row["ext"]["warnings"]
    assert any("capped" in record.getMessage() for record in caplog.records) is (asked > window)


def test_the_record_of_a_run_over_the_wire_is_what_the_server_got(home: Path, ollama: Any) -> None:
    server, transport = ollama(
        [
            ndjson(_call_line(), reply_lines("x", prompt_eval_count=300)[-1]),
            ndjson(*reply_lines("Done.", prompt_eval_count=320)),
        ],
        show=show(8192, "tools"),
    )
    operator = RuneOperator(transport, "m", home, Settings.load(home, env={}, workspace=str(home.parent)))
    response = operator.run("List the files")
    assert response.text == "Done."
    first, second = (request.json for request in server.requests_to("/api/chat"))
    row = only_row(home)
    assert row["capsule_messages"] == first["messages"] == second["messages"][:2]
    assert [tool["function"]["name"] for tool in first["tools"]] == row["selected_tools"]
    assert (first["truncate"], first["shift"]) == (False, False)
    assert second["messages"][-1]["role"] == "tool" and second["messages"][-1]["tool_name"] == "list_files"
    assert row["ext"]["verdict"]["kind"] == "whole"


def _call_line() -> dict[str, Any]:
    call = {"function": {"name": "list_files", "arguments": {}}}
    return {"message": {"role": "assistant", "content": "", "tool_calls": [call]}, "done": False}


def test_case_operators_have_only_the_blocks_of_the_case(home: Path) -> None:
    operator = case_operator(home, ScriptedTransport([calls()]), [])
    assert isinstance(operator, CaseOperator) and operator._context_broker().contributors == ()
