"""The build backend: what it chooses and says, and wheels and sdists that are really built, installed and imported."""

from __future__ import annotations

import email
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import rune

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CARGO = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
SHOW = "import rune.kernels as k; print(k.BACKEND, k.chars4('abcdefgh'), len(k.Ledger()), k.__file__)"

slow_build = pytest.mark.slow_build


@pytest.fixture
def backend() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rune_build", ROOT / "build_backend" / "rune_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def path_without_cargo() -> str:
    return os.pathsep.join(
        folder for folder in os.environ["PATH"].split(os.pathsep) if not (Path(folder) / "cargo").exists()
    )


def fake_cargo(folder: Path, script: str) -> str:
    """A PATH on which ``cargo`` is that shell script, and nothing else is cargo."""
    folder.mkdir()
    cargo = folder / "cargo"
    cargo.write_text(f"#!/bin/sh\n{script}\n")
    cargo.chmod(0o755)
    return f"{folder}{os.pathsep}{path_without_cargo()}"


# What it chooses


def test_pure_without_cargo(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RUNE_BUILD", raising=False)
    monkeypatch.setenv("PATH", path_without_cargo())
    assert backend.get_requires_for_build_wheel() == [backend.HATCHLING]
    assert backend.get_requires_for_build_editable({}) == [backend.HATCHLING]
    assert capfd.readouterr().err == "rune: pure build (no cargo on PATH)\n" * 2


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'cargo 1.60.0 (old)'", "cargo 1.60 is older than "),
        ("echo 'cargo 1.9.0'", "cargo 1.9 is older than "),
        ("echo 'no toolchain is chosen' >&2; exit 1", "does not run: no toolchain is chosen"),
        ("echo nonsense", "does not run: nonsense"),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="the fake cargo is a shell script")
def test_pure_with_a_cargo_that_is_not_fit(
    backend: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    script: str,
    told: str,
) -> None:
    monkeypatch.setenv("PATH", fake_cargo(tmp_path / "bin", script))
    monkeypatch.setenv("RUNE_BUILD", "auto")
    assert backend.choose() == "pure"
    assert told in capfd.readouterr().err
    monkeypatch.setenv("RUNE_BUILD", "rust")
    with pytest.raises(
        SystemExit, match=r"^rune: RUNE_BUILD=rust, but .*; install Rust .* or newer, or set RUNE_BUILD=pure$"
    ):
        backend.choose()


@pytest.mark.skipif(os.name == "nt", reason="the fake cargo is a shell script")
@pytest.mark.parametrize("version", ["{}", "{}.3-nightly", "9.0.0"])
def test_native_with_a_fit_cargo(
    backend: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    version: str,
) -> None:
    told = version.format(CARGO["workspace"]["package"]["rust-version"])
    monkeypatch.setenv("PATH", fake_cargo(tmp_path / "bin", f"echo 'cargo {told} (abc 2026-01-01)'"))
    monkeypatch.delenv("RUNE_BUILD", raising=False)
    assert backend.get_requires_for_build_wheel() == [backend.MATURIN]
    assert capfd.readouterr().err == "rune: native build with cargo\n"
    monkeypatch.setenv("RUNE_BUILD", "pure")
    assert backend.get_requires_for_build_wheel() == [backend.HATCHLING]


def test_a_word_that_is_none_of_the_three(backend: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNE_BUILD", "fast")
    with pytest.raises(SystemExit, match=r"^rune: RUNE_BUILD='fast' is not one of auto, rust, pure$"):
        backend.get_requires_for_build_wheel()


def test_an_sdist_is_always_hatchlings(backend: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNE_BUILD", "rust")
    assert backend.get_requires_for_build_sdist() == [backend.HATCHLING]


def test_one_version_everywhere() -> None:
    assert CARGO["workspace"]["package"]["version"] == rune.__version__
    for manifest in ROOT.glob("rust/*/Cargo.toml"):
        package = tomllib.loads(manifest.read_text(encoding="utf-8"))["package"]
        assert package["version"] == {"workspace": True}
        assert package["rust-version"] == {"workspace": True}


def test_the_builders_are_those_of_the_development_environment(backend: ModuleType) -> None:
    dev = PYPROJECT["project"]["optional-dependencies"]["dev"]
    assert {backend.MATURIN, backend.HATCHLING} <= set(dev)
    assert PYPROJECT["build-system"]["requires"] == []


# What it builds


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the source tree under a path with a space, with a native module left over from another build."""
    pytest.importorskip("hatchling")
    place = tmp_path_factory.mktemp("a folder") / "rune source"
    place.mkdir()
    for name in ("pyproject.toml", "Cargo.toml", "Cargo.lock", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, place)
    for name in ("build_backend", "python", "rust"):
        shutil.copytree(
            ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.pyd", "target")
        )
    (place / "python" / "rune" / "_native.abi3.so").write_bytes(b"left over")
    yield place
    shutil.rmtree(place)


def environment(path: str, build: str | None) -> dict[str, str]:
    env = {
        name: value for name, value in os.environ.items() if name not in ("RUNE_BUILD", "PYTHONPATH", "RUNE_BACKEND")
    }
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), path])  # maturin is a program beside Python
    env.setdefault("CARGO_TARGET_DIR", str(ROOT / "target"))
    return env if build is None else env | {"RUNE_BUILD": build}


def pip_wheel(what: Path, out: Path, path: str, build: str | None = None) -> subprocess.CompletedProcess[str]:
    """``pip wheel`` with the builders of this environment, so that no network is needed."""
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check", "-v"]
    return subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "-w", str(out), str(what)],
        env=environment(path, build),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def hook(source: Path, name: str, out: Path, path: str, build: str) -> Path:
    """Calls a hook as a frontend does: in the source tree, in a process of its own."""
    out.mkdir(exist_ok=True)
    code = f"import sys; sys.path.insert(0, 'build_backend'); import rune_build; print(rune_build.{name}({str(out)!r}))"
    told = subprocess.run(
        [sys.executable, "-c", code],
        cwd=source,
        env=environment(path, build),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return out / told.stdout.splitlines()[-1]


def only_wheel(out: Path, told: subprocess.CompletedProcess[str]) -> Path:
    assert told.returncode == 0, told.stdout + told.stderr
    (wheel,) = out.glob("*.whl")
    return wheel


def unpacked(wheel: Path, place: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


def imported(place: Path) -> list[str]:
    """What the package at ``place`` says of itself, in a Python that sees nothing of this source tree."""
    # An editable install in the environment that runs the tests puts the tree on the path of every Python there.
    here = str(ROOT / "python")
    unseen = f"sys.path[:] = [p for p in sys.path if p != {here!r}]"
    code = f"import site, sys; {unseen}; sys.path.insert(0, {str(place)!r}); site.addsitedir({str(place)!r}); {SHOW}"
    told = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", code],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert told.returncode == 0, told.stderr
    return told.stdout.strip().split(" ", 3)


@slow_build
def test_pip_makes_a_pure_wheel_without_cargo(source: Path, tmp_path: Path) -> None:
    told = pip_wheel(source, tmp_path / "out", path_without_cargo())
    wheel = only_wheel(tmp_path / "out", told)
    assert wheel.name == f"rune_context-{rune.__version__}-py3-none-any.whl"
    assert "rune: pure build (no cargo on PATH)" in told.stdout + told.stderr
    place = unpacked(wheel, tmp_path / "site")
    found = {str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()}
    assert {"rune/__init__.py", "rune/py.typed", "rune/kernels/pure.py", "rune/_native.pyi"} <= found
    assert not [name for name in found if name.endswith((".so", ".pyd")) or not name.startswith("rune")]
    assert imported(place)[:3] == ["python", "2", "0"]
    info = place / f"rune_context-{rune.__version__}.dist-info"
    assert "rune = rune.cli.main:main" in (info / "entry_points.txt").read_text()
    metadata = (info / "METADATA").read_text()
    assert re.search(r"^License-Expression: Apache-2\.0$", metadata, re.MULTILINE)
    assert re.search(r"^Requires-Python: >=3\.11$", metadata, re.MULTILINE)


@slow_build
def test_rust_without_cargo_is_a_plain_error(source: Path, tmp_path: Path) -> None:
    told = pip_wheel(source, tmp_path / "out", path_without_cargo(), "rust")
    assert told.returncode != 0
    assert "rune: RUNE_BUILD=rust, but no cargo on PATH; install Rust" in told.stdout + told.stderr
    assert "Traceback" not in told.stdout
    assert not list(tmp_path.rglob("*.whl"))


@slow_build
@pytest.mark.skipif(os.name == "nt", reason="the fake cargo is a shell script")
def test_a_native_build_that_fails_does_not_turn_pure(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("maturin")
    path = fake_cargo(
        tmp_path / "bin", 'test "$1" = --version && echo "cargo 99.0.0" && exit 0; echo broken >&2; exit 101'
    )
    told = pip_wheel(source, tmp_path / "out", path)
    assert told.returncode != 0
    assert "rune: native build with cargo" in told.stdout + told.stderr
    assert "broken" in told.stdout + told.stderr
    assert not list(tmp_path.rglob("*.whl"))


@slow_build
@pytest.mark.skipif(shutil.which("cargo") is None, reason="no cargo here")
def test_pip_makes_a_native_wheel_with_cargo(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("maturin")
    wheel = only_wheel(tmp_path / "out", pip_wheel(source, tmp_path / "out", os.environ["PATH"], "rust"))
    assert re.fullmatch(rf"rune_context-{re.escape(rune.__version__)}-cp311-abi3-.*\.whl", wheel.name)
    place = unpacked(wheel, tmp_path / "site")
    (native,) = place.rglob("_native*.so") if os.name != "nt" else place.rglob("_native*.pyd")
    assert native.parent == place / "rune"
    assert native.stat().st_size > 100_000  # built anew, not the one left over
    assert {"py.typed", "_native.pyi"} <= {file.name for file in (place / "rune").iterdir()}
    assert imported(place)[:3] == ["rust", "2", "0"]


@slow_build
@pytest.mark.parametrize("build", ["pure", "rust"])
def test_metadata_without_a_build(source: Path, tmp_path: Path, build: str) -> None:
    if build == "rust" and (shutil.which("cargo") is None or importlib.util.find_spec("maturin") is None):
        pytest.skip("no cargo or no maturin here")
    info = hook(source, "prepare_metadata_for_build_wheel", tmp_path / "out", os.environ["PATH"], build)
    assert [file.name for file in (tmp_path / "out").iterdir()] == [f"rune_context-{rune.__version__}.dist-info"]
    metadata = email.message_from_string((info / "METADATA").read_text(encoding="utf-8"))
    assert (metadata["Name"], metadata["Version"]) == ("rune-context", rune.__version__)
    required = {line.split(";")[0].replace(" ", "") for line in metadata.get_all("Requires-Dist", [])}
    assert {re.split("[<>=]", line)[0] for line in required} >= {"httpx", "msgspec", "xllamacpp", "duckdb"}


@slow_build
def test_an_sdist_carries_all_that_a_build_needs(source: Path, tmp_path: Path) -> None:
    sdist = hook(source, "build_sdist", tmp_path / "sdist", os.environ["PATH"], "auto")
    assert sdist.name == f"rune_context-{rune.__version__}.tar.gz"
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "un packed", filter="data")
    (tree,) = (tmp_path / "un packed").iterdir()
    found = {str(file.relative_to(tree)) for file in tree.rglob("*") if file.is_file()}
    rust = {str(file.relative_to(ROOT)) for file in (ROOT / "rust").rglob("*") if file.is_file()}
    assert {"Cargo.toml", "Cargo.lock", "LICENSE", "pyproject.toml", "build_backend/rune_build.py", "PKG-INFO"} <= found
    assert rust <= found
    assert not [name for name in found if name.endswith((".so", ".pyc"))]
    wheel = only_wheel(tmp_path / "out", pip_wheel(sdist, tmp_path / "out", path_without_cargo()))
    assert imported(unpacked(wheel, tmp_path / "site"))[0] == "python"


@slow_build
@pytest.mark.parametrize("build", ["pure", "rust"])
def test_editable_installs_run_from_the_source_tree(source: Path, tmp_path: Path, build: str) -> None:
    if build == "rust" and (shutil.which("cargo") is None or importlib.util.find_spec("maturin") is None):
        pytest.skip("no cargo or no maturin here")
    tree = tmp_path / "the tree"
    shutil.copytree(source, tree, ignore=shutil.ignore_patterns("*.so"))
    wheel = hook(tree, "build_editable", tmp_path / "out", os.environ["PATH"], build)
    said = imported(unpacked(wheel, tmp_path / "site"))
    assert said[0] == {"pure": "python", "rust": "rust"}[build]
    assert Path(said[3]) == tree / "python" / "rune" / "kernels" / "__init__.py"
