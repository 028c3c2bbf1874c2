"""The two sizes of a message list that calls need: the ``chars4`` estimate and the safe one. Tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rune.kernels import EstimatorLike
from rune.messages import IMAGE_TOKENS, Message, compact_json, image_count, measured_text

__all__ = ["TOKENS_PER_MESSAGE", "chars4_tokens", "safe_tokens"]

TOKENS_PER_MESSAGE = 8
"""What a chat template adds to one message: measured 5 to 9 with chatml."""


_sizes: dict[tuple[int, str], tuple[Mapping[str, object], int]] = {}
_SIZES_MAX = 4000


def _schema_tokens(schema: Mapping[str, object], estimator: EstimatorLike) -> int:
    """Tokens of a tool's schema. Runs share the objects, which nobody changes; each is measured once."""
    key = (id(schema), estimator.key)
    known = _sizes.get(key)
    if known is None or known[0] is not schema:
        if len(_sizes) >= _SIZES_MAX:
            _sizes.clear()
        known = _sizes[key] = (schema, estimator.many([compact_json(schema)])[0])
    return known[1]


def chars4_tokens(messages: Iterable[Message], tools: Iterable[Mapping[str, object]] = ()) -> int:
    """``chars4`` of what is sent: every message and tool schema measured on its own (``len // 4``) and added up."""
    return sum(len(measured_text(m)) // 4 for m in messages) + sum(len(compact_json(t)) // 4 for t in tools)


def safe_tokens(
    messages: Iterable[Message], tools: Iterable[Mapping[str, object]] = (), *, vocab_size: int | None = None
) -> int:
    """An estimate that does not read low: ``script`` plus 8 tokens a message and the flat cost of images."""
    from rune.kernels import get_estimator

    estimator = get_estimator("script", vocab_size)
    messages = list(messages)
    total = sum(estimator.many([measured_text(m) for m in messages]))
    total += sum(_schema_tokens(tool, estimator) for tool in tools)
    return total + sum(TOKENS_PER_MESSAGE + IMAGE_TOKENS * image_count(m) for m in messages)
