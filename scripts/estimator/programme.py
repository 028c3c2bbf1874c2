"""The linear programme that finds the weights: least excess over the real counts, with the worst tokenizer as the floor.

For each kind of text, the estimate of all its texts is at least ``margin`` times what each tokenizer counts (a hard bound
where the margin is 1 or more by choice of the kind), each single text's is wished to be, and excess over the worst
tokenizer costs, beyond the kind's ceiling much more. Weights are tokens; ``rounded`` gives them in 1/128 token.
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

SLOTS: tuple[str, ...] = tuple(sorted(
    {name for state in rules.reachable() for cls in rules.CLASSES for name in rules.slots(state, cls)}
    | set(rules.SAME5.values()) | {f"{cls}.same" for cls in rules.PUNCTUATION}
))
UNIT = 128


def feature_counts(texts: Sequence[str]) -> NDArray[np.int32]:
    """How often each weight is taken, a row for each text, a column for each of ``SLOTS``."""
    number = {name: i for i, name in enumerate(SLOTS)}
    states = {state: i for i, state in enumerate(rules.reachable())}
    moves = {
        (i, cls): (tuple(number[name] for name in rules.slots(state, cls)), states[rules.follow(state, cls)])
        for state, i in states.items() for cls in rules.CLASSES
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
    """What is wished of a kind: ``floor`` and ``ceiling`` are estimate ÷ the worst tokenizer, ``weight`` its say in the excess."""

    floor: float = 1.04
    ceiling: float = 1.3
    weight: float = 1.0
    single: float = 0.95


def bounds() -> list[tuple[float, float]]:
    """The least and the most of each weight, in tokens: no character for nothing, none above its UTF-8 bytes."""
    result = []
    for name in SLOTS:
        if name in rules.CLASSES and rules.utf8_length(name) > 1:
            length = rules.utf8_length(name)
            result.append((0.3, float(length)))
        elif name.startswith("same5."):
            result.append((0.02, 3.0 if name == "same5.box" else 1.0))
        elif name.startswith(("digit.", "other.")):
            result.append((0.0, 0.9))
        elif name.startswith(("space", "newline", "tab")):
            result.append((0.02, 1.0))
        else:
            result.append((0.12, 1.0))
    return result


def fit(features: NDArray[np.int32], worst: NDArray[np.float64], by_tokenizer: NDArray[np.float64], texts: Sequence[Text], aims: Mapping[str, Aims], *, miss: float = 4.0) -> NDArray[np.float64]:
    """The weights in tokens, in the order of ``SLOTS``. ``by_tokenizer`` has a column for each tokenizer, ``worst`` is their maximum."""
    n_slots, n_texts = len(SLOTS), len(texts)
    kinds = sorted({text.kind for text in texts})
    members = {kind: np.array([i for i, text in enumerate(texts) if text.kind == kind]) for kind in kinds}
    # Columns: weights, a shortfall for each text, an excess over the ceiling and a shortfall for each kind.
    n = n_slots + n_texts + 2 * len(kinds)
    cost = np.zeros(n)
    entries: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
    right: list[float] = []

    def row(columns: Sequence[int] | NDArray[np.int64], values: Sequence[float] | NDArray[np.float64], at_most: float) -> None:
        line = np.full(len(columns), len(right))
        entries.append((line, np.asarray(columns), np.asarray(values, float)))
        right.append(at_most)

    slots = np.arange(n_slots)
    for k, kind in enumerate(kinds):
        rows, aim = members[kind], aims[kind]
        total = features[rows].sum(axis=0) / by_tokenizer[rows].sum(axis=0).max()
        over, short = n_slots + n_texts + k, n_slots + n_texts + len(kinds) + k
        cost[:n_slots] += aim.weight * total
        cost[over], cost[short] = 30.0 * aim.weight, 300.0
        used = np.flatnonzero(total)
        row([*used, over], [*total[used], -1.0], aim.ceiling)
        row([*used, short], [*-total[used], -1.0], -aim.floor)
        for i in rows:
            used = np.flatnonzero(features[i])
            row([*used, n_slots + i], [*(-features[i, used] / worst[i]), -1.0], -aim.single)
        cost[n_slots + rows] = miss * aim.weight * len(rows) ** -0.9
    index = {name: i for i, name in enumerate(SLOTS)}
    for extra in ("digit.after_space", "other.after_space"):
        for name in SLOTS:
            if name.startswith(("space", "tab", "same5.space", "same5.white")):
                row([index[extra], index[name]], [1.0, 1.0], 1.0)
    matrix: csr_matrix = coo_matrix(
        (np.concatenate([v for _, _, v in entries]), (np.concatenate([r for r, _, _ in entries]), np.concatenate([c for _, c, _ in entries]))),
        shape=(len(right), n),
    ).tocsr()
    # A small price on every weight and on its neighbours' differences would hide in the rounding; the bounds do that work.
    limits = bounds() + [(0.0, None)] * (n - n_slots)  # type: ignore[list-item]
    solved = linprog(cost, A_ub=matrix, b_ub=np.array(right), bounds=limits, method="highs")
    if not solved.success:
        raise SystemExit(f"the programme has no solution: {solved.message}")
    _ = slots
    return np.asarray(solved.x[:n_slots])


def rounded(weights: NDArray[np.float64]) -> dict[str, int]:
    """The weights in 1/128 token, rounded up within the most that each may be."""
    most = [high for _, high in bounds()]
    return {name: min(int(np.ceil(w * UNIT - 1e-6)), int(high * UNIT)) for name, w, high in zip(SLOTS, weights, most, strict=True)}
