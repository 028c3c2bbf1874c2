"""docs/replay.md out of measured rows, and back: a test reads the page's figures."""

from __future__ import annotations

from collections.abc import Mapping

from replay.run import Row
from replay.server import VERSIONS
from replay.streams import STREAMS

__all__ = ["COLUMNS", "Case", "page", "tables_of"]

Case = tuple[str, int, str, str]
"""Stream, window, tokenizer, server version."""

COLUMNS = (
    "stream",
    "window",
    "tokenizer",
    "turns",
    "calls",
    "refused, then answered",
    "overflow errors",
    "over the window, answered",
    "of these `whole`",
    "with history",
    "lost all of it",
    "though a turn fits",
    "though one would by true count",
    "literal: lost all",
    "literal: over the window",
)

_HEAD = """\
# Whole streams, replayed against servers that count

Every turn of two long sessions through the operator: broker, runtime, tool loop and transport as they are, over HTTP to a server
on loopback that counts prompts with a real tokenizer and does with one that is too long what a real Ollama of that version
does. This page is written by `scripts/replay_table.py` (its `--help` names the packages of the tokenizers).

{streams}

A stream is one session: the first session's system message, then the other messages of all sessions. What the model says and
what the tools give back is what was recorded, so every window and server is asked the same at the same place. Settings are
the default ones, without memory and compaction; the window is the model's trained one, and Rune chooses `num_ctx` below it. The
real counts are those of the prompt as a chatml template prints it, with the schemas of the tools that the stream calls.

How to read the columns:

- **refused, then answered**: turns of which the server refused a prompt, and that Rune then sent otherwise and had answered.
- **overflow errors**: turns that ended in a `ContextOverflowError`, which names the numbers; nothing was cut. By who found it:
  the broker (b: what must enter is too long), the server (s: refused for good), the tool loop (t: grown too long).
- **over the window, answered**: turns with a prompt that was longer than the window and was answered, so cut by the server.
  **of these `whole`** are those that Rune would have passed off as whole: must be 0.
- **with history**: turns that an earlier completed turn could be sent with, and that were sent at all.
  **lost all of it**: none was sent. **though a turn fits**: the newest one would have fitted beside what was sent, by the
  estimate that decided: must be 0. **though one would by true count**: the same by real tokens, which nobody knows before
  the call; the price of an estimate that does not read low.
- **literal**: the specification's words taken literally, for comparison: the last 8 turns as one block that is admitted whole
  or not at all, a `num_ctx` of 8192 whatever the window, no request to refuse. **lost all** of the turns with history;
  **over the window**: first prompts of turns longer than that `num_ctx`, which servers cut in silence.

Two or three turns at some windows stop because the recording asks for the same call three times, which Rune does not do.
"""

_SERVERS = {
    "0.32.15": """\
## A server that refuses with numbers (as Ollama 0.32.15)

It refuses a prompt of the window's tokens or more, and says how many there are.
""",
    "0.24.0": """\
## A server that refuses in words (as Ollama 0.24.0)

It refuses what is over the window and gives no numbers.
""",
    "0.12.5": """\
## A server that cannot refuse (as Ollama 0.12.5)

It drops messages from the front, at times the system message as well, cuts the rest to the window, and answers 200. Rune admits
by the `script` estimate where that says that the prompt may not fit.
""",
}


def page(rows: Mapping[Case, Row]) -> str:
    """The text of docs/replay.md."""
    streams = "\n".join(f"- `{name}`: {about}" for name, (_, about) in STREAMS.items())
    parts = [_HEAD.format(streams=streams)]
    for version in reversed(VERSIONS):
        of_version = {case: row for case, row in rows.items() if case[3] == version}
        if of_version:
            lines = [_line(COLUMNS), _line(["---"] + ["--:"] + ["---"] + ["--:"] * (len(COLUMNS) - 3))]
            lines += [_line(_cells(case, row)) for case, row in of_version.items()]
            parts.append(f"{_SERVERS[version]}\n" + "\n".join(lines) + "\n")
    verdicts: dict[str, dict[str, int]] = {}
    for case, row in rows.items():
        for kind, count in row.over_by.items():
            of = verdicts.setdefault(case[3], {})
            of[kind] = of.get(kind, 0) + count
    cut = "; ".join(
        f"{version}: {', '.join(f'{count} `{kind}`' for kind, count in sorted(kinds.items()))}"
        for version, kinds in verdicts.items()
    )
    parts.append(f"Verdicts of the turns over the window that were answered: {cut or 'there was none'}.\n")
    return "\n".join(parts)


def _cells(case: Case, row: Row) -> list[str]:
    stream, window, tokenizer, _ = case
    return [
        stream,
        str(window),
        tokenizer,
        str(row.turns),
        str(row.calls),
        str(row.refused_answered),
        _overflows(row),
        str(row.over),
        str(row.over_whole),
        str(row.with_history),
        _share(row.lost, row.with_history),
        str(row.lost_fitting),
        str(row.lost_room),
        _share(row.literal_lost, row.literal_history),
        str(row.literal_over),
    ]


def _overflows(row: Row) -> str:
    total = sum(row.overflows.values())
    named = ", ".join(
        f"{name[0]} {row.overflows[name]}" for name in ("broker", "server", "tool_loop") if name in row.overflows
    )
    return f"{total} ({named})" if total else "0"


def _share(part: int, of: int) -> str:
    return f"{part} ({part / of:.1%})" if part and of > 0 else str(part)


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def tables_of(text: str) -> list[dict[str, str]]:
    """The rows of the page's tables, by column; what ``page`` wrote."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == len(COLUMNS) and cells[1].isdigit():
            found.append(dict(zip(COLUMNS, cells, strict=True)))
    return found
