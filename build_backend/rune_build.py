"""The build backend: maturin where a fit cargo is on PATH, else hatchling, which makes the pure wheel.

``RUNE_BUILD=auto`` (the default) chooses by what is there, ``rust`` insists on the native kernels, ``pure`` leaves them out. The
choice is told on stderr. Once cargo is chosen, a build that fails is a failed build: it never turns into a pure wheel.
An sdist is the same either way and always hatchling's.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MATURIN = "maturin>=1.9.4,<2"
HATCHLING = "hatchling>=1.27,<2"
_BUILDERS = {"rust": ("maturin", MATURIN), "pure": ("hatchling.build", HATCHLING)}
_ROOT = Path(__file__).resolve().parent.parent
Config = Mapping[str, Any] | None


def _msrv() -> str:
    """The oldest Rust that the workspace says it builds with, such as ``1.88``."""
    with (_ROOT / "Cargo.toml").open("rb") as file:
        return str(tomllib.load(file)["workspace"]["package"]["rust-version"])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _cargo_fault() -> str:
    """Why cargo cannot be used, or "" when it can."""
    cargo = shutil.which("cargo")
    if cargo is None:
        return "no cargo on PATH"
    asked = subprocess.run([cargo, "--version"], capture_output=True, text=True, check=False)
    found = re.match(r"cargo (\d+\.\d+)", asked.stdout)
    if asked.returncode != 0 or found is None:
        return f"{cargo} does not run: {(asked.stderr or asked.stdout).strip()[:200]}"
    if _numbers(found[1]) < _numbers(_msrv()):
        return f"cargo {found[1]} is older than {_msrv()}"
    return ""


def choose() -> str:
    """``rust`` or ``pure``; ends the build with one line when what was asked for cannot be had."""
    asked = os.environ.get("RUNE_BUILD", "").strip().lower() or "auto"
    if asked not in ("auto", "rust", "pure"):
        raise SystemExit(f"rune: RUNE_BUILD={asked!r} is not one of auto, rust, pure")
    if asked == "pure":
        print("rune: pure build, as RUNE_BUILD=pure asks", file=sys.stderr)
        return "pure"
    fault = _cargo_fault()
    if fault and asked == "rust":
        raise SystemExit(f"rune: RUNE_BUILD=rust, but {fault}; install Rust {_msrv()} or newer, or set RUNE_BUILD=pure")
    print(f"rune: pure build ({fault})" if fault else "rune: native build with cargo", file=sys.stderr)
    return "pure" if fault else "rust"


def _builder(kind: str) -> Any:
    return importlib.import_module(_BUILDERS[kind][0])


def get_requires_for_build_wheel(config_settings: Config = None) -> list[str]:
    return [_BUILDERS[choose()][1]]


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings: Config = None) -> list[str]:
    return [HATCHLING]


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Config = None) -> str:
    """Spares frontends a native build that they would make only to read the metadata."""
    kind = choose()
    if kind == "rust":
        return str(_builder(kind).prepare_metadata_for_build_wheel(metadata_directory, config_settings))
    wheel = Path(metadata_directory, _builder(kind).build_wheel(metadata_directory, config_settings))
    with zipfile.ZipFile(wheel) as archive:
        found = [name for name in archive.namelist() if name.split("/")[0].endswith(".dist-info")]
        archive.extractall(metadata_directory, found)
    wheel.unlink()
    return found[0].split("/")[0]


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_wheel(wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None) -> str:
    return str(_builder(choose()).build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None) -> str:
    return str(_builder(choose()).build_editable(wheel_directory, config_settings, metadata_directory))


def build_sdist(sdist_directory: str, config_settings: Config = None) -> str:
    return str(_builder("pure").build_sdist(sdist_directory, config_settings))
