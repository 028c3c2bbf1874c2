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


@pytest.fixture(params=["rust", "python"])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    """The kernels: a test that asks for them runs once with the native module and once with the pure twin."""
    if request.param == "python":
        return rune.kernels.pure
    if rune.kernels.native is None:
        fault = f"{rune.kernels.BACKEND_REASON}; build it with: maturin develop"
        if rust_is_required():
            pytest.fail(fault)
        pytest.skip(fault)
    return rune.kernels.native
