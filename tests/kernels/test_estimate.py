"""Estimators: what they count, and what they refuse."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType

import pytest

from kernel_strategies import ODD_TEXTS, Shouting
from rune.errors import InvalidInput

SHARED = Path(os.environ.get("RUNE_SHARED", Path(__file__).parents[2] / ".." / "shared"))


@pytest.mark.parametrize("text", ODD_TEXTS, ids=lambda text: ascii(text[:8]))
def test_chars4_is_a_quarter_of_the_code_points(kernels: ModuleType, text: str) -> None:
    assert kernels.chars4(text) == len(text) // 4
    assert kernels.get_estimator("chars4")(text) == len(text) // 4


def test_neither_bytes_nor_utf16_units(kernels: ModuleType) -> None:
    path = SHARED / "cases" / "C09.json"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    case = json.loads(path.read_text(encoding="utf-8"))
    assert kernels.chars4_many(case["input"]["strings"]) == case["expected"]["tokens"]
    assert kernels.chars4("\U0001f600" * 4) == 1  # eight units in UTF-16, sixteen bytes in UTF-8


@pytest.mark.parametrize("name", ["chars4"])
def test_many_is_each(kernels: ModuleType, name: str) -> None:
    estimator = kernels.get_estimator(name)
    assert estimator.many(ODD_TEXTS) == [estimator(text) for text in ODD_TEXTS]
    assert estimator.many(iter(["abcd", "x" * 9])) == [1, 2]
    assert estimator.many(()) == []


def test_names_and_keys(kernels: ModuleType) -> None:
    assert kernels.ESTIMATOR_NAMES[0] == "chars4"
    for name in kernels.ESTIMATOR_NAMES:
        for vocab_size in (None, 1, 49_152, 256_000):
            estimator = kernels.get_estimator(name, vocab_size)
            suffix = f"-{estimator.variant}" if estimator.variant else ""
            assert estimator.name == name
            assert estimator.version >= 1
            assert estimator.key == f"{name}{suffix}/{estimator.version}"
            assert repr(estimator) == f"<Estimator {estimator.key}>"


@pytest.mark.parametrize("name", ["", "chars", "CHARS4", "tiktoken", "\ud800", "it's"])
def test_an_unknown_name_lists_the_known_ones(kernels: ModuleType, name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        kernels.get_estimator(name)
    assert str(caught.value) == f"there is no estimator {name!r}: choose one of {', '.join(kernels.ESTIMATOR_NAMES)}"


@pytest.mark.parametrize("vocab_size", [0, -1, 1.5, "large", 2**63])
def test_a_vocabulary_has_a_positive_size(kernels: ModuleType, vocab_size: object) -> None:
    with pytest.raises(InvalidInput, match="^vocab_size must be"):
        kernels.get_estimator("chars4", vocab_size)


def test_the_methods_of_a_subclass_are_not_asked(kernels: ModuleType) -> None:
    assert kernels.chars4(Shouting("abcd")) == 1
    assert kernels.chars4_many([Shouting("abcd"), "abcdefgh"]) == [1, 2]
    assert kernels.get_estimator("chars4").many([Shouting("abcd")]) == [1]


def test_only_texts_are_counted(kernels: ModuleType) -> None:
    for call in (kernels.chars4, kernels.get_estimator("chars4")):
        with pytest.raises(InvalidInput, match="^text must be a str, not bytes$"):
            call(b"abcd")
    for call in (kernels.chars4_many, kernels.get_estimator("chars4").many):
        with pytest.raises(InvalidInput, match=r"^texts\[1\] must be a str, not NoneType$"):
            call(["abcd", None])
        with pytest.raises(InvalidInput, match="^texts must be a list, not one text$"):
            call("abcd")
        with pytest.raises(InvalidInput, match="^texts must be a list, not int$"):
            call(4)
