"""A turn: a user message and all up to the next one. The unit that history is kept, offered, cut and counted in.

A turn never changes once made, so what is measured of it is measured once and kept. Calls and their results never part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from rune.errors import InvalidInput
from rune.kernels import EstimatorLike
from rune.messages import (
    IMAGE_TOKENS,
    Message,
    calls_json,
    canonical_json,
    copy_message,
    image_count,
    incomplete_reason,
    measured_text,
    normalise,
)

__all__ = ["Turn", "measured_items", "message_tokens"]


def measured_items(messages: Iterable[Message]) -> list[str | int]:
    """What is measured of messages: one text each, and the flat cost of images as a number."""
    items: list[str | int] = []
    for message in messages:
        items.append(measured_text(message))
        images = image_count(message)
        if images:
            items.append(IMAGE_TOKENS * images)
    return items


def message_tokens(messages: Iterable[Message], estimator: EstimatorLike) -> int:
    """Tokens of messages: each message measured on its own, then added up; an image costs ``IMAGE_TOKENS``."""
    items = measured_items(messages)
    texts = [item for item in items if isinstance(item, str)]
    return sum(estimator.many(texts)) + sum(item for item in items if isinstance(item, int))


class Turn(Sequence[Message]):
    """Messages of one turn in normal form, without thinking. Reads like a list of messages; what it hands out are copies.

    Attributes:
        incomplete: "" or why the turn cannot be offered as history ("no answer", "tool call without result", …).
        number: its position in the conversation, from 0; -1 outside of one.
        time: when it was appended (ISO 8601, UTC), or "".
        chain: digest that covers this turn and all before it, or "".
    """

    __slots__ = ("_messages", "_tokens", "chain", "incomplete", "number", "time")

    def __init__(self, messages: Iterable[Any], *, number: int = -1, time: str = "", chain: str = "") -> None:
        """Raises InvalidInput for messages that have no normal form."""
        self._messages: tuple[Message, ...] = tuple(normalise(messages, keep_thinking=False))
        for position, message in enumerate(self._messages):
            try:
                calls_json(message)
            except (TypeError, ValueError, RecursionError) as exc:
                raise InvalidInput(f"message {position} has a tool call that JSON has no words for: {exc}") from exc
        self._tokens: dict[str, int] = {}
        self.incomplete = incomplete_reason(self._messages) or ""
        self.number = number
        self.time = time
        self.chain = chain

    @classmethod
    def of_normal(
        cls,
        messages: tuple[Message, ...],
        *,
        incomplete: str,
        number: int,
        time: str,
        chain: str,
        tokens: dict[str, int],
    ) -> Turn:
        """A turn of messages that are in normal form and belong to nobody else, with what is known of it."""
        turn = cls.__new__(cls)
        turn._messages = messages
        turn._tokens = tokens
        turn.incomplete = incomplete
        turn.number = number
        turn.time = time
        turn.chain = chain
        return turn

    @property
    def complete(self) -> bool:
        """Whether the turn may be offered as history."""
        return not self.incomplete

    @property
    def uncopied(self) -> tuple[Message, ...]:
        """The messages themselves, for readers that change nothing."""
        return self._messages

    def tokens(self, estimator: EstimatorLike) -> int:
        """Tokens of the turn; measured once per estimator."""
        found = self._tokens.get(estimator.key)
        if found is None:
            found = self._tokens[estimator.key] = message_tokens(self._messages, estimator)
        return found

    def canonical(self) -> str:
        """The text that digests cover (compact JSON)."""
        return canonical_json(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [copy_message(m) for m in self._messages[index]]
        return copy_message(self._messages[index])

    def __iter__(self) -> Iterator[Message]:
        return (copy_message(m) for m in self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Turn):
            return self._messages == other._messages
        return list(self._messages) == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __repr__(self) -> str:
        return f"<Turn {self.number}: {len(self)} messages{', ' + self.incomplete if self.incomplete else ''}>"
