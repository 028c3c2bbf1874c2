"""A tool's schema in few words, for a model that reads: the parameters with their types, then what it does.

    search_text(text: string, path?: string = ".", ignore_case?: boolean = false)
      Finds a text in files.
      text: literal text, not a pattern

Such a line says what the JSON schema says, in about half of its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rune.messages import compact_json
from rune.runtime.tools import Tool

__all__ = ["signature"]

_DEPTH_MAX = 4
_SHORT = 160  # characters of a description in the short form


def signature(tool: Tool, *, short: bool = False) -> str:
    """The tool in a few lines; ``short`` leaves out what is said of parameters, and the end of a long description."""
    schema = tool.parameters
    properties: Mapping[str, Any] = schema.get("properties", {})
    defs = schema.get("$defs", {})
    required = set(schema.get("required", ()))
    given = ", ".join(_parameter(name, one, defs, name in required) for name, one in properties.items())
    description = tool.description
    if short and len(description) > _SHORT:
        description = description[: _SHORT - 1] + "…"
    lines = [f"{tool.name}({given})", f"  {description}"]
    if not short:
        said = {
            name: "; ".join(filter(None, (one.get("description"), _limits(one)))) for name, one in properties.items()
        }
        lines += [f"  {name}: {words}" for name, words in said.items() if words]
    return "\n".join(lines)


def _parameter(name: str, schema: Mapping[str, Any], defs: Mapping[str, Any], required: bool) -> str:
    default = f" = {compact_json(schema['default'])}" if schema.get("default") is not None else ""
    return f"{name}{'' if required else '?'}: {_type(schema, defs)}{default}"


def _type(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int = 0) -> str:
    if depth > _DEPTH_MAX:
        return "any"
    if "$ref" in schema:
        return _type(defs.get(str(schema["$ref"]).rpartition("/")[2], {}), defs, depth + 1)
    if "enum" in schema:
        return " | ".join(compact_json(value) for value in schema["enum"])
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " | ".join(dict.fromkeys(_type(one, defs, depth + 1) for one in schema[choice]))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(map(str, kind))
    if kind == "array":
        inner = _type(schema.get("items") or {}, defs, depth + 1)
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    if kind == "object":
        return _object(schema, defs, depth)
    return str(kind)


def _object(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> str:
    required = set(schema.get("required", ()))
    inner = [
        f"{name}{'' if name in required else '?'}: {_type(one, defs, depth + 1)}"
        for name, one in schema.get("properties", {}).items()
    ]
    further = schema.get("additionalProperties")
    if isinstance(further, Mapping) and further:
        inner.append(f"[name]: {_type(further, defs, depth + 1)}")
    return f"{{{', '.join(inner)}}}" if inner else "object"


def _limits(schema: Mapping[str, Any]) -> str:
    """The range of a number. That a text is bounded, or not empty, is seldom worth its tokens: the call's check says it."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{low} to {high}"
    if high is not None:
        return f"at most {high}"
    return f"{low} or more" if low is not None and low > 1 else ""
