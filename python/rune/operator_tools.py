"""The tools of an operator: which there are, which a run offers, who approves their calls, and what they may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rune.context_broker import ContextBroker, memory_disabled
from rune.errors import InvalidInput
from rune.operator_run import Run
from rune.operator_stores import Stores
from rune.runtime.capability_authority import FINDER, Capability, Selection, room_of, select, tool_tokens
from rune.runtime.services import Services
from rune.runtime.tool_choice import unasked, usable
from rune.runtime.tool_executor import TOOLS, Tool
from rune.runtime.tool_plugins import plugins
from rune.settings import Settings
from rune.subsystem_health import record_failure

if TYPE_CHECKING:
    from rune.storage.database import Database

__all__ = ["OperatorTools", "tool_rows"]

_NEAR_MAX = 20  # names listed in an error
_LACKING = {"memory": "while memory is off", "http": "unless RUNE_HTTP_GET=1"}


class _Known(NamedTuple):
    """The tools that were there when it was last looked, and what they came from."""

    memory: bool
    tools: list[Tool]
    known: dict[str, Tool]


class OperatorTools:
    """``given`` are the tools that a program named for its operator; None is those of ``TOOLS``.

    Without ``stores`` there is no memory for tools to use.
    """

    def __init__(
        self, settings: Settings, stores: Stores | None = None, given: Mapping[str, Tool] | None = None
    ) -> None:
        self._settings = settings
        self._stores = stores
        self._given = None if given is None else dict(given)
        self._was: _Known | None = None

    @property
    def known(self) -> dict[str, Tool]:
        """Every tool that a run may be asked to offer, by name; ``TOOLS`` as it is now."""
        if self._given is not None:
            return dict(self._given)
        plugins()  # of other packages, loaded on first use
        memory = not (self._settings.memory_off or memory_disabled())
        tools = list(TOOLS.values())
        was = self._was  # asked for several times a turn, and nearly always the same
        if was is not None and was.memory == memory and was.tools == tools:
            return dict(was.known)
        found = usable(tools, memory=memory, http=self._settings.http_get)
        if "run_command" in found:
            found["run_command"] = replace(found["run_command"], timeout=self._settings.run_command_timeout_s)
        self._was = _Known(memory, tools, dict(found))
        return found

    @property
    def offered(self) -> dict[str, Tool]:
        """The tools that a run offers when nothing is said: the setting's, else those that are on by default."""
        known = self.known
        if self._given is not None:
            return known
        names = self._settings.tools
        if names is None:
            names = tuple(unasked(known.values(), self._settings.auto_approve, asks=True))
        return {name: known[name] for name in names if name in known}

    def named(self, tools: bool | Iterable[str] | None) -> tuple[str, ...] | None:
        """The names of the tools that a run is to offer; None when that is left to ``select``.

        Raises InvalidInput for a name of which there is no tool.
        """
        if tools is None or tools is True:
            return None
        if tools is False:
            return ()
        names = (tools,) if isinstance(tools, str) else tuple(tools)
        known = self.known
        for name in names:
            if name not in known:
                raise InvalidInput(f"there is no tool {name!r}{self._why_not(name)}; there are: {_listed(known)}")
        return names

    def select(self, run: Run, family: str = "") -> None:
        """Chooses the tools that the task of a run is shown: ``run.asked.tools``, and ``run.capability`` that says why.

        What was named, by the caller or by the settings, is shown as it is. The choice is made once in a run.
        """
        if run.capability is not None:
            return
        known = self.known
        by = "the caller" if run.asked.tools is not None else "RUNE_TOOLS" if self._by_setting else ""
        if by:
            names = tuple(self.offered) if run.asked.tools is None else tuple(run.asked.tools)
            chosen = Selection(names, f"named by {by}" if names else f"none: {by} wants none")
        else:
            assert run.window is not None
            finder = known.get(FINDER) if self._settings.tool_selection == "auto" else None
            room = room_of(ContextBroker.budget(run.window.window).budget)
            chosen = select(run.task.task, self.offered, room=room, finder=finder, family=family)
        run.capability = Capability(chosen, known)
        run.asked = replace(run.asked, tools=chosen.names)

    @property
    def _by_setting(self) -> bool:
        return self._given is None and self._settings.tools is not None

    def runnable(self, asked: Sequence[str]) -> dict[str, Tool]:
        """What a run may call at all: what is offered by default and what was asked for; every tool, where one finds tools."""
        known, offered = self.known, self.offered
        finds = FINDER in {*offered, *asked}
        return {name: tool for name, tool in known.items() if finds or name in offered or name in asked}

    def approve(self, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        """Whether a call that needs an approval has it by the settings."""
        return tool.name in self._settings.auto_approve

    def services(self, run_id: str, capability: Capability | None = None) -> Services:
        """What the tools of a run may use."""
        memory = not (self._settings.memory_off or memory_disabled())
        return Services(
            memory=_RunMemory(self._stores, run_id) if memory and self._stores is not None else None,
            find_capability=None if capability is None else capability.find,
            http_hosts=frozenset(host.lower() for host in self._settings.http_hosts),
        )

    def notes(self) -> list[str]:
        """``strange_names``, for the warnings of a run; plug-ins that failed are recorded."""
        for plugin in plugins() if self._given is None else ():
            if plugin.error:
                record_failure("tool_plugins", f"{plugin.name} ({plugin.value}): {plugin.error}", tier=1)
        return self.strange_names()

    def strange_names(self) -> list[str]:
        """What the settings say about tools that cannot be meant, a sentence each."""
        known = {*self.known, *TOOLS}
        found = []
        for setting in ("tools", "auto_approve"):
            strange = [name for name in getattr(self._settings, setting) or () if name not in known]
            if strange:
                found.append(f"RUNE_{setting.upper()} names {_listed(strange)}, of which there is no tool")
        return found

    def _why_not(self, name: str) -> str:
        if self._given is not None or name not in TOOLS or TOOLS[name].needs not in _LACKING:
            return ""
        return f" {_LACKING[TOOLS[name].needs]}"


def tool_rows(settings: Settings) -> list[dict[str, Any]]:
    """Every tool as ``rune tools`` shows it: what it is, what it costs, and whether it is offered by these settings."""
    of_operator = OperatorTools(settings)
    known, offered = of_operator.known, of_operator.offered
    packages = {name: plugin.package or plugin.value for plugin in plugins() for name in plugin.tools}
    rows = []
    for name, one in TOOLS.items():
        there = known.get(name, one)
        approved = name in settings.auto_approve
        why = "" if name in offered else "the settings leave it out"
        if name not in known:
            why = _LACKING[one.needs]
        elif name not in offered and settings.tools is None:
            why = "it comes in where not all are shown" if name == FINDER else "it is off by default"
        module = str(getattr(one.function, "__module__", ""))
        rows.append(
            {
                "name": name,
                "description": one.description,
                "offered": name in offered,
                "why_not": why,
                "approval": one.approval,
                "approved": approved,
                "default_on": one.default_on,
                "timeout_s": there.timeout,
                "tokens": tool_tokens(one),
                "from": packages.get(name, "rune" if module.startswith("rune.") else module),
                "schema": one.schema(),
            }
        )
    return rows


class _RunMemory:
    """The memory of the home for the tools of one run; what they store says which run it was."""

    def __init__(self, stores: Stores, run_id: str) -> None:
        self._stores = stores
        self._source = f"model, run {run_id[:12]}"

    def remember(self, text: str) -> str:
        return f"memory {self._add('memory', text)}"

    def relate(self, subject: str, relation: str, target: str) -> str:
        from rune.memory import graph_memory

        for name in (subject, relation, target):
            if not name.strip():
                raise InvalidInput("a connection needs two names and what joins them")
        edge = graph_memory.add_edge(self._database, subject, relation, target, source=self._source)
        return f"edge {edge}"

    def recall(self, question: str, limit: int) -> list[str]:
        from rune.memory import graph_memory, kinds
        from rune.memory.render import one_line

        db = self._database
        memories = [row["text"] for row in kinds.search(db, "memory", question, limit)]
        edges = graph_memory.connections(db, question, limit)
        facts = [row["text"] for row in kinds.search(db, "fact", question, limit)]
        connections = [f"{edge.src} — {edge.relation} — {edge.dst}" for edge in edges]
        return list(dict.fromkeys(one_line(text) for text in [*memories, *connections, *facts]))[:limit]

    def _add(self, kind: str, text: str) -> int:
        from rune.memory import kinds

        return kinds.add(self._database, kind, text, source=self._source)

    @property
    def _database(self) -> Database:
        return self._stores.database()


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _NEAR_MAX} more" if len(names) > _NEAR_MAX else ""
    return ", ".join(names[:_NEAR_MAX]) + more or "none"
