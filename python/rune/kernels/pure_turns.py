"""The turns of a conversation: what each measures, its digest and chain, whether it may be offered, and the newest that fit.

Messages come in as they are and are kept in normal form; a turn costs what is new in it. What a message is, and when a turn is
complete, say the ``rules``: the module ``rune.messages``, handed in because it stands above the kernels.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from rune.errors import InvalidInput
from rune.kernels import checks
from rune.kernels.estimator_like import EstimatorLike
from rune.kernels.pure_estimate import get_estimator
from rune.kernels.pure_ledger import digest
from rune.kernels.turn_records import FAULTS, OTHER, read_records

__all__ = ["MessageRules", "Turns"]

Message = dict[str, Any]


class MessageRules(Protocol):
    """What turns need of ``rune.messages``."""

    IMAGE_TOKENS: int

    def normalise(self, messages: Iterable[Any], *, keep_thinking: bool = True) -> list[Message]: ...
    def normalise_one(self, given: Any, *, position: int = 0, keep_thinking: bool = True) -> Message: ...
    def parsed_arguments(self, value: Any) -> Any: ...
    def split_system(self, messages: Iterable[Message]) -> tuple[list[str], list[Message]]: ...
    def split_turns(self, messages: Iterable[Message]) -> list[list[Message]]: ...
    def incomplete_reason(self, turn: Sequence[Message]) -> str | None: ...
    def copy_message(self, message: Message) -> Message: ...
    def calls_json(self, message: Mapping[str, Any]) -> str: ...
    def compact_json(self, value: Any) -> str: ...
    def canonical_json(self, messages: Iterable[Message]) -> str: ...
    def measured_text(self, message: Mapping[str, Any]) -> str: ...
    def image_count(self, message: Mapping[str, Any]) -> int: ...


class _Turn:
    """A turn as it is kept. ``messages`` is None, and ``span`` says where they are, for one that is only in the file."""

    __slots__ = ("chain", "digest", "fault", "messages", "span", "tokens")

    def __init__(self, messages: tuple[Message, ...] | None, fault: str, tokens: int, own: str) -> None:
        self.messages = messages
        self.fault = fault
        self.tokens = tokens
        self.digest = own
        self.chain = ""
        self.span: tuple[int, int] | None = None


class Turns:
    """The turns of a conversation, measured by one estimator (its name, or see EstimatorLike).

    Numbers of turns count from 0. Safe to use from several threads. Every method raises InvalidInput for arguments that it
    cannot use, and then nothing has changed.
    """

    def __init__(self, estimator: str | EstimatorLike, rules: MessageRules) -> None:
        found = get_estimator(estimator) if isinstance(estimator, str) else estimator
        if not hasattr(found, "key") or not hasattr(found, "many"):
            raise InvalidInput(
                f"a column must be an estimator's name, or have key and many, not {type(found).__name__}"
            )
        self._estimator = found
        self._key = checks.text(found.key, "estimator key")
        self._rules = rules
        self._lock = threading.RLock()
        self._turns: list[_Turn] = []
        self._sums = [0]  # tokens of the turns before each
        self._numbers: tuple[list[int], list[int]] = ([], [])  # of incomplete and of complete turns

    # Growing

    def append(self, messages: Iterable[Any]) -> tuple[int, list[str]]:
        """Adds messages, cut into turns. Gives the number of the first new turn, and the texts of system messages.

        Thinking is left out; system messages are no part of a turn. Nothing that the caller may change later is shared.
        """
        system, rest = self._rules.split_system(self._rules.normalise(messages, keep_thinking=False))
        made = [self._made(turn) for turn in self._rules.split_turns(rest)]
        with self._lock:
            first = len(self._turns)
            for turn in made:
                self._push(turn, self._next_chain(turn.digest))
            return first, system

    def adopt(self, messages: Iterable[Any], chain: str = "") -> bool:
        """Adds one turn with the chain digest that was written with it ("" for none); False when that is another one."""
        written = checks.text(chain, "chain")
        turn = self._made(self._rules.normalise(messages, keep_thinking=False))
        with self._lock:
            follows = self._next_chain(turn.digest)
            readable = len(written) == 64 and set(written) <= set("0123456789abcdef")
            self._push(turn, written if readable else follows)
            return written in ("", follows)

    def restore(self, records: bytes) -> list[tuple[int, int]]:
        """Adds turns whose messages stay in the file, by their records. Gives where the rows stand that are no turns."""
        turns: list[tuple[_Turn, str]] = []
        others: list[tuple[int, int]] = []
        for record in read_records(records):
            if record.kind == OTHER:
                others.append(record.span)
                continue
            turn = _Turn(None, FAULTS[record.kind - 1] if record.kind else "", record.tokens, record.digest)
            turn.span = record.span
            turns.append((turn, record.chain))
        with self._lock:
            for turn, chain in turns:
                self._push(turn, chain)
        return others

    def fill(self, i: int, messages: Iterable[Any]) -> bool:
        """Gives a restored turn its messages; False, and nothing is changed, when its digest is another one."""
        turn = self._turns[self._number(i)]
        found = self._made(self._rules.normalise(messages, keep_thinking=False))
        if found.digest != turn.digest:
            return False
        turn.messages, turn.span = found.messages, None
        return True

    def _made(self, messages: list[Message]) -> _Turn:
        for position, message in enumerate(messages):
            try:
                self._rules.calls_json(message)
            except (TypeError, ValueError, RecursionError) as exc:
                raise InvalidInput(f"message {position} has a tool call that JSON has no words for: {exc}") from exc
        fault = self._rules.incomplete_reason(messages) or ""
        # An incomplete turn measures nothing: it is never offered, and sums over the rest stay sums over neighbours.
        tokens = 0 if fault else self._tokens(messages)
        kept = tuple(self._rules.copy_message(message) for message in messages)
        return _Turn(kept, fault, tokens, digest(self._rules.canonical_json(messages)))

    def _tokens(self, messages: list[Message]) -> int:
        texts = [self._rules.measured_text(message) for message in messages]
        counts = checks.integers(self._estimator.many(texts), f"estimator {self._key}", 0)
        checks.same_length(len(counts), len(texts), f"estimator {self._key}")
        images = sum(self._rules.image_count(message) for message in messages)
        return checks.integer(sum(counts) + images * self._rules.IMAGE_TOKENS, "tokens of one entry", 0)

    def _next_chain(self, own: str) -> str:
        return digest((self._turns[-1].chain if self._turns else "") + own)

    def _push(self, turn: _Turn, chain: str) -> None:
        turn.chain = chain
        self._numbers[not turn.fault].append(len(self._turns))
        self._turns.append(turn)
        self._sums.append(self._sums[-1] + turn.tokens)

    # Reading

    def _number(self, i: int, more: int = 0) -> int:
        return checks.entry(checks.integer(i, "index"), len(self._turns) + more)

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def key(self) -> str:
        """The key of the estimator."""
        return self._key

    def messages(self, i: int) -> tuple[Message, ...] | None:
        """Copies of a turn's messages; None when they are only in the file."""
        kept = self._turns[self._number(i)].messages
        return None if kept is None else tuple(map(self._rules.copy_message, kept))

    def span(self, i: int) -> tuple[int, int] | None:
        """Where the row of a restored turn stands in the file; None once it was filled, and for all others."""
        return self._turns[self._number(i)].span

    def reason(self, i: int) -> str:
        """Why a turn cannot be offered, or ""."""
        return self._turns[self._number(i)].fault

    def tokens(self, i: int) -> int:
        """Tokens of a turn; 0 for an incomplete one."""
        return self._turns[self._number(i)].tokens

    def digest(self, i: int) -> str:
        """Digest of a turn's canonical JSON."""
        return self._turns[self._number(i)].digest

    def chain(self, i: int) -> str:
        """Digest of the chain digest before a turn (none for the first) and its own."""
        return self._turns[self._number(i)].chain

    def total(self) -> int:
        """Tokens of all complete turns."""
        return self._sums[-1]

    def prefix(self, i: int) -> int:
        """Tokens of the turns before ``i``; ``i`` may be the length."""
        return self._sums[self._number(i, 1)]

    def newest_fitting(self, budget: int) -> int:
        """The smallest number from which on all turns together fit the budget; the length when not even the last one does."""
        room = checks.integer(budget, "budget")
        with self._lock:
            return len(self._turns) if room < 0 else bisect_left(self._sums, self._sums[-1] - room)

    def window(self, start: int) -> list[Message] | None:
        """Copies of the messages of all complete turns from ``start`` on; None when some of them are only in the file."""
        with self._lock:
            turns = [turn.messages for turn in self._turns[self._number(start, 1) :] if not turn.fault]
        found: list[Message] = []
        for messages in turns:
            if messages is None:
                return None
            found += map(self._rules.copy_message, messages)
        return found

    def count(self, complete: bool = True) -> int:
        """How many turns are complete, or are not."""
        return len(self._numbers[complete])

    def numbers(self, start: int, complete: bool = True) -> list[int]:
        """The numbers of the complete turns (or the others), but for the first ``start`` of them."""
        return self._numbers[complete][start:]
