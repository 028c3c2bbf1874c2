"""Stores in trouble, as a person meets it: the turn goes on, something says what is wrong, and the repair works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import Rune
from database_helpers import HOLD, WAYS, damage, running
from playback import PlaybackServer, json_answer, ndjson, reply_lines
from rune.paths import database

TEXT = "The deploy key rotates every Friday"
STORES = {"memory", "persona_memories", "consolidated", "neurons", "graphs", "abstraction"}


@pytest.fixture
def asked(rune: Rune) -> Any:
    chat = ndjson(*reply_lines("On Friday.", prompt_eval_count=90, eval_count=3))
    show = {"model_info": {"general.architecture": "llama", "llama.context_length": 8192}}
    tags = {"models": [{"name": "m", "model": "m", "size": 1, "capabilities": ["completion"]}]}
    routes = {"/api/show": json_answer(show), "/api/tags": json_answer(tags), "/api/chat": chat}
    routes["/api/ps"] = json_answer({"models": []})
    with PlaybackServer(routes) as server:
        rune.env["OLLAMA_HOST"] = server.url

        def ask(**env: str) -> dict[str, Any]:
            answer: dict[str, Any] = rune.json("ask", "When does the deploy key rotate?", "--model", "m", **env)
            answer["sent"] = server.requests_to("/api/chat")[-1].json["messages"]
            return answer

        rune("memory", "add", TEXT)
        yield ask


def failures(rune: Rune) -> dict[str, str]:
    lines = (rune.home / "state" / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["subsystem"]: row["error"] for row in rows if row.get("event") == "failure"}


def checks(rune: Rune, *args: str) -> dict[str, dict[str, Any]]:
    found = json.loads(rune("doctor", *args, "--json").stdout)
    return {check["check"]: check for check in found["checks"]}


@pytest.mark.parametrize("how", WAYS)
def test_a_damaged_database_degrades_is_explained_and_is_repaired(rune: Rune, asked: Any, how: str) -> None:
    assert TEXT in asked()["sent"][0]["content"]
    path = database(rune.home)
    damage(path, how)
    broken = path.read_bytes()
    answer = asked()
    assert answer["success"] is True
    assert answer["text"] == "On Friday."
    assert TEXT not in answer["sent"][0]["content"]
    assert set(answer["degraded"]) >= STORES - {"consolidated"}
    assert path.read_bytes() == broken  # nothing replaced in silence
    assert "rune doctor --repair" in failures(rune)["memory"]
    check = checks(rune)["database"]
    assert check["ok"] is False
    assert "rune doctor --repair" in check["says"]
    repaired = checks(rune, "--repair")
    assert repaired["repair"]["ok"] is True
    assert repaired["database"]["ok"] is True
    aside = Path(repaired["repair"]["aside"])
    assert aside.read_bytes() == broken  # set aside, as it was
    rune("memory", "add", "The deploy key is kept in the vault")
    after = asked()
    assert "kept in the vault" in after["sent"][0]["content"]
    assert not set(after["degraded"]) & STORES
    if how == "a table is gone":
        assert TEXT in after["sent"][0]["content"]


def test_repair_leaves_a_whole_database_and_an_absent_one_alone(rune: Rune, asked: Any) -> None:
    path = database(rune.home)
    before = path.read_bytes()
    assert "nothing to repair" in checks(rune, "--repair")["repair"]["says"]
    assert path.read_bytes() == before
    assert "absent" in checks(Rune(rune.home.parent / "other"), "--repair")["repair"]["says"]


def test_a_database_that_another_process_holds_is_read_all_the_same(rune: Rune, asked: Any) -> None:
    with running(HOLD, database(rune.home)):
        answer = asked()
        assert answer["success"] is True
        assert TEXT in answer["sent"][0]["content"]
        assert set(answer["degraded"]) <= {"consolidated", "neurons", "storage.degraded"}
        done = rune("memory", "add", "one more")
        assert (done.returncode, done.stdout) == (1, "")
        assert "Another writer" in done.stderr


AS_NOBODY = """
import os, sys
import rune, rune.cli.main, rune.cli.ask, rune.cli.doctor, rune.cli.doctor_wire, rune.transports.ollama, rune.rune_operator
import click.testing
home = os.environ["RUNE_HOME"]
call = click.testing.CliRunner()
os.environ["RUNE_HOME"] = home + "-warm"  # imports that happen on the way, while everything may still be read
call.invoke(rune.cli.main.cli, ["ask", "hi", "--model", "m", "--json"])
call.invoke(rune.cli.main.cli, ["doctor", "--json"])
os.environ["RUNE_HOME"] = home
os.setresuid(65534, 65534, 0)
sys.argv = ["rune", *sys.argv[1:]]
sys.exit(rune.cli.main.main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="folders there have no such mode")
def test_a_home_that_may_not_be_written_is_read_and_said(rune: Rune, asked: Any) -> None:
    assert asked()["success"] is True
    folders = [rune.home, *(path for path in rune.home.rglob("*") if path.is_dir())]
    files = [path for path in rune.home.rglob("*") if path.is_file()]
    # Root writes everywhere: there the process becomes somebody else, who may read all of the home and write nothing.
    root = os.geteuid() == 0
    for path in rune.home.parents if root else ():
        path.chmod(path.stat().st_mode | 0o055)
        if path.name.startswith("pytest-of"):
            break
    for path in folders:
        path.chmod(0o555)
    for path in files:
        path.chmod(0o444)
    before = {path: path.read_bytes() for path in files}

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", AS_NOBODY] if root else [sys.executable, "-m", "rune.cli.main"]
        done = subprocess.run([*command, *args], capture_output=True, text=True, env=rune.env, timeout=120, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    try:
        done = run("ask", "When does the deploy key rotate?", "--model", "m", "--json")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["text"] == "On Friday."
        assert "storage.degraded" in answer["degraded"]
        found = json.loads(run("doctor", "--json").stdout)
        home = next(check for check in found["checks"] if check["check"] == "home")
        assert (home["ok"], "RUNE_HOME" in home["says"]) == (False, True)
        assert {path: path.read_bytes() for path in files} == before
    finally:
        for path in folders:
            path.chmod(0o700)
