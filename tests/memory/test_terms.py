"""Folding, stems, terms of scripts with and without spaces, and the key that near-duplicates share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rune.memory.terms import STOP_WORDS, clean, fold, index_terms, like_pattern, merge_key, query_terms, stem, units

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("prefers", "preferred"),
        ("likes", "liking"),
        ("running", "runs"),
        ("stories", "story"),
        ("glasses", "glass"),
        ("calls", "called"),
        ("programming", "program"),
        ("databases", "database"),
    ],
)
def test_english_endings_fall_away(one: str, other: str) -> None:
    assert stem(one) == stem(other)


@pytest.mark.parametrize("word", ["bus", "glass", "this", "go", "4711", "v2s", "king", "bed"])
def test_words_that_only_look_inflected_stay(word: str) -> None:
    assert stem(word) == word


def test_other_alphabets_are_known_by_their_beginning() -> None:
    assert stem(fold("программистами")) == stem(fold("программисты"))


def test_case_diacritics_and_compatibility_forms_fold() -> None:
    assert fold("MÖHRE") == fold("möhre") == fold("mo\u0308hre") == "mohre"
    assert fold("ＴＥＡ") == "tea"
    assert fold("Straße") == fold("STRASSE")


def test_vowel_signs_of_indic_scripts_are_letters() -> None:
    assert units("हिन्दी पसंद") == ("हिन्दी", "पसंद")


def test_scripts_without_spaces_become_pairs_and_are_asked_by_pairs() -> None:
    assert index_terms("東京に") == ["東", "京", "に", "東京", "京に"]
    assert query_terms("東京に") == (("東京", "京に"), True)
    assert query_terms("茶") == (("茶",), True)
    assert "서울" in index_terms("서울에서")
    assert units("東京 Tower") == ("東", "京", "tower")


def test_symbols_that_make_a_name_stay_with_it() -> None:
    assert units("C, C++ and C# (é)") == ("c", "c++", "and", "c#", "e")
    assert units("C, C++ and C#") == ("c", "c++", "and", "c#")
    assert units("#tag 1+1") == ("tag", "1", "1")


def test_stop_words_count_only_where_there_is_nothing_else() -> None:
    assert query_terms("what is the tea") == (("tea",), True)
    assert query_terms("to be or not to be") == (("to", "be", "or", "not"), False)
    assert query_terms("%%% ...") == ((), False)
    assert "not" in STOP_WORDS


def test_a_huge_word_is_known_by_its_start_and_a_huge_text_by_both_ends() -> None:
    assert [len(term) for term in index_terms("x" * 1_000_000)] == [64]
    terms, _ = query_terms("first " + "word " * 500_000 + "last")
    assert terms == ("first", "word", "last")


@given(ANY_TEXT)
def test_terms_hold_nothing_that_a_query_could_stumble_over(text: str) -> None:
    terms = [*index_terms(text), *query_terms(text)[0], *units(text)]
    for term in terms:
        assert term
        assert not set(term) & set(" \"'*%_()^:-\0\\")
        assert 1 <= len(term) <= 64


@given(ANY_TEXT)
def test_a_text_is_found_by_itself(text: str) -> None:
    asked, _ = query_terms(text)
    assert set(asked) <= set(index_terms(text))


@given(ANY_TEXT)
def test_a_text_that_is_not_ascii_yields_the_terms_of_its_ascii_twin(text: str) -> None:
    ascii_text = text.encode("ascii", "ignore").decode()
    assert index_terms(ascii_text) == index_terms(ascii_text + " ¿")


@given(ANY_TEXT)
def test_cleaned_text_can_be_stored(text: str) -> None:
    clean(text).encode("utf-8")


def test_like_patterns_mean_themselves() -> None:
    assert like_pattern("50%_a\\b") == "%50\\%\\_a\\\\b%"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("User likes tea", "the user likes  TEA!"),
        ("User likes tea", "likes tea."),
        ("The door code is 4711", "the door code is 4711"),
        ("Anna has a cat", "Anna has the cat"),
        ("Prefers “dark” mode", 'prefers "dark" mode'),
        ("Caf\u00e9 at noon", "cafe\u0301 at noon"),
        ("It is really very cold", "it is cold"),
    ],
)
def test_the_same_said_in_the_same_words_has_one_key(one: str, other: str) -> None:
    assert merge_key(one) == merge_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The door code is 4711", "The door code is 4712"),
        ("Anna likes long walks", "Anna never likes long walks"),
        ("Anna likes walks", "Anna does not like walks"),
        ("Alice loves Bob", "Bob loves Alice"),
        ("The sister of Anna lives in Oslo", "The brother of Anna lives in Oslo"),
        ("prefers C", "prefers C++"),
        ("prefers C#", "prefers C++"),
        ("follow plan A", "follow plan"),
        ("plan A failed", "plan failed"),
        ("costs 3.14", "costs 314"),
        ("it is -5 degrees", "it is 5 degrees"),
        ("likes tea?", "likes tea"),
        ("🎉", "🎂"),
        ("año nuevo", "ano nuevo"),
        ("feels :)", "feels :("),
    ],
)
def test_two_facts_never_share_a_key(one: str, other: str) -> None:
    assert merge_key(one) != merge_key(other)
