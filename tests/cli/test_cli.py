"""The command line as a person calls it: in a process of its own, with exit codes, and no traceback ever."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import Rune
from playback import PlaybackServer, json_answer, ndjson, reply_lines

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
]
SHOW = {
    "model_info": {"general.architecture": "llama", "llama.context_length": 8192, "llama.vocab_size": 49152},
    "capabilities": ["completion"],
    "details": {"family": "llama"},
}
TAGS = {"models": [{"name": "small:1b", "model": "small:1b", "size": 1, "details": {"family": "llama"}}]}


@pytest.fixture
def ollama(rune: Rune) -> Any:
    routes = {
        "/api/show": json_answer(SHOW),
        "/api/tags": json_answer(TAGS),
        "/api/ps": json_answer({"models": []}),
        "/api/chat": ndjson(*reply_lines("Because of Rayleigh.", prompt_eval_count=90, eval_count=4)),
    }
    with PlaybackServer(routes, version="0.32.15") as server:
        rune.env["OLLAMA_HOST"] = server.url
        yield server


def test_plan_prints_the_broker_trace_and_writes_nothing(rune: Rune) -> None:
    trace = rune.json("plan", "What is due today?", "--window", "8192")
    assert list(trace)[: len(TRACE_KEYS)] == TRACE_KEYS
    assert (trace["budget"], trace["admitted"]) == (5735, ["persona", "tools", "tool_schemas", "user"])
    assert set(trace["blocks"][0]) >= {"name", "priority", "tokens", "source", "evictable", "admitted", "reason"}
    assert not rune.home.exists()


def test_plan_of_a_text_that_does_not_fit(rune: Rune) -> None:
    done = rune("plan", "-", "--window", "8192", stdin="x" * 30_000)
    assert done.returncode == 1
    assert "ContextOverflowError" in done.stderr
    assert "7500" in done.stderr
    assert "persona" in done.stderr
    error = rune.json("plan", "hi", "--window", "2048", code=1)["error"]
    assert error["type"] == "ContextOverflowError"
    assert (error["reserve"], error["margin"], error["budget"]) == (2048, 102, -102)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["plan", "", "--window", "8192"], "empty"),
        (["plan", "hi", "--window", "0"], "window"),
        (["plan", "hi", "--window", "8192", "--file", "nowhere.txt"], "nowhere.txt"),
        (["plan", "hi", "--window", "8192", "--messages", "nowhere.jsonl"], "nowhere.jsonl"),
        (["ask", "hi", "--nonsense"], "nonsense"),
        (["sessions", "show", "nosuch"], "nosuch"),
        (["sessions", "show", "../etc"], "id"),
        (["ask", "hi", "--option", "temperature"], "NAME=VALUE"),
        (["ask", "hi", "--keep-alive", "soon"], "duration"),
        (["traces", "show", "nosuch"], "nosuch"),
        (["nosuch"], "nosuch"),
    ],
)
def test_wrong_usage_is_one_clear_error(rune: Rune, args: list[str], words: str) -> None:
    done = rune(*args)
    assert done.returncode == 2
    assert words in done.stderr
    as_json = rune(*args, "--json")
    assert as_json.returncode == 2
    assert words in json.loads(as_json.stdout)["error"]["message"]
    assert not rune.home.exists()


def test_a_wrong_setting_names_itself(rune: Rune) -> None:
    done = rune("plan", "hi", "--window", "8192", RUNE_LAYOUT="sideways")
    assert done.returncode == 2
    assert "sideways" in done.stderr
    assert "cache" in done.stderr


def test_ask_streams_records_and_explains(rune: Rune, ollama: PlaybackServer) -> None:
    done = rune("ask", "Why is the sky blue?", "--explain")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Because of Rayleigh.\n")
    for word in ("persona", "user", "of a budget of 5,735", "90 served", "whole", "inference_traces.jsonl"):
        assert word in done.stdout
    sent = ollama.requests_to("/api/chat")[0].json
    assert (sent["truncate"], sent["shift"]) == (False, False)
    row = rune.json("traces", "tail")[-1]
    assert row["capsule_messages"] == sent["messages"]
    assert row["ext"]["num_ctx"] == sent["options"]["num_ctx"] == 8192
    shown = rune.json("traces", "show", row["ext"]["run_id"][:8])
    assert shown == row


def test_what_is_asked_of_the_server_reaches_it(rune: Rune, ollama: PlaybackServer) -> None:
    args = ["--option", "temperature=0.2", "--option", 'stop=["END"]', "--option", "seed=7", "--keep-alive", "10m"]
    assert rune("ask", "hi", "--no-think", *args).returncode == 0
    sent = ollama.requests_to("/api/chat")[0].json
    assert sent["options"].items() >= {"temperature": 0.2, "stop": ["END"], "seed": 7}.items()
    assert (sent["keep_alive"], sent["think"]) == ("10m", False)
    assert rune("ask", "hi", "--think", "--keep-alive", "-1", "--option", "num_ctx=4096").returncode == 0
    sent = ollama.requests_to("/api/chat")[1].json
    assert (sent["keep_alive"], sent["think"], sent["options"]["num_ctx"]) == (-1, True, 4096)
    assert rune("ask", "hi").returncode == 0
    sent = ollama.requests_to("/api/chat")[2].json
    assert "keep_alive" not in sent and "think" not in sent and "temperature" not in sent["options"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_stops_the_server_and_leaves_one_failed_row(rune: Rune, ollama: PlaybackServer) -> None:
    ollama.routes["/api/chat"] = ndjson(*reply_lines("word " * 3000), pause=0.02)
    command = [sys.executable, "-m", "rune.cli.main", "ask", "talk", "--session", "s1"]
    with subprocess.Popen(command, env=rune.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(4) == b"word"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and b"Traceback" not in err
    assert ollama.hung_up.acquire(timeout=20), "the server was left working"
    (row,) = rune.json("traces", "tail")
    assert (row["success"], row["error"]) == (False, "cancelled")
    assert row["ext"]["partial_text"].startswith("word")
    assert [s["id"] for s in rune.json("sessions", "list")] == []


def test_a_session_goes_on_and_is_kept(rune: Rune, ollama: PlaybackServer) -> None:
    assert rune("ask", "one", "--session", "s1").returncode == 0
    assert rune("ask", "two", "--session", "s1").returncode == 0
    second = ollama.requests_to("/api/chat")[1].json["messages"]
    assert [m["content"] for m in second[1:]] == ["one", "Because of Rayleigh.", "two"]
    assert [s["id"] for s in rune.json("sessions", "list")] == ["s1"]
    assert len(rune.json("sessions", "show", "s1")["turns"]) == 2


def test_a_failed_run_is_one_json_value_and_exit_1(rune: Rune) -> None:
    value = rune.json("ask", "hi", "--engine", "ollama", "--model", "m", code=1)
    assert value["success"] is False
    assert value["error"]["type"] == "ServerUnreachable"
    assert rune.json("traces", "tail")[-1]["success"] is False


def test_an_unknown_model_is_said(rune: Rune, ollama: PlaybackServer) -> None:
    done = rune("ask", "hi", "--engine", "auto", "--model", "nosuch:1b", RUNE_GGUF="/nowhere.gguf")
    assert done.returncode == 1
    assert "nosuch:1b" in done.stderr


def test_strict_finds_a_prompt_that_may_be_cut(rune: Rune, ollama: PlaybackServer) -> None:
    lines = reply_lines("Hm?", prompt_eval_count=3, eval_count=4)
    ollama.routes["/api/chat"] = ndjson(*lines)
    done = rune("ask", "abcd " * 800, "--strict")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "may have cut" in done.stderr


def test_an_unwritable_home_does_not_stop_the_answer(rune: Rune, ollama: PlaybackServer) -> None:
    rune.home.write_text("a file", encoding="utf-8")
    done = rune("ask", "hi")
    assert done.returncode == 0
    assert "Rayleigh" in done.stdout
    assert "storage.degraded" in done.stderr


def test_one_reason_is_told_once_with_all_that_it_costs(rune: Rune) -> None:
    rune.home.write_text("a file", encoding="utf-8")
    done = rune("plan", "hi", "--window", "8192")
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len([line for line in lines if "Not a directory" in line or "not a directory" in line]) == 1, done.stderr
    assert lines[-1].startswith("degraded: memory, persona_memories,"), done.stderr


def test_import_is_whole_or_not_at_all(rune: Rune, tmp_path: Path) -> None:
    good = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    file = tmp_path / "chat.jsonl"
    file.write_text("\n".join(map(json.dumps, good)) + '\n{"role": "user", "cont', encoding="utf-8")
    done = rune("sessions", "import", str(file))
    assert done.returncode == 2
    assert "line 3" in done.stderr
    assert not rune.home.exists()
    file.write_text("\n".join(map(json.dumps, good)), encoding="utf-8")
    assert rune.json("sessions", "import", str(file))[0] == {"id": "chat", "turns": 1, "incomplete": 0, "tokens": 0}
    exported = rune("sessions", "export", "chat").stdout.splitlines()
    assert [json.loads(line) for line in exported] == good
    assert rune("sessions", "import", str(file)).returncode == 2
    assert rune("sessions", "delete", "chat", "--yes").returncode == 0
    assert rune.json("sessions", "list") == []


def test_plan_behind_imported_messages(rune: Rune, tmp_path: Path) -> None:
    turns = [
        m for n in range(12) for m in ({"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": f"a{n}"})
    ]
    file = tmp_path / "chat.json"
    file.write_text(json.dumps({"messages": [{"role": "system", "content": "Be brief."}, *turns]}), encoding="utf-8")
    trace = rune.json("plan", "next", "--window", "8192", "--messages", str(file), "--show-messages")
    assert trace["admitted"] == ["persona", "session_system", "tools", "tool_schemas", "history", "user"]
    assert trace["ext"]["history"]["admitted"] == 8
    sent = trace["ext"]["messages"]
    assert "Be brief." in sent[0]["content"]
    assert [m["content"] for m in sent[-3:]] == ["q11", "a11", "next"]


def test_what_a_model_says_cannot_move_the_cursor(rune: Rune, ollama: PlaybackServer) -> None:
    ollama.routes["/api/chat"] = ndjson(*reply_lines("\x1b[2Jgone", prompt_eval_count=90, eval_count=4))
    done = rune("ask", "hi")
    assert "\x1b" not in done.stdout
    assert "\\x1b[2Jgone" in done.stdout


def test_an_ascii_terminal_is_no_reason_to_fail(rune: Rune, ollama: PlaybackServer) -> None:
    answer = "Ω ≥ 5 — 完成 😊"
    ollama.routes["/api/chat"] = ndjson(*reply_lines(answer, prompt_eval_count=90, eval_count=4))
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
    done = rune("ask", "hi", "--explain", "--session", "s", **plain)
    assert done.returncode == 0, done.stderr
    assert rune.json("sessions", "show", "s", **plain)["turns"][0]["messages"][1]["content"] == answer


def test_doctor_says_where_settings_come_from(rune: Rune) -> None:
    found = json.loads(rune("doctor", "--json", RUNE_NUM_CTX_MAX="16384", OLLAMA_API_KEY="s3cret").stdout)
    rows = {row["name"]: row for row in found["settings"]}
    assert rows["num_ctx_max"]["value"] == 16384
    assert rows["num_ctx_max"]["origin"] == "environment RUNE_NUM_CTX_MAX"
    assert "s3cret" not in json.dumps(found)
    assert rune("doctor").returncode in (0, 3)


def test_models_of_ollama_are_listed(rune: Rune, ollama: PlaybackServer) -> None:
    listed = rune.json("models", "--engine", "ollama")["models"]
    assert [(m["engine"], m["name"]) for m in listed] == [("ollama", "small:1b")]


@pytest.mark.model
def test_a_real_model_answers(rune: Rune) -> None:
    pytest.importorskip("xllamacpp")
    value = rune.json("ask", "Say hi.", "--engine", "llama.cpp", "--num-predict", "12")
    row = value["trace"]
    assert value["success"] is True
    assert row["output_tokens"] > 0
    assert row["prompt_tokens_served"] > 0
    assert row["provider"] == "llama.cpp"
    assert value["verdict"]["kind"] == "whole"
    assert row["capsule_messages"][-1] == {"role": "user", "content": "Say hi."}


def test_every_command_has_help_with_an_example(rune: Rune) -> None:
    from rune.cli.main import cli

    for name in cli.list_commands(None):  # type: ignore[arg-type]
        done = rune(name, "--help")
        assert done.returncode == 0
        assert "Example:" in done.stdout


def test_a_full_disk_does_not_stop_the_answer_and_tears_no_row(rune: Rune, ollama: PlaybackServer) -> None:
    resource = pytest.importorskip("resource")
    assert rune("ask", "first", "--session", "s").returncode == 0
    trace = rune.home / "state" / "inference_traces.jsonl"
    before = trace.read_bytes()
    limit = len(before) + 100  # like a disk that fills up in the middle of the next row
    done = subprocess.run(
        [sys.executable, "-m", "rune.cli.main", "ask", "second", "--session", "s"],
        capture_output=True,
        text=True,
        env=rune.env,
        timeout=120,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 0, done.stderr
    assert "Rayleigh" in done.stdout
    assert "storage.degraded" in done.stderr
    assert "Traceback" not in done.stderr
    assert trace.read_bytes() == before
    assert rune("ask", "third", "--session", "s").returncode == 0
    assert [row["capsule_messages"][-1]["content"] for row in rune.json("traces", "tail")] == ["first", "third"]
