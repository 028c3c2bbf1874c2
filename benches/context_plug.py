"""Rune as candidates of a bench of context packers: ``bench_context.py --plug benches/context_plug.py`` (``make bench-peers``).

``rune trim_messages`` is the one-shot call; ``rune Conversation`` keeps a ledger with tokens, digest and chain of every turn, in
memory, and per turn measures and hashes what is new and gives the newest turns that fit.
"""

from __future__ import annotations

from typing import Any

from bench_context import Peer, register

from rune import Conversation, trim_messages
from rune.kernels import get_estimator

CHARS4 = get_estimator("chars4")


@register("rune trim_messages", dist="rune-context", note="whole turns; measures what it keeps")
class Trim(Peer):
    def fit(self, native: Any, budget: int) -> Any:
        return trim_messages(native, max_tokens=budget)


@register("rune Conversation", dist="rune-context", note="ledger of all turns: tokens, sha256, chain")
class Ledgered(Peer):
    def fit(self, native: Any, budget: int) -> Any:
        return self._window(*self.open(native, budget))

    def open(self, native: Any, budget: int) -> Any:
        conversation = Conversation.from_messages("bench", native)
        system = [{"role": "system", "content": text} for text in conversation.system]
        return conversation, budget - sum(CHARS4.many([m["content"] for m in system])), system

    def turn(self, session: Any, pair: Any) -> Any:
        session[0].append(pair)
        return self._window(*session)

    @staticmethod
    def _window(conversation: Any, budget: int, system: Any) -> Any:
        return [*system, *conversation.window(budget)]
