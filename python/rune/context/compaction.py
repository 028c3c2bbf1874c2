"""Compaction: old turns of a long history give way to one rolling summary, after their raw text is on disk for good.

It comes due when the measured history is over ``COMPACTION_THRESHOLD`` of the window (strictly, in integers). Then, in this
order: archive, summarise, note. A process that dies in between leaves a session as it was, with perhaps an archived event too
many. Nothing of the session's own turns is ever removed: the note says which of them the summary stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from rune.context.conversation import Conversation
from rune.context.summary import Piece, cleaned, pieces, request, summary_pair
from rune.context.turns import Turn, message_tokens
from rune.errors import RuneError, StorageError
from rune.kernels import EstimatorLike, get_estimator
from rune.messages import Message
from rune.subsystem_health import record_failure

__all__ = [
    "KEEP_TURNS",
    "PENDING_APPROVAL",
    "PIECES_MAX",
    "Archive",
    "Compacted",
    "Outcome",
    "Stopped",
    "Summary",
    "compact",
    "compacted",
    "is_due",
]

KEEP_TURNS = 5
"""The newest completed turns, which stay word for word."""

PIECES_MAX = 8
"""Calls of the summariser in one turn. A history that needs more (an import) is caught up with over the next turns."""

PENDING_APPROVAL = "pending_approval"
"""Name of the session's state while a turn of it waits for an approval."""

_NOTE = "compaction"
_RETRY = "compaction_retry"


class Archive(Protocol):
    """Where raw turns go first. ``append`` returns when they are on disk, or raises StorageError."""

    def append(self, session: str, turns: list[Turn], /) -> None: ...


@dataclass(frozen=True, slots=True)
class Summary:
    """One answer of the summariser: its text, why it ended ("length": it was cut), tokens, and milliseconds."""

    text: str
    done_reason: str = "stop"
    prompt_tokens: int = 0
    output_tokens: int = 0
    duration_ms: float = 0.0


Summarise = Callable[[list[Message]], Summary]
"""Asks a model, without tools and with ``num_predict`` 256. Raises a RuneError when there is no answer."""


class Stopped(Exception):
    """The run was cancelled while the summariser worked: no failure, and the session stays as it was."""


class Compacted(NamedTuple):
    """What a session's summary stands for: all turns before number ``through``. ``pair`` is it as messages."""

    through: int
    summary: str
    pair: list[Message]


@dataclass(slots=True)
class Outcome:
    """What became of a check. ``check`` goes into the trace's ``ext``; ``event`` into its ``compaction``, None for none."""

    check: dict[str, Any]
    event: dict[str, Any] | None = None


@dataclass(slots=True)
class _Spent:
    calls: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    duration_ms: float = 0.0
    cut: bool = False
    problem: str = ""
    failed: str = ""
    done: list[Piece] = field(default_factory=list)

    def add(self, summary: Summary) -> None:
        self.calls += 1
        self.prompt_tokens += summary.prompt_tokens
        self.output_tokens += summary.output_tokens
        self.duration_ms += summary.duration_ms


def is_due(tokens: int, window: int) -> bool:
    """Whether a history of so many tokens is over 0.8 of the window; integers, as 0.8 has no exact float."""
    return 5 * tokens > 4 * window


def compacted(conversation: Conversation) -> Compacted | None:
    """The summary that stands at the head of a history, or None. One that belongs to other turns does not count."""
    note = conversation.state_of(_NOTE)
    if not isinstance(note, dict):
        return None
    through, summary = note.get("through"), note.get("summary")
    if not isinstance(through, int) or not isinstance(summary, str) or not summary:
        return None
    if conversation.chain_at(through - 1) != note.get("chain"):
        return None
    return Compacted(through, summary, summary_pair(summary, through))


def compact(
    conversation: Conversation,
    *,
    window: int,
    summarise: Summarise,
    archive: Archive,
    summary_window: int | None = None,
    estimator: EstimatorLike | None = None,
) -> Outcome:
    """Compacts the history when that is due; never raises for a failure of summariser or archive.

    Args:
        window: the window in tokens that the threshold is taken of.
        summary_window: the window that the summariser has; ``window`` when None.
        estimator: measures what the summariser is sent; ``script`` when None, which does not read low.

    A failure is a T2 (``history_archive``, ``history_compaction``); after the n-th in a row the next attempt waits for
    2^(n-1) turns. KeyboardInterrupt and ``Stopped`` pass, and leave the session as it was.
    """
    before = compacted(conversation)
    earlier = before.through if before else 0
    measure = get_estimator(conversation.estimator)
    pair_tokens = message_tokens(before.pair, measure) if before else 0
    tokens = conversation.tokens_from(earlier) + pair_tokens
    check: dict[str, Any] = {"tokens": tokens, "threshold": 4 * window // 5, "due": is_due(tokens, window)}
    if not check["due"]:
        return Outcome(check)
    reason = _not_now(conversation)
    kept = [turn for turn in conversation.turns_from(earlier) if turn.complete][-KEEP_TURNS:]
    old = conversation.turns_from(earlier)[: kept[0].number - earlier] if kept else []
    complete = [turn for turn in old if turn.complete]
    if not reason and not complete:
        reason = f"there are no turns before the last {KEEP_TURNS}"
    if reason:
        return Outcome({**check, "not_compacted": reason})

    try:
        _archive(conversation, archive)
    except (StorageError, OSError) as exc:
        _failed(conversation, "history_archive", exc)
        return Outcome({**check, "not_compacted": f"the raw history could not be archived: {exc}"[:300]})

    estimator = estimator if estimator is not None else get_estimator("script")
    found = pieces(complete, window=summary_window or window, estimator=estimator, limit=PIECES_MAX)
    summary, spent = _summarise(found, before.summary if before else "", summarise)
    turns = sum(piece.turns for piece in spent.done)
    through = complete[turns - 1].number + 1 if turns else earlier
    pair = summary_pair(summary, through)
    covered = conversation.tokens_from(earlier) - conversation.tokens_from(through) + pair_tokens
    after = tokens - covered + message_tokens(pair, measure)
    if not spent.failed and after >= tokens:
        spent.failed = f"no progress: a summary of {message_tokens(pair, measure)} tokens for {covered}"
    event = {
        "outcome": "failed" if spent.failed else "compacted",
        "reason": spent.failed or spent.problem,
        "turns": turns,
        "through": through,
        "kept_turns": len(kept),
        "turns_left": len(complete) - turns,
        "turns_shortened": sum(piece.shortened for piece in spent.done),
        "tokens_before": tokens,
        "tokens_after": tokens if spent.failed else after,
        "summary_cut": spent.cut,
        "summariser_calls": spent.calls,
        "summariser_prompt_tokens": spent.prompt_tokens,
        "summariser_output_tokens": spent.output_tokens,
        "duration_ms": spent.duration_ms,
    }
    if spent.failed:
        _failed(conversation, "history_compaction", spent.failed)
        return Outcome({**check, "not_compacted": spent.failed}, event)
    note = {"through": through, "chain": conversation.chain_at(through - 1), "summary": summary, "cut": spent.cut}
    conversation.set_state(_NOTE, note)
    if conversation.state_of(_RETRY):
        conversation.set_state(_RETRY, None)
    return Outcome(check, event)


def _not_now(conversation: Conversation) -> str:
    """Why a history that is due is left alone this time, or ""."""
    if conversation.state_of(PENDING_APPROVAL):
        return "a turn of this session waits for an approval"
    retry = conversation.state_of(_RETRY) or {}
    wait = int(retry.get("next", 0)) - conversation.completed_count
    return f"{retry['failures']} failures in a row: tried again in {wait} turns" if wait > 0 else ""


def _failed(conversation: Conversation, subsystem: str, cause: object) -> None:
    """Records a failure, and when to try again."""
    record_failure(subsystem, cause if isinstance(cause, BaseException) else str(cause), tier=2)
    failures = int((conversation.state_of(_RETRY) or {}).get("failures", 0)) + 1
    wait = 2 ** min(failures - 1, 20)
    conversation.set_state(_RETRY, {"failures": failures, "next": conversation.completed_count + wait})


_ARCHIVED = "archived"


def _archive(conversation: Conversation, archive: Archive) -> None:
    """Appends the raw turns that are not archived yet, all of them, and notes how far it came."""
    done = conversation.state_of(_ARCHIVED) or {}
    through = int(done.get("through", 0))
    if conversation.chain_at(through - 1) != done.get("chain"):
        through = 0  # it belongs to other turns
    new = conversation.turns_from(through)
    if new:
        archive.append(conversation.id, new)
        conversation.set_state(_ARCHIVED, {"through": new[-1].number + 1, "chain": new[-1].chain})


def _summarise(found: list[Piece], summary: str, summarise: Summarise) -> tuple[str, _Spent]:
    """The rolling summary over the pieces, each with the one before it. What came before a failure counts."""
    spent = _Spent()
    for piece in found:
        try:
            answer = summarise(request(piece, summary))
        except RuneError as exc:
            problem = f"the summariser failed: {type(exc).__name__}: {exc}"[:300]
        else:
            spent.add(answer)
            text = cleaned(answer.text)
            if text:
                summary = text
                spent.cut = answer.done_reason == "length"
                spent.done.append(piece)
                continue
            problem = "the summariser gave no text"
        spent.problem = problem
        if not spent.done:
            spent.failed = problem
        break
    return summary, spent
