"""Compaction within a run: the model as its own summariser, with the same window as the chat, so that nothing is reloaded."""

from __future__ import annotations

from rune.context.compaction import Outcome, Stopped, Summary, compact
from rune.context.history_archive import HistoryArchive
from rune.context.summary import SUMMARY_TOKENS
from rune.errors import BadReply, TransportError
from rune.kernels import get_estimator
from rune.messages import Message
from rune.operator_run import Run
from rune.runtime.num_ctx import choose_num_ctx, sticky
from rune.settings import Settings
from rune.transports.base import Progress
from rune.transports.measure import safe_tokens

__all__ = ["compact_if_due"]


def compact_if_due(run: Run, settings: Settings, archive: HistoryArchive) -> Outcome | None:
    """Compacts the session of a run before its blocks are collected; None when there is none, or compaction is off.

    The summariser's tokens are in the event alone and in no sum of the run. A run that is cancelled
    meanwhile leaves the session as it was.
    """
    if run.session is None or not settings.compaction:
        return None
    assert run.window is not None and run.transport is not None
    vocabulary = None if run.facts is None else run.facts.vocab_size
    fixed = run.window.explicit is not None or run.transport.fixed_window
    try:
        return compact(
            run.session,
            window=run.window.window,
            summary_window=run.window.window if fixed else min(run.window.window, settings.num_ctx_max),
            summarise=_Summariser(run, settings, fixed, vocabulary),
            archive=archive,
            estimator=get_estimator("script", vocabulary),
        )
    except Stopped:
        return None


class _Summariser:
    """Asks the run's own model; each call is told to whoever listens."""

    def __init__(self, run: Run, settings: Settings, fixed: bool, vocabulary: int | None) -> None:
        self._run = run
        self._settings = settings
        self._fixed = fixed
        self._vocabulary = vocabulary
        self._calls = 0

    def __call__(self, messages: list[Message]) -> Summary:
        run = self._run
        assert run.transport is not None and run.window is not None
        self._calls += 1
        if run.on_event is not None:
            run.on_event(Progress("summarising", self._calls))
        key = run.transport.server_key
        choice = choose_num_ctx(
            window=run.window.window,
            explicit=run.window.window if self._fixed else None,
            safe_tokens=safe_tokens(messages, vocab_size=self._vocabulary),
            num_predict=SUMMARY_TOKENS,
            ceiling=self._settings.num_ctx_max,
            sticky=sticky.get(key, run.model),
        )
        # The caller's format is for the answer, not for notes; a model that can think would spend the 256 tokens on that.
        passed = {name: value for name, value in run.asked.passed.items() if name not in ("format", "think")}
        if run.facts is not None and "thinking" in (run.facts.capabilities or ()):
            passed["think"] = False
        with run.transport.unmeasured():
            try:
                reply = run.transport.chat(
                    messages,
                    model=run.model,
                    num_ctx=choice.num_ctx,
                    num_predict=SUMMARY_TOKENS,
                    cancel=run.cancel,
                    **passed,
                )
            except TransportError as exc:
                if run.cancelled:
                    raise Stopped from exc  # not the summariser's failure
                raise
        if reply.verdict.flagged:
            raise BadReply(f"the server may have cut what it was to summarise: {reply.verdict.basis}")
        if not self._fixed:
            sticky.set(key, run.model, choice.num_ctx)
        return Summary(
            reply.text,
            reply.done_reason,
            reply.prompt_tokens or 0,
            reply.output_tokens or 0,
            (reply.total_duration_ns or 0) / 1e6,
        )
