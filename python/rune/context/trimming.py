"""``trim_messages``: a list of chat messages into a budget of tokens, in one call, without a conversation or a broker.

What is cut is whole turns from the front. A call and its results never part, system messages and the newest user message are
never left out, and no message is changed: the result holds the very objects that were given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rune.errors import ContextOverflowError, InvalidInput
from rune.kernels import EstimatorLike, get_estimator
from rune.messages import IMAGE_TOKENS, image_count, incomplete_reason, measured_text, normalise, normalise_one

__all__ = ["trim_messages"]

M = TypeVar("M", bound=Mapping[str, Any])

_SYSTEM = frozenset({"system", "developer"})
_Count = Callable[[Sequence[Mapping[str, Any]]], int]


def trim_messages(
    messages: Sequence[M],
    *,
    max_tokens: int,
    token_counter: Any = "chars4",
    strategy: str = "last",
    include_system: bool = True,
    start_on: str | None = "user",
    allow_partial: bool = False,
) -> list[M]:
    """The newest whole turns that fit ``max_tokens`` together with the system messages, in their order.

    Args:
        messages: chat messages in OpenAI's or Ollama's form. They are neither copied nor changed.
        max_tokens: the budget in tokens of ``token_counter``.
        token_counter: an estimator's name ("chars4", "script"); an object with ``count_tokens(text)``; or a function of a
            text, of a message, or of a list of messages. Which of these it takes is tried out on the newest message, in
            this order.
        strategy: "last", the only one: the newest turns stay.
        include_system: whether system messages stay (wherever they stand); without it they are left out.
        start_on: "user": what stands before the first user message goes; None: it may stay when all else fits.
        allow_partial: False, the only value: nothing is cut inside a message.

    Old turns with a tool call that has no result, or a result that has no call, are left out: servers refuse them. The newest
    turn stays as it is, for it may be in the middle of its calls.

    Raises:
        ContextOverflowError: the system messages, or they and the newest turn, do not fit; nothing was cut.
        InvalidInput: an argument that is unusable, or a message that is none (names its position).
    """
    _check(max_tokens, strategy, start_on, allow_partial)
    given = list(messages)
    roles = [_role(message, position) for position, message in enumerate(given)]
    if not given:
        return []
    count = _counter(token_counter, given[-1])
    system = [i for i, role in enumerate(roles) if role in _SYSTEM] if include_system else []
    budget = max_tokens - (count([given[i] for i in system]) if system else 0)
    if budget < 0:
        raise _overflow("the system messages", "session_system", max_tokens - budget, max_tokens)
    rest = [i for i, role in enumerate(roles) if role not in _SYSTEM]
    kept = _newest(given, roles, rest, budget, max_tokens, count, start_on)
    return [given[i] for i in sorted([*system, *kept])]


def _newest(
    given: Sequence[Mapping[str, Any]],
    roles: Sequence[str],
    rest: Sequence[int],
    budget: int,
    max_tokens: int,
    count: _Count,
    start_on: str | None,
) -> list[int]:
    """Positions of the newest turns that fit; only these, and the one that does not, are measured."""
    kept: list[int] = []
    end = len(rest)
    newest = True
    for at in range(len(rest) - 1, -1, -1):
        opens = roles[rest[at]] == "user" and (at == 0 or roles[rest[at - 1]] != "user")
        if not opens and (at > 0 or start_on is not None):
            continue
        turn = rest[at:end]
        end = at
        if not newest and _orphaned([given[i] for i in turn]):
            continue
        size = count([given[i] for i in turn])
        if size > budget:
            if newest:
                raise _overflow("the newest turn", "user", max_tokens - budget + size, max_tokens)
            break
        newest = False
        budget -= size
        kept += turn
    return kept


def _check(max_tokens: Any, strategy: Any, start_on: Any, allow_partial: Any) -> None:
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 0:
        raise InvalidInput(f"max_tokens must be a whole number of tokens, 0 or more, not {max_tokens!r}")
    if strategy != "last":
        raise InvalidInput(f'strategy must be "last" (the newest turns stay), not {strategy!r}')
    if start_on not in ("user", None):
        raise InvalidInput(f'start_on must be "user" or None, not {start_on!r}')
    if allow_partial:
        raise InvalidInput(
            "allow_partial must be False: nothing is ever cut inside a message; raise max_tokens instead"
        )


def _role(message: Any, position: int) -> str:
    # A dict is told first: the question whether something is a Mapping costs more than all the rest at 100,000 messages.
    role = message.get("role") if type(message) is dict or isinstance(message, Mapping) else None
    if not isinstance(role, str):
        raise InvalidInput(f"message {position} must be an object with a role, not {type(message).__name__}")
    if not isinstance(message.get("content"), (str, list, type(None))):
        raise InvalidInput(f"message {position} must have a text or a list of parts as its content")
    return role


def _overflow(what: str, block: str, needed: int, max_tokens: int) -> ContextOverflowError:
    return ContextOverflowError(
        f"{what[0].upper()}{what[1:]} need {needed} tokens with what must stand before, the budget is {max_tokens}. Nothing was "
        "cut. What would help: a larger max_tokens, or a shorter text.",
        window=max_tokens,
        budget=max_tokens,
        block=block,
        block_tokens=needed,
        blocks=[{"name": block, "tokens": needed}],
    )


def _orphaned(turn: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a call of a turn has no result, or a result no call."""
    if all(_plain(message) for message in turn):
        return False
    return (incomplete_reason(normalise(turn)) or "").startswith("tool ")


# Counting


def _counter(given: Any, sample: Mapping[str, Any]) -> _Count:
    if isinstance(given, str):
        return _by_estimator(get_estimator(given))
    if hasattr(given, "count_tokens"):
        return lambda messages: sum(_number(given.count_tokens(_text(message))) for message in messages)
    if not callable(given):
        raise InvalidInput(
            "token_counter must be an estimator's name, a function, or an object with count_tokens, not "
            f"{type(given).__name__}"
        )
    ways: list[_Count] = [
        lambda messages: sum(_number(given(_text(message))) for message in messages),
        lambda messages: sum(_number(given(message)) for message in messages),
        lambda messages: _number(given(list(messages))),
    ]
    problem: Exception | None = None
    for way in ways:
        try:
            way([sample])
        except Exception as exc:  # it is another's function: that it wants something else shows as any error
            problem = exc
        else:
            return way
    raise InvalidInput(f"token_counter counts neither a text nor a message nor a list of them: {problem}") from problem


def _by_estimator(estimator: EstimatorLike) -> _Count:
    def count(messages: Sequence[Mapping[str, Any]]) -> int:
        normal = [_normal(message) for message in messages]
        tokens = estimator.many([measured_text(message) for message in normal])
        return sum(tokens) + IMAGE_TOKENS * sum(map(image_count, normal))

    return count


def _plain(message: Mapping[str, Any]) -> bool:
    """Whether a message is in normal form in all that is measured."""
    return (
        isinstance(message.get("content"), str)
        and message["role"] not in ("tool", "function")
        and not message.keys() & {"tool_calls", "function_call", "images"}
    )


def _normal(message: Mapping[str, Any]) -> Mapping[str, Any]:
    return message if _plain(message) else normalise_one(message)


def _text(message: Mapping[str, Any]) -> str:
    return measured_text(_normal(message))


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"token_counter gave {value!r}, which is no number of tokens")
    return value
