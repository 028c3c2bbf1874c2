"""A database in a folder of its own, and a clock that stands until it is set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from database_helpers import Clock
from rune.storage.database import Database


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
