"""What ``rune doctor`` says of the tools: how many are offered, where they work, and what of the settings cannot be meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rune.errors import InvalidInput

if TYPE_CHECKING:
    from rune.settings import Settings

__all__ = ["tool_checks"]

Check = dict[str, Any]


def tool_checks(settings: Settings) -> list[Check]:
    """One check of the tools, one for each plug-in that is broken, and one for each setting that names no tool."""
    from rune.operator_tools import OperatorTools, tool_rows
    from rune.runtime.tool_plugins import plugins
    from rune.runtime.workspace import Workspace

    rows = tool_rows(settings)
    offered = [row["name"] for row in rows if row["offered"]]
    unasked = [row["name"] for row in rows if row["approval"] and row["approved"]]
    try:
        where = Workspace(settings.workspace or ".").root
        usable = where.is_dir()
        says = f"{len(offered)} of {len(rows)} are offered, in {where}"
        if not usable:
            says = f"the workspace {where} is no folder; set RUNE_WORKSPACE to one"
    except InvalidInput as exc:
        usable, says = False, str(exc)
    if usable and unasked:
        says += f"; without asking: {', '.join(unasked)}"
    checks: list[Check] = [{"check": "tools", "ok": usable, "says": says, "offered": offered}]
    checks += [
        {"check": f"tools of {one.package or one.value}", "ok": False, "says": f"plug-in {one.name}: {one.error}"}
        for one in plugins()
        if one.error
    ]
    return checks + [{"check": "tools", "ok": False, "says": note} for note in OperatorTools(settings).strange_names()]
