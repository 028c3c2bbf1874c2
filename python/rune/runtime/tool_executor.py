"""Runs the calls that a model makes: finds the tool, checks the arguments, bounds time and size, and always has an answer.

Whatever goes wrong in a call is its result, in words that the model can act on; nothing here raises for it.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rune.errors import InvalidInput, ToolError
from rune.messages import Message, compact_json
from rune.runtime import capability_tools, change_tools, command_tools, file_tools, http_tools, memory_tools
from rune.runtime.approvals import Decision
from rune.runtime.tool_results import RESULT_CHARS_MAX, bounded
from rune.runtime.tools import TOOLS, Tool, ToolContext, make_tool, tool
from rune.subsystem_health import error_text, record_failure

__all__ = ["TOOLS", "Approve", "Tool", "ToolContext", "ToolExecutor", "ToolOutcome", "make_tool", "tool"]

# Importing them registered their tools; models are shown those that read first.
for _module in (file_tools, change_tools, command_tools, http_tools, memory_tools, capability_tools):
    for _name in [name for name, one in TOOLS.items() if one.function.__module__ == _module.__name__]:
        TOOLS[_name] = TOOLS.pop(_name)

_LOOK_S = 0.05  # seconds between two looks at whether the run was cancelled

NO_APPROVAL = "was not run: it needs the user's approval"
"""How the result of a call begins, behind the tool's name, that nobody allowed."""

Approve = Callable[[Tool, Mapping[str, Any]], bool]
"""Decides on one call of a tool that needs an approval."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What came of one call.

    ``text`` is what the model is given, at most about 8,000 characters; ``chars`` is the length of the whole, and ``kept`` the
    name under which that was kept ("" where ``text`` is all of it). ``ok`` is False for a call that failed or was refused.
    """

    name: str
    arguments: Any
    call_id: str
    text: str
    ok: bool
    chars: int
    elapsed_ms: float
    kept: str = ""

    def message(self) -> Message:
        """The result as a message in normal form."""
        message: Message = {"role": "tool", "content": self.text}
        if self.call_id:
            message["tool_call_id"] = self.call_id
        message["tool_name"] = self.name
        return message

    def as_row(self) -> dict[str, Any]:
        """The call as it stands in ``ext`` of a trace row. What was said stands under names that "content-off" empties."""
        return {
            "tool": self.name,
            "arguments": self.arguments,
            "ok": self.ok,
            "text": None if self.ok else self.text,
            "chars": self.chars,
            "elapsed_ms": round(self.elapsed_ms, 3),
            "kept": self.kept,
        }


class ToolExecutor:
    """The tools of a run by name, and the context that they share."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        context: ToolContext,
        *,
        approve: Approve | None = None,
        chars_max: int = RESULT_CHARS_MAX,
    ) -> None:
        """``approve`` decides on calls of tools that need it; without it they are refused."""
        self.tools = dict(tools)
        self.context = context
        self._approve = approve
        self._chars_max = chars_max

    def waits(self, call: Mapping[str, Any]) -> bool:
        """Whether a call can only be made once a person approves it; one that could not be made at all does not wait."""
        found = self.tools.get(str(call["function"]["name"]))
        if found is None or not found.approval:
            return False
        try:
            return not self._approved(found, found.check(call["function"].get("arguments")))
        except ToolError:
            return False

    def execute(
        self, call: Mapping[str, Any], cancel: threading.Event | None = None, decision: Decision | None = None
    ) -> ToolOutcome:
        """Runs one call of an assistant message in normal form. A ``cancel`` that is set ends the wait for it.

        ``decision`` is a person's on this very call; the model is told of arguments that were changed.
        """
        if decision is not None and not decision.approved:
            return self.refuse(call, f"the user refused it{': ' if decision.reason else ''}{decision.reason}")
        changed = None if decision is None else decision.arguments
        if changed is not None:
            call = {**call, "function": {**call["function"], "arguments": dict(changed)}}
        function = call["function"]
        name, arguments = str(function["name"]), function.get("arguments")
        begun = time.perf_counter()
        try:
            found = self._find(name)
            text, ok = self._run(found, found.check(arguments), cancel, decided=decision is not None), True
        except (ToolError, InvalidInput) as exc:
            text, ok = f"Error: {exc}", False
        except Exception as exc:  # a fault of the tool's own: the model hears of it, and so does the registry
            record_failure("tool_executor", exc, tier=1, tool=name)
            text, ok = f"Error: {name} failed: {error_text(exc)}", False
        if changed is not None:
            text = f"[The user changed the arguments of this call to {compact_json(changed)}.]\n{text}"
        there = self.tools.get(name)
        tail = there is not None and there.tail
        shown, kept = bounded(text, self.context.results, self._chars_max, tail=tail)
        return self._outcome(call, shown, ok, chars=len(text), begun=begun, kept=kept)

    def refuse(self, call: Mapping[str, Any], why: str) -> ToolOutcome:
        """The outcome of a call that was not made."""
        return self._outcome(call, f"Not run: {why}", False, chars=0, begun=time.perf_counter())

    def _outcome(
        self, call: Mapping[str, Any], text: str, ok: bool, *, chars: int, begun: float, kept: str = ""
    ) -> ToolOutcome:
        function = call["function"]
        return ToolOutcome(
            name=str(function["name"]),
            arguments=function.get("arguments"),
            call_id=str(call.get("id") or ""),
            text=text,
            ok=ok,
            chars=chars or len(text),
            elapsed_ms=(time.perf_counter() - begun) * 1000,
            kept=kept,
        )

    def _find(self, name: str) -> Tool:
        found = self.tools.get(name)
        if found is None:
            raise ToolError(f"there is no tool {name!r}; there are: {', '.join(self.tools) or 'none'}")
        return found

    def _approved(self, found: Tool, arguments: Mapping[str, Any]) -> bool:
        return self._approve is not None and self._approve(found, arguments)

    def _run(
        self, found: Tool, arguments: dict[str, Any], cancel: threading.Event | None, *, decided: bool = False
    ) -> str:
        if found.approval and not decided and not self._approved(found, arguments):
            raise ToolError(
                f"{found.name} {NO_APPROVAL} and did not get it. Do without it, or tell the user "
                f"what you would run it for (RUNE_AUTO_APPROVE={found.name} lets it run unasked)"
            )
        context = replace(self.context, stop=threading.Event(), seconds=found.timeout)
        result = _within(found, context, arguments, cancel)
        return result if isinstance(result, str) else compact_json(result)


def _within(found: Tool, context: ToolContext, arguments: dict[str, Any], cancel: threading.Event | None) -> Any:
    """The tool's result, if it comes in time; else the tool is told to stop and left behind.

    In a thread of its own, in a copy of the caller's context: one that hangs must not hang the run.
    """
    done = threading.Event()
    outcome: list[Any] = [None, None]
    surroundings = contextvars.copy_context()

    def work() -> None:
        try:
            outcome[0] = surroundings.run(found.call, context, arguments)
        except BaseException as exc:  # SystemExit of a tool must not vanish either
            outcome[1] = exc
        done.set()

    threading.Thread(target=work, name=f"rune-tool-{found.name}", daemon=True).start()
    deadline = time.monotonic() + found.timeout + found.grace
    try:
        while not done.wait(min(_LOOK_S, max(0.0, deadline - time.monotonic()))):
            if cancel is not None and cancel.is_set():
                raise ToolError("cancelled before it was done")
            if time.monotonic() >= deadline:
                raise ToolError(f"{found.name} did not finish within {found.timeout:g} s")
    finally:
        if not done.is_set():
            context.stop.set()
            done.wait(found.grace)
    error = outcome[1]
    if isinstance(error, Exception):
        raise error
    if error is not None:
        raise ToolError(f"{found.name} ended with {type(error).__name__}")
    return outcome[0]
