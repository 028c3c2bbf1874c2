"""One Ollama server: what it is asked beside chats, and what is remembered of its answers."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from rune.errors import BadReply, ServerUnreachable, TransportError
from rune.transports.base import ModelListing
from rune.transports.discovery import DISCOVERY_READ_TIMEOUT, ModelFacts
from rune.transports.host import ServerAddress
from rune.transports.http import Answer, HttpClient, Retry, Timeouts
from rune.transports.ollama_show import facts_from_show, listing_from_tag, window_in_ps
from rune.transports.ollama_version import Version, parse_version
from rune.transports.server_errors import read_error, to_exception
from rune.transports.stream import LineError, NdjsonDecoder

__all__ = ["OllamaServer"]


class OllamaServer:
    """Asks one server; every question is one request, answered within 5 s or failed. Thread-safe."""

    def __init__(self, address: ServerAddress, key: str, timeouts: Timeouts | None, retry: Retry | None) -> None:
        self.url = address.url
        self.secrets = tuple(s for s in (key, address.auth[1] if address.auth else "") if s)
        self.http = HttpClient(
            address.url,
            loopback=address.loopback,
            unreachable_hint="Start the server with `ollama serve`, or set OLLAMA_HOST to where it listens.",
            timeouts=timeouts or Timeouts.from_environment(),
            retry=retry or Retry(),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            auth=None if key else address.auth,
        )
        self._lock = threading.Lock()
        self._version: Version | None = None
        self._version_known = False
        self._sent: dict[str, int] = {}
        self._allocated: dict[str, tuple[int, int]] = {}

    def version_text(self) -> str:
        """``/api/version``. Raises a ``TransportError``."""
        return str(self.ask("GET", "/api/version").get("version") or "")

    def version(self) -> Version | None:
        """The parsed version, asked once, and again after ``forget_version``; None when unknown. Never raises."""
        with self._lock:
            if self._version_known:
                return self._version
        try:
            version = parse_version(self.version_text())
        except ServerUnreachable:
            return None  # the call that follows will say so, and the next one asks again
        except TransportError:
            version = None
        with self._lock:
            self._version, self._version_known = version, True
        return version

    def forget_version(self) -> None:
        """After a lost connection another server may answer the next call."""
        with self._lock:
            self._version_known = False

    def facts(self, model: str) -> ModelFacts:
        """``/api/show``. Raises a ``TransportError``."""
        return facts_from_show(model, self.ask("POST", "/api/show", {"model": model}, model=model))

    def listings(self) -> list[ModelListing]:
        """``/api/tags``: the models as the server lists them. Raises a ``TransportError``."""
        entries = self.ask("GET", "/api/tags").get("models")
        listed = [listing_from_tag(e) for e in entries if isinstance(e, Mapping)] if isinstance(entries, list) else []
        return [listing for listing in listed if listing.name]

    def ps_window(self, model: str) -> int | None:
        """``/api/ps``: the window of a loaded model as the server reports it. Raises a ``TransportError``."""
        return window_in_ps(self.ask("GET", "/api/ps"), model)

    def ask(self, method: str, path: str, body: Any = None, *, model: str = "") -> dict[str, Any]:
        """A short question: one attempt, a read limit of its own, a JSON object back. Raises a ``TransportError``."""
        answer = self.http.request(method, path, body, attempts=1, read_timeout=DISCOVERY_READ_TIMEOUT)
        if answer.status != 200:
            raise self.error(answer, model)
        decoder = NdjsonDecoder()
        try:
            # JSON without newlines, or spread over several lines by a proxy that likes it pretty: one object either way.
            (item,) = [*decoder.feed(answer.body.replace(b"\n", b" ")), *decoder.finish()]
        except (LineError, ValueError):
            raise BadReply(
                f"{self.url}{path} answered something that is no JSON object. Is it really Ollama?",
                status=200,
                server_words=read_error(answer.body[:2000]).words,
                url=self.url,
            ) from None
        return item

    def error(self, answer: Answer, model: str = "") -> TransportError:
        """The exception for an answer that is no success."""
        return to_exception(
            read_error(answer.body),
            status=answer.status,
            server="Ollama",
            url=self.url,
            model=model,
            model_hint=f"Fetch it with `ollama pull {model}`, or see `rune models` for what is there.",
            key_hint="Set OLLAMA_API_KEY if this server needs a key.",
            secrets=self.secrets,
        )

    # --- windows --------------------------------------------------------------------------------------------------------

    def note_sent(self, model: str, num_ctx: int) -> None:
        """Remember the num_ctx that a model was last called with."""
        with self._lock:
            self._sent[model] = num_ctx

    def note_allocated(self, model: str, window: int) -> None:
        """Remember the window that the server reported for the num_ctx last sent."""
        with self._lock:
            if model in self._sent:
                self._allocated[model] = (self._sent[model], window)

    def allocated(self, model: str, num_ctx: int) -> int | None:
        """The window that the server reported for this num_ctx, or None."""
        with self._lock:
            sent, window = self._allocated.get(model, (0, 0))
        return window if sent == num_ctx else None
