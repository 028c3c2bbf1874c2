"""HTTP for the transports: one place for time limits, retries, cancelling, and what a broken connection is called.

Every call has a connection of its own. A model server takes seconds to answer and a connection on loopback takes none, so
a pool would win nothing, and it would bring stale connections that look like a server that hung up.

A call is tried again only while nothing has been answered: no connection, a connection reset before the first byte, or a
503. Never after the first byte, never after a time limit (the server would work twice), never on another status.

httpx is imported on first use, so that ``import rune`` stays cheap.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from rune.errors import ServerUnreachable, StreamCut, TransportError
from rune.transports.base import CallAttempt
from rune.transports.wire import json_body

if TYPE_CHECKING:
    import ssl

    import httpx

__all__ = ["Answer", "HttpClient", "Retry", "Stream", "Timeouts"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits in seconds: to connect, between two bytes of an answer, between two bytes of a request.

    ``read`` must outlast a cold load of a large model, during which the server is silent for minutes.
    ``read_setting`` is the name of the setting to raise, for the message.
    """

    connect: float = 5.0
    read: float = 600.0
    write: float = 60.0
    read_setting: str = "RUNE_READ_TIMEOUT"


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a call is tried in all, and how long to wait in between (seconds, doubling, with jitter)."""

    attempts: int = 4
    first_wait: float = 0.25
    longest_wait: float = 4.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _TryAgain(Exception):
    """Nothing was answered yet: the call may be made again. ``failure`` is what to raise when it may not."""

    def __init__(self, failure: TransportError | None, answer: Answer | None = None) -> None:
        super().__init__(str(failure) if failure else f"HTTP {answer.status if answer else ''}")
        self.failure = failure
        self.answer = answer


class Stream:
    """An answer whose body is still coming. ``chunks``/``achunks`` raise ``StreamCut`` when it breaks off."""

    def __init__(self, client: HttpClient, response: httpx.Response | Answer, cancel: _Cancel) -> None:
        self._client = client
        self._response = response
        self._cancel = cancel
        self.status = response.status if isinstance(response, Answer) else response.status_code
        self.headers: Mapping[str, str] = response.headers

    def chunks(self) -> Iterator[bytes]:
        if isinstance(self._response, Answer):
            yield self._response.body
            return
        with self._client._named_break(self._cancel):
            yield from self._response.iter_bytes()

    async def achunks(self) -> AsyncIterator[bytes]:
        if isinstance(self._response, Answer):
            yield self._response.body
            return
        with self._client._named_break(self._cancel):
            async for chunk in self._response.aiter_bytes():
                yield chunk

    def read(self) -> bytes:
        return b"".join(self.chunks())

    async def aread(self) -> bytes:
        return b"".join([chunk async for chunk in self.achunks()])


class _Cancel:
    """Ends a call from another thread by shutting its socket down, so that a blocked read returns at once."""

    def __init__(self, event: threading.Event | None) -> None:
        self.event = event
        self._sockets: list[Any] = []
        self._finished = threading.Event()

    @property
    def asked(self) -> bool:
        return self.event is not None and self.event.is_set()

    def raise_if_asked(self) -> None:
        if self.asked:
            raise StreamCut("The call was cancelled; the connection is closed.")

    def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """httpx's trace hook: learns the socket as soon as there is one."""
        if name in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            socket = info["return_value"].get_extra_info("socket")
            if socket is not None:
                self._sockets.append(socket)

    @contextmanager
    def watching(self) -> Iterator[None]:
        if self.event is None:
            yield
            return
        threading.Thread(target=self._watch, name="rune-cancel", daemon=True).start()
        try:
            yield
        finally:
            self._finished.set()

    def _watch(self) -> None:
        import socket as sockets

        assert self.event is not None
        while not self._finished.is_set():
            if self.event.wait(0.05):
                for sock in list(self._sockets):
                    try:
                        sock.shutdown(sockets.SHUT_RDWR)
                    except OSError:
                        pass  # closed already
                # A connection that is made after the request to stop is found on the next round.
                self._finished.wait(0.05)


@dataclass
class HttpClient:
    """Calls to one server.

    ``address`` carries no credentials, so it may be shown. ``auth`` is (user, password) from the URL, ``headers`` may hold a
    key: neither is ever part of a message, a log line or the repr.
    """

    address: str
    server: str = "the server"
    loopback: bool = False
    unreachable_hint: str = ""
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: Retry = field(default_factory=Retry)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    auth: tuple[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None

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
        """One call, tried again by the rules above; leaving the block closes the connection.

        ``body`` is a JSON value fit for the wire, or None. Every attempt is appended to ``log``. A 503 that outlived the
        retries is handed out as it is.

        Raises:
            ServerUnreachable: no connection, or no answer within the read limit.
            StreamCut: cancelled.
        """
        import tenacity

        stop = _Cancel(cancel)
        log = [] if log is None else log
        content = None if body is None else json_body(body)
        with stop.watching():
            retrying = tenacity.Retrying(
                **self._policy(attempts),
                sleep=time.sleep if cancel is None else tenacity.nap.sleep_using_event(cancel),
            )
            response = self._finish(
                lambda: retrying(self._send, method, path, content, stop, read_timeout, log),
            )
            try:
                yield Stream(self, response, stop)
            finally:
                if not isinstance(response, Answer):
                    response.close()

    def request(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """A whole call; the options are those of ``stream``."""
        with self.stream(method, path, body, **options) as stream:
            return Answer(stream.status, stream.headers, stream.read())

    def _send(
        self,
        method: str,
        path: str,
        content: bytes | None,
        stop: _Cancel,
        read_timeout: float | None,
        log: list[CallAttempt],
    ) -> httpx.Response:
        stop.raise_if_asked()
        client = self._sync_client()
        request = client.build_request(
            method,
            path,
            content=content,
            headers={"Content-Type": "application/json"} if content is not None else None,
            timeout=self._limits(read_timeout),
            extensions={"trace": stop.trace} if stop.event is not None else None,
        )
        with self._attempt(log, read_timeout, stop):
            response = client.send(request, stream=True)
            if response.status_code == 503:
                try:
                    answer = Answer(503, response.headers, response.read())
                finally:
                    response.close()
                raise _TryAgain(None, answer)
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

        stop = _Cancel(None)
        log = [] if log is None else log
        content = None if body is None else json_body(body)
        # A client of its own per call: clients of asyncio belong to the loop that they were first used in.
        async with httpx.AsyncClient(**self._client_options()) as client:
            retrying = tenacity.AsyncRetrying(**self._policy(attempts))
            response = await self._afinish(
                lambda: retrying(self._asend, client, method, path, content, stop, read_timeout, log)
            )
            try:
                yield Stream(self, response, stop)
            finally:
                if not isinstance(response, Answer):
                    await response.aclose()

    async def arequest(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """A whole call; the options are those of ``astream``."""
        async with self.astream(method, path, body, **options) as stream:
            return Answer(stream.status, stream.headers, await stream.aread())

    async def _asend(
        self,
        client: httpx.AsyncClient,
        method: str,
        path: str,
        content: bytes | None,
        stop: _Cancel,
        read_timeout: float | None,
        log: list[CallAttempt],
    ) -> httpx.Response:
        request = client.build_request(
            method,
            path,
            content=content,
            headers={"Content-Type": "application/json"} if content is not None else None,
            timeout=self._limits(read_timeout),
        )
        with self._attempt(log, read_timeout, stop):
            response = await client.send(request, stream=True)
            if response.status_code == 503:
                try:
                    answer = Answer(503, response.headers, await response.aread())
                finally:
                    await response.aclose()
                raise _TryAgain(None, answer)
            return response

    # --- shared ---------------------------------------------------------------------------------------------------------

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
            "follow_redirects": False,
        }

    def _limits(self, read: float | None) -> httpx.Timeout:
        import httpx

        limits = self.timeouts
        return httpx.Timeout(connect=limits.connect, read=read or limits.read, write=limits.write, pool=limits.connect)

    def _policy(self, attempts: int | None) -> dict[str, Any]:
        import tenacity

        return {
            "stop": tenacity.stop_after_attempt(attempts or self.retry.attempts),
            "wait": tenacity.wait_exponential_jitter(
                initial=self.retry.first_wait, max=self.retry.longest_wait, jitter=self.retry.first_wait
            ),
            "retry": tenacity.retry_if_exception_type(_TryAgain),
            "reraise": True,
        }

    @staticmethod
    def _finish(call: Callable[[], T]) -> T | Answer:
        try:
            return call()
        except _TryAgain as last:
            if last.failure is not None:
                raise last.failure from last.failure.__cause__
            assert last.answer is not None
            return last.answer

    @staticmethod
    async def _afinish(call: Callable[[], Awaitable[T]]) -> T | Answer:
        try:
            return await call()
        except _TryAgain as last:
            if last.failure is not None:
                raise last.failure from last.failure.__cause__
            assert last.answer is not None
            return last.answer

    @contextmanager
    def _attempt(self, log: list[CallAttempt], read_timeout: float | None, stop: _Cancel) -> Iterator[None]:
        """Writes the attempt down and gives httpx's errors before the first byte their names."""
        import httpx

        begun = time.perf_counter()
        error = ""
        try:
            yield
        except _TryAgain:
            error = "HTTP 503"
            raise
        except httpx.ConnectTimeout as exc:
            error = "connect timeout"
            raise self._again(f"No connection to {self.address} within {self.timeouts.connect:g} s.", exc) from exc
        except httpx.ConnectError as exc:
            error = "no connection"
            raise self._again(f"No connection to {self.address}.", exc) from exc
        except httpx.TimeoutException as exc:
            error = "read timeout"
            raise self._timeout(read_timeout) from exc
        except (httpx.NetworkError, httpx.RemoteProtocolError) as exc:
            error = "cancelled" if stop.asked else "connection reset before the first byte"
            stop.raise_if_asked()
            raise self._again(f"{self.address} closed the connection before it answered.", exc) from exc
        except httpx.HTTPError as exc:
            error = type(exc).__name__
            raise ServerUnreachable(
                f"The call to {self.address} failed ({type(exc).__name__}). {self.unreachable_hint}".rstrip(),
                url=self.address,
            ) from exc
        finally:
            log.append(CallAttempt(error, (time.perf_counter() - begun) * 1000))

    def _again(self, message: str, cause: Exception) -> _TryAgain:
        failure = ServerUnreachable(f"{message} {self.unreachable_hint}".rstrip(), url=self.address)
        failure.__cause__ = cause
        return _TryAgain(failure)

    def _timeout(self, read_timeout: float | None) -> ServerUnreachable:
        limit = read_timeout or self.timeouts.read
        return ServerUnreachable(
            f"Read timeout: {self.address} sent nothing for {limit:g} s. The connection is closed and the call was not "
            f"repeated. A cold model can take longer: raise {self.timeouts.read_setting}.",
            url=self.address,
        )

    @contextmanager
    def _named_break(self, stop: _Cancel) -> Iterator[None]:
        """Gives httpx's errors after the first byte their names; none of them may be tried again."""
        import httpx

        try:
            yield
            stop.raise_if_asked()
        except httpx.TimeoutException as exc:
            raise StreamCut(
                f"Read timeout: {self.address} sent nothing for {self.timeouts.read:g} s in the middle of its reply. "
                f"Raise {self.timeouts.read_setting} if the model is that slow.",
                url=self.address,
            ) from exc
        except (httpx.HTTPError, httpx.StreamError) as exc:
            stop.raise_if_asked()
            raise StreamCut(
                f"The connection to {self.address} broke in the middle of the reply ({type(exc).__name__}).",
                url=self.address,
            ) from exc


_TLS: ssl.SSLContext | None = None


def _tls() -> ssl.SSLContext:
    # Loading the certificates takes longer than a call on loopback: once per process.
    global _TLS
    import ssl

    if _TLS is None:
        _TLS = ssl.create_default_context()
    return _TLS
