"""The tool that runs programs in the workspace."""

from __future__ import annotations

import os
import shlex
from typing import Annotated

from msgspec import Meta

from rune.errors import ToolError
from rune.runtime.commands import OUTPUT_BYTES_MAX, clean_environment, run
from rune.runtime.tools import ToolContext, tool

__all__ = ["run_command"]

_OF_A_SHELL = frozenset({"|", "||", "&", "&&", ";", "<", "<<", ">", ">>", "2>", "2>>", "2>&1", "&>", "1>&2", ">&2"})
_ARGUMENTS_MAX = 500
_ARGUMENT_MAX = 100_000  # characters


@tool(approval=True, timeout=60, grace=10, tail=True)
def run_command(
    context: ToolContext,
    command: Annotated[
        str | list[str], Meta(description='program and arguments, as one line or as a list: ["git", "log", "-n", "3"]')
    ],
) -> str:
    """Runs a program in the workspace and gives its exit code and output. No shell: no pipes, redirection or variables."""
    words = _words(command)
    environment = clean_environment(os.environ)
    done = run(
        words, folder=context.workspace.root, environment=environment, seconds=context.seconds, stop=context.stop
    )
    text = done.output.decode("utf-8", "replace").replace("\r\n", "\n").rstrip("\n")
    left = (
        f"; {done.left} processes that it had left running were ended" if done.left and done.reason == "ended" else ""
    )
    if done.reason == "ended":
        ended = f"exit code {done.code}" if done.code >= 0 else f"ended by signal {-done.code}"
        return f"[{ended}{left}]\n{text or '(no output)'}"
    why = {
        "time": f"it did not finish within {context.seconds:g} s",
        "output": f"it wrote more than {OUTPUT_BYTES_MAX:,} bytes",
        "lost": "it ended the process that looks after it",
    }.get(done.reason, "it was cancelled")
    raise ToolError(f"{words[0]} was stopped with all that it had started: {why}. Its output until then:\n{text}")


def _words(command: str | list[str]) -> list[str]:
    """The program and its arguments. Raises ToolError for what only a shell would understand."""
    if isinstance(command, str):
        try:
            words = shlex.split(command)
        except ValueError as exc:
            raise ToolError(f"the command cannot be read: {exc}; give it as a list of arguments") from None
        for word in words:
            if word in _OF_A_SHELL:
                raise ToolError(
                    f"{word!r} is for a shell, and there is none: run one program at a time (a list of arguments takes "
                    "every text as it is)"
                )
    else:
        words = command
    if not words or not words[0].strip():
        raise ToolError("the command is empty: name a program")
    if len(words) > _ARGUMENTS_MAX or any(len(word) > _ARGUMENT_MAX for word in words):
        raise ToolError(f"a command has at most {_ARGUMENTS_MAX} arguments of {_ARGUMENT_MAX:,} characters")
    for word in words:
        if "\0" in word or (not word.isascii() and any("\ud800" <= c <= "\udfff" for c in word)):
            raise ToolError("an argument holds a character that no program can be given (NUL, or half a character)")
    return words
