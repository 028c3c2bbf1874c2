"""Names in a text: found by looking up its words, never by trying every name that is stored.

A name is stored with its key (folded words joined by spaces), its first word and its number of words. A text is read once:
each distinct word is asked whether names begin with it and how long the longest is; only the word sequences that can be
names are then looked up. Scripts without spaces count each character as a word, so a name is found inside a run of them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from rune.errors import InvalidInput
from rune.memory.terms import stem, units

__all__ = ["Name", "named", "names_in"]

WORDS_MAX = 32  # words of one name
_FIRSTS_MAX = 50_000  # distinct words of a text with which a name may begin: the first and the last half of them


@dataclass(frozen=True, slots=True)
class Name:
    """A name as it is stored and looked up."""

    key: str
    first: str
    n: int


def named(text: str, *, stemmed: bool = False) -> Name:
    """The key of a name; ``stemmed`` makes singular and plural one. Raises InvalidInput for a name without words."""
    words = _words(text, stemmed)
    if not words:
        raise InvalidInput(f"a name needs at least one letter or digit; got {text!r:.80}")
    if len(words) > WORDS_MAX:
        raise InvalidInput(f"a name has at most {WORDS_MAX} words, and this one has {len(words)}: {text!r:.80}")
    return Name(" ".join(words), words[0], len(words))


def names_in(connection: sqlite3.Connection, table: str, text: str, *, stemmed: bool = False) -> list[str]:
    """The keys of ``table`` (``alias`` or ``neuron``) that ``text`` names, longest first at each place, each key once."""
    words = _words(text, stemmed)
    firsts = list(dict.fromkeys(words))
    if len(firsts) > _FIRSTS_MAX:
        firsts = firsts[: _FIRSTS_MAX // 2] + firsts[-_FIRSTS_MAX // 2 :]
    longest = {
        word: most
        for word, most in connection.execute(
            f"SELECT value, (SELECT max(n) FROM {table} WHERE first = value) FROM json_each(?)",
            (json.dumps(firsts),),
        )
        if most is not None
    }
    if not longest:
        return []
    starts = [(at, longest[word]) for at, word in enumerate(words) if word in longest]
    keys = {" ".join(words[at : at + n]) for at, most in starts for n in range(1, most + 1) if at + n <= len(words)}
    known = {
        key
        for (key,) in connection.execute(
            f"SELECT DISTINCT key FROM {table} WHERE key IN (SELECT value FROM json_each(?))",
            (json.dumps(sorted(keys)),),
        )
    }
    found: dict[str, None] = {}
    end = 0
    for at, most in starts:
        if at < end:
            continue  # inside a longer name
        for n in range(min(most, len(words) - at), 0, -1):
            key = " ".join(words[at : at + n])
            if key in known:
                found[key] = None
                end = at + n
                break
    return list(found)


def _words(text: str, stemmed: bool) -> Sequence[str]:
    words = units(text)
    return [stem(word) for word in words] if stemmed else words
