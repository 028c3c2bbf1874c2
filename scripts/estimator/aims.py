"""What is wished of each kind of text: how low the estimate may come against the worst tokenizer, and how high."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from estimator.formats import KINDS as FORMATS
from estimator.natural import LANGUAGES, WORDS_ALONE, Text
from estimator.programme import Aims
from estimator.signs import KINDS as SIGNS
from estimator.strings import KINDS as STRINGS

EVERYDAY = frozenset(
    {
        "English chat",
        "English docs",
        "tau speech",
        "tau system",
        "tau calls",
        "tau tool",
        "SWE agent speech",
        "SWE agent system",
        "SWE agent tool",
        "SWE agent calls",
        "toolbench tool",
        "toolbench speech",
        "Python",
        "C",
        "Go",
        "Rust",
        "JavaScript",
        "TypeScript",
        "minified JS",
        "markdown",
        "code deep",
        "code numbered",
        "code in JSON",
        "random words",
        "stack trace",
        "diff",
        "SQL",
        "HTML",
        "CSS",
        "YAML",
        "shell",
        "logs",
        "typographic",
        "capitals",
        "camel case",
        "camel case found",
        "long words",
        "long words found",
        "lower case",
        "accents random",
    }
)
"""Held closest to the real count, with the languages and JSON."""
WORDY = frozenset({"JSON schema", "API text", "accents decomposed", "toolbench functions", "toolbench system"})
UNBOUND = frozenset({"rare Han", "white alternating", "word repeated", "white mixed"})
"""Nothing cheap can tell rare Han from common ones, nor white space that a vocabulary joins from what it does not."""
REPEATED = {
    "letter runs": 1.15,
    "space runs": 1.05,
    "newline runs": 1.05,
    "tab runs": 1.05,
    "box rules": 1.08,
    "rules": 1.12,
    "rule": 1.0,
    "punctuation repeated": 1.0,
    "invisible": 1.0,
    "zero-width spaces": 1.0,
    "wide spaces": 1.0,
    "blocks": 1.0,
}
RARE = frozenset(
    {
        "random letters",
        "rare, 2 bytes",
        "rare, 3 bytes",
        "rare, 4 bytes",
        "dingbats",
        "symbols",
        "Latin signs",
        "transliterated",
        "half-width kana",
        "full width",
        "punctuation random",
        "punctuation spaced",
        "invented names",
        "syllables",
        "names",
        "controls",
        "formulas",
        "no-break spaces",
        "Telugu",
        "Telugu alone",
        "Kannada",
        "Kannada alone",
    }
)
FLOORS = {
    # Each of these pulls everyday text up with it: random letters cannot be told from rare words.
    "random letters": 0.98,
    "punctuation random": 1.03,
    "invented names": 0.98,
    "base64": 1.0,
    "CSS": 0.98,
    "symbols": 1.05,
    "Latin signs": 1.04,
    "transliterated": 1.03,
    "Bulgarian": 0.95,
    "Serbian": 0.95,
    "Ukrainian": 1.0,
    # Sources that vary more than the made texts do.
    "JSON pretty": 1.06,
    "box table": 1.08,
}
# Small letters are told apart by pairs, and the pairs of the languages that are fitted stand for all the others.
LETTERED = {**dict.fromkeys(list(LANGUAGES)[list(LANGUAGES).index("French") :], 1.08), "syllables": 1.04, "names": 1.04}
LOW_SPREAD = 1.3


def of(table: str, texts: Sequence[Text], real: NDArray[np.float64]) -> dict[str, Aims]:
    """The aims of every kind among ``texts``; ``real`` has a row for each text and a column for each tokenizer."""
    kinds = np.array([text.kind for text in texts])
    return {kind: _of(kind, table, real[kinds == kind].sum(axis=0)) for kind in sorted(set(kinds))}


def _of(kind: str, table: str, totals: NDArray[np.float64]) -> Aims:
    if kind in UNBOUND:
        return Aims(floor=0.5, ceiling=3.0, weight=0.1, single=0.0)
    if kind in REPEATED:
        return Aims(floor=REPEATED[kind], ceiling=3.0, weight=0.1, single=0.5)
    if kind == WORDS_ALONE:
        return Aims(floor=1.0, ceiling=1.8, weight=60.0, single=0.85)
    spread = totals.max() / np.median(totals)
    language = kind.removesuffix(" alone")
    made = kind in FORMATS | STRINGS | SIGNS
    floor = (LETTERED | FLOORS).get(language, 1.0 if kind in RARE else 1.01 if made else 1.04)
    if kind in RARE:
        ceiling, weight = 1.55, 0.2
    elif kind in EVERYDAY or kind.startswith("JSON") or language in LANGUAGES:
        ceiling, weight = (1.22 if table == "large" else 1.36), 1.5
    else:
        ceiling, weight = 1.4, 1.0
    if kind.startswith("long words"):
        weight = 2.0
    if kind == "capitals":
        weight = 2.5
    if language == "Vietnamese":
        ceiling = 1.15
    if kind in WORDY:
        ceiling, weight = 1.45, 1.0
    if spread <= LOW_SPREAD:
        ceiling = min(ceiling, 1.5 / spread)
    return Aims(floor, ceiling, weight, 0.92 if weight > 0.5 else 0.85)
