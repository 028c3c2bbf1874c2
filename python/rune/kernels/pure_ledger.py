"""The ledger: entries in the order in which they came, with tokens, digests, and what the last admission made of them.

An entry is a turn of a conversation, a block of a prompt, anything that enters a window. Entries are only appended or given a
new text, so everything that depends on all of them is kept and not computed again: prefix sums for totals, the order for
admission, the chain of digests. A turn costs what is new in it.
"""

from __future__ import annotations

import hashlib
import json
import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

from rune.errors import InvalidInput
from rune.kernels import checks
from rune.kernels.estimator_like import EstimatorLike
from rune.kernels.pure_admission import OVER_BUDGET, Admission, admit_in_order
from rune.kernels.pure_estimate import get_estimator

__all__ = ["Ledger", "digest", "digest_many"]

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_HEX = frozenset("0123456789abcdef")

Items = Sequence[str | int]
"""What an entry measures: texts, and integers for things of a fixed cost, such as images."""


def digest(text: str) -> str:
    """SHA-256 of the text's UTF-8 bytes as 64 hex digits. A lone surrogate counts as its three bytes (``surrogatepass``)."""
    return hashlib.sha256(checks.text(text, "text").encode("utf-8", "surrogatepass")).hexdigest()


def digest_many(texts: Iterable[str]) -> list[str]:
    """``digest`` of each text, in order."""
    return [digest(text) for text in checks.texts(texts, "texts")]


class _Column:
    """The tokens of all entries under one estimator, their prefix sums, and the tokens of parts where an entry has some."""

    __slots__ = ("estimator", "key", "parts", "sums", "tokens")

    def __init__(self, estimator: EstimatorLike) -> None:
        if not hasattr(estimator, "key") or not hasattr(estimator, "many"):
            raise InvalidInput(
                f"a column must be an estimator's name, or have key and many, not {type(estimator).__name__}"
            )
        self.estimator = estimator
        self.key = checks.text(estimator.key, "estimator key")
        self.tokens: list[int] = []
        self.parts: list[list[int] | None] = []
        self.sums = [0]

    def measure(self, entries: Sequence[list[str | int]]) -> list[list[int]]:
        """Tokens of each item of each entry; one call of the estimator for all of them."""
        texts = [item for entry in entries for item in entry if isinstance(item, str)]
        counts = checks.integers(self.estimator.many(texts) if texts else [], f"estimator {self.key}", 0)
        checks.same_length(len(counts), len(texts), f"estimator {self.key}")
        found = iter(counts)
        return [[next(found) if isinstance(item, str) else item for item in entry] for entry in entries]

    def sized(
        self, counts: Sequence[list[int]], divisions: Sequence[list[int] | None]
    ) -> list[tuple[int, list[int] | None]]:
        """Each entry's tokens and its parts' tokens, from the tokens of its items."""
        return [
            (
                checks.integer(sum(items), "tokens of one entry", 0),
                None if sizes is None else list(_by_part(items, sizes)),
            )
            for items, sizes in zip(counts, divisions, strict=True)
        ]

    def append(self, size: int, parts: list[int] | None) -> None:
        self.tokens.append(size)
        self.parts.append(parts)
        self.sums.append(self.sums[-1] + size)

    def replace(self, i: int, size: int, parts: list[int] | None) -> None:
        self.tokens[i] = size
        self.parts[i] = parts
        self.sums[i:] = accumulate(self.tokens[i:], initial=self.sums[i])


def _by_part(counts: list[int], sizes: list[int]) -> Iterator[int]:
    start = 0
    for size in sizes:
        yield sum(counts[start : start + size])
        start += size


class Ledger:
    """Entries with tokens under one or more estimators.

    ``columns`` are names of estimators or estimators (see EstimatorLike). Methods that take ``column`` want its key
    (``script-large/1``) or the beginning of it (``script-large``, ``script``); None is the first column. Indexes count
    from 0. Safe to use from several threads. Every method raises InvalidInput for arguments that it cannot use, and
    then nothing has changed.
    """

    def __init__(self, columns: Iterable[str | EstimatorLike] = ("chars4",)) -> None:
        self._lock = threading.RLock()
        self._columns: list[_Column] = []
        for column in checks.items(columns, "columns"):
            self._columns.append(self._new_column(column))
        if not self._columns:
            raise InvalidInput("a ledger needs at least one column")
        self._names: list[str] = []
        self._sources: list[str] = []
        self._priorities: list[int] = []
        self._evictable: list[bool] = []
        self._divisions: list[list[int] | None] = []  # how many items each part has
        self._contents: list[str | None] = []  # what is to be hashed; None once it has been
        self._digests: list[str] = []  # "" until asked for
        self._chain: list[str] = []  # of the first entries, as far as it was asked for
        self._edits = 0  # how many texts were replaced
        self._mandatory: list[int] = []
        self._ranks: list[int] = []  # the priorities of evictable entries, lowest first
        self._by_rank: dict[int, list[int]] = {}  # their entries, oldest first
        self._admission: Admission | None = None
        self._admitted_column = self._columns[0]

    # What is in it

    def append(
        self,
        texts: Items,
        content: str,
        *,
        name: str = "",
        priority: int = 0,
        evictable: bool = True,
        source: str = "",
        parts: Sequence[int] | None = None,
    ) -> int:
        """Adds an entry and returns its index.

        Its tokens are the sum over ``texts``, where an integer stands for itself. ``content`` is what its digest covers.
        ``parts`` makes it divisible: how many of the texts belong to each part, oldest first.
        """
        entry = _items(texts, "texts")
        return self._add(
            [entry],
            [checks.text(content, "content")],
            [checks.text(name, "name")],
            [checks.integer(priority, "priority")],
            [bool(evictable)],
            [checks.text(source, "source")],
            [_division(parts, len(entry))],
        )

    def extend(
        self,
        texts: Iterable[Items],
        contents: Iterable[str],
        *,
        names: Iterable[str] | None = None,
        priorities: Iterable[int] | None = None,
        evictable: Iterable[bool] | None = None,
        sources: Iterable[str] | None = None,
    ) -> int:
        """Adds many entries in one go, all of them or none, and returns the index of the first."""
        entries = [_items(entry, f"texts[{i}]") for i, entry in enumerate(checks.items(texts, "texts"))]
        many = len(entries)
        hashed = checks.texts(contents, "contents")
        checks.same_length(len(hashed), many, "contents")
        called = [""] * many if names is None else checks.texts(names, "names")
        checks.same_length(len(called), many, "names")
        ranks = [0] * many if priorities is None else checks.integers(priorities, "priorities")
        checks.same_length(len(ranks), many, "priorities")
        may_go = [True] * many if evictable is None else [bool(value) for value in checks.items(evictable, "evictable")]
        checks.same_length(len(may_go), many, "evictable")
        origins = [""] * many if sources is None else checks.texts(sources, "sources")
        checks.same_length(len(origins), many, "sources")
        return self._add(entries, hashed, called, ranks, may_go, origins, [None] * many)

    def restore(
        self,
        tokens: Mapping[str, int],
        digest: str,
        *,
        name: str = "",
        priority: int = 0,
        evictable: bool = True,
        source: str = "",
    ) -> int:
        """Adds an entry whose tokens (by column key) and digest are known from before, without its text."""
        if not isinstance(tokens, Mapping):
            raise InvalidInput(f"tokens must be a mapping, not {type(tokens).__name__}")
        known = checks.text(digest, "digest")
        if len(known) != 64 or not _HEX.issuperset(known):
            raise InvalidInput("digest must be 64 lower-case hex digits")
        called = checks.text(name, "name")
        rank = checks.integer(priority, "priority")
        may_go = bool(evictable)
        origin = checks.text(source, "source")
        with self._lock:
            sizes = []
            for column in self._columns:
                if column.key not in tokens:
                    raise InvalidInput(f"tokens has no value for column {column.key}")
                sizes.append(checks.integer(tokens[column.key], f"tokens of column {column.key}", 0))
            for column, size in zip(self._columns, sizes, strict=True):
                column.append(size, None)
            return self._note(called, rank, may_go, origin, None, None, known)

    def set_text(self, i: int, texts: Items, content: str, *, parts: Sequence[int] | None = None) -> None:
        """Gives entry ``i`` another text: its tokens, its digest, and the chain from there on are new."""
        entry = _items(texts, "texts")
        content = checks.text(content, "content")
        division = _division(parts, len(entry))
        i = checks.integer(i, "index")
        with self._lock:
            checks.entry(i, len(self._names))
            sized = [column.sized(column.measure([entry]), [division])[0] for column in self._columns]
            for column, (size, part_sizes) in zip(self._columns, sized, strict=True):
                column.replace(i, size, part_sizes)
            self._divisions[i] = division
            self._contents[i] = content
            self._digests[i] = ""
            del self._chain[i:]
            self._edits += 1
            self._admission = None

    def add_column(self, estimator: str | EstimatorLike, texts: Iterable[Items]) -> None:
        """Measures all entries under one more estimator; ``texts`` are those of every entry, in order."""
        entries = [_items(entry, f"texts[{i}]") for i, entry in enumerate(checks.items(texts, "texts"))]
        with self._lock:
            checks.same_length(len(entries), len(self._names), "texts")
            column = self._new_column(estimator)
            for i, (entry, division) in enumerate(zip(entries, self._divisions, strict=True)):
                if division is not None and sum(division) != len(entry):
                    raise InvalidInput(f"texts[{i}] has {len(entry)} texts, but its parts have {sum(division)}")
            before = len(self._names), self._edits
            sized = column.sized(column.measure(entries), self._divisions)
            if before != (len(self._names), self._edits):
                raise InvalidInput("entries were added or changed while the column was measured: do it again")
            for size, part_sizes in sized:
                column.append(size, part_sizes)
            self._columns.append(column)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def columns(self) -> tuple[str, ...]:
        """The keys of the columns, in the order in which they were added."""
        return tuple(column.key for column in self._columns)

    # Tokens

    def tokens(self, i: int, column: str | None = None) -> int:
        """Tokens of entry ``i``."""
        i = checks.integer(i, "index")
        with self._lock:
            found = self._column(column)
            return found.tokens[checks.entry(i, len(self._names))]

    def total(self, column: str | None = None) -> int:
        """Tokens of all entries."""
        with self._lock:
            return self._column(column).sums[-1]

    def prefix(self, i: int, column: str | None = None) -> int:
        """Tokens of the entries before ``i``; ``i`` may be the length."""
        i = checks.integer(i, "index")
        with self._lock:
            found = self._column(column)
            return found.sums[checks.entry(i, len(self._names) + 1)]

    def newest_fitting(self, budget: int, column: str | None = None) -> int:
        """The smallest index from which on all entries together fit the budget; the length when not even the last one does."""
        room = checks.integer(budget, "budget")
        with self._lock:
            found = self._column(column)
            # The last sum is the total, so what lies behind prefix i is total - sums[i].
            return len(self._names) if room < 0 else bisect_left(found.sums, found.sums[-1] - room)

    # Digests

    def digest(self, i: int) -> str:
        """Digest of the content of entry ``i``, computed when first asked for and kept."""
        i = checks.integer(i, "index")
        with self._lock:
            return self._digest(checks.entry(i, len(self._names)))

    def chain(self, i: int) -> str:
        """Chain digest up to entry ``i``: the digest of the chain digest before it (none for the first) and its own digest."""
        i = checks.integer(i, "index")
        with self._lock:
            checks.entry(i, len(self._names))
            while len(self._chain) <= i:
                before = self._chain[-1] if self._chain else ""
                self._chain.append(digest(before + self._digest(len(self._chain))))
            return self._chain[i]

    # Admission

    def admit(self, budget: int, column: str | None = None) -> Admission:
        """Admits the entries into ``budget`` tokens by the rules of ``admit``, and keeps the result for the two below."""
        room = checks.integer(budget, "budget")
        with self._lock:
            found = self._column(column)
            by_rank = chain.from_iterable(reversed(self._by_rank[rank]) for rank in reversed(self._ranks))
            self._admission = admit_in_order(found.tokens, found.parts, self._mandatory, by_rank, room)
            self._admitted_column = found
            return self._admission

    def bitmap(self) -> bytes:
        """The last admission as one bit per entry (see Admission.bitmap)."""
        with self._lock:
            return self._last().bitmap()

    def to_json(self) -> bytes:
        """The block ledger as compact JSON in UTF-8: one row per entry, in order, after the last admission.

        ``tokens`` are those admitted, or all of the entry's when it was left out. Text stays as it is; a lone surrogate, which
        UTF-8 does not have, is written as its JSON escape.
        """
        with self._lock:
            last = self._last()
            sizes = self._admitted_column.tokens
            rows: list[dict[str, Any]] = [
                {
                    "name": self._names[i],
                    "priority": self._priorities[i],
                    "tokens": sizes[i] if reason == OVER_BUDGET else last.tokens[i],
                    "source": self._sources[i],
                    "evictable": self._evictable[i],
                    "admitted": last.admitted[i],
                    "reason": reason,
                }
                for i, reason in enumerate(last.reasons)
            ]
        return _JSON(rows).encode("utf-8", "backslashreplace")

    # Within

    def _new_column(self, estimator: str | EstimatorLike) -> _Column:
        column = _Column(get_estimator(estimator) if isinstance(estimator, str) else estimator)
        if any(column.key == known.key for known in self._columns):
            raise InvalidInput(f"column {column.key} is there already")
        return column

    def _column(self, wanted: str | None) -> _Column:
        if wanted is None:
            return self._columns[0]
        name = checks.text(wanted, "column")
        for column in self._columns:
            if column.key == name or column.key.startswith((f"{name}/", f"{name}-")):
                return column
        raise InvalidInput(f"there is no column {name!r}: the ledger has {', '.join(self.columns)}")

    def _add(
        self,
        entries: list[list[str | int]],
        contents: list[str],
        names: list[str],
        priorities: list[int],
        evictable: list[bool],
        sources: list[str],
        divisions: list[list[int] | None],
    ) -> int:
        with self._lock:
            sized = [column.sized(column.measure(entries), divisions) for column in self._columns]
            first = len(self._names)  # only now: an estimator of the caller's own might have come back to this ledger
            for column, sizes in zip(self._columns, sized, strict=True):
                for size, part_sizes in sizes:
                    column.append(size, part_sizes)
            for content, name, priority, may_go, source, division in zip(
                contents, names, priorities, evictable, sources, divisions, strict=True
            ):
                self._note(name, priority, may_go, source, division, content, "")
            return first

    def _note(
        self,
        name: str,
        priority: int,
        evictable: bool,
        source: str,
        division: list[int] | None,
        content: str | None,
        known_digest: str,
    ) -> int:
        i = len(self._names)
        self._names.append(name)
        self._priorities.append(priority)
        self._evictable.append(evictable)
        self._sources.append(source)
        self._divisions.append(division)
        self._contents.append(content)
        self._digests.append(known_digest)
        if not evictable:
            self._mandatory.append(i)
        else:
            if priority not in self._by_rank:
                self._by_rank[priority] = []
                insort(self._ranks, priority)
            self._by_rank[priority].append(i)
        self._admission = None
        return i

    def _digest(self, i: int) -> str:
        content = self._contents[i]
        if content is not None:
            self._digests[i] = digest(content)
            self._contents[i] = None
        return self._digests[i]

    def _last(self) -> Admission:
        if self._admission is None:
            raise InvalidInput("there is no admission of these entries: call admit first")
        return self._admission


def _items(values: Any, what: str) -> list[str | int]:
    """The measured items of one entry: exact texts, and integers of 0 or more."""
    found = checks.items(values, what)
    if {*map(type, found)} <= {str}:
        return list(found)
    return [_item(item, f"{what}[{i}]") for i, item in enumerate(found)]


def _item(value: Any, what: str) -> str | int:
    if isinstance(value, str):
        return checks.text(value, what)
    if not hasattr(value, "__index__"):
        raise InvalidInput(f"{what} must be a str or an integer, not {type(value).__name__}")
    return checks.integer(value, what, 0)


def _division(parts: Sequence[int] | None, many: int) -> list[int] | None:
    if parts is None:
        return None
    sizes = checks.integers(parts, "parts", 0)
    if sum(sizes) != many:
        raise InvalidInput(f"parts has {sum(sizes)} texts, but the entry has {many}")
    return sizes
