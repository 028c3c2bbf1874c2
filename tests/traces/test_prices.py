"""Prices are the user's own, and a cost says what it rests on."""

from __future__ import annotations

from pathlib import Path

import pytest

from rune.settings import Settings
from rune.traces.prices import Price, cost_of, price_for

TOML = '[prices."gpt"]\ninput = 2\noutput = 8.5\n[prices."qwen:latest"]\ninput = 0\noutput = 0\n'


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "config.toml").write_text(TOML)
    return Settings.load(tmp_path, {})


def test_a_price_stands_in_config_toml_or_nowhere(settings: Settings) -> None:
    assert price_for("gpt", settings) == Price("gpt", 2.0, 8.5)
    assert price_for("gpt-4", settings) is price_for("", settings) is None


@pytest.mark.parametrize(
    ("asked", "found"), [("gpt:latest", "gpt"), ("qwen", "qwen:latest"), ("qwen:latest", "qwen:latest")]
)
def test_the_tag_latest_says_nothing(asked: str, found: str, settings: Settings) -> None:
    price = price_for(asked, settings)
    assert price is not None and price.model == found


def test_other_tags_are_other_models(settings: Settings) -> None:
    assert price_for("qwen:7b", settings) is price_for("gpt:7b", settings) is None


def test_without_settings_those_of_the_environment_count(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNE_HOME", str(settings.home))
    assert price_for("gpt") == Price("gpt", 2.0, 8.5)
    monkeypatch.setenv("RUNE_HOME", str(settings.home / "other"))
    assert price_for("gpt") is None


@pytest.mark.parametrize(
    ("priced", "remote", "calls", "prompt", "output", "expected"),
    [
        (False, False, 1, 10, 10, (None, "local-unpriced")),
        (False, True, 1, 10, 10, (None, "remote-unpriced")),
        (True, False, 1, 1_000_000, 2_000_000, (8.0, "price-map")),
        (True, True, 3, 1_000_000, 0, (2.0, "price-map")),
        (True, False, 1, 0, 10, (None, "price-map")),
        (True, False, 0, 0, 0, (0.0, "price-map")),
    ],
)
def test_the_cost_and_its_basis(
    priced: bool, remote: bool, calls: int, prompt: int, output: int, expected: tuple[float | None, str]
) -> None:
    price = Price("m", 2.0, 3.0) if priced else None
    assert cost_of(price, calls=calls, prompt_tokens=prompt, output_tokens=output, remote=remote) == expected
