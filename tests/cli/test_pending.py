"""Approvals as a person meets them: a turn that waits, its process killed, and another process that goes on with it."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import Rune
from playback import SHOW, PlaybackServer, Request, Step, json_answer, ndjson, reply_lines, unused_port
from rune import Conversation
from rune.cli.pending import pending
from rune.context.compaction import PENDING_APPROVAL
from rune.paths import pending_dir

WRITE = {"function": {"name": "write_file", "arguments": {"path": "out.txt", "text": "first\nsecond\n"}}}
WAITS = "waiting for your approval of write_file(path='out.txt', text='first\\nsecond\\n'): rune pending approve "


def asking(*calls: dict[str, Any], text: str = "") -> Step:
    """A reply that makes calls."""
    lines = reply_lines(text, prompt_eval_count=700, eval_count=9)
    lines[0]["message"]["tool_calls"] = list(calls)
    return ndjson(*lines)


def saying(text: str) -> Step:
    return ndjson(*reply_lines(text, prompt_eval_count=720, eval_count=4))


@pytest.fixture
def server() -> Any:
    tags = {"models": [{"name": "m:1b", "model": "m:1b", "size": 1, "details": {"family": "llama"}}]}
    routes = {"/api/tags": json_answer(tags), "/api/ps": json_answer({"models": []})}
    with PlaybackServer(routes, version="0.32.15") as playing:
        playing.routes["/api/chat"] = [asking(WRITE, text="I will write it."), saying("It is written.")]
        yield playing


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def rune(rune: Rune, server: PlaybackServer, work: Path) -> Rune:
    rune.env |= {"OLLAMA_HOST": server.url, "RUNE_ENGINE": "ollama", "RUNE_WORKSPACE": str(work)}
    return rune


def chats(server: PlaybackServer) -> list[Request]:
    return server.requests_to("/api/chat")


def rows(rune: Rune) -> list[dict[str, Any]]:
    path = rune.home / "state" / "inference_traces.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def only_id(rune: Rune) -> str:
    (row,) = rune.json("pending", "list")
    return str(row["id"])


def messages_bytes(request: Request) -> bytes:
    """The value of ``messages`` as it went over the wire, byte for byte."""
    text = request.body.decode()
    start = text.index('"messages":') + len('"messages":')
    _, end = json.JSONDecoder().raw_decode(text[start:].lstrip())
    return text[start:].lstrip()[:end].encode()


def started(rune: Rune, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rune.cli.main", *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=rune.env,
    )


def kill_at_the_question(rune: Rune, text: str) -> None:
    """A chat that is asked ``text`` and killed while it waits for the person's answer."""
    chat = started(rune, "chat", "--session", "s")
    try:
        assert chat.stdin is not None and chat.stderr is not None
        chat.stdin.write(f"{text}\n")
        chat.stdin.flush()
        for line in chat.stderr:
            if "needs your approval" in line:
                break
        else:
            pytest.fail("it never asked")
    finally:
        chat.kill()
        chat.wait(30)
        for pipe in (chat.stdin, chat.stdout, chat.stderr):
            assert pipe is not None
            pipe.close()


def test_a_killed_turn_goes_on_in_another_process_with_the_same_bytes(
    rune: Rune, server: PlaybackServer, work: Path, tmp_path: Path
) -> None:
    rune("memory", "add", "The file out.txt is looked at every Friday — ünïcode \u2028 and all")
    kill_at_the_question(rune, "Write the file out.txt for Friday")
    assert not (work / "out.txt").exists()
    rune("memory", "add", "The file out.txt matters on Friday as well")  # what is remembered later is not in this turn

    done = rune("pending", "approve", only_id(rune)[:7], RUNE_WORKSPACE=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "It is written.\n"), done.stderr
    assert (work / "out.txt").read_text() == "first\nsecond\n"

    before, after = chats(server)
    sent, again = messages_bytes(before), messages_bytes(after)
    assert again.startswith(sent[:-1]) and b"every Friday" in sent
    assert [m["role"] for m in json.loads(again)[-2:]] == ["assistant", "tool"]
    assert json.loads(again)[-1]["content"] == "made out.txt (13 bytes)"
    same = {"model", "tools", "stream", "truncate", "shift", "keep_alive", "think", "format"}
    for name in same & set(before.json):
        assert before.json[name] == after.json[name], name
    assert before.json["options"]["num_ctx"] == after.json["options"]["num_ctx"]

    asked, answered = rows(rune)
    logged = answered["capsule_messages"]
    assert asked["capsule_messages"] == logged
    assert [(m["role"], m["content"]) for m in logged] == [(m["role"], m["content"]) for m in json.loads(sent)]
    assert (asked["success"], answered["success"]) == (False, True)
    assert answered["ext"]["resumed"]["run_id"] == asked["ext"]["run_id"]
    session = Conversation.open("s", rune.home)
    assert [m["role"] for m in session.turns[0]] == ["user", "assistant", "tool", "assistant"]
    assert session.state_of(PENDING_APPROVAL) is None and rune.json("pending", "list") == []


def test_a_model_that_is_told_of_tools_in_words_goes_on_with_the_same_bytes_too(
    rune: Rune, server: PlaybackServer, work: Path
) -> None:
    server.routes["/api/show"] = json_answer({**SHOW, "capabilities": ["completion"]})
    wanted = json.dumps({"name": "write_file", "arguments": WRITE["function"]["arguments"]})
    server.routes["/api/chat"] = [saying(f"I will write it.\n```json\n{wanted}\n```"), saying("It is written.")]
    rune.env["RUNE_TOOL_PROMPT"] = "auto"
    assert rune("ask", "Write the file out.txt").returncode == 4
    done = rune("pending", "approve", only_id(rune))
    assert (done.returncode, done.stdout) == (0, "It is written.\n"), done.stderr
    assert (work / "out.txt").read_text() == "first\nsecond\n"
    before, after = map(messages_bytes, chats(server))
    assert after.startswith(before[:-1]) and not chats(server)[1].json.get("tools")
    asked, answered = rows(rune)
    for row in (asked, answered):
        assert row["ext"]["tool_mode"] == "text" and row["ext"]["fallback_tool_prompt"]
    assert asked["capsule_messages"] == answered["capsule_messages"]


def test_ask_says_in_one_line_how_to_go_on(rune: Rune, server: PlaybackServer, work: Path) -> None:
    done = rune("ask", "Write it")
    id = only_id(rune)
    assert (done.returncode, done.stdout) == (4, "I will write it.\n")
    assert done.stderr == f"{WAITS}{id[:12]} (or deny, show)\n"
    value = rune.json("pending", "show", id[:4])
    assert (value["status"], value["tool"]) == ("waiting", "write_file")
    assert value["arguments"] == WRITE["function"]["arguments"]
    assert value["state"]["messages"] == rows(rune)[0]["capsule_messages"]
    shown = rune("pending", "show", id[:4]).stdout
    assert "    text:\n      | first\n" in shown and f"folder   {work}" in shown and "task     Write it" in shown
    assert id[:12] in rune("pending", "list").stdout
    assert done.returncode == 4 and not (work / "out.txt").exists()
    assert rune.json("pending", "deny", id, "--reason", "not now")["text"] == "It is written."
    assert chats(server)[1].json["messages"][-1]["content"] == "Not run: the user refused it: not now"
    assert not (work / "out.txt").exists()
    assert rune("pending", "list").stdout == "nothing waits for an approval\n"


def test_ask_as_json_holds_the_whole_state(rune: Rune) -> None:
    value = rune.json("ask", "Write it", code=4)
    assert value["error"] == {"type": "Pending", "message": "waiting for an approval of write_file"}
    kept = json.loads((pending_dir(rune.home) / f"{value['run_id']}.json").read_bytes())
    assert value["pending_state"] == kept
    assert {"context_capsule", "messages", "pending_calls", "sha256", "expires"} <= set(kept)


def test_arguments_are_edited(rune: Rune, server: PlaybackServer, work: Path) -> None:
    rune("ask", "Write it")
    id = only_id(rune)
    for wrong, code, words in (
        ("{", 2, "no JSON"),
        ("[1]", 2, "JSON object"),
        ('{"path": "out.txt"}', 2, "cannot be used"),
    ):
        done = rune("pending", "approve", id, "--arguments", wrong)
        assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    done = rune("pending", "approve", id, "--arguments", '{"path": "other.txt", "text": "mine"}')
    assert done.stdout == "It is written.\n"
    assert (work / "other.txt").read_text() == "mine" and not (work / "out.txt").exists()
    call, result = chats(server)[1].json["messages"][-2:]
    assert call["tool_calls"][0]["function"]["arguments"] == WRITE["function"]["arguments"]
    assert result["content"].startswith("[The user changed the arguments of this call to {")


def test_what_cannot_be_decided_is_one_clear_line(rune: Rune, server: PlaybackServer, work: Path) -> None:
    rune("ask", "Write it")
    id = only_id(rune)
    path = pending_dir(rune.home) / f"{id}.json"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"out.txt", b"etc.txt"))
    done = rune("pending", "approve", id)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "sha256 does not match" in done.stderr
    assert rune.json("pending", "list")[0]["status"] == "changed"
    assert rune("pending", "show", id).returncode == 0
    path.write_bytes(whole)
    assert rune("pending", "approve", id, OLLAMA_HOST=f"http://127.0.0.1:{unused_port()}").returncode == 1
    assert len(chats(server)) == 1 and not (work / "out.txt").exists()
    assert rune("pending", "approve", id).returncode == 0
    done = rune("pending", "approve", id)
    assert done.returncode == 2 and "decided already: approve on" in done.stderr
    error = rune.json("pending", "deny", "ffff", code=2)["error"]
    assert (error["type"], error["reason"]) == ("ApprovalError", "unknown")


def test_an_expired_one_is_refused_and_can_be_forgotten(rune: Rune, work: Path) -> None:
    rune("ask", "Write it", "--session", "s", RUNE_APPROVAL_DAYS="0.000001")
    id = only_id(rune)
    time.sleep(0.2)
    done = rune("pending", "approve", id)
    assert done.returncode == 2 and "expired on" in done.stderr and not (work / "out.txt").exists()
    assert rune.json("pending", "list")[0]["status"] == "expired"
    assert rune.json("pending", "forget", id) == {"forgotten": id}
    assert rune.json("pending", "list") == []


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}}


def test_a_bug_is_found_mended_and_tested_with_leave(rune: Rune, server: PlaybackServer, work: Path) -> None:
    (work / "sums.py").write_text("def add(a, b):\n    return a - b\n")
    (work / "test_sums.py").write_text("from sums import add\n\nassert add(2, 2) == 4\nprint('well')\n")
    server.routes["/api/chat"] = [
        asking(call("search_text", text="def add")),
        asking(call("read_file", path="sums.py")),
        asking(call("edit_file", path="sums.py", old="a - b", new="a + b")),
        asking(call("run_command", command=f"{sys.executable} test_sums.py")),
        saying("It subtracted; now it adds, and its test passes."),
    ]
    assert rune("ask", "Fix the bug in sums.py and run its tests", "--session", "s").returncode == 4
    assert "a - b" in (work / "sums.py").read_text()
    done = rune("pending", "approve", only_id(rune))
    assert done.returncode == 4 and "run_command" in done.stderr
    assert "a + b" in (work / "sums.py").read_text()
    done = rune("pending", "approve", only_id(rune))
    assert (done.returncode, done.stdout) == (0, "It subtracted; now it adds, and its test passes.\n")
    sent = [json.loads(messages_bytes(request)) for request in chats(server)]
    assert sent[-1][-1]["content"] == "[exit code 0]\nwell"
    for before, after in itertools.pairwise(sent):  # over three processes, as if it had been one
        assert after[: len(before)] == before
    assert [row["ext"].get("resumed", {}).get("decision") for row in rows(rune)] == [None, "approve", "approve"]
    assert len({row["task_id"] for row in rows(rune)}) == 1


def test_two_processes_that_approve_at_once_make_one_call(rune: Rune, server: PlaybackServer, work: Path) -> None:
    append = {"function": {"name": "run_command", "arguments": {"command": ["sh", "-c", "echo once >> log.txt"]}}}
    server.routes["/api/chat"] = [asking(append), saying("Done.")]
    rune("ask", "Log it")
    id = only_id(rune)
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: rune("pending", "approve", id), range(4)))
    assert sorted(one.returncode for one in done) == [0, 2, 2, 2]
    assert all("decided already" in one.stderr for one in done if one.returncode)
    assert (work / "log.txt").read_text() == "once\n"


def test_a_session_that_waits_takes_no_other_turn(rune: Rune, server: PlaybackServer) -> None:
    rune("ask", "Write it", "--session", "s")
    done = rune("ask", "Something else", "--session", "s")
    assert done.returncode == 2 and f"rune pending show {only_id(rune)[:12]}" in done.stderr
    assert len(chats(server)) == 1


def talk(rune: Rune, *lines: str, args: tuple[str, ...] = ("--session", "s")) -> subprocess.CompletedProcess[str]:
    return rune("chat", *args, stdin="".join(f"{line}\n" for line in lines))


def test_chat_asks_and_goes_on_with_the_same_turn(rune: Rune, server: PlaybackServer, work: Path) -> None:
    server.routes["/api/chat"] = [asking(WRITE), saying("It is written."), saying("You are welcome.")]
    done = talk(rune, "Write it", "maybe", "y", "Thanks")
    assert done.stdout == "It is written.\nYou are welcome.\n"
    assert "write_file needs your approval\n  path: out.txt\n  text:\n    | first\n    | second\n" in done.stderr
    assert "'maybe' is none of these" in done.stderr and "waiting for your approval" not in done.stderr
    assert (work / "out.txt").exists()
    roles = [m["role"] for m in chats(server)[2].json["messages"][1:]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


def test_chat_takes_a_no_with_its_reason_and_other_arguments(rune: Rune, server: PlaybackServer, work: Path) -> None:
    server.routes["/api/chat"] = [asking(WRITE), asking(WRITE), saying("Well.")]
    wrong, right = '{"path": 1}', '{"path": "b.txt", "text": "mine"}'
    done = talk(rune, "Write it", "n not like this", "e", "no JSON", f"e {wrong}", "e", right)
    assert done.stdout == "Well.\n"
    assert "that is no JSON" in done.stderr and "cannot be used" in done.stderr
    assert chats(server)[1].json["messages"][-1]["content"] == "Not run: the user refused it: not like this"
    assert (work / "b.txt").read_text() == "mine" and not (work / "out.txt").exists()


def test_chat_can_put_it_off_and_comes_back_to_it(rune: Rune, server: PlaybackServer, work: Path) -> None:
    done = talk(rune, "Write it", "l", "Something else")
    assert WAITS in done.stderr and "waits for an approval" in done.stderr and len(chats(server)) == 1
    done = talk(rune, "y")
    assert done.stdout == "It is written.\n" and (work / "out.txt").exists()


def test_calls_cannot_forge_what_a_person_sees(rune: Rune, server: PlaybackServer) -> None:
    hostile = {
        "function": {"name": "write_file", "arguments": {"path": "a\x1b[2K\rb", "text": "x\n  path: c\n\u202ey"}}
    }
    server.routes["/api/chat"] = [asking(hostile)]
    done = talk(rune, "Write it")
    shown = rune("pending", "show", only_id(rune)).stdout
    for text in (done.stderr, shown):
        assert "\x1b" not in text and "\u202e" not in text
        assert "path: a\\x1b[2K\\rb" in text and "    |   path: c\n" in text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes that are killed are killed by signal")
def test_what_was_approved_and_killed_is_not_made_again(rune: Rune, server: PlaybackServer, work: Path) -> None:
    slow = {"function": {"name": "run_command", "arguments": {"command": ["sh", "-c", "echo on >> log.txt; sleep 30"]}}}
    server.routes["/api/chat"] = [asking(slow), saying("Done.")]
    rune("ask", "Log it", "--session", "s")
    id = only_id(rune)
    approving = started(rune, "pending", "approve", id)
    end = time.monotonic() + 30
    while not (work / "log.txt").exists() and time.monotonic() < end:
        time.sleep(0.02)
    approving.kill()
    approving.communicate(timeout=30)
    assert rune.json("pending", "list")[0]["status"] == "interrupted"
    done = rune("pending", "approve", id)
    assert done.returncode == 2 and f"rune pending forget {id[:12]}" in done.stderr
    assert (work / "log.txt").read_text() == "on\n"
    assert rune("ask", "Something else", "--session", "s").returncode == 0
    assert rune("pending", "forget", id).returncode == 0


def test_the_example_of_the_page_runs(
    rune: Rune, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "approvals.md").read_text("utf-8")
    example = re.search(r"<!-- needs a model -->\n```python\n(.*?)```", page, re.DOTALL)
    assert example is not None
    for name, value in rune.env.items():
        monkeypatch.setenv(name, value)
    exec(compile(example[1], "approvals.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == "It is written.\n"
    assert (work / "out.txt").read_text() == "first\nsecond\n"


def test_every_command_of_the_page_exists() -> None:
    page = (Path(__file__).parents[2] / "docs" / "approvals.md").read_text("utf-8")
    named = set(re.findall(r"^\$ rune pending (\w+)", page, re.MULTILINE))
    assert named == set(pending.commands)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_in_a_terminal_the_arguments_can_be_edited_where_they_stand(
    rune: Rune, server: PlaybackServer, work: Path
) -> None:
    from terminal import Terminal

    small = {"function": {"name": "write_file", "arguments": {"path": "out.txt", "text": "old"}}}
    server.routes["/api/chat"] = [asking(small), asking(small), saying("It is written.")]
    env = {**rune.env, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    terminal = Terminal([sys.executable, "-m", "rune.cli.main", "chat", "--session", "s"], env)
    try:
        terminal.until("›")
        terminal.type("Write it\r")
        terminal.until("needs your approval")
        terminal.until("l later ›")
        terminal.type("n why\r")
        terminal.until("needs your approval")
        terminal.until("l later ›")
        terminal.type("e\r")
        terminal.until('"old"}')
        terminal.type("\x7f" * 5 + 'new"}\r')  # takes back old"} and writes anew
        terminal.until("It is written.")
        terminal.until("›")
        terminal.type("\x04")
    finally:
        code = terminal.close()
    assert code == 0 and (work / "out.txt").read_text() == "new"
    assert server.requests_to("/api/chat")[1].json["messages"][-1]["content"] == "Not run: the user refused it: why"
    kept = (rune.home / "state" / "chat_history").read_text(encoding="utf-8")
    assert "+Write it" in kept and "+e" not in kept and "+n why" not in kept


def test_doctor_tells_of_what_waits(rune: Rune) -> None:
    assert not [c for c in json.loads(rune("doctor", "--json").stdout)["checks"] if c["check"] == "approvals"]
    rune("ask", "Write it")
    (check,) = [c for c in json.loads(rune("doctor", "--json").stdout)["checks"] if c["check"] == "approvals"]
    assert check["ok"] is None and check["counts"] == {"waiting": 1} and "rune pending list" in check["says"]
