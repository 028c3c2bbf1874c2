"""A database in a folder of its own, and a clock that stands until it is set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rune.storage.database import Database


class Clock:
    """Epoch seconds that tests set."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def hours(self, number: float) -> None:
        """Let hours pass."""
        self.now += 3600 * number


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "state" / "rune.sqlite3"


@pytest.fixture
def db(path: Path, clock: Clock) -> Iterator[Database]:
    with Database(path, clock=clock) as found:
        yield found
