"""Tiers on the command line, over a real connection: which model is asked, what is said of it, and what a bad table gets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cli_helpers import Rune
from playback import PlaybackServer, Request, Step, json_answer, ndjson, reply_lines

TIERS = '[tiers]\nsmall = "tiny:1b"\nlarge = "big:70b"\n'
WINDOWS = {"tiny:1b": 8192, "big:70b": 32768}


def show(request: Request) -> Step:
    model = json.loads(request.body)["model"]
    info = {"general.architecture": "llama", "llama.context_length": WINDOWS[model], "llama.vocab_size": 49152}
    return json_answer({"model_info": info, "capabilities": ["completion"], "details": {"family": "llama"}})


def chat(request: Request) -> Step:
    body = json.loads(request.body)
    if body["model"] == "tiny:1b" and "refuse" in body["messages"][-1]["content"]:
        return json_answer({"error": "input length exceeds the context length"}, 400)
    return ndjson(*reply_lines(f"{body['model']} says yes.", prompt_eval_count=90, eval_count=4))


@pytest.fixture
def ollama(rune: Rune) -> Iterator[PlaybackServer]:
    listed = [{"name": name, "model": name, "size": 1, "capabilities": ["completion"]} for name in WINDOWS]
    routes: dict[str, Any] = {
        "/api/show": show,
        "/api/tags": json_answer({"models": listed}),
        "/api/ps": json_answer({"models": []}),
        "/api/chat": chat,
    }
    rune.home.mkdir()
    (rune.home / "config.toml").write_text(TIERS)
    with PlaybackServer(routes, version="0.32.15") as server:
        rune.env["OLLAMA_HOST"] = server.url
        yield server


def test_the_task_decides_which_model_is_asked_and_a_named_one_counts_first(rune: Rune, ollama: PlaybackServer) -> None:
    assert rune("ask", "Hello there!").stdout == "tiny:1b says yes.\n"
    done = rune("ask", "Fix the bug in this code", "--explain")
    assert "big:70b says yes." in done.stdout
    assert "tier large (big:70b); family code (it asks for work on code) begins on tier large" in " ".join(
        done.stdout.split()
    )
    assert rune("ask", "Fix the bug in this code", "--model", "tiny:1b").stdout == "tiny:1b says yes.\n"
    assert [json.loads(request.body)["model"] for request in ollama.requests_to("/api/chat")] == [
        "tiny:1b",
        "big:70b",
        "tiny:1b",
    ]


def test_what_the_small_one_refuses_the_large_one_answers(rune: Rune, ollama: PlaybackServer) -> None:
    done = rune("ask", "Hello, please refuse")
    assert done.returncode == 0 and done.stdout == "big:70b says yes.\n"
    assert "going on with tier large (big:70b): the server refused the prompt" in " ".join(done.stderr.split())
    found = rune.json("ask", "Hello, please refuse")
    assert found["trace"]["routing_mode"] == "tiered" and found["trace"]["model"] == "big:70b"
    assert [step["why"] for step in found["trace"]["ext"]["routing"]["escalations"]] == ["refused"]


def test_plan_and_doctor_show_the_tiers(rune: Rune, ollama: PlaybackServer) -> None:
    assert "tier large (big:70b); family code" in " ".join(rune("plan", "Fix the bug in this code").stdout.split())
    assert rune.json("plan", "Hello " + "word " * 5600)["ext"]["routing"]["tier"] == "large"
    assert rune.json("plan", "Hello", "--window", "8192")["ext"]["routing"]["model"] == "tiny:1b"
    checks = {check["check"]: check for check in rune.json("doctor")["checks"]}
    assert checks["router"]["mode"] == "tiered"
    assert checks["router"]["tiers"] == [
        {
            "name": "small",
            "model": "tiny:1b",
            "families": ["images", "files", "long", "summary", "writing", "lookup", "chat"],
        },
        {"name": "large", "model": "big:70b", "families": ["code", "reasoning"]},
    ]
    named = {check["check"]: check for check in rune.json("doctor", RUNE_MODEL="tiny:1b")["checks"]}["router"]
    assert named["mode"] == "explicit" and "environment RUNE_MODEL" in named["says"]
    assert ollama.requests_to("/api/chat") == []


def test_plan_counts_the_safety_note(rune: Rune, ollama: PlaybackServer) -> None:
    trace = rune.json("plan", "Delete the old backups")
    (change,) = trace["ext"]["changes"]
    shown = " ".join(rune("plan", "Delete the old backups").stdout.split())
    assert f"user {change['tokens']} " in shown
    assert f"mandatory (+{change['tokens'] - change['tokens_before']} by the safety note)" in shown
    assert f"admitted {trace['admitted_total'] + change['tokens'] - change['tokens_before']} " in shown


def test_chat_names_the_tiers_leaves_them_and_comes_back(rune: Rune, ollama: PlaybackServer) -> None:
    done = rune(
        "chat", stdin="/model\nFix this code\n/model tiny:1b\nFix this code\n/model\n/model tiers\nFix this code\n"
    )
    assert "tiny:1b → big:70b · session" in done.stderr
    assert "* tiny:1b (tier small)\n* big:70b (tier large)\n" in done.stdout
    assert "* tiny:1b\n  big:70b\n" in done.stdout
    assert [request.json["model"] for request in ollama.requests_to("/api/chat")] == ["big:70b", "tiny:1b", "big:70b"]
    (rune.home / "config.toml").write_text("")
    assert "there are no tiers" in rune("chat", stdin="/model tiers\n").stderr


def test_doctor_finds_a_tier_whose_model_is_not_there(rune: Rune, ollama: PlaybackServer) -> None:
    (rune.home / "config.toml").write_text(TIERS.replace("big:70b", "other:9b"))
    checks = {check["check"]: check for check in rune.json("doctor", code=3)["checks"]}
    assert checks["tier large"] == {"check": "tier large", "ok": False, "says": "the server has no model 'other:9b'"}
    (rune.home / "config.toml").write_text("")
    assert {check["check"]: check for check in rune.json("doctor")["checks"]}["router"]["mode"] == "single"


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ('[tiers]\nsmall = ["a"]', "tier 'small' must be the name of a model, or a table with model = NAME"),
        ('[tiers.small]\nmodel = "a"\nfamilies = ["cod"]', "'cod' is none (did you mean 'code'?)"),
        ('[tiers]\na = "m"\nb = "m"', "'m' is there already"),
    ],
)
def test_a_table_that_cannot_be_used_is_one_clear_error(
    rune: Rune, ollama: PlaybackServer, toml: str, says: str
) -> None:
    (rune.home / "config.toml").write_text(toml)
    for command in (("ask", "hi"), ("plan", "hi"), ("doctor",)):
        done = rune(*command)
        assert done.returncode == 2 and done.stdout == ""
        assert len(done.stderr.strip().splitlines()) == 1
        assert says in done.stderr and str(rune.home / "config.toml") in done.stderr
