"""The ``script`` estimator in Rust, beside its readable twin and beside a real tokenizer (tiktoken, where it is installed).

A real tokenizer needs its vocabulary; a tiny one of single bytes stands in, which merges nothing and so is the kindest case.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rune.kernels import native, pure_script

SOURCES = sorted(Path(__file__).parents[1].glob("python/rune/**/*.py"))


def ascii_text() -> str:
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    return (text.encode("ascii", "ignore").decode() * 20)[:1_000_000]


def mixed_text() -> str:
    line = "委员会审查预算。 Комитет рассмотрел <b>бюджет</b>. 위원회는 검토했다. समिति की बैठक\n"
    return line * (1_000_000 // len(line.encode()))


TEXTS = {"ascii": ascii_text, "mixed": mixed_text}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.benchmark(group="script: 1 MB of text")
def test_rust(benchmark: Any, name: str) -> None:
    if native is None:
        pytest.skip("the native module is not built")
    text = TEXTS[name]()
    tokens = benchmark(native.get_estimator("script", 200_000), text)
    assert tokens == pure_script.tokens(text, "large")


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.benchmark(group="script: 1 MB of text")
def test_twin(benchmark: Any, name: str) -> None:
    assert benchmark(pure_script.tokens, TEXTS[name](), "large") > 0


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.benchmark(group="script: 1 MB of text")
def test_tiktoken(benchmark: Any, name: str) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding(
        "bytes", pat_str=r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|\s+", mergeable_ranks=ranks, special_tokens={}
    )
    count: Callable[[str], list[int]] = encoding.encode_ordinary
    text = TEXTS[name]()
    assert len(benchmark(count, text)) == len(text.encode())
