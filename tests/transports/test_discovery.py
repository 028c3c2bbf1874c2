"""What is known of a model, asked once, and the window that follows; failures degrade and are asked again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from playback import SHOW, PlaybackServer, json_answer, reset, silent, text_answer, unused_port
from rune.errors import InvalidInput, ModelNotFound, TransportError
from rune.transports import discovery
from rune.transports.discovery import (
    FALLBACK_WINDOW,
    ModelFacts,
    _model_capabilities,
    context_length,
    discover,
    facts_or_none,
    known_facts,
    resolve_window,
)
from rune.transports.http import Timeouts
from rune.transports.ollama import OllamaChatTransport
from rune.transports.ollama_show import facts_from_show, kv_bytes_per_token, same_model, usable_window, window_in_ps

Serve = Callable[..., PlaybackServer]
Connect = Callable[..., OllamaChatTransport]


def show(**info: Any) -> dict[str, Any]:
    return {"model_info": {"general.architecture": "llama", **info}}


# --- reading /api/show -----------------------------------------------------------------------------------------------------


def test_facts() -> None:
    answer = {
        **SHOW,
        "parameters": 'stop                           "<|im_end|>"\nnum_ctx                        4096\ntemperature 0.6',
        "system": "Be brief.",
        "model_info": {
            "general.architecture": "llama",
            "llama.context_length": 8192,
            "llama.vocab_size": 49152,
            "llama.block_count": 30,
            "llama.attention.head_count": 9,
            "llama.attention.head_count_kv": 3,
            "llama.embedding_length": 576,
            "tokenizer.ggml.add_bos_token": False,
            "tokenizer.ggml.pre": "smollm",
        },
    }
    assert facts_from_show("m", answer) == ModelFacts(
        model="m",
        trained_window=8192,
        modelfile_num_ctx=4096,
        capabilities=frozenset({"completion", "tools"}),
        vocab_size=49152,
        kv_bytes_per_token=30 * 3 * (64 + 64) * 2,
        family="llama",
        parameter_size="134.52M",
        quantization="Q4_1",
        template=SHOW["template"],
        add_bos=False,
        tokenizer_pre="smollm",
        source="/api/show",
        added_bytes=len(SHOW["template"]) + len("Be brief."),
    )


def test_the_architecture_decides_which_key_is_read() -> None:
    info = {"clip.context_length": 77, "llama.context_length": 8192, "draft.context_length": 512}
    assert facts_from_show("m", show(**info)).trained_window == 8192
    only = {"general.architecture": "odd", "odd2.context_length": 4096}
    assert facts_from_show("m", {"model_info": only}).trained_window == 4096
    several = {"general.architecture": "odd", "a.context_length": 4096, "b.context_length": 512}
    assert facts_from_show("m", {"model_info": several}).trained_window is None
    near = {"llama.rope.scaling.original_context_length": 32768, "llama.rope.scaling.type": "yarn"}
    assert facts_from_show("m", show(**near)).trained_window is None


@pytest.mark.parametrize(
    ("value", "window"),
    [
        (8192.0, 8192),
        (131072, 131072),
        (1, 1),
        (2**31 - 1, 2**31 - 1),
        (2**31, None),
        (8192.5, None),
        ("8192", None),
        (0, None),
        (-1, None),
        (True, None),
        (None, None),
        (1e15, None),
        (float("inf"), None),
        (float("nan"), None),
        ([8192], None),
    ],
)
def test_usable_windows(value: Any, window: int | None) -> None:
    assert usable_window(value) == window
    assert facts_from_show("m", show(**{"llama.context_length": value})).trained_window == window


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"model_info": None},
        {"model_info": []},
        {"model_info": {}},
        {"capabilities": "tools", "parameters": 5, "details": [], "template": 7, "messages": [1]},
        {"model_info": {"general.architecture": 5, "tokenizer.ggml.tokens": None}},
    ],
)
def test_missing_and_odd_fields_are_unknown(answer: dict[str, Any]) -> None:
    facts = facts_from_show("m", answer)
    assert (facts.trained_window, facts.capabilities, facts.vocab_size, facts.kv_bytes_per_token) == (None,) * 4
    assert (facts.modelfile_num_ctx, facts.added_bytes, facts.add_bos, facts.family) == (None, None, None, "")


@pytest.mark.parametrize(
    ("parameters", "num_ctx"),
    [
        ("num_ctx 512", 512),
        ("num_ctx                        32768\ntemperature 1", 32768),
        ("stop x\nnum_ctx 8e3", 8000),
        ("num_ctx big", None),
        ("num_ctx 0", None),
        ("num_ctx -1", None),
        ("num_ctx 1e400", None),
        ('stop "num_ctx 5"', None),
        ("xnum_ctx 5", None),
    ],
)
def test_num_ctx_of_the_modelfile(parameters: str, num_ctx: int | None) -> None:
    assert facts_from_show("m", {"parameters": parameters}).modelfile_num_ctx == num_ctx


def test_kv_bytes_per_token() -> None:
    base = {"general.architecture": "a", "a.block_count": 4, "a.attention.head_count": 8, "a.embedding_length": 1024}
    assert kv_bytes_per_token(base) == 4 * 8 * 256 * 2  # no grouping: as many key heads as heads
    assert kv_bytes_per_token({**base, "a.attention.head_count_kv": 2}) == 4 * 2 * 256 * 2
    by_layer = {**base, "a.attention.head_count_kv": [2, 0, 2, 0]}
    assert kv_bytes_per_token(by_layer) == 4 * 256 * 2
    wide = {**base, "a.attention.head_count_kv": 1, "a.attention.key_length": 192, "a.attention.value_length": 128}
    assert kv_bytes_per_token(wide) == 4 * 320 * 2
    assert kv_bytes_per_token({}) is None
    assert kv_bytes_per_token({**base, "a.block_count": None}) is None
    assert kv_bytes_per_token({**base, "a.attention.head_count": 0}) is None


def test_vocabulary_from_the_token_list() -> None:
    assert facts_from_show("m", show(**{"tokenizer.ggml.tokens": ["a", "b"]})).vocab_size == 2


def test_names_in_ps() -> None:
    assert same_model("m", "m:latest") and same_model("h/n/m", "h/n/m:latest") and not same_model("m:1b", "m")
    ps = {"models": [None, {"name": 5}, {"name": "m:latest", "context_length": 512}]}
    assert window_in_ps(ps, "m") == 512
    assert window_in_ps({"models": [{"name": "m:latest"}]}, "m") is None
    assert window_in_ps({"models": None}, "m") is None


def test_recorded_shows(shared: Path) -> None:
    found = {}
    for path in sorted((shared / "recordings").glob("*.json")):
        for exchange in json.loads(path.read_text("utf-8")).get("exchanges", ()):
            response = exchange.get("response", {})
            if exchange.get("request", {}).get("path") == "/api/show" and response.get("status") == 200:
                facts = facts_from_show("m", json.loads(response["text"]))
                found[(path.name, exchange["id"])] = facts
    assert len(found) > 10
    for (_, name), facts in found.items():
        without = "noctx" in name
        assert facts.trained_window == (None if without else 8192), name
        assert facts.modelfile_num_ctx == (512 if "ctx512" in name else None), name
        assert facts.vocab_size == 49152 and facts.add_bos is False
        assert facts.kv_bytes_per_token == 30 * 3 * 128 * 2
        assert facts.capabilities is not None and "completion" in facts.capabilities


# --- asking ----------------------------------------------------------------------------------------------------------------


def test_a_success_is_asked_for_once_and_feeds_both_questions(serve: Serve, connect: Connect) -> None:
    server = serve()
    transport = connect(server)
    assert known_facts(transport, "m") is None
    assert context_length("m", transport) == 8192
    assert _model_capabilities("m", transport) == {"completion", "tools"}
    assert discover(transport, "m") is known_facts(transport, "m")
    assert [r.json for r in server.requests] == [{"model": "m"}]
    discover(transport, "other")
    assert len(server.requests) == 2
    # The facts belong to the server, not to the transport object.
    assert context_length("m", connect(server)) == 8192
    assert len(server.requests) == 2
    assert context_length("m", connect(serve())) == 8192


def test_the_default_transport_is_where_ollama_host_points(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    monkeypatch.setenv("OLLAMA_HOST", server.url)
    assert context_length("m") == 8192
    assert _model_capabilities("m") == {"completion", "tools"}
    assert len(server.requests) == 1


def test_fifty_threads_make_one_request(serve: Serve, connect: Connect) -> None:
    server = serve({"/api/show": json_answer(SHOW, delay=0.1)})
    transport = connect(server)
    found: list[ModelFacts] = []
    start = threading.Barrier(50)

    def ask() -> None:
        start.wait(20)
        found.append(discover(transport, "m"))

    threads = [threading.Thread(target=ask) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 50 and len({id(f) for f in found}) == 1
    assert len(server.requests) == 1


def test_threads_share_a_failure_and_the_next_question_asks_again(serve: Serve, connect: Connect) -> None:
    server = serve({"/api/show": [json_answer({"error": "model 'm' not found"}, 404, delay=0.2), json_answer(SHOW)]})
    transport = connect(server)
    failures: list[Exception] = []
    start = threading.Barrier(8)

    def ask() -> None:
        start.wait(20)
        try:
            discover(transport, "m")
        except ModelNotFound as exc:
            failures.append(exc)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(failures) == 8 and len(server.requests) == 1
    assert discover(transport, "m").trained_window == 8192


def test_an_interrupt_does_not_leave_the_others_waiting() -> None:
    class Interrupted:
        server_key = "test interrupted"
        asked = 0

        def fetch_facts(self, model: str) -> ModelFacts:
            self.asked += 1
            if self.asked > 1:
                return ModelFacts(model, trained_window=5)
            other.start()
            while not waiting.is_set():
                pass
            raise KeyboardInterrupt

    outcomes: list[object] = []
    waiting = threading.Event()
    transport: Any = Interrupted()

    def ask() -> None:
        waiting.set()
        try:
            outcomes.append(discover(transport, "m").trained_window)
        except TransportError as exc:
            outcomes.append(type(exc))

    other = threading.Thread(target=ask)
    with pytest.raises(KeyboardInterrupt):
        discover(transport, "m")
    other.join(10)
    assert outcomes in ([TransportError], [5])
    assert discover(transport, "m").trained_window == 5


FAILURES = {
    "old server": json_answer({"modelfile": "# ...", "template": "{{ .Prompt }}"}),
    "null": json_answer({"model_info": None}),
    "empty": json_answer({"model_info": {}}),
    "missing model": json_answer({"error": "model 'm' not found"}, 404),
    "error": json_answer({}, 500),
    "page": text_answer("<html>502 Bad Gateway</html>", 200, "text/html"),
    "list": json_answer([1]),
    "reset": reset(),
    "silence": silent(),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_falls_back_is_recorded_and_not_kept(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    health = pytest.importorskip("rune.subsystem_health")
    monkeypatch.setattr("rune.transports.ollama_server.DISCOVERY_READ_TIMEOUT", 0.2)
    step = FAILURES[name]
    server = serve({"/api/show": [step, step, json_answer(SHOW)]})
    transport = connect(server)
    for _ in range(2):
        with health.turn() as turn:
            assert context_length("m", transport) == FALLBACK_WINDOW
        assert "context_discovery" in turn.degraded
    assert context_length("m", transport) == 8192
    assert context_length("m", transport) == 8192
    assert len(server.requests) == 3


def test_an_answer_without_a_window_is_handed_out_and_not_kept(serve: Serve, connect: Connect) -> None:
    server = serve({"/api/show": json_answer({"capabilities": ["completion"]})})
    transport = connect(server)
    for _ in range(2):
        facts = discover(transport, "m")
        assert (facts.trained_window, facts.capabilities) == (None, {"completion"})
    assert len(server.requests) == 2


def test_no_server_at_all(connect: Connect) -> None:
    health = pytest.importorskip("rune.subsystem_health")
    transport = connect(f"http://127.0.0.1:{unused_port()}")
    with health.turn() as turn:
        assert facts_or_none(transport, "m") is None
        assert _model_capabilities("m", transport) is None
    assert "context_discovery" in turn.degraded


def test_discovery_has_a_read_limit_of_its_own(serve: Serve, connect: Connect) -> None:
    assert discovery.DISCOVERY_READ_TIMEOUT == 5
    server = serve({"/api/show": silent()})
    transport = connect(server, timeouts=Timeouts(read=600))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rune.transports.ollama_server.DISCOVERY_READ_TIMEOUT", 0.1)
        with pytest.raises(TransportError, match="Read timeout"):
            discover(transport, "m")
    assert len(server.requests) == 1


def test_json_spread_over_lines_is_one_object(serve: Serve, connect: Connect) -> None:
    server = serve({"/api/show": text_answer(json.dumps(SHOW, indent=2), 200, "application/json")})
    assert discover(connect(server), "m").trained_window == 8192


# --- windows ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trained", "modelfile", "caller", "settings", "window", "source", "capped"),
    [
        (131072, None, None, None, 131072, "/api/show", False),
        (131072, None, 32768, None, 32768, "num_ctx", False),
        (131072, None, 32768.0, 4096, 32768, "num_ctx", False),
        (131072, 2048, None, 4096, 4096, "settings", False),
        (131072, 2048, None, None, 2048, "Modelfile", False),
        (131072, None, 200000, None, 131072, "num_ctx", True),
        (8192, 32768, None, None, 8192, "Modelfile", True),
        (8192, 512, 8192, None, 8192, "num_ctx", False),
        (None, None, None, None, 8192, "fallback", False),
        (None, None, 4096, None, 4096, "num_ctx", False),
        (None, None, 32768, None, 8192, "num_ctx", True),
    ],
)
def test_an_explicit_num_ctx_lowers_the_window_and_never_raises_it(
    trained: int | None,
    modelfile: int | None,
    caller: Any,
    settings: Any,
    window: int,
    source: str,
    capped: bool,
) -> None:
    facts = ModelFacts("m", trained_window=trained, modelfile_num_ctx=modelfile, source="/api/show")
    found = resolve_window(facts, num_ctx=caller, settings_num_ctx=settings)
    assert (found.window, found.trained, found.source, bool(found.note)) == (window, trained, source, capped)
    if capped and trained is not None:
        assert f"capped to the trained {trained}" in found.note


def test_without_facts() -> None:
    assert resolve_window(None).window == FALLBACK_WINDOW
    assert resolve_window(None, num_ctx=512).window == 512


@pytest.mark.parametrize("bad", [0, -1, True, "8192", 512.5, 2**31, float("nan")])
def test_a_num_ctx_that_is_none_is_one_clear_error(bad: Any) -> None:
    with pytest.raises(InvalidInput, match="num_ctx must be a whole number of tokens"):
        resolve_window(None, num_ctx=bad)
    with pytest.raises(InvalidInput, match="setting num_ctx"):
        resolve_window(None, settings_num_ctx=bad)
