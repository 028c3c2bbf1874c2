"""Tool calls in the words of models that have no tools of their own: found in any text, in their order.

A call is JSON (see ``rune.runtime.loose_json`` for how loosely), in a fence, between tags or bare among words, in one of the
shapes that models use: ``{"name", "arguments"}``, ``{"tool", "args"}``, ``{"function": {…}}``, ``{"tool_calls": […]}``, the
arguments beside the name, the name as the only key, arguments as a text of JSON. Two forms of XML are read as well.

JSON is a call when it names a tool that there is. With another name it is one only where nothing else can be meant: between
tags, in a fence of calls, or with exactly a name and arguments in a fence or as the whole text. All other JSON is an answer,
and so are schemas, code in a fence of another language, and what is quoted from a tool's result. What a model thinks is not
looked at.

``parse_calls`` never raises, and its time is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rune.runtime.loose_json import LooseJsonError, read_object, read_value

__all__ = ["CALLS_MAX", "UNREADABLE", "Parsed", "TextCall", "parse_calls"]

CALLS_MAX = 32
"""Calls that are read from one text; the rest of it is left as it is."""

UNREADABLE = "unreadable_call"
"""The name of a call whose own name cannot be made out."""

_NAMES = ("name", "tool", "tool_name", "function_name", "function", "action")
_ARGUMENTS = ("arguments", "args", "parameters", "params", "input", "tool_input", "action_input", "kwargs")
_WRAPPERS = ("function", "function_call", "tool_call", "tool_calls", "calls", "action", "command")
_BESIDE = frozenset("id type index call_id tool_call_id thought thoughts reasoning reason explanation comment".split())
_PREFIXES = ("functions.", "function.", "tools.", "tool.", "default_api.")

_TAGS = "tool_calls?|function_calls?|tool_use"
# Looked at before an object is read, as most braces are none of a call's: a name and a colon, a comment, or nothing.
_BRACE = r"\{(?=\s*+(?:[\"'][^\"'\\{}\n]{1,64}[\"']\s*+:|[\w$]{1,64}+\s*+:|//|#|\}))"
_MARK = re.compile(
    r"(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[\w+.-]*)"
    r"|<(?P<think>think(?:ing)?)>"
    r"|<function=(?P<xml>[\w.:-]+)>|<invoke name=[\"'](?P<invoke>[\w.:-]+)[\"']>"
    rf"|<\|?(?P<tag>{_TAGS})\|?>"
    rf"|(?P<brace>{_BRACE})"
)
_BEHIND_TAG = re.compile(rf"\s*+(?:(?:`{{3,}}|~{{3,}})[\w ]*+\s*+)?\[?\s*+(?:<function=|<invoke |{_BRACE})")
_OPENED = re.compile(rf"(?:<\|?(?:{_TAGS})\|?>|\[TOOL_CALLS\]|<\|python_tag\|>)$")
_CLOSED = re.compile(rf"<\|?/(?:{_TAGS})\|?>|<\|/?(?:{_TAGS})\|>|`{{3,}}|~{{3,}}|[\],;]")
_OPENING_FENCE = re.compile(r"(?:`{3,}|~{3,})[ \t]*[\w+.-]*$")
_DATA_FENCES = frozenset(["", "json", "json5", "jsonc", "text", "xml"])
_CALL_FENCES = frozenset("tool_call tool_calls tool_code tool_use tool tools function_call call action".split())
_BROKEN = re.compile(
    r"""\{\s*["']?(?:name|tool|tool_name|function_name|function|action)["']?\s*:\s*["'](?P<name>[\w.:-]{1,64})["']\s*,"""
    r"""\s*["']?(?:arguments|args|parameters|params|input|tool_input|action_input)["']?\s*:"""
)
_PARAMETER = re.compile(r"<parameter(?:=|\s+name=[\"'])(?P<name>[\w.-]+)[\"']?>")
_PARAMETER_END = "</parameter>"
_NOT_OF_A_NAME = re.compile(r"[^\w.:-]", re.ASCII)
_LOOK_BACK = 100  # characters before a call in which its fence or tag stands
_WORK_LEAST = 20_000
_QUOTE_LEAST = 40  # characters of a broken call that must be alike to be taken for a quotation


@dataclass(frozen=True, slots=True)
class TextCall:
    """One call. ``name`` is the tool's own where there is one. ``error`` says why a call cannot be read; ``arguments`` is then
    the text of it."""

    name: str
    arguments: Any
    error: str = ""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The calls of a text in their order, and what the text says besides them."""

    calls: tuple[TextCall, ...] = ()
    prose: str = ""


def parse_calls(text: str, tools: Mapping[str, Collection[str]], results: Sequence[str] = ()) -> Parsed:
    """The calls in ``text``. ``tools`` are the names that there are, each with the names of its parameters.

    ``results`` are what tools gave before: what stands word for word in one of them is quoted from it, and no call. Else a
    file could make a model that shows it run what it likes.
    """
    if not tools:
        return Parsed((), text)
    reader = _Reader(text, tools, results)
    reader.read()
    if not reader.calls:
        return Parsed((), text)
    return Parsed(tuple(reader.calls), reader.prose())


@dataclass
class _Reader:
    text: str
    tools: Mapping[str, Collection[str]]
    results: Sequence[str] = ()
    calls: list[TextCall] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    fence: str = ""
    info: str = ""
    inside: int = 0  # where the fence's own text begins
    taken: int = 0  # calls before the fence
    work: int = 0

    def __post_init__(self) -> None:
        self.folded = {_folded(name): name for name in self.tools}
        self.first = len(self.text) - len(self.text.lstrip(" \r\n\t["))
        self.last = len(self.text.rstrip(" \r\n\t]"))

    def read(self) -> None:
        position = _behind_thinking(self.text)
        while len(self.calls) < CALLS_MAX and (mark := _MARK.search(self.text, position)) is not None:
            following = self._at(mark)
            if following is None:
                return
            position = following

    def prose(self) -> str:
        """What stands around the calls."""
        pieces: list[str] = []
        end = 0
        for start, stop in [*self.spans, (len(self.text), len(self.text))]:
            pieces.append(self.text[end:start].strip())
            end = stop
        return "\n\n".join(piece for piece in pieces if piece)

    def _at(self, mark: re.Match[str]) -> int | None:
        """Takes what a mark begins; where to go on, None for nowhere."""
        kind = mark.lastgroup if mark["fence"] is None else "fence"
        if kind == "fence":
            return self._fence(mark)
        if kind == "think":
            end = self.text.find(f"</{mark['think']}>", mark.end())
            return None if end < 0 else end
        if kind in ("xml", "invoke"):
            return self._xml(mark, mark["xml"] or mark["invoke"])
        if kind == "tag":
            return mark.end() if _BEHIND_TAG.match(self.text, mark.end()) else self._unreadable(mark)
        return self._brace(mark.start())

    # Fences

    def _fence(self, mark: re.Match[str]) -> int | None:
        marks, info = mark["fence"], mark["info"].lower()
        if self.fence:
            if marks.startswith(self.fence):
                body = self.text[self.inside : mark.start()].strip()
                nothing = self.info in _CALL_FENCES and len(self.calls) == self.taken
                if nothing and body and not self._quoted(body):
                    self._take(self.inside, mark.start(), [TextCall(UNREADABLE, body, "it is no JSON object")])
                self.fence = self.info = ""
            return mark.end()
        if info in _DATA_FENCES or info in _CALL_FENCES or self._holds_data(mark.end()):
            self.fence, self.info, self.inside, self.taken = marks, info, mark.end(), len(self.calls)
            return mark.end()
        end = self.text.find(f"\n{marks}", mark.end())
        return None if end < 0 else end + 1 + len(marks)

    def _holds_data(self, position: int) -> bool:
        """Whether a fence of some language holds an object and no program."""
        return self.text[position : position + _LOOK_BACK].lstrip()[:1] in ("{", "[")

    # Braces

    def _brace(self, start: int) -> int | None:
        try:
            value, end = read_value(self.text, start)
        except LooseJsonError as exc:
            return self._failed(start, exc)
        certain = self._certain(start)
        alone = certain or bool(self.fence) or (start == self.first and end == self.last)
        found = self._calls_of(value, certain=certain, alone=alone)
        if (found or certain) and self._quoted(self.text[start:end]):
            return end
        if found:
            self._take(start, end, found)
        elif certain:
            self._take(start, end, [TextCall(UNREADABLE, self.text[start:end], "it names no tool")])
        return max(end, self.spans[-1][1]) if self.spans else end

    def _failed(self, start: int, exc: LooseJsonError) -> int | None:
        """A call that breaks off is one that the model must hear of, and the last that is read: what follows may be a part
        of it. Anything else is passed over."""
        broken = _BROKEN.match(self.text, start)
        given = UNREADABLE if broken is None else broken["name"]
        name = self._name(given)
        if (name is not None or self._certain(start)) and not self._quoted(
            self.text[start : max(exc.position, start + _QUOTE_LEAST)]
        ):
            why = f"{exc} at character {exc.position - start + 1} of it"
            self._take(start, len(self.text), [TextCall(name or given, self.text[start:].strip(), why)])
            return None
        self.work += exc.position - start + 1
        within = self.work <= len(self.text) + _WORK_LEAST
        return start + 1 if within else max(exc.position, start + 1)

    def _quoted(self, piece: str) -> bool:
        return any(piece in result for result in self.results)

    def _certain(self, start: int) -> bool:
        """Whether what begins here stands between the tags, or in the fence, of a call."""
        if self.info in _CALL_FENCES:
            return True
        before = self.text[max(0, start - _LOOK_BACK) : start].rstrip().rstrip("[").rstrip()
        opening = _OPENING_FENCE.search(before)
        if opening is not None:
            before = before[: opening.start()].rstrip()
        return _OPENED.search(before) is not None

    def _take(self, start: int, end: int, calls: list[TextCall]) -> None:
        self.calls += calls[: CALLS_MAX - len(self.calls)]
        floor = self.spans[-1][1] if self.spans else 0
        self.spans.append((self._opened(start, floor), self._closed(end)))

    def _opened(self, start: int, floor: int) -> int:
        """Where the brackets, tags and fence begin that stand before a call."""
        while True:
            before = self.text[max(floor, start - _LOOK_BACK) : start]
            bare = before.rstrip()
            cut = bare.rstrip("[").rstrip()
            for pattern in (_OPENED, _OPENING_FENCE):
                found = pattern.search(cut)
                if found is not None:
                    cut = cut[: found.start()]
            if cut == bare:
                return start
            start -= len(before) - len(cut)

    def _closed(self, end: int) -> int:
        while True:
            skipped = end
            while skipped < len(self.text) and self.text[skipped].isspace():
                skipped += 1
            found = _CLOSED.match(self.text, skipped)
            if found is None:
                return end
            if found[0][0] in "`~":
                if not self.fence:
                    return end  # the next one opens here
                self.fence = self.info = ""
            end = found.end()

    # Shapes

    def _calls_of(self, value: Any, *, certain: bool, alone: bool, depth: int = 0) -> list[TextCall]:
        if isinstance(value, list):
            return [call for one in value for call in self._calls_of(one, certain=certain, alone=alone, depth=depth)]
        if not isinstance(value, dict) or depth > 2:
            return []
        for key in _WRAPPERS:
            inner = value.get(key)
            if isinstance(inner, (dict, list)):
                found = self._calls_of(inner, certain=certain, alone=alone, depth=depth + 1)
                if found:
                    return found
        return self._named(value, certain=certain, alone=alone) or self._keyed(value)

    def _named(self, value: dict[str, Any], *, certain: bool, alone: bool) -> list[TextCall]:
        name_key = next((key for key in _NAMES if isinstance(value.get(key), str)), None)
        if name_key is None:
            return []
        name = self._name(value[name_key])
        key = next((key for key in _ARGUMENTS if key in value), None)
        beside = value.keys() - {name_key, key}
        if name is None:
            clear = key == "arguments" if name_key == "name" else key is not None and name_key != "action"
            if certain or (alone and clear and not beside - _BESIDE and isinstance(value[key or ""], (dict, str))):
                return [self._call(value[name_key], value.get(key or ""))]
            return []
        parameters = set(self.tools[name])
        inner = value.get(key or "")
        if key is None or (key in parameters and not (isinstance(inner, dict) and inner.keys() <= parameters)):
            found = {k: v for k, v in value.items() if k != name_key and (k in parameters or k not in _BESIDE)}
            return [TextCall(name, found)] if found.keys() <= parameters and (found or certain) else []
        if "description" in beside or _is_schema(inner, parameters):
            return []
        return [self._call(name, inner)]

    def _keyed(self, value: dict[str, Any]) -> list[TextCall]:
        """``{"read_file": {"path": "a"}}``."""
        if len(value) != 1:
            return []
        ((key, inner),) = value.items()
        name = self._name(key)
        if name is None or not isinstance(inner, dict) or not inner.keys() <= set(self.tools[name]):
            return []
        return [TextCall(name, inner)]

    def _call(self, name: str, arguments: Any) -> TextCall:
        if name not in self.tools:
            name = _NOT_OF_A_NAME.sub("_", name)[:64] or UNREADABLE
        if arguments is None or arguments == "":
            return TextCall(name, {})
        if isinstance(arguments, str):
            try:
                return TextCall(name, read_object(arguments))
            except LooseJsonError as exc:
                return TextCall(name, arguments, f"its arguments are no JSON object: {exc}")
        return TextCall(name, arguments)

    def _name(self, given: str) -> str | None:
        """The tool that is meant, or None."""
        if given in self.tools:
            return given
        folded = _folded(given)
        for prefix in ("", *_PREFIXES):
            if folded.startswith(prefix) and folded[len(prefix) :] in self.folded:
                return self.folded[folded[len(prefix) :]]
        return None

    # Tags

    def _xml(self, mark: re.Match[str], given: str) -> int | None:
        closing = "</function>" if mark["xml"] else "</invoke>"
        end = self.text.find(closing, mark.end())
        stop = len(self.text) if end < 0 else end
        body = self.text[mark.end() : stop].strip()
        name = self._name(given)
        if self._quoted(self.text[mark.start() : stop]):
            return stop
        if body.startswith("{"):
            call = self._call(name or given, body)
        else:
            found = _parameters(body)
            error = "" if found or not body else "it has no parameters that can be read"
            call = TextCall(name or given, body if error else found, error)
        self._take(mark.start(), min(len(self.text), stop + len(closing)), [call])
        return None if end < 0 or call.error else self.spans[-1][1]

    def _unreadable(self, mark: re.Match[str]) -> int | None:
        """Something between the tags of a call that is no JSON."""
        closing = re.compile(rf"<\|?/?{mark['tag']}\|?>").search(self.text, mark.end())
        starts_line = not self.text[max(0, mark.start() - _LOOK_BACK) : mark.start()].rpartition("\n")[2].strip()
        if closing is None or "/" not in closing[0] or not starts_line:
            return mark.end()  # words about tags
        body = self.text[mark.end() : closing.start()].strip()
        if self._quoted(body):
            return closing.end()
        self._take(mark.start(), closing.start(), [TextCall(UNREADABLE, body, "it is no JSON object")])
        return self.spans[-1][1]


def _behind_thinking(text: str) -> int:
    """Where the answer begins in a text whose thinking was opened by the model's template and only closes in it."""
    end = text.find("</think>")
    return end if end >= 0 and "<think>" not in text[:end] else 0


def _folded(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def _is_schema(value: Any, parameters: Collection[str]) -> bool:
    return isinstance(value, dict) and "properties" in value and "properties" not in parameters


def _parameters(body: str) -> dict[str, str]:
    """What stands between the tags of parameters, without the line breaks that set it apart from them."""
    found: dict[str, str] = {}
    position = 0
    while (opening := _PARAMETER.search(body, position)) is not None:
        end = body.find(_PARAMETER_END, opening.end())
        if end < 0:
            break
        found[opening["name"]] = body[opening.end() : end].removeprefix("\n").removesuffix("\n")
        position = end + len(_PARAMETER_END)
    return found
