"""Fit the ``script`` estimator: count texts with real tokenizers, solve for the weights, write both tables and the report.

    python scripts/fit_script_estimator.py choose    fit, and report on the texts to choose by; writes nothing
    python scripts/fit_script_estimator.py write     fit, write both tables
    python scripts/fit_script_estimator.py test      report on the texts for the final test; writes docs/estimator-figures.md

docs/estimator.md names the packages to install and the variables to set. A change of weights needs another ``VERSION``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from estimator import aims, counters, formats, natural, programme, report, signs, strings, written
from estimator.natural import Text

VERSION = 2
CACHE = counters.TOOLS / "script-counts.sqlite"
MADE = {"fit": ("fit-1", 40), "choice": ("choice-1", 24), "test": (natural.SEEDS["test"], 60)}
# How many of the commonest words are fitted, and how many are reported on, each by itself.
WORDS, WORDS_REPORTED = 2500, 1500


def texts_of(split: str) -> list[Text]:
    """Every text of a split that is long enough to say something, real ones first, none twice."""
    real = list(natural.natural())
    texts = [text for text in (*real, *natural.derived(real)) if text.split == split]
    seed, count = MADE[split]
    for kind, make in (formats.KINDS | strings.KINDS | signs.KINDS).items():
        texts += [Text(kind, f"made/{i}", split, make(Random(f"{seed}/{kind}/{i}"))) for i in range(count)]
    return list({(text.kind, text.text): text for text in texts if len(text.text) >= 100}.values())


def counted(table: str, texts: list[Text]) -> NDArray[np.float64]:
    """Real tokens: a row for each text, a column for each tokenizer of the table."""
    counts = counters.Counts(CACHE)
    return np.array([counts.of(name, [text.text for text in texts]) for name in counters.TABLES[table]], float).T


def fitted(table: str) -> dict[str, int]:
    texts = texts_of("fit")
    texts += natural.words_alone(texts, WORDS)
    real = counted(table, texts)
    features = programme.feature_counts([text.text for text in texts])
    return programme.rounded(programme.fit(features, real, texts, aims.of(table, texts, real)))


def estimator(table: str, found: dict[str, int] | None) -> Callable[[list[Text]], NDArray[np.int64]]:
    """Estimates of texts by the weights ``found``, or by the table that is written."""
    if found is None:
        from rune.kernels import pure_script

        return lambda texts: np.array([pure_script.tokens(text.text, table) for text in texts])
    weights = np.array([found[name] for name in programme.SLOTS])
    return lambda texts: -(-(programme.feature_counts([text.text for text in texts]) @ weights) // programme.UNIT)


def main() -> None:
    command = sys.argv[1] if len(sys.argv) == 2 else ""
    if command not in ("choose", "write", "test"):
        raise SystemExit(__doc__)
    if command == "write":
        print(written.write(VERSION, {table: fitted(table) for table in counters.TABLES}))
        return
    split = "choice" if command == "choose" else "test"
    texts = texts_of(split)
    words = natural.words_alone(texts, WORDS_REPORTED)
    parts = []
    for table in counters.TABLES:
        estimate = estimator(table, fitted(table) if command == "choose" else None)
        parts.append(report.table(table, texts, estimate(texts), counted(table, texts)))
        parts.append(report.words(estimate(words), counted(table, words)))
    print("\n".join(parts))
    if command == "test":
        (ROOT / "docs/estimator-figures.md").write_text(report.page(VERSION, parts), encoding="utf-8")


if __name__ == "__main__":
    main()
