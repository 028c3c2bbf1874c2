"""``rune doctor`` over a real connection: what a model's windows are, what Rune would send, what would be cut without it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cli_helpers import Rune
from playback import PlaybackServer, json_answer, ndjson, reply_lines

SHOW = {
    "model_info": {
        "general.architecture": "qwen3",
        "qwen3.context_length": 40960,
        "qwen3.vocab_size": 151936,
        "qwen3.block_count": 36,
        "qwen3.attention.head_count": 32,
        "qwen3.attention.head_count_kv": 8,
        "qwen3.attention.key_length": 128,
        "qwen3.attention.value_length": 128,
    },
    "capabilities": ["completion", "tools"],
    "details": {"family": "qwen3"},
}
TAGS = {"models": [{"name": "qwen3:8b", "model": "qwen3:8b", "size": 5, "capabilities": ["completion"]}]}
PS = {"models": [{"name": "qwen3:8b", "model": "qwen3:8b", "context_length": 16384}]}
KV = 36 * 8 * (128 + 128) * 2


def server(version: str = "0.24.0", **routes: Any) -> PlaybackServer:
    answers = {"/api/show": json_answer(SHOW), "/api/tags": json_answer(TAGS), "/api/ps": json_answer({"models": []})}
    return PlaybackServer({**answers, **{f"/api/{name}": step for name, step in routes.items()}}, version=version)


def look(rune: Rune, server: PlaybackServer, *args: str, code: int = 0, **env: str) -> dict[str, dict[str, Any]]:
    found = rune.json("doctor", *args, code=code, OLLAMA_HOST=server.url, **env)
    return {check["check"]: check for check in found["checks"]}


def test_windows_of_a_model_that_is_not_loaded(rune: Rune) -> None:
    with server() as ollama:
        checks = look(rune, ollama)
        assert "/api/chat" not in [request.path for request in ollama.requests]
    assert "version 0.24.0, refuses a prompt that is too long" in checks["ollama"]["says"]
    windows = checks["model qwen3:8b"]["windows"]
    assert windows == {
        "trained": 40960,
        "modelfile": None,
        "loaded": None,
        "num_ctx": 8192,
        "num_ctx_reason": "smallest step for 4096 tokens",
        "num_ctx_most": 32768,
        "kv_bytes": KV * 8192,
        "kv_bytes_most": KV * 32768,
        "without_rune": 4096,
        "runs": 0,
        "runs_cut_without_rune": 0,
    }
    says = checks["model qwen3:8b"]["says"]
    assert "not loaded" in says
    assert "KV cache 1.12 GiB" in says
    assert "a client that sends none gets 4096 and longer prompts are cut" in says


def test_what_is_loaded_is_not_gone_below_and_a_modelfile_counts_as_set(rune: Rune) -> None:
    with server(ps=json_answer(PS)) as ollama:
        windows = look(rune, ollama)["model qwen3:8b"]["windows"]
    assert (windows["loaded"], windows["num_ctx"], windows["num_ctx_reason"]) == (16384, 16384, "as loaded")
    with server(show=json_answer({**SHOW, "parameters": "num_ctx                        2048"})) as ollama:
        windows = look(rune, ollama)["model qwen3:8b"]["windows"]
    assert (windows["modelfile"], windows["num_ctx"], windows["without_rune"]) == (2048, 2048, 2048)
    assert windows["num_ctx_most"] == 2048


@pytest.mark.parametrize(
    ("version", "says", "default"),
    [("0.6.6", "cuts a prompt", 2048), ("0.12.5", "cuts a prompt", 4096), ("0.0.0", "may cut a prompt", 4096)],
)
def test_servers_that_cannot_refuse_are_named(rune: Rune, version: str, says: str, default: int) -> None:
    with server(version) as ollama:
        checks = look(rune, ollama)
    assert says in checks["ollama"]["says"]
    assert checks["model qwen3:8b"]["windows"]["without_rune"] == default


def test_runs_that_were_longer_than_the_server_s_own_default_are_counted(rune: Rune) -> None:
    chat = [ndjson(*reply_lines("Yes.", prompt_eval_count=count, eval_count=2)) for count in (300, 4200, 5000)]
    with server(chat=chat) as ollama:
        for size in (100, 16_000, 18_000):
            rune.json("ask", "x" * size, "--model", "qwen3:8b", OLLAMA_HOST=ollama.url)
        check = look(rune, ollama)["model qwen3:8b"]
    assert (check["windows"]["runs"], check["windows"]["runs_cut_without_rune"]) == (3, 2)
    assert "2 of the last 3 runs were longer" in check["says"]


def test_a_model_that_is_not_there_and_one_that_leaves_the_machine(rune: Rune) -> None:
    with server() as ollama:
        checks = look(rune, ollama, "--model", "missing", "--json", code=3, RUNE_ENGINE="ollama")
        assert "ollama pull missing" in checks["model missing"]["says"]
    remote = {**SHOW, "remote_model": "qwen3:480b", "remote_host": "https://cloud.example:443"}
    with server(show=json_answer(remote)) as ollama:
        check = look(rune, ollama)["model qwen3:8b"]
    assert (check["ok"], "RUNE_ALLOW_REMOTE" in check["says"]) == (None, True)


def test_a_broken_server_is_a_finding_and_no_traceback(rune: Rune) -> None:
    with server(show=json_answer({"error": "kaput"}, 500)) as ollama:
        checks = look(rune, ollama, code=3, RUNE_ENGINE="ollama")
    assert checks["model qwen3:8b"]["ok"] is False
    assert "kaput" in checks["model qwen3:8b"]["says"]
    with server(tags=json_answer([1, 2])) as ollama:
        checks = look(rune, ollama, code=3, RUNE_ENGINE="ollama")
    assert checks["ollama"]["ok"] is False


def test_hostile_names_are_escaped_when_shown(rune: Rune) -> None:
    tags = {"models": [{"name": "a\x1b[2Jb", "model": "a\x1b[2Jb", "size": 5, "capabilities": ["completion"]}]}
    with server(tags=json_answer(tags)) as ollama:
        out = rune("doctor", OLLAMA_HOST=ollama.url).stdout
    assert "\x1b[2J" not in out
    assert "\\x1b[2J" in "".join(out.split())


def test_the_openai_server_is_asked_too(rune: Rune) -> None:
    routes = {"/v1/models": json_answer({"data": [{"id": "local-7b", "max_model_len": 4096}]})}
    with PlaybackServer(routes) as other:
        name = f"openai at {other.url}"
        found = json.loads(rune("doctor", "--json", RUNE_OPENAI_BASE_URL=other.url).stdout)
    checks = {check["check"]: check for check in found["checks"]}
    assert "local-7b" in checks[name]["says"]
