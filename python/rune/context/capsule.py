"""The capsule: what the broker admitted, block by block, and the messages that follow from it.

Messages are derived anew on every ``to_messages()``, so a change made through a block (a safety override that decorates the
user's text) always reaches the model, the token count and the digests. What was admitted before the change stays on record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rune.context.blocks import PART_SEPARATOR, ContributionBlock, Entry
from rune.context.layout import SEPARATOR, Section, Spans, join
from rune.context.turns import Turn, message_tokens
from rune.errors import InvalidInput
from rune.kernels import ESTIMATOR_NAMES, EstimatorLike, digest, get_estimator
from rune.messages import IMAGE_TOKENS, Message, canonical_json, copy_message, normalise

__all__ = ["AttentionCapsule", "CapsuleBlock", "ContributionBlock"]

CAPSULE_VERSION = 1
_LARGE_VOCABULARY = 1_000_000


class CapsuleBlock:
    """One admitted block. ``content`` and ``messages`` may be set; tokens and digest follow.

    Attributes:
        name, priority, evictable, bucket, source: as registered.
        section: "system", "history", "user", "notes" (behind the user's text) or "ledger" (counted, not rendered).
        reason: why it was admitted ("mandatory", "fits", "older_parts").
        tokens_before: tokens as admitted, whatever was changed since.
        images: base64 images of the user's block.
        changed: whether content or messages were set or handed out for changing.
    """

    __slots__ = (
        "_digest",
        "_estimator",
        "_fixed",
        "_messages",
        "_text",
        "_tokens",
        "_turns",
        "bucket",
        "changed",
        "evictable",
        "images",
        "name",
        "priority",
        "reason",
        "section",
        "source",
        "tokens_before",
    )

    def __init__(self, entry: Entry, *, kept: int | None, tokens: int, reason: str, estimator: EstimatorLike) -> None:
        self.name = entry.name
        self.priority = entry.priority
        self.evictable = entry.evictable
        self.bucket = entry.bucket
        self.source = entry.source
        self.section: Section = entry.section
        self.reason = reason
        self.tokens_before = tokens
        self.images = list(entry.images)
        self.changed = False
        self._estimator = estimator
        self._fixed = entry.fixed
        self._tokens: int | None = tokens - IMAGE_TOKENS * len(self.images)
        self._digest: str | None = None
        self._messages: list[Message] | None = None
        self._turns: list[Turn] | None = None
        self._text = ""
        if entry.turns is not None:
            self._turns = entry.turns if kept is None else entry.turns[len(entry.turns) - kept :]
        elif entry.texts is not None:
            self._text = PART_SEPARATOR.join(entry.texts if kept is None else entry.texts[len(entry.texts) - kept :])
        else:
            self._text = entry.text or ""

    @property
    def has_messages(self) -> bool:
        """Whether the block is made of messages and not of a text."""
        return self._turns is not None or self._messages is not None

    @property
    def is_plain(self) -> bool:
        """Whether the block is one text and costs what that measures."""
        return self._fixed is None and not self.has_messages and not self.images

    @property
    def content(self) -> str:
        """The block's text; of a block of messages, their canonical JSON (what its digest covers)."""
        if self._messages is not None:
            return canonical_json(self._messages)
        if self._turns is not None:
            return canonical_json(message for turn in self._turns for message in turn.uncopied)
        return self._text

    @content.setter
    def content(self, text: str) -> None:
        if self.has_messages or self.section == "ledger":
            what = "set its messages" if self.has_messages else "the runtime owns it"
            raise InvalidInput(f"the content of block {self.name!r} cannot be set: {what}")
        if not isinstance(text, str):
            raise InvalidInput(f"the content of block {self.name!r} must be text, not {type(text).__name__}")
        self._text = text
        self._forget()

    @property
    def messages(self) -> list[Message]:
        """The block's messages (none for a text block). Changes made to them in place count."""
        if self._turns is not None:
            self._messages = [copy_message(message) for turn in self._turns for message in turn.uncopied]
            self._turns = None
            self.changed = True
        return [] if self._messages is None else self._messages

    @messages.setter
    def messages(self, messages: Sequence[Mapping[str, Any]]) -> None:
        if not self.has_messages:
            raise InvalidInput(f"block {self.name!r} is a text: set its content")
        self._messages = normalise(messages, keep_thinking=False)
        self._turns = None
        self._forget()

    def _forget(self) -> None:
        self.changed = True
        self._tokens = None
        self._digest = None

    @property
    def tokens(self) -> int:
        """Tokens now."""
        if self._messages is not None:  # handed out: may have changed since the last look
            return message_tokens(self._messages, self._estimator)
        if self._tokens is None:
            self._tokens = self._estimator.many([self._text])[0]
        return self._tokens + IMAGE_TOKENS * len(self.images)

    @property
    def digest(self) -> str:
        """sha256 of the content now, hexadecimal."""
        if self._messages is not None:
            return digest(self.content)
        if self._digest is None:
            self._digest = digest(self.content)
        return self._digest

    def rendered_messages(self) -> list[Message]:
        """Copies of the messages."""
        if self._turns is not None:
            return [copy_message(message) for turn in self._turns for message in turn.uncopied]
        return [copy_message(message) for message in self._messages or ()]

    def tokens_under(self, estimator: EstimatorLike) -> int:
        """Tokens of the block by another estimator; what is of a fixed cost stays."""
        if self._fixed is not None and not self._text:
            return self._fixed
        if self._turns is not None:
            return sum(turn.tokens(estimator) for turn in self._turns)
        if self._messages is not None:
            return message_tokens(self._messages, estimator)
        return estimator.many([self._text])[0] + IMAGE_TOKENS * len(self.images)

    def to_dict(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "name": self.name,
            "priority": self.priority,
            "evictable": self.evictable,
            "bucket": self.bucket,
            "source": self.source,
            "section": self.section,
            "reason": self.reason,
            "tokens": self.tokens,
            "tokens_before": self.tokens_before,
            "digest": self.digest,
        }
        if self.has_messages:
            row["messages"] = self.rendered_messages()
        else:
            row["content"] = self._text
        if self.images:
            row["images"] = list(self.images)
        return row

    def __repr__(self) -> str:
        return f"<CapsuleBlock {self.name}: {self.tokens} tokens, {self.section}>"


class AttentionCapsule:
    """The admitted blocks of one turn in assembly order.

    Attributes:
        blocks: tuple of CapsuleBlock, those that are counted and not rendered among them.
        model_id: the model it was assembled for.
        window, reserve, margin, budget: tokens it was admitted into.
        layout: "seed" or "cache".
        estimator: what measured it.
        entries: everything that was collected, dropped blocks too; what ``ContextBroker.readmit`` works on.
        task, session: what it was assembled from (None after ``from_dict``).
        degraded: names of subsystems that failed while it was assembled.
        facts: what contributors said of themselves for the trace, by name.
    """

    def __init__(
        self,
        blocks: Sequence[CapsuleBlock],
        *,
        model_id: str,
        window: int,
        reserve: int,
        margin: int,
        budget: int,
        layout: str,
        estimator: EstimatorLike,
        entries: Sequence[Entry] = (),
        task: Any = None,
        session: Any = None,
        degraded: Sequence[str] = (),
        facts: Mapping[str, dict[str, Any]] | None = None,
    ) -> None:
        self.blocks = tuple(blocks)
        self.model_id = model_id
        self.window = window
        self.reserve = reserve
        self.margin = margin
        self.budget = budget
        self.layout = layout
        self.estimator = estimator
        self.entries = tuple(entries)
        self.task = task
        self.session = session
        self.degraded = tuple(degraded)
        self.facts = dict(facts or {})
        self._by_name = {block.name: block for block in self.blocks}

    def block(self, name: str) -> CapsuleBlock:
        """The admitted block of that name. Raises InvalidInput when there is none; the message lists those there are."""
        found = self._by_name.get(name)
        if found is None:
            raise InvalidInput(f"no block {name!r} was admitted; there are {', '.join(self._by_name) or 'none'}")
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def token_count(self) -> int:
        """Tokens of all blocks now."""
        return sum(block.tokens for block in self.blocks)

    def content_hashes(self) -> dict[str, str]:
        """sha256 of each block's content now, by name; without those that are a bare number in the ledger."""
        return {block.name: block.digest for block in self.blocks if block.section != "ledger" or block.content}

    def changes(self) -> list[dict[str, Any]]:
        """Blocks that measure otherwise than when they were admitted: name, tokens before and after."""
        return [
            {"name": block.name, "tokens_before": block.tokens_before, "tokens": block.tokens}
            for block in self.blocks
            if block.tokens != block.tokens_before
        ]

    def _texts(self, *sections: Section) -> list[tuple[str, str]]:
        return [(b.name, b.content) for section in sections for b in self.blocks if b.section == section and b.content]

    def system_spans(self) -> Spans:
        """Where each block's text stands in the system message: [start, end) in characters."""
        return join(self._texts("system"))[1]

    def user_spans(self) -> Spans:
        """Where each block's text stands in the last user message."""
        return join(self._texts("user", "notes"))[1]

    def to_messages(self) -> list[Message]:
        """``[{system}, *history, {user}]``, derived from the blocks as they are now; the caller may change the copies.

        A message without a block is left out: there is never an empty system message.
        """
        messages: list[Message] = []
        system = self._texts("system")
        if system:
            messages.append({"role": "system", "content": SEPARATOR.join(text for _, text in system)})
        for block in self.blocks:
            if block.section == "history":
                messages += block.rendered_messages()
        user = self._texts("user", "notes")
        images = [image for block in self.blocks if block.section == "user" for image in block.images]
        if user or images:
            last: Message = {"role": "user", "content": SEPARATOR.join(text for _, text in user)}
            if images:
                last["images"] = images
            messages.append(last)
        return messages

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable: token count, block ledger and contents, from which ``from_dict`` gives the same messages."""
        return {
            "capsule_version": CAPSULE_VERSION,
            "model_id": self.model_id,
            "window": self.window,
            "reserve": self.reserve,
            "margin": self.margin,
            "budget": self.budget,
            "layout": self.layout,
            "estimator": self.estimator.key,
            "token_count": self.token_count,
            "blocks": [block.to_dict() for block in self.blocks],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, estimator: EstimatorLike | None = None) -> AttentionCapsule:
        """The capsule that ``to_dict`` described, with its admitted blocks; what had been dropped is not in it.

        ``estimator`` is needed only for one that is not built in.
        Raises InvalidInput for data of another shape, and for a block whose digest is not that of its content.
        """
        try:
            if data["capsule_version"] != CAPSULE_VERSION:
                raise InvalidInput(f"the capsule is of version {data['capsule_version']}; known is {CAPSULE_VERSION}")
            measure = estimator or _estimator_of(data["estimator"])
            entries, blocks = [], []
            for position, row in enumerate(data["blocks"]):
                entry = _entry_of(row, position)
                block = CapsuleBlock(
                    entry, kept=None, tokens=int(row["tokens"]), reason=str(row["reason"]), estimator=measure
                )
                block.tokens_before = int(row["tokens_before"])
                if block.digest != row["digest"]:
                    raise InvalidInput(f"the content of block {entry.name!r} is not what its digest says")
                entries.append(entry)
                blocks.append(block)
            return cls(
                blocks,
                model_id=str(data["model_id"]),
                window=int(data["window"]),
                reserve=int(data["reserve"]),
                margin=int(data["margin"]),
                budget=int(data["budget"]),
                layout=str(data["layout"]),
                estimator=measure,
                entries=entries,
            )
        except (KeyError, TypeError, AttributeError) as exc:
            raise InvalidInput(f"this is no capsule: {type(exc).__name__} at {exc}") from exc


def _estimator_of(key: str) -> EstimatorLike:
    """The built-in estimator of a key such as ``chars4/1`` or ``script-small/1``."""
    for name in ESTIMATOR_NAMES:
        for vocabulary in (None, _LARGE_VOCABULARY):
            found = get_estimator(name, vocabulary)
            if found.key == key:
                return found
    raise InvalidInput(f"the capsule was measured by {key}, which is not built in: pass estimator=")


def _entry_of(row: Mapping[str, Any], position: int) -> Entry:
    """The entry of a block's row in ``to_dict``."""
    section: Section = row["section"]
    return Entry(
        name=str(row["name"]),
        priority=int(row["priority"]),
        evictable=bool(row["evictable"]),
        bucket=int(row["bucket"]),
        source=str(row["source"]),
        registered=position,
        section=section,
        text=str(row["content"]) if "content" in row else None,
        turns=[Turn(row["messages"])] if "messages" in row else None,
        fixed=int(row["tokens"]) if section == "ledger" else None,
        images=list(row.get("images") or ()),
    )
