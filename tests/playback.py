"""A small model server on loopback that plays back what real servers sent, and breaks in the ways that they break.

It speaks plain sockets rather than ``http.server``, because half of what it has to do is to break HTTP: reset before the first
byte, end a chunked body without its end, stay silent, send one byte at a time. It keeps every request that it was sent.

    with PlaybackServer({"/api/chat": [Reset(), ndjson(...)], "/api/show": json_answer({...})}) as server:
        OllamaChatTransport(server.url)
        server.requests_to("/api/chat")[0].json

A route is one step (played every time) or a list of steps (one per request; the last one is played from then on), or a
function of the request that returns a step.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

REASONS = {200: "OK", 307: "Temporary Redirect", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body.decode("utf-8"))


@dataclass(frozen=True)
class Step:
    """One answer.

    ``chunks`` are sent one by one with chunked encoding, ``pause`` seconds apart; ``delay`` seconds before the first byte.
    ``cut``: "" ends the body properly, "eof" closes the connection without the end of the body, "reset" resets it, "hang"
    keeps it open and silent until the server is closed. ``before``: the same, before any byte is sent.
    """

    status: int = 200
    chunks: Sequence[bytes] = ()
    content_type: str = "application/json; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    pause: float = 0.0
    cut: str = ""
    before: str = ""


def json_answer(value: Any, status: int = 200, **options: Any) -> Step:
    return Step(status, (json.dumps(value).encode(),), **options)


def text_answer(text: str, status: int = 200, content_type: str = "text/plain", **options: Any) -> Step:
    return Step(status, (text.encode(),), content_type=content_type, **options)


def ndjson(*objects: Any, size: int = 0, **options: Any) -> Step:
    """Lines as ``/api/chat`` streams them: one line a chunk, or ``size`` bytes a chunk. A str or bytes is a line as it is."""
    lines = [
        o if isinstance(o, bytes) else o.encode() if isinstance(o, str) else json.dumps(o).encode() for o in objects
    ]
    chunks: Sequence[bytes] = [line + b"\n" for line in lines]
    if size:
        whole = b"".join(chunks)
        chunks = [whole[i : i + size] for i in range(0, len(whole), size)]
    return Step(200, chunks, content_type="application/x-ndjson", **options)


def reset(**options: Any) -> Step:
    """The connection is reset before the first byte."""
    return Step(before="reset", **options)


def silent(**options: Any) -> Step:
    """Nothing is answered, ever."""
    return Step(before="hang", **options)


def reply_lines(text: str = "Hello there.", **final: Any) -> list[dict[str, Any]]:
    """A streamed reply in the shape that Ollama sends: one line a word, then the line with the counters."""
    words = text.split(" ")
    lines: list[dict[str, Any]] = [
        {"model": "m", "message": {"role": "assistant", "content": word if not n else f" {word}"}, "done": False}
        for n, word in enumerate(words)
    ]
    counts = {
        "prompt_eval_count": 20,
        "eval_count": len(words),
        "total_duration": 5_000_000,
        "prompt_eval_duration": 1_000,
    }
    last = {
        "model": "m",
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "stop",
        **counts,
    }
    return [*lines, last | final]


SHOW = {
    "template": "{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n",
    "details": {"family": "llama", "parameter_size": "134.52M", "quantization_level": "Q4_1"},
    "model_info": {"general.architecture": "llama", "llama.context_length": 8192, "llama.vocab_size": 49152},
    "capabilities": ["completion", "tools"],
}

Route = Step | Sequence[Step] | Callable[[Request], Step]


class PlaybackServer:
    """Serves routes by path until closed; ``requests`` holds everything that arrived, in order."""

    def __init__(self, routes: Mapping[str, Route] | None = None, *, version: str = "0.24.0") -> None:
        self.routes: dict[str, Route] = {
            "/api/version": json_answer({"version": version}),
            "/api/show": json_answer(SHOW),
            **(routes or {}),
        }
        self.requests: list[Request] = []
        self.hung_up = threading.Semaphore(0)
        """Released each time a client closed its connection while an answer was still being sent."""
        self._lock = threading.Lock()
        self._served: dict[str, int] = {}
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def requests_to(self, path: str) -> list[Request]:
        with self._lock:
            return [r for r in self.requests if r.path == path]

    def close(self) -> None:
        self._closing.set()
        # Closing a listener does not wake its accept; a connection does.
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        self._acceptor.join(5)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                request = _read_request(connection)
                if request is None:
                    return
                with self._lock:
                    self.requests.append(request)
                self._play(self._step(request), connection)
            except OSError:
                self.hung_up.release()

    def _step(self, request: Request) -> Step:
        route = self.routes.get(request.path)
        if route is None:
            return text_answer("404 page not found", 404)
        if isinstance(route, Step):
            return route
        if callable(route):
            return route(request)
        with self._lock:
            turn = self._served.get(request.path, 0)
            self._served[request.path] = turn + 1
        return route[min(turn, len(route) - 1)]

    def _play(self, step: Step, connection: socket.socket) -> None:
        if step.delay:
            self._wait_watching(connection, step.delay)
        if self._end_badly(step.before, connection):
            return
        head = [f"HTTP/1.1 {step.status} {REASONS.get(step.status, 'Status')}", f"Content-Type: {step.content_type}"]
        head += [f"{name}: {value}" for name, value in step.headers.items()]
        head += ["Transfer-Encoding: chunked", "Connection: close", "", ""]
        connection.sendall("\r\n".join(head).encode())
        for chunk in step.chunks:
            connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            if step.pause:
                self._wait_watching(connection, step.pause)
        if not self._end_badly(step.cut, connection):
            connection.sendall(b"0\r\n\r\n")

    def _end_badly(self, how: str, connection: socket.socket) -> bool:
        if how == "hang":
            self._wait_watching(connection, 60)
        elif how == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return bool(how)

    def _wait_watching(self, connection: socket.socket, seconds: float) -> None:
        """Waits, but not past the moment when the client hangs up (which raises) or the server closes."""
        end = time.monotonic() + seconds
        connection.settimeout(0.02)
        while time.monotonic() < end and not self._closing.is_set():
            try:
                if connection.recv(1) == b"":
                    raise ConnectionResetError("the client hung up")
            except TimeoutError:
                continue
        connection.settimeout(None)


def _read_request(connection: socket.socket) -> Request | None:
    connection.settimeout(10)
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", "0"))
    while len(body) < length:
        piece = connection.recv(65536)
        if not piece:
            return None
        body += piece
    connection.settimeout(None)
    return Request(method, path, headers, body)


def unused_port() -> int:
    """A port on which nothing listens (it was free a moment ago)."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def bodies(requests: Iterable[Request]) -> list[Any]:
    return [r.json for r in requests]
