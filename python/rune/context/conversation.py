"""A conversation: its turns in order, what they measure, and a file that keeps them.

Every turn is kept as it came. Only completed turns are ever offered to a model: a call without its result, or a question
without an answer, makes servers refuse the request for good. Incomplete turns stay visible with the reason.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rune.context.layout import front_of_history
from rune.context.turns import Turn, measured_items
from rune.errors import InvalidInput, StorageError
from rune.kernels import EstimatorLike, Ledger, digest, get_estimator
from rune.messages import Message, normalise, split_system, split_turns
from rune.paths import check_session_id, private_dir, session_path
from rune.subsystem_health import record_failure

if TYPE_CHECKING:
    from pathlib import Path

    from rune.storage.file_lock import FileLock
    from rune.storage.log import DurableLog

__all__ = ["Conversation"]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _last(turns: list[Turn], count: int | None) -> list[Turn]:
    return turns[max(0, len(turns) - max(0, count)) :] if count is not None else list(turns)


def _row(turn: Turn) -> dict[str, Any]:
    return {"turn": turn.number, "time": turn.time, "messages": list(turn.uncopied), "chain": turn.chain}


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
        self._log: DurableLog | None = None
        self._appending: FileLock | None = None
        self._size = 0  # of the file when last read or written
        self._pending: list[dict[str, Any]] = []
        self._clear(estimator)

    def _clear(self, estimator: str) -> None:
        self._estimator = get_estimator(estimator)
        self._ledger = Ledger([estimator])
        self._turns: list[Turn] = []
        self._completed: list[Turn] = []
        self._incomplete: list[Turn] = []
        self._system: dict[str, None] = {}
        self._state: dict[str, Any] = {}
        self._chain = ""
        self._front = 0

    @classmethod
    def open(cls, id: str, home: Path | str | None = None, *, estimator: str = "chars4") -> Conversation:
        """The conversation of that id under ``home`` (the Rune home when None); empty when there is no file yet.

        Torn rows are skipped and told in ``problems``.

        Raises:
            InvalidInput: an id that cannot name a file.
            StorageError: the file is there and cannot be read.
        """
        from rune.storage.file_lock import FileLock
        from rune.storage.log import DurableLog

        conversation = cls(id, estimator=estimator)
        conversation.path = session_path(id, home)
        conversation._log = DurableLog(conversation.path, backups=None, fsync=True)
        conversation._appending = FileLock(
            conversation.path.with_name(f"{conversation.path.name}.turns.lock"), keep_open=False
        )
        conversation._read()
        return conversation

    @classmethod
    def from_messages(cls, id: str, messages: Iterable[Any], *, estimator: str = "chars4") -> Conversation:
        """A conversation in memory from chat messages (OpenAI's or Ollama's form), cut into turns.

        Raises InvalidInput for a message without a normal form; names its position.
        """
        conversation = cls(id, estimator=estimator)
        conversation.append(messages)
        return conversation

    # Growing

    def append(self, messages: Iterable[Any]) -> list[Turn]:
        """Adds the messages of a turn and returns it (several, where the messages are of several turns).

        System messages go to ``system``, thinking is left out. An incomplete turn is kept, marked, and never offered. With a
        file, a turn is on disk when this returns, unless ``unsaved`` says otherwise: a failed write is recorded and tried
        again on the next append, and the conversation goes on in memory.

        Raises InvalidInput for messages without a normal form; then nothing was added.
        """
        system, rest = split_system(normalise(messages, keep_thinking=False))
        new_turns = [Turn(turn) for turn in split_turns(rest)]
        with self._lock, self._alone():
            self._catch_up()
            now = _now()
            rows: list[dict[str, Any]] = []
            new = [text for text in system if text not in self._system]
            if new:
                self._system.update(dict.fromkeys(new))
                rows.append({"system": new, "time": now})
            added = [self._add(turn, now) for turn in new_turns]
            rows += map(_row, added)
            if self._log is not None:
                self._pending += rows
                self._write()
            return added

    def refresh(self) -> None:
        """Reads what other processes have written to the file since it was read. Costs nothing where nothing was."""
        with self._lock, self._alone():
            self._catch_up()

    def set_state(self, name: str, value: Any) -> None:
        """Keeps a JSON value with the conversation; the last one of a name counts (what compaction made, for example)."""
        with self._lock, self._alone():
            self._catch_up()
            self._state[name] = value
            if self._log is not None:
                self._pending.append({"state": name, "value": value, "time": _now()})
                self._write()

    def _add(self, turn: Turn, time: str, chain: str = "") -> Turn:
        content = turn.canonical()
        turn.time = time
        turn.number = len(self._turns)
        turn.chain = self._chain = chain or digest(self._chain + digest(content))
        # An incomplete turn measures nothing: it is never offered, and sums over the rest stay sums over neighbours.
        self._ledger.append(measured_items(turn.uncopied) if turn.complete else [], content)
        self._turns.append(turn)
        (self._completed if turn.complete else self._incomplete).append(turn)
        return turn

    # The file

    @property
    def unsaved(self) -> int:
        return len(self._pending)

    def _write(self) -> None:
        assert self._log is not None
        try:
            while self._pending:
                self._log.append(self._pending[0])
                del self._pending[0]
        except StorageError as exc:
            record_failure("storage.degraded", exc, tier=2)
        self._size = self._file_size()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps other processes from appending meanwhile, so that every turn follows the one that it was written after."""
        with ExitStack() as stack:
            if self._appending is not None:
                try:
                    private_dir(self._appending.path.parent)
                    stack.enter_context(self._appending)
                except (OSError, StorageError):
                    pass  # the write itself will fail as well, and says why
            yield

    def _file_size(self) -> int:
        try:
            return self.path.stat().st_size if self.path is not None else 0
        except OSError:
            return 0

    def _catch_up(self) -> None:
        """Reads the file again when another process has written to it."""
        if self._log is not None and not self._pending and self._file_size() != self._size:
            front = self._front
            self._clear(self._estimator.name)
            self._read()
            self._front = min(front, len(self._completed))

    def _read(self) -> None:
        assert self._log is not None
        self.problems = []
        before = ""
        self._size = self._file_size()
        for position, row in enumerate(self._log.read(), start=1):
            try:
                before = self._adopt(row, before)
            except InvalidInput as exc:
                self.problems.append(f"row {position} was skipped: {exc}")
        if self._log.skipped:
            self.problems.append(f"{self._log.skipped} torn rows were skipped")

    def _adopt(self, row: Mapping[str, Any], before: str) -> str:
        """Takes a row of the file; ``before`` is the chain digest of the turn before, as it was written."""
        if isinstance(row.get("system"), list):
            self._system.update(dict.fromkeys(text for text in row["system"] if isinstance(text, str)))
            return before
        if isinstance(row.get("state"), str):
            self._state[row["state"]] = row.get("value")
            return before
        if not isinstance(row.get("messages"), list) or not row["messages"]:
            raise InvalidInput("it is no turn")
        turn = Turn(row["messages"])
        written = row.get("chain")
        chain = digest(before + digest(turn.canonical()))
        if isinstance(written, str) and written and written != chain:
            self.problems.append(
                f"turn {len(self._turns)} does not follow the one before it: a turn is missing or changed"
            )
            chain = written
        return self._add(turn, str(row.get("time", "")), chain).chain

    def save_as_new(self, home: Path | str | None = None) -> Path:
        """Writes all turns to a new file under ``home``, which appears whole or not at all; for imports.

        Raises:
            InvalidInput: there is a session of this id already.
            StorageError: the file could not be written.
        """
        from rune.storage.log import DurableLog

        path = session_path(self.id, home)
        draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
        log = DurableLog(draft, backups=None)
        try:
            for row in self._rows():
                log.append(row)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            os.link(draft, path)  # unlike a rename it does not replace a file that appeared meanwhile
        except FileExistsError:
            raise InvalidInput(
                f"there is a session {self.id!r} already: delete it or import under another id"
            ) from None
        except OSError as exc:
            raise StorageError(f"session {self.id!r} could not be written to {path}: {exc}") from exc
        finally:
            log.close()
            for leftover in draft.parent.glob(draft.name + "*"):
                leftover.unlink(missing_ok=True)
        return path

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The conversation as rows of its file."""
        if self._system:
            yield {"system": list(self._system), "time": _now()}
        yield from map(_row, self._turns)
        for name, value in self._state.items():
            yield {"state": name, "value": value, "time": _now()}

    # Reading

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All turns, incomplete ones too."""
        return tuple(self._turns)

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
        return self._chain

    @property
    def tokens(self) -> int:
        """Tokens of all completed turns."""
        return self._ledger.total()

    def tokens_under(self, estimator: EstimatorLike) -> int:
        """Tokens of all completed turns by another estimator; turns that were measured before are not measured again."""
        return sum(turn.tokens(estimator) for turn in self._completed)

    def completed_turns(self, last: int | None = None) -> list[Turn]:
        """The completed turns, or the ``last`` so many of them."""
        return _last(self._completed, last)

    def incomplete_turns(self, last: int | None = None) -> list[Turn]:
        """The turns that are never offered, or the ``last`` so many of them; ``turn.incomplete`` says why."""
        return _last(self._incomplete, last)

    @property
    def completed_count(self) -> int:
        return len(self._completed)

    @property
    def incomplete_count(self) -> int:
        return len(self._incomplete)

    def turns_from(self, number: int) -> list[Turn]:
        """The turns from ``number`` on, incomplete ones too."""
        return self._turns[max(0, number) :]

    def tokens_from(self, number: int) -> int:
        """Tokens of the completed turns from turn ``number`` on; costs nothing for the turns before it."""
        with self._lock:
            return self._ledger.total() - self._ledger.prefix(min(max(0, number), len(self._turns)))

    def chain_at(self, number: int) -> str | None:
        """The chain digest up to turn ``number``, or None when there is no such turn."""
        return self._turns[number].chain if 0 <= number < len(self._turns) else None

    def messages(self) -> list[Message]:
        """All messages of all turns, as copies; without system messages."""
        return [message for turn in self._turns for message in turn]

    def _newest(self, budget: int) -> list[Turn]:
        with self._lock:
            return [turn for turn in self._turns[self._ledger.newest_fitting(budget) :] if turn.complete]

    def window(self, budget: int) -> list[Message]:
        """The messages of the newest completed turns that fit ``budget`` tokens together."""
        return [message for turn in self._newest(budget) for message in turn]

    def whatif(self, budget: int) -> dict[str, int]:
        """What ``window(budget)`` would give, in numbers: turns and tokens in it and out of it."""
        kept = self._newest(budget)
        tokens = sum(turn.tokens(self._estimator) for turn in kept)
        return {
            "budget": budget,
            "turns": len(kept),
            "tokens": tokens,
            "dropped_turns": len(self._completed) - len(kept),
            "dropped_tokens": self.tokens - tokens,
        }

    # The front of offered history in the ``cache`` layout

    def offered_with_steady_front(self) -> list[Turn]:
        """The completed turns from the front on; the front moves only when 16 turns stand behind it, then to the last 8."""
        with self._lock:
            self._front = front_of_history(len(self._completed), self._front)
            return self._completed[self._front :]

    def move_front(self, kept: int) -> None:
        """Puts the front before the last ``kept`` completed turns; it never goes back."""
        with self._lock:
            self._front = max(self._front, len(self._completed) - max(0, kept))

    def __repr__(self) -> str:
        return f"<Conversation {self.id}: {len(self._turns)} turns, {self.tokens} tokens>"
