"""Many calls in a random mix of replies and faults, from several threads and tasks: every one ends as it must.

Once on the bare transport, once as whole runs of the operator, each of which leaves one row. ``RUNE_SOAK`` sets how many calls
are made (default 100; ``make soak`` makes 1000).
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from operator_helpers import operator_of, rows
from playback import PlaybackServer, Request, Step, json_answer, ndjson, reply_lines, reset, silent, user
from rune.errors import BadReply, ModelNotFound, PromptRefused, ServerUnreachable, StreamCut, TransportError
from rune.transports.http import Timeouts
from rune.transports.ollama import OllamaChatTransport

CALLS = int(os.environ.get("RUNE_SOAK") or 100)

KINDS: dict[str, type[TransportError] | None] = {
    "reply": None,
    "reply in small chunks": None,
    "reset, then reply": None,
    "busy, then reply": None,
    "cut": StreamCut,
    "reset in mid-stream": StreamCut,
    "no done": StreamCut,
    "error line": BadReply,
    "no json": BadReply,
    "refused": PromptRefused,
    "missing": ModelNotFound,
    "load failure": BadReply,
    "silence": ServerUnreachable,
}


class Mixed:
    """Answers by what the message asks for; a second attempt of the same call gets the reply."""

    def __init__(self, window: int = 512) -> None:
        error = {"type": "exceed_context_size_error", "n_prompt_tokens": window + 400, "n_ctx": window}
        self.overflow = {"error": error}
        self.lock = threading.Lock()
        self.seen: Counter[str] = Counter()

    def __call__(self, request: Request) -> Step:
        kind, _, number = request.json["messages"][-1]["content"].partition("|")
        with self.lock:
            self.seen[number] += 1
            again = self.seen[number] > 1
        lines = reply_lines(f"answer to {number}")
        steps: dict[str, Step] = {
            "reply": ndjson(*lines),
            "reply in small chunks": ndjson(*lines, size=11),
            "reset, then reply": ndjson(*lines) if again else reset(),
            "busy, then reply": ndjson(*lines) if again else json_answer({"error": "busy"}, 503),
            "cut": ndjson(*lines[:2], cut="eof"),
            "reset in mid-stream": ndjson(*lines[:2], pause=0.01, cut="reset"),
            "no done": ndjson(*lines[:2]),
            "error line": ndjson(*lines[:2], {"error": "boom"}),
            "no json": ndjson(*lines[:2], "boom"),
            "refused": json_answer(self.overflow, 400),
            "missing": json_answer({"error": "model 'm' not found"}, 404),
            "load failure": json_answer({"error": "llama-server process has terminated: killed"}, 500),
            "silence": silent(),
        }
        return steps[kind]


def open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def test_soak(serve: Callable[..., PlaybackServer], connect: Callable[..., OllamaChatTransport]) -> None:
    rng = random.Random(7)
    mixed = Mixed()
    server = serve({"/api/chat": mixed})
    transport = connect(server, timeouts=Timeouts(read=0.5))
    transport.chat([user("reply|warm")], model="m", num_ctx=512)
    before = transport.usage_calls
    weights = [1 if kind == "silence" else 4 for kind in KINDS]
    calls = [(n, kind) for n, kind in enumerate(rng.choices(list(KINDS), weights, k=CALLS))]
    files, threads = open_files(), threading.active_count()

    def outcome(number: int, kind: str, run: Callable[..., Any]) -> tuple[int, str, str]:
        try:
            reply = run([user(f"{kind}|{number}")], model="m", num_ctx=512)
        except TransportError as exc:
            return number, kind, type(exc).__name__
        return number, kind, "reply" if reply.text == f"answer to {number}" else f"wrong text {reply.text!r}"

    def in_task(*arguments: Any, **options: Any) -> Any:
        return asyncio.run(transport.achat(*arguments, **options))

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(outcome, n, k, transport.chat if n % 3 else in_task) for n, k in calls]
        results = [future.result(120) for future in futures]

    expected = {kind: "reply" if error is None else error.__name__ for kind, error in KINDS.items()}
    assert [r for r in results if r[2] != expected[r[1]]] == []
    answered = sum(KINDS[kind] is None for _, kind in calls)
    assert transport.usage_calls - before == answered
    assert transport.usage_prompt_tokens == 20 * (answered + 1)
    repeated = sum(kind in ("reset, then reply", "busy, then reply") for _, kind in calls)
    assert len(server.requests_to("/api/chat")) == CALLS + repeated + 1

    transport.close()
    end = time.monotonic() + 10
    while (open_files() > files or threading.active_count() > threads) and time.monotonic() < end:
        time.sleep(0.05)
    assert open_files() <= files, "connections were left open"
    assert threading.active_count() <= threads, "threads were left running"


def test_every_run_of_the_operator_ends_in_time_with_its_one_row(
    serve: Callable[..., PlaybackServer], connect: Callable[..., OllamaChatTransport], tmp_path: Path
) -> None:
    rng = random.Random(11)
    server = serve({"/api/chat": Mixed(8192), "/api/ps": json_answer({"models": []})})
    transport = connect(server, timeouts=Timeouts(read=0.5))
    operator = operator_of(tmp_path / "home", transport)
    kinds = rng.choices(list(KINDS), [1 if kind == "silence" else 4 for kind in KINDS], k=CALLS)

    def run(number: int) -> tuple[str, str, float]:
        begun = time.monotonic()
        response = operator.run(f"{kinds[number]}|{number}", tools=False)
        ended = time.monotonic() - begun
        if response.success:
            assert response.text == f"answer to {number}"
        return response.run_id, type(response.exception).__name__ if response.exception else "reply", ended

    with ThreadPoolExecutor(8) as pool:
        ended = list(pool.map(run, range(CALLS)))

    # A refusal of everything is the overflow that it is; the rest keeps the transport's own error.
    expected = {kind: "reply" if error is None else error.__name__ for kind, error in KINDS.items()}
    expected["refused"] = "ContextOverflowError"
    wrong = Counter((kind, found[1]) for kind, found in zip(kinds, ended, strict=True) if found[1] != expected[kind])
    recoverable = sum(KINDS[kind] is None for kind in kinds)
    answered = sum(found[1] == "reply" for found in ended)
    assert answered >= 0.99 * recoverable, f"{answered} of {recoverable} recoverable runs were answered: {wrong}"
    assert not wrong
    found = {row["ext"]["run_id"]: row for row in rows(tmp_path / "home")}
    assert len(found) == CALLS == len(rows(tmp_path / "home"))
    assert all(found[run_id]["success"] is (kind == "reply") for run_id, kind, _ in ended)
    assert max(seconds for _, _, seconds in ended) < 20, "a run hung past its time-out"
