"""Tools of installed packages: found by their entry points; a broken package costs its own tools and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from operator_helpers import facts_of, only_row, operator_of, sent_by
from plugin_helpers import WEATHER, install
from rune.runtime import tool_plugins
from rune.runtime.local_tool_runtime import LocalToolRuntime
from rune.runtime.tool_executor import TOOLS
from rune.runtime.tool_plugins import Plugin, plugins
from scripted import ScriptedTransport, calls


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for packages, in which plug-ins are looked for anew."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(tool_plugins, "_loaded", None)
    before, modules = dict(TOOLS), set(sys.modules)
    yield folder
    TOOLS.clear()
    TOOLS.update(before)
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


def test_a_module_of_decorated_functions(packages: Path) -> None:
    install(packages, "weather-tools", {"weather": "weather_of_rune"}, weather_of_rune=WEATHER)
    assert plugins() == [Plugin("weather", "weather_of_rune", "weather-tools", ("weather", "make_rain"))]
    assert TOOLS["make_rain"].approval and TOOLS["weather"].schema()["function"]["parameters"]["required"] == ["city"]
    assert plugins() == plugins()  # once


OTHERS = '''
from rune import tool
from rune.runtime.tool_executor import make_tool

def plain(a: int) -> int:
    """Doubles."""
    return 2 * a

@tool
def decorated() -> str:
    """Says it."""
    return "it"

def third() -> str:
    """Says three."""
    return "three"

made = make_tool(plain, name="twice")
several = [made, third]
by_name = {"x": third}
'''


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (
            "others:plain",
            ("plain", "decorated"),
        ),  # the module was imported for it, and so what it decorates is there too
        ("others:made", ("twice", "decorated")),
        ("others:several", ("twice", "third", "decorated")),
        ("others:by_name", ("third", "decorated")),
        ("others:decorated", ("decorated",)),
    ],
)
def test_functions_tools_and_lists(packages: Path, value: str, names: tuple[str, ...]) -> None:
    install(packages, "others", {"one": value}, others=OTHERS)
    (plugin,) = plugins()
    assert plugin.error == "" and set(plugin.tools) == set(names) <= set(TOOLS)


def test_two_entries_of_one_module(packages: Path) -> None:
    install(packages, "others", {"a": "others:decorated", "b": "others:third", "c": "others"}, others=OTHERS)
    assert [(p.name, p.tools, p.error) for p in plugins()] == [
        ("a", ("decorated",), ""),
        ("b", ("third",), ""),
        ("c", ("decorated", "third"), ""),
    ]


BROKEN = {
    "a fault": ("raise ZeroDivisionError('of all things')", "", "ZeroDivisionError: of all things"),
    "leaving": ("raise SystemExit('bye')", "", "SystemExit: bye"),
    "no such module": (None, "", "No module named 'broken_of_a_test'"),
    "no such name": ("", ":nothing", "nothing"),
    "no tools": ("x = 1", "", "decorate its functions"),
    "no tool": ("x = 1", ":x", "names int, which is no tool"),
    "no types": ("def f(a):\n    'Does.'", ":f", "needs a type"),
    "no sentence": ("def f(a: int): ...", ":f", "needs a docstring"),
    "a name that is taken": (
        "import rune\n@rune.tool\ndef first() -> str:\n    'One.'\n@rune.tool\ndef read_file(path: str) -> str:\n    'Mine.'",
        "",
        "'read_file' already",
    ),
    "a syntax of its own": ("def def", "", "SyntaxError"),
    "tools and then a fault": (
        "import rune\n@rune.tool\ndef left_over() -> str:\n    'Says.'\n    return ''\nraise OSError('late')",
        "",
        "late",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_package_costs_its_own_tools_and_says_so(packages: Path, tmp_path: Path, kind: str) -> None:
    code, attribute, words = BROKEN[kind]
    modules = {} if code is None else {"broken_of_a_test": code}
    install(packages, "broken-tools", {"broken": f"broken_of_a_test{attribute}"}, **modules)
    install(packages, "weather-tools", {"weather": "weather_of_rune"}, weather_of_rune=WEATHER)
    read_file, before = TOOLS["read_file"], set(TOOLS)
    script: list[Any] = [calls(("weather", {"city": "Oslo", "days": 2})), "sunny"]
    operator = operator_of(tmp_path / "home", script, facts=facts_of(8192, "tools"))
    response = operator.run("Is it sunny?")
    broken, weather = plugins()
    assert words in broken.error and broken.tools == () and weather.error == ""
    assert response.success and response.tool_events[0].text == "2 days of sun in Oslo"
    assert response.degraded == ["tool_plugins"] == only_row(tmp_path / "home")["degraded"]
    assert "weather" in sent_by(operator)[0].tool_names and "make_rain" in sent_by(operator)[0].tool_names
    assert TOOLS["read_file"] is read_file and set(TOOLS) - before == {"weather", "make_rain"}
    assert operator.run("Again").degraded == ["tool_plugins"]  # as long as it is broken


def test_a_runtime_of_its_own_has_them_too(packages: Path, tmp_path: Path) -> None:
    install(packages, "weather-tools", {"weather": "weather_of_rune"}, weather_of_rune=WEATHER)
    runtime = LocalToolRuntime(ScriptedTransport(["ok"]), model="m", home=tmp_path, workspace=tmp_path)
    assert "weather" in runtime.tool_names


def test_a_program_that_names_its_tools_loads_none(packages: Path, tmp_path: Path) -> None:
    install(packages, "broken-tools", {"broken": "broken_of_a_test"})
    operator = operator_of(
        tmp_path / "home", ["ok"], facts=facts_of(8192, "tools"), tools={"read_file": TOOLS["read_file"]}
    )
    response = operator.run("hi")
    assert response.degraded == [] and tool_plugins._loaded is None
