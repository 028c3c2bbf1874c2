"""A conversation: its turns in order, what they measure, and a file that keeps them.

Every turn is kept as it came. Only completed turns are ever offered to a model: a call without its result, or a question
without an answer, makes servers refuse the request for good. Incomplete turns stay visible with the reason.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import rune.messages
from rune.context.layout import front_of_history
from rune.context.turn_range import TurnRange
from rune.context.turns import Turn
from rune.errors import InvalidInput, StorageError
from rune.kernels import Turns, get_estimator
from rune.kernels.turn_records import CHECK_BYTES, RECORD
from rune.messages import Message
from rune.paths import check_session_id, session_path

if TYPE_CHECKING:
    from pathlib import Path

    from rune.context.session_file import Facts, SessionFile

__all__ = ["Conversation"]


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


class Conversation:
    """The turns of one session. ``Conversation(id)`` lives in memory, ``Conversation.open(id)`` in a file under the home.

    Attributes:
        id: the session's id.
        path: its file, or None in memory.
        problems: sentences about what could not be read when it was opened.
        unsaved: how many rows could not be written yet; the next append tries again.
    """

    def __init__(self, id: str, *, estimator: str = "chars4") -> None:
        """Raises InvalidInput for an id that cannot name a file, or an unknown estimator."""
        self.id = check_session_id(id)
        self.path: Path | None = None
        self.problems: list[str] = []
        self._lock = threading.RLock()
        self._file: SessionFile | None = None
        self._clear(estimator)

    def _clear(self, estimator: str) -> None:
        self._estimator = get_estimator(estimator)
        # State that a turn never walks over: measured, hashed and counted in the kernels, turns made when somebody reads them.
        self._kernel = Turns(self._estimator, rune.messages)
        self._made: dict[int, Turn] = {}
        self._times: dict[int, str] = {}  # of turns that were read from the file
        self._marks: list[int] = []  # the first turn of every append, and when that was (seconds since 1970)
        self._marked: list[float] = []
        self._system: dict[str, None] = {}
        self._state: dict[str, Any] = {}
        self._front = 0

    @classmethod
    def open(
        cls, id: str, home: Path | str | None = None, *, estimator: str = "chars4", fsync: bool = True
    ) -> Conversation:
        """The conversation of that id under ``home`` (the Rune home when None); empty when there is no file yet.

        A long one opens by the index beside its file, and turns are read when they are asked for. Torn rows are skipped and
        told in ``problems``. ``fsync``: an appended turn has reached the disk, not only the system, when ``append`` returns.

        Raises:
            InvalidInput: an id that cannot name a file.
            StorageError: the file is there and cannot be read.
        """
        from rune.context.session_file import SessionFile

        conversation = cls(id, estimator=estimator)
        conversation.path = session_path(id, home)
        conversation._file = SessionFile(conversation.path, conversation._kernel.key, fsync=fsync)
        conversation._read()
        return conversation

    @classmethod
    def from_messages(cls, id: str, messages: Iterable[Any], *, estimator: str = "chars4") -> Conversation:
        """A conversation in memory from chat messages (OpenAI's or Ollama's form), cut into turns.

        Raises InvalidInput for a message without a normal form; names its position.
        """
        conversation = cls(id, estimator=estimator)
        conversation._grow(messages)
        return conversation

    # Growing

    def append(self, messages: Iterable[Any]) -> Sequence[Turn]:
        """Adds the messages of a turn and returns it (several, where the messages are of several turns).

        System messages go to ``system``, thinking is left out. An incomplete turn is kept, marked, and never offered. With a
        file, a turn is on disk when this returns, unless ``unsaved`` says otherwise: a failed write is recorded and tried
        again on the next append, and the conversation goes on in memory.

        Raises InvalidInput for messages without a normal form; then nothing was added.
        """
        with self._lock:
            if self._file is None:
                first, _ = self._grow(messages)
            else:
                with self._file.alone():
                    self._catch_up()
                    first, new_system = self._grow(messages)
                    if new_system:
                        self._file.pending.append(({"system": new_system, "time": _iso(time.time())}, None))
                    added = range(first, len(self._kernel))
                    self._file.pending += ((self._row(number), number) for number in added)
                    self._file.write(self._facts)
            return TurnRange(self.turn, range(first, len(self._kernel)))

    def _grow(self, messages: Iterable[Any]) -> tuple[int, list[str]]:
        """Adds messages; gives the number of the first new turn, and the system texts that were not there before."""
        first, system = self._kernel.append(messages)
        self._marks.append(first)
        self._marked.append(time.time())
        if not system:
            return first, system
        new = [text for text in system if text not in self._system]
        self._system.update(dict.fromkeys(new))
        return first, new

    def refresh(self) -> None:
        """Reads what other processes have written to the file since it was read. Costs nothing where nothing was."""
        if self._file is not None and self._file.size_now() != self._file.size:
            with self._lock, self._file.alone():
                self._catch_up()

    def set_state(self, name: str, value: Any) -> None:
        """Keeps a JSON value with the conversation; the last one of a name counts (what compaction made, for example)."""
        with self._lock:
            if self._file is None:
                self._state[name] = value
                return
            with self._file.alone():
                self._catch_up()
                self._state[name] = value
                self._file.pending.append(({"state": name, "value": value, "time": _iso(time.time())}, None))
                self._file.write(self._facts)

    # The file

    @property
    def unsaved(self) -> int:
        return 0 if self._file is None else len(self._file.pending)

    def _facts(self, number: int) -> Facts:
        kernel = self._kernel
        return kernel.tokens(number), kernel.digest(number), kernel.chain(number), kernel.reason(number)

    def _row(self, number: int) -> dict[str, Any]:
        if self._kernel.span(number) is not None:
            self._ensure(number)
        messages, chain = self._kernel.messages(number), self._kernel.chain(number)
        return {"turn": number, "time": self._time(number), "messages": list(messages or ()), "chain": chain}

    def _catch_up(self) -> None:
        """Reads what another process has written since; all of it anew when the file is shorter than it was."""
        assert self._file is not None
        now = self._file.size_now()
        if self._file.pending or now == self._file.size:
            return
        if now > self._file.size:
            self._read_rows()
            return
        front = self._front
        self._clear(self._estimator.name)
        self._read()
        self._front = min(front, self.completed_count)

    def _read(self) -> None:
        assert self._file is not None
        self.problems = []
        self._file.size = 0
        records = self._file.index_records()
        if records and not self._restore(records):
            self._clear(self._estimator.name)
            self._file.distrust_index()
        self._read_rows()

    def _restore(self, records: bytes) -> bool:
        """Takes the turns from the index; False when it is damaged, or is not of this log."""
        assert self._file is not None
        size = RECORD.size + CHECK_BYTES
        spans = RECORD.unpack_from(records)[:2], RECORD.unpack_from(records, len(records) - size)[:2]
        try:
            others = self._kernel.restore(records)
        except InvalidInput:
            return False
        if self._file.size_now() <= spans[1][1]:
            return False
        for number in {0, len(self._kernel) - 1} if len(self._kernel) else ():
            if not self._load(number):
                return False
        for span in others:
            row = self._file.row_at(span)
            if not row or "messages" in row:
                return False
            self._adopt(row)
        self._file.restored(len(records) // size, spans[1][1] + 1)
        return True

    def _read_rows(self) -> None:
        assert self._file is not None
        there = len(self.problems)
        for position, (span, row) in enumerate(self._file.rows(), start=1):
            try:
                is_turn = self._adopt(row)
                self._file.note(span, self._facts(len(self._kernel) - 1) if is_turn else None)
            except InvalidInput as exc:
                self.problems.append(f"row {position} was skipped: {exc}")
        if self._file.skipped:
            self.problems.append(f"{self._file.skipped} torn rows were skipped")
        if len(self.problems) > there:
            self._file.distrust_index()

    def _adopt(self, row: Mapping[str, Any]) -> bool:
        """Takes a row of the file; whether it is a turn."""
        if isinstance(row.get("system"), list):
            self._system.update(dict.fromkeys(text for text in row["system"] if isinstance(text, str)))
            return False
        if isinstance(row.get("state"), str):
            self._state[row["state"]] = row.get("value")
            return False
        if not isinstance(row.get("messages"), list) or not row["messages"]:
            raise InvalidInput("it is no turn")
        number = len(self._kernel)
        written = row.get("chain")
        if not self._kernel.adopt(row["messages"], written if isinstance(written, str) else ""):
            self.problems.append(f"turn {number} does not follow the one before it: a turn is missing or changed")
        self._times[number] = str(row.get("time", ""))
        return True

    def _load(self, number: int) -> bool:
        """Reads the messages of a turn that came from the index; False when they are not those that were written."""
        assert self._file is not None
        span = self._kernel.span(number)
        if span is None:
            return True
        row = self._file.row_at(span)
        try:
            loaded = isinstance(row.get("messages"), list) and self._kernel.fill(number, row["messages"])
        except InvalidInput:
            return False
        if loaded:
            self._times[number] = str(row.get("time", ""))
        return loaded

    def _ensure(self, number: int) -> None:
        """Makes sure that the messages of a turn are in memory. Raises StorageError when the file has lost them."""
        if self._load(number):
            return
        assert self._file is not None
        self._clear(self._estimator.name)
        self._file.distrust_index()
        self._file.size, self.problems = 0, ["the file was changed behind its index"]
        self._read_rows()
        if number >= len(self._kernel):
            raise StorageError(f"turn {number} of session {self.id!r} is gone from {self.path}")

    def save_as_new(self, home: Path | str | None = None) -> Path:
        """Writes all turns to a new file under ``home``, which appears whole or not at all; for imports.

        Raises:
            InvalidInput: there is a session of this id already.
            StorageError: the file could not be written.
        """
        from rune.context.session_file import write_new

        path = session_path(self.id, home)
        try:
            write_new(path, self._kernel.key, self._rows())
        except FileExistsError:
            raise InvalidInput(
                f"there is a session {self.id!r} already: delete it or import under another id"
            ) from None
        except OSError as exc:
            raise StorageError(f"session {self.id!r} could not be written to {path}: {exc}") from exc
        return path

    def _rows(self) -> Iterator[tuple[dict[str, Any], Facts | None]]:
        """The conversation as rows of its file, with the facts of those that are turns."""
        now = _iso(time.time())
        if self._system:
            yield {"system": list(self._system), "time": now}, None
        for number in range(len(self._kernel)):
            yield self._row(number), self._facts(number)
        for name, value in self._state.items():
            yield {"state": name, "value": value, "time": now}, None

    # Reading

    def turn(self, number: int) -> Turn:
        """One turn, by its number. Raises InvalidInput when there is none, StorageError when the file has lost it."""
        with self._lock:
            found = self._made.get(number)
            if found is None:
                if self._kernel.span(number) is not None:
                    self._ensure(number)
                messages = self._kernel.messages(number)
                assert messages is not None
                incomplete = self._kernel.reason(number)
                found = self._made[number] = Turn.of_normal(
                    messages,
                    incomplete=incomplete,
                    number=number,
                    time=self._time(number),
                    chain=self._kernel.chain(number),
                    tokens={} if incomplete else {self._estimator.key: self._kernel.tokens(number)},
                )
            return found

    def _time(self, number: int) -> str:
        known = self._times.get(number)
        return _iso(self._marked[bisect_right(self._marks, number) - 1]) if known is None else known

    def _some(self, numbers: Sequence[int]) -> list[Turn]:
        return [self.turn(number) for number in numbers]

    @property
    def turns(self) -> Sequence[Turn]:
        """All turns, incomplete ones too. Reads like a tuple; a turn is made (or read) when it is asked for."""
        return TurnRange(self.turn, range(len(self._kernel)))

    @property
    def system(self) -> tuple[str, ...]:
        """Texts of the system messages that came with the messages, each once."""
        return tuple(self._system)

    @property
    def state(self) -> dict[str, Any]:
        """What ``set_state`` kept, by name."""
        return dict(self._state)

    @property
    def estimator(self) -> str:
        """Name of the estimator that measures the turns."""
        return self._estimator.name

    def state_of(self, name: str) -> Any:
        """What ``set_state`` kept under a name, or None; not to be changed."""
        return self._state.get(name)

    @property
    def chain(self) -> str:
        """Digest that covers all turns ("" for none)."""
        with self._lock:
            return self._kernel.chain(len(self._kernel) - 1) if len(self._kernel) else ""

    @property
    def tokens(self) -> int:
        """Tokens of all completed turns."""
        return self._kernel.total()

    def completed_turns(self, last: int | None = None) -> list[Turn]:
        """The completed turns, or the ``last`` so many of them."""
        return self._last(last, complete=True)

    def incomplete_turns(self, last: int | None = None) -> list[Turn]:
        """The turns that are never offered, or the ``last`` so many of them; ``turn.incomplete`` says why."""
        return self._last(last, complete=False)

    def _last(self, many: int | None, *, complete: bool) -> list[Turn]:
        with self._lock:
            start = 0 if many is None else max(0, self._kernel.count(complete) - max(0, many))
            return self._some(self._kernel.numbers(start, complete))

    @property
    def completed_count(self) -> int:
        return self._kernel.count(True)

    @property
    def incomplete_count(self) -> int:
        return self._kernel.count(False)

    def turns_from(self, number: int) -> list[Turn]:
        """The turns from ``number`` on, incomplete ones too."""
        return self._some(range(max(0, number), len(self._kernel)))

    def tokens_from(self, number: int) -> int:
        """Tokens of the completed turns from turn ``number`` on; costs nothing for the turns before it."""
        with self._lock:
            return self._kernel.total() - self._kernel.prefix(min(max(0, number), len(self._kernel)))

    def chain_at(self, number: int) -> str | None:
        """The chain digest up to turn ``number``, or None when there is no such turn."""
        with self._lock:
            return self._kernel.chain(number) if 0 <= number < len(self._kernel) else None

    def messages(self) -> list[Message]:
        """All messages of all turns, as copies; without system messages."""
        return [message for turn in self.turns for message in turn]

    def window(self, budget: int) -> list[Message]:
        """The messages of the newest completed turns that fit ``budget`` tokens together, as copies."""
        with self._lock:
            start = self._kernel.newest_fitting(budget)
            found = self._kernel.window(start)
            if found is not None:
                return found
            for number in range(start, len(self._kernel)):
                self._ensure(number)
            return self.window(budget)

    def whatif(self, budget: int) -> dict[str, int]:
        """What ``window(budget)`` would give, in numbers: turns and tokens in it and out of it."""
        with self._lock:
            start = self._kernel.newest_fitting(budget)
            incomplete = self._kernel.numbers(0, False)
            turns = len(self._kernel) - start - (len(incomplete) - bisect_left(incomplete, start))
            tokens = self.tokens_from(start)
            return {
                "budget": budget,
                "turns": turns,
                "tokens": tokens,
                "dropped_turns": self.completed_count - turns,
                "dropped_tokens": self.tokens - tokens,
            }

    # The front of offered history in the ``cache`` layout

    def offered_with_steady_front(self) -> list[Turn]:
        """The completed turns from the front on; the front moves only when 16 turns stand behind it, then to the last 8."""
        with self._lock:
            self._front = front_of_history(self.completed_count, self._front)
            return self._some(self._kernel.numbers(self._front))

    def move_front(self, kept: int) -> None:
        """Puts the front before the last ``kept`` completed turns; it never goes back."""
        with self._lock:
            self._front = max(self._front, self.completed_count - max(0, kept))

    def __repr__(self) -> str:
        return f"<Conversation {self.id}: {len(self._kernel)} turns, {self.tokens} tokens>"
