"""One stream against one server: every turn through the operator, and what must be true of each.

The operator, its broker, runtime and transport are the real ones, and the server is spoken to over HTTP. What a model would
say is what was recorded: its calls are made, and the tools give back the recorded results.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from replay.server import MODEL, Call, CountingServer
from replay.streams import Recorded, RecordedTurn, Stream
from rune import RuneOperator, Settings
from rune.context.blocks import ContributionBlock
from rune.context_broker import ContextBroker
from rune.errors import ContextOverflowError
from rune.kernels import get_estimator
from rune.operator_run import OperatorResponse
from rune.runtime.num_ctx import FIRST_STEP
from rune.runtime.tool_executor import Tool
from rune.transports.http import Retry
from rune.transports.ollama import OllamaChatTransport

__all__ = ["LiteralOperator", "Row", "Turned", "add", "operator_for", "replay", "settings_for", "tools_of", "turned"]

STEPS_MAX = 100


@dataclass
class Row:
    """Sums over the turns of a stream at one window, with one tokenizer, against one server.

    ``over_whole`` and ``lost_fitting`` must be 0. ``over`` are turns with a prompt longer than the window that was answered all
    the same, cut; ``over_by`` their verdicts. ``with_history`` are the turns that an earlier one could be sent with.
    ``lost_fitting`` are those that lost all of it although the newest turn would have fitted beside what was sent, by the
    estimate that decided; ``lost_room`` the same by true tokens and the plain budget of the window.
    """

    turns: int = 0
    answered: int = 0
    calls: int = 0
    refused_calls: int = 0
    refused_answered: int = 0
    overflows: dict[str, int] = field(default_factory=dict)
    over: int = 0
    over_by: dict[str, int] = field(default_factory=dict)
    over_whole: int = 0
    with_history: int = 0
    lost: int = 0
    lost_fitting: int = 0
    lost_room: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    stopped: int = 0
    cut_replies: int = 0
    results_made_way: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    literal_lost: int = 0
    literal_over: int = 0
    literal_overflows: int = 0
    literal_history: int = 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Turned:
    """What came of one turn."""

    calls: list[Call]
    response: OperatorResponse
    completed: int
    kept: int
    lost_fitting: bool
    lost_room: bool

    @property
    def overflow(self) -> str:
        """Which part found that it does not fit ("broker", "server", "tool_loop"), or ""."""
        exc = self.response.exception
        return exc.origin if isinstance(exc, ContextOverflowError) else ""

    @property
    def verdict(self) -> str:
        return (self.response.verdict or {}).get("kind", "none")

    @property
    def over(self) -> bool:
        """Whether a prompt that was longer than the window was answered."""
        return any(call.over and not call.refused for call in self.calls)


class _Anything(msgspec.Struct):
    """Stands where a tool has a type for its arguments; recorded ones are taken as they are."""


class RecordedTool(Tool):
    """A tool that takes whatever arguments were recorded and gives back the next recorded result."""

    __slots__ = ()

    def check(self, arguments: Any) -> dict[str, Any]:
        return {"arguments": arguments}


def tools_of(stream: Stream, results: deque[str]) -> dict[str, Tool]:
    """The tools of a stream; a call takes the next of ``results``."""

    def give(arguments: Any) -> str:
        return results.popleft() if results else "(The recording holds no result here.)"

    def made(name: str, names: tuple[str, ...]) -> Tool:
        properties = {argument: {"type": "string"} for argument in names}
        parameters = {"type": "object", "properties": properties}
        return RecordedTool(name, f"The tool {name} of the recorded sessions.", give, parameters, _Anything)

    return {name: made(name, names) for name, names in stream.calls.items()}


class LiteralOperator(RuneOperator):
    """History as the specification's words have it: the last 8 turns as one block that is admitted whole or not at all."""

    def _conversation_messages(self, task: Any, session: Any) -> ContributionBlock | None:
        block = super()._conversation_messages(task, session)
        if block is None or not block.parts:
            return None
        return ContributionBlock(messages=[message for turn in session.completed_turns(8) for message in turn])


def settings_for(home: Path) -> Settings:
    """What a user has who set nothing, without memory (it would remember the stream) and with room for long tool loops."""
    return Settings.load(home, env={}, memory_off=True, compaction=False, max_steps=STEPS_MAX)


@contextlib.contextmanager
def operator_for(
    stream: Stream, server: CountingServer, kind: type[RuneOperator] = RuneOperator
) -> Iterator[tuple[RuneOperator, Callable[[RecordedTurn], None]]]:
    """An operator in a home of its own, and a function that lays a turn's recording before server and tools."""
    results: deque[str] = deque()

    def lay(turn: RecordedTurn) -> None:
        server.begin(turn.answers)
        results.clear()
        results.extend(turn.results)

    with tempfile.TemporaryDirectory(prefix="rune-replay-") as folder:
        home = Path(folder) / "home"
        transport = OllamaChatTransport(server.url, api_key="", allow_remote=False, retry=Retry(attempts=1))
        operator = kind(transport, MODEL, home, settings_for(home), tools=tools_of(stream, results))
        try:
            yield operator, lay
        finally:
            operator.close()
            transport.close()


def turned(
    operator: RuneOperator,
    server: CountingServer,
    session: Recorded,
    turn: RecordedTurn,
    lay: Callable[[RecordedTurn], None],
) -> Turned:
    """Runs one turn; the session is left as it was."""
    lay(turn)
    response = operator.run(turn.asked, session, "replay")
    trace = response.broker_trace or {}
    history = (trace.get("ext") or {}).get("history") or {}
    completed, kept = session.completed_count, int(history.get("admitted") or 0)
    lost_all = bool(completed and not kept and server.calls)
    return Turned(
        calls=list(server.calls),
        response=response,
        completed=completed,
        kept=kept,
        lost_fitting=lost_all and _fits_by_estimate(trace, session, server),
        lost_room=lost_all and _fits_by_count(server, session),
    )


def _fits_by_estimate(trace: Mapping[str, Any], session: Recorded, server: CountingServer) -> bool:
    """Whether the newest turn would have fitted beside what was admitted, as the estimator of the admission measures it."""
    name = str(trace["ext"]["estimator"]).partition("/")[0].partition("-")[0]
    newest = session.completed_turns(1)[0]
    return trace["admitted_total"] + newest.tokens(get_estimator(name, server.vocabulary)) <= trace["budget"]


def _fits_by_count(server: CountingServer, session: Recorded) -> bool:
    """Whether the newest turn would have fitted the budget of the window beside system and question, by true tokens."""
    sent = server.calls[0]
    question = max(i for i, message in enumerate(sent.messages) if message["role"] == "user")
    system = [message for message in sent.messages if message["role"] == "system"]
    with_newest = [*system, *session.completed_turns(1)[0], sent.messages[question]]
    return server.counter.prompt(with_newest, sent.tools) <= ContextBroker.budget(server.window).budget


def add(row: Row, found: Turned) -> None:
    """Adds a turn to the sums."""
    response = found.response
    row.turns += 1
    row.answered += response.success
    row.calls += len(found.calls)
    refused = sum(call.refused for call in found.calls)
    row.refused_calls += refused
    row.refused_answered += bool(refused and response.success)
    row.results_made_way += len(((response.trace or {}).get("ext") or {}).get("tool_loop", {}).get("dropped", ()))
    row.cut_replies += response.done_reason == "length"
    _count(row.verdicts, found.verdict)
    if found.overflow:
        _count(row.overflows, found.overflow)
    elif response.done_reason in ("step_limit", "loop"):
        row.stopped += 1
    elif not response.success:
        _count(row.failures, response.error or "without a word")
    if found.over:
        row.over += 1
        _count(row.over_by, found.verdict)
        row.over_whole += found.verdict == "whole"
    if found.completed and found.calls:
        row.with_history += 1
        row.lost += not found.kept
        row.lost_fitting += found.lost_fitting
        row.lost_room += found.lost_room


def _count(into: dict[str, int], name: str) -> None:
    into[name] = into.get(name, 0) + 1


def replay(
    stream: Stream,
    server: CountingServer,
    *,
    turns: Callable[[int], bool] = lambda number: True,
    told: Callable[[int], None] = lambda number: None,
    kind: type[RuneOperator] = RuneOperator,
) -> Row:
    """Replays a stream. ``turns`` says which turns are asked (all are in the history of later ones); ``told`` hears of each."""
    row = Row()
    session = Recorded("replay")
    session.grow({"role": "system", "content": text} for text in stream.system)
    with (
        operator_for(stream, server, kind) as (operator, lay),
        operator_for(stream, server, LiteralOperator) as (plain, _),
    ):
        for number, turn in enumerate(stream.turns):
            if turns(number):
                add(row, turned(operator, server, session, turn, lay))
                _add_literal(row, plain, server, session, turn)
                told(number)
            session.grow(turn.messages)
    return row


def _add_literal(row: Row, plain: RuneOperator, server: CountingServer, session: Recorded, turn: RecordedTurn) -> None:
    """The same turn by the specification's words: one block of history, a fixed ``num_ctx`` of 8192, no question to refuse."""
    try:
        capsule, trace = plain.plan(turn.asked, session, window=server.window, model=MODEL)
    except ContextOverflowError:
        row.literal_overflows += 1
        return
    row.literal_history += bool(session.completed_count)
    row.literal_lost += bool(session.completed_count and "history" not in trace["admitted"])
    schemas = [plain.tools[name].schema() for name in plain.tools]
    sent = server.counter.prompt(capsule.to_messages(), schemas)
    row.literal_over += sent > min(server.window, FIRST_STEP)


def totals(rows: Mapping[str, Row]) -> Counter[str]:
    """The sums that must be 0, over all rows."""
    return Counter({name: sum(getattr(row, name) for row in rows.values()) for name in ("over_whole", "lost_fitting")})
