"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_helpers import Rune


@pytest.fixture
def rune(tmp_path: Path) -> Rune:
    return Rune(tmp_path)
