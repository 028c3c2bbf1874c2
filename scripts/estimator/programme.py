"""The linear programme that finds the weights: least excess over the real counts, with the worst tokenizer as the floor.

For each kind of text, the estimate of all its texts is at least ``floor`` times what each tokenizer counts (falling short
costs more than anything else), each single text's is wished to be, and excess over the worst tokenizer costs, near the
kind's ceiling more and beyond it much more. Weights are tokens; ``rounded`` gives them in 1/128 token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_matrix, csr_matrix

from estimator.natural import Text
from rune.kernels import script_rules as rules

SLOTS: tuple[str, ...] = tuple(
    sorted(
        {name for state in rules.reachable() for cls in rules.CLASSES for name in rules.slots(state, cls)}
        | set(rules.SAME5.values())
        | {f"{cls}.same" for cls in rules.PUNCTUATION}
    )
)
UNIT = 128
# The price of a single text below its aim, against excess over a kind.
MISS = 4.0
# The price of a kind below its floor.
SHORT = 400.0
# The price of a weight that is apart from its family's middle, a token apart: pairs that the texts say little of stay near.
APART = 1.0
FAMILIES = ("lower.first.", "lower.second.", "space.after.", *(f"lower.{cls}." for cls in rules.SMALL))


def feature_counts(texts: Sequence[str]) -> NDArray[np.int32]:
    """How often each weight is taken, a row for each text, a column for each of ``SLOTS``."""
    number = {name: i for i, name in enumerate(SLOTS)}
    states = {state: i for i, state in enumerate(rules.reachable())}
    moves = {
        (i, cls): (tuple(number[name] for name in rules.slots(state, cls)), states[rules.follow(state, cls)])
        for state, i in states.items()
        for cls in rules.CLASSES
    }
    same = {cls: number[f"{cls}.same"] for cls in rules.PUNCTUATION}
    same5 = {cls: number[name] for cls, name in rules.SAME5.items()}
    known: dict[str, str] = {}
    rows = np.zeros((len(texts), len(SLOTS)), np.int32)
    for row, text in zip(rows, texts, strict=True):
        state, last, run = 0, "", 0
        counts = [0] * len(SLOTS)
        for char in text:
            cls = known.get(char) or known.setdefault(char, rules.class_of(ord(char)))
            names, after = moves[state, cls]
            run = run + 1 if char == last else 1
            if run >= 5 and cls in same5:
                counts[same5[cls]] += 1
            elif run >= 2 and cls in same:
                counts[same[cls]] += 1
            else:
                for name in names:
                    counts[name] += 1
            state, last = after, char
        row[:] = counts
    return rows


@dataclass
class Aims:
    """What is wished of a kind: ``floor`` and ``ceiling`` are estimate ÷ worst tokenizer, ``weight`` its say in the excess."""

    floor: float = 1.04
    ceiling: float = 1.3
    weight: float = 1.0
    single: float = 0.95


_LEAST = {
    "lower.": 0.05,
    "lower.first": 0.3,
    "lower.second": 0.1,
    "lower.after": 0.16,
    "lower.third": 0.3,
    "lower.cluster": 0.5,
    "upper.": 0.25,
    "upper.later": 0.12,
    "upper.after_other": 0.4,
    "upper.after_mark": 0.4,
    "mark.": 0.25,
    "bracket.": 0.25,
    "operator.": 0.25,
    "space": 0.02,
    "newline": 0.1,
    "tab": 0.1,
    "same5.": 0.02,
    "digit.": 0.0,
    "other.": 0.0,
    "selector": 0.5,
    "accent": 0.5,
    "latin_sign": 0.6,
    "symbol": 1.0,
    "invisible": 1.75,
    "zero_width": 1.0,
    "vietnamese": 0.4,
    "box": 0.3,
}
_MOST = {
    "lower.": 0.6,
    "lower.first": 0.9,
    "lower.second": 0.8,
    "accent": 1.6,
    "accent_upper": 2.0,
    "accent_rare": 2.0,
    "lower.after": 1.0,
    "lower.cluster": 1.0,
    "lower.third": 0.8,
    "same5.box": 3.0,
}


def _longest(table: Mapping[str, float], name: str, default: float) -> float:
    return max(((len(start), value) for start, value in table.items() if name.startswith(start)), default=(0, default))[
        1
    ]


def bounds() -> list[tuple[float, float]]:
    """The least and the most of each weight, in tokens: no character for nothing, none above its UTF-8 bytes.

    The programme alone would put all on one of two weights that mostly come together; a text of no kind that it saw must not
    pay for that.
    """
    result = []
    for name in SLOTS:
        cls = name.removesuffix(".again")
        length = rules.utf8_length(cls) if cls in rules.CLASSES else 1
        least = 0.6 if length > 2 else 0.25 if length == 2 else 0.2
        result.append((_longest(_LEAST, name, least), _longest(_MOST, name, float(length))))
    return result


def fit(
    features: NDArray[np.int32], real: NDArray[np.float64], texts: Sequence[Text], aims: Mapping[str, Aims]
) -> NDArray[np.float64]:
    """The weights in tokens, in the order of ``SLOTS``. ``real`` has a row for each text and a column for each tokenizer."""
    worst = real.max(axis=1)
    n_slots, n_texts = len(SLOTS), len(texts)
    kinds = sorted({text.kind for text in texts})
    members = {kind: np.array([i for i, text in enumerate(texts) if text.kind == kind]) for kind in kinds}
    families = [[i for i, name in enumerate(SLOTS) if name.startswith(start)] for start in FAMILIES]
    # Columns: weights, a shortfall for each text, an excess over the ceiling (twice) and a shortfall for each kind, how far
    # each weight of a family is from the family's middle, and that middle.
    aside = n_slots + n_texts + 3 * len(kinds)
    n = aside + n_slots + len(families)
    cost = np.zeros(n)
    cost[aside : aside + n_slots] = APART
    entries: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
    right: list[float] = []

    def row(
        columns: Sequence[int] | NDArray[np.int64], values: Sequence[float] | NDArray[np.float64], at_most: float
    ) -> None:
        line = np.full(len(columns), len(right))
        entries.append((line, np.asarray(columns), np.asarray(values, float)))
        right.append(at_most)

    for k, kind in enumerate(kinds):
        rows, aim = members[kind], aims[kind]
        total = features[rows].sum(axis=0) / real[rows].sum(axis=0).max()
        over, short = n_slots + n_texts + k, n_slots + n_texts + len(kinds) + k
        cost[:n_slots] += aim.weight * total
        near = short + len(kinds)
        cost[over], cost[near], cost[short] = 30.0 * aim.weight, 3.0 * aim.weight, SHORT
        used = np.flatnonzero(total)
        row([*used, over], [*total[used], -1.0], aim.ceiling)
        row([*used, near], [*total[used], -1.0], aim.ceiling - 0.1)
        row([*used, short], [*-total[used], -1.0], -aim.floor)
        for i in rows:
            used = np.flatnonzero(features[i])
            row([*used, n_slots + i], [*(-features[i, used] / worst[i]), -1.0], -aim.single)
        cost[n_slots + rows] = MISS * aim.weight * len(rows) ** -0.9
    for middle, family in enumerate(families, aside + n_slots):
        for i in family:
            row([i, middle, aside + i], [1.0, -1.0, -1.0], 0.0)
            row([i, middle, aside + i], [-1.0, 1.0, -1.0], 0.0)
    index = {name: i for i, name in enumerate(SLOTS)}
    for extra in ("digit.after_space", "other.after_space"):
        for name in SLOTS:
            if name.startswith(("space", "tab", "same5.space", "same5.newline", "same5.tab")):
                row([index[extra], index[name]], [1.0, 1.0], 1.0)
    matrix: csr_matrix = coo_matrix(
        (
            np.concatenate([v for _, _, v in entries]),
            (np.concatenate([r for r, _, _ in entries]), np.concatenate([c for _, c, _ in entries])),
        ),
        shape=(len(right), n),
    ).tocsr()
    limits = bounds() + [(0.0, None)] * (n - n_slots)  # type: ignore[list-item]
    solved = linprog(cost, A_ub=matrix, b_ub=np.array(right), bounds=limits, method="highs")
    if not solved.success:
        raise SystemExit(f"the programme has no solution: {solved.message}")
    return np.asarray(solved.x[:n_slots])


def rounded(weights: NDArray[np.float64]) -> dict[str, int]:
    """The weights in 1/128 token, rounded up within the most that each may be."""
    most = [high for _, high in bounds()]
    return {
        name: min(int(np.ceil(w * UNIT - 1e-6)), int(high * UNIT))
        for name, w, high in zip(SLOTS, weights, most, strict=True)
    }
