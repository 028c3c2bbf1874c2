"""Which engine is taken, and what is said when there is none."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from playback import PlaybackServer, json_answer, unused_port
from rune import Settings
from rune.engines import default_model, open_transport
from rune.errors import InvalidInput, ModelNotFound, ServerUnreachable
from rune.transports import discovery
from rune.transports.embedded_model import find_gguf
from rune.transports.llama_cpp import LlamaCppChatTransport
from rune.transports.ollama import OllamaChatTransport
from rune.transports.openai_compat import OpenAIChatTransport

embedded = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None or find_gguf() is None, reason="needs xllamacpp and a model file"
)
SMOLLM = "SmolLM2-135M-Instruct.Q4_1"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    discovery.clear_cache()
    yield
    discovery.clear_cache()


def tag(name: str, *capabilities: str, **extra: Any) -> dict[str, Any]:
    return {"name": name, "model": name, "capabilities": list(capabilities), "details": {}, **extra}


@pytest.fixture
def ollama() -> Iterator[PlaybackServer]:
    tags = [tag("embed", "embedding"), tag("gpt:cloud", "completion", remote_host="https://x"), tag("qwen:4b", "completion"),
            tag("llama:latest", "completion", "tools")]  # fmt: skip
    with PlaybackServer({"/api/tags": json_answer({"models": tags})}, version="0.32.15") as server:
        yield server


def settings(tmp_path: Path, **given: Any) -> Settings:
    return Settings.load(tmp_path / "home", env={}, **given)


@pytest.fixture
def no_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    import rune.transports.embedded

    monkeypatch.setattr(rune.transports.embedded, "available", lambda: (False, "it is not installed."))


def opened(configured: Settings, **options: Any) -> tuple[Any, str]:
    transport, model = open_transport(configured, **options)
    transport.close()
    return transport, model


def test_ollama_is_taken_where_it_answers(tmp_path: Path, ollama: PlaybackServer) -> None:
    transport, model = opened(settings(tmp_path, ollama_host=ollama.url))
    assert isinstance(transport, OllamaChatTransport) and model == "qwen:4b"
    assert transport.address.url == ollama.url


@pytest.mark.parametrize("name", ["llama", "llama:latest"])
def test_the_named_model(tmp_path: Path, ollama: PlaybackServer, name: str) -> None:
    assert opened(settings(tmp_path, ollama_host=ollama.url, model=name))[1] == name
    assert opened(settings(tmp_path, ollama_host=ollama.url, model="other", engine="ollama"), model=name)[1] == name


@embedded
def test_the_embedded_engine_is_taken_where_ollama_is_not_there(tmp_path: Path) -> None:
    transport, model = opened(settings(tmp_path, ollama_host=f"127.0.0.1:{unused_port()}", num_ctx=2048))
    assert isinstance(transport, LlamaCppChatTransport) and model == SMOLLM
    assert "n_ctx=2048" in transport.server_key


@embedded
def test_the_embedded_engine_is_taken_where_ollama_has_no_chat_model(tmp_path: Path) -> None:
    with PlaybackServer({"/api/tags": json_answer({"models": [tag("embed", "embedding")]})}) as server:
        transport, _ = opened(settings(tmp_path, ollama_host=server.url))
        assert isinstance(transport, LlamaCppChatTransport)
        transport, _ = opened(settings(tmp_path, ollama_host=server.url, model=SMOLLM))
        assert isinstance(transport, LlamaCppChatTransport)


@embedded
def test_a_model_that_no_engine_has_names_what_both_have(tmp_path: Path, ollama: PlaybackServer) -> None:
    with pytest.raises(ServerUnreachable) as caught:
        open_transport(settings(tmp_path, ollama_host=ollama.url, model="mistral"))
    assert "'mistral'" in str(caught.value)
    assert "qwen:4b" in str(caught.value) and SMOLLM in str(caught.value)


@pytest.mark.usefixtures("no_embedded")
def test_without_any_engine_the_error_names_both_ways_out(tmp_path: Path) -> None:
    with pytest.raises(ServerUnreachable) as caught:
        open_transport(settings(tmp_path, ollama_host=f"127.0.0.1:{unused_port()}"))
    assert "ollama pull" in str(caught.value) and "rune-context[embedded]" in str(caught.value)
    assert "it is not installed" in str(caught.value)


@pytest.mark.usefixtures("no_embedded")
def test_an_engine_that_is_asked_for_is_not_replaced(tmp_path: Path, ollama: PlaybackServer) -> None:
    with pytest.raises(ServerUnreachable):
        open_transport(
            settings(tmp_path, ollama_host=f"127.0.0.1:{unused_port()}", engine="ollama", connect_timeout_s=1)
        )
    with pytest.raises(InvalidInput, match="not installed"):
        open_transport(settings(tmp_path, ollama_host=ollama.url, engine="llama.cpp"))
    with pytest.raises(InvalidInput, match="RUNE_OPENAI_BASE_URL"):
        open_transport(settings(tmp_path, engine="openai"))


def test_openai_servers(tmp_path: Path) -> None:
    listed = {"data": [{"id": "text-embedding-3"}, {"id": "qwen", "max_model_len": 4096}]}
    with PlaybackServer({"/v1/models": json_answer(listed)}) as server:
        transport, model = opened(settings(tmp_path, openai_base_url=server.url, engine="openai"))
        assert isinstance(transport, OpenAIChatTransport) and model == "qwen"
        assert not isinstance(transport, LlamaCppChatTransport)
        assert opened(settings(tmp_path, openai_base_url=server.url))[1] == "qwen"  # an address that is set is meant
        transport, model = opened(settings(tmp_path, openai_base_url=server.url, engine="llama.cpp"))
        assert isinstance(transport, LlamaCppChatTransport) and model == "qwen"


def test_a_server_without_models(tmp_path: Path) -> None:
    routes = {"/v1/models": json_answer({"data": []}), "/api/tags": json_answer({"models": []})}
    with PlaybackServer(routes) as server:
        with pytest.raises(ModelNotFound, match="RUNE_MODEL"):
            open_transport(settings(tmp_path, openai_base_url=server.url, engine="openai"))
        with pytest.raises(ModelNotFound, match="ollama pull"):
            open_transport(settings(tmp_path, ollama_host=server.url, engine="ollama"))


def test_models_of_a_cloud_are_taken_only_when_allowed(tmp_path: Path, ollama: PlaybackServer) -> None:
    transport, _ = opened(settings(tmp_path, ollama_host=ollama.url))
    assert default_model(transport) == "qwen:4b"
    assert default_model(transport, allow_remote=True) == "gpt:cloud"


def test_the_settings_reach_the_transport(tmp_path: Path, ollama: PlaybackServer) -> None:
    configured = settings(tmp_path, ollama_host=ollama.url, ollama_api_key="k", model="llama", allow_remote=True,
                          read_timeout_s=7)  # fmt: skip
    transport, _ = opened(configured)
    assert transport.allow_remote is True
    assert ollama.requests_to("/api/tags")[-1].headers["authorization"] == "Bearer k"
