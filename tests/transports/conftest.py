"""Fixtures of the transport tests: playback servers that are closed, transports that do not wait, an empty facts cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

from playback import PlaybackServer
from rune.transports import discovery
from rune.transports.http import Retry, Timeouts
from rune.transports.ollama import OllamaChatTransport


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("OLLAMA_HOST", "OLLAMA_API_KEY", "RUNE_ALLOW_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RUNE_HOME", str(tmp_path / "home"))
    discovery.clear_cache()
    yield
    discovery.clear_cache()


@pytest.fixture
def serve() -> Iterator[Callable[..., PlaybackServer]]:
    """Starts playback servers: ``serve({"/api/chat": step}, version="0.24.0")``."""
    servers: list[PlaybackServer] = []

    def start(*arguments: Any, **options: Any) -> PlaybackServer:
        servers.append(PlaybackServer(*arguments, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def connect() -> Iterator[Callable[..., OllamaChatTransport]]:
    """Makes transports to a playback server, with short waits between attempts."""
    transports: list[OllamaChatTransport] = []

    def make(server: PlaybackServer | str, **options: Any) -> OllamaChatTransport:
        options.setdefault("retry", Retry(attempts=4, first_wait=0.005, longest_wait=0.01))
        options.setdefault("timeouts", Timeouts(read=10))
        transports.append(OllamaChatTransport(server if isinstance(server, str) else server.url, **options))
        return transports[-1]

    yield make
    for transport in transports:
        transport.close()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with recordings and cases; the test is skipped where it is absent."""
    folder = Path(os.environ.get("RUNE_SHARED") or TESTS.parents[1] / "shared")
    if not folder.is_dir():
        pytest.skip("no shared folder with recordings and cases (set RUNE_SHARED)")
    return folder
