"""What made texts are made of: English words as they occur, identifiers, time stamps, random digits."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from functools import cache
from pydoc_data import topics
from random import Random

Maker = Callable[[Random], str]


@cache
def words() -> tuple[str, ...]:
    """English words of technical prose, as often as they occur in it."""
    return tuple(re.findall(r"\b[a-z]{1,14}\b", " ".join(topics.topics.values()).lower()))


def some(rng: Random, low: int, high: int) -> list[str]:
    return rng.choices(words(), k=rng.randint(low, high))


def sentence(rng: Random) -> str:
    text = " ".join(some(rng, 4, 18)).capitalize()
    return text.replace(" and ", ", and ") + rng.choice(".....?!")


def identifier(rng: Random) -> str:
    parts = [w for w in some(rng, 1, 4) if len(w) > 1] or ["item"]
    style = rng.randrange(4)
    if style == 0:
        return "_".join(parts)
    if style == 1:
        return parts[0] + "".join(w.capitalize() for w in parts[1:])
    return "-".join(parts) if style == 2 and rng.random() < 0.4 else "_".join(parts[:2])


def stamp(rng: Random) -> str:
    day = f"20{rng.randint(10, 29)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}"
    return (
        day
        + rng.choice("T ")
        + clock
        + rng.choice(["", "Z", f".{rng.randint(0, 999):03}Z", f",{rng.randint(0, 999):03}"])
    )


def hexes(rng: Random, length: int) -> str:
    return "".join(rng.choices("0123456789abcdef", k=length))


def base64_of(rng: Random, length: int) -> str:
    return base64.b64encode(rng.randbytes(length)).decode()


def url(rng: Random) -> str:
    query = "&".join(
        f"{identifier(rng)}={rng.choice([hexes(rng, 12), identifier(rng), str(rng.randint(0, 9999))])}"
        for _ in range(rng.randint(0, 3))
    )
    host = (
        rng.choice(["www.", "api.", "docs.", ""])
        + "".join(some(rng, 1, 2))
        + rng.choice([".com", ".org", ".io", ".example.net"])
    )
    return f"https://{host}/{'/'.join(identifier(rng) for _ in range(rng.randint(1, 4)))}" + (
        f"?{query}" if query else ""
    )
