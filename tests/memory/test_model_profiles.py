"""The model's own block."""

from __future__ import annotations

from rune.memory.model_profiles import get_prompt_context
from rune.transports.discovery import ModelFacts


def test_what_is_known_is_rendered_and_the_rest_left_out() -> None:
    facts = ModelFacts(
        "qwen3:8b", trained_window=40960, capabilities=frozenset({"tools", "completion"}), family="qwen3"
    )
    assert get_prompt_context("qwen3:8b", facts) == (
        "## Model\n- Name: qwen3:8b\n- Family: qwen3\n- Context window: 40960 tokens\n- Capabilities: completion, tools"
    )


def test_a_mapping_does_as_well_and_notes_of_the_user_follow() -> None:
    facts = {"parameter_size": "8.2B", "quantization": "Q4_K_M", "vocab_size": 151936, "trained_window": None}
    assert get_prompt_context("m", facts, ["Answers best in English.", "Slow.\n## Not a heading"]) == (
        "## Model\n- Name: m\n- Size: 8.2B\n- Quantization: Q4_K_M\n- Vocabulary: 151936 tokens\n"
        "- Answers best in English.\n- Slow. ## Not a heading"
    )
    assert get_prompt_context("m", None, "one note") == "## Model\n- Name: m\n- one note"


def test_nothing_known_is_no_block() -> None:
    assert get_prompt_context("m") is None
    assert get_prompt_context("m", ModelFacts("m")) is None
    assert get_prompt_context("m", {"family": "", "trained_window": 0, "capabilities": []}, "  ") is None


def test_the_same_facts_give_the_same_text() -> None:
    names = [f"capability{number}" for number in range(50)]
    one = get_prompt_context("m", {"capabilities": frozenset(names)})
    assert one == get_prompt_context("m", {"capabilities": frozenset(reversed(names))})
