"""Publicly reported faults of talking to model servers, each with its right outcome.

The inputs are read from the shared case files and played by a real server; a case that needs a whole turn is tested with the
operator.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from playback import SHOW, PlaybackServer, Step, json_answer, ndjson, reset, silent, text_answer, unused_port, user
from rune.errors import BadReply, PromptRefused, ServerUnreachable, StreamCut, TransportError
from rune.messages import incomplete_reason, measured_text, normalise, without_thinking
from rune.runtime.num_ctx import Sticky, choose_num_ctx
from rune.transports.discovery import FALLBACK_WINDOW, _model_capabilities, context_length, discover, resolve_window
from rune.transports.http import Timeouts
from rune.transports.ollama import OllamaChatTransport

Serve = Callable[..., PlaybackServer]
Connect = Callable[..., OllamaChatTransport]
Case = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def case(shared: Path) -> Case:
    def load(name: str) -> dict[str, Any]:
        path = shared / "cases" / f"{name}.json"
        if not path.is_file():
            pytest.skip(f"no case {name}")
        loaded: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return loaded

    return load


def text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return str(content.get("prefix", "") + content["repeat"] * content["n"] + content.get("suffix", ""))


def block_messages(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    system = "\n\n".join(text(b["content"]) for b in blocks if b["name"] != "user")
    return [{"role": "system", "content": system}, *(user(text(b["content"])) for b in blocks if b["name"] == "user")]


def ps(window: int) -> Step:
    return json_answer({"models": [{"name": "m:latest", "context_length": window}]})


def test_c02_a_server_that_runs_a_smaller_window_than_it_was_sent(serve: Serve, connect: Connect, case: Case) -> None:
    found = case("C02")
    given = found["input"]
    server = serve(
        {"/api/chat": json_answer(given["chat_reply"]), "/api/ps": json_answer(given["server"]["ps"])},
        version=given["server"]["version"],
    )
    transport = connect(server)
    reply = transport.chat(
        block_messages(given["blocks"]),
        model="m",
        num_ctx=given["window"],
        num_keep=100,
        estimate=found["expected"]["admitted_total"],
    )
    assert reply.verdict.flagged is found["expected"]["truncation_flag"]
    assert reply.prompt_tokens == found["expected"]["prompt_tokens_served"] == transport.usage_prompt_tokens
    assert "a window of 4096" in reply.verdict.basis
    assert transport.loaded_window("m") is None


def test_c04_the_wire_carries_the_window_that_the_budget_has(serve: Serve, connect: Connect, case: Case) -> None:
    found = case("C04")
    server = serve({"/api/show": json_answer(found["input"]["show"]), "/api/chat": ndjson({"done": True})})
    transport = connect(server)
    window = resolve_window(discover(transport, "m"), num_ctx=found["input"]["num_ctx_sent"])
    assert window.window == found["expected"]["effective_window"]
    transport.chat([user("x")], model="m", num_ctx=window.window)
    assert server.requests_to("/api/chat")[0].json["options"]["num_ctx"] == window.window


def test_c07_refusals_carry_the_servers_numbers_and_are_not_tried_again(
    serve: Serve, connect: Connect, case: Case
) -> None:
    found = case("C07")
    first = {k: found["input"][k] for k in ("http_status", "http_body")}
    for answer in (first, *found["input"]["variants"]):
        server = serve({"/api/chat": json_answer(answer["http_body"], answer["http_status"])})
        with pytest.raises(PromptRefused) as failure:
            connect(server).chat([user("x")], model="m", num_ctx=found["input"]["window"])
        body = answer["http_body"]["error"]
        if isinstance(body, dict):
            assert (failure.value.n_prompt_tokens, failure.value.n_ctx) == (body["n_prompt_tokens"], body["n_ctx"])
        assert len(failure.value.server_words) <= found["expected"]["trace_row"]["error_max_len"]
        assert len(server.requests_to("/api/chat")) == 1 + found["expected"]["retries"]
    expected = found["expected"]["carries"]
    assert expected == {
        "served_prompt_tokens": first["http_body"]["error"]["n_prompt_tokens"],
        "server_window": first["http_body"]["error"]["n_ctx"],
    }


def test_c11_dense_text_that_was_halved_is_flagged(serve: Serve, connect: Connect, case: Case) -> None:
    found = case("C11")
    messages = block_messages(found["input"]["blocks"])
    served = int(re.findall(r"served count (\d+)", found["expected"]["must"])[0])
    lines = [{"message": {"content": "Nice picture."}, "done": True, "prompt_eval_count": served, "eval_count": 9}]
    show = json_answer({"model_info": {"general.architecture": "a", "a.context_length": 32768}})
    for version, kind in (("0.32.15", "cut"), ("0.0.0", "cut"), ("0.12.5", "suspected")):
        server = serve({"/api/chat": ndjson(*lines), "/api/show": show}, version=version)
        reply = connect(server).chat(
            messages, model="m", num_ctx=found["input"]["window"], num_keep=4, estimate=found["expected"]["estimate"]
        )
        assert reply.verdict.kind == kind, (version, reply.verdict)


def test_c35_one_num_ctx_for_many_turns(case: Case) -> None:
    found = case("C35")
    window = found["input"]["show"]["model_info"]["qwen2.context_length"]
    registry = Sticky()
    sent = []
    for tokens in found["input"]["turn_prompt_tokens"]:
        for _ in ("turn", "summary"):
            chosen = choose_num_ctx(window=window, safe_tokens=tokens, sticky=registry.get("s", "m"))
            registry.set("s", "m", chosen.num_ctx)
            sent.append(chosen.num_ctx)
    assert len(set(sent)) == found["expected"]["distinct_num_ctx_values_on_the_wire"]
    assert all(n and n > 0 for n in sent)
    climbed = choose_num_ctx(window=window, safe_tokens=9000, sticky=registry.get("s", "m")).num_ctx
    registry.set("s", "m", climbed)
    back = choose_num_ctx(window=window, safe_tokens=300, sticky=registry.get("s", "m")).num_ctx
    assert (climbed, back) == (16384, 16384), "a larger need climbs once and does not go back"


def test_c37_num_ctx_of_the_modelfile(serve: Serve, connect: Connect, case: Case) -> None:
    found = case("C37")
    server = serve({"/api/show": json_answer(found["input"]["show"])})
    transport = connect(server)
    assert context_length("m", transport) == found["expected"]["effective_window"]
    assert _model_capabilities("m", transport) == set(found["expected"]["capabilities"])
    assert len(server.requests) == found["expected"]["http_requests"]


def test_c38_every_failed_discovery_falls_back_visibly(
    serve: Serve, connect: Connect, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    health = pytest.importorskip("rune.subsystem_health")
    found = case("C38")
    monkeypatch.setattr("rune.transports.ollama_server.DISCOVERY_READ_TIMEOUT", 0.2)
    expected = found["expected"]["for_each"]
    for variant in found["input"]["show_variants"]:
        if variant.get("refused"):
            transport = connect(f"http://127.0.0.1:{unused_port()}")
        else:
            transport = connect(serve({"/api/show": [show_variant(variant), json_answer(SHOW)]}))
        with health.turn() as turn:
            assert context_length("m", transport) == expected["window"] == FALLBACK_WINDOW
        assert set(expected["degraded_contains"]) <= set(turn.degraded), variant
        if not variant.get("refused"):
            with health.turn() as turn:
                context_length("m", transport)
                context_length("m", transport)
            assert "context_discovery" not in turn.degraded, "the next turn asks again"


def show_variant(variant: dict[str, Any]) -> Step:
    if variant.get("timeout"):
        return silent()
    if "body_text" in variant:
        return text_answer(variant["body_text"], 200, "text/html")
    if "http_status" in variant:
        return json_answer(variant.get("body", {}), variant["http_status"])
    return json_answer(variant)


def test_c40_windows_that_are_none(serve: Serve, connect: Connect, case: Case) -> None:
    found = case("C40")
    accepted = {float(k): v for k, v in found["expected"]["accepted"].items()}
    for value in found["input"]["values"]:
        info = {"general.architecture": "llama", "llama.context_length": value, **found["input"]["extra"]}
        server = serve({"/api/show": json_answer({"model_info": info})})
        window = resolve_window(discover(connect(server), "m")).window
        usable = isinstance(value, (int, float)) and not isinstance(value, bool) and value in accepted
        assert window == (accepted[value] if usable else FALLBACK_WINDOW), value


def test_c41_many_threads_one_question(serve: Serve, connect: Connect, case: Case) -> None:
    found = case("C41")
    threads, turns = found["input"]["threads"], found["input"]["turns_each"]

    def answer(request: Any) -> Step:
        return ndjson({"message": {"content": request.json["messages"][0]["content"]}, "done": True, "eval_count": 1})

    delay = found["input"]["show_delay_ms"] / 1000
    server = serve({"/api/show": json_answer(SHOW, delay=delay), "/api/chat": answer})
    transport = connect(server)
    wrong: list[str] = []
    calls: list[int] = []
    start = threading.Barrier(threads)

    def session(n: int) -> None:
        start.wait(30)
        with transport.measure() as usage:
            for turn in range(turns):
                discover(transport, "m")
                reply = transport.chat([user(f"{n}-{turn}")], model="m", num_ctx=512)
                if reply.text != f"{n}-{turn}":
                    wrong.append(reply.text)
        calls.append(usage.calls)

    workers = [threading.Thread(target=session, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert wrong == []
    assert calls == [turns] * threads
    assert len(server.requests_to("/api/show")) == found["expected"]["show_requests"]
    assert transport.usage_calls == threads * turns == found["expected"]["trace_rows"]


def test_c50_lone_surrogates_go_out_as_valid_utf8(serve: Serve, connect: Connect, case: Case) -> None:
    found = case("C50")
    given = [json.loads(s) for s in (found["input"]["user_json"], *found["input"]["history_json"])]
    server = serve({"/api/chat": ndjson({"message": {"content": "ok"}, "done": True})})
    messages = [user(t) for t in given]
    connect(server).chat(messages, model="m", num_ctx=512)
    sent = server.requests_to("/api/chat")[0].body.decode("utf-8")
    contents = [m["content"] for m in json.loads(sent)["messages"]]
    assert contents == [re.sub("[\ud800-\udfff]", "\ufffd", t) for t in given]
    assert messages == [user(t) for t in given], "the input was changed"


def test_c52_null_content(serve: Serve, connect: Connect, case: Case) -> None:
    found = case("C52")
    history = normalise(found["input"]["history_messages"])
    assert incomplete_reason(history) is not None, "a null answer without calls does not complete a turn"
    server = serve({"/api/chat": ndjson({"message": {"content": "ok"}, "done": True})})
    connect(server).chat([*history, user("b")], model="m", num_ctx=512)
    sent = server.requests_to("/api/chat")[0].json["messages"]
    assert [m["content"] for m in sent] == ["a", "", "", "", "b"]
    assert sent[2]["tool_name"] == "read"
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == {"n": 1}


def test_c53_a_stream_that_ends_before_done(serve: Serve, connect: Connect, case: Case) -> None:
    found = case("C53")
    server = serve({"/api/chat": ndjson(*found["input"]["ndjson"])})
    transport = connect(server)
    with pytest.raises(StreamCut, match="ended before") as failure:
        transport.chat([user("x")], model="m", num_ctx=512)
    assert failure.value.partial_text == found["expected"]["partial_text_available"]
    assert transport.usage_output_tokens == found["expected"]["output_tokens"]
    assert len(server.requests_to("/api/chat")) == 1


def test_c54_chunks_anywhere(serve: Serve, connect: Connect, case: Case) -> None:
    found = case("C54")
    data = bytes.fromhex(found["input"]["bytes_hex"])
    for size in found["input"]["chunk_sizes"]:
        chunks = [data[i : i + size] for i in range(0, len(data), size)]
        server = serve({"/api/chat": Step(chunks=chunks, content_type="application/x-ndjson")})
        reply = connect(server).chat([user("x")], model="m", num_ctx=512)
        assert reply.text == found["expected"]["text"]
        assert reply.prompt_tokens == found["expected"]["prompt_tokens_served"]
        assert reply.output_tokens == found["expected"]["output_tokens"]


def test_c55_errors_inside_the_body(serve: Serve, connect: Connect, case: Case) -> None:
    found = case("C55")
    for lines, words in (
        (found["input"]["ndjson"], found["expected"]["error_contains"]),
        (found["input"]["variant"], found["expected"]["variant_error_contains"]),
    ):
        server = serve({"/api/chat": ndjson(*lines)})
        with pytest.raises(BadReply, match=words) as failure:
            connect(server).chat([user("x")], model="m", num_ctx=512)
        assert failure.value.partial_text == "The sum is"
        assert words in failure.value.server_words


def test_c57_missing_counts_are_unknown(serve: Serve, connect: Connect, case: Case) -> None:
    found = case("C57")
    server = serve({"/api/chat": [ndjson(reply) for reply in found["input"]["replies"]]})
    transport = connect(server)
    for _ in found["input"]["replies"]:
        reply = transport.chat([user("x")], model="m", num_ctx=512, estimate=found["input"]["estimate"])
        assert reply.prompt_tokens is None and transport.last_prompt_eval_count is None
        assert not reply.verdict.flagged
    assert transport.usage_prompt_tokens == found["expected"]["prompt_tokens_served"]


def test_c59_a_slow_first_byte_is_waited_for_and_never_asked_for_twice(
    serve: Serve, connect: Connect, case: Case
) -> None:
    found = case("C59")
    least = int(re.findall(r"\d+", found["input"]["client_read_timeout_default"])[0])
    assert Timeouts().read >= least > found["input"]["first_byte_delay_s"]
    keep_alive = found["input"]["keep_alive"]
    # The delay of the report in small: longer than the connect limit, shorter than the read limit.
    server = serve({"/api/chat": ndjson({"message": {"content": "ok"}, "done": True}, delay=0.5)})
    transport = connect(server, timeouts=Timeouts(connect=0.2, read=10))
    assert transport.chat([user("x")], model="m", num_ctx=512, keep_alive=keep_alive).text == "ok"
    (request,) = server.requests_to("/api/chat")
    assert request.json["keep_alive"] == found["expected"]["wire_keep_alive"]

    server = serve({"/api/chat": silent()})
    with pytest.raises(ServerUnreachable, match="(?i)timeout"):
        connect(server, timeouts=Timeouts(read=0.2)).chat([user("x")], model="m", num_ctx=512)
    assert len(server.requests_to("/api/chat")) == found["expected"]["requests_sent"]
    assert server.hung_up.acquire(timeout=5), "the connection stayed open"


def test_c60_retries(serve: Serve, connect: Connect, case: Case) -> None:
    found = case("C60")
    steps = [reset() if a.get("reset_before_first_byte") else ndjson(a["reply"]) for a in found["input"]["attempts"]]
    transport = connect(serve({"/api/chat": steps}))
    reply = transport.chat([user("x")], model="m", num_ctx=4096)
    assert transport.usage_calls == 1 == int(found["expected"]["model_calls"][0])
    assert transport.usage_prompt_tokens == found["expected"]["prompt_tokens_served"]
    assert [bool(a.error) for a in reply.attempts] == [True, False]
    assert [bool(a["error"]) for a in reply.as_row()["attempts"]] == [True, False]

    server = serve({"/api/chat": json_answer({"error": "unexpected EOF"}, 400)})
    with pytest.raises(TransportError):
        connect(server).chat([user("x")], model="m", num_ctx=4096)
    assert len(server.requests_to("/api/chat")) == 1 + found["expected"]["http_400"]["retries"]

    server = serve({"/api/chat": ndjson({"message": {"content": "a"}}, pause=0.03, cut="reset")})
    with pytest.raises(StreamCut):
        connect(server).chat([user("x")], model="m", num_ctx=4096)
    assert len(server.requests_to("/api/chat")) == 1 + found["expected"]["reset_after_first_byte"]["retries"]


def test_c66_thinking_counts_as_output_and_is_kept_apart(serve: Serve, connect: Connect, case: Case) -> None:
    found = case("C66")
    replies = found["input"]["replies"]
    lines = [
        {"message": {"content": r["content"], "thinking": text(r["thinking"])}, "done": True, "eval_count": 2001}
        for r in replies
    ]
    server = serve({"/api/chat": [ndjson(line) for line in lines]})
    transport = connect(server)
    history: list[dict[str, Any]] = []
    for _ in replies:
        history.append(user("2 + 2?"))
        reply = transport.chat(history, model="m", num_ctx=found["input"]["window"])
        assert reply.thinking and "thinking" in reply.message()
        history.append(without_thinking(reply.message()))
    assert transport.usage_output_tokens == 2001 * len(replies)
    assert sum(len(measured_text(m)) // 4 for m in history) <= found["expected"]["history_tokens_after_3_turns_max"]
    assert all("thinking" not in m for r in server.requests_to("/api/chat") for m in r.json["messages"])


def test_c68_an_explicit_num_ctx_is_the_callers_own(serve: Serve, connect: Connect, case: Case) -> None:
    found = case("C68")
    server = serve({"/api/show": json_answer(found["input"]["show"]), "/api/chat": ndjson({"done": True})})
    transport = connect(server)
    facts = discover(transport, "m")
    options = found["input"]["caller_options"]
    window = resolve_window(facts, num_ctx=options["num_ctx"])
    assert window.window == found["expected"]["effective_window"]
    chosen = choose_num_ctx(
        window=window.window, explicit=window.explicit, safe_tokens=100, loaded=65536, ceiling=8192, sticky=65536
    )
    transport.chat([user("x")], model="m", num_ctx=chosen.num_ctx, num_predict=chosen.num_predict, options=options)
    sent = server.requests_to("/api/chat")[0].json["options"]
    assert {k: sent[k] for k in options} == found["expected"]["wire_options"]
    small = resolve_window(facts, num_ctx=4096)
    assert small.window == found["expected"]["variant_caller_4096"]["effective_window"]
    capped = resolve_window(facts, num_ctx=200_000)
    assert capped.window == found["expected"]["variant_caller_200000_over_trained_131072"]["effective_window"]
    assert "200000" in capped.note and "131072" in capped.note


def test_c71_every_call_switches_truncation_off(serve: Serve, connect: Connect, case: Case) -> None:
    expected = case("C71")["expected"]["wire_body"]
    server = serve({"/api/chat": ndjson({"message": {"content": "ok"}, "done": True})})
    transport = connect(server)
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    transport.chat([user("x")], model="m")
    transport.chat([user("x")], model="m", tools=[tool], format="json", think=False, options={"num_ctx": 700})
    transport.preload("m", num_ctx=8192)
    for request in server.requests_to("/api/chat"):
        assert request.json["truncate"] is expected["truncate"]
        assert request.json["shift"] is expected["shift"]
        assert request.json["options"]["num_ctx"] > 0
