"""What is known of the model that answers, as a block of its own context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rune.memory.render import block

__all__ = ["HEADING", "get_prompt_context"]

HEADING = "Model"

_FACTS = (
    ("family", "Family"),
    ("parameter_size", "Size"),
    ("quantization", "Quantization"),
    ("trained_window", "Context window"),
    ("vocab_size", "Vocabulary"),
    ("capabilities", "Capabilities"),
)
_UNITS = {"trained_window": " tokens", "vocab_size": " tokens"}


def get_prompt_context(model_id: str, facts: object = None, notes: str | Iterable[str] | None = None) -> str | None:
    """The ``## Model`` block, or None when nothing but the name is known.

    ``facts`` is a mapping or an object with any of ``family``, ``parameter_size``, ``quantization``, ``trained_window``,
    ``vocab_size`` and ``capabilities`` (such as ``rune.transports.discovery.ModelFacts``); what is None, empty or absent is
    left out. ``notes`` are the user's own, from the settings. The same facts always give the same text.
    """
    lines = [
        f"{label}: {shown}{_UNITS.get(name, '')}" for name, label in _FACTS if (shown := _shown(_get(facts, name)))
    ]
    lines += [notes] if isinstance(notes, str) else notes or ()
    rendered = block(HEADING, [f"Name: {model_id}", *lines])
    return rendered if any(line.strip() for line in lines) else None


def _get(facts: object, name: str) -> Any:
    return facts.get(name) if isinstance(facts, Mapping) else getattr(facts, name, None)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return ""
    if isinstance(value, int | float):
        return str(value) if value > 0 else ""
    if isinstance(value, str):
        return value.strip()
    return ", ".join(sorted(str(item) for item in value)) if isinstance(value, Iterable) else ""
