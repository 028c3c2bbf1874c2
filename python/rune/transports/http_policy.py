"""The rules of HTTP calls to model servers: time limits, what may be tried again, how a call is cancelled, and what a broken
connection is called. ``http.py`` makes the calls.

A call is tried again only while nothing has been answered: no connection, a connection reset before the first byte, or a
503. Never after the first byte, never after a time limit (the server would work twice), never on another status.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from rune.errors import InvalidInput, ServerUnreachable, StreamCut, TransportError
from rune.transports.base import CallAttempt

__all__ = ["Answer", "BreakNames", "Cancel", "Retry", "Timeouts", "TryAgain"]


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

    @classmethod
    def from_environment(cls) -> Self:
        """The limits with what ``RUNE_CONNECT_TIMEOUT`` and ``RUNE_READ_TIMEOUT`` (seconds) set.

        Raises:
            InvalidInput: a value that is no number of seconds above 0.
        """
        return cls(
            connect=_seconds("RUNE_CONNECT_TIMEOUT", cls().connect), read=_seconds("RUNE_READ_TIMEOUT", cls().read)
        )


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InvalidInput(f"{name} must be a number of seconds above 0, not {text[:40]!r}")
    return value


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a call is tried in all, and how long to wait in between (seconds, doubling, with jitter)."""

    attempts: int = 4
    first_wait: float = 0.25
    longest_wait: float = 4.0

    def policy(self, attempts: int | None = None) -> dict[str, Any]:
        """The arguments of tenacity's ``Retrying`` and ``AsyncRetrying``."""
        import tenacity

        return {
            "stop": tenacity.stop_after_attempt(attempts or self.attempts),
            "wait": tenacity.wait_exponential(multiplier=self.first_wait, max=self.longest_wait)
            + tenacity.wait_random(0, self.first_wait),
            "retry": tenacity.retry_if_exception_type(TryAgain),
            "reraise": True,
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class TryAgain(Exception):
    """Nothing was answered yet: the call may be made again.

    Exactly one of the two says what becomes of it when it may not: ``failure`` is raised, ``answer`` (a 503) is handed out.
    """

    def __init__(self, *, failure: TransportError | None = None, answer: Answer | None = None) -> None:
        super().__init__()
        self.failure = failure
        self.answer = answer

    def outcome(self) -> Answer:
        if self.failure is not None:
            raise self.failure from self.failure.__cause__
        assert self.answer is not None
        return self.answer


class Cancel:
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
        """While the block runs, the event ends the call; without an event nothing is started."""
        if self.event is None:
            yield
            return
        threading.Thread(target=self._watch, args=(self.event,), name="rune-cancel", daemon=True).start()
        try:
            yield
        finally:
            self._finished.set()

    def _watch(self, event: threading.Event) -> None:
        import socket

        while not self._finished.is_set():
            if event.wait(0.05):
                for connection in list(self._sockets):
                    with suppress(OSError):  # closed already
                        connection.shutdown(socket.SHUT_RDWR)
                # A connection that is made after the request to stop is found on the next round.
                self._finished.wait(0.05)


@dataclass(frozen=True, slots=True)
class BreakNames:
    """Gives the failures of httpx their names in Rune's error tree; ``address`` has no credentials."""

    address: str
    hint: str
    timeouts: Timeouts

    @contextmanager
    def before_first_byte(self, log: list[CallAttempt], read: float | None, cancel: Cancel) -> Iterator[None]:
        """One attempt up to the answer's head: written to ``log``, failures that may be tried again as ``TryAgain``."""
        import httpx

        begun = time.perf_counter()
        error = ""
        try:
            yield
        except TryAgain:
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
            raise ServerUnreachable(
                f"Read timeout: {self.address} sent nothing for {read or self.timeouts.read:g} s. The connection is closed "
                "and the call was not repeated. A model that is being loaded can take longer: raise "
                f"{self.timeouts.read_setting}.",
                url=self.address,
            ) from exc
        except (httpx.NetworkError, httpx.RemoteProtocolError) as exc:
            error = "cancelled" if cancel.asked else "connection closed before the first byte"
            cancel.raise_if_asked()
            raise self._again(f"{self.address} closed the connection before it answered.", exc) from exc
        except httpx.HTTPError as exc:
            error = type(exc).__name__
            raise ServerUnreachable(
                f"The call to {self.address} failed ({error}). {self.hint}".rstrip(), url=self.address
            ) from exc
        finally:
            log.append(CallAttempt(error, (time.perf_counter() - begun) * 1000))

    def _again(self, message: str, cause: Exception) -> TryAgain:
        failure = ServerUnreachable(f"{message} {self.hint}".rstrip(), url=self.address)
        failure.__cause__ = cause
        return TryAgain(failure=failure)

    @contextmanager
    def after_first_byte(self, read: float | None, cancel: Cancel) -> Iterator[None]:
        """The answer's body: every failure is a ``StreamCut``, and none may be tried again."""
        import httpx

        try:
            yield
            cancel.raise_if_asked()
        except httpx.TimeoutException as exc:
            raise StreamCut(
                f"Read timeout: {self.address} sent nothing for {read or self.timeouts.read:g} s in the middle of its reply. "
                f"Raise {self.timeouts.read_setting} if the model is that slow.",
                url=self.address,
            ) from exc
        except (httpx.HTTPError, httpx.StreamError) as exc:
            cancel.raise_if_asked()
            raise StreamCut(
                f"The connection to {self.address} broke in the middle of the reply ({type(exc).__name__}).",
                url=self.address,
            ) from exc
