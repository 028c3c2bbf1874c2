"""HTTP calls to one model server, sync and async, by the rules of ``http_policy``.

Every call has a connection of its own. A model server takes seconds to answer and a connection on loopback takes none, so
a pool would win nothing, and it would bring stale connections that look like a server that hung up.

httpx is imported on first use, so that ``import rune`` stays cheap.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rune.transports.base import CallAttempt
from rune.transports.http_policy import Answer, BreakNames, Cancel, Retry, Timeouts, TryAgain
from rune.transports.wire import json_body

if TYPE_CHECKING:
    import ssl

    import httpx

__all__ = ["Answer", "HttpClient", "Retry", "Stream", "Timeouts"]


@dataclass(frozen=True, slots=True)
class _Call:
    """One call as it is sent on every attempt."""

    method: str
    path: str
    content: bytes | None
    read: float | None
    cancel: Cancel
    log: list[CallAttempt]


class Stream:
    """An answer whose body is still coming. ``chunks`` and ``achunks`` raise ``StreamCut`` when it breaks off."""

    def __init__(self, names: BreakNames, response: httpx.Response | Answer, call: _Call) -> None:
        self._response = response
        self._naming = names
        self._call = call
        self.status = response.status if isinstance(response, Answer) else response.status_code
        self.headers: Mapping[str, str] = response.headers

    def chunks(self) -> Iterator[bytes]:
        if isinstance(self._response, Answer):
            yield self._response.body
            return
        with self._naming.after_first_byte(self._call.read, self._call.cancel):
            yield from self._response.iter_bytes()

    async def achunks(self) -> AsyncIterator[bytes]:
        if isinstance(self._response, Answer):
            yield self._response.body
            return
        with self._naming.after_first_byte(self._call.read, self._call.cancel):
            async for chunk in self._response.aiter_bytes():
                yield chunk

    def read(self) -> bytes:
        """The rest of the body."""
        return b"".join(self.chunks())

    async def aread(self) -> bytes:
        """``read`` for asyncio."""
        return b"".join([chunk async for chunk in self.achunks()])


@dataclass
class HttpClient:
    """Calls to one server.

    ``address`` carries no credentials, so it may be shown. ``auth`` is (user, password) from the URL, ``headers`` may hold a
    key: neither is ever part of a message, a log line or the repr. ``unreachable_hint`` says what to do without a server.
    """

    address: str
    loopback: bool = False
    unreachable_hint: str = ""
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: Retry = field(default_factory=Retry)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    auth: tuple[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._names = BreakNames(self.address, self.unreachable_hint, self.timeouts)

    # --- sync -----------------------------------------------------------------------------------------------------------

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        cancel: threading.Event | None = None,
        read_timeout: float | None = None,
        attempts: int | None = None,
        log: list[CallAttempt] | None = None,
    ) -> Iterator[Stream]:
        """One call, tried again by the rules; leaving the block closes the connection.

        ``body`` is a JSON value fit for the wire (``wire_value``), or None. Every attempt is appended to ``log``. A 503 that
        outlived the retries is handed out like any other status.

        Raises:
            ServerUnreachable: no connection, or no answer within the read limit.
            StreamCut: cancelled.
        """
        import tenacity

        call = self._call(method, path, body, read_timeout, cancel, log)
        sleep = time.sleep if cancel is None else tenacity.sleep_using_event(cancel)
        response: httpx.Response | Answer
        with call.cancel.watching():
            try:
                response = tenacity.Retrying(**self.retry.policy(attempts), sleep=sleep)(self._send, call)
            except TryAgain as last:
                response = last.outcome()
            try:
                yield Stream(self._names, response, call)
            finally:
                if not isinstance(response, Answer):
                    response.close()

    def request(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """A whole call; the options are those of ``stream``."""
        with self.stream(method, path, body, **options) as stream:
            return Answer(stream.status, stream.headers, stream.read())

    def _send(self, call: _Call) -> httpx.Response:
        call.cancel.raise_if_asked()
        client = self._sync_client()
        with self._names.before_first_byte(call.log, call.read, call.cancel):
            response = client.send(self._request(client, call), stream=True)
            if response.status_code == 503:
                with self._names.after_first_byte(call.read, call.cancel):
                    try:
                        answer = Answer(503, response.headers, response.read())
                    finally:
                        response.close()
                raise TryAgain(answer=answer)
            return response

    def _sync_client(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                import httpx

                self._client = httpx.Client(**self._client_options())
            return self._client

    def close(self) -> None:
        """Let go of the client; a later call makes a new one."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # --- async ----------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def astream(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        read_timeout: float | None = None,
        attempts: int | None = None,
        log: list[CallAttempt] | None = None,
    ) -> AsyncIterator[Stream]:
        """``stream`` for asyncio; cancelling the task closes the connection."""
        import httpx
        import tenacity

        call = self._call(method, path, body, read_timeout, None, log)
        response: httpx.Response | Answer
        # A client of its own per call: clients of asyncio belong to the loop that they were first used in.
        async with httpx.AsyncClient(**self._client_options()) as client:
            try:
                response = await tenacity.AsyncRetrying(**self.retry.policy(attempts))(self._asend, client, call)
            except TryAgain as last:
                response = last.outcome()
            try:
                yield Stream(self._names, response, call)
            finally:
                if not isinstance(response, Answer):
                    await response.aclose()

    async def arequest(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """A whole call; the options are those of ``astream``."""
        async with self.astream(method, path, body, **options) as stream:
            return Answer(stream.status, stream.headers, await stream.aread())

    async def _asend(self, client: httpx.AsyncClient, call: _Call) -> httpx.Response:
        with self._names.before_first_byte(call.log, call.read, call.cancel):
            response = await client.send(self._request(client, call), stream=True)
            if response.status_code == 503:
                with self._names.after_first_byte(call.read, call.cancel):
                    try:
                        answer = Answer(503, response.headers, await response.aread())
                    finally:
                        await response.aclose()
                raise TryAgain(answer=answer)
            return response

    # --- shared ---------------------------------------------------------------------------------------------------------

    @staticmethod
    def _call(
        method: str,
        path: str,
        body: Any,
        read: float | None,
        cancel: threading.Event | None,
        log: list[CallAttempt] | None,
    ) -> _Call:
        content = None if body is None else json_body(body)
        return _Call(method, path, content, read, Cancel(cancel), [] if log is None else log)

    def _request(self, client: httpx.Client | httpx.AsyncClient, call: _Call) -> httpx.Request:
        import httpx

        limits = self.timeouts
        return client.build_request(
            call.method,
            call.path,
            content=call.content,
            headers=None if call.content is None else {"Content-Type": "application/json"},
            timeout=httpx.Timeout(
                connect=limits.connect, read=call.read or limits.read, write=limits.write, pool=limits.connect
            ),
            extensions=None if call.cancel.event is None else {"trace": call.cancel.trace},
        )

    def _client_options(self) -> dict[str, Any]:
        import httpx

        return {
            "base_url": self.address,
            "headers": dict(self.headers),
            "auth": self.auth,
            # Proxies of the environment are for the world outside: a proxy cannot reach this machine's loopback.
            "trust_env": not self.loopback,
            "verify": _tls() if self.address.startswith("https://") else False,
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=0),
            # A redirect would turn the POST into a GET, or carry the key to another host.
            "follow_redirects": False,
        }


_TLS: ssl.SSLContext | None = None


def _tls() -> ssl.SSLContext:
    # Loading the certificates takes longer than a call on loopback: once per process.
    global _TLS
    if _TLS is None:
        import ssl

        _TLS = ssl.create_default_context()
    return _TLS
