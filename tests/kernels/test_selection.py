"""Which backend runs: RUNE_BACKEND, a native module that is missing, broken or of another version, and saying why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rune
import rune.kernels
from rune.kernels import native

SHOW = "import rune.kernels as k; print(k.BACKEND); print(k.BACKEND_REASON); print(k.Ledger.__module__)"


def run(code: str, backend: str | None, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Python of its own; ``path`` holds what is found before everything else."""
    env = {name: value for name, value in os.environ.items() if name != "RUNE_BACKEND"}
    if backend is not None:
        env["RUNE_BACKEND"] = backend
    if path is not None:
        code = f"import rune; rune.__path__.insert(0, {str(path)!r})\n{code}"
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def without_native(tmp_path: Path) -> Path:
    (tmp_path / "_native.py").write_text("raise ImportError('not built here')\n")
    return tmp_path


def test_the_twin_when_asked_for() -> None:
    told = run(SHOW, "python").stdout.splitlines()
    assert told == ["python", "RUNE_BACKEND=python asks for it", "rune.kernels.pure_ledger"]


@pytest.mark.skipif(native is None, reason="the native module is not built")
@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("rust", "RUNE_BACKEND=rust asks for it"),
        (" Rust ", "RUNE_BACKEND=rust asks for it"),
        ("auto", "the native kernels are there"),
        ("", "the native kernels are there"),
        (None, "the native kernels are there"),
    ],
)
def test_the_native_module_where_it_is(asked: str | None, reason: str) -> None:
    assert run(SHOW, asked).stdout.splitlines() == ["rust", reason, "rune._native"]


def test_a_quiet_fallback_keeps_its_reason(without_native: Path) -> None:
    told = run(SHOW, None, without_native)
    assert told.stdout.splitlines() == [
        "python",
        "the native kernels cannot be loaded: not built here",
        "rune.kernels.pure_ledger",
    ]
    assert told.stderr == ""


def test_asked_for_and_missing_is_an_error(without_native: Path) -> None:
    told = run(SHOW, "rust", without_native)
    assert told.returncode != 0
    assert told.stderr.splitlines()[-1] == (
        "rune.errors.BackendError: RUNE_BACKEND=rust, but the native kernels cannot be loaded: not built here; "
        "install a wheel that has them, or unset RUNE_BACKEND"
    )


def test_an_older_native_module_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "_native.py").write_text("def chars4(text): return 0\n")
    told = run(SHOW, None, tmp_path).stdout.splitlines()
    assert told[0] == "python"
    assert told[1].startswith("the native kernels are of another version (without ESTIMATOR_NAMES, ")


def test_a_value_that_is_none_of_the_three() -> None:
    told = run(SHOW, "fast")
    assert told.returncode != 0
    assert (
        told.stderr.splitlines()[-1] == "rune.errors.BackendError: RUNE_BACKEND='fast' is not one of auto, rust, python"
    )


def test_a_backend_error_is_an_import_error(without_native: Path) -> None:
    told = run("try: import rune.kernels\nexcept ImportError as e: print(type(e).__name__)", "rust", without_native)
    assert told.stdout.strip() == "BackendError"


@pytest.mark.skipif(native is None, reason="the native module is not built")
def test_native_and_package_are_of_one_version() -> None:
    assert native.__version__ == rune.__version__


@pytest.mark.skipif(native is None, reason="the native module is not built")
def test_the_twin_is_loaded_when_asked_for() -> None:
    told = run("import sys, rune.kernels as k; print('rune.kernels.pure' in sys.modules, k.pure.chars4('abcd'))", None)
    assert told.stdout.strip() == "False 1"


def test_what_is_public_is_there() -> None:
    for name in rune.kernels.__all__:
        assert hasattr(rune.kernels, name), name
    with pytest.raises(AttributeError, match=r"^module 'rune\.kernels' has no attribute 'impure'$"):
        _ = rune.kernels.impure
