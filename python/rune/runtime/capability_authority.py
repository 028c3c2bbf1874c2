"""Which tools a task is shown, and what a run finds beyond them.

Every schema costs the prompt a hundred tokens or so and a small model some of its attention. Where all tools take little of the
budget, all are shown. Else those that the task's words speak of are, by the rules below, then those of general use, as far as
there is room; ``find_capability`` then gives the model a way to the rest. The same task and the same tools give the same choice.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rune.messages import compact_json
from rune.runtime.capability_tools import matches, search_tools
from rune.runtime.tools import Tool

__all__ = ["FINDER", "ROOM_LEAST", "Capability", "Selection", "room_of", "select", "tool_tokens"]

FINDER = "find_capability"
ROOM_LEAST = 600
"""Tokens of schemas that are always there: enough for the tools that read and remember."""

_SHARE = 5  # a fifth of the budget is for schemas
_MATCHED_MAX = 5  # tools of others that are shown for their words
_MATCH_LEAST = 4  # one word of the name, or two of the description
_EDGE = 2_000  # characters
_GENERAL = ("read_file", "list_files", "search_text", "recall")


@dataclass(frozen=True, slots=True)
class _Rule:
    """Tools that go together, the words of a task that speak of them, and the families of tasks that need them."""

    name: str
    tools: tuple[str, ...]
    words: re.Pattern[str]
    families: tuple[str, ...] = ()


def _rule(name: str, tools: str, words: str, families: str = "") -> _Rule:
    return _Rule(name, tuple(tools.split()), re.compile(rf"(?i)(?<!\w)(?:{words})(?!\w)"), tuple(families.split()))


_RULES = (
    _rule(
        "files",
        "read_file list_files search_text",
        r"files?|folders?|director(?:y|ies)|paths?|code|source|projects?|repo(?:sitory)?|readme|logs?|bugs?|tests?|functions?|"
        r"class(?:es)?|modules?|scripts?|lines?|config(?:uration)?|[\w-]{1,80}\.(?:[a-z]{2,4}|[chr])|[~.]{0,2}/[\w.-]{1,80}",
        "code files",
    ),
    _rule(
        "changes",
        "edit_file write_file",
        r"writ(?:e|es|ing)|edit(?:s|ing)?|chang(?:e|es|ing)|fix(?:es|ing)?|mend|correct|add|creat(?:e|es|ing)|mak(?:e|es|ing)|"
        r"renam(?:e|ing)|replac(?:e|ing)|refactor(?:ing)?|implement(?:ing)?|updat(?:e|ing)|delet(?:e|ing)|remov(?:e|ing)|sav(?:e|ing)",
        "code files",
    ),
    _rule(
        "commands",
        "run_command",
        r"runs?|running|execut(?:e|es|ing)|tests?|testing|builds?|building|compil(?:e|es|ing)|install(?:s|ing)?|commands?|scripts?|"
        r"lint(?:s|ing)?|git|make|pytest|cargo|npm|fix(?:es|ing)?|mend",
        "code",
    ),
    _rule(
        "web",
        "http_get",
        r"https?://\S+|web(?:sites?|pages?)?|sites?|urls?|links?|internet|online|fetch(?:es|ing)?|downloads?|news|www\.\S+",
    ),
    _rule(
        "memory",
        "recall remember relate",
        r"remember(?:s|ed)?|recall|forg[eo]t(?:ten)?|memor(?:y|ies)|earlier|before|last (?:time|week|month)|yesterday|my|mine|"
        r"prefers?|preferences?|who is|who's|from now on|always|never",
        "lookup",
    ),
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The names of the tools to show, in the order of the registry; in a sentence why; and those that were left out."""

    names: tuple[str, ...]
    reason: str
    left_out: tuple[str, ...] = ()


def room_of(budget: int) -> int:
    """Tokens that schemas may take of a budget before the authority chooses among tools."""
    return max(ROOM_LEAST, budget // _SHARE)


_sizes: dict[int, tuple[Tool, int]] = {}
_SIZES_MAX = 1000


def tool_tokens(tool: Tool) -> int:
    """What a tool's schema costs at most, by the plain estimate: a choice must not change with the estimator."""
    known = _sizes.get(id(tool))
    if known is not None and known[0] is tool:
        return known[1]
    size = (len(compact_json(tool.schema())) + 4) // 4  # with the comma behind it
    if len(_sizes) >= _SIZES_MAX:
        _sizes.clear()
    _sizes[id(tool)] = (tool, size)
    return size


def select(
    task: str, tools: Mapping[str, Tool], *, room: int, finder: Tool | None = None, family: str = ""
) -> Selection:
    """Which of ``tools`` to show for a task within ``room`` tokens; ``family`` is the router's word for the task.

    Without ``finder`` the model has no way to what is left out, and all are shown.
    """
    sizes = {name: tool_tokens(one) for name, one in tools.items()}
    if finder is None or sum(sizes.values()) <= room:
        return Selection(tuple(tools), f"all {len(tools)} tools: {sum(sizes.values())} tokens")
    # Of a long task both ends are read: what is asked stands there, and what lies between them is pasted.
    task = task if len(task) <= 2 * _EDGE else f"{task[:_EDGE]}\n{task[-_EDGE:]}"
    rules = [rule for rule in _RULES if family in rule.families or rule.words.search(task)]
    ruled = {name for rule in _RULES for name in rule.tools}
    others = [(one, score) for one, score in matches(task, tools.values()) if one.name not in ruled | {FINDER}]
    matched = [one.name for one, score in others if score >= _MATCH_LEAST][:_MATCHED_MAX]
    left = room - tool_tokens(finder)
    shown: set[str] = set()
    # One tool of each rule before the second of any: a task of two kinds is not served by one of them alone.
    by_rank = [rule.tools[rank] for rank in range(3) for rule in rules if rank < len(rule.tools)]
    for name in (*by_rank[: len(rules)], *matched, *by_rank[len(rules) :], *_GENERAL):
        if name in tools and name not in shown and sizes[name] <= left:
            shown.add(name)
            left -= sizes[name]
    names = [name for name in tools if name in shown and name != FINDER]
    left_out = tuple(name for name in tools if name not in shown and name != FINDER)
    spoken = [rule.name for rule in rules if shown & set(rule.tools)] + [name for name in matched if name in shown]
    basis = f"the task speaks of {', '.join(spoken)}" if spoken else "the task speaks of none"
    return Selection(
        (*names, FINDER), f"{len(names)} of {len(names) + len(left_out)} tools within {room} tokens: {basis}", left_out
    )


@dataclass
class Capability:
    """The tools of one run: what was selected, and what ``find_capability`` found since. Tools may run in several threads.

    ``tools`` are all that may be found; ``measured`` the names whose schemas are in the capsule's ledger.
    """

    selection: Selection
    tools: Mapping[str, Tool] = field(default_factory=dict)
    measured: Collection[str] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    _found: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, words: str) -> list[Tool]:
        """The tools that some words describe, best first; they are to be offered from the next model call on."""
        found = [one for one in search_tools(words, self.tools.values()) if one.name != FINDER]
        with self._lock:
            self._found += [one.name for one in found if one.name not in self._found]
        return found

    def put_back(self, names: Iterable[str]) -> None:
        """Names that were taken and are to be offered by another run that goes on with this one."""
        with self._lock:
            self._found += names

    def take(self, offered: Iterable[str]) -> list[str]:
        """Names found since the last look that are not offered yet."""
        with self._lock:
            found, self._found = self._found, []
        there = set(offered)
        return [name for name in found if name not in there]

    @property
    def reason(self) -> str:
        """Why these tools, with those that were found."""
        found = [name for row in self.rows if row["offered"] for name in row["tools"]]
        return f"{self.selection.reason}; found: {', '.join(found)}" if found else self.selection.reason
