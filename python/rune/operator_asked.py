"""What a caller asks of a run besides its task: checked before anything begins, completed by what settings say of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rune.errors import InvalidInput
from rune.operator_run import Asked, Run
from rune.settings import Settings
from rune.transports.discovery import resolve_window

if TYPE_CHECKING:
    from rune.context.conversation import Conversation

__all__ = ["asked_of", "checked_session", "passed_on"]


def asked_of(
    settings: Settings,
    tools: Sequence[str] | None,
    num_ctx: Any,
    num_predict: Any,
    format: Any,
    think: bool | str | None,
    keep_alive: str | int | None,
    options: Mapping[str, Any] | None,
) -> Asked:
    """What was asked, checked. Raises InvalidInput."""
    if options is not None and not isinstance(options, Mapping):
        raise InvalidInput(f"options must be an object with names, not {type(options).__name__}")
    given = dict(options or {})
    in_options = {name: given.pop(name, None) for name in ("num_ctx", "num_predict")}
    num_ctx = in_options["num_ctx"] if num_ctx is None else num_ctx
    num_predict = in_options["num_predict"] if num_predict is None else num_predict
    explicit = resolve_window(None, num_ctx=num_ctx).explicit  # checks it as well
    limit = settings.num_predict if num_predict is None else num_predict
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidInput(f"num_predict must be a whole number of tokens, 1 or more, not {limit!r}")
    keep_alive = settings.keep_alive if keep_alive is None else keep_alive
    passed = {"format": format, "keep_alive": keep_alive, "options": given or None}
    return Asked(explicit, limit, tools, think, {name: value for name, value in passed.items() if value is not None})


def passed_on(run: Run, settings: Settings) -> dict[str, Any]:
    """What the server is given as it is: the caller's wishes, and what the settings say for the run's model.

    Sampling options of the caller count before the settings'; a model that can think does so as the settings say.
    """
    of_model = settings.models.get(run.model)
    options = of_model.get("options") if isinstance(of_model, Mapping) else None
    passed = dict(run.asked.passed)
    if isinstance(options, Mapping):
        passed["options"] = {**options, **(passed.get("options") or {})}
    capable = run.facts is not None and "thinking" in (run.facts.capabilities or ())
    think = settings.think if run.asked.think is None and capable else run.asked.think
    return passed if think is None else {"think": think, **passed}


def checked_session(session: Any) -> Conversation | None:
    """The session of a call. Raises InvalidInput when it is something else."""
    from rune.context.conversation import Conversation

    if session is None or isinstance(session, Conversation):
        return session
    raise InvalidInput(f"the session must be a Conversation (Conversation.open(id)), not {type(session).__name__}")
