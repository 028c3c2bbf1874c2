"""Operators for tests: over a scripted model, over a server that plays back, and with the blocks of a case file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import broker_helpers
from rune import RuneOperator, Settings, read_traces
from rune.context_broker import ContextBroker
from rune.transports.base import Transport
from rune.transports.discovery import ModelFacts
from scripted import FACTS, ScriptedTransport


def facts_of(window: int | None, *capabilities: str, **values: Any) -> ModelFacts:
    """Facts of a model with that window; "completion" is always among what it can do."""
    return replace(FACTS, trained_window=window, capabilities=frozenset({"completion", *capabilities}), **values)


def operator_of(
    home: Path,
    script: Any,
    *,
    facts: Any = None,
    tools: Any = None,
    server: Mapping[str, Any] | None = None,
    **settings: Any,
) -> RuneOperator:
    """An operator over a scripted model (or the given transport); settings come from nowhere but ``settings``.

    A model without tools is told of none, so that it is sent just what the capsule says; ``tool_prompt="auto"`` tells it.
    """
    transport: Transport
    if isinstance(script, (list, tuple)):
        options = {"repeat": True, **(server or {})}
        transport = ScriptedTransport(script, facts=facts or facts_of(8192), **options)
    else:
        transport = script
    loaded = Settings.load(home, env={}, **{"workspace": str(home.parent), "tool_prompt": "off", **settings})
    return RuneOperator(transport, "scripted", home, loaded, tools=tools)


def sent_by(operator: RuneOperator) -> list[Any]:
    """The calls that a scripted model was sent."""
    transport = operator.engine()[0]
    assert isinstance(transport, ScriptedTransport)
    return transport.sent


def rows(home: Path) -> list[dict[str, Any]]:
    return list(read_traces(home))


def only_row(home: Path) -> dict[str, Any]:
    found = rows(home)
    assert len(found) == 1
    return found[0]


class CaseOperator(RuneOperator):
    """An operator whose contributors give the blocks of a case; ``blocks`` is set before the first run."""

    blocks: Iterable[Mapping[str, Any]] = ()

    def _new_broker(self) -> ContextBroker:
        return broker_helpers.broker_of(8192, self.blocks)


def case_operator(
    home: Path, transport: Transport, blocks: Iterable[Mapping[str, Any]], **settings: Any
) -> CaseOperator:
    operator = CaseOperator(transport, "scripted", home, Settings.load(home, env={}, **settings), tools={})
    operator.blocks = blocks
    return operator
