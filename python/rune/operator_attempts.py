"""From an assembled turn to an answer: which window to ask for, what to send, and what to do when the server refuses.

A refusal is answered by the next step of ``num_ctx`` where one is allowed, else by one admission with the ``script``
estimator, else by a ``ContextOverflowError`` with the server's numbers. An explicit ``num_ctx`` does not climb. Every attempt
is on record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rune.context_broker import ContextBroker
from rune.errors import BadReply, ContextOverflowError, PromptRefused, RuneError, ServerBusy, TransportError
from rune.messages import Message
from rune.operator_capability import found_tokens, offer_found, withdraw_found
from rune.operator_offer import told_of_tools
from rune.operator_run import Run
from rune.runtime.local_tool_runtime import RunResult
from rune.runtime.num_ctx import NumCtx, choose_num_ctx, next_step, sticky
from rune.runtime.room import Keep, Room, fit
from rune.settings import Settings
from rune.transports.base import ChatReply, Transport, Verdict
from rune.transports.discovery import FALLBACK_WINDOW, Window, resolve_window
from rune.transports.measure import chars4_tokens, safe_tokens
from rune.transports.verdict import halved_count

__all__ = ["REPLY_LEAST", "Allocations", "Attempts", "resolve"]

REPLY_LEAST = 512
"""Tokens of reply below which the safe estimate, which reads high, no longer bounds the reply of a server that refuses."""

ALLOCATED = "/api/ps"
_SCRIPT = "script"


class Allocations:
    """The windows that servers really allocated for the ``num_ctx`` they were sent, as ``/api/ps`` told. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str, int], int] = {}

    def get(self, transport: Transport, model: str, num_ctx: int) -> int | None:
        """The window allocated for this ``num_ctx``, or None when nothing is known."""
        with self._lock:
            return self._found.get((transport.server_key, model, num_ctx))

    def set(self, transport: Transport, model: str, num_ctx: int, window: int) -> None:
        with self._lock:
            self._found[(transport.server_key, model, num_ctx)] = window


def resolve(run: Run, settings: Settings, allocations: Allocations) -> Window:
    """The window to budget against, lowered by what the server was seen to allocate. Raises InvalidInput for a bad num_ctx."""
    assert run.transport is not None
    window = resolve_window(run.facts, num_ctx=run.asked.num_ctx, settings_num_ctx=settings.num_ctx)
    sent = window.window if window.explicit is not None else sticky.get(run.transport.server_key, run.model)
    allocated = None if sent is None else allocations.get(run.transport, run.model, sent)
    if sent is None or allocated is None or allocated >= min(sent, window.window):
        return window
    note = f"the server allocates a window of {allocated} for a num_ctx of {sent}; the turn is budgeted against that"
    return replace(window, window=allocated, source=ALLOCATED, note=" · ".join(n for n in (window.note, note) if n))


class Attempts:
    """The attempts of one run. ``run`` holds the capsule to begin with, and afterwards the one that was answered."""

    def __init__(
        self,
        run: Run,
        broker: ContextBroker,
        settings: Settings,
        allocations: Allocations,
        watch: Callable[[RunResult], None] | None = None,
    ) -> None:
        """``watch`` looks at the result so far before each further call of the tool loop; what it raises ends the attempt."""
        assert (
            run.transport is not None and run.capsule is not None and run.runtime is not None and run.window is not None
        )
        self.run = run
        self.transport = run.transport
        self.capsule = run.capsule
        self.runtime = run.runtime
        self.window = run.window
        self.explicit = run.window.explicit is not None
        self._broker = broker
        self._settings = settings
        self._allocations = allocations
        self._watch = watch
        self._refuses = run.transport.can_refuse() is True
        self._by_script = run.capsule.estimator.key.startswith(_SCRIPT)
        self._loaded: int | None = None
        self._before = sticky.get(run.transport.server_key, run.model)

    def execute(self) -> None:
        """Sends the turn until it is answered.

        Raises:
            ContextOverflowError: the server refused it for good, or the tool loop outgrew its room.
            TransportError: the server failed otherwise.
        """
        self._size()
        while True:
            try:
                self._send()
                break
            except PromptRefused as exc:
                self._climb(exc)
            except (BadReply, ServerBusy) as exc:
                self._step_back(exc)
        if not self.transport.fixed_window and self.run.result.replies:
            self._look_at_allocation()
            if not self.explicit:
                sticky.set(self.transport.server_key, self.run.model, self.run.result.replies[-1].num_ctx)

    # What to ask for

    def _size(self) -> None:
        """Chooses the window, and admits again where the ceiling, or a server that cannot refuse, makes that necessary."""
        if not self.explicit and not self.transport.fixed_window and self._before is None:
            self._loaded = self._ask_loaded()
        messages = self.capsule.to_messages()
        safe = self._safe(messages)
        choice = self._choose(messages, safe=safe)
        if choice.over_ceiling and choice.num_ctx < self.capsule.window and not self.explicit:
            self._readmit_below_the_ceiling(choice)
            messages = self.capsule.to_messages()
            safe = self._safe(messages)
            choice = self._choose(messages, safe=safe)
        doubtful = safe > choice.num_ctx - 1 and (not self._refuses or safe > 2 * choice.num_ctx)
        if doubtful and not self._by_script and self._settings.readmission:
            try:
                self._readmit(window=min(choice.num_ctx, self.capsule.window), estimator=_SCRIPT)
                choice = self._choose()
            except ContextOverflowError:
                if not self._refuses and safe > 2 * choice.num_ctx:
                    raise
                # Perhaps it fits all the same: one server will say so itself, of the other its count will tell.
                self.run.warnings.append(
                    f"the prompt may be too long for the window: {safe} tokens by the safe estimate, {choice.num_ctx} there"
                )
        self.run.choice = choice

    def _choose(
        self,
        messages: Sequence[Message] | None = None,
        *,
        at_least: int | None = None,
        exact: int | None = None,
        safe: int | None = None,
    ) -> NumCtx:
        """``num_ctx`` and ``num_predict`` for the messages (the capsule's when None).

        ``exact`` is a count of the server's, ``safe`` their safe estimate where it is known.
        """
        messages = self.capsule.to_messages() if messages is None else messages
        size = exact if exact is not None else self._safe(messages) if safe is None else safe
        as_sent = self._as_sent()
        fixed = self.explicit or self.transport.fixed_window or as_sent is not None
        window = self.window.window if fixed else min(self.window.window, self.capsule.window)
        choice = choose_num_ctx(
            window=window,
            explicit=window if fixed else None,
            safe_tokens=size,
            num_predict=self.run.asked.num_predict,
            thinking="thinking" in ((self.run.facts and self.run.facts.capabilities) or ()),
            loaded=self._loaded,
            ceiling=self._settings.num_ctx_max,
            sticky=max(self._before or 0, at_least or 0) or None,
        )
        if self.run.asked.num_predict is None and choice.num_predict < REPLY_LEAST and self._refuses and exact is None:
            # Such a server stops at its window by itself; the high estimate would leave the reply a word or two.
            sent = self.runtime.as_sent(messages, self.run.offered)
            spare = choice.num_ctx - 1 - chars4_tokens(sent, self.run.schemas)
            choice = replace(choice, num_predict=max(choice.num_predict, spare))
        return choice if as_sent is None else replace(choice, num_ctx=as_sent, reason="as before")

    def _as_sent(self) -> int | None:
        """The ``num_ctx`` that the server answers with a smaller window: sent all the same, as another would reload the model."""
        if self.window.source != ALLOCATED:
            return None
        if self.window.explicit is not None:
            return min(self.window.explicit, self.window.trained or FALLBACK_WINDOW)
        return self._before

    def _safe(self, messages: Sequence[Message]) -> int:
        vocabulary = None if self.run.facts is None else self.run.facts.vocab_size
        sent = self.runtime.as_sent(messages, self.run.offered)
        return safe_tokens(sent, self.run.schemas, vocab_size=vocabulary)

    # Sending

    def _send(self) -> None:
        run, capsule, choice = self.run, self.capsule, self.run.choice
        assert choice is not None
        attempt: dict[str, Any] = {
            "model": run.model,
            "num_ctx": choice.num_ctx,
            "num_predict": choice.num_predict,
            "reason": choice.reason,
            "window": capsule.window,
            "budget": capsule.budget,
            "estimator": capsule.estimator.key,
            "tokens": capsule.token_count,
            "first_call": len(run.result.replies),
            "outcome": "answered",
        }
        run.attempts.append(attempt)
        run.answered = len(run.result.replies)
        resumed = run.result if run.result.new_messages else None
        told_of_tools(run)
        try:
            self.runtime.run(
                capsule.to_messages(),
                num_ctx=choice.num_ctx,
                num_predict=choice.num_predict,
                tools=lambda: run.offered,  # what was found meanwhile, too
                room=self._room,
                on_event=run.on_event,
                cancel=run.cancel,
                resume=resumed,
                **run.asked.passed,
            )
        except PromptRefused as exc:
            attempt |= {"outcome": "refused", "n_prompt_tokens": exc.n_prompt_tokens, "n_ctx": exc.n_ctx}
            attempt["error"] = str(exc)[:300]
            raise
        except RuneError as exc:
            attempt |= {"outcome": "failed", "error": f"{type(exc).__name__}: {exc}"[:300]}
            raise
        except BaseException as exc:
            attempt |= {"outcome": "failed", "error": type(exc).__name__}
            raise
        finally:
            run.result = self.runtime.result

    def _room(self, given: Sequence[Message], own: Sequence[Message], keep: Keep) -> Room:
        """What of the run's own messages may be sent in its next call, and the window for that."""
        if self._watch is not None:
            self._watch(self.runtime.result)
        capsule, choice = self.capsule, self.run.choice
        assert choice is not None

        offer_found(self.run, capsule.estimator)

        def fitted(messages: Sequence[Message], window: int, budget: int) -> Room:
            estimator = capsule.estimator
            used = capsule.token_count + self.runtime.written_out([*given, *messages], estimator)
            common: dict[str, Any] = {"budget": budget, "window": window, "estimator": estimator}
            found = found_tokens(self.run, estimator)
            try:
                return fit(messages, keep, used=used + found, **common)
            except ContextOverflowError:
                if not withdraw_found(self.run):
                    raise
                return fit(messages, keep, used=used, **common)

        room = fitted(own, capsule.window, capsule.budget)
        chosen = self._choose([*given, *room.messages], at_least=choice.num_ctx)
        if chosen.over_ceiling and chosen.num_ctx < capsule.window:
            within = ContextBroker.budget(chosen.num_ctx)
            narrower = fitted(room.messages, within.window, within.budget)
            room = replace(narrower, dropped=[*room.dropped, *narrower.dropped])
            chosen = self._choose([*given, *room.messages], at_least=choice.num_ctx)
        self.run.choice = replace(chosen, over_ceiling=False)
        return replace(room, num_ctx=chosen.num_ctx, num_predict=chosen.num_predict)

    # After a refusal

    def _climb(self, exc: PromptRefused) -> None:
        """Makes the next attempt another one. Raises ContextOverflowError when there is none to make."""
        choice = self.run.choice
        assert choice is not None
        if self.explicit:
            raise self._refused(exc) from exc
        allocates_less = exc.n_ctx is not None and exc.n_ctx < choice.num_ctx
        if not self.transport.fixed_window and not allocates_less:
            need = exc.n_prompt_tokens
            step = next_step(choice.num_ctx, self.window.window, self._settings.num_ctx_max, need=need)
            if step is not None:
                self.run.choice = self._choose(at_least=step, exact=need)
                return
        if allocates_less and exc.n_ctx is not None and not self.transport.fixed_window:
            self._allocations.set(self.transport, self.run.model, choice.num_ctx, exc.n_ctx)
            self.window = replace(self.window, window=min(exc.n_ctx, self.window.window), source=ALLOCATED)
            self._before = choice.num_ctx
        if self._by_script or not self._settings.readmission:
            raise self._refused(exc) from exc
        before = self.capsule.to_messages()
        try:
            self._readmit(
                window=min(exc.n_ctx or choice.num_ctx, choice.num_ctx, self.capsule.window), estimator=_SCRIPT
            )
        except ContextOverflowError as overflow:
            raise self._refused(exc) from overflow
        if self.capsule.to_messages() == before:
            raise self._refused(exc) from exc
        self.run.choice = self._choose(at_least=choice.num_ctx)

    def _step_back(self, exc: BadReply | ServerBusy) -> None:
        """After a larger window that the server could not load: back to the one that it ran, and admit into that.

        Raises ``exc`` when that is not what happened.
        """
        choice, run = self.run.choice, self.run
        assert choice is not None
        refused = [a["num_ctx"] for a in run.attempts if a["outcome"] == "refused"]
        answered = [reply.num_ctx for reply in run.result.replies]
        ran = max([*refused, *answered, self._before or self._loaded or 0])
        loading = isinstance(exc, BadReply) and (exc.status or 0) >= 500
        if self.explicit or not loading or not 0 < ran < choice.num_ctx:
            raise exc
        run.warnings.append(
            f"the server could not run a window of {choice.num_ctx} ({str(exc)[:200]}); {ran} was taken instead"
        )
        sticky.forget(self.transport.server_key, run.model)
        self._readmit(window=min(ran, self.capsule.window), estimator=_SCRIPT)
        self._before = ran
        self.window = replace(self.window, window=ran)
        run.choice = self._choose()

    def _readmit(self, **room: Any) -> None:
        if self.run.resumed is not None:
            raise self._unchangeable()
        capsule, trace = self._broker.readmit(
            self.capsule, compaction=self.run.compaction, run=_run_data(self.run), **room
        )
        self.capsule = self.run.capsule = capsule
        self.run.broker_trace = trace
        self._by_script = capsule.estimator.key.startswith(_SCRIPT)

    def _readmit_below_the_ceiling(self, choice: NumCtx) -> None:
        try:
            self._readmit(window=choice.num_ctx)
        except ContextOverflowError as exc:
            ceiling = self._settings.num_ctx_max
            if ceiling < self.window.window:
                words = f" The model holds {self.window.window}: RUNE_NUM_CTX_MAX={ceiling} keeps windows below that."
                exc.args = (f"{exc}{words}",)
            raise

    def _refused(self, exc: PromptRefused) -> ContextOverflowError:
        """The refusal as the overflow that it is, with the server's numbers."""
        capsule, choice = self.capsule, self.run.choice
        assert choice is not None
        needs = f"{exc.n_prompt_tokens} tokens" if exc.n_prompt_tokens else "more tokens than it has"
        window = exc.n_ctx or choice.num_ctx
        blocks = [{"name": b.name, "tokens": b.tokens} for b in capsule.blocks if not b.evictable]
        listed = ", ".join(f"{block['name']} {block['tokens']}" for block in blocks)
        larger = "a larger num_ctx" if not self.transport.fixed_window else "a server with a larger window"
        return ContextOverflowError(
            f"The server refused the prompt: it needs {needs}, the window is {window} (estimated: {capsule.token_count} by "
            f"{capsule.estimator.key}). Nothing was cut. Mandatory: {listed}. What would help: shorten the task, {larger}, or "
            f"the estimator script, which does not read low.",
            window=capsule.window,
            reserve=capsule.reserve,
            margin=capsule.margin,
            budget=capsule.budget,
            blocks=blocks,
            trace=self.run.broker_trace,
            origin="server",
            served_prompt_tokens=exc.n_prompt_tokens,
            server_window=exc.n_ctx,
        )

    def _unchangeable(self) -> ContextOverflowError:
        """For a turn that goes on after an approval: its context stays as it was, or it does not go on."""
        capsule = self.capsule
        return ContextOverflowError(
            f"The turn that was approved no longer fits the window: its context of {capsule.token_count} tokens was made for a "
            f"window of {capsule.window}, and is not changed. What would help: the model and the num_ctx that it began with, or "
            f"to ask again.",
            window=capsule.window,
            reserve=capsule.reserve,
            margin=capsule.margin,
            budget=capsule.budget,
            blocks=[{"name": b.name, "tokens": b.tokens} for b in capsule.blocks],
            trace=self.run.broker_trace,
            origin="resume",
        )

    # What the server really allocated

    def _ask_loaded(self) -> int | None:
        ask = getattr(self.transport, "loaded_window", None)
        if ask is None:
            return None
        try:
            loaded: int | None = ask(self.run.model)
        except TransportError:
            return None  # only a question; a call that cannot be made will say why
        return loaded

    def _look_at_allocation(self) -> None:
        """Asks, unless it is known, whether the server gave the window that it was sent; less is told and remembered."""
        run = self.run
        sent = run.result.replies[-1].num_ctx
        known = self._allocations.get(self.transport, run.model, sent)
        if not sent or (known is not None and known >= sent):
            return
        allocated = self._ask_loaded()
        if allocated is None:
            return
        self._allocations.set(self.transport, run.model, sent, allocated)
        if allocated >= sent:
            return
        run.ext["allocated_window"] = allocated
        run.warnings.append(
            f"the server allocated a window of {allocated} for a num_ctx of {sent}; later turns reckon with it"
        )
        for reply in run.result.replies[run.answered :]:
            if not reply.verdict.flagged and self._outgrew(reply, allocated):
                reply.verdict = Verdict(
                    "suspected",
                    f"the server runs a window of {allocated}, not {sent}: {reply.prompt_tokens} prompt tokens served, "
                    f"{self.capsule.token_count} estimated",
                )

    def _outgrew(self, reply: ChatReply, allocated: int) -> bool:
        count = reply.prompt_tokens
        if count is None or self.capsule.token_count >= allocated:
            return self.capsule.token_count >= allocated
        return count >= allocated or count in (halved_count(allocated, 4), halved_count(allocated, 5))


def _run_data(run: Run) -> Mapping[str, Any]:
    """What contributors may know of the run."""
    return {"run_id": run.run_id, "channel": run.task.channel, "tools": list(run.offered)}
