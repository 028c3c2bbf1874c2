"""The tables of ``config.toml`` that have a form of their own: ``[tiers]`` and ``[safety_rules]``.

As in ``settings_kinds``, a wrong value is a ValueError whose text says what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["FAMILIES", "safety_rules", "tiers"]

FAMILIES = ("images", "code", "files", "reasoning", "long", "summary", "writing", "lookup", "chat")
"""The families of tasks that the router tells apart."""

_RULE_WORDS = ("asks", "about", "owned", "places", "commands")
_BUILT_IN = ("delete", "database", "disk", "command", "systems", "secrets")
_TIERS_MAX = 16


def tiers(value: Any) -> dict[str, dict[str, Any]]:
    """Tiers in the order of the file, the smallest first: name to ``{"model", "families"}``.

    A tier is the name of a model, or a table of ``model`` and, if wished, the ``families`` that begin there.
    """
    found: dict[str, dict[str, Any]] = {}
    taken: dict[str, str] = {}
    for name, given in _table(value).items():
        where = f"tier {name!r}"
        tier = {"model": given} if isinstance(given, str) else given
        if not isinstance(tier, Mapping) or not isinstance(tier.get("model"), str) or not tier["model"].strip():
            raise ValueError(f"{where} must be the name of a model, or a table with model = NAME")
        _only(tier, ("model", "families"), where)
        model = tier["model"].strip()
        if any(model == other["model"] for other in found.values()):
            raise ValueError(f"{where} must be another model than those before it; {model!r} is there already")
        families = _words(tier.get("families", ()), f"families of {where}")
        for family in families:
            if family not in FAMILIES:
                close = _nearest(family, FAMILIES)
                raise ValueError(f"families of {where} must be of {', '.join(FAMILIES)}; {family!r} is none{close}")
            if family in taken:
                raise ValueError(f"a family must begin in one tier only; {family!r} is of {taken[family]!r} already")
            taken[family] = name
        found[name] = {"model": model, "families": families}
    if len(found) > _TIERS_MAX:
        raise ValueError(f"there must be {_TIERS_MAX} tiers at most")
    return found


def safety_rules(value: Any) -> dict[str, dict[str, Any]]:
    """Rules of the safety override by name: lists of words, ``note``, ``enabled``; of a rule of one's own all that it needs."""
    found: dict[str, dict[str, Any]] = {}
    for name, given in _table(value).items():
        where = f"rule {name!r}"
        if isinstance(given, bool):
            given = {"enabled": given}
        if not isinstance(given, Mapping):
            raise ValueError(f"{where} must be a table, or false")
        _only(given, ("enabled", "note", *_RULE_WORDS), where)
        rule: dict[str, Any] = {key: _words(given[key], f"{key} of {where}") for key in _RULE_WORDS if key in given}
        enabled, note = given.get("enabled", True), given.get("note")
        if not isinstance(enabled, bool):
            raise ValueError(f"enabled of {where} must be true or false")
        if note is not None:
            if not isinstance(note, str) or not note.strip():
                raise ValueError(f"note of {where} must be text that is not empty")
            rule["note"] = " ".join(note.split())
        if name not in _BUILT_IN:
            names = ", ".join(_BUILT_IN)
            if "note" not in rule:
                raise ValueError(f"{where} is a new one and needs a note; those that are there: {names}")
            if not rule.get("commands") and not (rule.get("asks") and (rule.get("about") or rule.get("places"))):
                raise ValueError(f"{where} needs words to be seen by: asks with about or places, or commands")
        found[name] = {"enabled": enabled, **rule}
    return found


def _table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("it must be a table")
    return value


def _words(value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) and word.strip() for word in value):
        raise ValueError(f"{what} must be a list of words")
    return tuple(dict.fromkeys(word.strip() for word in value))


def _only(given: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    known = list(known)
    for key in given:
        if key not in known:
            raise ValueError(f"{where} must hold {', '.join(known)} only; {key!r} is none{_nearest(key, known)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
