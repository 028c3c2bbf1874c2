"""Which engine answers: Ollama where it runs and has a chat model, else the embedded engine, else an error with both ways out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rune.errors import InvalidInput, ModelNotFound, ServerUnreachable, TransportError

if TYPE_CHECKING:
    from rune.settings import Settings
    from rune.transports.base import Transport
    from rune.transports.http import Timeouts

__all__ = ["open_transport"]

_PROBE_CONNECT_S = 1.0


def open_transport(
    settings: Settings, *, model: str | None = None, on_event: Callable[[Any], None] | None = None
) -> tuple[Transport, str]:
    """The transport that the settings ask for, and the model to run on it. The embedded engine is loaded on its first call.

    Raises:
        ServerUnreachable: nothing answers, and no embedded engine is there; names both ways out.
        ModelNotFound: the server has no chat model.
        InvalidInput: a setting that is missing or unusable.
    """
    wanted = model or settings.model
    if settings.engine == "ollama":
        return _ollama(settings, wanted)
    if settings.engine == "llama.cpp":
        return _embedded(settings, wanted)
    if settings.engine == "openai":
        return _openai(settings, wanted)
    try:
        return _ollama(settings, wanted, probe=True)
    except TransportError as exc:
        why = str(exc)
    try:
        return _embedded(settings, wanted)
    except InvalidInput as exc:
        raise ServerUnreachable(
            f"there is no engine to ask. Ollama: {why} Embedded: {exc}. Start Ollama and pull a model (ollama pull NAME), "
            "or install the embedded engine (pip install 'rune-context[embedded]' and set RUNE_GGUF to a model file)"
        ) from exc


def _timeouts(settings: Settings, connect: float | None = None) -> Timeouts:
    from rune.transports.http import Timeouts

    return Timeouts(connect=connect or settings.connect_timeout_s, read=settings.read_timeout_s)


def _ollama(settings: Settings, wanted: str | None, *, probe: bool = False) -> tuple[Transport, str]:
    from rune.transports.http import Retry
    from rune.transports.ollama import OllamaChatTransport

    def make(retry: Retry | None, timeouts: Timeouts) -> OllamaChatTransport:
        return OllamaChatTransport(
            settings.ollama_host,
            api_key=settings.ollama_api_key,
            allow_remote=settings.allow_remote,
            timeouts=timeouts,
            retry=retry,
        )

    transport = make(None, _timeouts(settings))
    if wanted and not probe:
        return transport, wanted
    # A probe must not try again and again: where nothing listens the other engine is waiting.
    asking = make(Retry(attempts=1), _timeouts(settings, _PROBE_CONNECT_S)) if probe else transport
    try:
        names = [m.name for m in asking.models() if m.chat is not False and (not m.remote or settings.allow_remote)]
    finally:
        if asking is not transport:
            asking.close()
    if wanted:
        if wanted in names or f"{wanted}:latest" in names:
            return transport, wanted
        raise ModelNotFound(f"Ollama has no model {wanted!r}; it has {', '.join(names) or 'none'}.")
    if not names:
        raise ModelNotFound("Ollama runs but has no chat model; get one with: ollama pull NAME.")
    return transport, names[0]


def _embedded(settings: Settings, wanted: str | None) -> tuple[Transport, str]:
    from rune.transports.llama_cpp import LlamaCppChatTransport

    transport = LlamaCppChatTransport(gguf=settings.gguf, n_ctx=settings.num_ctx, timeouts=_timeouts(settings))
    try:
        return transport, transport._resolve(wanted or "")
    except TransportError:
        transport.close()
        raise


def _openai(settings: Settings, wanted: str | None) -> tuple[Transport, str]:
    from rune.transports.openai_compat import OpenAIChatTransport

    if not settings.openai_base_url:
        raise InvalidInput(
            "the engine openai needs an address: set RUNE_OPENAI_BASE_URL, for example http://127.0.0.1:1234"
        )
    transport = OpenAIChatTransport(
        settings.openai_base_url,
        api_key=settings.openai_api_key,
        context_length=settings.openai_context_length,
        timeouts=_timeouts(settings),
    )
    if wanted:
        return transport, wanted
    names = [m.name for m in transport.models() if m.chat is not False]
    if not names:
        raise ModelNotFound("The server lists no model; set RUNE_MODEL to the one to ask.")
    return transport, names[0]
