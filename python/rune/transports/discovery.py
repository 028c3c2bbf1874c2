"""What is known about a model, asked once per server and model, and the window that follows from it.

A success is kept for the life of the process; a failure never is, so the next turn asks again. Threads that ask at the same
time share one request. What fails here never fails a turn: the window falls back to 8192 tokens and the subsystem
``context_discovery`` is recorded as degraded.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rune.errors import InvalidInput, TransportError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rune.transports.base import Transport

__all__ = [
    "DISCOVERY_READ_TIMEOUT",
    "FALLBACK_WINDOW",
    "ModelFacts",
    "Window",
    "clear_cache",
    "context_length",
    "discover",
    "facts_or_none",
    "known_facts",
    "resolve_window",
]

FALLBACK_WINDOW = 8192
"""Tokens assumed when the window cannot be found out; the assumption is recorded, never silent."""

DISCOVERY_READ_TIMEOUT = 5.0
"""Seconds to wait for the server's facts: a turn must not hang on a question that has a fallback."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a server says about one model; None or "" where it says nothing.

    ``trained_window`` and ``modelfile_num_ctx`` are tokens, ``kv_bytes_per_token`` bytes of KV cache (f16). ``remote`` names
    the cloud that the server would hand the call to. ``added_bytes`` is the UTF-8 size of what template and Modelfile can add
    to a prompt. ``source`` is the request that told.
    """

    model: str
    trained_window: int | None = None
    modelfile_num_ctx: int | None = None
    capabilities: frozenset[str] | None = None
    vocab_size: int | None = None
    kv_bytes_per_token: int | None = None
    family: str = ""
    parameter_size: str = ""
    quantization: str = ""
    remote: str = ""
    template: str = ""
    add_bos: bool | None = None
    tokenizer_pre: str = ""
    source: str = ""
    added_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """The window that a turn is budgeted against, in tokens.

    ``trained`` is the model's own (None unknown), ``explicit`` what somebody set (None: nobody), ``source`` says which one
    decided, ``note`` is "" or one sentence about a value that could not be used as given.
    """

    window: int
    trained: int | None
    explicit: int | None
    source: str
    note: str = ""


_Key = tuple[str, str]
_lock = threading.Lock()
_known: dict[_Key, ModelFacts] = {}
_asking: dict[_Key, Future[ModelFacts]] = {}


def clear_cache() -> None:
    """Forget every fact; for tests, and after models changed on the server."""
    with _lock:
        _known.clear()


def known_facts(transport: Transport, model: str) -> ModelFacts | None:
    """The facts already asked for in this process, or None; sends nothing."""
    return _known.get((transport.server_key, model))


def discover(transport: Transport, model: str) -> ModelFacts:
    """The facts about a model: one request per server and model, whatever the number of threads.

    Facts without a window are handed out but not kept: they are what an old or a broken server answers.

    Raises:
        TransportError: the server could not be asked, or does not have the model.
    """
    from concurrent.futures import Future  # it loads logging, which `import rune` does not need

    key = (transport.server_key, model)
    with _lock:
        if key in _known:
            return _known[key]
        flight = _asking.get(key)
        mine = flight is None
        if flight is None:
            flight = _asking[key] = Future()
    if not mine:
        return flight.result()
    try:
        facts = transport.fetch_facts(model)
    except BaseException as exc:
        with _lock:
            del _asking[key]
        # An interrupt is this thread's own affair; the others learn that nothing came of it.
        shared = exc if isinstance(exc, Exception) else TransportError(f"The question about {model!r} was interrupted.")
        flight.set_exception(shared)
        raise
    with _lock:
        del _asking[key]
        if facts.trained_window is not None:
            _known[key] = facts
    flight.set_result(facts)
    return facts


def facts_or_none(transport: Transport, model: str) -> ModelFacts | None:
    """``discover`` for a turn: a failure, or an answer without a usable window, is recorded as a T1 and does not raise."""
    try:
        facts = discover(transport, model)
    except TransportError as exc:
        _record(exc)
        return None
    if facts.trained_window is None:
        _record(TransportError(f"{facts.source or 'the server'} gave no usable context length for {model!r}"))
    return facts


def _record(exc: TransportError) -> None:
    from rune.subsystem_health import record_failure

    record_failure("context_discovery", exc, tier=1)


def context_length(model: str, transport: Transport | None = None) -> int:
    """The model's window in tokens by the server (``/api/show``), lowered by a num_ctx in its Modelfile.

    Without an answer 8192, recorded as a T1 of ``context_discovery``. ``transport`` defaults to the Ollama server that
    ``OLLAMA_HOST`` names.
    """
    return resolve_window(facts_or_none(_transport(transport), model)).window


def _model_capabilities(model: str, transport: Transport | None = None) -> frozenset[str] | None:
    """What the model can do ("completion", "tools", "thinking", …) by the same request; None when the server does not say."""
    facts = facts_or_none(_transport(transport), model)
    return None if facts is None else facts.capabilities


_default: dict[str, Transport] = {}


def _transport(transport: Transport | None) -> Transport:
    if transport is not None:
        return transport
    from rune.transports.ollama import OllamaChatTransport

    made = OllamaChatTransport()
    return _default.setdefault(made.server_key, made)


def resolve_window(facts: ModelFacts | None, *, num_ctx: Any = None, settings_num_ctx: Any = None) -> Window:
    """The window to budget against: the trained one, lowered (never raised) by the first num_ctx that somebody set.

    In the order: the caller's, the settings', the Modelfile's.

    Raises:
        InvalidInput: a num_ctx that is no whole number from 1 to 2^31-1.
    """
    trained = facts.trained_window if facts is not None else None
    base = FALLBACK_WINDOW if trained is None else trained
    source = "fallback" if facts is None or trained is None else facts.source
    explicit = None
    for value, name in (
        (_checked(num_ctx, "num_ctx"), "num_ctx"),
        (_checked(settings_num_ctx, "the setting num_ctx"), "settings"),
        (facts.modelfile_num_ctx if facts is not None else None, "Modelfile"),
    ):
        if value is not None:
            explicit, source = value, name
            break
    if explicit is None or explicit <= base:
        return Window(base if explicit is None else explicit, trained, explicit, source)
    limit = f"the trained {base}" if trained is not None else f"the assumed {base} (the model's window is unknown)"
    return Window(base, trained, explicit, source, f"num_ctx {explicit} capped to {limit}")


def _checked(value: Any, name: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**31 - 1:
        raise InvalidInput(f"{name} must be a whole number of tokens from 1 to 2147483647, not {value!r}")
    return value
