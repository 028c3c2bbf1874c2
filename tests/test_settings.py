"""Which value counts, where it came from, and what is said about wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rune.errors import InvalidInput
from rune.settings import _SETTINGS, Settings

SECRET = "sk-very-secret-123456"


def load(home: Path, toml: str = "", env: dict[str, str] | None = None, **overrides: Any) -> Settings:
    if toml:
        (home / "config.toml").write_text(toml, encoding="utf-8")
    return Settings.load(home, env or {}, **overrides)


# Where values come from


def test_the_environment_comes_before_the_file_and_the_file_before_the_default(tmp_path: Path) -> None:
    toml = "num_ctx_max = 1024\nengine = 'ollama'\nmodel = 'file'"
    settings = load(tmp_path, toml, {"RUNE_ENGINE": "openai", "RUNE_MODEL": "env"}, model="argument")
    assert (settings.model, settings.engine, settings.num_ctx_max, settings.layout) == (
        "argument",
        "openai",
        1024,
        "seed",
    )
    assert [settings.origin(name) for name in ("model", "engine", "num_ctx_max", "layout")] == [
        *("argument", "environment RUNE_ENGINE", str(tmp_path / "config.toml"), "default")
    ]


def test_the_home_and_its_origin(tmp_path: Path) -> None:
    env = {"RUNE_HOME": str(tmp_path)}
    (tmp_path / "config.toml").write_text("model = 'm'")
    for settings, origin in (
        (Settings.load(env=env), "environment RUNE_HOME"),
        (Settings.load(tmp_path, {}), "argument"),
    ):
        assert (settings.home, settings.model, settings.origin("home")) == (tmp_path, "m", origin)
    assert Settings.load(env={}).origin("home") == "default"


def test_the_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings == Settings(home=tmp_path)
    assert (settings.engine, settings.estimator, settings.layout, settings.trace) == ("auto", "chars4", "seed", "full")
    assert (settings.num_ctx, settings.num_ctx_max, settings.num_predict) == (None, 32768, None)
    assert (settings.connect_timeout_s, settings.read_timeout_s, settings.discovery_timeout_s) == (5, 600, 5)
    assert (settings.trace_max_bytes, settings.trace_backups, settings.contributor_timeout_s) == (10_485_760, 3, 2)
    assert settings.compaction is True
    assert settings.memory_off is settings.allow_remote is settings.http_get is False
    assert settings.warnings == () and all(row.origin == "default" for row in settings.explain()[1:])


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [
        ("ollama_host", "OLLAMA_HOST", "127.0.0.1:1"),
        ("ollama_api_key", "OLLAMA_API_KEY", SECRET),
        ("openai_api_key", "RUNE_API_KEY", SECRET),
        ("connect_timeout_s", "RUNE_CONNECT_TIMEOUT", 1.5),
        ("read_timeout_s", "RUNE_READ_TIMEOUT", 30.0),
    ],
)
def test_variables_of_others_come_after_runes_own(name: str, variable: str, value: Any, tmp_path: Path) -> None:
    settings = load(tmp_path, env={variable: str(value)})
    assert getattr(settings, name) == value and settings.origin(name) == f"environment {variable}"
    both = load(tmp_path, env={variable: str(value), f"RUNE_{name.upper()}": "7"})
    assert str(getattr(both, name)) in ("7", "7.0")


@pytest.mark.parametrize("empty", ["", "  ", "\n"])
def test_an_empty_variable_is_not_set(empty: str, tmp_path: Path) -> None:
    assert load(tmp_path, "num_ctx = 5", {"RUNE_NUM_CTX": empty}).num_ctx == 5


EXAMPLES: dict[str, list[tuple[Any, Any]]] = {
    "model": [("llama3", "llama3")],
    "engine": [("llama.cpp", "llama.cpp"), ("OLLAMA", "ollama")],
    "estimator": [("script", "script")],
    "layout": [("cache", "cache")],
    "backend": [("python", "python")],
    "num_ctx": [("8192", 8192), (8192, 8192), (8192.0, 8192), ("+1", 1), (2**31 - 1, 2**31 - 1)],
    "num_ctx_max": [("16384", 16384)],
    "num_predict": [("64", 64)],
    "keep_alive": [("5m", "5m"), ("-1", -1), (0, 0), ("1h30m", "1h30m"), ("300", 300)],
    "think": [("on", True), (False, False), ("HIGH", "high"), ("0", False)],
    "ollama_host": [("0.0.0.0:11434", "0.0.0.0:11434")],
    "ollama_api_key": [(SECRET, SECRET)],
    "openai_base_url": [("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1")],
    "openai_api_key": [(SECRET, SECRET)],
    "openai_context_length": [("4096", 4096)],
    "gguf": [("/x/m.gguf", Path("/x/m.gguf")), ("~/m.gguf", Path.home() / "m.gguf"), ("m.gguf", Path.cwd() / "m.gguf")],
    "allow_remote": [("1", True), ("True", True), ("off", False), (True, True), (0, False)],
    "connect_timeout_s": [("0.5", 0.5), (3, 3.0)],
    "read_timeout_s": [("60", 60.0)],
    "discovery_timeout_s": [("1", 1.0)],
    "trace": [("content-off", "content-off"), ("OFF", "off")],
    "trace_max_bytes": [("2048", 2048)],
    "trace_backups": [("0", 0), (9, 9)],
    "safety": [("off", False), ("1", True)],
    "compaction": [("off", False), ("on", True), (False, False)],
    "memory_off": [(word, True) for word in ("1", "true", "YES", " on ")] + [("0", False), ("off", False)],
    "readmission": [("off", False), ("1", True)],
    "neuron_half_life_hours": [("12", 12.0)],
    "contributor_timeout_s": [("0.1", 0.1)],
    "tools": [("read_file, recall", ("read_file", "recall")), (["recall"], ("recall",)), ("none", ()), ([], ())],
    "tool_selection": [("all", "all")],
    "tool_prompt": [("always", "always"), ("OFF", "off")],
    "auto_approve": [("write_file,edit_file,write_file", ("write_file", "edit_file")), ([], ())],
    "approval_days": [("0.5", 0.5), (30, 30.0)],
    "http_get": [("yes", True)],
    "http_hosts": [("localhost:8000", ("localhost:8000",)), (["a", "b"], ("a", "b"))],
    "workspace": [("/w", Path("/w"))],
    "run_command_timeout_s": [("5", 5.0)],
    "max_steps": [("1", 1)],
}


def test_every_setting_that_a_variable_can_set_has_its_examples() -> None:
    assert set(EXAMPLES) == {name for name, metadata in _SETTINGS.items() if not metadata["file_only"]}


@pytest.mark.parametrize("name", EXAMPLES)
def test_values_are_taken_as_they_are_meant(name: str, tmp_path: Path) -> None:
    for given_value, expected in EXAMPLES[name]:
        found = load(tmp_path, **{name: given_value})
        assert getattr(found, name) == expected and type(getattr(found, name)) is type(expected)
        assert found.warnings == ()
        if isinstance(given_value, str):
            assert getattr(load(tmp_path, env={f"RUNE_{name.upper()}": given_value}), name) == expected
        if name != "backend" and not isinstance(given_value, Path):
            shown = str(given_value).lower() if isinstance(given_value, bool) else repr(given_value)
            (tmp_path / "config.toml").write_text(f"{name} = {shown}")
            assert getattr(Settings.load(tmp_path, {}), name) == expected
            (tmp_path / "config.toml").unlink()


WRONG = {
    "num_ctx": ["abc", "0", "-1", "1.5", "8k", True, 1.5, [8192], 2**31, "٣", "9" * 5000, float("nan")],
    "engine": ["lmstudio", 3, ["ollama"]],
    "trace": ["content_off", True],
    "contributor_timeout_s": ["0", "-1", "nan", "inf", "2s", True, [1], 10**400],
    "allow_remote": ["maybe", 2, [], 1.0],
    "keep_alive": ["5 minutes", "", 1.5, True],
    "think": ["hard", 7],
    "model": [3, "", ["m"]],
    "openai_base_url": ["127.0.0.1:8000", "ftp://x", "http://", 3],
    "gguf": [3, ""],
    "trace_max_bytes": [1000],
    "tiers": [
        "x",
        3,
        {"a": ["m"]},
        {"a": {"modle": "m"}},
        {"a": "m", "b": "m"},
        {"a": {"model": "m", "families": ["x"]}},
    ],
    "safety": ["maybe", 2],
    "safety_rules": [
        "x",
        {"a": 3},
        {"delete": {"ask": ["x"]}},
        {"pay": {"asks": ["pay"]}},
        {"delete": {"asks": "x"}},
        {"delte": False},
    ],
    "models": [{"m": 3}, []],
    "prices": [
        {"m": 3},
        {"m": {"input": 1}},
        {"m": {"input": -1, "output": 1}},
        {"m": {"input": "1", "output": 1}},
        {"m": {"input": True, "output": 1}},
        {"m": {"input": float("nan"), "output": 1}},
        {"m": {"input": 1, "output": 1, "x": 1}},
    ],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_names_key_value_place_and_what_is_allowed(name: str, tmp_path: Path) -> None:
    for value in WRONG[name]:
        with pytest.raises(InvalidInput) as caught:
            load(tmp_path, **{name: value})
        words = str(caught.value)
        assert words.startswith(f"{name} = ") and "(argument)" in words and repr(value)[:30] in words
        assert any(word in words for word in ("must be", "needs", "only")), words
        assert len(words) < 300


def test_the_place_of_a_wrong_value_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="environment RUNE_NUM_CTX"):
        load(tmp_path, env={"RUNE_NUM_CTX": "x"})
    with pytest.raises(InvalidInput) as caught:
        load(tmp_path, "num_ctx = 'x'")
    assert str(tmp_path / "config.toml") in str(caught.value)


def test_a_wrong_value_that_does_not_count_is_not_looked_at(tmp_path: Path) -> None:
    assert load(tmp_path, "num_ctx = 'x'", {"RUNE_NUM_CTX": "5"}).num_ctx == 5


@hypothesis_settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_taken_or_refused_in_words(value: str) -> None:
    for name in EXAMPLES:
        try:
            Settings.load("/nowhere", {}, **{name: value})
        except InvalidInput as exc:
            assert name in str(exc)  # noqa: PT017 - most values pass


@pytest.mark.parametrize("word", ["maybe", "2", "ja"])
def test_an_unclear_word_leaves_memory_on_and_is_told(word: str, tmp_path: Path) -> None:
    settings = load(tmp_path, env={"RUNE_MEMORY_OFF": word})
    assert settings.memory_off is False and "memory_off" in settings.warnings[0] and word in settings.warnings[0]


# The file


def test_free_tables_are_kept(tmp_path: Path) -> None:
    toml = """
    [tiers]
    small = "a"
    large = {model = "b", families = ["code", "reasoning"]}
    [models."a:1b"]
    notes = "terse"
    [prices."gpt"]
    input = 2
    output = 8.5
    """
    settings = load(tmp_path, toml)
    assert settings.tiers == {
        "small": {"model": "a", "families": ()},
        "large": {"model": "b", "families": ("code", "reasoning")},
    }
    assert settings.models == {"a:1b": {"notes": "terse"}} and settings.prices == {"gpt": {"input": 2, "output": 8.5}}


def test_unknown_keys_are_told_with_the_nearest_name_and_ignored(tmp_path: Path) -> None:
    settings = load(tmp_path, "num_ctxx = 5\nzzz = 1\nbackend = 'python'\nhome = '/x'")
    assert (settings.num_ctx, settings.backend, settings.home) == (None, "auto", tmp_path)
    assert len(settings.warnings) == 4
    assert "'num_ctxx'" in settings.warnings[0] and "did you mean 'num_ctx'?" in settings.warnings[0]
    assert "RUNE_BACKEND" in settings.warnings[2]
    assert all(str(tmp_path / "config.toml") in warning for warning in settings.warnings)


def test_an_argument_that_is_none_is_not_given(tmp_path: Path) -> None:
    settings = load(tmp_path, env={"RUNE_MODEL": "m"}, model=None, num_ctx=None)
    assert (settings.model, settings.origin("model")) == ("m", "environment RUNE_MODEL")


def test_an_unknown_argument_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="did you mean 'num_ctx'"):
        load(tmp_path, num_ctxx=5)
    with pytest.raises(InvalidInput, match="no setting"):
        load(tmp_path).origin("nothing")


@pytest.mark.parametrize("text", [b"num_ctx = ", b"a = 1\na = 2", b"\xff\xfe", b"[x", b"x = \0"])
def test_a_file_that_is_no_toml_is_refused_by_name(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(text)
    with pytest.raises(InvalidInput, match=r"config\.toml is no"):
        Settings.load(tmp_path, {})


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xef\xbb\xbfmodel = 'm'\r\n")
    assert Settings.load(tmp_path, {}).model == "m"


def test_a_home_that_cannot_be_read_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "config.toml").mkdir()
    for home in (tmp_path / "file", tmp_path):
        settings = Settings.load(home, {})
        assert settings.model is None and len(settings.warnings) == 1 and "config.toml" in settings.warnings[0]
    assert Settings.load(tmp_path / "absent", {}).warnings == ()


# What is shown


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    toml = (
        f"[models.m]\napi_key = '{SECRET}'\nlist = [{{token = '{SECRET}'}}]\n[tiers]\nsmall = 'a'\npassword='{SECRET}'"
    )
    env = {
        "OLLAMA_API_KEY": SECRET,
        "RUNE_OPENAI_API_KEY": SECRET,
        "OLLAMA_HOST": f"http://me:{SECRET}@127.0.0.1:1/x",
        "RUNE_OPENAI_BASE_URL": f"https://{SECRET}@host/v1",
    }
    settings = load(tmp_path, toml, env)
    for text in (repr(settings), str(settings), str(settings.explain())):
        assert SECRET not in text and "me:" not in text
        assert "127.0.0.1:1/x" in text and "host/v1" in text
    assert settings.ollama_api_key == SECRET
    assert SECRET not in repr(load(tmp_path, ollama_host=f"me:p@{SECRET}@host"))
    for name in ("openai_api_key", "ollama_api_key"):
        with pytest.raises(InvalidInput) as caught:
            load(tmp_path, **{name: [SECRET]})
        assert SECRET not in str(caught.value)
    with pytest.raises(InvalidInput) as caught:
        load(tmp_path, models={"m": {"api_key": SECRET}, "n": 1})
    assert SECRET not in str(caught.value)


def test_every_setting_is_explained(tmp_path: Path) -> None:
    rows = {row.name: row for row in load(tmp_path, env={"RUNE_NUM_CTX": "5"}).explain()}
    assert set(rows) == {"home", *_SETTINGS}
    assert (rows["num_ctx"].value, rows["num_ctx"].origin) == (5, "environment RUNE_NUM_CTX")
    assert rows["ollama_host"].variable == "RUNE_OLLAMA_HOST or OLLAMA_HOST" and rows["tiers"].variable == ""
    assert all(row.meaning for row in rows.values())


def test_settings_do_not_change(tmp_path: Path) -> None:
    with pytest.raises(AttributeError):
        load(tmp_path).model = "x"  # type: ignore[misc]
