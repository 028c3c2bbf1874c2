"""Special tokens inside texts: found with the server's own tokenizer, and sent so that they are only text.

llama.cpp reads the rendered conversation with special tokens on, texts included: a user text that contains ``<|im_end|>``
would end its own turn, and what follows could pose as the system. So on the wire a space goes in behind the first character
of every special token that stands in a text (``< |im_end|>``): a visible change, which the model reads as plain text, which
``ChatReply.notes`` tells, and which touches neither the conversation nor the trace.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rune.messages import Message

__all__ = ["SpecialTokens", "candidates", "map_texts"]

_CANDIDATE = re.compile(r"(?=(<[^<>\s]{1,80}>|\[[^\[\]\s]{1,40}\]))")
"""What special tokens look like in every known vocabulary: ``<|…|>``, ``</s>``, ``<start_of_turn>``, ``[INST]``.

A lookahead, because one may stand inside the brackets of another: ``[<|im_end|>]``.
"""

_REMEMBERED = 20_000
_AT_ONCE = 512

Tokenize = Callable[[str, bool], list[int]]
"""Tokens of a text, with special tokens parsed or not."""


def candidates(texts: Iterable[str]) -> set[str]:
    """Pieces of the texts that may be special tokens."""
    return {match for text in texts if "<" in text or "[" in text for match in _CANDIDATE.findall(text)}


class SpecialTokens:
    """Which strings are special tokens of one model; asks ``tokenize`` once for each."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}
        self._lock = threading.Lock()

    def among(self, found: Iterable[str], tokenize: Tokenize) -> set[str]:
        """Those of ``found`` that are special tokens. Raises what ``tokenize`` raises."""
        found = set(found)
        with self._lock:
            if len(self._known) > _REMEMBERED:
                self._known.clear()
            new = sorted(found - self._known.keys())
            known = {text for text in found if self._known.get(text)}
        special: set[str] = set()
        for start in range(0, len(new), _AT_ONCE):
            special |= _search(new[start : start + _AT_ONCE], tokenize)
        with self._lock:
            self._known.update((text, text in special) for text in new)
        return special | known

    def neutralise(self, messages: Sequence[Message], tokenize: Tokenize) -> tuple[Sequence[Message], dict[str, int]]:
        """The messages with every special token in their texts broken, and how often each stood there."""
        counts: dict[str, int] = {}
        while True:
            texts: list[str] = []
            for message in messages:
                map_texts(message, _noting(texts))
            special = self.among(candidates(texts), tokenize)
            if not special:
                return messages, counts
            # One round breaks all but those that overlap one another; what is broken holds a space and never comes again.
            change = _breaking(special, counts)
            messages = [map_texts(message, change) for message in messages]


def _noting(texts: list[str]) -> Callable[[str], str]:
    def note(text: str) -> str:
        texts.append(text)
        return text

    return note


def _breaking(special: set[str], counts: dict[str, int]) -> Callable[[str], str]:
    # What holds a special token looks special itself, by its tokens: the innermost is the one to break.
    innermost = [token for token in special if not any(other != token and other in token for other in special)]
    pattern = re.compile("|".join(re.escape(token) for token in innermost))

    def broken(match: re.Match[str]) -> str:
        token = match[0]
        counts[token] = counts.get(token, 0) + 1
        return f"{token[0]} {token[1:]}"

    return lambda text: pattern.sub(broken, text)


def _search(texts: list[str], tokenize: Tokenize) -> set[str]:
    """The special ones, by halving: ordinary texts (the tags of a page, say) are ruled out all at once."""
    if not texts:
        return set()
    joined = "\n".join(texts)
    if tokenize(joined, True) == tokenize(joined, False):
        return set()
    if len(texts) == 1:
        return set(texts)
    middle = len(texts) // 2
    return _search(texts[:middle], tokenize) | _search(texts[middle:], tokenize)


def map_texts(message: Message, change: Callable[[str], str]) -> Message:
    """A copy of a message in normal form with every text that a template may print changed: content, thinking, calls."""
    out = {**message, "content": change(message["content"])}
    for key in ("thinking", "tool_name", "name"):
        if message.get(key):
            out[key] = change(message[key])
    if message.get("tool_calls"):
        out["tool_calls"] = [
            {**call, "function": _map_value(call["function"], change)} for call in message["tool_calls"]
        ]
    return out


def _map_value(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(key)): _map_value(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map_value(item, change) for item in value]
    return value
