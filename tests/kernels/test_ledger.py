"""The ledger: tokens, totals, digests, chain, admission, and the JSON of the block ledger."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from types import ModuleType
from typing import Any

import pytest

from kernel_strategies import INT_MAX, ODD_TEXTS, Shouting
from rune.errors import InvalidInput


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Bytes:
    """An estimator of one's own: half a token a byte."""

    key = "bytes/3"

    def __init__(self) -> None:
        self.calls = 0

    def many(self, texts: list[str]) -> list[int]:
        self.calls += 1
        return [len(text.encode("utf-8", "surrogatepass")) // 2 for text in texts]


def test_an_entry_measures_its_texts_one_by_one(kernels: ModuleType) -> None:
    ledger = kernels.Ledger()
    assert ledger.append(["abc", "abcde", "x" * 9], "content") == 0
    assert ledger.append([], "") == 1
    assert ledger.append(["x" * 40, 768], "image") == 2
    assert [ledger.tokens(i) for i in range(3)] == [3, 0, 778]
    assert (len(ledger), ledger.total(), ledger.prefix(0), ledger.prefix(2), ledger.prefix(3)) == (3, 781, 0, 3, 781)


def test_columns(kernels: ModuleType) -> None:
    own = Bytes()
    ledger = kernels.Ledger(["chars4", own])
    assert ledger.columns == ("chars4/1", "bytes/3")
    ledger.extend([["é" * 8, 5], ["abcd"]], ["", ""])
    assert own.calls == 1
    assert [ledger.total(), ledger.total("chars4"), ledger.total("bytes/3"), ledger.total("bytes")] == [8, 8, 15, 15]
    for column in ("by", "bytes/", "bytes/33", "", "chars4/2"):
        with pytest.raises(InvalidInput, match="^there is no column "):
            ledger.total(column)
    with pytest.raises(InvalidInput, match="^there is no column 'words': the ledger has chars4/1, bytes/3$"):
        ledger.total("words")
    with pytest.raises(InvalidInput, match="^column must be a str, not int$"):
        ledger.total(1)


def test_columns_by_the_beginning_of_their_keys(kernels: ModuleType) -> None:
    estimator = kernels.get_estimator("script", 200_000)
    ledger = kernels.Ledger(["chars4", estimator, kernels.get_estimator("script", 32_000)])
    ledger.append(["你好，世界"], "")
    assert ledger.tokens(0, "script") == ledger.tokens(0, estimator.key) == estimator("你好，世界")
    assert ledger.tokens(0, "script-small") > ledger.tokens(0, "script-large")


def test_a_column_later(kernels: ModuleType) -> None:
    ledger = kernels.Ledger()
    ledger.append(["abcd", "ef", 7], "", parts=[1, 2])
    ledger.restore({"chars4/1": 5}, sha256(""))
    ledger.add_column(Bytes(), [["abcd", "ef", 7], ["xyz"]])
    assert [ledger.tokens(i, "bytes") for i in range(2)] == [10, 1]
    assert ledger.admit(9, "bytes").kept_parts == (1, None)
    ledger.append(["abcd"], "")
    assert ledger.tokens(2, "bytes") == 2
    with pytest.raises(InvalidInput, match="^column bytes/3 is there already$"):
        ledger.add_column(Bytes(), [[], [], []])
    with pytest.raises(InvalidInput, match="^texts has 1 values, but 3 are needed$"):
        ledger.add_column("chars4", [[]])


def test_a_column_later_keeps_the_parts(kernels: ModuleType) -> None:
    ledger = kernels.Ledger()
    ledger.append(["a", "b"], "", parts=[1, 1])
    with pytest.raises(InvalidInput, match=r"^texts\[0\] has 1 texts, but its parts have 2$"):
        ledger.add_column(Bytes(), [["ab"]])
    assert ledger.columns == ("chars4/1",)


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ([], "a ledger needs at least one column"),
        ("chars4", "columns must be a list, not one text"),
        (["chars4", "chars4"], "column chars4/1 is there already"),
        ([7], "a column must be an estimator's name, or have key and many, not int"),
    ],
)
def test_columns_that_are_refused(kernels: ModuleType, columns: Any, fault: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        kernels.Ledger(columns)
    assert str(caught.value) == fault


@pytest.mark.parametrize(
    ("counts", "fault"),
    [
        ([1], "estimator own has 1 values, but 2 are needed"),
        ([1, -1], f"estimator own[1] must be from 0 to {INT_MAX}"),
        ([1, 0.5], "estimator own[1] must be an integer, not float"),
        (None, "estimator own must be a list, not NoneType"),
    ],
)
def test_an_estimator_that_counts_wrong_changes_nothing(kernels: ModuleType, counts: Any, fault: str) -> None:
    class Own:
        key = "own"

        def many(self, texts: list[str]) -> Any:
            return counts

    ledger = kernels.Ledger(["chars4", Own()])
    with pytest.raises(InvalidInput) as caught:
        ledger.append(["abcd", "efgh"], "")
    assert str(caught.value) == fault
    assert (len(ledger), ledger.total()) == (0, 0)


def test_an_estimator_that_fails_says_so_itself(kernels: ModuleType) -> None:
    class Own:
        key = "own"

        def many(self, texts: list[str]) -> list[int]:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        kernels.Ledger([Own()]).append(["abcd"], "")


def test_extend_is_all_or_nothing(kernels: ModuleType) -> None:
    ledger = kernels.Ledger()
    ledger.append(["abcd"], "first")
    for arguments, fault in [
        (([["a"], ["b"]], ["a"]), "contents has 1 values, but 2 are needed"),
        (([["a"], "b"], ["a", "b"]), "texts[1] must be a list, not one text"),
        (([["a"], [None]], ["a", "b"]), "texts[1][0] must be a str or an integer, not NoneType"),
        (([["a"], [-1]], ["a", "b"]), f"texts[1][0] must be from 0 to {INT_MAX}"),
        (([["a"], [INT_MAX, 1]], ["a", "b"]), f"tokens of one entry must be from 0 to {INT_MAX}"),
    ]:
        with pytest.raises(InvalidInput) as caught:
            ledger.extend(*arguments)
        assert str(caught.value) == fault
    for keyword, values, fault in [
        ("names", ["a"], "names has 1 values, but 2 are needed"),
        ("names", ["a", 1], "names[1] must be a str, not int"),
        ("priorities", [1, None], "priorities[1] must be an integer, not NoneType"),
        ("evictable", [True], "evictable has 1 values, but 2 are needed"),
        ("sources", "ab", "sources must be a list, not one text"),
    ]:
        with pytest.raises(InvalidInput) as caught:
            ledger.extend([["a"], ["b"]], ["a", "b"], **{keyword: values})
        assert str(caught.value) == fault
    assert (len(ledger), ledger.total()) == (1, 1)
    assert ledger.extend([["abcd"], ["x" * 8]], ["a", "b"], names=["n", "m"], priorities=[3, 4]) == 1
    assert (len(ledger), ledger.total()) == (3, 4)


def test_what_append_refuses(kernels: ModuleType) -> None:
    ledger = kernels.Ledger()
    for arguments, keywords, fault in [
        (("abcd", ""), {}, "texts must be a list, not one text"),
        ((["abcd"], None), {}, "content must be a str, not NoneType"),
        ((["abcd"], ""), {"name": None}, "name must be a str, not NoneType"),
        ((["abcd"], ""), {"source": 7}, "source must be a str, not int"),
        ((["abcd"], ""), {"priority": None}, "priority must be an integer, not NoneType"),
        ((["abcd"], ""), {"parts": [2]}, "parts has 2 texts, but the entry has 1"),
        ((["abcd"], ""), {"parts": [-1, 2]}, f"parts[0] must be from 0 to {INT_MAX}"),
        ((["abcd"], ""), {"parts": [INT_MAX, INT_MAX]}, f"parts has {2 * INT_MAX} texts, but the entry has 1"),
    ]:
        with pytest.raises(InvalidInput) as caught:
            ledger.append(*arguments, **keywords)
        assert str(caught.value) == fault
    assert len(ledger) == 0


@pytest.mark.parametrize("name", ["tokens", "digest", "chain", "prefix"])
def test_entries_that_are_not_there(kernels: ModuleType, name: str) -> None:
    ledger = kernels.Ledger()
    ledger.append(["abcd"], "")
    for i in (-1, 2, INT_MAX):
        with pytest.raises(InvalidInput, match=f"^there is no entry {i}: the ledger has "):
            getattr(ledger, name)(i)
    with pytest.raises(InvalidInput, match="^index must be an integer, not str$"):
        getattr(ledger, name)("0")
    with pytest.raises(InvalidInput, match="^there is no entry 5"):
        ledger.set_text(5, [], "")


def test_newest_fitting(kernels: ModuleType) -> None:
    ledger = kernels.Ledger()
    sizes = [3, 0, 5, 0, 2, 7, 0]
    assert ledger.newest_fitting(10) == 0
    for size in sizes:
        ledger.append([size], "")
    for budget in (*range(-2, 20), INT_MAX, -INT_MAX):
        fitting = [i for i in range(7) if sum(sizes[i:]) <= budget]
        assert ledger.newest_fitting(budget) == (fitting[0] if fitting else 7), budget


def test_totals_go_beyond_64_bits(kernels: ModuleType) -> None:
    ledger = kernels.Ledger()
    for _ in range(3):
        ledger.append([INT_MAX], "")
    assert (ledger.total(), ledger.prefix(2)) == (3 * INT_MAX, 2 * INT_MAX)
    assert ledger.newest_fitting(INT_MAX) == 2
    ledger.set_text(1, [1], "")
    assert (ledger.total(), ledger.prefix(2)) == (2 * INT_MAX + 1, INT_MAX + 1)


def test_digests_and_chain(kernels: ModuleType) -> None:
    ledger = kernels.Ledger()
    for text in ODD_TEXTS:
        ledger.append([text], text)
    assert [ledger.digest(i) for i in range(len(ODD_TEXTS))] == [sha256(text) for text in ODD_TEXTS]
    chain = ""
    for i, text in enumerate(ODD_TEXTS):
        chain = sha256(chain + sha256(text))
        assert ledger.chain(i) == chain
    asked_late = kernels.Ledger()
    asked_late.extend([[]] * len(ODD_TEXTS), ODD_TEXTS)
    assert asked_late.chain(len(ODD_TEXTS) - 1) == chain


def test_a_new_text_renews_tokens_digest_and_chain(kernels: ModuleType) -> None:
    ledger = kernels.Ledger()
    ledger.extend([["a" * 40], ["b" * 40], ["c" * 40]], ["a", "b", "c"])
    before = [ledger.chain(i) for i in range(3)]
    ledger.set_text(1, ["b" * 80, 3], "B")
    assert [ledger.tokens(i) for i in range(3)] == [10, 23, 10]
    assert [ledger.prefix(i) for i in range(4)] == [0, 10, 33, 43]
    assert ledger.digest(1) == sha256("B")
    after = [ledger.chain(i) for i in range(3)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, False]
    assert after[2] == sha256(after[1] + sha256("c"))


def test_restored_entries_equal_measured_ones(kernels: ModuleType) -> None:
    measured, restored = kernels.Ledger(["chars4", Bytes()]), kernels.Ledger(["chars4", Bytes()])
    for i, text in enumerate(ODD_TEXTS):
        measured.append([text], text, name=text[:9], priority=i % 3, evictable=i % 2 == 0, source="s")
        tokens = {key: measured.tokens(i, key) for key in measured.columns}
        tokens["another/1"] = 7  # more than is needed does no harm
        at = restored.restore(
            tokens, measured.digest(i), name=text[:9], priority=i % 3, evictable=i % 2 == 0, source="s"
        )
        assert at == i
    last = len(ODD_TEXTS) - 1
    assert restored.chain(last) == measured.chain(last)
    for ledger in (measured, restored):
        ledger.admit(60_000, "bytes")
    assert restored.to_json() == measured.to_json()
    assert restored.bitmap() == measured.bitmap()
    restored.set_text(0, ["abcd"], "new")
    assert (restored.tokens(0), restored.digest(0)) == (1, sha256("new"))


@pytest.mark.parametrize(
    ("tokens", "digest", "fault"),
    [
        ({}, "0" * 64, "tokens has no value for column chars4/1"),
        ({"chars4/1": -1}, "0" * 64, f"tokens of column chars4/1 must be from 0 to {INT_MAX}"),
        ({"chars4/1": "1"}, "0" * 64, "tokens of column chars4/1 must be an integer, not str"),
        ([1], "0" * 64, "tokens must be a mapping, not list"),
        ({"chars4/1": 1}, "0" * 63, "digest must be 64 lower-case hex digits"),
        ({"chars4/1": 1}, "A" * 64, "digest must be 64 lower-case hex digits"),
        ({"chars4/1": 1}, "\ud800" * 64, "digest must be 64 lower-case hex digits"),
        ({"chars4/1": 1}, None, "digest must be a str, not NoneType"),
    ],
)
def test_what_restore_refuses(kernels: ModuleType, tokens: Any, digest: Any, fault: str) -> None:
    ledger = kernels.Ledger()
    with pytest.raises(InvalidInput) as caught:
        ledger.restore(tokens, digest)
    assert str(caught.value) == fault
    assert len(ledger) == 0


def test_the_ledger_admits_as_admit_does(kernels: ModuleType) -> None:
    ledger = kernels.Ledger()
    tokens, priorities = [4, 6, 3, 3, 9], [1, 5, 2, 2, -7]
    evictable = [False, True, True, True, False]
    for size, priority, may_go in zip(tokens, priorities, evictable, strict=True):
        ledger.append([size], "", priority=priority, evictable=may_go)
    for budget in range(-1, 30):
        ours, plain = ledger.admit(budget), kernels.admit(tokens, priorities, evictable, None, budget)
        for name in (
            "overflow",
            "overflow_index",
            "used_before",
            "total",
            "admitted",
            "tokens",
            "kept_parts",
            "reasons",
        ):
            assert getattr(ours, name) == getattr(plain, name)
        assert ours.bitmap() == plain.bitmap() == ledger.bitmap()


def test_parts_are_runs_of_texts(kernels: ModuleType) -> None:
    ledger = kernels.Ledger()
    ledger.append([6], "", evictable=False)
    ledger.append(["x" * 4, "x" * 8, "x" * 12, 2, "x" * 4], "", parts=[2, 0, 1, 2])  # 3, 0, 3, 3
    found = ledger.admit(12)
    assert (found.kept_parts, found.tokens, found.reasons) == ((None, 3), (6, 6), ("mandatory", "older_parts"))
    assert json.loads(ledger.to_json())[1]["tokens"] == 6
    ledger.set_text(1, ["x" * 40], "", parts=None)
    assert ledger.admit(12).reasons == ("mandatory", "over_budget")
    assert json.loads(ledger.to_json())[1]["tokens"] == 10


def test_an_admission_is_void_once_entries_change(kernels: ModuleType) -> None:
    ledger = kernels.Ledger()
    ledger.append(["abcd"], "")
    for change in (lambda: None, lambda: ledger.append([], ""), lambda: ledger.set_text(0, ["x"], "")):
        change()
        for name in ("bitmap", "to_json"):
            with pytest.raises(InvalidInput, match="^there is no admission of these entries: call admit first$"):
                getattr(ledger, name)()
        kept = ledger.admit(10)
        assert len(json.loads(ledger.to_json())) == len(ledger) == len(kept.admitted)


def test_json_of_the_block_ledger(kernels: ModuleType) -> None:
    ledger = kernels.Ledger()
    assert (ledger.admit(1).total, ledger.to_json()) == (0, b"[]")
    for i, text in enumerate(ODD_TEXTS):
        ledger.append(["x" * 4 * i], "", name=text, source=text[::-1], priority=i - 3, evictable=i % 2 == 1)
    ledger.admit(60)
    written = ledger.to_json()
    rows = json.loads(written)
    assert list(rows[0]) == ["name", "priority", "tokens", "source", "evictable", "admitted", "reason"]
    named = [row | {"name": text, "source": text[::-1]} for row, text in zip(rows, ODD_TEXTS, strict=True)]
    dump = json.dumps(named, ensure_ascii=False, separators=(",", ":"))
    assert written == "".join(f"\\u{ord(c):04x}" if 0xD800 <= ord(c) <= 0xDFFF else c for c in dump).encode()
    for i, (row, text) in enumerate(zip(rows, ODD_TEXTS, strict=True)):
        assert row["name"].encode("utf-16", "surrogatepass") == text.encode("utf-16", "surrogatepass")
        assert (row["priority"], row["evictable"], row["tokens"]) == (i - 3, i % 2 == 1, i)
    assert b'"name":"\\ud800",' in written
    assert '"name":"你好，世界",'.encode() in written
    assert written.decode("utf-8")


def test_the_methods_of_a_subclass_are_not_asked(kernels: ModuleType) -> None:
    ledger = kernels.Ledger()
    ledger.append([Shouting("abcd")], Shouting("content"), name=Shouting("name"), source=Shouting("source"))
    assert (ledger.tokens(0), ledger.digest(0)) == (1, sha256("content"))
    ledger.admit(5)
    assert ledger.to_json().startswith(b'[{"name":"name",')


def test_an_index_may_come_back_for_the_ledger(kernels: ModuleType) -> None:
    ledger = kernels.Ledger()
    ledger.append(["abcd"], "")

    class Meddling:
        def __index__(self) -> int:
            return len(ledger) - 1

    assert ledger.tokens(Meddling()) == 1
    assert ledger.digest(Meddling()) == sha256("")
    assert ledger.admit(Meddling()).overflow


def test_a_column_of_texts_that_change_meanwhile(kernels: ModuleType) -> None:
    ledger = kernels.Ledger()
    ledger.append(["abcd"], "")

    class Meddling:
        key = "meddling/1"

        def many(self, texts: list[str]) -> list[int]:
            ledger.set_text(0, ["abcdefgh"], "")
            return [len(text) for text in texts]

    with pytest.raises(
        InvalidInput, match="^entries were added or changed while the column was measured: do it again$"
    ):
        ledger.add_column(Meddling(), [["abcd"]])
    assert (ledger.columns, ledger.total()) == (("chars4/1",), 2)


def test_an_estimator_may_come_back_for_the_ledger(kernels: ModuleType) -> None:
    class Meddling:
        key = "meddling/1"
        depth = 0

        def many(self, texts: list[str]) -> list[int]:
            if not self.depth:
                self.depth += 1
                assert ledger.append(["one"], "") == 0
            return [len(text) for text in texts]

    ledger = kernels.Ledger(["chars4", Meddling()])
    assert ledger.append(["four"], "") == 1
    assert [ledger.tokens(i, "meddling") for i in range(2)] == [3, 4]


def test_threads(kernels: ModuleType) -> None:
    """Writers, hashers and readers at once: no entry is lost, and all digests are those of the last texts."""
    ledger = kernels.Ledger()
    big = "x" * 20_000  # two of them are hashed with other threads running
    faults: list[BaseException] = []
    start = threading.Barrier(6)

    def guarded(work: Any) -> None:
        try:
            start.wait()
            work()
        except BaseException as fault:
            faults.append(fault)

    def write(who: int) -> None:
        for n in range(150):
            i = ledger.append(["abcd"], f"{who} {n} {big}")
            if n % 10 == 0:
                ledger.set_text(i, ["abcdefgh"], f"again {who} {n} {big}")

    def read() -> None:
        for _ in range(150):
            if len(ledger):
                ledger.chain(len(ledger) - 1)
                ledger.newest_fitting(50)
                ledger.admit(40)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        works = [lambda who=who: write(who) for who in range(4)] + [read, read]
        threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert faults == []
    assert not any(thread.is_alive() for thread in threads)
    assert (len(ledger), ledger.total()) == (600, 4 * (135 + 2 * 15))
    expected = {
        sha256(f"again {who} {n} {big}" if n % 10 == 0 else f"{who} {n} {big}") for who in range(4) for n in range(150)
    }
    assert {ledger.digest(i) for i in range(600)} == expected
    chain = ""
    for i in range(600):
        chain = sha256(chain + ledger.digest(i))
    assert ledger.chain(599) == chain
