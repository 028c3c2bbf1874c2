"""``rune memory`` end to end: what is added enters the next plan, and what is exported comes back."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TEXT = "The deploy key rotates every Friday"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def rune(home: Path, *args: str, code: int = 0, **env: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RUNE_")}
    done = subprocess.run(
        [sys.executable, "-m", "rune.cli.main", *args],
        capture_output=True,
        text=True,
        env={**clean, "RUNE_HOME": str(home), **env},
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 or done.stdout else done.stderr


def plan(home: Path, **env: str) -> dict[str, Any]:
    out = rune(home, "plan", "When does the deploy key rotate?", "--window", "8192", "--show-messages", "--json", **env)
    return json.loads(out)  # type: ignore[no-any-return]


def fingerprint(home: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in home.rglob("*") if p.is_file()}


def test_a_memory_enters_the_next_plan_and_memory_off_proves_its_absence(home: Path) -> None:
    rune(home, "memory", "add", "--kind", "memory", TEXT)
    before = fingerprint(home)
    trace = plan(home)
    assert "memory" in trace["admitted"]
    assert f"## Context\n- {TEXT}" in trace["ext"]["messages"][0]["content"]
    assert trace["memory_tokens"] > 0
    off = plan(home, RUNE_MEMORY_OFF=" YES ")
    assert off["memory_tokens"] == 0
    assert not {"memory", "persona_memories", "consolidated"} & {block["name"] for block in off["blocks"]}
    assert fingerprint(home) == before


def test_every_kind_is_added_found_exported_imported_and_forgotten(home: Path, tmp_path: Path) -> None:
    rows = {
        "memory": TEXT,
        "persona": "Rune speaks plainly",
        "fact": "Water boils at 100 degrees",
        "entity": "Anna",
        "edge": "Anna -> lives in -> Oslo",
        "neuron": "gardening",
    }
    for kind, text in rows.items():
        added = json.loads(rune(home, "memory", "add", text, "--kind", kind, "--json"))
        listed = json.loads(rune(home, "memory", "list", "--kind", kind, "--json"))
        assert added["id"] in [row["id"] for row in listed]
    assert json.loads(rune(home, "memory", "search", "deploy key", "--json"))[0]["text"] == TEXT
    exported = rune(home, "memory", "export")
    file = tmp_path / "all.jsonl"
    file.write_text(exported, encoding="utf-8")
    other = tmp_path / "other"
    rune(other, "memory", "import", str(file))
    assert rune(other, "memory", "export") == exported
    row = json.loads(rune(home, "memory", "list", "--json"))[0]["id"]
    rune(home, "memory", "forget", str(row))
    assert json.loads(rune(home, "memory", "list", "--json")) == []


def test_a_bad_line_imports_nothing(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"text": "good"}\n{"text": \n', encoding="utf-8")
    assert "2" in rune(home, "memory", "import", str(file), "--kind", "memory", code=2)
    assert json.loads(rune(home, "memory", "list", "--json")) == []


def test_wrong_calls_are_said(home: Path) -> None:
    assert "Anna -> lives in -> Oslo" in rune(home, "memory", "add", "no arrows", "--kind", "edge", code=2)
    assert "99" in rune(home, "memory", "forget", "99", code=2)
