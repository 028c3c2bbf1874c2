"""Digests: SHA-256 of UTF-8, for every text that Python can hold."""

from __future__ import annotations

import hashlib
from types import ModuleType

import pytest

from kernel_strategies import ODD_TEXTS, Shouting
from rune.errors import InvalidInput


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@pytest.mark.parametrize("text", ODD_TEXTS, ids=lambda text: ascii(text[:8]))
def test_sha256_of_utf8(kernels: ModuleType, text: str) -> None:
    assert kernels.digest(text) == sha256(text)


def test_known_answers(kernels: ModuleType) -> None:
    assert kernels.digest("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert kernels.digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_many(kernels: ModuleType) -> None:
    assert kernels.digest_many(ODD_TEXTS * 3) == [sha256(text) for text in ODD_TEXTS * 3]
    assert kernels.digest_many(iter([])) == []


def test_the_methods_of_a_subclass_are_not_asked(kernels: ModuleType) -> None:
    assert kernels.digest(Shouting("abc")) == sha256("abc")


def test_only_texts_are_hashed(kernels: ModuleType) -> None:
    with pytest.raises(InvalidInput, match="^text must be a str, not bytes$"):
        kernels.digest(b"abc")
    with pytest.raises(InvalidInput, match="^texts must be a list, not one text$"):
        kernels.digest_many("abc")
