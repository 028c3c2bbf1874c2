"""Fixtures of the whole suite."""

from __future__ import annotations

import os
import shutil
from types import ModuleType

import pytest

import rune.kernels


def rust_is_required() -> bool:
    """Whether a missing native module is a fault here: where it is asked for, and in CI on a machine that can build it."""
    if os.environ.get("RUNE_REQUIRE_RUST") == "1":
        return True
    return os.environ.get("CI") == "true" and shutil.which("cargo") is not None


@pytest.fixture(scope="session")
def native_kernels() -> ModuleType:
    """The native kernels; without them the test is skipped, or fails where they are required."""
    if rune.kernels.native is None:
        fault = f"{rune.kernels.BACKEND_REASON}; build them with: maturin develop"
        (pytest.fail if rust_is_required() else pytest.skip)(fault)
    return rune.kernels.native


@pytest.fixture(params=["rust", "python"])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    """The kernels: a test that asks for them runs once with the native module and once with the pure twin."""
    if request.param == "python":
        return rune.kernels.pure
    found: ModuleType = request.getfixturevalue("native_kernels")
    return found
