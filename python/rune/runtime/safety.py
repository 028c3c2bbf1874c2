"""The safety override: whether a task asks for work that destroys or that touches secrets, and the note it is then given.

It reads sentences and not words: "How do I delete a branch?" and "Write a function that deletes files" ask for no deletion, and
what stands in quotes, in code or in a pasted text is talked about. It is a help to the model and no guard: what a tool may do is
decided by approvals and the workspace. Pure functions; the same text gives the same note on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from rune.runtime.safety_rules import Rule

__all__ = ["Finding", "decorated", "find"]

HEAD = "[Safety note: "
_EDGE = 2000
_JOINTS_MAX = 40
"""Characters at each end of a long text that are read: what is between is pasted far more often than asked."""


class Finding(NamedTuple):
    """A rule that holds, and the words of the task it was seen by."""

    rule: Rule
    text: str


def find(text: str, rules: Sequence[Rule]) -> list[Finding]:
    """The rules that hold for a task, each once, in the order of the table."""
    if len(text) > 2 * _EDGE:
        text = f"{text[:_EDGE]}\n\n{text[-_EDGE:]}"
    found: dict[str, str] = {}
    verbs, commands = _first_words(tuple(rules))
    small = text.lower()
    # Most tasks hold none of the words at all: what they mean need not be looked into.
    asked = _asked(text, rules) if any(map(small.__contains__, verbs)) else ()
    run = _commands(text, rules) if any(map(small.__contains__, commands)) else ()
    for rule, words in [*asked, *run]:
        found.setdefault(rule.name, words)
    return [Finding(rule, found[rule.name]) for rule in rules if rule.name in found]


def decorated(text: str, findings: Sequence[Finding]) -> str:
    """The task with the notes of the findings behind it, in one bracket."""
    return f"{text}\n\n{HEAD}{' '.join(finding.rule.note for finding in findings)}]" if findings else text


# What is read: sentences outside of code and quotes

_FENCE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)", re.DOTALL | re.MULTILINE)
_QUOTED = re.compile(r'"([^"\n]{0,200})"|“([^”\n]{0,200})”|`([^`\n]{0,200})`')
_PATH = re.compile(r"(?:[~.]{0,2}/|\*\.|[A-Za-z]:\\)[^\s,;]*|[\w-]*\*[\w.*-]*|\.?[\w-]+\.[a-z]{1,5}|[\w.-]+/[\w./-]*")
_SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]*\s+|[;\n]+|:\s")
_QUOTE_LINE = re.compile(r"^[ \t]*>.*$", re.MULTILINE)


def _unquoted(found: re.Match[str]) -> str:
    inside = next((group for group in found.groups() if group is not None), "")
    return inside if _PATH.fullmatch(inside.strip()) else "“”"


def _sentences(text: str) -> Iterator[str]:
    text = _QUOTE_LINE.sub("", _FENCE.sub("\n", text))
    for sentence in _SENTENCE.split(_QUOTED.sub(_unquoted, text)):
        if sentence and sentence.strip():
            yield " ".join(sentence.split())


# What asks: verbs in asking places

_LEAD = re.compile(
    r"(?i)(?:[-*•#>\d.)\]\s]+|(?:please|pls|now|then|also|next|first|second|finally|afterwards|just|okay|ok|hey|hi|hello|yes|"
    r"rune|so|and|kindly|quickly|simply|otherwise|alternatively|immediately|permanently|recursively|go ahead and|go and|"
    r"(?:can|could|will|would) (?:you|we)|you (?:must|should|need to|have to|can|may)|i(?:'d| would)? (?:want|need|like)"
    r"(?: you)? to|we (?:need|have|want) to|let'?s|let us|help me(?: to)?|make sure (?:to|you|that you)|remember to|"
    r"don'?t forget to|feel free to|time to|be sure to|try to)\b[\s,]*)"
)
_TALK = re.compile(
    r"(?i)(?:what(?!'s| is| are)|why|how|when|who|which|is|are|does|do|did|was|were|should|can i|could i|may i|explain|"
    r"describe|tell me (?:about|how|what|why|whether|if)|show me how|teach|summari[sz]e|translate|define|compare|proofread|"
    r"rephrase|rewrite|correct|imagine|suppose|if|suggest|recommend|list (?:the )?(?:steps|ways|commands)|never|don't|do not|"
    r"without|avoid|i (?:have|had|was|am|just|already|accidentally)|give me (?:an? )?(?:example|command|idea|tip|list))\b"
)
_BUILD = re.compile(
    r"(?i)(?:write|implement|create|add|build|design|draft|compose|generate|refactor|rename|review|document|fix|debug|test|"
    r"code|make (?:a|an|the)|update|change|improve|extend|finish|develop|plan|prepare)\b"
)
_SUBORDINATE = re.compile(r"(?i)\b(?:to|that|which|who|can|could|should|will|would|for|how|where|when|if)\b")
_JOINT = re.compile(r"(?i)(?:\b(?:and|but|then)\b|,)\s+")
_THEN = re.compile(r"(?i)\bthen\b[\s,]*$")


def _after_lead(sentence: str, start: int = 0) -> int:
    while found := _LEAD.match(sentence, start):
        start = found.end()
    return start


def _places(sentence: str) -> Iterator[int]:
    """Where in the sentence a verb would be asking."""
    start = _after_lead(sentence)
    talk = _TALK.match(sentence, start) is not None
    build = _BUILD.match(sentence, start) is not None
    if not talk:
        yield start
    for joint in islice(_JOINT.finditer(sentence, start), _JOINTS_MAX):
        before = sentence[start : joint.end()]
        sure = _THEN.search(before) is not None
        if not sure and (talk or (build and _SUBORDINATE.search(before))):
            continue
        yield _after_lead(sentence, joint.end())


_STOP = (
    "from|in|into|on|onto|at|with|for|to|by|about|as|how|why|what|when|if|whether|that|which|who|so|before|after|until|unless|"
    "except|and|or|but|then|is|are|was"
)
_GO_ON = (
    f"{_STOP}|of|older|newer|larger|bigger|smaller|than|named|called|matching|containing|ending|starting|under|over|inside|below|"
    "above|within|now|please|again|completely|permanently|immediately|recursively|there|here|too|also|first|afterwards|you|we|i|"
    "it|not|without|via|using|through|because|since|while|like|directly|myself|yourself|only"
)
_CONTAINERS = "folder|directory|table|database|branch|bucket|repository|repo|schema|collection|volume"
_HEADS = (  # "the file extension" is no file: nouns that make the word before them a mere attribute
    "extension|extensions|name|names|header|type|size|path|paths|format|handle|handles|descriptor|dependency|interface|input|"
    "connection|connections|column|columns|entry|field|import|imports|prefix|suffix|parameter|argument|test|tests|code|class|"
    "function|method|menu|button|link|icon|option|flag|check|setting|structure|list|layout|schema|model|module|page|row"
)
_OWNERS = (
    "all|every|each|any|my|our|your|their|his|her|old|unused|inactive|personal|customer|user|production|everyone's"
)
_END = rf"(?=$|\s*[.,;:!?)\]…“\"']|\s+(?:{_GO_ON})\b|\s+[~/*]|\s+“|\s+[\w-]*[./*][\w./*-]*)"
_FILL = rf"(?:(?!(?:{_STOP})\b)[\w'’/-]+\s+(?:of\s+(?=the\b|my\b|our\b|your\b|all\b|these\b|those\b))?){{0,5}}?"
_EVERYTHING = (
    r"(?:everything|all of (?:it|them)|it all|them all)"
    r"(?=$|\s*[.;!?]|\s+(?:now|please)\b|\s+(?:in|from|under|inside|on)\s+"
)
_ANY_PATH = (
    r"(?:[~.]{0,2}/[^\s,;]+|\*\.\w+|[\w-]+\*|[\w-]+\.(?:txt|md|csv|json|ya?ml|toml|ini|log|sql|db|sqlite3?|pdf|docx?|"
    r"xlsx?|png|jpe?g|zip|tar|gz|py|rs|js|ts|c|h|cpp|go|java|rb|sh|html|css|bak|tmp))(?![\w/])"
)


@lru_cache(maxsize=64)
def _verbs(rule: Rule) -> re.Pattern[str] | None:
    return re.compile(rf"(?i)(?:{_either(rule.asks)})(?!\w)") if rule.asks else None


@lru_cache(maxsize=64)
def _objects(rule: Rule) -> re.Pattern[str]:
    """What may stand behind the verb, from its end on."""
    ways = []
    if rule.about:
        about = _either(rule.about)
        also = rf"(?:\s*,|\s+and|\s+or)\s+(?:the\s+|all\s+|my\s+|any\s+)?(?:{about})(?!\w){_END}"
        ways.append(rf"{_FILL}(?:{about})(?!\w){_END}")
        ways.append(rf"(?:{_FILL}[\w-]+){also}")
        boxes = [word for word in rule.about if re.fullmatch(_CONTAINERS, word)]
        if boxes:  # "the folder build", "the table users"
            ways.append(
                rf"(?:the\s+|this\s+|that\s+|my\s+|our\s+)?(?:{_either(boxes)})\s+(?!(?:{_HEADS})\b)[\w-]+(?=$|\s*[.,;!?])"
            )
    if rule.owned:
        ways.append(rf"{_FILL}(?:{_OWNERS})\s+{_FILL}(?:{_either(rule.owned)})(?!\w){_END}")
    if "file" in rule.about:
        ways += [rf"{_EVERYTHING}(?:{_FILL}(?:{_either(rule.about)})\b|[~/.*]))", rf"{_FILL}{_ANY_PATH}"]
    if rule.places:
        ways.append(rf".*?(?<!\w)(?:{_either(rule.places)})(?!\w)")
    return re.compile(rf"(?i)\s+(?:(?:me|us|him|them|everyone)\s+)?(?:{'|'.join(ways) or '(?!)'})")


def _either(words: Sequence[str]) -> str:
    return "|".join(r"\s+".join(map(re.escape, word.split())) for word in sorted(words, key=len, reverse=True))


_A_KIND = re.compile(r"(?i)(?:what|where)(?:'s| is| are)\s+(?:an?|the difference)\b")


@lru_cache(maxsize=16)
def _first_words(rules: tuple[Rule, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The first word of every verb, and of every command line, in small letters."""
    verbs = {verb.split()[0].lower() for rule in rules for verb in rule.asks}
    return tuple(sorted(verbs)), tuple(sorted({c.split()[0].lower() for rule in rules for c in rule.commands}))


def _asked(text: str, rules: Sequence[Rule]) -> Iterator[tuple[Rule, str]]:
    for sentence in _sentences(text):
        places = list(dict.fromkeys(_places(sentence)))
        for rule in rules:
            verbs = _verbs(rule)
            for start in places if verbs is not None else ():
                verb = verbs.match(sentence, start) if verbs is not None else None
                if verb is None or _A_KIND.match(sentence, start):
                    continue
                what = _objects(rule).match(sentence, verb.end())
                if what is not None:
                    yield rule, sentence[start : what.end()]
                    break


# Command lines

_RUN = re.compile(r"(?i)\b(?:run|execute|use|apply|do|try|type|issue|enter|call|launch|start|with)\b[^.!?]{0,60}$")
_RUN_ALL = re.compile(r"(?i)^(?:run|execute|apply|do|try|enter)\b")


@lru_cache(maxsize=64)
def _command(rule: Rule) -> re.Pattern[str]:
    return re.compile(rf"(?i)(?:^|(?<=[\s`;&|$(]))(?:{_either(rule.commands)})[^\n`]{{0,80}}")


def _commands(text: str, rules: Sequence[Rule]) -> Iterator[tuple[Rule, str]]:
    """Command lines that the task says to run: in its sentences, or in code behind a sentence that says so."""
    prose = _QUOTE_LINE.sub("", _FENCE.sub("\n", text))
    asking = [line for line in map(str.strip, re.split(r"(?<=[.!?])\s+|\n+", prose)) if line]
    runs_code = any(_RUN_ALL.match(line, _after_lead(line)) for line in asking)
    for rule in rules:
        if not rule.commands:
            continue
        pattern = _command(rule)
        if runs_code:
            for fence in _FENCE.finditer(text):
                if found := pattern.search(fence[0]):
                    yield rule, found[0].strip()
        for line in asking:
            start = _after_lead(line)
            if _TALK.match(line, start) or _BUILD.match(line, start):
                continue
            found = pattern.search(line)
            if found and (found.start() <= start + 1 or _RUN.search(line[start : found.start()])):
                yield rule, found[0].strip()
