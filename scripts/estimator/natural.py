"""Real texts: sessions and documents under a data folder, the translations of Django and Faker, and source files on this machine.

Each source is cut into documents, each document belongs to one split for good (``split_of``), and long ones are cut into
pieces of 300 to 2,000 characters. What is not installed is left out and said so.
"""

from __future__ import annotations

import gettext
import hashlib
import json
import os
import re
import sys
import sysconfig
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

DATA = Path(os.environ.get("SCRIPT_DATA", "."))
# The final test draws its made texts from seeds of its own, so that looking at it spends nothing: new ones for each version.
SEEDS = {"fit": "fit", "choice": "choice", "test": "test-3"}
SOURCES = {
    "Python": ([Path(sysconfig.get_paths()["stdlib"])], "*.py"),
    "C": ([Path("/usr/include"), Path(sysconfig.get_paths()["include"])], "*.h"),
    "Go": ([Path("/usr/local/go/src")], "*.go"),
    "Rust": ([Path.home() / ".cargo/registry/src"], "*.rs"),
    "JavaScript": (
        [
            Path(os.environ.get("SCRIPT_TOOLS", ".")) / "node_modules",
            Path("/usr/share/nodejs"),
            Path("/usr/lib/node_modules"),
            Path("/usr/local/lib/node_modules"),
        ],
        "*.js",
    ),
    "TypeScript": ([Path(os.environ.get("SCRIPT_TOOLS", ".")) / "node_modules"], "*.ts"),
    "markdown": (
        [
            Path("/usr/local/lib/node_modules"),
            Path("/usr/share/nodejs"),
            Path("/usr/lib/node_modules"),
            Path.home() / ".cargo/registry/src",
        ],
        "*.md",
    ),
}
# The kind of each language, its codes in Django and in Faker.
LANGUAGES = {
    "Russian": ("ru", "ru_RU"),
    "Ukrainian": ("uk", "uk_UA"),
    "Bulgarian": ("bg", "bg_BG"),
    "Serbian": ("sr", None),
    "Chinese": ("zh_Hans", "zh_CN"),
    "Chinese traditional": ("zh_Hant", "zh_TW"),
    "Japanese": ("ja", "ja_JP"),
    "Korean": ("ko", "ko_KR"),
    "Greek": ("el", "el_GR"),
    "Hebrew": ("he", "he_IL"),
    "Arabic": ("ar", "ar_AA"),
    "Persian": ("fa", "fa_IR"),
    "Thai": ("th", "th_TH"),
    "Hindi": ("hi", "hi_IN"),
    "Bengali": ("bn", "bn_BD"),
    "Tamil": ("ta", "ta_IN"),
    "Telugu": ("te", None),
    "Kannada": ("kn", None),
    "Georgian": ("ka", "ka_GE"),
    "Armenian": ("hy", "hy_AM"),
    "Vietnamese": ("vi", "vi_VN"),
    "French": ("fr", "fr_FR"),
    "German": ("de", "de_DE"),
    "Spanish": ("es", "es_ES"),
    "Portuguese": ("pt", "pt_PT"),
    "Polish": ("pl", "pl_PL"),
    "Czech": ("cs", "cs_CZ"),
    "Turkish": ("tr", "tr_TR"),
    "Hungarian": ("hu", "hu_HU"),
    "Swedish": ("sv", "sv_SE"),
    "Romanian": ("ro", "ro_RO"),
    "Italian": ("it", "it_IT"),
    "Dutch": ("nl", "nl_NL"),
    "Finnish": ("fi", "fi_FI"),
    "Estonian": ("et", "et_EE"),
    "Croatian": ("hr", "hr_HR"),
    "Indonesian": ("id", "id_ID"),
    "Swahili": ("sw", "sw"),
    "Latin": (None, "la"),
    "Tagalog": (None, "tl_PH"),
}
# Languages that no fit sees: Latin and Cyrillic letters in an order that it could not learn by heart.
UNFITTED = {
    "choice": {"Danish": "da", "Catalan": "ca", "Slovak": "sk", "Welsh": "cy", "Macedonian": "mk"},
    "test": {
        "Norwegian": "nb",
        "Slovenian": "sl",
        "Lithuanian": "lt",
        "Latvian": "lv",
        "Irish": "ga",
        "Basque": "eu",
        "Galician": "gl",
        "Malay": "ms",
        "Afrikaans": "af",
        "Azerbaijani": "az",
        "Uzbek": "uz",
        "Icelandic": "is",
        "Albanian": "sq",
        "Esperanto": "eo",
        "Belarusian": "be",
    },
}
# People's names come from other countries in each split.
_NAMES = {
    "fit": ("en_US", "en_IN", "en_NG", "yo_NG", "fi_FI", "id_ID", "it_IT", "nl_NL", "es_MX", "tr_TR"),
    "choice": ("en_GB", "zu_ZA", "no_NO", "et_EE", "de_AT", "fr_BE"),
    "test": ("en_IE", "sw", "is_IS", "ig_NG", "tw_GH", "da_DK", "sl_SI", "pt_BR"),
}
WORDS_ALONE = "words alone"
_PARALLEL = {
    "en": "English docs",
    "de": "German",
    "es": "Spanish",
    "fr": "French",
    "pt": "Portuguese",
    "tr": "Turkish",
    "ru": "Russian",
    "uk": "Ukrainian",
    "ja": "Japanese",
    "ko": "Korean",
    "zh": "Chinese",
    "zh-hant": "Chinese traditional",
    "hi": "Hindi",
}
_PARALLEL_SPLIT = {"features": "fit", "first-steps": "choice", "async": "test"}


class Text(NamedTuple):
    """One text: ``kind`` as reported, ``source`` and ``split`` ("fit", "choice" or "test") it comes from."""

    kind: str
    source: str
    split: str
    text: str


def split_of(name: str) -> str:
    """The split of the document ``name``: half to fit, a quarter to choose, a quarter to test."""
    return ("fit", "fit", "choice", "test")[hashlib.sha256(name.encode()).digest()[0] % 4]


def pieces(text: str, name: str) -> Iterator[str]:
    """``text`` cut at line ends into pieces of about 300 to 2,000 characters."""
    rng = Random(name)
    limit, part = rng.randint(300, 2000), ""
    for line in text.splitlines(keepends=True):
        if part and len(part) + len(line) > limit:
            yield part
            limit, part = rng.randint(300, 2000), ""
        part += line
        while len(part) > 2 * limit:
            yield part[:limit]
            part = part[limit:]
    if len(part) >= 200:
        yield part


def _lines(name: str) -> Iterator[dict[str, object]]:
    path = DATA / name
    if not path.is_file():
        print(f"left out: {path} is not there", file=sys.stderr)
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _sessions() -> Iterator[Text]:
    for folder, kind in (
        ("tau_airline", "tau"),
        ("swe_agent", "SWE agent"),
        ("toolbench", "toolbench"),
        ("oasst_en", "English chat"),
    ):
        for session in _lines(f"{folder}/sessions.jsonl"):
            name = str(session["id"])
            split = split_of(name)
            if functions := session.get("functions"):
                for i, piece in enumerate(pieces(json.dumps(functions), name)):
                    yield Text("toolbench functions", f"{name}/{i}", split, piece)
            speech = []
            for message in session["messages"]:  # type: ignore[attr-defined]
                content = message.get("content") or ""
                call = message.get("tool_calls") or message.get("function_call")
                if call:
                    speech.append((f"{kind} calls", json.dumps(call)))
                role = (
                    "tool"
                    if message["role"] in ("tool", "function") or (kind == "SWE agent" and message["role"] == "user")
                    else "speech"
                )
                if message["role"] == "system":
                    role = "system"
                speech.append((f"{kind} {role}" if kind != "English chat" else kind, content))
            for of in sorted({k for k, _ in speech}):
                # A system message is the same in most sessions: take it seldom.
                if of.endswith("system") and hashlib.sha256(name.encode()).digest()[1] % 10 and kind == "tau":
                    continue
                joined = "\n".join(text for k, text in speech if k == of)
                for i, piece in enumerate(pieces(joined, name + of)):
                    yield Text(of, f"{name}/{i}", split, piece)


def _documents() -> Iterator[Text]:
    for document in _lines("parallel_docs/docs.jsonl"):
        kind, name = _PARALLEL[str(document["lang"])], str(document["id"])
        for i, piece in enumerate(pieces(str(document["text"]), name)):
            yield Text(kind, f"{name}/{i}", _PARALLEL_SPLIT[str(document["doc"]).split("/")[-1]], piece)


def _django() -> Iterator[Text]:
    try:
        import django
    except ImportError:
        print("left out: the package django is missing", file=sys.stderr)
        return
    root = Path(django.__file__).parent
    languages = [(kind, code, None) for kind, (code, _) in LANGUAGES.items() if code]
    languages += [
        (f"{kind} (not fitted)", code, split) for split, codes in UNFITTED.items() for kind, code in codes.items()
    ]
    # Messages that are not translated are English; languages that get by without accents are taken as they are.
    accented = set(list(LANGUAGES)[: list(LANGUAGES).index("Italian")]) - {"Spanish", "Portuguese", "Swedish"}
    for kind, code, only in languages:
        for path in sorted(root.glob(f"**/locale/{code}/LC_MESSAGES/*.mo")):
            app = (*path.relative_to(root).parts[-6:-4], path.stem)
            with path.open("rb") as file:
                messages = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
            texts = [str(text) for key, text in messages.items() if key and isinstance(text, str)]
            texts = [text for text in texts if kind not in accented or any(ord(char) > 0x7F for char in text)]
            name = f"django/{'/'.join(app)}"
            for i, piece in enumerate(pieces("\n".join(texts), name)):
                yield Text(kind, f"{name}/{kind}/{i}", only or split_of(f"{name}/{i // 3}"), piece)


def _faker() -> Iterator[Text]:
    try:
        from faker import Faker
        from faker.config import AVAILABLE_LOCALES
    except ImportError:
        print("left out: the package faker is missing", file=sys.stderr)
        return
    from faker.providers import lorem as lorems

    own = {path.name for path in Path(lorems.__file__).parent.iterdir()}
    for kind, (_, code) in LANGUAGES.items():
        if code is None or code not in AVAILABLE_LOCALES:
            continue
        for split, count in (("fit", 14), ("choice", 8), ("test", 8)):
            fake = Faker(code)
            fake.seed_instance(f"{SEEDS[split]}/{code}")
            for i in range(count):
                lines = [f"{fake.name()}, {fake.address()}" for _ in range(4)]
                lines += (
                    [fake.paragraph(nb_sentences=3) for _ in range(4)]
                    if code in own
                    else [fake.name() for _ in range(8)]
                )
                yield Text(kind, f"faker/{code}/{split}/{i}", split, "\n".join(lines))
    for split, codes in _NAMES.items():
        for code in codes:
            fake = Faker(code)
            fake.seed_instance(f"names/{SEEDS[split]}/{code}")
            for i in range(6):
                name = ", ".join(fake.name() for _ in range(24))
                yield Text("names", f"faker/names/{code}/{i}", split, name)


def _code() -> Iterator[Text]:
    for kind, (roots, pattern) in SOURCES.items():
        paths = sorted({path for root in roots if root.is_dir() for path in root.rglob(pattern)})
        Random(kind).shuffle(paths)
        taken = 0
        for path in paths:
            if taken >= 160 or "site-packages" in path.parts or "tokenizer" in path.name:
                continue
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            if len(text) < 600 or len(text) > 400_000:
                continue
            minified = len(text) / (text.count("\n") + 1) > 300
            name = f"{kind}/{path.parent.name}/{path.name}"
            split = split_of(name)
            for i, piece in enumerate(pieces(text, name)):
                # The test has pieces of its files that no earlier version was looked at with.
                if i in ((2, 5, 8) if split == "test" else (1, 4, 9)):
                    taken += 1
                    yield Text("minified JS" if minified else kind, f"{name}/{i}", split, piece)


def _docstrings() -> Iterator[Text]:
    from pydoc_data import topics

    for name, text in topics.topics.items():
        for i, piece in enumerate(pieces(text, name)):
            if i < 3:
                yield Text("English docs", f"topics/{name}/{i}", split_of(f"topics/{name}"), piece)


def natural() -> Iterator[Text]:
    """Every real text at hand."""
    for source in (_sessions, _documents, _django, _faker, _code, _docstrings):
        yield from source()


def words_alone(texts: list[Text], count: int) -> list[Text]:
    """The ``count`` commonest English words of ``texts``, each a text of its own: said forty times.

    In prose a word that is estimated too high makes up for one that is too low; here it cannot.
    """
    english = ("English chat", "English docs", "tau speech", "markdown", "SWE agent speech")
    found = Counter(word for text in texts if text.kind in english for word in re.findall(r"\b[a-z]{2,}\b", text.text))
    words = sorted(found, key=lambda word: (-found[word], word))[:count]
    return [Text(WORDS_ALONE, f"words/{word}", texts[0].split, f" {word}" * 40) for word in words]


def derived(texts: list[Text]) -> Iterator[Text]:
    """Texts made of real ones: decomposed accents, accents in capitals, two languages in one, without line ends."""
    by_kind: dict[str, list[Text]] = {}
    for text in texts:
        by_kind.setdefault(text.kind, []).append(text)
    accented = (
        "French",
        "German",
        "Spanish",
        "Portuguese",
        "Polish",
        "Czech",
        "Hungarian",
        "Swedish",
        "Romanian",
        "Turkish",
    )
    for kind in accented:
        for text in by_kind.get(kind, [])[::3]:
            yield text._replace(kind="accents decomposed", text=unicodedata.normalize("NFD", text.text))
            yield text._replace(kind="accents capital", text=text.text.upper())
    for kind in list(LANGUAGES)[:20]:
        for text in by_kind.get(kind, []):
            alone = re.sub(r"[ \t]+", " ", re.sub(r"[!-/:-~]+", "", text.text))
            yield text._replace(kind=f"{kind} alone", text=alone)
    for text in by_kind.get("Vietnamese", [])[::2]:
        yield text._replace(kind="Vietnamese decomposed", text=unicodedata.normalize("NFD", text.text))
    for kind in ("Russian", "Ukrainian"):
        for text in by_kind.get(kind, [])[::4]:
            yield text._replace(kind="Cyrillic capital", text=text.text.upper())
    english = by_kind.get("English chat", []) + by_kind.get("English docs", [])
    for text in english[::8]:
        yield text._replace(kind="capitals", text=text.text.upper())
    for text in english[1::8]:
        curly = re.sub(r'"([^"]*)"', "“\\1”", text.text).replace("'", "’").replace(" - ", " — ").replace("...", "…")
        yield text._replace(kind="typographic", text=curly)
    for text in english + by_kind.get("markdown", []) + by_kind.get("tau speech", [])[::3]:
        found = re.findall(r"\b[a-z]{3,}\b", text.text)
        yield text._replace(kind="long words found", text=" ".join(word for word in found if len(word) > 5))
        joined = ("".join(map(str.capitalize, found[i : i + 3])) for i in range(0, len(found), 3))
        yield text._replace(kind="camel case found", text=" ".join(joined))
        yield text._replace(kind="lower case", text=text.text.lower())
    for kind in ("Python", "C", "Go", "Rust", "JavaScript"):
        for text in by_kind.get(kind, [])[::6]:
            yield text._replace(
                kind="code deep", text="".join(" " * 8 + line for line in text.text.splitlines(keepends=True))
            )
        for text in by_kind.get(kind, [])[1::6]:
            numbered = "".join(f"{i + 37}:{line}" for i, line in enumerate(text.text.splitlines(keepends=True)))
            yield text._replace(kind="code numbered", text=numbered)
        for text in by_kind.get(kind, [])[2::6]:
            yield text._replace(kind="code in JSON", text=json.dumps({"content": text.text}))
    for kind in ("Chinese", "Russian", "Japanese", "Greek", "Hindi", "Arabic", "Korean", "French"):
        for text in by_kind.get(kind, [])[::5]:
            rows = [{"id": i, "text": line} for i, line in enumerate(text.text.splitlines()) if line]
            yield text._replace(kind=f"JSON {kind}", text=json.dumps(rows, ensure_ascii=False)[:1500])
