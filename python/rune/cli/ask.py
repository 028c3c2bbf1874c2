"""``rune ask``: one question, the answer streamed, and on wish why the prompt was what it was."""

from __future__ import annotations

from typing import Any

import click

from rune.cli.common import json_option, load_settings, read_text
from rune.cli.outcome import conclude
from rune.cli.render import error_console
from rune.cli.stream import Stream

__all__ = ["ask"]


@click.command(epilog='Example: rune ask "Summarise this" --file notes.txt --explain --option temperature=0')
@click.argument("text", required=False)
@click.option(
    "--file", "files", multiple=True, type=click.Path(), help="Add the contents of a UTF-8 file to the question."
)
@click.option("--model", help="The model to ask.")
@click.option("--engine", type=click.Choice(["auto", "ollama", "llama.cpp", "openai"]), help="What runs the model.")
@click.option("--session", "session_id", help="Go on with, or begin, the session of this id.")
@click.option("--format", "format_", help="A JSON schema (or a file of one) that the answer must follow.")
@click.option("--num-ctx", type=click.IntRange(1), help="Window in tokens to ask the server for.")
@click.option("--num-predict", type=click.IntRange(1), help="Longest reply in tokens.")
@click.option("--think/--no-think", default=None, help="Let a model that can think do so, or not.")
@click.option("--keep-alive", metavar="TIME", help='How long the server keeps the model loaded ("10m", "-1": always).')
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="A sampling option of the server; repeatable."
)
@click.option("--estimator", type=click.Choice(["chars4", "script"]), help="What measures tokens.")
@click.option("--layout", type=click.Choice(["seed", "cache"]), help="The order of blocks in the prompt.")
@click.option("--explain", is_flag=True, help="Show what entered the window, what was left out, and the counts.")
@click.option("--strict", is_flag=True, help="Exit 3 when the server may have cut the prompt.")
@json_option
def ask(
    text: str | None,
    files: tuple[str, ...],
    model: str | None,
    engine: str | None,
    session_id: str | None,
    format_: str | None,
    num_ctx: int | None,
    num_predict: int | None,
    think: bool | None,
    keep_alive: str | None,
    options: tuple[str, ...],
    estimator: str | None,
    layout: str | None,
    explain: bool,
    strict: bool,
    as_json: bool,
) -> int:
    """Ask the model TEXT (or standard input, or --file) and print its answer.

    Exit 4: the model wants to make a call that needs your approval; the line that says so names the command to go on with.
    """
    from rune.context.conversation import Conversation
    from rune.paths import inference_traces
    from rune.rune_operator import RuneOperator

    task = read_text(text, files)
    settings = load_settings(
        model=model, engine=engine, estimator=estimator, layout=layout, num_ctx=num_ctx, keep_alive=keep_alive
    )
    schema = _schema(format_)
    asked = {"num_predict": num_predict, "format": schema, "think": think, "options": _options(options)}
    session = None
    if session_id is not None:
        session = Conversation.open(session_id, settings.home, estimator=settings.estimator)
    stream = Stream(as_json, error_console())
    with RuneOperator(settings=settings) as operator:
        try:
            response = operator.run(task, session, "cli", on_event=stream, **asked)
        finally:
            stream.stop()
    return conclude(
        response, stream, as_json=as_json, strict=strict, explain=inference_traces(settings.home) if explain else None
    )


def _options(given: tuple[str, ...]) -> dict[str, Any] | None:
    """The values of ``--option NAME=VALUE``; a VALUE is JSON where it can be read as such, else text."""
    import json

    from rune.errors import InvalidInput

    found: dict[str, Any] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise InvalidInput(f"--option wants NAME=VALUE, as in --option temperature=0.2, not {pair!r}")
        try:
            found[name.strip()] = json.loads(value)
        except ValueError:
            found[name.strip()] = value
    return found or None


def _schema(given: str | None) -> Any:
    """The value of ``--format``: "json", a JSON schema, or the file of one."""
    if given is None or given == "json":
        return given
    import json
    from pathlib import Path

    from rune.cli.common import read_text_file
    from rune.errors import InvalidInput

    text = given if given.lstrip().startswith("{") else read_text_file(Path(given))
    try:
        return json.loads(text)
    except ValueError as exc:
        raise InvalidInput(f"--format is no JSON schema: {exc}") from exc
