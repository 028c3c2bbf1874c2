"""What a tool is: a function with typed parameters, from which its JSON schema and the check of its arguments follow.

    @tool()
    def word_count(context: ToolContext, path: Annotated[str, Meta(description="file in the workspace")]) -> str:
        \"\"\"Counts the words of a text file.\"\"\"

The docstring is the description that the model reads. A parameter ``context`` is given by the executor, not by the model.
"""

from __future__ import annotations

import inspect
import math
import re
import threading
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rune.errors import InvalidInput, ToolError
from rune.runtime.services import Services
from rune.runtime.tool_results import ResultStore
from rune.runtime.workspace import Workspace

__all__ = ["TOOLS", "Tool", "ToolContext", "make_tool", "shared_schema", "tool"]

TIMEOUT_S = 20.0
_CONTEXT = "context"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may use of its surroundings.

    ``stop`` is set when nobody waits for its result any more; ``seconds`` is what this call may take.
    """

    workspace: Workspace
    results: ResultStore
    run_id: str = ""
    stop: threading.Event = field(default_factory=threading.Event)
    services: Services = field(default_factory=Services)
    seconds: float = TIMEOUT_S

    def check(self) -> None:
        """For long work: raises ToolError once ``stop`` is set."""
        if self.stop.is_set():
            raise ToolError("stopped before it was done")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as the model sees it and as it is run.

    ``parameters`` is its JSON schema. ``timeout`` bounds a call in seconds; ``grace`` is what it may take on top of that, or
    after it was told to stop, to put things away. ``approval``: a person decides on every call. ``default_on``: offered
    without being asked for, where it needs no approval or has it. ``tail``: of a long result mostly the end is shown.
    ``needs``: what it cannot work without ("memory", "http", or "").
    """

    name: str
    description: str
    function: Callable[..., Any]
    parameters: Mapping[str, Any]
    arguments_type: type[msgspec.Struct]
    wants_context: bool = False
    timeout: float = TIMEOUT_S
    approval: bool = False
    default_on: bool = True
    grace: float = 0.0
    tail: bool = False
    needs: str = ""

    def schema(self) -> dict[str, Any]:
        """The schema as it is sent in the ``tools`` field of a request."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def check(self, arguments: Any) -> dict[str, Any]:
        """The arguments as values of the parameters' types, defaults filled in. Raises ToolError with what is wrong."""
        if not isinstance(arguments, Mapping):
            raise ToolError(f"the arguments of {self.name} must be a JSON object, not {str(arguments)[:100]!r}")
        try:
            # Models write 5 as "5" and true as "true": what can only mean one thing is taken.
            checked = msgspec.convert(dict(arguments), self.arguments_type, strict=False)
        except msgspec.ValidationError as exc:
            known = ", ".join(self.parameters.get("properties", {})) or "none"
            raise ToolError(
                f"the arguments of {self.name} cannot be used: {exc}. Its parameters are: {known}"
            ) from None
        return {name: getattr(checked, name) for name in self.arguments_type.__struct_fields__}

    def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> Any:
        """Runs the function with checked arguments."""
        given = {_CONTEXT: context} if self.wants_context else {}
        return self.function(**given, **arguments)


_schemas: dict[int, tuple[Tool, dict[str, Any]]] = {}
_SCHEMAS_MAX = 1000


def shared_schema(tool: Tool) -> dict[str, Any]:
    """The tool's schema, the same object for every run, so that it is measured and written out once. Not to be changed."""
    known = _schemas.get(id(tool))
    if known is None or known[0] is not tool:
        if len(_schemas) >= _SCHEMAS_MAX:
            _schemas.clear()
        known = _schemas[id(tool)] = (tool, tool.schema())
    return known[1]


TOOLS: dict[str, Tool] = {}
"""Every tool by name, in order of registration."""


def make_tool(
    function: Callable[..., Any],
    *,
    name: str = "",
    description: str = "",
    timeout: float = TIMEOUT_S,
    approval: bool = False,
    default_on: bool = True,
    grace: float = 0.0,
    tail: bool = False,
    needs: str = "",
) -> Tool:
    """A tool of a function, not registered; the options are those of ``Tool``.

    Raises InvalidInput for a name that models could not call, and for one without description or with untyped parameters.
    """
    name = name or getattr(function, "__name__", "")
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} cannot be the name of a tool: 1 to 64 letters, digits, '_' and '-', no digit first"
        )
    if not math.isfinite(timeout) or timeout <= 0:
        raise InvalidInput(f"the timeout of the tool {name!r} must be a number of seconds above 0, not {timeout!r}")
    description = description or " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    if not description:
        raise InvalidInput(f"the tool {name!r} needs a docstring: it is the description that the model reads")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as exc:
        raise InvalidInput(f"the types of the tool {name!r} cannot be read: {exc}") from exc
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == _CONTEXT:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name not in hints:
            raise InvalidInput(f"the parameter {parameter.name!r} of the tool {name!r} needs a type")
        required = parameter.default is parameter.empty
        fields.append((parameter.name, hints[parameter.name], *(() if required else (parameter.default,))))
    try:
        arguments_type = msgspec.defstruct(_struct_name(name), fields, kw_only=True, forbid_unknown_fields=True)
        parameters = _schema(arguments_type)
    except (TypeError, ValueError) as exc:
        raise InvalidInput(f"the tool {name!r} has parameters that no JSON schema can be made of: {exc}") from exc
    return Tool(
        name=name,
        description=description,
        function=function,
        parameters=parameters,
        arguments_type=arguments_type,
        wants_context=_CONTEXT in inspect.signature(function).parameters,
        timeout=timeout,
        approval=approval,
        default_on=default_on,
        grace=grace,
        tail=tail,
        needs=needs,
    )


def _struct_name(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _schema(arguments_type: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of the arguments without what only costs tokens."""
    (_,), components = msgspec.json.schema_components([arguments_type])
    schema = dict(components.pop(arguments_type.__name__))
    for name in ("title", "additionalProperties"):
        schema.pop(name, None)
    schema.setdefault("properties", {})
    if components:
        schema["$defs"] = components
    return schema


_Function = typing.TypeVar("_Function", bound=Callable[..., Any])


@typing.overload
def tool(registry: _Function, /) -> _Function: ...


@typing.overload
def tool(registry: dict[str, Tool] | None = None, /, **options: Any) -> Callable[[_Function], _Function]: ...


def tool(registry: Any = None, /, **options: Any) -> Any:
    """Registers the decorated function (in ``TOOLS`` unless a ``registry`` is given); options as in ``make_tool``.

    ``@tool``, ``@tool()`` and ``@tool(timeout=60)`` are all well. Raises InvalidInput as ``make_tool``, and for a name that is
    taken by another function; the same function may come again, as when its module is loaded anew.
    """
    if callable(registry):
        return tool()(registry)
    into: dict[str, Tool] = TOOLS if registry is None else registry

    def register(function: _Function) -> _Function:
        made = make_tool(function, **options)
        with _registering:
            there = into.get(made.name)
            if there is not None and not _same(there.function, function):
                raise InvalidInput(
                    f"there is a tool named {made.name!r} already (of {there.function.__module__}); choose another name"
                )
            into[made.name] = made
        return function

    return register


_registering = threading.Lock()


def _same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    def where(function: Callable[..., Any]) -> tuple[str, str]:
        return str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", ""))

    return one is not other and where(one) == where(other)
