"""How text becomes terms: one folding for storing and for asking, the same on every SQLite and every machine.

Text is casefolded and loses Latin, Greek and Cyrillic diacritics. Words of scripts that put spaces between them are reduced
to a light stem. Runs of scripts without such spaces (Han, kana, Thai, Lao, Tibetan, Burmese, Khmer) and of Hangul, whose
particles cling to the noun, become overlapping pairs of characters: no dictionary is needed, and a pair is rare enough to
search by. No character of a text can reach SQLite's query syntax: a term holds letters, digits and marks only.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterable

__all__ = ["STOP_WORDS", "clean", "fold", "index_terms", "like_pattern", "merge_key", "query_terms", "stem", "units"]

TERM_MAX = 64  # characters; a longer "word" (base64, a blob) is known by its start
TEXT_MAX = 2_000_000  # characters of a task that are read: the first and the last half of it

# English words that say nothing about a subject. Other languages are served by document frequency alone.
_STOP_WORDS = (
    "a about an and any are as at be been but by can could d did do does don for from had has have he her him his how i if"
    " in into is it its just ll m me my no not of on or our please re s she should so some such t than that the their them"
    " then there these they this those to us ve was we were what when where which who whom whose why will with would you"
    " your"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())

_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
    "\u2600-\u27bf\U0001f300-\U0001faff"  # emoji, which come in runs as well
)
_DIACRITIC = re.compile("[\u0300-\u036f]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ASCII_WORDS = bytes(code if chr(code).isalnum() else 32 for code in range(128)).lower() + bytes(128)
_SYMBOLS = r"(?:\+\+|#(?!\w))?"  # C++ and C# are not C
_ASCII_NAMES = re.compile(f"[a-z0-9]+{_SYMBOLS}")
_VOWEL = re.compile("[aeiouy]")
_MERGE_MARKS = re.compile("[.,;!…\"'“”‘’。，、！*_`]")
_MERGE_ASCII = bytes(
    32 if code < 128 and (_MERGE_MARKS.match(chr(code)) or chr(code).isspace()) else code for code in range(256)
).lower()
_MERGE_FILLERS = frozenset((b"the", b"a", b"an", b"also", b"just", b"quite", b"really", b"very"))
_IN_NUMBER = re.compile(r"[.,](?<=\d.)(?=\d)")
_LETTER_A = re.compile(r" A\b")  # "plan A" is not "plan a ..."


def clean(text: str) -> str:
    """``text`` as it can be stored: lone surrogates, which UTF-8 does not have, become U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def like_pattern(text: str) -> str:
    """The LIKE pattern (``ESCAPE '\\'``) of what contains ``text`` to the letter: ``%`` and ``_`` in it mean themselves."""
    return "%" + re.sub(r"([%_\\])", r"\\\1", clean(text[:10_000]).replace("\0", "")) + "%"


def fold(text: str) -> str:
    """``text`` without differences of case, compatibility forms and diacritics."""
    if text.isascii():
        return text.lower()
    text = _DIACRITIC.sub("", unicodedata.normalize("NFKD", text.casefold()))
    return unicodedata.normalize("NFC", text)


def stem(word: str) -> str:
    """``_stem``, remembered."""
    return _stems[word]


def _stem(word: str) -> str:
    """A folded word without its commonest endings, so that "prefers" finds "preferred".

    ASCII words lose English endings; words with other letters keep their first six, since most languages inflect at the
    end. Words with digits stay whole.
    """
    if len(word) <= 3 or not word.isalpha():
        return word[:TERM_MAX]
    if not word.isascii():
        return word[:6]
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        base = word[: -len(ending)]
        if word.endswith(ending) and len(base) >= 3 and _VOWEL.search(base):
            word = base[:-1] if base[-1] == base[-2] and base[-1] not in "lsz" else base
            break
    if word.endswith("e") and len(word) > 3:
        word = word[:-1]
    return word[:TERM_MAX]


class _Stems(dict[str, str]):
    """Stems already worked out; started anew when they would take too much memory."""

    def __missing__(self, word: str) -> str:
        if len(word) > TERM_MAX:
            return _stem(word)
        if len(self) >= 1 << 17:
            self.clear()
        self[word] = found = _stem(word)
        return found


_stems = _Stems()


@functools.lru_cache(maxsize=8)
def units(text: str) -> tuple[str, ...]:
    """The folded words of ``text`` in order; each character of an unspaced script is a word of its own."""
    found: list[str] = []
    for word, unspaced in _runs(text):
        if unspaced:
            found.extend(word)
        else:
            found.append(word[:TERM_MAX])
    return tuple(found)


def index_terms(text: str) -> list[str]:
    """The terms that a stored text is found by, with repetitions."""
    if text.isascii() and len(text) <= TEXT_MAX:
        return list(map(_stems.__getitem__, _ascii_words(text)))
    found: list[str] = []
    for word, unspaced in _runs(text):
        if unspaced:
            found.extend(word)
            found.extend(map("".join, itertools.pairwise(word)))
        else:
            found.append(_stems[word])
    return found


@functools.lru_cache(maxsize=8)
def query_terms(text: str) -> tuple[tuple[str, ...], bool]:
    """The distinct terms of a question in order, and whether they inform (False: nothing but stop words was there).

    Kept for the next stores, which are asked about the same task.
    """
    stopped: dict[str, None] = {}
    found: dict[str, None] = {}
    for word, unspaced in dict.fromkeys(_runs(text)):
        if unspaced:
            found.update(dict.fromkeys(map("".join, itertools.pairwise(word)) if len(word) > 1 else word))
        elif word in STOP_WORDS:
            stopped[stem(word)] = None
        else:
            found[_stems[word]] = None
    return (tuple(found), True) if found else (tuple(stopped), False)


def merge_key(text: str) -> bytes:
    """Equal for texts that say the same in the same words: differences of case, spacing, sentence marks and articles only.

    Word order, negations, numbers, names and symbols ("C" and "C++", "plan A" and "plan") all count, so that two facts
    never become one.
    """
    text = text.strip()
    if "." in text or "," in text:
        text = _IN_NUMBER.sub("\x02", text)
    if " A" in text:
        text = _LETTER_A.sub(" A\x01", text)
    if text.isascii():
        words = text.encode("ascii").translate(_MERGE_ASCII).split()
    else:
        folded = _MERGE_MARKS.sub(" ", unicodedata.normalize("NFC", text).casefold())
        words = [word.encode("utf-8", "surrogatepass") for word in folded.split()]
    kept = [word for word in words[:-1] if word not in _MERGE_FILLERS] + words[-1:]
    if len(kept) > 1 and kept[0] == b"user":
        del kept[0]
    return hashlib.blake2b(b" ".join(kept) or text.encode("utf-8", "surrogatepass"), digest_size=12).digest()


def _runs(text: str) -> Iterable[tuple[str, bool]]:
    """Folded runs of word characters in order, each with whether it is of an unspaced script."""
    if len(text) > TEXT_MAX:
        text = f"{text[: TEXT_MAX // 2]} {text[-TEXT_MAX // 2 :]}"
    text = fold(text)
    if text.isascii():
        return [(word, False) for word in _ascii_words(text)]
    return [(match[0], match.lastindex == 1) for match in _word_pattern().finditer(text)]


def _ascii_words(text: str) -> list[str]:
    if "++" in text or "#" in text:
        return _ASCII_NAMES.findall(text.lower())
    return text.encode("ascii").translate(_ASCII_WORDS).decode("ascii").split()


@functools.cache
def _word_pattern() -> re.Pattern[str]:
    """Letters, digits and the marks that belong to letters (vowel signs of Indic scripts, Hebrew points, Arabic signs)."""
    marks = "".join(chr(code) for code in range(0x300, 0x1E00) if unicodedata.category(chr(code))[0] == "M")
    letter = f"(?:(?![{_UNSPACED}])[^\\W_])"
    return re.compile(f"([{_UNSPACED}]+)|{letter}(?:{letter}|[{re.escape(marks)}])*{_SYMBOLS}")
