"""The verdict of every recorded call of a real Ollama server, beside what really happened to its prompt.

    python scripts/verdict_table.py            writes docs/verdicts.md
    python scripts/verdict_table.py --check    exit 3 when that file is not current

The recordings are read from ``$RUNE_SHARED/recordings``, else ``../shared/recordings``. What really happened is worked out
from the recordings alone and never from a verdict: the true size of a prompt is what a refusal of the same messages says, or
the count of a reply that a server gave although it was asked to refuse, or a count in a window that the prompt's bytes cannot
fill. Where no such number exists, words are a floor (no token spans two) and bytes are a ceiling.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from rune.transports.base import ChatReply, Verdict
from rune.transports.discovery import ModelFacts
from rune.transports.measure import chars4_tokens
from rune.transports.ollama_chat import PromptSize, judge_reply
from rune.transports.ollama_show import facts_from_show
from rune.transports.ollama_version import Version, parse_version
from rune.transports.server_errors import read_error
from rune.transports.wire import utf8_size, word_count

OUT = ROOT / "docs" / "verdicts.md"
KINDS = ("whole", "unknown", "suspected", "cut", "shifted", "incomplete", "refused")
TRUTHS = ("fits", "fits, exactly full", "cut", "shifted while writing", "no end", "refused")
PATHS = ("/api/chat", "/api/generate", "/v1/chat/completions")
KEY = ("messages", "prompt", "tools", "think", "raw")
TRAINED = 8192
UNJUDGED = Verdict("unknown", "")


@dataclass(frozen=True)
class Call:
    """One recorded call: what was sent, what came back, what is known of the prompt, and the verdict."""

    file: str
    id: str
    version_text: str
    path: str
    body: dict[str, Any]
    status: int
    final: dict[str, Any]
    size: PromptSize
    facts: ModelFacts | None
    true_tokens: int | None = None
    truth: str = ""
    verdict: Verdict = UNJUDGED

    @property
    def version(self) -> Version | None:
        return parse_version(self.version_text)

    @property
    def num_ctx(self) -> int | None:
        value = (self.body.get("options") or {}).get("num_ctx") if self.path != "/v1/chat/completions" else None
        return int(value) if isinstance(value, (int, float)) else None

    @property
    def asked_to_refuse(self) -> bool:
        return self.body.get("truncate") is False and self.path != "/v1/chat/completions"

    @property
    def as_rune_asks(self) -> bool:
        """Whether it was sent as Rune sends: natively, not to be cut, not to be shifted, with a window of its own."""
        own_window = self.num_ctx is not None and self.num_ctx > 0
        return self.path == "/api/chat" and self.asked_to_refuse and self.body.get("shift") is False and own_window

    @property
    def served(self) -> int | None:
        return self.final.get("prompt_eval_count") or (self.final.get("usage") or {}).get("prompt_tokens") or None

    @property
    def written(self) -> int | None:
        return self.final.get("eval_count") or (self.final.get("usage") or {}).get("completion_tokens") or None

    @property
    def done(self) -> bool:
        if self.path == "/v1/chat/completions":
            return any(choice.get("finish_reason") for choice in self.final.get("choices", ()))
        return self.final.get("done") is True


def recordings_folder() -> Path | None:
    """Where the recordings are, or None."""
    shared = Path(os.environ.get("RUNE_SHARED") or ROOT.parent / "shared")
    return shared / "recordings" if (shared / "recordings").is_dir() else None


def expand(value: Any) -> Any:
    """A recorded body with its generator nodes written out."""
    if isinstance(value, dict):
        if "$repeat" in value:
            return value["$repeat"] * value["times"]
        if "$concat" in value:
            return "".join(expand(v) for v in value["$concat"])
        return {key: expand(v) for key, v in value.items()}
    return [expand(v) for v in value] if isinstance(value, list) else value


def exchanges(folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(file name, server version, exchange) of every recorded exchange."""
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text("utf-8"))
        version = document["meta"]["server"].split()[1].rstrip(";")
        for exchange in document.get("exchanges", ()):
            if "request" in exchange:
                yield path.name, version, exchange


def response_bytes(response: dict[str, Any]) -> bytes:
    """A recorded response body as it came over the wire (but for the lines that the recording left out)."""
    if "lines" in response:
        body = "\n".join(response["lines"])
        return (body + ("\n" if response.get("ends_with_newline") else "")).encode("utf-8", "surrogatepass")
    return str(response.get("text") or "").encode("utf-8", "surrogatepass")


def load_calls(folder: Path) -> list[Call]:
    """Every recorded call that has a prompt and was answered or refused, with truth and verdict."""
    shows: dict[tuple[str, str], ModelFacts] = {}
    raw: list[Call] = []
    for file, version, exchange in exchanges(folder):
        request, response = exchange["request"], exchange["response"]
        body = expand(request.get("body"))
        if request["path"] == "/api/show" and response.get("status") == 200:
            shows[(version, body["model"])] = facts_from_show(body["model"], json.loads(response["text"]))
        if request["path"] not in PATHS or not isinstance(body, dict) or body.get("_debug_render_only"):
            continue
        call = _call(file, version, exchange["id"], request["path"], body, response)
        if call is not None:
            raw.append(call)
    raw.extend(_calibration(folder))
    raw = [replace(call, facts=shows.get((call.version_text, call.body["model"]))) for call in raw]
    return [_judged(call) for call in _with_truth(raw)]


def _call(file: str, version: str, id: str, path: str, body: dict[str, Any], response: dict[str, Any]) -> Call | None:
    messages = body.get("messages") or ([{"role": "user", "content": body["prompt"]}] if body.get("prompt") else [])
    if not messages or not isinstance(body.get("options", {}), dict):
        return None
    text = response_bytes(response).decode("utf-8", "replace").strip()
    status = response.get("status") or 0
    if status != 200:
        if not read_error(text).refuses(status):
            return None  # an error of another kind: nothing was judged
        return Call(file, id, version, path, body, status, {"error": text}, _size(messages, body), None)
    final: dict[str, Any] = {}
    for line in text.splitlines():
        line = line.removeprefix("data: ").strip()
        if not line.startswith("{"):
            continue
        item = json.loads(line)
        usage, choices = item.get("usage") or final.get("usage"), item.get("choices") or final.get("choices") or []
        final = {**item, "usage": usage, "choices": choices}
    return Call(file, id, version, path, body, status, final, _size(messages, body), None)


def _size(messages: list[dict[str, Any]], body: dict[str, Any]) -> PromptSize:
    wire = [{**m, "content": m.get("content") or ""} for m in messages]
    tools = body.get("tools") or []
    return PromptSize(chars4_tokens(wire, tools), utf8_size(wire, tools), word_count(wire), len(wire))


def _calibration(folder: Path) -> Iterator[Call]:
    """The calibration texts: each was one user message in a window of 8192, with the same count on both servers."""
    path = folder / "calibration.json"
    for row in json.loads(path.read_text("utf-8"))["rows"] if path.is_file() else ():
        messages = [{"role": "user", "content": row["text"]}]
        body: dict[str, Any] = {"model": "calibration", "messages": messages, "options": {"num_ctx": 8192}}
        final = {"done": True, "prompt_eval_count": row["served_prompt_eval_count"], "eval_count": 1}
        for version in ("0.24.0", "0.32.15"):
            yield Call(path.name, row["name"], version, "/api/chat", body, 200, final, _size(messages, body), None)


def _with_truth(calls: list[Call]) -> list[Call]:
    sizes: dict[str, set[int]] = defaultdict(set)
    for call in calls:
        refused = read_error(json.dumps(call.final)).n_prompt_tokens if call.status != 200 else None
        if refused:
            sizes[_content_key(call)].add(refused)
        elif call.served and call.status == 200:
            refusable = call.asked_to_refuse and (call.version or (0, 0, 0)) >= (0, 12, 6)
            window = call.num_ctx
            bytes_fit = window is not None and _ceiling(call) < min(window, TRAINED)
            # Before 0.30.11 a lone message is cut to exactly the window, so a smaller count is its size.
            lone = call.size.messages == 1 and (call.version or (0, 0, 0)) < (0, 30, 11) and call.path == "/api/chat"
            if refusable or bytes_fit or (lone and window is not None and call.served < window and window >= 512):
                sizes[_content_key(call)].add(call.served)
    return [replace(call, true_tokens=_one(sizes[_content_key(call)]), truth=_truth(call, sizes)) for call in calls]


def _one(sizes: set[int]) -> int | None:
    return max(sizes) if sizes else None


def _content_key(call: Call) -> str:
    # A jinja template of the model's own adds a default system prompt: the same messages are larger there.
    template = "native" if "native-template" in call.file else call.body["model"].partition(":")[0]
    return json.dumps([template, call.path == "/api/generate", [call.body.get(k) for k in KEY]])


def _ceiling(call: Call) -> int:
    """More tokens than the prompt can have: every byte one, and what the small templates of these models add."""
    parts = [call.body.get("prompt") or "", *(call.body.get("tools") or ())]
    for message in call.body.get("messages") or ():
        parts += [message.get("content") or "", *(message.get("tool_calls") or ()), 8 * " "]
    texts = (part if isinstance(part, str) else json.dumps(part, separators=(",", ":")) for part in parts)
    return sum(len(text.encode("utf-8", "replace")) for text in texts) + 40


def _truth(call: Call, sizes: dict[str, set[int]]) -> str:
    if call.status != 200:
        return "refused"
    if not call.done:
        return "no end"
    size, served = _one(sizes[_content_key(call)]), call.served or 0
    window = call.num_ctx
    if size is not None:
        if served < size:
            return "cut"
    elif served < call.size.words:
        return "cut"
    elif window is None or _ceiling(call) >= window:
        return "not known"
    may_shift = call.body.get("shift") is not False or (call.version or (0, 0, 0)) < (0, 12, 6)
    if may_shift and window is not None and served + (call.written or 0) > window + 1:
        return "shifted while writing"
    if window is not None and served == window:
        return "fits, exactly full"
    return "fits"


def _judged(call: Call) -> Call:
    if call.status != 200:
        return replace(call, verdict=Verdict("refused", read_error(call.final["error"]).words))
    facts = call.facts or ModelFacts(call.body["model"], trained_window=TRAINED)
    reply = ChatReply("", done=call.done, prompt_tokens=call.served, output_tokens=call.written)
    keep = (call.body.get("options") or {}).get("num_keep")
    verdict = judge_reply(
        reply,
        call.size,
        version=call.version,
        facts=facts,
        num_ctx=call.num_ctx,
        num_keep=keep,
        asked_to_refuse=call.asked_to_refuse,
    )
    return replace(call, verdict=verdict)


def table(calls: list[Call]) -> str:
    """Counts of verdicts by server version and truth, as a Markdown table."""
    counts = Counter((c.version_text, c.truth, str(c.verdict.kind)) for c in calls)
    rows = [f"| server | the prompt | {' | '.join(KINDS)} |", f"|---|---|{'--:|' * len(KINDS)}"]
    for _, text in sorted({(c.version or (0, 0, 0), c.version_text) for c in calls}):
        for truth in TRUTHS:
            cells = [counts[(text, truth, kind)] for kind in KINDS]
            if any(cells):
                rows.append(f"| {text} | {truth} | {' | '.join(str(n) if n else '' for n in cells)} |")
    return "\n".join(rows)


def document(calls: list[Call]) -> str:
    """The text of docs/verdicts.md."""
    asked = [call for call in calls if call.as_rune_asks]
    cut = [call for call in calls if call.truth == "cut"]
    flagged = sum(call.verdict.flagged for call in cut)
    passed_off = sum(call.verdict.kind == "whole" for call in cut)
    return f"""# Verdicts, held against real servers

Every answered call gets a verdict with the numbers that it rests on (`rune/transports/verdict.py` says in which order the rules
apply). This page holds the verdicts of {len(calls)} recorded calls of real Ollama servers against what really happened to
their prompts. It is written by `scripts/verdict_table.py`, and a test checks that it is current.

What really happened is worked out without the verdict: from the token count that a refusal of the same messages names, from the
count of a reply by a server that was asked to refuse and did not, or from a window that the prompt's bytes cannot fill.

{len(cut)} prompts were cut in silence. {passed_off} of them are called `whole`;
{flagged} are flagged as `cut` or `suspected`, and the
rest is `unknown`.

## Calls as Rune sends them

`truncate: false`, `shift: false`, a window of their own. A server before 0.12.6 ignores the first two.

{table(asked)}

## All recorded calls

Most of these were sent to provoke a cut: without `truncate: false`, with a window of 0, through `/api/generate` or the
OpenAI-compatible path, where Rune sends nothing.

{table(calls)}

`unknown` stands where a server that was not asked to refuse gave a count that nothing contradicts and nothing proves.
`suspected` for a prompt that fills the window exactly stands where the server cannot refuse or was not asked to: a prompt cut to
the window has the same count.
"""


def main(arguments: list[str]) -> int:
    folder = recordings_folder()
    if folder is None:
        print("no recordings found; set RUNE_SHARED to the folder that holds them", file=sys.stderr)
        return 2
    text = document(load_calls(folder))
    if "--check" in arguments:
        current = OUT.is_file() and OUT.read_text("utf-8") == text
        if not current:
            print(f"{OUT.relative_to(ROOT)} is not current: run python scripts/verdict_table.py", file=sys.stderr)
        return 0 if current else 3
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
