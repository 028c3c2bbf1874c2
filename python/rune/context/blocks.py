"""Blocks on their way into a capsule: what a contributor hands over, and the checked entry that the broker makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rune.context.layout import Section
from rune.context.turns import Turn
from rune.errors import InvalidInput
from rune.kernels import EstimatorLike
from rune.messages import IMAGE_TOKENS, Message, normalise, split_system

__all__ = ["PART_SEPARATOR", "ContributionBlock", "Entry", "LedgerEntry", "is_empty", "ledger_entries", "make_entry"]

PART_SEPARATOR = "\n"
"""Between the parts of a divisible text block; not counted."""


@dataclass(slots=True)
class ContributionBlock:
    """What a contributor contributes: a text, or messages.

    Attributes:
        content: the text of the block.
        messages: chat messages instead of a text (OpenAI's or Ollama's form); they stand between system text and user.
        parts: makes the block divisible, newest last: texts, or turns (lists of messages). What does not fit is left out
            from the oldest on. Given instead of ``content`` or ``messages``.
        images: base64 images of the user's block; each costs a flat 768 tokens.
        extra: facts for the trace (``ext``), JSON values.
        on_cut: called with the number of newest parts kept when the ``cache`` layout cut the block; not on dry runs.
    """

    content: str = ""
    messages: Sequence[Mapping[str, Any]] | None = None
    parts: Sequence[Any] | None = None
    images: Sequence[str] | None = None
    extra: Mapping[str, Any] | None = None
    on_cut: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """Something that enters the window past the messages, such as tool schemas: mandatory, counted, not rendered.

    ``tokens_text`` is measured and hashed; ``tokens`` (0 or more) stands for it where the count is known already, and
    ``digest_text`` is then what is hashed ("" for nothing).
    """

    name: str
    tokens_text: str | None = None
    tokens: int | None = None
    priority: int = 90
    bucket: int = 2
    source: str = ""
    digest_text: str = ""


@dataclass(slots=True)
class Entry:
    """One line of the ledger before admission: a collected block, or what the runtime owns.

    Exactly one of ``text``, ``texts`` (parts), ``turns`` or ``fixed`` (tokens) holds the content. ``registered`` is the
    position of the contributor, which breaks ties; ``section`` where the block stands.
    """

    name: str
    priority: int
    evictable: bool
    bucket: int
    source: str
    registered: int
    section: Section
    per_model: bool = False
    text: str | None = None
    texts: list[str] | None = None
    turns: list[Turn] | None = None
    fixed: int | None = None
    divisible: bool = False
    images: list[str] = field(default_factory=list)
    on_cut: Callable[[int], None] | None = None

    @property
    def pieces(self) -> list[str] | None:
        """The texts to measure, or None when the content is turns or a fixed number."""
        if self.text is not None:
            return [self.text]
        return self.texts

    def sizes(self, estimator: EstimatorLike, counts: Sequence[int] | None = None) -> list[int]:
        """Tokens of each part (of the one part of an undivided block). ``counts``: those of ``pieces``, if measured."""
        if self.fixed is not None:
            return [self.fixed]
        if self.turns is not None:
            sizes = [turn.tokens(estimator) for turn in self.turns]
            return sizes if self.divisible else [sum(sizes)]
        if counts is None:
            counts = estimator.many(self.pieces or [])
        return [*counts[:-1], counts[-1] + IMAGE_TOKENS * len(self.images)] if self.images else list(counts)


def is_empty(block: ContributionBlock) -> bool:
    """Whether a block contributes nothing: no text but white space, no messages, no images."""
    if block.images:
        return False
    if block.parts is not None:
        return not any(part.strip() if isinstance(part, str) else part for part in block.parts)
    if block.messages is not None:
        return not block.messages
    text: Any = block.content  # may be anything: what is no text is an error later on, and not nothing
    return text is None or (isinstance(text, str) and not text.strip())


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is a {type(value).__name__}, not text")
    return value if type(value) is str else str.__str__(value)


def _turn(value: Any) -> tuple[Turn, list[str]]:
    """A part as a turn, and the texts of system messages that it had."""
    if isinstance(value, Turn) and all(message["role"] != "system" for message in value.uncopied):
        return value, []
    system, rest = split_system(normalise(value, keep_thinking=False))
    return Turn(rest), system


@dataclass(slots=True)
class _Content:
    text: str | None = None
    texts: list[str] | None = None
    turns: list[Turn] | None = None
    divisible: bool = False
    system: list[str] = field(default_factory=list)


def _content(block: ContributionBlock) -> _Content:
    if block.parts is not None:
        if block.content or block.messages is not None:
            raise InvalidInput("a block has either parts, or content or messages, not both")
        if isinstance(block.parts, (str, Mapping)) or not isinstance(block.parts, Sequence):
            raise InvalidInput("parts must be a list of texts or of turns, newest last")
        if any(isinstance(part, str) for part in block.parts):
            texts = [_text(part, f"part {i}") for i, part in enumerate(block.parts)]
            return _Content(texts=[text for text in texts if text.strip()], divisible=True)
        found = [_turn(part) for part in block.parts]
        system = [text for _, texts in found for text in texts]
        return _Content(turns=[turn for turn, _ in found if turn], divisible=True, system=system)
    if block.messages is not None:
        if block.content:
            raise InvalidInput("a block has either content or messages, not both")
        messages: list[Message] = normalise(block.messages, keep_thinking=False)
        texts, rest = split_system(messages)
        return _Content(turns=[Turn(rest)] if rest else None, system=texts)
    return _Content(text=_text(block.content, "content"))


def make_entry(
    block: ContributionBlock,
    *,
    name: str,
    priority: int,
    evictable: bool,
    bucket: int,
    source: str,
    registered: int,
    per_model: bool,
) -> tuple[Entry | None, list[str]]:
    """The entry of a block that is not empty (None when only system messages were in it), and texts of system messages.

    The section is "history" for messages and "system" for texts until a layout places the block.

    Raises:
        InvalidInput: content that is no text, messages without a normal form, images that are no list of texts.
    """
    if block.parts is None and block.messages is None and not block.images and type(block.content) is str:
        # What nearly every block is: one text.
        plain = Entry(name, priority, evictable, bucket, source, registered, "system", per_model, block.content)
        plain.on_cut = block.on_cut
        return plain, []
    content = _content(block)
    if isinstance(block.images, str):
        raise InvalidInput("images must be a list of base64 texts")
    images = [_text(image, "an image") for image in block.images or ()]
    if images and content.text is None:
        raise InvalidInput("images belong to a block with content; those of messages go into the messages")
    if content.text is None and not content.texts and not content.turns:
        return None, content.system
    return (
        Entry(
            name=name,
            priority=priority,
            evictable=evictable,
            bucket=bucket,
            source=source,
            registered=registered,
            section="history" if content.turns else "system",
            per_model=per_model,
            text=content.text,
            texts=content.texts,
            turns=content.turns,
            divisible=content.divisible,
            images=images,
            on_cut=block.on_cut,
        ),
        content.system,
    )


def ledger_entries(extra: Iterable[LedgerEntry], taken: set[str], registered: int) -> list[Entry]:
    """The entries of what the runtime sends past the messages, registered from ``registered`` on.

    Raises InvalidInput for a name that is taken, and for one without exactly one of text and tokens.
    """
    found: list[Entry] = []
    for position, given in enumerate(extra):
        if given.name in taken:
            raise InvalidInput(f"there is a block named {given.name!r} already")
        taken = {*taken, given.name}
        if (given.tokens_text is None) == (given.tokens is None):
            raise InvalidInput(f"the ledger entry {given.name!r} needs either tokens_text or tokens")
        if given.tokens is not None and given.tokens < 0:
            raise InvalidInput(f"the ledger entry {given.name!r} cannot have {given.tokens} tokens")
        if given.tokens_text is not None and given.digest_text not in ("", given.tokens_text):
            raise InvalidInput(f"the digest of the ledger entry {given.name!r} must cover the text that is measured")
        found.append(
            Entry(
                name=given.name,
                priority=given.priority,
                evictable=False,
                bucket=given.bucket,
                source=given.source,
                registered=registered + position,
                section="ledger",
                text=given.tokens_text if given.tokens_text is not None else given.digest_text,
                fixed=given.tokens,
            )
        )
    return found
