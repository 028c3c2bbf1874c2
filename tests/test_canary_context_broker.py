"""The canary runs by itself, says one line for each check, and goes off when the contract is broken."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rune import canary_context_broker as canary
from rune.context.capsule import CapsuleBlock


@pytest.mark.parametrize("name", canary.CHECKS)
def test_every_check_holds(name: str) -> None:
    assert canary.CHECKS[name]()


def test_it_runs_as_a_module_with_one_line_for_each_check() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rune.canary_context_broker"], capture_output=True, text=True, env={**os.environ}
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == len(canary.CHECKS) + 1 and all(line.startswith("ok    ") for line in lines[:-1])


def test_the_memory_check_goes_off_when_memory_is_not_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    import rune.context_broker

    monkeypatch.setattr(rune.context_broker, "memory_disabled", lambda env=None: False)
    with pytest.raises(canary.CheckFailed):
        canary.check_memory_off_proves_zero_memory_tokens()


def test_a_broken_contract_is_exit_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(CapsuleBlock, "content", property(lambda self: "frozen", lambda self, text: None))
    assert canary.main() == 3
    assert "FAIL  a_change_of_a_block_flows_through" in capsys.readouterr().out
