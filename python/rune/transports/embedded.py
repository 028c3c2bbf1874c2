"""The embedded engine: llama.cpp inside this process (package ``xllamacpp``), reached over loopback HTTP like any server.

``acquire(options)`` gives a ``Lease``; leases with equal options share one engine, so that several operators do not load
a model twice, and the last one released stops it. What the engine forces upon this module:

* Loading and stopping hold Python's global lock: every thread of the process stands still meanwhile (about half a second
  for a small model, longer for a big one). Answering does not hold it.
* An engine that is dropped before it has answered once hangs for ever. So it is loaded in a thread of its own, which a
  Ctrl-C cannot interrupt, and which waits for ``/health`` before anyone else sees the engine.
* A stop waits for open streams, up to the next ping. Holders close their connections first (``Lease.before_stop``), and
  pings come every second.
* A process that ends while the engine works would crash on its way out. So what is still open is stopped at exit, and a
  watchdog that needs no global lock ends the process if even that hangs.
* After ``os.fork`` the child has the engine's memory but none of its threads. It forgets the engine and starts its own.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import http.client
import importlib
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from rune.errors import InvalidInput, ServerUnreachable
from rune.transports.embedded_model import EngineOptions, available, find_gguf

__all__ = ["EmbeddedEngine", "EngineOptions", "Lease", "acquire", "available", "find_gguf", "running"]

HEALTH_TIMEOUT_S = 60.0
EXIT_TIMEOUT_S = 20.0
_HOST = "127.0.0.1"
_SPINS = "1000"


class EmbeddedEngine:
    """A running engine: where it listens, its key, and the window it really has.

    Attributes:
        url: ``http://127.0.0.1:PORT``.
        api_key: random, known to this process alone.
        model: the name it answers to (the file's name without its suffix).
        n_ctx: the window that it allocated, read back; may be lower than ``options.n_ctx``, which the engine caps
            at the trained window without a word.
    """

    def __init__(self, options: EngineOptions, server: Any, api_key: str) -> None:
        self.options = options
        self.api_key = api_key
        self.model = options.gguf.stem
        self.url = str(server.listening_address).rstrip("/")
        self.n_ctx = 0
        self._server: Any = server
        self._healthy = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<EmbeddedEngine {self.model} n_ctx={self.n_ctx} at {self.url}>"

    @property
    def running(self) -> bool:
        return self._server is not None

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + HEALTH_TIMEOUT_S
        while True:
            with suppress(OSError, http.client.HTTPException):
                if self._get("/health")[0] == 200:
                    break
            if time.monotonic() > deadline:
                raise ServerUnreachable(
                    f"the embedded engine loaded {self.options.gguf.name} but did not answer within {HEALTH_TIMEOUT_S:g} s",
                    url=self.url,
                )
            time.sleep(0.02)
        self._healthy = True
        status, body = self._get("/props")
        if status == 200:
            self.n_ctx = int(json.loads(body)["default_generation_settings"]["n_ctx"])

    def _get(self, path: str) -> tuple[int, bytes]:
        # The standard library's client, so that the engine can be started without httpx and leaves no connection open.
        with closing(http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=10)) as connection:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.api_key}", "Connection": "close"})
            response = connection.getresponse()
            return response.status, response.read()

    def stop(self) -> None:
        """Stop the engine; safe to call twice. Close all client connections first."""
        with self._lock:
            server, self._server = self._server, None
            if server is not None and not self._healthy:
                _never_free(server)
            # The engine has no close method: it stops when its last reference goes, here.
            del server


def _never_free(server: Any) -> None:
    """Keep an object for ever: freeing an engine that never answered, or that lost its threads in a fork, hangs."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


class _Shared:
    """One engine of the process, loading or loaded, with the leases that hold it."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.future: Future[EmbeddedEngine] = Future()
        self.leases: set[Lease] = set()
        self.waiting = 0
        self.thread = threading.Thread(target=self._load, name="rune-engine-load", daemon=True)

    def _load(self) -> None:
        try:
            self.future.set_result(_start(self.options))
        except BaseException as exc:
            self.future.set_exception(exc)

    def stop_when_loaded(self) -> None:
        def stop(future: Future[EmbeddedEngine]) -> None:
            if future.exception() is None:
                future.result().stop()

        self.future.add_done_callback(stop)


class Lease:
    """The right to use a shared engine until ``release``; ``before_stop`` is called first when the process ends."""

    def __init__(self, shared: _Shared, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self.before_stop: Callable[[], object] | None = None
        self._shared = shared

    def release(self) -> None:
        """Give the engine back; the last lease stops it. Safe to call twice."""
        with _lock:
            if self not in self._shared.leases:
                return
            self._shared.leases.discard(self)
            last = _forget_if_unused(self._shared)
        if last:
            self._shared.stop_when_loaded()


_lock = threading.Lock()
_engines: dict[EngineOptions, _Shared] = {}


def acquire(options: EngineOptions) -> Lease:
    """A lease on an engine with these options: a running one, else one that is started now (blocks while it loads).

    Raises:
        InvalidInput: the package is missing, or an option or the model file is unusable.
        ServerUnreachable: the port is taken, or the engine could not load the model.
    """
    ok, reason = available()
    if not ok:
        raise InvalidInput(reason)
    options = options.checked()
    with _lock:
        shared = _engines.get(options)
        if shared is None:
            shared = _engines[options] = _Shared(options)
            shared.thread.start()
        shared.waiting += 1
    lease = None
    try:
        engine = _wait(shared.future)
        lease = Lease(shared, engine)
    finally:
        with _lock:
            shared.waiting -= 1
            if lease is not None:
                shared.leases.add(lease)
            unused = _forget_if_unused(shared)
        if unused:
            shared.stop_when_loaded()
    return lease


def _wait(future: Future[EmbeddedEngine]) -> EmbeddedEngine:
    # Short waits, so that a Ctrl-C gets through on every platform.
    while True:
        with suppress(FutureTimeout):
            return future.result(timeout=0.2)
        if future.done():
            return future.result()


def _forget_if_unused(shared: _Shared) -> bool:
    if shared.leases or shared.waiting:
        return False
    if _engines.get(shared.options) is shared:
        del _engines[shared.options]
    return True


def running() -> list[EmbeddedEngine]:
    """The engines of this process that are loaded and held by someone."""
    with _lock:
        futures = [shared.future for shared in _engines.values()]
    return [f.result() for f in futures if f.done() and f.exception() is None]


@contextmanager
def _short_spins() -> Iterator[None]:
    """Have OpenMP's threads sleep soon when they wait for one another; it reads the environment when it is loaded.

    Left to itself it spins for milliseconds, and on a machine that has other work to do an answer takes ten times as long
    (2 cores, load 9: 62 s against 6 s). Whoever set a policy of their own keeps it.
    """
    if any(name in os.environ for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")):
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = _SPINS
    try:
        yield
    finally:
        os.environ.pop("GOMP_SPINCOUNT", None)


def _start(options: EngineOptions) -> EmbeddedEngine:
    if options.port:
        _require_free(options.port)
    try:
        with _short_spins():
            xllamacpp: Any = importlib.import_module("xllamacpp")
    except ImportError as exc:
        raise ServerUnreachable(f"the package xllamacpp is installed but cannot be loaded: {exc}") from exc
    api_key = secrets.token_urlsafe(24)
    params = xllamacpp.CommonParams()
    params.model.path = str(options.gguf)
    params.model_alias = {options.gguf.stem}
    params.api_keys = [api_key]
    params.hostnames = [_HOST]
    params.port = options.port
    params.n_ctx = options.n_ctx
    params.n_parallel = 1
    params.n_gpu_layers = options.n_gpu_layers
    params.n_batch = options.n_batch
    params.cache_prompt = True
    params.cache_ram_mib = options.cache_ram_mib
    params.ctx_shift = False
    params.sse_ping_interval = 1
    params.verbosity = 0
    params.ui = False
    if options.n_threads:
        params.cpuparams.n_threads = options.n_threads
        params.cpuparams_batch.n_threads = options.n_threads
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as exc:
        size = options.gguf.stat().st_size / 1e6
        raise ServerUnreachable(
            f"the embedded engine could not load {options.gguf} ({size:.0f} MB, n_ctx {options.n_ctx}): the file is "
            f"damaged, its architecture is unknown to this version of xllamacpp, or memory ran out; try a smaller "
            f"window or another file (the engine said: {exc})"
        ) from exc
    engine = EmbeddedEngine(options, server, api_key)
    del server
    try:
        engine._wait_until_healthy()
    except BaseException:
        engine.stop()
        raise
    return engine


def _require_free(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as exc:
            raise ServerUnreachable(
                f"the embedded engine cannot listen on {_HOST}:{port} ({exc.strerror}); choose another port, or 0 for a "
                "free one"
            ) from None


def _close_all() -> None:
    """Stop every engine when the process ends, whatever its holders forgot, within a bounded time."""
    with _lock:
        shared = list(_engines.values())
        _engines.clear()
    if not shared:
        return
    # Runs in C and needs no global lock, which a stop that hangs would hold.
    with open(os.devnull, "w") as devnull:
        faulthandler.dump_traceback_later(EXIT_TIMEOUT_S, exit=True, file=devnull)
        for one in shared:
            for lease in list(one.leases):
                if lease.before_stop is not None:
                    with suppress(Exception):
                        lease.before_stop()
            with suppress(Exception):
                one.future.result(timeout=EXIT_TIMEOUT_S / 2).stop()
        faulthandler.cancel_dump_traceback_later()


def _forget_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    if "xllamacpp" in sys.modules:
        _exit_without_destructors()
    for shared in _engines.values():
        if shared.future.done() and shared.future.exception() is None:
            engine = shared.future.result()
            if engine._server is not None:
                _never_free(engine._server)
                engine._server = None
        shared.leases.clear()
    _engines.clear()


def _exit_without_destructors() -> None:
    """Have this process end by ``_exit`` once Python is done: the library's own clean-up waits for threads it lost."""
    with suppress(AttributeError, OSError):  # glibc only; elsewhere a forked child has to end by os._exit itself
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
