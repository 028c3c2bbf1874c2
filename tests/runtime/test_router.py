"""The router's rules: which family a task is of, and on which tier it begins."""

from __future__ import annotations

import pytest

from rune.runtime.router import FAMILIES, Tier, family_of, route, tiers_of, weight_of
from rune.settings import Settings

FAMILY = {
    "Hello there!": "chat",
    "thanks, that helped": "chat",
    "I had a long day and want to talk": "chat",
    "What is the capital of France?": "lookup",
    "Who wrote Faust?": "lookup",
    "Is it raining in Rome?": "lookup",
    "Why is the sky blue?": "lookup",
    "how tall is the Eiffel tower": "lookup",
    "Summarise the meeting in three sentences": "summary",
    "tl;dr please: the cat sat on the mat": "summary",
    "Give me the key points of this": "summary",
    "Write a poem about autumn": "writing",
    "Draft a letter to my landlord": "writing",
    "Translate this into German: good morning": "writing",
    "Read notes.txt and tell me what is due": "files",
    "List the files in this folder": "files",
    "Delete all files in /tmp/build": "files",
    "Look into the folder docs": "files",
    "Run the tests": "files",
    "Fix the bug in the parser code": "code",
    "Write a Python function that sorts a list": "code",
    "What does src/main.py do?": "code",
    "```\nx = 1\n```\nwhat is x?": "code",
    "Traceback (most recent call last):\n  File x": "code",
    "Refactor this class, please": "code",
    "What is 17 * 23?": "reasoning",
    "Prove that there are infinitely many primes": "reasoning",
    "Compare the two offers": "reasoning",
    "Plan a trip to Rome for four people": "reasoning",
    "On 2026-12-07 at 10/11 I call you": "chat",
    "How many weeks are there in 900 days?": "reasoning",
    "bla bla " * 2000: "long",
}


@pytest.mark.parametrize("text", FAMILY, ids=range(len(FAMILY)))
def test_each_task_has_its_family(text: str) -> None:
    family, why = family_of(text)
    assert family == FAMILY[text]
    assert family in FAMILIES and why


def test_images_are_a_family_of_their_own() -> None:
    assert family_of("Fix the bug in this code", images=True)[0] == "images"


def test_every_family_is_seen_and_has_a_weight() -> None:
    assert {*FAMILY.values(), "images"} == set(FAMILIES)
    assert {weight_of(family) for family in FAMILIES} == {"light", "middling", "heavy"}


def test_of_a_long_text_the_middle_is_not_read() -> None:
    filler = "words of no kind " * 100
    assert family_of(f"Summarise this. {filler}{filler} see main.py {filler}{filler}")[0] == "summary"


SMALL, MIDDLE, LARGE = Tier("small", "a:1b"), Tier("middle", "b:8b"), Tier("large", "c:70b")
LIGHT, MIDDLING, HEAVY = "Hello there!", "Write a poem about autumn", "Prove it"


@pytest.mark.parametrize(
    ("tiers", "models"),
    [
        ([SMALL, LARGE], ["a:1b", "a:1b", "c:70b"]),
        ([SMALL, MIDDLE, LARGE], ["a:1b", "b:8b", "c:70b"]),
        ([SMALL, MIDDLE, LARGE, Tier("huge", "d")], ["a:1b", "b:8b", "d"]),
    ],
)
def test_a_task_begins_where_its_weight_says(tiers: list[Tier], models: list[str]) -> None:
    found = [route(text, tiers) for text in (LIGHT, MIDDLING, HEAVY)]
    assert [r.model for r in found] == models and {r.mode for r in found} == {"tiered"}
    assert found[2].reason.startswith("family reasoning (it asks for reasoning) begins on tier ")
    assert found[0].reason.endswith("begins on tier small: light work")


def test_a_tier_that_claims_a_family_has_it() -> None:
    tiers = [Tier("small", "a", ("reasoning",)), Tier("large", "b", ("chat",))]
    assert [route(text, tiers).model for text in (LIGHT, MIDDLING, HEAVY)] == ["b", "a", "a"]
    assert "that family is this tier's" in route(HEAVY, tiers).reason


def test_one_model_is_single_and_a_named_one_counts_before_tiers() -> None:
    for found in (
        route(HEAVY, []),
        route(HEAVY, [SMALL]),
        route(HEAVY, [], explicit="m"),
        route(HEAVY, [SMALL], explicit="m"),
    ):
        assert (found.mode, found.family, found.model, found.tiers) == ("single", "reasoning", "", ())
        assert found.reason.startswith("one model is all there is")
    named = route(HEAVY, [SMALL, LARGE], explicit="m")
    assert (named.mode, named.model) == ("explicit", "") and "the model m was named" in named.reason


def test_tiers_come_from_the_settings_in_their_order(tmp_path: object) -> None:
    settings = Settings.load("/nowhere", {}, tiers={"z": "one", "a": {"model": "two", "families": ["code"]}})
    assert tiers_of(settings.tiers) == (Tier("z", "one"), Tier("a", "two", ("code",)))
