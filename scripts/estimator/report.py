"""The figures of the estimator against real counts, a line for each kind of text."""
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from estimator.counters import TABLES
from estimator.natural import Text

REAL_HISTORIES = ("tau", "SWE agent", "toolbench", "English chat")


def table(name: str, texts: Sequence[Text], estimates: NDArray[np.int64], real: NDArray[np.float64]) -> str:
    """A markdown table of one table of weights: per kind, estimate ÷ real for each tokenizer."""
    tokenizers = TABLES[name]
    kinds = np.array([text.kind for text in texts])
    lengths = np.array([len(text.text) for text in texts])
    single = estimates / real.max(axis=1)
    lines = [
        f'## Table "{name}"',
        "",
        "| kind | texts | " + " | ".join(tokenizers) + " | ÷ worst | ÷ median | worst ÷ median | single texts ≥ 0.85 |",
        "|---|---|" + "---|" * (len(tokenizers) + 4),
    ]
    ratios = []
    for kind in sorted(set(kinds)):
        rows = kinds == kind
        totals, estimate = real[rows].sum(axis=0), estimates[rows].sum()
        ratios.append(estimate / totals.max())
        cells = [f"{estimate / total:.2f}" for total in totals]
        cells += [
            f"**{ratios[-1]:.2f}**",
            f"{estimate / np.median(totals):.2f}",
            f"{totals.max() / np.median(totals):.2f}",
        ]
        lines.append(f"| {kind} | {rows.sum()} | {' | '.join(cells)} | {(single[rows] >= 0.85).mean():.0%} |")
    long = lengths >= 200
    lived = long & np.array([text.kind.startswith(REAL_HISTORIES) for text in texts])
    lines += [
        "",
        f"Median kind ÷ worst: {np.median(ratios):.2f}, 90th percentile {np.quantile(ratios, 0.9):.2f}. Single texts of 200 characters and more "
        f"at 0.85 of their worst tokenizer or above: {(single[long] >= 0.85).mean():.1%} of {long.sum()} (5th percentile "
        f"{np.quantile(single[long], 0.05):.2f}); of real histories {(single[lived] >= 0.85).mean():.1%} of {lived.sum()}.",
        "",
    ]
    return "\n".join(lines)


def words(estimates: NDArray[np.int64], real: NDArray[np.float64]) -> str:
    """A sentence on single words, each estimated and counted on its own."""
    ratio = estimates / real.max(axis=1)
    return (
        f"Of the {len(ratio)} commonest English words of these texts, each alone, {(ratio >= 0.85).mean():.0%} are at 0.85 of their worst "
        f"tokenizer or above and {(ratio >= 0.5).mean():.1%} at 0.5; the median is {np.median(ratio):.2f}, the 95th percentile "
        f"{np.quantile(ratio, 0.95):.2f}.\n"
    )


def page(version: int, parts: Sequence[str]) -> str:
    """The page of figures."""
    head = (
        f"# The `script` estimator, version {version}: figures\n\n"
        "Written by `python scripts/fit_script_estimator.py test`. Texts that neither the fit nor any choice saw: other documents, other\n"
        "seeds. Each number is estimate ÷ real tokens over all texts of the kind; below 1 the estimate is too low. Of languages marked\n"
        '"not fitted" the fit had no text at all. docs/estimator.md says how to read it.\n\n'
    )
    return head + "\n".join(parts)
