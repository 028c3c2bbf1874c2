"""Which engine answers: Ollama where it runs and has a chat model, else the embedded engine, else an error with both ways out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rune.errors import InvalidInput, ModelNotFound, ServerUnreachable, TransportError

if TYPE_CHECKING:
    from rune.runtime.events import OnEvent
    from rune.settings import Settings
    from rune.transports.base import Transport
    from rune.transports.http import Timeouts

__all__ = ["default_model", "open_transport"]

_PROBE_CONNECT_S = 1.0


def open_transport(
    settings: Settings, *, model: str | None = None, on_event: OnEvent | None = None
) -> tuple[Transport, str]:
    """The transport that the settings ask for, and the model to run on it: ``model``, else the setting, else the first there.

    The embedded engine is loaded on its first call; with ``on_event`` it is loaded here, and its progress told.

    Raises:
        ServerUnreachable: nothing answers, and no embedded engine is there; names both ways out.
        ModelNotFound: the server has no chat model.
        InvalidInput: a setting that is missing or unusable.
    """
    wanted = model or settings.model
    if settings.engine == "auto":
        transport, name = _openai(settings, wanted) if settings.openai_base_url else _found(settings, wanted)
    elif settings.engine == "ollama":
        transport, name = _ollama(settings, wanted)
    elif settings.engine == "openai":
        transport, name = _openai(settings, wanted)
    else:
        transport, name = _llama_cpp(settings, wanted)
    start = getattr(transport, "start", None)
    if start is not None and on_event is not None:
        start(on_event)
    return transport, name


def default_model(transport: Transport, allow_remote: bool = False) -> str:
    """The first model of a server that can chat and does not leave the machine. Raises ModelNotFound when there is none."""
    names = _chat_models(transport, allow_remote)
    if not names:
        raise ModelNotFound(
            "The server has no chat model: get one (for Ollama `ollama pull NAME`), or name it with RUNE_MODEL"
        )
    return names[0]


def _chat_models(transport: Transport, allow_remote: bool) -> list[str]:
    """Names of models that can chat, those first of which that is known."""
    listed = [m for m in transport.models() if m.chat is not False and (allow_remote or not m.remote)]
    return [m.name for m in sorted(listed, key=lambda m: m.chat is None)]


def _found(settings: Settings, wanted: str | None) -> tuple[Transport, str]:
    """Ollama if it answers and has the model, else the embedded engine."""
    try:
        return _ollama_if_there(settings, wanted)
    except TransportError as exc:
        why = str(exc)
    try:
        return _llama_cpp(settings, wanted)
    except (InvalidInput, TransportError) as exc:
        raise ServerUnreachable(
            f"There is no engine to ask{f' for {wanted!r}' if wanted else ''}. Ollama: {why} Embedded engine: {exc} "
            "Two ways out: start Ollama and get a model (`ollama pull NAME`), or install the embedded engine "
            "(pip install 'rune-context[embedded]') with a model file (RUNE_GGUF)."
        ) from exc


def _ollama_if_there(settings: Settings, wanted: str | None) -> tuple[Transport, str]:
    from rune.transports.http import Retry
    from rune.transports.ollama import OllamaChatTransport

    # Asked once and briefly: where nothing listens the other engine is waiting.
    probe = OllamaChatTransport(
        settings.ollama_host,
        api_key=settings.ollama_api_key or "",
        allow_remote=settings.allow_remote,
        timeouts=_timeouts(settings, min(_PROBE_CONNECT_S, settings.connect_timeout_s)),
        retry=Retry(attempts=1),
    )
    try:
        names = _chat_models(probe, settings.allow_remote)
        if wanted:
            there = [name for name in (wanted, f"{wanted}:latest") if name in names]
            if not there:
                raise ModelNotFound(f"it has no model {wanted!r}, but {', '.join(names[:8]) or 'none'}.")
            return _ollama(settings, wanted)
        if not names:
            raise ModelNotFound("it runs, but has no chat model.")
        return _ollama(settings, names[0])
    finally:
        probe.close()


def _timeouts(settings: Settings, connect: float | None = None) -> Timeouts:
    from rune.transports.http import Timeouts

    return Timeouts(connect=connect or settings.connect_timeout_s, read=settings.read_timeout_s)


def _ollama(settings: Settings, wanted: str | None) -> tuple[Transport, str]:
    from rune.transports.ollama import OllamaChatTransport

    transport = OllamaChatTransport(
        settings.ollama_host,
        api_key=settings.ollama_api_key or "",
        allow_remote=settings.allow_remote,
        timeouts=_timeouts(settings),
    )
    return _with_model(transport, wanted, settings)


def _llama_cpp(settings: Settings, wanted: str | None) -> tuple[Transport, str]:
    """The embedded engine, or the llama-server that ``openai_base_url`` names when the engine llama.cpp is asked for."""
    from rune.transports.llama_cpp import LlamaCppChatTransport

    if settings.openai_base_url:
        transport = LlamaCppChatTransport(
            settings.openai_base_url, api_key=settings.openai_api_key or "", timeouts=_timeouts(settings)
        )
        return _with_model(transport, wanted, settings)
    transport = LlamaCppChatTransport(gguf=settings.gguf, n_ctx=settings.num_ctx, timeouts=_timeouts(settings))
    try:
        name = transport.model
        if wanted and wanted not in (name, f"{name}.gguf", str(settings.gguf)):
            raise ModelNotFound(f"it has {name}, not {wanted!r}: RUNE_GGUF names its model file.")
    except BaseException:
        transport.close()
        raise
    return transport, name


def _openai(settings: Settings, wanted: str | None) -> tuple[Transport, str]:
    from rune.transports.openai_compat import OpenAIChatTransport

    if not settings.openai_base_url:
        raise InvalidInput(
            "the engine openai needs an address: set RUNE_OPENAI_BASE_URL, for example http://127.0.0.1:1234"
        )
    transport = OpenAIChatTransport(
        settings.openai_base_url,
        api_key=settings.openai_api_key or "",
        context_length=settings.openai_context_length,
        timeouts=_timeouts(settings),
    )
    return _with_model(transport, wanted, settings)


def _with_model(transport: Transport, wanted: str | None, settings: Settings) -> tuple[Transport, str]:
    try:
        return transport, wanted or default_model(transport, settings.allow_remote)
    except BaseException:
        transport.close()
        raise
