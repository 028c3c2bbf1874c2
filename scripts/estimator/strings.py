"""Made texts without a grammar: numbers, random strings, capitals, rules, punctuation, white space.

``KINDS`` is as in ``formats``.
"""

from __future__ import annotations

import string
import uuid
from random import Random

from estimator.vocabulary import Maker, base64_of, hexes, sentence, some, url


def numbers(rng: Random) -> str:
    style = rng.randrange(6)
    if style == 0:
        return "".join(rng.choices(string.digits, k=rng.randint(200, 900)))
    if style == 1:
        return ",".join(str(rng.randint(10, 10**6)) for _ in range(rng.randint(50, 150)))
    if style == 2:
        return "[" + ", ".join(f"{rng.uniform(-1, 1):.8f}" for _ in range(rng.randint(20, 80))) + "]"
    if style == 3:
        return "\n".join("\t".join(str(rng.randint(0, 10**4)) for _ in range(5)) for _ in range(rng.randint(10, 30)))
    if style == 4:
        return " ".join(str(rng.randint(0, 10**5)) for _ in range(rng.randint(40, 120)))
    return "\n".join(f"{rng.uniform(0, 1e6):14.3f}" for _ in range(rng.randint(20, 60)))


def base64_text(rng: Random) -> str:
    text = base64_of(rng, rng.randint(200, 800))
    if rng.random() < 0.4:
        return "\n".join(text[i : i + 76] for i in range(0, len(text), 76))
    return text.replace("+", "-").replace("/", "_") if rng.random() < 0.3 else text


def hex_text(rng: Random) -> str:
    style = rng.randrange(5)
    if style == 0:
        return hexes(rng, rng.randint(200, 900))
    if style == 1:
        return "\n".join(hexes(rng, rng.choice([40, 64])) for _ in range(rng.randint(5, 14)))
    if style == 2:
        return "\n".join(
            f"{i * 16:08x}: " + " ".join(hexes(rng, 4) for _ in range(8)) for i in range(rng.randint(6, 20))
        )
    if style == 3:
        return hexes(rng, rng.randint(200, 900)).upper()
    return " ".join(f"0x{hexes(rng, rng.choice([2, 4, 8]))}" for _ in range(rng.randint(30, 90)))


def uuids(rng: Random) -> str:
    return rng.choice(["\n", ", ", " "]).join(
        str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(rng.randint(6, 24))
    )


def random_letters(rng: Random) -> str:
    letters = rng.choice(
        [string.ascii_lowercase, string.ascii_letters, string.ascii_uppercase, string.ascii_lowercase + string.digits]
    )
    length = rng.choice([8, 12, 20, 40, 400])
    return " ".join("".join(rng.choices(letters, k=length)) for _ in range(max(1, 500 // length)))


def capitals(rng: Random) -> str:
    return " ".join(sentence(rng) for _ in range(rng.randint(3, 9))).upper()


def constants(rng: Random) -> str:
    return "\n".join(
        "_".join(some(rng, 1, 4)).upper() + rng.choice(["=1", " = 0", ""]) for _ in range(rng.randint(10, 30))
    )


def camel(rng: Random) -> str:
    return rng.choice([" ", "\n", ", "]).join(
        "".join(w.capitalize() for w in some(rng, 2, 4)) for _ in range(rng.randint(15, 40))
    )


def rules(rng: Random) -> str:
    return "\n".join(rng.choice("-=*#_~.+") * rng.randint(10, 100) for _ in range(rng.randint(3, 12)))


def rule_one(rng: Random) -> str:
    return rng.choice("-=*#_~.") * rng.randint(100, 800)


def punctuation_repeated(rng: Random) -> str:
    pool = rng.choice(
        [string.punctuation, string.punctuation, "!?.,;:", "!?", ".,;:-_/'", "()[]{}<>", "#$%&*+=@|~^", "'\"`,."]
    )
    part = "".join(rng.sample(pool, k=rng.randint(2, min(8, len(pool)))))
    return part * (400 // len(part))


def punctuation_random(rng: Random) -> str:
    pool = rng.choice([string.punctuation, string.punctuation, "!?.,;:", ".,;:-_/'", "()[]{}<>"])
    return "".join(rng.choices(pool, k=rng.randint(200, 500)))


def punctuation_spaced(rng: Random) -> str:
    return " ".join("".join(rng.choices(string.punctuation, k=rng.randint(1, 3))) for _ in range(rng.randint(80, 200)))


def space_runs(rng: Random) -> str:
    return " " * rng.randint(200, 1500)


def newline_runs(rng: Random) -> str:
    return "\n" * rng.randint(200, 1000)


def tab_runs(rng: Random) -> str:
    return "\t" * rng.randint(200, 1000)


def long_words(rng: Random) -> str:
    """The words of formal and technical prose: long ones of one token each."""
    long = [word for word in some(rng, 300, 600) if len(word) > 5]
    return " ".join(long[: rng.randint(40, 120)]).capitalize()


def white_mixed(rng: Random) -> str:
    return "".join(rng.choice([" ", "\n", "\t", " \n"]) * rng.randint(1, 30) for _ in range(40))


def white_alternating(rng: Random) -> str:
    return rng.choice([" \n", "\n ", " \t", "\t\n", " \n\n"]) * rng.randint(100, 400)


def letter_runs(rng: Random) -> str:
    if rng.random() < 0.4:
        return rng.choice(string.ascii_letters) * rng.randint(200, 1000)
    return " ".join(rng.choice(string.ascii_letters) * rng.randint(6, 60) for _ in range(rng.randint(8, 20)))


def word_repeated(rng: Random) -> str:
    return (" ".join(some(rng, 1, 3)) + rng.choice([" ", ", ", "\n"])) * 40


def random_words(rng: Random) -> str:
    return " ".join(some(rng, 60, 200))


def list_of_names(rng: Random) -> str:
    """Invented names: letters as in words, but no word."""
    parts = (
        "al",
        "be",
        "cor",
        "dra",
        "el",
        "fen",
        "gor",
        "hi",
        "is",
        "jor",
        "ka",
        "lun",
        "mi",
        "nor",
        "o",
        "pra",
        "qui",
        "ros",
        "sta",
        "tre",
        "ul",
        "vor",
        "wyn",
        "xan",
        "yl",
        "zeb",
    )
    return rng.choice([", ", "\n", "; "]).join(
        " ".join("".join(rng.choices(parts, k=rng.randint(2, 4))).capitalize() for _ in range(2))
        for _ in range(rng.randint(20, 50))
    )


def syllables(rng: Random) -> str:
    """Words of no language: each text has consonants and vowels of its own to build them from."""
    heads = rng.sample(
        [*"bcdfghjklmnpqrstvwxz", "br", "ch", "dr", "fl", "gr", "kh", "ng", "ph", "sh", "st", "th", "tr"], 9
    )
    hearts = rng.sample([*"aeiouy", "aa", "ai", "au", "ei", "ia", "ie", "io", "oo", "ou", "ua"], 6)
    ends = rng.sample(["", "", "", *"klmnrstxz", "nd", "ng", "rt", "st"], 6)
    words = [
        "".join(rng.choice(heads) + rng.choice(hearts) + rng.choice(ends) for _ in range(rng.randint(1, 4)))
        for _ in range(rng.randint(40, 100))
    ]
    return rng.choice([" ", ", ", "\n"]).join(map(str.capitalize, words) if rng.random() < 0.3 else words)


def urls(rng: Random) -> str:
    return "\n".join(url(rng) for _ in range(rng.randint(4, 12)))


KINDS: dict[str, Maker] = {
    "URLs": urls,
    "numbers": numbers,
    "base64": base64_text,
    "hex": hex_text,
    "uuid": uuids,
    "random letters": random_letters,
    "capitals": capitals,
    "constants": constants,
    "camel case": camel,
    "rules": rules,
    "rule": rule_one,
    "punctuation repeated": punctuation_repeated,
    "punctuation random": punctuation_random,
    "punctuation spaced": punctuation_spaced,
    "space runs": space_runs,
    "newline runs": newline_runs,
    "tab runs": tab_runs,
    "long words": long_words,
    "white mixed": white_mixed,
    "white alternating": white_alternating,
    "letter runs": letter_runs,
    "word repeated": word_repeated,
    "random words": random_words,
    "invented names": list_of_names,
    "syllables": syllables,
}
