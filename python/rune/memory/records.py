"""The lines that stores are exported to and imported from: one JSON object each, its ``kind`` beside its fields.

``parse`` checks everything that a line alone can get wrong, so that an import either starts whole or not at all.
"""

from __future__ import annotations

import json
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta, Struct

from rune.errors import InvalidInput
from rune.memory import abstraction, memory_writer
from rune.memory.names import named
from rune.memory.terms import clean

__all__ = [
    "RECORDS",
    "AnyLine",
    "EdgeLine",
    "EntityLine",
    "FactLine",
    "Line",
    "MemoryLine",
    "NeuronLine",
    "PersonaLine",
    "parse",
]

_Id = Annotated[int, Meta(ge=1, le=1 << 53)]
_Count = Annotated[int, Meta(ge=0, le=1 << 53)]
_Weight = Annotated[float, Meta(gt=0)]
_Activation = Annotated[float, Meta(ge=0, le=1)]


class Line(Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", kw_only=True):
    """What every line may have: the row's id and the epoch second it was made."""

    kind: ClassVar[str] = ""
    id: _Id | None = None
    created: float | None = None

    def check(self) -> None:
        """Raise InvalidInput for what the types do not tell."""


class MemoryLine(Line, tag="memory"):
    """A memory; see ``memory_store.Memory`` for the fields."""

    kind: ClassVar[str] = "memory"
    text: str
    source: str = ""
    seen: float | None = None
    said: Annotated[int, Meta(ge=1, le=1 << 53)] = 1
    recalls: _Count = 0
    recalled: float | None = None
    superseded_by: _Id | None = None

    def check(self) -> None:
        _text(self.text, memory_writer.TEXT_MAX)


class PersonaLine(MemoryLine, tag="persona"):
    """A memory of who Rune is."""

    kind: ClassVar[str] = "persona"


class FactLine(Line, tag="fact"):
    """A learned fact."""

    kind: ClassVar[str] = "fact"
    text: str
    source: str = ""

    def check(self) -> None:
        _text(self.text, abstraction.TEXT_MAX)


class EntityLine(Line, tag="entity"):
    """An entity with its other names."""

    kind: ClassVar[str] = "entity"
    name: str
    type: str = ""
    aliases: list[str] = []

    def check(self) -> None:
        for name in (self.name, *self.aliases):
            named(name)


class EdgeLine(Line, tag="edge"):
    """A connection between two entities by their names."""

    kind: ClassVar[str] = "edge"
    src: str
    relation: str
    dst: str
    weight: _Weight = 1.0
    source: str = ""

    def check(self) -> None:
        named(self.src)
        named(self.dst)
        _text(self.relation, 1000)


class NeuronLine(Line, tag="neuron"):
    """A concept with its activation at the time it fired last."""

    kind: ClassVar[str] = "neuron"
    name: str
    note: str = ""
    mentions: _Count = 0
    activation: _Activation = 0.0
    fired: float | None = None

    def check(self) -> None:
        named(self.name, stemmed=True)


RECORDS: dict[str, type[Line]] = {
    "memory": MemoryLine,
    "persona": PersonaLine,
    "fact": FactLine,
    "entity": EntityLine,
    "edge": EdgeLine,
    "neuron": NeuronLine,
}
AnyLine = MemoryLine | PersonaLine | FactLine | EntityLine | EdgeLine | NeuronLine
_decoders: dict[str | None, msgspec.json.Decoder[Line]] = {
    None: msgspec.json.Decoder(AnyLine),
    **{kind: msgspec.json.Decoder(record) for kind, record in RECORDS.items()},
}


def parse(line: str | bytes, number: int, kind: str | None = None) -> Line | None:
    """The record of one line, None for a blank one. Raises InvalidInput that names the line by ``number``.

    With ``kind`` the line need not say its kind, and may not say another.
    """
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8") if isinstance(line, bytes) else line
        if number == 1:
            text = text.removeprefix("\ufeff")
        if not text.strip():
            return None
        record = _decode(text, kind)
        record.check()
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"line {number}: not UTF-8 (byte {exc.start}). Nothing was imported.") from exc
    except (msgspec.MsgspecError, json.JSONDecodeError, InvalidInput) as exc:
        raise InvalidInput(f"line {number}: {exc}. Nothing was imported. {_hint(kind)}") from exc
    return record


def _decode(text: str, kind: str | None) -> Line:
    try:
        return _decoders[kind].decode(text)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeEncodeError):
        # Lone surrogates are the one thing that JSON has and msgspec refuses.
        record: Line = msgspec.convert(_cleaned(json.loads(text, parse_constant=_refused)), _decoders[kind].type)
        return record


def _refused(constant: str) -> None:
    raise InvalidInput(f"{constant} is no JSON number")


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    return value


def _text(text: str, limit: int) -> None:
    if not text.strip():
        raise InvalidInput("the text is empty")
    if len(text) > limit:
        raise InvalidInput(f"the text has {len(text):,} characters, and {limit:,} is the most; split it")


def _hint(kind: str | None) -> str:
    if kind is None:
        return f"""A line is a JSON object with "kind" ({", ".join(RECORDS)}) and the fields of that kind."""
    return f"A line is a JSON object with {', '.join(RECORDS[kind].__struct_fields__)}."
