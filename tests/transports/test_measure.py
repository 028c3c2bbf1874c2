"""The two sizes of a message list."""

from __future__ import annotations

import pytest

from playback import user
from rune.messages import IMAGE_TOKENS, compact_json, normalise
from rune.transports.measure import TOKENS_PER_MESSAGE, chars4_tokens, safe_tokens

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"function": {"name": "f", "arguments": {"a": "b"}}}


def test_chars4_measures_each_message_and_schema_on_its_own() -> None:
    messages = normalise([user("x" * 7), {"role": "assistant", "content": "abc", "tool_calls": [CALL]}])
    calls = len(compact_json(messages[1]["tool_calls"]))
    assert chars4_tokens(messages) == 1 + (3 + calls) // 4
    assert chars4_tokens(messages, [TOOL]) == chars4_tokens(messages) + len(compact_json(TOOL)) // 4
    assert chars4_tokens([]) == 0


def test_the_safe_estimate_does_not_read_low() -> None:
    kernels = pytest.importorskip("rune.kernels")
    if not hasattr(kernels, "get_estimator"):
        pytest.skip("the kernels are not built yet")
    script = kernels.get_estimator("script", 49152)
    messages = normalise([user("漢字" * 50), user("0123456789" * 20)])
    texts = [m["content"] for m in messages]
    assert safe_tokens(messages, vocab_size=49152) == sum(script.many(texts)) + 2 * TOKENS_PER_MESSAGE
    assert safe_tokens(messages, vocab_size=49152) > 2 * chars4_tokens(messages)
    pictures = normalise([{**user("x"), "images": ["AA", "BB"]}])
    assert safe_tokens(pictures) >= 2 * IMAGE_TOKENS + TOKENS_PER_MESSAGE
    assert safe_tokens(messages, [TOOL]) > safe_tokens(messages)
