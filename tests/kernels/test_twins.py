"""The native kernels and the pure twin against each other and against a naive model: same values, same errors, same bytes."""

from __future__ import annotations

import hashlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kernel_strategies import (
    INT_MAX,
    ODD_TEXTS,
    Blocks,
    blocks,
    budgets,
    facts,
    odd_values,
    oracle,
    outcome,
    priorities,
    sizes,
    texts,
)
from rune.kernels import native, pure

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("native_kernels")


many_examples = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@many_examples
@given(st.lists(texts, max_size=6))
def test_texts(given_texts: list[str]) -> None:
    assert native.chars4_many(given_texts) == pure.chars4_many(given_texts)
    assert native.digest_many(given_texts) == pure.digest_many(given_texts)
    for name in pure.ESTIMATOR_NAMES:
        for vocab_size in (None, 32_000, 200_000):
            ours, theirs = pure.get_estimator(name, vocab_size), native.get_estimator(name, vocab_size)
            assert (ours.name, ours.version, ours.variant, ours.key) == (
                theirs.name,
                theirs.version,
                theirs.variant,
                theirs.key,
            )
            counts = ours.many(given_texts)
            assert counts == theirs.many(given_texts)
            assert counts == [theirs(text) for text in given_texts]


@pytest.mark.parametrize("name", pure.ESTIMATOR_NAMES)
def test_odd_and_long_texts(name: str) -> None:
    for vocab_size in (None, 200_000):
        ours, theirs = pure.get_estimator(name, vocab_size), native.get_estimator(name, vocab_size)
        assert ours.many(ODD_TEXTS) == theirs.many(ODD_TEXTS)


@many_examples
@given(blocks())
def test_admission(case: Blocks) -> None:
    assert facts(native.admit(*case.arguments())) == facts(pure.admit(*case.arguments()))


@many_examples
@given(blocks(), st.data())
def test_admission_of_odd_arguments(case: Blocks, data: st.DataObject) -> None:
    arguments: list[Any] = [list(x) if isinstance(x, list) else x for x in case.arguments()]
    at = data.draw(st.integers(0, 4))
    if isinstance(arguments[at], list) and arguments[at] and data.draw(st.booleans()):
        arguments[at][data.draw(st.integers(0, len(arguments[at]) - 1))] = data.draw(odd_values)
    else:
        arguments[at] = data.draw(odd_values)
    assert outcome(lambda: native.admit(*arguments)) == outcome(lambda: pure.admit(*arguments))


@many_examples
@given(st.sampled_from(["chars4", "chars4_many", "digest", "digest_many", "get_estimator"]), odd_values, st.booleans())
def test_odd_texts(name: str, value: Any, listed: bool) -> None:
    argument = ["abcd", value] if listed else value
    assert outcome(lambda: getattr(native, name)(argument)) == outcome(lambda: getattr(pure, name)(argument))
    vocab = outcome(lambda: native.get_estimator("chars4", argument).key)
    assert vocab == outcome(lambda: pure.get_estimator("chars4", argument).key)


@many_examples
@given(st.data())
def test_odd_arguments_of_a_ledger(data: st.DataObject) -> None:
    """One argument of one call is odd: both refuse it in the same words, or take it and agree."""
    calls: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "append": ([["abcd", 2], "c"], {"name": "n", "priority": 1, "evictable": True, "source": "s", "parts": [1, 1]}),
        "extend": ([[["abcd"], [5]], ["a", "b"]], {"names": ["n", "m"], "priorities": [1, 2], "sources": ["", "s"]}),
        "restore": ([{"chars4/1": 4}, "0" * 64], {"name": "n", "priority": 1, "evictable": False, "source": "s"}),
        "set_text": ([0, ["abcd"], "c"], {"parts": [1]}),
        "add_column": (["chars4", [["abcd"]]], {}),
        "tokens": ([0, "chars4"], {}),
        "prefix": ([1, None], {}),
        "newest_fitting": ([3, "chars4/1"], {}),
        "total": (["chars4"], {}),
        "digest": ([0], {}),
        "chain": ([0], {}),
        "admit": ([3, None], {}),
    }
    name = data.draw(st.sampled_from(sorted(calls)))
    positional, keywords = calls[name]
    place = data.draw(st.sampled_from([*range(len(positional)), *keywords]))
    value = data.draw(odd_values)
    holder: Any = keywords if isinstance(place, str) else positional
    if isinstance(holder[place], list) and data.draw(st.booleans()):
        holder[place][-1] = value
    elif isinstance(holder[place], dict) and data.draw(st.booleans()):
        holder[place]["chars4/1"] = value
    else:
        holder[place] = value
    results = []
    for kernels in (native, pure):
        ledger = kernels.Ledger()
        ledger.append(["abcd"], "content")
        results.append(outcome(lambda ledger=ledger: getattr(ledger, name)(*positional, **keywords)))
        ledger.admit(5)
        results[-1] = results[-1], len(ledger), ledger.total(), ledger.chain(len(ledger) - 1), ledger.to_json()
    assert results[0] == results[1]


class Halves:
    """An estimator of one's own, the same in both ledgers and in the model."""

    key = "halves/1"

    def many(self, texts: list[str]) -> list[int]:
        return [len(text) // 2 for text in texts]


COLUMNS = {"chars4/1": 4, "halves/1": 2}


class Model:
    """The ledger as plainly as it can be said: nothing is kept but what went in."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def tokens(self, i: int, column: str) -> int:
        entry = self.entries[i]
        if "tokens" in entry:
            return int(entry["tokens"][column])
        return sum(self.items(i, column))

    def items(self, i: int, column: str) -> list[int]:
        return [x if isinstance(x, int) else len(x) // COLUMNS[column] for x in self.entries[i]["texts"]]

    def parts(self, i: int, column: str) -> list[int] | None:
        division, found, start = self.entries[i]["parts"], [], 0
        if division is None:
            return None
        for many in division:
            found.append(sum(self.items(i, column)[start : start + many]))
            start += many
        return found

    def digest(self, i: int) -> str:
        entry = self.entries[i]
        return entry.get("digest") or hashlib.sha256(entry["content"].encode("utf-8", "surrogatepass")).hexdigest()

    def chain(self, i: int) -> str:
        before = self.chain(i - 1) if i else ""
        return hashlib.sha256((before + self.digest(i)).encode()).hexdigest()

    def admit(self, budget: int, column: str) -> dict[str, Any]:
        every = range(len(self.entries))
        return oracle(
            Blocks(
                [self.tokens(i, column) for i in every],
                [entry["priority"] for entry in self.entries],
                [entry["evictable"] for entry in self.entries],
                [self.parts(i, column) for i in every],
                budget,
            )
        )

    def json(self, admission: dict[str, Any], column: str) -> bytes:
        rows = []
        for i, entry in enumerate(self.entries):
            reason = admission["reasons"][i]
            row = {
                "name": entry["name"],
                "priority": entry["priority"],
                "tokens": self.tokens(i, column) if reason == "over_budget" else admission["tokens"][i],
                "source": entry["source"],
                "evictable": entry["evictable"],
                "admitted": reason != "over_budget",
                "reason": reason,
            }
            rows.append(row)
        dump = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
        return "".join(f"\\u{ord(c):04x}" if 0xD800 <= ord(c) <= 0xDFFF else c for c in dump).encode()


short = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
items = st.lists(st.one_of(short, short, st.integers(0, 5), st.sampled_from([0, INT_MAX // 4])), max_size=3)
facts_of_entries = st.fixed_dictionaries(
    {"name": short, "priority": st.one_of(st.integers(0, 2), priorities), "evictable": st.booleans(), "source": short}
)


class Ledgers(RuleBasedStateMachine):
    """Both ledgers and the model go through the same changes and must always say the same."""

    @initialize(late=st.booleans())
    def start(self, late: bool) -> None:
        columns = ["chars4"] if late else ["chars4", Halves()]
        self.late = late
        self.ledgers = [native.Ledger(columns), pure.Ledger(columns)]
        self.model = Model()

    def every(self, call: Any) -> Any:
        """What both ledgers say; they must agree."""
        first, second = (call(ledger) for ledger in self.ledgers)
        assert first == second
        return first

    def has_entries(self) -> bool:
        return bool(self.model.entries)

    @rule(given_items=items, content=short, said=facts_of_entries, cut=st.one_of(st.none(), st.integers(0, 3)))
    def append(self, given_items: list[Any], content: str, said: dict[str, Any], cut: int | None) -> None:
        many = len(given_items)
        parts = None if cut is None else [min(cut, many), many - min(cut, many)]
        at = self.every(lambda ledger: ledger.append(given_items, content, parts=parts, **said))
        assert at == len(self.model.entries)
        self.model.entries.append({"texts": given_items, "content": content, "parts": parts, **said})

    @rule(many=st.lists(st.tuples(items, short, facts_of_entries), max_size=4))
    def extend(self, many: list[tuple[Any, str, dict[str, Any]]]) -> None:
        self.every(
            lambda ledger: ledger.extend(
                [entry[0] for entry in many],
                [entry[1] for entry in many],
                names=[entry[2]["name"] for entry in many],
                priorities=[entry[2]["priority"] for entry in many],
                evictable=[entry[2]["evictable"] for entry in many],
                sources=[entry[2]["source"] for entry in many],
            )
        )
        self.model.entries += [{"texts": i, "content": c, "parts": None, **said} for i, c, said in many]

    @rule(tokens=st.tuples(sizes, sizes), digest=st.binary(min_size=32, max_size=32), said=facts_of_entries)
    def restore(self, tokens: tuple[int, int], digest: bytes, said: dict[str, Any]) -> None:
        known = dict(zip(COLUMNS, tokens, strict=True))
        self.every(lambda ledger: ledger.restore(known, digest.hex(), **said))
        self.model.entries.append({"tokens": known, "digest": digest.hex(), "parts": None, "texts": [], **said})

    @precondition(has_entries)
    @rule(data=st.data(), given_items=items, content=short)
    def set_text(self, data: st.DataObject, given_items: list[Any], content: str) -> None:
        i = data.draw(st.integers(0, len(self.model.entries) - 1))
        parts = [len(given_items)] if data.draw(st.booleans()) else None
        self.every(lambda ledger: ledger.set_text(i, given_items, content, parts=parts))
        entry = self.model.entries[i]
        entry.pop("tokens", None)
        entry.pop("digest", None)
        entry.update(texts=given_items, content=content, parts=parts)

    @precondition(lambda self: self.late and not any("tokens" in entry for entry in self.model.entries))
    @rule()
    def add_column(self) -> None:
        self.every(lambda ledger: ledger.add_column(Halves(), [entry["texts"] for entry in self.model.entries]))
        self.late = False

    @precondition(has_entries)
    @rule(data=st.data())
    def digests(self, data: st.DataObject) -> None:
        i = data.draw(st.integers(0, len(self.model.entries) - 1))
        assert self.every(lambda ledger: ledger.digest(i)) == self.model.digest(i)
        assert self.every(lambda ledger: ledger.chain(i)) == self.model.chain(i)

    @rule(budget=st.one_of(budgets, st.integers(0, 200)), data=st.data())
    def admission(self, budget: int, data: st.DataObject) -> None:
        column = data.draw(st.sampled_from(self.columns()))
        found = self.every(lambda ledger: facts(ledger.admit(budget, column)))
        assert found == self.model.admit(budget, column)
        assert self.every(lambda ledger: ledger.bitmap()) == found["bitmap"]
        assert self.every(lambda ledger: ledger.to_json()) == self.model.json(found, column)

    @rule(budget=st.one_of(budgets, st.integers(0, 200)), data=st.data())
    def newest_fitting(self, budget: int, data: st.DataObject) -> None:
        column = data.draw(st.sampled_from(self.columns()))
        tokens = [self.model.tokens(i, column) for i in range(len(self.model.entries))]
        fitting = [i for i in range(len(tokens)) if sum(tokens[i:]) <= budget]
        assert self.every(lambda ledger: ledger.newest_fitting(budget, column)) == (fitting or [len(tokens)])[0]

    def columns(self) -> list[str]:
        return ["chars4/1"] if self.late else list(COLUMNS)

    @invariant()
    def totals(self) -> None:
        many = len(self.model.entries)
        assert self.every(len) == many
        assert list(self.every(lambda ledger: ledger.columns)) == self.columns()
        for column in self.columns():
            total = 0
            for i in range(many):
                assert self.every(lambda ledger, i=i, column=column: ledger.prefix(i, column)) == total
                total += self.model.tokens(i, column)
                assert self.every(lambda ledger, i=i, column=column: ledger.tokens(i, column)) == self.model.tokens(
                    i, column
                )
            assert self.every(lambda ledger, column=column: ledger.total(column)) == total


def test_ledgers_and_model_stay_equal() -> None:
    run_state_machine_as_test(
        Ledgers,
        settings=settings(
            max_examples=120, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )


def test_estimators_of_one_twin_serve_the_other() -> None:
    for kernels, other in ((native, pure), (pure, native)):
        ledger = kernels.Ledger([other.get_estimator("chars4")])
        ledger.append(["abcdefgh", 3], "")
        assert (ledger.columns, ledger.total("chars4")) == (("chars4/1",), 5)


def test_both_say_the_same_names_and_arguments() -> None:
    for name in pure.__all__:
        ours, theirs = getattr(pure, name), getattr(native, name)
        if inspect.isclass(ours):
            public = {n for n in dir(ours) if not n.startswith("_")}
            assert public == {n for n in dir(theirs) if not n.startswith("_")}, name
            calls = [n for n in public if callable(getattr(ours, n))]
            for method in calls:
                left, right = (inspect.signature(getattr(cls, method)) for cls in (ours, theirs))
                assert list(left.parameters) == list(right.parameters), f"{name}.{method}"
                assert [p.kind for p in left.parameters.values()][1:] == [p.kind for p in right.parameters.values()][1:]
        elif callable(ours):
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name
        else:
            assert ours == theirs


def test_the_stub_tells_the_truth() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "rune._native", "--mypy-config-file", str(ROOT / "pyproject.toml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
