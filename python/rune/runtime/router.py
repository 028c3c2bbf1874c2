"""The router: which tier of models a task begins on, by rules that give the same answer to the same words every time.

A task belongs to one family, by the first rule of ``_RULES`` that it matches; a family begins on the tier that claims it in
``config.toml``, else on the one that its weight gives. No model is asked. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rune.settings_tables import FAMILIES

__all__ = [
    "EXPLICIT",
    "FAMILIES",
    "SINGLE",
    "TIERED",
    "Route",
    "Tier",
    "family_of",
    "route",
    "route_of_family",
    "tiers_of",
    "weight_of",
]

SINGLE = "single"
"""One model is all there is."""
TIERED = "tiered"
"""The router chose among tiers, and the run may go on to the next one."""
EXPLICIT = "explicit"
"""There are tiers, and a model was named: it is used, and nothing else."""

LONG_CHARS = 12_000
SHORT_WORDS = 40
_EDGE = 2000


@dataclass(frozen=True, slots=True)
class Tier:
    """A model with a name for its place; ``families`` begin here whatever their weight."""

    name: str
    model: str
    families: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """Where a task begins, and why.

    Attributes:
        mode: "single", "tiered" or "explicit".
        family: the task's family, one of ``FAMILIES``.
        reason: one sentence.
        tiers: every tier, the smallest first; empty unless ``mode`` is "tiered".
        start: the position in ``tiers`` of the one to begin on.
    """

    mode: str
    family: str
    reason: str
    tiers: tuple[Tier, ...] = ()
    start: int = 0

    @property
    def model(self) -> str:
        """The model to begin on; "" when there are no tiers to choose from."""
        return self.tiers[self.start].model if self.tiers else ""


class _Rule(NamedTuple):
    family: str
    why: str
    holds: Callable[[str, int], Any]
    """``(the text that is read, in small letters; characters of the whole) -> whether``."""


def _pattern(words: str) -> Callable[[str, int], Any]:
    found = re.compile(rf"(?<!\w)(?:{words})(?!\w)")
    return lambda text, chars: found.search(text)


_CODE_WORK = (
    r"(?:write|fix|debug|refactor|implement|review|port|optimi[sz]e|test|compile|rewrite|correct|find|explain|add|document)\b"
    r"[^.!?\n]{0,80}?\b(?:code|functions?|class|bugs?|method|unit tests?|regex(?:es)?|sql|query|queries|script|program|compiler|"
    r"algorithm|python|rust|javascript|typescript|java|golang|bash|html|css|c\+\+|loop|stack trace|exception|type hints)"
)
_SOURCE = r"[\w./-]{0,80}\w\.(?:py|rs|js|ts|tsx|go|java|c|h|cpp|rb|sh|sql|cs|kt|swift)"
_FILE_WORK = (
    r"(?:read|open|list|edit|write|save|create|move|rename|copy|delete|remove|search|find|look|change|append|summari[sz]e|run|"
    r"count|show|compare|check)\b[^.!?\n]{0,60}?\b(?:files?|folders?|director(?:y|ies)|workspace|repo|repository|readme|"
    r"logs?|command|tests)"
)
_PATHS = r"(?:\./|~/|/)[\w.-]+(?:/[\w.-]+)*|\w[\w-]*\.(?:md|txt|csv|json|ya?ml|toml|log|pdf|docx?|xlsx?|ini)"
_SUM = re.compile(r"\d\s*[+*^×÷]\s*\d|\d\s+[-/]\s+\d")
_REASONING = (
    r"prove|derive|calculate|compute|solve|step by step|trade-?offs?|pros and cons|compare|analy[sz]e|evaluate|optimi[sz]e|"
    r"probability|strategy|plan (?:a|an|the|my|our)|design (?:a|an|the|my|our)|how many|how much is|what is \d|equation|"
    r"reason through|think (?:hard|carefully)|root cause"
)
_SUMMARY = r"summari[sz]e|summary|tl;?dr|key points|outline|shorten|condense|in (?:one|two|three) sentences?|boil down"
_WRITING = r"write|draft|compose|rewrite|rephrase|translate|proofread|poem|story|essay|letter|blog post|slogan|speech"
_QUESTION = re.compile(
    r"^\W*(?:who|what|what's|when|where|which|is|are|was|were|does|do|did|can|how|why|name|define|list)\b|\?\s*$"
)
_FENCE = re.compile(r"(?m)^\s*(?:```|~~~)")


def _short_question(text: str, chars: int) -> bool:
    return chars < _EDGE and len(text.split()) <= SHORT_WORDS and _QUESTION.search(text) is not None


_RULES: tuple[_Rule, ...] = (
    _Rule("code", "it holds a block of code", lambda text, chars: _FENCE.search(text)),
    _Rule(
        "code",
        "it holds a stack trace",
        _pattern(r"traceback \(most recent call last\)|panicked at|exception in thread"),
    ),
    _Rule("code", "it names a source file", _pattern(_SOURCE)),
    _Rule("code", "it asks for work on code", _pattern(_CODE_WORK)),
    _Rule("files", "it names a file", _pattern(_PATHS)),
    _Rule("files", "it asks for work on files", _pattern(_FILE_WORK)),
    _Rule("long", f"it is longer than {LONG_CHARS} characters", lambda text, chars: chars > LONG_CHARS),
    _Rule("reasoning", "it holds a calculation", lambda text, chars: _SUM.search(text)),
    _Rule("reasoning", "it asks for reasoning", _pattern(_REASONING)),
    _Rule("summary", "it asks for a summary", _pattern(_SUMMARY)),
    _Rule("writing", "it asks for a text", _pattern(_WRITING)),
    _Rule("lookup", "it is a short question", _short_question),
)

_WEIGHT = {
    "chat": 0,
    "lookup": 0,
    "summary": 0,
    "writing": 1,
    "files": 1,
    "long": 1,
    "images": 1,
    "code": 2,
    "reasoning": 2,
}
_WEIGHED = ("light", "middling", "heavy")


def weight_of(family: str) -> str:
    """How much a family asks of a model: "light" begins on the first tier, "heavy" on the last, "middling" between them."""
    return _WEIGHED[_WEIGHT[family]]


def family_of(text: str, images: bool = False) -> tuple[str, str]:
    """The family of a task, and what about it says so. Of a long text both ends are read."""
    if images:
        return "images", "it comes with images"
    chars = len(text)
    if chars > 2 * _EDGE:
        text = f"{text[:_EDGE]}\n\n{text[-_EDGE:]}"
    text = text.lower()
    for rule in _RULES:
        if rule.holds(text, chars):
            return rule.family, rule.why
    return "chat", "no rule of another family holds"


def tiers_of(settings: Mapping[str, Mapping[str, Any]]) -> tuple[Tier, ...]:
    """The tiers of ``config.toml`` in their order."""
    return tuple(Tier(name, tier["model"], tuple(tier["families"])) for name, tier in settings.items())


def route(text: str, tiers: Sequence[Tier], *, images: bool = False, explicit: str = "") -> Route:
    """Where a task begins. ``explicit`` is a model that somebody named, which counts before the tiers."""
    family, why = family_of(text, images)
    if explicit and len(tiers) > 1:
        return Route(EXPLICIT, family, f"the model {explicit} was named; the tiers are not looked at")
    if len(tiers) <= 1 or explicit:
        model = explicit or (tiers[0].model if tiers else "")
        return Route(SINGLE, family, "one model is all there is" + (f": {model}" if model else ""))
    return route_of_family(family, why, tiers)


def route_of_family(family: str, why: str, tiers: Sequence[Tier]) -> Route:
    """Where a task of a family begins among two tiers or more; ``why`` it is of that family goes into the reason."""
    claimed = next((i for i, tier in enumerate(tiers) if family in tier.families), None)
    start = (len(tiers) - 1) * _WEIGHT[family] // 2 if claimed is None else claimed
    basis = f"{weight_of(family)} work" if claimed is None else "that family is this tier's"
    reason = f"family {family} ({why}) begins on tier {tiers[start].name}: {basis}"
    return Route(TIERED, family, reason, tuple(tiers), start)
