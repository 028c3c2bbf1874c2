"""Many operators in threads on one Rune home: every record whole and its own. ``scripts/many_operators.py`` measures as well."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rune.paths import inference_traces

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def many() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        yield importlib.import_module("many_operators")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def test_every_row_is_whole_and_no_failure_is_another_runs(many: ModuleType, tmp_path: Path) -> None:
    home = many.filled_home(tmp_path / "home", 50)
    _, workers = many.run_together(home, 24, 12)
    assert many.check(home, workers) == []
    assert sum(len(worker.expected) for worker in workers) == 24 * 12
    broken = [worker for worker in workers if worker.breaks]
    assert len(broken) == 6 and all(any(degraded for degraded, _, _ in w.expected.values()) for w in broken)


def test_the_check_notices_what_is_wrong(many: ModuleType, tmp_path: Path) -> None:
    home = many.filled_home(tmp_path / "home", 0)
    _, workers = many.run_together(home, 2, 3)
    assert many.check(home, workers) == []
    path = inference_traces(home)
    lines = path.read_text().splitlines()
    row = json.loads(lines[0])
    other = json.dumps({**row, "degraded": ["breaker 1"]})
    for broken in (lines[1:], [lines[0][:50], *lines[1:]], [other, *lines[1:]], [*lines, lines[0]]):
        path.write_text("\n".join(broken) + "\n")
        assert many.check(home, workers) != []
