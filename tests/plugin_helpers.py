"""Packages with tools, as an installer leaves them: a module, and metadata with entry points of the group ``rune.tools``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

WEATHER = '''
import rune

@rune.tool
def weather(city: str, days: int = 1) -> str:
    """Tells the weather of a city."""
    return f"{days} days of sun in {city}"

@rune.tool(approval=True)
def make_rain(city: str) -> str:
    """Makes rain."""
    return "rain"
'''


def install(folder: Path, package: str, entries: Mapping[str, str], **modules: str) -> None:
    """A package in ``folder``: ``entries`` by name, and the text of each of its modules."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[rune.tools]\n{lines}", encoding="utf-8")
