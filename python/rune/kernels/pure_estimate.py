"""Estimators: how many tokens a text is taken to have. Named, versioned, deterministic; integers only.

An estimate is a function of the code points of a text and of nothing else: no tokenizer, no environment, no drift. Every place
that shows one calls it an estimate.

``chars4``  ``len(text) // 4``: code points, not UTF-8 bytes and not UTF-16 units. Right for English prose, low for code, JSON,
            and scripts without spaces.
``script``  weights by the class and context of each character, fitted so as not to undercount any of several real tokenizers;
            a table for vocabularies of 100,000 entries and more, and one for the others. See ``pure_script``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rune.errors import InvalidInput
from rune.kernels import checks, pure_script, script_table

__all__ = ["ESTIMATOR_NAMES", "Estimator", "chars4", "chars4_many", "get_estimator"]


class Estimator:
    """A named way to count. ``estimator(text)`` and ``estimator.many(texts)`` give tokens, 0 or more.

    ``name`` is what users choose by; ``version`` goes up whenever any text would get another number; ``variant`` tells the
    tables of one estimator apart ("" where there is one). ``key`` (``chars4/1``, ``script-large/1``) says all three and
    names the column in ledgers and traces.
    """

    __slots__ = ("_measure", "key", "name", "variant", "version")

    def __init__(self, name: str, version: int, variant: str, measure: Callable[[str], int]) -> None:
        self.name = name
        self.version = version
        self.variant = variant
        self.key = f"{name}-{variant}/{version}" if variant else f"{name}/{version}"
        self._measure = measure

    def __call__(self, text: str) -> int:
        """Tokens of one text."""
        return self._measure(checks.text(text, "text"))

    def many(self, texts: Iterable[str]) -> list[int]:
        """Tokens of each text, in order."""
        measure = self._measure
        return [measure(text) for text in checks.texts(texts, "texts")]

    def __repr__(self) -> str:
        return f"<Estimator {self.key}>"


def _chars4(text: str) -> int:
    return len(text) // 4


def _make_chars4(vocab_size: int | None) -> Estimator:
    return Estimator("chars4", 1, "", _chars4)


def _make_script(vocab_size: int | None) -> Estimator:
    variant = pure_script.variant_for(vocab_size)
    return Estimator("script", script_table.VERSION, variant, lambda text: pure_script.tokens(text, variant))


_FACTORIES: dict[str, Callable[[int | None], Estimator]] = {
    "chars4": _make_chars4,
    "script": _make_script,
}
"""Every estimator: its name, and what makes it for a vocabulary of that many entries (None: unknown)."""

ESTIMATOR_NAMES = tuple(_FACTORIES)


def get_estimator(name: str, vocab_size: int | None = None) -> Estimator:
    """The estimator of that name, for a vocabulary of ``vocab_size`` entries (None: unknown).

    Raises InvalidInput for a name that is not there; the message lists those that are.
    """
    if vocab_size is not None:
        vocab_size = checks.integer(vocab_size, "vocab_size", 1)
    factory = _FACTORIES.get(checks.text(name, "name"))
    if factory is None:
        raise InvalidInput(f"there is no estimator {name!r}: choose one of {', '.join(ESTIMATOR_NAMES)}")
    return factory(vocab_size)


def chars4(text: str) -> int:
    """``len(text) // 4`` in code points."""
    return len(checks.text(text, "text")) // 4


def chars4_many(texts: Iterable[str]) -> list[int]:
    """``chars4`` of each text, in order."""
    return [len(text) // 4 for text in checks.texts(texts, "texts")]
