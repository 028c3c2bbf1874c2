"""Made texts beyond ASCII that no prose holds: emoji, flags, joiners, mathematics, rare characters, invisible ones."""

from __future__ import annotations

from random import Random

from estimator.vocabulary import Maker, sentence, some, words

_FACES = [chr(c) for c in (*range(0x1F600, 0x1F645), *range(0x1F90D, 0x1F93B), *range(0x1F970, 0x1F97A))]
_OBJECTS = [
    chr(c)
    for c in (
        *range(0x1F300, 0x1F321),
        *range(0x1F330, 0x1F394),
        *range(0x1F400, 0x1F4FE),
        *range(0x1F680, 0x1F6C6),
        *range(0x1F950, 0x1F96F),
    )
]
_COMMON = list("✅❌⚠️🚀🎉👍🔥💡📝🐛✨🙏😀😂😊👏👋💯📊🔧🎯⭐")
_JOINED = ["👩‍👩‍👧‍👦", "👨🏽‍💻", "🏳️‍🌈", "🧑🏿‍🚀", "👩‍🔬", "👨‍👩‍👦", "❤️‍🔥", "🤦🏻‍♀️", "👩🏾‍🏫", "🧔‍♂️", "👁️‍🗨️", "🏴‍☠️"]


def _flag(rng: Random) -> str:
    return "".join(
        chr(0x1F1E6 + ord(c) - 65)
        for c in rng.choice(
            ["DE", "FR", "US", "GB", "JP", "CN", "UA", "GR", "IN", "BR", "KR", "IT", "ES", "CA", "SE", "PL"]
        )
    )


def emoji_run(rng: Random) -> str:
    return "".join(rng.choices(_FACES + _OBJECTS, k=rng.randint(60, 200)))


def faces(rng: Random) -> str:
    return "".join(rng.choices(_FACES[:69], k=rng.randint(60, 200)))


def emoji_chat(rng: Random) -> str:
    return " ".join(
        f"{' '.join(some(rng, 1, 6))} {''.join(rng.choices(_COMMON + _FACES, k=rng.randint(1, 3)))}"
        for _ in range(rng.randint(10, 30))
    )


def joined(rng: Random) -> str:
    return rng.choice(["", " "]).join(rng.choices(_JOINED, k=rng.randint(20, 60)))


def flags(rng: Random) -> str:
    return rng.choice(["", " "]).join(_flag(rng) for _ in range(rng.randint(40, 120)))


def mathematics(rng: Random) -> str:
    return rng.choice(["", " "]).join(rng.choices("∑∫√∞≈≠≤≥∂∇∈∉⊂⊆∪∩∀∃⇒⇔→←↔×÷±·∘⊕⊗⟨⟩ℝℕℤ∧∨¬∝∅", k=rng.randint(200, 400)))


def formulas(rng: Random) -> str:
    signs = "∑∫√∞≈≠≤≥∂∇∈⊂∪∩∀∃⇒→×±αβγδελμπσφω²³₀₁"
    return "\n".join(
        " ".join(
            rng.choice(
                [
                    rng.choice(signs),
                    rng.choice("xyzabfn"),
                    f"{rng.choice('xyfg')}({rng.choice('xyz')})",
                    str(rng.randint(0, 20)),
                    rng.choice("=+-"),
                    rng.choice(words()),
                ]
            )
            for _ in range(rng.randint(6, 20))
        )
        for _ in range(rng.randint(6, 14))
    )


def symbols(rng: Random) -> str:
    pool = rng.choice(["€₹₽₩₿₺", "™№℃℉Ωℓ℮", "⁰⁴⁵⁶ⁿ₀₁₂₃₄", "①②③④⑤⑩Ⓐⓑ", "ⅠⅡⅢⅣⅷ⅓⅔⅛", "⌘⌥⏎⏱⌛⏸⎋", "⟨⟩⟶⟵⟹⟦⟧⬆⬇⭐"])
    return " ".join(
        rng.choice(["{}", "{}{}", "{} {}"]).format(rng.choice(["", *some(rng, 1, 1)]), rng.choice(pool))
        for _ in range(rng.randint(60, 150))
    )


def latin_signs(rng: Random) -> str:
    return rng.choice(["", " "]).join(
        rng.choice("§©®°±²³·«»¿¡¢£¥µ¶ªº¼½") + rng.choice(["", "", str(rng.randint(1, 99)), *some(rng, 1, 1)])
        for _ in range(rng.randint(80, 200))
    )


def typographic(rng: Random) -> str:
    return " ".join(
        rng.choice(
            ["“{}”", "‘{}’", "{} — ", "{}…", "{}–", "• {}", "{}’s", "«{}»", "{} →", "© {}", "{} ™", "§ {}", "{} €"]
        ).format(sentence(rng))
        for _ in range(rng.randint(6, 16))
    )


def bullets(rng: Random) -> str:
    mark = rng.choice(["• ", "● ", "→ ", "✓ ", "– ", "▪ ", "★ "])
    return "\n".join(mark + sentence(rng) for _ in range(rng.randint(6, 16)))


def rare_han(rng: Random) -> str:
    return "".join(chr(rng.randint(0x4E00, 0x9FA5)) for _ in range(rng.randint(200, 400)))


def invisible(rng: Random) -> str:
    return rng.choice(["\u200c", "\u200d", "\u200e", "\u2060"]) * rng.randint(100, 300)


def zero_width(rng: Random) -> str:
    return "\u200b" * rng.randint(100, 300) if rng.random() < 0.5 else "\u200b".join(some(rng, 60, 150))


def wide_spaces(rng: Random) -> str:
    return rng.choice(["\u2003", "\u2009", "\u202f"]) * rng.randint(100, 300)


def no_break(rng: Random) -> str:
    return "\u00a0".join(some(rng, 60, 150)) if rng.random() < 0.5 else "\u202f".join(some(rng, 60, 150))


def dingbats(rng: Random) -> str:
    return rng.choice(["", " "]).join(chr(rng.randint(0x25A0, 0x27BF)) for _ in range(rng.randint(100, 300)))


def box_rules(rng: Random) -> str:
    return "\n".join(rng.choice("─═━│█░▓▬…—·") * rng.randint(20, 100) for _ in range(rng.randint(4, 10)))


def blocks(rng: Random) -> str:
    return "".join(rng.choices("▁▂▃▄▅▆▇█░▒▓▌▐", k=rng.randint(100, 300)))


def rare_two(rng: Random) -> str:
    return "".join(
        chr(rng.choice([*range(0x250, 0x300), *range(0x460, 0x52F), *range(0x710, 0x7B1)]))
        for _ in range(rng.randint(100, 300))
    )


def rare_three(rng: Random) -> str:
    return "".join(
        chr(
            rng.choice(
                [
                    *range(0x1200, 0x1248),
                    *range(0xE81, 0xEB0),
                    *range(0x1780, 0x17B4),
                    *range(0x1000, 0x1040),
                    *range(0x3400, 0x3500),
                    *range(0xE000, 0xE040),
                ]
            )
        )
        for _ in range(rng.randint(100, 300))
    )


def rare_four(rng: Random) -> str:
    return "".join(
        chr(rng.choice([*range(0x1D400, 0x1D455), *range(0x20000, 0x20100), *range(0x10330, 0x1034B)]))
        for _ in range(rng.randint(60, 200))
    )


def controls(rng: Random) -> str:
    return "".join(
        rng.choice(["\x1b[31m", "\x1b[0m", "\x1b[1;32m", "\x07", "\x08"]) + rng.choice(["", " ".join(some(rng, 1, 3))])
        for _ in range(rng.randint(40, 90))
    )


def fullwidth(rng: Random) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in " ".join(some(rng, 30, 60)))


def halfwidth_kana(rng: Random) -> str:
    return "".join(chr(rng.randint(0xFF66, 0xFF9D)) for _ in range(rng.randint(100, 300)))


def accents_random(rng: Random) -> str:
    return "".join(rng.choices("àáâãäåæçèéêëìíîïñòóôõöøùúûüýßÀÉÖÜ", k=rng.randint(200, 400)))


def transliterated(rng: Random) -> str:
    return "".join(rng.choices("āīūēōśṣṇṭḍṃḥčšžřůąęłńżźćőűğışțșđ aeioubdgklmnprst", k=rng.randint(200, 500)))


KINDS: dict[str, Maker] = {
    "emoji run": emoji_run,
    "emoji faces": faces,
    "emoji chat": emoji_chat,
    "emoji joined": joined,
    "flags": flags,
    "math signs": mathematics,
    "symbols": symbols,
    "Latin signs": latin_signs,
    "formulas": formulas,
    "typographic": typographic,
    "bullets": bullets,
    "rare Han": rare_han,
    "invisible": invisible,
    "zero-width spaces": zero_width,
    "wide spaces": wide_spaces,
    "no-break spaces": no_break,
    "dingbats": dingbats,
    "box rules": box_rules,
    "blocks": blocks,
    "rare, 2 bytes": rare_two,
    "rare, 3 bytes": rare_three,
    "rare, 4 bytes": rare_four,
    "controls": controls,
    "full width": fullwidth,
    "half-width kana": halfwidth_kana,
    "accents random": accents_random,
    "transliterated": transliterated,
}
