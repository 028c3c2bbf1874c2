"""``rune plan``: what a turn would send, assembled dry; no model is asked and nothing is written."""

from __future__ import annotations

import click

from rune.cli.common import (
    EXIT_DONE,
    EXIT_FAILED,
    error_json,
    json_option,
    load_settings,
    print_json,
    printable,
    read_text,
)
from rune.cli.render import admission_table, console, routing_line
from rune.errors import ContextOverflowError, InvalidInput

__all__ = ["plan"]


@click.command(epilog='Example: rune plan "What is due today?" --window 8192 --messages history.jsonl')
@click.argument("text", required=False)
@click.option("--file", "files", multiple=True, type=click.Path(), help="Add the contents of a UTF-8 file to the text.")
@click.option("--window", type=int, help="Window in tokens; the model's own when not given (asks the server).")
@click.option("--model", help="The model to plan for.")
@click.option("--session", "session_id", help="Plan the next turn of this session.")
@click.option("--messages", type=click.Path(), help="Plan behind the chat messages of this JSON or JSON Lines file.")
@click.option("--estimator", type=click.Choice(["chars4", "script"]), help="What measures tokens.")
@click.option("--layout", type=click.Choice(["seed", "cache"]), help="The order of blocks in the prompt.")
@click.option("--show-messages", is_flag=True, help="Add the messages that would be sent.")
@json_option
def plan(
    text: str | None,
    files: tuple[str, ...],
    window: int | None,
    model: str | None,
    session_id: str | None,
    messages: str | None,
    estimator: str | None,
    layout: str | None,
    show_messages: bool,
    as_json: bool,
) -> int:
    """Show what TEXT would send to the model: each block, its tokens, and what is left out."""
    from rune.context.conversation import Conversation
    from rune.context.sessions import parse_sessions
    from rune.rune_operator import RuneOperator

    if session_id is not None and messages is not None:
        raise InvalidInput("give either --session or --messages, not both")
    task = read_text(text, files)
    settings = load_settings(model=model, estimator=estimator, layout=layout)
    session = None
    if session_id is not None:
        session = Conversation.open(session_id, settings.home, estimator=settings.estimator)
    elif messages is not None:
        try:
            with open(messages, "rb") as file:
                found = parse_sessions(file.read())
        except OSError as exc:
            raise InvalidInput(f"cannot read {messages}: {exc.strerror or exc}") from exc
        except InvalidInput as exc:
            raise InvalidInput(f"{messages}: {exc}") from exc
        if len(found) != 1:
            raise InvalidInput(f"{messages} holds {len(found)} sessions; plan looks at one at a time")
        session = Conversation.from_messages("plan", found[0].messages, estimator=settings.estimator)
    with RuneOperator(settings=settings) as operator:
        try:
            capsule, trace = operator.plan(task, session, window=window)
        except ContextOverflowError as exc:
            if as_json:
                print_json(error_json(exc))
            else:
                if exc.trace is not None:
                    console().print(admission_table(exc.trace, title="What should enter the window"))
                click.echo(f"error: ContextOverflowError: {printable(str(exc))}", err=True)
            return EXIT_FAILED
    sent = capsule.to_messages() if show_messages else []
    if as_json:
        if show_messages:
            trace["ext"]["messages"] = sent
        print_json(trace)
        return EXIT_DONE
    console().print(admission_table(trace))
    if line := routing_line(trace["ext"].get("routing")):
        click.echo(f"\nmodel    {printable(line)}")
    for message in sent:
        click.echo(f"\n[{message['role']}]\n{printable(message['content'])}")
    for warning in trace["ext"].get("warnings") or ():
        click.echo(f"note: {printable(str(warning))}", err=True)
    if trace["degraded"]:
        click.echo(f"degraded: {printable(', '.join(trace['degraded']))} (rune doctor says more)", err=True)
    return EXIT_DONE
