"""What the ``script`` estimator looks at: character classes, the context a character stands in, and the weight it takes.

A text is walked once, left to right. Every code point has a *class* (``CLASSES``); what came before it is summed up in a
*state*; state and class together name the weights that the code point adds (``slots``) and the state that follows
(``follow``). Two rules need the character itself rather than its class: from the second equal character in a row on,
punctuation takes the weight ``<class>.same``, and from the fifth on most classes take ``same5.<group>``.

Only contexts that were measured to matter are here. The most valuable are the run of four or more consonants, which tells
random letters (base64, identifiers, hashes) from words, and the pair that a small letter makes with the one before, which
tells long English words (one token each) from invented ones and from other languages. Each class holds characters of one
UTF-8 length alone, so that its weight can be held to that many tokens: no byte-level vocabulary needs more.

The weights are in ``script_table``, which the fitting script writes; this module is the only place where classes and
contexts are decided, and the Rust table is written from it.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from typing import NamedTuple

__all__ = [
    "ASCII",
    "CLASSES",
    "PUNCTUATION",
    "RANGES",
    "SAME5",
    "SMALL",
    "State",
    "class_of",
    "follow",
    "reachable",
    "slots",
    "utf8_length",
]

ASCII: dict[str, str] = {
    "a": "a",
    "e": "e",
    "i": "i",
    "o": "o",
    "uy": "uy",
    "bmn": "bmn",
    "cp": "cp",
    "dghw": "dghw",
    "fs": "fs",
    "jkqvxz": "jkqvxz",
    "lt": "lt",
    "r": "r",
    "VOWEL": "AEIOUY",
    "CONSONANT": "BCDFGHJKLMNPQRSTVWXZ",
    "digit": "0123456789",
    "space": " ",
    "newline": "\n\r",
    "tab": "\t\v\f",
    "mark": ".,;:!?'-/",
    "underscore": "_",
    "bracket": '"()[]{}<>`',
    "operator": "#$%&*+=@\\^|~",
}
"""Classes of single characters; the ASCII characters that are not here are ``control``.

Small letters are grouped by what they make of a word: which of them stand together was searched for, not derived.
"""

RANGES: tuple[tuple[int, int, str], ...] = (
    (0x0080, 0x009F, "latin_sign"),
    (0x00A0, 0x00A0, "no_break"),
    (0x00A1, 0x00BF, "latin_sign"),
    (0x00C0, 0x00DE, "accent_upper"),
    (0x00DF, 0x00FF, "accent"),
    (0x0100, 0x024F, "accent_rare"),
    (0x0250, 0x02FF, "other2"),
    (0x0300, 0x036F, "combining"),
    (0x0370, 0x03FF, "greek"),
    (0x0400, 0x042F, "cyrillic_upper"),
    (0x0430, 0x0449, "cyrillic"),
    (0x044A, 0x044A, "cyrillic_rare"),
    (0x044B, 0x044F, "cyrillic"),
    (0x0450, 0x045F, "cyrillic_rare"),
    (0x0460, 0x052F, "other2"),
    (0x0530, 0x058F, "armenian"),
    (0x0590, 0x05FF, "hebrew"),
    (0x0600, 0x0670, "arabic"),
    (0x0671, 0x06FF, "arabic_rare"),
    (0x0700, 0x07FF, "other2"),
    (0x0800, 0x08FF, "other3"),
    (0x0900, 0x097F, "devanagari"),
    (0x0980, 0x09FF, "bengali"),
    (0x0A00, 0x0B7F, "indic"),
    (0x0B80, 0x0BFF, "tamil"),
    (0x0C00, 0x0DFF, "indic"),
    (0x0E00, 0x0E7F, "thai"),
    (0x0E80, 0x109F, "other3"),
    (0x10A0, 0x10FF, "georgian"),
    (0x1100, 0x1DFF, "other3"),
    (0x1E00, 0x1EFF, "vietnamese"),
    (0x1F00, 0x1FFF, "other3"),
    (0x2000, 0x200A, "wide_space"),
    (0x200B, 0x200B, "zero_width"),
    (0x200C, 0x200F, "invisible"),
    (0x2010, 0x2027, "typographic"),
    (0x2028, 0x202F, "wide_space"),
    (0x2030, 0x205E, "typographic"),
    (0x205F, 0x206F, "invisible"),
    (0x2070, 0x218F, "symbol"),
    (0x2190, 0x22FF, "math"),
    (0x2300, 0x24FF, "symbol"),
    (0x2500, 0x257F, "box"),
    (0x2580, 0x259F, "block"),
    (0x25A0, 0x27BF, "dingbat"),
    (0x27C0, 0x2BFF, "symbol"),
    (0x2C00, 0x2FFF, "other3"),
    (0x3000, 0x303F, "cjk_mark"),
    (0x3040, 0x30FF, "kana"),
    (0x3100, 0x31FF, "other3"),
    (0x3200, 0x4DFF, "other3"),
    (0x4E00, 0x9FFF, "han"),
    (0xA000, 0xABFF, "other3"),
    (0xAC00, 0xD7A3, "hangul"),
    (0xD7A4, 0xFDFF, "other3"),
    (0xFE00, 0xFE0F, "selector"),
    (0xFE10, 0xFEFF, "other3"),
    (0xFF00, 0xFF65, "cjk_mark"),
    (0xFF66, 0xFFFF, "other3"),
    (0x10000, 0x1F1E5, "other4"),
    (0x1F1E6, 0x1F1FF, "flag"),
    (0x1F200, 0x1F2FF, "other4"),
    (0x1F300, 0x1FAFF, "emoji"),
    (0x1FB00, 0x10FFFF, "other4"),
)
"""Every code point from U+0080 on, lone surrogates included: first, last, class."""

CLASSES: tuple[str, ...] = (*ASCII, "control", *dict.fromkeys(name for _, _, name in RANGES))

_VOWELS = ("a", "e", "i", "o", "uy", "VOWEL")
SMALL = (*_VOWELS[:-1], "bmn", "cp", "dghw", "fs", "jkqvxz", "lt", "r")
_LETTERS = (*SMALL, "VOWEL", "CONSONANT")
PUNCTUATION = ("mark", "underscore", "bracket", "operator")
_WHITE = ("space", "newline", "tab")
_ACCENTS = ("accent", "accent_upper")
_RARE_ACCENTS = ("accent_rare", "vietnamese", "combining")
_AFTER_SPACE = ("space", "spaces", "indent")
_FRESH = ("line", *_AFTER_SPACE)

SAME5: dict[str, str] = {
    "space": "same5.space",
    "newline": "same5.newline",
    "tab": "same5.tab",
    **dict.fromkeys(PUNCTUATION, "same5.mark"),
    **dict.fromkeys(_LETTERS, "same5.letter"),
    "box": "same5.box",
    "block": "same5.box",
    "typographic": "same5.box",
    "cjk_mark": "same5.box",
}
"""The weight that a class takes from the fifth equal character in a row on; the other classes have no such rule."""


_ASCII_CLASS = {char: name for name, chars in ASCII.items() for char in chars}
_STARTS = [first for first, _, _ in RANGES]


def class_of(point: int) -> str:
    """The class of a code point, 0 to 0x10FFFF."""
    if point < 0x80:
        return _ASCII_CLASS.get(chr(point), "control")
    return RANGES[bisect_right(_STARTS, point) - 1][2]


def utf8_length(name: str) -> int:
    """The UTF-8 bytes of each character of the class ``name``, 1 to 4."""
    first = next((first for first, _, cls in RANGES if cls == name), 0)
    return 1 if first < 0x80 else 2 if first < 0x800 else 3 if first < 0x10000 else 4


class State(NamedTuple):
    """What stands before a character.

    ``kind`` is "line" (start of the text or of a line), "indent" (white space after that), "space" (one space),
    "spaces" (more), "digit", "mark", "bracket", "operator", "accent" or "rare_accent" (a Latin letter beyond ASCII), "other",
    "lower" or "upper".
    After letters, ``letters`` counts those of the word so far (3: three or more, 2 after a capital: two or more; a capital
    after a small letter begins a new word), ``consonants`` those in a row at the end (3: three or more), and ``letter`` is
    the class of the last one, if small.
    """

    kind: str
    letters: int = 0
    consonants: int = 0
    letter: str = ""


START = State("line")


def follow(state: State, cls: str) -> State:
    """The state after a character of class ``cls`` that stood in ``state``."""
    if cls in _LETTERS:
        upper, consonant = cls not in SMALL, cls not in _VOWELS
        in_word = state.kind == "lower" or state.kind == "upper"
        new_word = not in_word or (upper and state.kind == "lower")
        letters = 1 if new_word else min(state.letters + 1, 2 if upper else 3)
        # The run of consonants goes on over a change of case: random strings change it all the time.
        consonants = min(state.consonants + 1, 3) if consonant else 0
        return State("upper", letters, consonants) if upper else State("lower", letters, consonants, cls)
    if cls == "newline":
        return START
    if cls in _WHITE:
        if state.kind in ("line", "indent"):
            return State("indent")
        return State("spaces" if state.kind in ("space", "spaces") or cls == "tab" else "space")
    if cls == "digit":
        return State("digit")
    if cls in PUNCTUATION:
        return State(cls)
    return State("accent" if cls in _ACCENTS else "rare_accent" if cls in _RARE_ACCENTS else "other")


def slots(state: State, cls: str) -> tuple[str, ...]:
    """The names of the weights that a character of class ``cls`` adds in ``state``.

    Digits and other scripts after a space add a second one: some vocabularies cannot join the space to what follows. The
    fit keeps that weight and the space's own within the one token that the space can cost.
    """
    before = state.kind
    if cls in _LETTERS:
        case = "lower" if cls in SMALL else "upper"
        if cls not in _VOWELS and state.consonants >= 2:
            return (f"{case}.cluster" if state.consonants >= 3 else f"{case}.third",)
        if before in ("lower", "upper"):
            if case == "upper":
                if before == "upper":
                    place = "second" if state.letters == 1 else "later"
                    return (f"upper.{place}.{'consonant' if state.consonants else 'vowel'}.{cls}",)
                return ("upper.hump" if state.letters > 2 else "upper.after_lower",)
            if before == "lower":
                return (f"lower.{state.letter}.{cls}",)
            return ("lower.after_upper" if state.letters > 1 else f"lower.second.{cls}",)
        if before in ("digit", "accent", "rare_accent", "other"):
            return (f"{case}.after_{before}",)
        if before in PUNCTUATION:
            return (f"{case}.after_{'underscore' if before == 'underscore' else 'mark'}",)
        return (f"lower.first.{cls}" if case == "lower" else "upper.first",)
    if cls == "digit":
        return ("digit", "digit.after_space") if before in _AFTER_SPACE else ("digit",)
    if cls in PUNCTUATION:
        place = "space" if before in _FRESH else before if before in ("digit", *PUNCTUATION) else "letter"
        return (f"{cls}.after_{place}",)
    if cls == "space":
        if before in ("line", "indent"):
            return ("space.indent",)
        if before in ("space", "spaces"):
            return ("space.run",)
        if before in PUNCTUATION:
            return ("space.after_mark",)
        if before == "lower":
            return (f"space.after.{state.letter}",)
        return (f"space.after_{before}",) if before in ("digit", "rare_accent", "other") else ("space",)
    if cls in ("newline", "tab"):
        if before == "line":
            return (f"{cls}.run",)
        return (f"{cls}.after_space",) if before in _FRESH else (cls,)
    if (cls in _ACCENTS and before == "accent") or (cls in ("accent_rare", "vietnamese") and before == "rare_accent"):
        return (f"{cls}.again",)
    if before in _AFTER_SPACE and cls not in _ACCENTS + _RARE_ACCENTS:
        return (cls, "other.after_space")
    return (cls,)


@cache
def reachable() -> tuple[State, ...]:
    """Every state, in a fixed order: the start first, then as they are met."""
    found = [START]
    for state in found:
        for cls in CLASSES:
            after = follow(state, cls)
            if after not in found:
                found.append(after)
    return tuple(found)
