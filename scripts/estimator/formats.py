"""Made texts in formats that programs write and read: JSON, logs, tables, code.

``KINDS`` maps a kind to a function of a ``random.Random``; the same seed gives the same text, of 200 to 2,500 characters.
"""
# ruff: noqa: E501, PERF401

from __future__ import annotations

import json
import string
import uuid
from random import Random
from typing import Any

from estimator.vocabulary import Maker, base64_of, hexes, identifier, sentence, some, stamp, url, words


def value(rng: Random, depth: int = 0) -> Any:
    pick = rng.randrange(12 if depth < 3 else 8)
    if pick == 0:
        return rng.randint(-1000, 10 ** rng.randint(1, 10))
    if pick == 1:
        return round(rng.uniform(-500, 500), rng.randint(1, 6))
    if pick == 2:
        return rng.choice([True, False, None])
    if pick == 3:
        return rng.choice(
            [str(uuid.UUID(int=rng.getrandbits(128))), stamp(rng), identifier(rng), url(rng), hexes(rng, 24), ""]
        )
    if pick < 8:
        return " ".join(some(rng, 1, 8))
    if pick < 10:
        return {identifier(rng): value(rng, depth + 1) for _ in range(rng.randint(1, 7))}
    return [value(rng, depth + 1) for _ in range(rng.randint(0, 5))]


def record(rng: Random) -> Any:
    return {identifier(rng): value(rng) for _ in range(rng.randint(4, 10))}


def records(rng: Random) -> Any:
    keys = [identifier(rng) for _ in range(rng.randint(3, 8))]
    return [{key: value(rng, 3) for key in keys} for _ in range(rng.randint(3, 9))]


def json_compact(rng: Random) -> str:
    return json.dumps(rng.choice([record, records])(rng), separators=(",", ":"))[:1500]


def json_spaced(rng: Random) -> str:
    return json.dumps(rng.choice([record, records])(rng))[:1500]


def json_pretty(rng: Random) -> str:
    return json.dumps(rng.choice([record, records])(rng), indent=rng.choice([2, 2, 4, "\t"]))[:2000]


def json_lines(rng: Random) -> str:
    rows = records(rng)
    return "\n".join(json.dumps(row) for row in rows)[:1500]


def json_escaped(rng: Random) -> str:
    return json.dumps({"error": "", "response": json.dumps(records(rng), indent=rng.choice([None, 1]))})[:1500]


def json_schema(rng: Random) -> str:
    def prop() -> Any:
        kind = rng.choice(["string", "string", "integer", "number", "boolean", "array"])
        made: dict[str, Any] = {"type": kind, "description": sentence(rng)}
        if kind == "array":
            made["items"] = {"type": rng.choice(["string", "integer"])}
        if kind == "string" and rng.random() < 0.3:
            made["enum"] = some(rng, 2, 4)
        return made

    def tool() -> Any:
        names = [identifier(rng) for _ in range(rng.randint(1, 5))]
        schema = {"type": "object", "properties": {name: prop() for name in names}, "required": names[:2]}
        return {
            "type": "function",
            "function": {"name": identifier(rng), "description": sentence(rng), "parameters": schema},
        }

    indent = rng.choice([None, None, 2])
    return json.dumps([tool() for _ in range(rng.randint(1, 3))], indent=indent)[:2500]


def api_text(rng: Random) -> str:
    lines = []
    for _ in range(rng.randint(3, 8)):
        lines.append(
            rng.choice(
                [
                    f"### `{rng.choice(['GET', 'POST', 'PUT', 'DELETE'])} /{'/'.join(some(rng, 1, 3))}/{{{identifier(rng)}}}`",
                    f"- `{identifier(rng)}` ({rng.choice(['string', 'integer', 'optional', 'bool'])}): {sentence(rng)}",
                    f"{identifier(rng)}({identifier(rng)}: {rng.choice(['str', 'int', 'list[str]'])} = None) -> {identifier(rng).title()}",
                    f"Content-Type: application/json\nAuthorization: Bearer {base64_of(rng, 15)}",
                    sentence(rng),
                    f"HTTP {rng.choice([200, 400, 404, 429, 500])}: {sentence(rng)}",
                ]
            )
        )
    return "\n".join(lines)


def log_lines(rng: Random) -> str:
    style = rng.randrange(5)
    lines = []
    for _ in range(rng.randint(4, 14)):
        level = rng.choice(["INFO", "INFO", "WARN", "ERROR", "DEBUG"])
        pairs = " ".join(
            f"{identifier(rng)}={rng.choice([rng.randint(0, 99999), identifier(rng), hexes(rng, 8)])}" for _ in range(3)
        )
        ip = ".".join(str(rng.randint(0, 255)) for _ in range(4))
        path = "/" + "/".join(some(rng, 1, 4))
        lines.append(
            [
                f"{stamp(rng)} {level} [{identifier(rng)}-{rng.randint(0, 9)}] {pairs} {' '.join(some(rng, 2, 6))}",
                f'{ip} - - [{rng.randint(1, 28)}/Oct/2024:13:{rng.randint(10, 59)}:36 +0000] "GET {path} HTTP/1.1" {rng.choice([200, 404])} '
                f'{rng.randint(100, 99999)} "-" "Mozilla/5.0 (X11; Linux x86_64)"',
                f"{stamp(rng)} | {level:8} | {identifier(rng)}.{identifier(rng)}:{rng.randint(1, 900)} - {' '.join(some(rng, 3, 9))}",
                f"Oct {rng.randint(1, 28):2} 12:{rng.randint(10, 59)}:01 host{rng.randint(1, 9)} {identifier(rng)}[{rng.randint(100, 9999)}]: "
                f"{' '.join(some(rng, 3, 9))}",
                f"[{rng.uniform(0, 9999):12.6f}] {identifier(rng)}: {' '.join(some(rng, 3, 7))} 0x{hexes(rng, 8)} ({rng.randint(1, 99)} ms)",
            ][style]
        )
    return "\n".join(lines)


def stack_trace(rng: Random) -> str:
    style = rng.randrange(4)
    lines = (
        ["Traceback (most recent call last):"] if style == 0 else [f"{identifier(rng).title()}Error: {sentence(rng)}"]
    )
    for _ in range(rng.randint(4, 10)):
        path, line = "/".join(some(rng, 2, 5)), rng.randint(1, 2000)
        lines.append(
            [
                f'  File "/usr/lib/python3.11/{path}.py", line {line}, in {identifier(rng)}\n    {identifier(rng)} = self.{identifier(rng)}({identifier(rng)})',
                f"    at {identifier(rng)}.{identifier(rng)} (/app/node_modules/{path}.js:{line}:{rng.randint(1, 80)})",
                f"\tat com.{'.'.join(some(rng, 2, 4))}.{identifier(rng).title()}.{identifier(rng)}({identifier(rng).title()}.java:{line})",
                f"  {rng.randint(0, 40)}: {identifier(rng)}::{identifier(rng)}\n             at ./src/{path}.rs:{line}:{rng.randint(1, 60)}",
            ][style]
        )
    return "\n".join(lines)


def diff(rng: Random) -> str:
    lines = [
        f"diff --git a/{identifier(rng)}.py b/{identifier(rng)}.py",
        f"index {hexes(rng, 7)}..{hexes(rng, 7)} 100644",
    ]
    for _ in range(rng.randint(1, 3)):
        lines.append(
            f"@@ -{rng.randint(1, 400)},{rng.randint(3, 9)} +{rng.randint(1, 400)},{rng.randint(3, 9)} @@ def {identifier(rng)}(self):"
        )
        for _ in range(rng.randint(4, 9)):
            indent = " " * 4 * rng.randint(1, 3)
            lines.append(
                rng.choice(" +-")
                + indent
                + rng.choice(
                    [
                        f"{identifier(rng)} = {identifier(rng)}({identifier(rng)}, {rng.randint(0, 99)})",
                        f"if not {identifier(rng)}:",
                        f"return {identifier(rng)}[{rng.randint(0, 9)}]",
                        f"# {' '.join(some(rng, 2, 6))}",
                    ]
                )
            )
    return "\n".join(lines)


def directory(rng: Random) -> str:
    lines = [f"total {rng.randint(10, 999)}"]
    for _ in range(rng.randint(5, 14)):
        mode = rng.choice(["drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"])
        lines.append(
            f"{mode} {rng.randint(1, 9):2} root root {rng.randint(10, 10**6):8} Jan {rng.randint(1, 28):2} 12:{rng.randint(10, 59)} {identifier(rng)}.txt"
        )
    return "\n".join(lines)


def markdown_table(rng: Random) -> str:
    width = rng.randint(2, 6)
    if rng.random() < 0.6:
        rows = [
            " | ".join(["|", *(" ".join(some(rng, 1, 2)) for _ in range(width)), "|"]).strip(),
            "|" + "|".join("-" * rng.randint(3, 8) for _ in range(width)) + "|",
        ]
        for _ in range(rng.randint(4, 12)):
            cells = [
                rng.choice(
                    [
                        str(rng.randint(0, 9999)),
                        rng.choice(words()),
                        " ".join(some(rng, 1, 4)),
                        f"{rng.uniform(0, 99):.2f}",
                        "✓" if rng.random() < 0.1 else "-",
                    ]
                )
                for _ in range(width)
            ]
            rows.append("| " + " | ".join(cells) + " |")
        return "\n".join(rows)
    rows = [
        "| " + " | ".join(f"{rng.choice(words()):<12}" for _ in range(width)) + " |" for _ in range(rng.randint(4, 12))
    ]
    rows.insert(1, "|" + "|".join(rng.choice([":", "-"]) + "-" * 13 for _ in range(width)) + "|")
    return "\n".join(rows)


def ascii_table(rng: Random) -> str:
    widths = [rng.randint(6, 16) for _ in range(rng.randint(2, 5))]
    rule = "+" + "+".join("-" * (w + 2) for w in widths) + "+"
    rows = [rule]
    for _ in range(rng.randint(3, 9)):
        rows += [
            "|"
            + "|".join(f" {rng.choice([rng.choice(words()), str(rng.randint(0, 9999))])[:w]:<{w}} " for w in widths)
            + "|"
        ]
    return "\n".join([*rows[:2], rule, *rows[2:], rule])


def box_table(rng: Random) -> str:
    widths = [rng.randint(1, rng.choice([5, 14])) for _ in range(rng.randint(2, 4))]
    lines = [a + b.join("─" * (w + 2) for w in widths) + c for a, b, c in ("┌┬┐", "├┼┤", "└┴┘")]
    rows = ["│" + "│".join(f" {rng.choice(words())[:w]:<{w}} " for w in widths) + "│" for _ in range(rng.randint(3, 8))]
    return "\n".join([lines[0], rows[0], lines[1], *rows[1:], lines[2]])


def tree(rng: Random) -> str:
    return "\n".join(
        "│   " * rng.randint(0, 3) + rng.choice(["├── ", "└── "]) + identifier(rng) + rng.choice([".py", ".rs", "/"])
        for _ in range(rng.randint(8, 20))
    )


def csv(rng: Random) -> str:
    columns = [rng.randrange(5) for _ in range(rng.randint(3, 7))]
    rows = [",".join(identifier(rng) for _ in columns)]
    for _ in range(rng.randint(6, 14)):
        rows.append(
            ",".join(
                [
                    str(rng.randint(0, 10**5)),
                    f"{rng.uniform(-9, 99):.3f}",
                    rng.choice(words()),
                    stamp(rng),
                    " ".join(some(rng, 2, 3)),
                ][c]
                for c in columns
            )
        )
    return "\n".join(rows)


def sql(rng: Random) -> str:
    rows = []
    for _ in range(rng.randint(2, 6)):
        a, b, c, d = (identifier(rng).replace("-", "_") for _ in range(4))
        rows.append(
            rng.choice(
                [
                    f"SELECT {a}.{b}, COUNT({c}) AS {d} FROM {a} LEFT JOIN {c} ON {a}.{b} = {c}.{b} WHERE {d} > {rng.randint(0, 999)} GROUP BY {b} ORDER BY {d} DESC LIMIT {rng.randint(1, 99)};",
                    f"INSERT INTO {a} ({b}, {c}, {d}) VALUES ({rng.randint(0, 9999)}, '{' '.join(some(rng, 1, 4))}', NULL);",
                    f"CREATE TABLE {a} (\n  {b} INTEGER PRIMARY KEY,\n  {c} VARCHAR(255) NOT NULL,\n  {d} TIMESTAMP DEFAULT CURRENT_TIMESTAMP\n);",
                ]
            )
        )
    return "\n".join(rows)


def html(rng: Random) -> str:
    lines = []
    for _ in range(rng.randint(5, 14)):
        tag, cls = rng.choice(["div", "p", "span", "li", "td", "h2"]), "-".join(some(rng, 1, 3))
        lines.append(
            "  " * rng.randint(0, 5)
            + rng.choice(
                [
                    f'<{tag} class="{cls}">{" ".join(some(rng, 1, 9))}</{tag}>',
                    f'<a href="/{cls}/{rng.randint(1, 999)}">{rng.choice(words())}</a>',
                    f'<input type="text" name="{identifier(rng)}" value="{rng.randint(0, 99)}" />',
                    f'<{tag} id="{identifier(rng)}">',
                ]
            )
        )
    return "\n".join(lines)


def css(rng: Random) -> str:
    return "\n".join(
        f".{'-'.join(some(rng, 1, 3))} {{\n  color: #{hexes(rng, 6)};\n  margin: 0 {rng.randint(0, 40)}px;\n  padding: {rng.uniform(0, 3):.1f}rem;\n}}"
        for _ in range(rng.randint(3, 8))
    )


def yaml(rng: Random) -> str:
    return "\n".join(
        "  " * rng.randint(0, 3)
        + rng.choice(["", "- "])
        + f"{identifier(rng)}: "
        + rng.choice(["", "true", str(rng.randint(0, 999)), " ".join(some(rng, 1, 5)), f'"{identifier(rng)}"'])
        for _ in range(rng.randint(10, 30))
    )


def shell(rng: Random) -> str:
    return "\n".join(
        rng.choice(
            [
                f"$ cd /{'/'.join(some(rng, 1, 4))} && ls -la | grep {rng.choice(words())}",
                f"export {'_'.join(some(rng, 1, 3)).upper()}={identifier(rng)}",
                f'curl -s -X POST {url(rng)} -H "Content-Type: application/json" -d \'{{"{identifier(rng)}": {rng.randint(0, 99)}}}\'',
                f'for f in *.{rng.choice(["txt", "py"])}; do echo "$f"; done',
                f"pip install {identifier(rng)}=={rng.randint(0, 9)}.{rng.randint(0, 20)}.{rng.randint(0, 9)}",
            ]
        )
        for _ in range(rng.randint(4, 12))
    )


def minified(rng: Random) -> str:
    def name() -> str:
        return rng.choice(string.ascii_letters + "$_") + rng.choice(["", "", rng.choice(string.ascii_letters)])

    return "".join(
        rng.choice(
            [
                f"function {name()}({name()},{name()}){{return {name()}.{rng.choice(words())}({name()})}}",
                f"var {name()}={name()}({rng.randint(0, 999)}),{name()}=!{rng.randint(0, 1)};",
                f'if("{rng.choice(words())}"===typeof {name()}&&{name()}.{identifier(rng)}){{{name()}={name()}||{{}};}}',
                f"{name()}.prototype.{identifier(rng)}=function(){{this.{name()}=null;}};",
                f"for(let {name()}=0;{name()}<{name()}.length;{name()}++){name()}.push({name()}[{name()}]);",
                f"const{{{name()}:{name()},{name()}}}={name()}({rng.randint(1, 9999)});",
                f"({name()}=>{name()}?{name()}:void 0)",
            ]
        )
        for _ in range(rng.randint(8, 24))
    )


KINDS: dict[str, Maker] = {
    "JSON compact": json_compact,
    "JSON spaced": json_spaced,
    "JSON pretty": json_pretty,
    "JSON lines": json_lines,
    "JSON escaped": json_escaped,
    "JSON schema": json_schema,
    "API text": api_text,
    "logs": log_lines,
    "stack trace": stack_trace,
    "diff": diff,
    "directory": directory,
    "markdown table": markdown_table,
    "ascii table": ascii_table,
    "box table": box_table,
    "tree": tree,
    "CSV": csv,
    "SQL": sql,
    "HTML": html,
    "CSS": css,
    "YAML": yaml,
    "shell": shell,
    "minified made": minified,
}
