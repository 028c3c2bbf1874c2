"""``rune chat``: turns from a pipe, the commands behind a slash, and a real terminal with Ctrl-C in the middle of an answer."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from playback import PlaybackServer, Step, json_answer, ndjson, reply_lines, unused_port
from terminal import Terminal

SHOW = {
    "model_info": {"general.architecture": "llama", "llama.context_length": 8192, "llama.vocab_size": 49152},
    "capabilities": ["completion", "tools"],
    "details": {"family": "llama"},
}
TAGS = {
    "models": [
        {"name": name, "model": name, "size": 1, "details": {"family": "llama"}} for name in ("small:1b", "other:1b")
    ]
}


@pytest.fixture
def server() -> Any:
    routes = {
        "/api/show": json_answer(SHOW),
        "/api/tags": json_answer(TAGS),
        "/api/ps": json_answer({"models": []}),
        "/api/chat": ndjson(*reply_lines("Because of Rayleigh.", prompt_eval_count=490, eval_count=4)),
    }
    with PlaybackServer(routes, version="0.32.15") as playing:
        yield playing


@pytest.fixture
def env(tmp_path: Path, server: PlaybackServer) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if not name.startswith(("RUNE_", "OLLAMA_"))}
    return found | {
        "RUNE_HOME": str(tmp_path / "home"),
        "OLLAMA_HOST": server.url,
        "RUNE_ENGINE": "ollama",
        "TERM": "xterm",
        "PROMPT_TOOLKIT_NO_CPR": "1",
    }


def talk(env: dict[str, str], *lines: str, args: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "rune.cli.main", "chat", *args],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def rows(env: dict[str, str]) -> list[dict[str, Any]]:
    path = Path(env["RUNE_HOME"]) / "state" / "inference_traces.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_turns_of_a_chat_are_turns_of_a_session_that_goes_on(env: dict[str, str], server: PlaybackServer) -> None:
    done = talk(env, "Why is the sky blue?", "And at night?", args=("--session", "sky"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Because of Rayleigh.\nBecause of Rayleigh.\n"
    assert re.search(r"\[[\d,]+ of 5,735 tokens · whole · ", done.stderr)
    assert "rune chat --session sky" in done.stderr
    talk(env, "And at dawn?", args=("--session", "sky"))
    sent = [[m["content"] for m in r.json["messages"] if m["role"] == "user"] for r in server.requests_to("/api/chat")]
    assert sent[-1] == ["Why is the sky blue?", "And at night?", "And at dawn?"]
    assert [row["success"] for row in rows(env)] == [True] * 3


def test_context_shows_what_was_sent_and_what_would_be(env: dict[str, str], server: PlaybackServer) -> None:
    done = talk(env, "/context", "Hello", "/context", "/context " + "word " * 6000, "/context a short one")
    out = done.stdout
    assert "nothing was sent yet" in out
    after = out[out.index("What the last turn sent") :]
    assert re.search(r"^persona +\d+ ", after, re.M)
    assert "490 served" in after
    assert "What should enter the window" in after
    assert "left out: over budget" in after
    assert "ContextOverflowError" in done.stderr or "mandatory blocks need" in done.stderr
    assert out.rstrip().splitlines()[-1].startswith("window")
    assert len(server.requests_to("/api/chat")) == 1


def test_context_of_a_session_that_goes_on_is_shown_before_its_next_turn(
    env: dict[str, str], server: PlaybackServer
) -> None:
    talk(env, "Hello", args=("--session", "c"))
    done = talk(env, "/context", args=("--session", "c"))
    assert "What the next turn would send before its own words" in done.stdout
    assert re.search(r"^history +[1-9]\d* ", done.stdout, re.M)
    assert len(server.requests_to("/api/chat")) == 1


def test_context_tells_of_the_tool_loop(env: dict[str, str], server: PlaybackServer, tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(f"{name} and some more words\n" * 900, encoding="utf-8")
    asks = []
    for name in "abcd":
        lines = reply_lines("", prompt_eval_count=2500, eval_count=4)
        lines[0]["message"]["tool_calls"] = [{"function": {"name": "read_file", "arguments": {"path": f"{name}.txt"}}}]
        asks.append(ndjson(*lines))
    server.routes["/api/chat"] = [*asks, ndjson(*reply_lines("Words.", prompt_eval_count=2500, eval_count=4))]
    done = talk(env, "What do they say?", "/context", args=(str(tmp_path),))
    assert re.search(r"^then its tools: (read_file \d,\d+ characters(, |$)){4}", done.stdout, re.M)
    assert re.search(r"^made way: read_file 1,\d+ tokens, kept as tool_result:", done.stdout, re.M)


def test_memory_is_added_found_and_sent(env: dict[str, str], server: PlaybackServer) -> None:
    done = talk(
        env,
        '/memory add "The deploy key rotates every Friday"',
        "/memory",
        "/memory deploy key",
        "/memory nothing of the kind here",
        "When does the deploy key rotate?",
    )
    assert done.stdout.count("The deploy key rotates every Friday") == 2
    assert "nothing was found" in done.stderr
    texts = [m["content"] for m in server.requests_to("/api/chat")[0].json["messages"]]
    assert any("The deploy key rotates every Friday" in text for text in texts[:-1] + texts[-1:])


def test_models_can_be_changed_in_the_middle(env: dict[str, str], server: PlaybackServer) -> None:
    done = talk(env, "/model", "/model nosuch:1b", "/model other:1b", "Hello", "/model", args=("--session", "m"))
    assert "* small:1b" in done.stdout
    assert "there is no model 'nosuch:1b'" in done.stderr
    assert "* other:1b" in done.stdout
    assert server.requests_to("/api/chat")[0].json["model"] == "other:1b"


def test_traces_session_tools_help_and_what_is_unknown(env: dict[str, str], server: PlaybackServer) -> None:
    done = talk(
        env, "Hello", "/traces", "/session", "/tools off", "Again", "/help", "/nosuch", '/memory "', "/quit", "No"
    )
    assert "small:1b" in done.stdout
    assert "[user] Hello" in done.stdout
    assert "tools are off" in done.stdout
    assert "/context TEXT" in done.stdout
    assert "no /nosuch" in done.stderr
    assert "error: No closing quotation" in done.stderr
    first, second = (request.json for request in server.requests_to("/api/chat"))  # and nothing after /quit
    assert first["tools"]
    assert not second.get("tools")


def test_tools_work_in_the_folder_that_was_named(env: dict[str, str], server: PlaybackServer, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.txt").write_text("the password is swordfish", encoding="utf-8")
    call = {"function": {"name": "read_file", "arguments": {"path": "notes.txt"}}}
    asks = reply_lines("", prompt_eval_count=490, eval_count=4)
    asks[0]["message"]["tool_calls"] = [call]
    server.routes["/api/chat"] = [
        ndjson(*asks),
        ndjson(*reply_lines("It is swordfish.", prompt_eval_count=530, eval_count=4)),
    ]
    done = talk(env, "What do the notes say?", args=(str(folder),))
    assert "tool: read_file(path='notes.txt')" in done.stderr
    assert "swordfish" in server.requests_to("/api/chat")[1].json["messages"][-1]["content"]
    assert done.stdout == "It is swordfish.\n"
    assert talk(env, args=(str(folder / "nowhere"),)).returncode == 2


def test_errors_of_a_turn_do_not_end_the_chat(env: dict[str, str], server: PlaybackServer) -> None:
    server.routes["/api/chat"] = [
        json_answer({"error": "the GPU is on fire"}, status=400),
        ndjson(*reply_lines("Better now.", prompt_eval_count=490, eval_count=4)),
    ]
    done = talk(env, "Hello", "Hello?")
    assert "the GPU is on fire" in done.stderr
    assert done.stdout == "Better now.\n"
    assert [row["success"] for row in rows(env)] == [False, True]


def test_no_engine_is_one_line(env: dict[str, str]) -> None:
    done = talk(env | {"OLLAMA_HOST": f"http://127.0.0.1:{unused_port()}"}, "Hello")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def test_a_model_without_tools_shows_its_calls_as_calls(
    env: dict[str, str], server: PlaybackServer, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("the password is swordfish", encoding="utf-8")
    server.routes["/api/show"] = json_answer({**SHOW, "capabilities": ["completion"]})
    text = 'I look.\n```tool_call\n{"name": "read_file", "arguments": {"path": "notes.txt"}}\n```\n'
    server.routes["/api/chat"] = [
        ndjson(*reply_lines(text, prompt_eval_count=900, eval_count=4)),
        ndjson(*reply_lines("It is swordfish.", prompt_eval_count=930, eval_count=4)),
    ]
    done = talk(env, "What do the notes say?", "/context", args=(str(tmp_path),))
    assert done.stdout.startswith("I look.\n") and "It is swordfish.\n" in done.stdout
    assert "tool_call" not in done.stdout and '{"name"' not in done.stdout
    assert "tool: read_file(path='notes.txt')" in done.stderr
    assert re.search(r"^fallback_tool_prompt +\d+ ", done.stdout, re.M)


def test_everything_of_a_chat_over_a_real_terminal(env: dict[str, str], server: PlaybackServer, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the password is swordfish", encoding="utf-8")
    asks = reply_lines("", prompt_eval_count=900, eval_count=4)
    asks[0]["message"]["tool_calls"] = [{"function": {"name": "read_file", "arguments": {"path": "notes.txt"}}}]
    lines = reply_lines("It is swordfish.", prompt_eval_count=930, eval_count=4)
    endless = Step(chunks=[json.dumps(lines[0]).encode() + b"\n"], content_type="application/x-ndjson", cut="hang")
    server.routes["/api/chat"] = [ndjson(*asks), ndjson(*lines), ndjson(*asks), endless, ndjson(*lines)]
    terminal = Terminal([sys.executable, "-m", "rune.cli.main", "chat", str(tmp_path), "--session", "t"], env)

    def turn(text: str, *shown: str) -> None:
        terminal.type(text)
        for words in shown:
            terminal.until(words)
        terminal.until("›")

    try:
        terminal.until("›")
        turn(
            "What do the notes say?\r",
            "tool: read_file(path='notes.txt')",
            "swordfish",
            "It is swordfish.",
            "of 5,735 tokens",
        )
        turn("/context\r", "What the last turn sent", "persona", "then its tools: read_file", "1,830 served")
        turn('/memory add "Rex is my dog"\r', "1")
        turn("/memory dog\r", "Rex is my dog")
        turn("/traces\r", "small:1b")
        turn("/model\r", "* small:1b")
        turn("/model other:1b\r", "going on with other:1b")
        terminal.type("What do the notes say?\r")  # Ctrl-C after a tool, in the middle of the answer
        terminal.until("tool: read_file")
        terminal.until(lines[0]["message"]["content"])
        turn("\x03", "cancelled")
        turn("\x1b[A\r", "What do the notes say?", "It is swordfish.")  # the line before, by the arrow up
        turn("/session\r", "[user] What do the notes say?")
        terminal.type("/quit\r")
        terminal.until("goes on")
    finally:
        code = terminal.close()
    assert code == 0
    found = rows(env)
    assert [(row["success"], row["model"]) for row in found] == [
        (True, "small:1b"),
        (False, "other:1b"),
        (True, "other:1b"),
    ]
    assert found[1]["error"] == "cancelled"
    last = server.requests_to("/api/chat")[-1].json["messages"]
    assert [m["role"] for m in last] == ["system", "user", "assistant", "tool", "assistant", "user"]


def test_ctrl_c_ends_the_turn_and_keeps_the_session(env: dict[str, str], server: PlaybackServer) -> None:
    lines = reply_lines("Because of Rayleigh.", prompt_eval_count=490, eval_count=4)
    whole = ndjson(*lines)
    endless = Step(chunks=[json.dumps(lines[0]).encode() + b"\n"], content_type="application/x-ndjson", cut="hang")
    server.routes["/api/chat"] = [endless, whole]
    terminal = Terminal([sys.executable, "-m", "rune.cli.main", "chat", "--session", "c"], env)
    try:
        terminal.until("›")
        terminal.type("Why is the sky blue?\r")
        terminal.until(lines[0]["message"]["content"])
        terminal.type("\x03")
        terminal.until("cancelled")
        terminal.until("›")
        terminal.type("half a line\x03")  # takes back the line
        terminal.until("›")
        terminal.type("Once more?\r")
        terminal.until("Rayleigh.")
        terminal.until("›")
        terminal.type("\x04")
        terminal.until("goes on")
    finally:
        code = terminal.close()
    assert code == 0
    assert [(row["success"], row["error"]) for row in rows(env)] == [(False, "cancelled"), (True, None)]
    sent = [m["content"] for m in server.requests_to("/api/chat")[-1].json["messages"] if m["role"] == "user"]
    assert sent == ["Once more?"]
    kept = Path(env["RUNE_HOME"]) / "state" / "chat_history"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "+Once more?" in kept.read_text(encoding="utf-8")
