"""The documents say what is so: their examples run, and the names, files, commands and variables in them exist."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
import types
from pathlib import Path

import pytest

from rune import TOOLS
from rune.cli.main import cli
from rune.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/approvals.md",
    "docs/contributors.md",
    "docs/tools.md",
    "docs/performance.md",
    "docs/routing.md",
    "docs/safety.md",
    "docs/wire.md",
]
EXAMPLE = re.compile(r"(<!-- needs a model -->\n)?```python\n(.*?)```", re.DOTALL)
EXAMPLES = [
    pytest.param(code, bool(mark), id=f"{name}-{number}")
    for name in DOCUMENTS
    for number, (mark, code) in enumerate(EXAMPLE.findall((ROOT / name).read_text("utf-8")))
]


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


@pytest.mark.parametrize(("code", "needs_model"), EXAMPLES)
def test_examples_run(code: str, needs_model: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNE_HOME", str(tmp_path))
    compiled = compile(code, "example", "exec")
    if not needs_model:
        module = types.ModuleType("example")
        monkeypatch.setitem(sys.modules, "example", module)  # dataclasses look their module up
        tools = dict(TOOLS)
        try:
            exec(compiled, module.__dict__)
        finally:  # what an example adds is no concern of other tests
            TOOLS.clear()
            TOOLS.update(tools)


TOML = re.compile(r"```toml\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize(
    "text", [text for name in DOCUMENTS for text in TOML.findall((ROOT / name).read_text("utf-8"))]
)
def test_settings_in_documents_can_be_used(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(text, encoding="utf-8")
    settings = Settings.load(tmp_path, {})
    assert settings.warnings == () and settings.origins != {}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", read(name)):
        assert (ROOT / name).parent.joinpath(target).exists(), f"{name} links to {target}, which is not there"


def test_each_name_is_in_the_file_that_the_table_gives() -> None:
    table = read("ARCHITECTURE.md").split("## Where the names are")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) > 15
    for names, files in rows:
        for file in re.findall(r"`([^`]+\.py)`", files):
            module = importlib.import_module("rune." + file.removesuffix(".py").replace("/", "."))
            text = Path(str(module.__file__)).read_text("utf-8")
            found = [name for name in re.findall(r"`(\w+)`", names) if re.search(rf"\b{name}\b", text)]
            assert found, f"none of {names.strip()} is in {file}"


def test_commands_exist() -> None:
    lines = re.findall(r"^\$ rune (.+?)(?:  +#.*)?$", read("README.md"), re.MULTILINE)
    assert len(lines) > 5
    for line in lines:
        words = shlex.split(line)
        command = cli
        context = cli.make_context("rune", [], resilient_parsing=True)
        while hasattr(command, "get_command"):
            command = command.get_command(context, words.pop(0))
            assert command is not None, f"rune {line}: there is no such command"
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, f"rune {line}: no such option"


def test_variables_exist() -> None:
    known = " ".join(row.variable for row in Settings().explain())
    named = set(re.findall(r"`((?:RUNE|OLLAMA)_[A-Z_]+)`", read("README.md")))
    assert len(named) > 8
    assert {name for name in named if name not in known.split()} == set()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_make_targets_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", "\n".join(re.findall(r"`([^`]*)`", read(name))))) <= targets
