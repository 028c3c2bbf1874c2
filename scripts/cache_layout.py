"""The two layouts on the embedded engine: how long it reads prompts when a note changes with every turn.

    python scripts/cache_layout.py [--windows 4096,8192] [--turns 30] [--with-tools] [--json]

The first turns of the tau stream (``$RUNE_SHARED/data``, else ``../shared/data``), one run per layout and window, the same texts
in both, history as deep as the budget allows, and a note of about 200 tokens in the block ``memory`` that is another one each
turn. The texts of user and assistant: the model's template has no words for calls of tools; ``--with-tools`` takes calls and
results along. Sums are over the turns from the sixth on. At 8192 ``seed`` alone takes a quarter of an hour on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT / "scripts", ROOT / "python"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from history_table import PERSONA, data_folder, sessions_of

from rune import ContributionBlock, Conversation, LlamaCppChatTransport, RuneOperator, Settings
from rune import contributors as made
from rune.messages import is_complete, normalise, split_system, split_turns

FIRST_COUNTED = 5
WORDS = (
    "river table green letter window seven market listen paper garden silver planet corner winter engine bottle".split()
)


class Noted(RuneOperator):
    """An operator whose memory is a note that is new on every turn, and whose history is as deep as fits."""

    _PERSONA_PROMPT = PERSONA
    note = ""

    def _new_broker(self) -> Any:
        self._stores.contributors = lambda: (
            dict.fromkeys(  # type: ignore[method-assign]
                ("persona_memories", "consolidated", "neurons", "graphs", "abstraction", "model_profile"),
                lambda task, session: None,
            )
            | {"memory": lambda task, session: ContributionBlock(content=f"## Context\n{self.note}")}
        )
        self._history = made.history(10_000)
        return super()._new_broker()


def notes(turns: int) -> list[str]:
    rng = Random(1)
    return [" ".join(rng.choices(WORDS, k=150)) for _ in range(turns)]


def texts_of(turn: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What user and assistant said in a turn, without calls and results."""
    said = (m for m in turn if m["role"] in ("user", "assistant") and m["content"].strip())
    return [{"role": m["role"], "content": m["content"]} for m in said]


def run(window: int, layout: str, turns: int, *, with_tools: bool = False) -> dict[str, Any]:
    """Prompt times in ms and cached shares of one run, a value for each counted turn."""
    every = list(sessions_of("tau_airline"))
    # The stream's own system message would fill the smaller window by itself: the persona stands alone.
    _, rest = split_system(normalise([every[0][0], *chain.from_iterable(one[1:] for one in every[:20])]))
    session = Conversation("replayed")
    times: list[float] = []
    cached: list[int] = []
    prompts: list[int] = []
    agreement: list[float] = []
    with tempfile.TemporaryDirectory() as home, contextlib.closing(LlamaCppChatTransport(n_ctx=window)) as engine:
        settings = Settings.load(home, env={}, layout=layout, compaction=False, num_predict=1)
        with Noted(engine, home=home, settings=settings) as operator:
            stream = split_turns(rest) if with_tools else filter(is_complete, map(texts_of, split_turns(rest)))
            for number, (turn, note) in enumerate(zip(stream, notes(turns), strict=False)):
                operator.note = note
                asked = "\n\n".join(message["content"] for message in turn if message["role"] == "user")
                response = operator.run(asked, Recorded.of(session), tools=False)
                assert response.success and response.trace is not None, response.error
                call = response.trace["ext"]["calls"][0]
                if number >= FIRST_COUNTED:
                    times.append(call["prompt_duration_ms"])
                    cached.append(call["cached_tokens"])
                    prompts.append(call["prompt_tokens"])
                    agreement.append(
                        response.trace["ext"]["prefix"]["share"] - call["cached_tokens"] / call["prompt_tokens"]
                    )
                session.append(turn)
                print(f"{window} {layout} {number + 1}/{turns}", end="\r", file=sys.stderr, flush=True)
    return {
        "window": window,
        "layout": layout,
        "turns": len(times),
        "sum_ms": sum(times),
        "mean_ms": statistics.mean(times),
        "median_ms": statistics.median(times),
        "worst_ms": max(times),
        "cached_share": sum(cached) / sum(prompts),
        "prefix_difference_worst": max(map(abs, agreement)),
        "prefix_difference_mean": statistics.mean(map(abs, agreement)),
    }


class Recorded(Conversation):
    """A view of a session that keeps nothing of what the model said; the recorded turn is appended instead."""

    @classmethod
    def of(cls, session: Conversation) -> Conversation:
        view = cls.__new__(cls)
        view.__dict__ = session.__dict__
        return view

    def append(self, messages: Any) -> list[Any]:
        return []


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", default="4096,8192", help="windows in tokens, with commas")
    parser.add_argument("--turns", type=int, default=30, help="turns of each run; the first five are not counted")
    parser.add_argument("--with-tools", action="store_true", help="take calls and results of tools along")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args(arguments)
    if not data_folder().is_dir():
        print(f"the conversations are not in {data_folder()}: name their folder with RUNE_SHARED", file=sys.stderr)
        return 1
    found = []
    for window in map(int, given.windows.split(",")):
        seed, cache = (run(window, layout, given.turns, with_tools=given.with_tools) for layout in ("seed", "cache"))
        found += [seed, {**cache, "seed_by_cache": seed["sum_ms"] / cache["sum_ms"]}]
    if given.json:
        print(json.dumps(found, indent=2))
        return 0
    for one in found:
        print(
            " ".join(
                f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}" for name, value in one.items()
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
