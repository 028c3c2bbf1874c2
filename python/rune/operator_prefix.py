"""How much of a prompt is the same as in the call before it: what a server's prefix cache can spare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rune.kernels import EstimatorLike
from rune.messages import Message, measured_text
from rune.transports.measure import TOKENS_PER_MESSAGE

__all__ = ["shared_prefix"]


def shared_prefix(before: Sequence[Message], sent: Sequence[Message], estimator: EstimatorLike) -> dict[str, Any]:
    """How much of a message list was the same as in the call before, from the front: what a server's prefix cache can use.

    ``messages`` that are the same as a whole; ``chars`` of the measured text that are (those of the first message that differs
    too), of ``of_chars``; the same in ``tokens`` by the estimator and those that a message costs beside its text, of
    ``of_tokens``, and ``share``, the one divided by the other.
    """
    messages = 0
    shared: list[str] = []
    texts = [measured_text(message) for message in sent]
    for old, new, text in zip(before, sent, texts, strict=False):
        if old == new:
            messages += 1
            shared.append(text)
            continue
        if old["role"] == new["role"]:
            shared.append(text[: _common(measured_text(old), text)])
        break
    chars = sum(map(len, shared))
    tokens = sum(estimator.many(shared)) + TOKENS_PER_MESSAGE * messages
    of_tokens = sum(estimator.many(texts)) + TOKENS_PER_MESSAGE * len(texts)
    return {
        "messages": messages,
        "chars": chars,
        "of_chars": sum(map(len, texts)),
        "tokens": tokens,
        "of_tokens": of_tokens,
        "share": round(tokens / of_tokens, 4) if of_tokens else 0.0,
    }


def _common(a: str, b: str) -> int:
    """Characters that two texts share from the front; by halving, as comparing slices is quick."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
