"""A model server on loopback that counts with a real tokenizer and does with a prompt that is too long what Ollama does.

It speaks HTTP and answers as the version that it is given:

* 0.12.5 cannot refuse. It drops messages from the front until the rest fits (a system message that stands right before the last
  message goes as well), cuts what is still too long to the window's last tokens, and says nothing.
* 0.24.0 refuses more tokens than the window in words, 0.32.15 refuses as many as the window, in JSON with the numbers.

``tests/test_replay.py`` holds these rules against recordings of the three real servers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from replay.counting import TEMPLATE, PromptCounter

__all__ = ["MODEL", "VERSIONS", "Call", "CountingServer"]

MODEL = "replayed:latest"
VERSIONS = {"0.12.5": "cannot refuse", "0.24.0": "refuses in words", "0.32.15": "refuses with numbers"}
SILENT = "0.12.5"
_NO_ANSWER = "(The recording holds no answer here.)"
_REFUSAL_WORDS = "the input length exceeds the context length"


@dataclass(frozen=True)
class Call:
    """One chat request: the tokens of its prompt, the window that the server worked with, and what it did.

    ``served`` is the count that the answer names: less than ``tokens`` where the prompt was cut; None where it was refused.
    """

    tokens: int
    window: int
    served: int | None
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]

    @property
    def refused(self) -> bool:
        return self.served is None

    @property
    def over(self) -> bool:
        """Whether the prompt was longer than the window."""
        return self.tokens > self.window


class CountingServer:
    """Serves until closed. ``script`` is what the model says to the next chats; ``calls`` is what was asked since ``begin``."""

    def __init__(self, counter: PromptCounter, *, version: str, window: int, vocabulary: int) -> None:
        """``window``: tokens that the model was trained for."""
        self.counter = counter
        self.version = version
        self.window = window
        self.vocabulary = vocabulary
        self.calls: list[Call] = []
        self.script: list[Mapping[str, Any]] = []
        self.lock = threading.Lock()
        self._loaded: int | None = None
        self._http = _Listener(("127.0.0.1", 0), _Handler)
        self._http.owner = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def begin(self, script: Sequence[Mapping[str, Any]]) -> None:
        """Another turn: what the model will say in it."""
        with self.lock:
            self.calls, self.script = [], list(script)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # What is answered: (status, body)

    def answer(self, path: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        with self.lock:
            if path == "/api/chat":
                return self._chat(body)
            known = {
                "/api/version": self._version,
                "/api/show": self._show,
                "/api/tags": self._tags,
                "/api/ps": self._ps,
            }
            return (200, _line(known[path]())) if path in known else (404, b"404 page not found")

    def _version(self) -> Any:
        return {"version": self.version}

    def _show(self) -> Any:
        info = {
            "general.architecture": "replayed",
            "replayed.context_length": self.window,
            "replayed.vocab_size": self.vocabulary,
        }
        return {"template": TEMPLATE, "model_info": info, "capabilities": ["completion", "tools"]}

    def _tags(self) -> Any:
        return {"models": [{"name": MODEL, "model": MODEL}]}

    def _ps(self) -> Any:
        loaded = self._loaded
        return {"models": [] if loaded is None else [{"name": MODEL, "model": MODEL, "context_length": loaded}]}

    def _chat(self, body: Mapping[str, Any]) -> tuple[int, bytes]:
        messages, tools = body["messages"], body.get("tools") or []
        options = body.get("options") or {}
        asked = int(options.get("num_ctx") or 4096)
        window = min(asked, self.window)
        # /api/ps of the old server repeats what it was sent; what it works with is lower all the same.
        self._loaded = asked if self.version == SILENT else window
        tokens = self.counter.prompt(messages, tools)
        refusal = None if self.version == SILENT else self._refusal(tokens, window)
        served = None if refusal else cut(self.counter, messages, tools, window) if tokens > window else tokens
        self.calls.append(Call(tokens, window, served, messages, tools))
        if refusal is not None:
            return 400, _line({"error": refusal})
        assert served is not None
        said = self.script.pop(0) if self.script else {"role": "assistant", "content": _NO_ANSWER}
        return 200, self._reply(said, served, window, options)

    def _refusal(self, tokens: int, window: int) -> str | None:
        if self.version == "0.24.0":
            return _REFUSAL_WORDS if tokens > window else None
        if tokens < window:
            return None
        words = f"request ({tokens} tokens) exceeds the available context size ({window} tokens), try increasing it"
        error = {"code": 400, "message": words, "type": "exceed_context_size_error"}
        return json.dumps({"error": {**error, "n_prompt_tokens": tokens, "n_ctx": window}}, separators=(",", ":"))

    def _reply(self, said: Mapping[str, Any], served: int, window: int, options: Mapping[str, Any]) -> bytes:
        """What was said, as far as ``num_predict`` and (where ``shift: false`` is understood) the window leave room."""
        text, calls = said.get("content") or "", said.get("tool_calls") or []
        size = self.counter.text(text) + sum(self.counter.text(json.dumps(call)) for call in calls) + 1
        room = int(options["num_predict"])
        if self.version != SILENT:
            room = min(room, max(1, window - served + (1 if self.version == "0.24.0" else 0)))
        reason = "stop"
        if size > room:
            text, calls, size, reason = text[: len(text) * room // size], [], room, "length"
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = calls
        final = {"done_reason": reason, "prompt_eval_count": served, "eval_count": size, "total_duration": 1_000}
        last = {"model": MODEL, "message": {"role": "assistant", "content": ""}, "done": True, **final}
        return _line({"model": MODEL, "message": message, "done": False}) + _line(last)


def cut(
    counter: PromptCounter,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    window: int,
) -> int:
    """Tokens that 0.12.5 leaves of a prompt that is too long.

    From the last message back it looks how many fit, and beside them it keeps the system messages that stand before the one
    that it looked at last: a system message right before the last message is therefore lost when it does not fit.
    """
    first, system = len(messages) - 1, list[Mapping[str, Any]]()
    for position in range(len(messages) - 2, -1, -1):
        system = [message for message in messages[:position] if message["role"] == "system"]
        if counter.prompt([*system, *messages[position:]], tools) > window:
            break
        first = position
    return min(window, counter.prompt([*system, *messages[first:]], tools))


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    owner: CountingServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: apart, the second waits for the first one's receipt
    disable_nagle_algorithm = True
    server: _Listener

    def do_GET(self) -> None:
        self._respond({})

    def do_POST(self) -> None:
        self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _respond(self, body: Mapping[str, Any]) -> None:
        status, answer = self.server.owner.answer(self.path, body)
        self.send_response(status)
        self.send_header("Content-Type", "application/x-ndjson" if self.path == "/api/chat" else "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
