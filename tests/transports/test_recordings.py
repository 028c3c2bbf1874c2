"""Every recorded exchange of real servers, played back over a real socket: the reply or the error must be the right one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from playback import PlaybackServer, Step, user
from rune.errors import (
    BadReply,
    ModelNotFound,
    PromptRefused,
    ServerBusy,
    StreamCut,
    TransportError,
)
from rune.transports.ollama import OllamaChatTransport

Serve = Callable[..., PlaybackServer]
Connect = Callable[..., OllamaChatTransport]


def recorded(shared: Path, path: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for file in sorted((shared / "recordings").glob("*.json")):
        document = json.loads(file.read_text("utf-8"))
        for exchange in document.get("exchanges", ()):
            if exchange.get("request", {}).get("path") == path and exchange["response"].get("status"):
                yield document["meta"]["server"].split()[1], f"{file.stem}/{exchange['id']}", exchange


def step_of(response: dict[str, Any], size: int = 0) -> Step:
    if "lines" in response:
        body = "\n".join(response["lines"]) + ("\n" if response.get("ends_with_newline") else "")
    else:
        body = response.get("text") or ""
    data = body.encode("utf-8", "surrogatepass")
    chunks = [data[i : i + size] for i in range(0, len(data), size)] if size else [data]
    return Step(
        response["status"],
        [c for c in chunks if c],
        content_type=response.get("headers", {}).get("Content-Type", "application/json"),
        cut="eof" if response.get("incomplete_read") else "",
    )


def whole_text(response: dict[str, Any]) -> str:
    lines = response.get("lines") or response["text"].splitlines()
    return "".join((json.loads(line).get("message") or {}).get("content") or "" for line in lines if line.strip())


def final_object(response: dict[str, Any]) -> dict[str, Any]:
    lines = response.get("lines") or response["text"].splitlines()
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def test_every_recorded_chat(serve: Serve, connect: Connect, shared: Path) -> None:
    outcomes: Counter[str] = Counter()
    server = serve()
    transports = {}
    for number, (version, name, exchange) in enumerate(recorded(shared, "/api/chat")):
        response = exchange["response"]
        if version not in transports:
            server.routes["/api/version"] = Step(chunks=[json.dumps({"version": version}).encode()])
            transports[version] = connect(server)
            transports[version].can_refuse()
        server.routes["/api/chat"] = step_of(response, size=(0, 1, 7, 64)[number % 4])
        try:
            reply = transports[version].chat([user("x")], model="m", num_ctx=512)
        except TransportError as exc:
            outcomes[type(exc).__name__] += 1
            check_error(name, exchange, exc)
        else:
            outcomes["reply"] += 1
            final = final_object(response)
            assert final["done"] is True, name
            assert reply.text == whole_text(response), name
            assert reply.done_reason == final.get("done_reason", ""), name
            assert (reply.prompt_tokens or 0) == final.get("prompt_eval_count", 0), name
            assert (reply.output_tokens or 0) == final.get("eval_count", 0), name
            if "tool-call" in name or "chat-tools" in name:
                assert all(isinstance(c["function"]["arguments"], dict) for c in reply.tool_calls)
    assert outcomes["reply"] > 200 and outcomes["PromptRefused"] > 60
    assert outcomes["StreamCut"] > 10 and outcomes["ModelNotFound"] >= 4 and outcomes["BadReply"] > 20


def check_error(name: str, exchange: dict[str, Any], error: TransportError) -> None:
    response, id = exchange["response"], exchange["id"]
    text = "\n".join(response.get("lines") or [response.get("text") or ""])
    if response["status"] != 200:
        assert error.status == response["status"], name
        refused = "exceed_context_size" in text or "context length" in text
        missing = response["status"] == 404 and "not found" in text and "page not found" not in text
        kind = PromptRefused if refused else ModelNotFound if missing else BadReply
        assert type(error) is kind, (name, error)
        if "n_prompt_tokens" in text:
            assert isinstance(error, PromptRefused)
            assert f'n_prompt_tokens\\":{error.n_prompt_tokens},\\"n_ctx\\":{error.n_ctx}' in text, name
        assert 0 < len(error.server_words) <= 300, name
    elif '{"error"' in text:
        assert type(error) is BadReply and "unexpected EOF" in str(error), (name, error)
    else:
        assert type(error) is StreamCut, (name, error)
        assert "_debug_info" in text or '"done":true' not in text, name
        if not response.get("truncated_lines") and not response.get("incomplete_read"):
            assert error.partial_text == whole_text(response), (name, id)


def test_recorded_busy_answers(serve: Serve, connect: Connect, shared: Path) -> None:
    seen: Counter[int] = Counter()
    for file in sorted((shared / "recordings").glob("failures-*.json")):
        for exchange in json.loads(file.read_text("utf-8"))["exchanges"]:
            for response in exchange.get("responses", ()):
                seen[response["status"]] += 1
                server = serve({"/api/chat": step_of(response)})
                transport = connect(server)
                if response["status"] == 200:
                    assert transport.chat([user("x")], model="m", num_ctx=512).done
                else:
                    with pytest.raises(ServerBusy, match="maximum pending requests exceeded"):
                        transport.chat([user("x")], model="m", num_ctx=512)
                    assert len(server.requests_to("/api/chat")) == 4
                server.close()
    assert seen[503] == 12 and seen[200] == 20


def test_recorded_lists_of_models(serve: Serve, connect: Connect, shared: Path) -> None:
    for version, _, exchange in recorded(shared, "/api/tags"):
        server = serve({"/api/tags": step_of(exchange["response"])}, version=version)
        names = [m["name"] for m in json.loads(exchange["response"]["text"])["models"]]
        listings = connect(server).models()
        assert [m.name for m in listings] == names
        assert all(m.chat and m.family == "llama" for m in listings)


def test_recorded_windows(serve: Serve, connect: Connect, shared: Path) -> None:
    windows = {}
    for version, name, exchange in recorded(shared, "/api/ps"):
        server = serve({"/api/ps": step_of(exchange["response"])}, version=version)
        loaded = json.loads(exchange["response"]["text"])["models"] or []
        transport = connect(server)
        for model in loaded:
            windows[name] = transport.loaded_window(model["name"])
            assert windows[name] == model["context_length"]
        assert transport.loaded_window("nosuch:1b") is None
        server.close()
    assert windows["wire-v0.32.15/ps-ctx-too-large"] == 8192
    assert windows["wire-v0.32.15/ps-num-ctx-0"] == 4
