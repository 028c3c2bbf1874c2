"""The bounded BM25 against a plain one, and the bookkeeping of its index."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from rune.memory import memory_store, text_index
from rune.memory.terms import index_terms, query_terms
from rune.storage.database import Database

WORDS = [
    a + b for a in ("ta", "re", "no", "mi", "ka", "lu", "so", "ve") for b in ("ber", "lin", "dor", "ga", "mu", "pi")
]


MANY_WORDS = WORDS + [a + b for a in WORDS for b in WORDS]


def sentences(number: int, seed: int = 3, words: list[str] = WORDS) -> list[str]:
    """Sentences in which the n-th word of the list is 1/n as frequent as the first."""
    rng = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(len(words))]
    return [" ".join(rng.choices(words, weights, k=rng.randint(3, 12))) for _ in range(number)]


def plain_bm25(texts: list[str], question: str, limit: int) -> list[tuple[int, float]]:
    """Every row scored with every term of the question; ids count from 1."""
    documents = [Counter(index_terms(text)) for text in texts]
    average = sum(sum(document.values()) for document in documents) / len(documents)
    scores = []
    for row, document in enumerate(documents, 1):
        score = 0.0
        for term in query_terms(question)[0]:
            df = sum(term in other for other in documents)
            if document[term]:
                idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
                norm = 1.2 * (0.25 + 0.75 * sum(document.values()) / average)
                score += idf * document[term] * 2.2 / (document[term] + norm)
        if score:
            scores.append((row, score))
    return sorted(scores, key=lambda row: (-round(row[1], 9), -row[0]))[:limit]


def test_ranking_is_that_of_plain_bm25_where_all_candidates_are_ranked(db: Database) -> None:
    texts = sentences(text_index.RANKED)
    memory_store.add_many(db, texts)
    for question in sentences(40, seed=9):
        with db.read() as connection:
            found = text_index.matches(connection, "memory", question, 5)
        expected = plain_bm25(texts, question, 5)
        assert [row for row, _ in found] == [row for row, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected])


def test_a_row_with_several_of_the_words_is_found_among_very_many(db: Database) -> None:
    rng = random.Random(1)
    texts = sentences(3000, words=MANY_WORDS)
    questions = sentences(30, seed=9, words=MANY_WORDS)
    planted = []
    for place, question in enumerate(questions):
        words = sorted(set(question.split()))
        planted.append(100 * place + 1)
        texts.insert(100 * place, " ".join([*rng.sample(words, min(4, len(words))), "zzz"]))
    memory_store.add_many(db, texts)
    found = 0
    for question, row in zip(questions, planted, strict=True):
        with db.read() as connection:
            found += row in dict(text_index.matches(connection, "memory", question, 20))
    assert found >= 24


def test_of_a_term_that_very_many_rows_have_the_newest_are_candidates(db: Database) -> None:
    memory_store.add_many(db, ["common words here"] * (text_index.CANDIDATES + 500))
    with db.read() as connection:
        found = text_index.matches(connection, "memory", "common", 3)
    newest = text_index.CANDIDATES + 500
    assert [row for row, _ in found] == [newest, newest - 1, newest - 2]


def test_a_rare_term_finds_its_row_among_very_many_with_the_common_ones(db: Database) -> None:
    memory_store.add_many(db, ["the common words here"] * 3000)
    planted = memory_store.add(db, "common words and zeppelins")
    memory_store.add_many(db, ["the common words here"] * 3000)
    with db.read() as connection:
        found = text_index.matches(connection, "memory", "common words about a zeppelin here", 1)
    assert [row for row, _ in found] == [planted]


def test_frequencies_follow_what_comes_and_goes(db: Database) -> None:
    ids = memory_store.add_many(db, ["green tea", "black tea", "tea tea tea"])
    with db.read() as connection:
        assert text_index.frequencies(connection, "memory", ["tea", "green", "blue"]) == {"tea": 3, "green": 1}
    memory_store.forget(db, ids[0])
    with db.read() as connection:
        assert text_index.frequencies(connection, "memory", ["tea", "green"]) == {"tea": 2}
        assert connection.execute("SELECT rows, length FROM stat WHERE kind = 'memory'").fetchone() == (2, 5)
        assert connection.execute("SELECT count(*) FROM term_df WHERE df < 1").fetchone() == (0,)


def test_a_question_of_stop_words_needs_all_of_them(db: Database) -> None:
    memory_store.add_many(db, ["how are things", "to be or not to be, she said", "are you there"])
    with db.read() as connection:
        assert [row for row, _ in text_index.matches(connection, "memory", "to be or not to be", 3)] == [2]
        assert text_index.matches(connection, "memory", "how are you", 3) == []


def test_the_generation_grows_with_every_change_and_only_then(db: Database) -> None:
    seen = []
    for change in (
        lambda: memory_store.add(db, "one"),
        lambda: memory_store.add_many(db, ["two", "three"]),
        lambda: memory_store.forget(db, 1),
    ):
        change()
        memory_store.recall(db, "one two three")
        with db.read() as connection:
            seen.append(text_index.generation(connection, "memory"))
            assert text_index.generation(connection, "persona") == 0
    assert seen == sorted(set(seen))
