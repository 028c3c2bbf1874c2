"""What every command shares: reading text, printing JSON, showing text that nobody trusts, and exit codes.

Exit codes: 0 done, 1 the run failed, 2 wrong usage or bad input, 3 a check found something, 4 the turn waits for an approval.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from rune.errors import InvalidInput, RuneError
from rune.settings import Settings

__all__ = [
    "EXIT_DONE",
    "EXIT_FAILED",
    "EXIT_FOUND",
    "EXIT_USAGE",
    "EXIT_WAITING",
    "error_json",
    "exit_code",
    "json_option",
    "load_settings",
    "print_json",
    "printable",
    "read_text",
    "read_text_file",
]

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_FOUND, EXIT_WAITING = 0, 1, 2, 3, 4

F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """``--json``: one JSON value on standard output and nothing else, also on failure."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")(function)


def load_settings(**overrides: Any) -> Settings:
    """Settings from the environment and the home's config.toml, with the options that were given on top."""
    return Settings.load(**{name: value for name, value in overrides.items() if value is not None})


def print_json(value: Any) -> None:
    """One JSON value. Text that the terminal cannot carry (lone surrogates, an ASCII locale) is escaped, never lost."""
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        text = json.dumps(value, ensure_ascii=True, indent=2, default=str)
    click.echo(text)


# Control characters move the cursor or rewrite the title, bidirectional overrides reorder what is read: a prompt or a reply
# must not be able to forge what the terminal shows.
_HOSTILE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Text with control characters, bidirectional overrides and lone surrogates shown as escapes; newline and tab stay."""
    return _HOSTILE.sub(lambda m: m[0].encode("unicode_escape").decode("ascii"), text.replace("\r\n", "\n"))


def read_text_file(path: str | Path) -> str:
    """The text of a UTF-8 file. Raises InvalidInput when it is missing, a folder, or not UTF-8."""
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidInput(
            f"{path} is not UTF-8 text (byte {exc.start}); convert it first, for example with iconv"
        ) from exc
    except OSError as exc:
        raise InvalidInput(f"cannot read {path}: {exc.strerror or exc}") from exc


def read_text(text: str | None, files: tuple[str, ...] = ()) -> str:
    """The task: the argument, then the contents of ``--file``; without either (or with ``-``) standard input.

    Raises:
        InvalidInput: nothing was given, or a source cannot be read.
    """
    pieces: list[str] = []
    if text == "-" or (text is None and not files):
        if text is None and sys.stdin.isatty():
            raise InvalidInput('no text: give it as an argument ("rune ask TEXT"), with --file, or on standard input')
        try:
            pieces.append(sys.stdin.buffer.read().decode("utf-8"))
        except UnicodeDecodeError as exc:
            raise InvalidInput(f"standard input is not UTF-8 text (byte {exc.start})") from exc
    elif text is not None:
        # The shell hands over bytes that are no UTF-8 as lone surrogates; they pass and are shown as escapes.
        pieces.append(text)
    pieces.extend(read_text_file(path) for path in files)
    joined = "\n\n".join(piece.strip("\n") if len(pieces) > 1 else piece for piece in pieces)
    if not joined.strip():
        raise InvalidInput("the text is empty: say what is asked")
    return joined.rstrip("\n") if len(pieces) == 1 and joined.endswith("\n") else joined


def exit_code(exc: RuneError) -> int:
    """2 for what the user can only mend by calling otherwise, 1 for a run that failed."""
    return EXIT_USAGE if isinstance(exc, InvalidInput) else EXIT_FAILED


def error_json(exc: BaseException) -> dict[str, Any]:
    """An error as one JSON object: its type, its message, and the data that rides on it."""
    data = {
        name: value
        for name, value in vars(exc).items()
        if not name.startswith("_") and value not in (None, "", [], {}) and name not in ("args", "ctx")
    }
    return {"error": {"type": type(exc).__name__, "message": str(exc), **data}}


def quiet_stdout() -> None:
    """Point standard output at nothing, after its reader has gone: the interpreter's last flush must not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
