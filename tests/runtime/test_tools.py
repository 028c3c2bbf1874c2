"""Tools: schemas out of type hints, checked arguments, bounded results, a workspace that nothing leaves, limits in time."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from rune.errors import InvalidInput, ToolError
from rune.messages import compact_json
from rune.runtime import file_tools
from rune.runtime.tool_choice import unasked, usable
from rune.runtime.tool_executor import TOOLS, Tool, ToolContext, make_tool, tool
from rune.runtime.tool_results import FILES_MAX, ResultStore, bounded
from rune.runtime.workspace import Workspace
from rune.subsystem_health import registry, turn

# Schemas


def test_the_tools_of_rune() -> None:
    of_rune = {name: one for name, one in TOOLS.items() if one.function.__module__.startswith("rune.")}
    assert list(of_rune)[:3] == ["read_file", "list_files", "search_text"]
    assert {name for name, one in of_rune.items() if one.approval} == {
        "write_file",
        "edit_file",
        "run_command",
        "http_get",
    }
    assert set(of_rune) == {
        *("read_file", "list_files", "search_text", "write_file", "edit_file", "run_command", "http_get"),
        *("remember", "recall", "relate", "find_capability"),
    }
    for one in of_rune.values():
        assert len(compact_json(one.schema())) // 4 < 160, f"{one.name} costs too many tokens"


def test_only_what_can_run_is_offered_unasked() -> None:
    reading = ["read_file", "list_files", "search_text"]
    assert unasked(usable(TOOLS.values(), memory=False, http=False).values()) == reading
    assert unasked(usable(TOOLS.values(), memory=True, http=True).values()) == [*reading, "remember", "recall"]
    changing = ["write_file", "edit_file", "run_command"]
    assert unasked(usable(TOOLS.values(), memory=False, http=True).values(), asks=True) == [*reading, *changing]
    approved = unasked(TOOLS.values(), {"run_command", "write_file", "http_get"})
    assert approved == [*reading, "write_file", "run_command", "http_get", "remember", "recall"]
    assert "http_get" not in usable(TOOLS.values(), memory=True, http=False)


def test_a_schema_follows_from_the_function() -> None:
    schema = TOOLS["read_file"].schema()
    assert schema["type"] == "function"
    assert schema["function"]["name"] == "read_file"
    assert schema["function"]["description"] == "Reads lines of a text file."
    parameters = schema["function"]["parameters"]
    assert parameters["required"] == ["path"]
    assert list(parameters["properties"]) == ["path", "first_line", "lines"]
    assert parameters["properties"]["first_line"] == {
        "type": "integer",
        "minimum": 1,
        "default": 1,
        "description": "line to begin with, from 1",
    }
    assert "context" not in parameters["properties"]


def test_flags_types_and_a_registry_of_ones_own() -> None:
    mine: dict[str, Tool] = {}

    @tool(mine, approval=True, default_on=False, timeout=60)
    def run_it(command: str, shell: Literal["sh", "none"] = "none", tries: int | None = None) -> str:
        """Runs a command.

        This part is for people.
        """
        return command

    made = mine["run_it"]
    assert (made.approval, made.default_on, made.timeout) == (True, False, 60)
    assert made.description == "Runs a command."
    assert made.parameters["properties"]["shell"]["enum"] == ["none", "sh"]
    assert "run_it" not in TOOLS
    with pytest.raises(InvalidInput, match="already"):
        tool(mine)(run_it)


def test_what_is_no_tool_is_refused_when_it_is_made() -> None:
    def silent(a: int) -> str:
        return ""

    def untyped(a) -> str:  # type: ignore[no-untyped-def]
        """Says something."""
        return ""

    def open_ended(*a: int) -> str:
        """Says something."""
        return ""

    with pytest.raises(InvalidInput, match="docstring"):
        make_tool(silent)
    with pytest.raises(InvalidInput, match="'a'"):
        make_tool(untyped)
    with pytest.raises(InvalidInput, match="'a'"):
        make_tool(open_ended)

    def odd(a: threading.Event) -> str:
        """Says something."""
        return ""

    with pytest.raises(InvalidInput, match="JSON schema"):
        make_tool(odd)
    for name in ("", "two words", "9lives", "x" * 65, "ä"):
        with pytest.raises(InvalidInput, match="name of a tool"):
            make_tool(lambda: "", name=name or " ", description="Says something.")
    for seconds in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="timeout"):
            make_tool(lambda: "", name="say", description="Says something.", timeout=seconds)


def test_a_bare_decorator_and_the_same_function_again() -> None:
    before = dict(TOOLS)
    try:

        @tool
        def of_a_test(a: int) -> int:
            """Gives it back."""
            return a

        first = TOOLS["of_a_test"]

        def again() -> None:
            @tool
            def of_a_test(a: int) -> int:
                """Another one of this name."""
                return a

        with pytest.raises(InvalidInput, match="already"):
            again()
        assert TOOLS["of_a_test"] is first and of_a_test(3) == 3
    finally:
        TOOLS.clear()
        TOOLS.update(before)


# Arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "path"),
        ({"path": 3}, "Expected `str`"),
        ({"path": "a.txt", "first_line": 0}, "first_line"),
        ({"path": "a.txt", "first_line": "soon"}, "first_line"),
        ({"path": "a.txt", "depth": 2}, "depth"),
        ("not json {", "JSON object"),
        ([1], "JSON object"),
        (None, "path"),
    ],
)
def test_bad_arguments_are_a_result_that_says_what_is_wrong(execute: Any, arguments: Any, words: str) -> None:
    outcome = execute("read_file", arguments)
    assert not outcome.ok
    assert words in outcome.text
    assert outcome.message() == {
        "role": "tool",
        "content": outcome.text,
        "tool_call_id": "call_7",
        "tool_name": "read_file",
    }


def test_numbers_and_switches_in_words_are_taken(execute: Any) -> None:
    assert execute("read_file", {"path": "a.txt", "first_line": "2", "lines": "1"}).text.startswith("second")
    assert "code.py:3" in execute("search_text", {"text": "wanted", "ignore_case": "true"}).text


def test_an_unknown_tool_is_a_result_that_names_those_there_are(execute: Any) -> None:
    outcome = execute("delete_everything", {})
    assert not outcome.ok
    assert "read_file, list_files, search_text, write_file" in outcome.text


# Results


def test_a_long_result_is_cut_and_the_whole_is_kept_and_can_be_read(execute: Any, context: ToolContext) -> None:
    whole = "".join(f"{number:07d}\n" for number in range(3000))

    def long() -> str:
        """Says a lot."""
        return whole

    outcome = execute("long", tools={"long": make_tool(long)})
    assert outcome.ok and outcome.chars == 24_000
    assert outcome.text.startswith(whole[:8000])
    assert outcome.kept == "tool_result:0123456789ab-1" and outcome.kept in outcome.text
    assert "16,000 more of 24,000" in outcome.text
    path = context.results.find(outcome.kept)
    assert path is not None and path.read_text() == whole
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert execute("read_file", {"path": outcome.kept, "first_line": 2500, "lines": 1}).text.startswith("0002499")


def test_a_result_that_cannot_be_kept_says_so(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where the home should be")
    with turn() as health:
        text, kept = bounded("x" * 9000, context.results)
    assert kept == "" and "could not be kept" in text
    assert health.degraded == ["storage.degraded"]


def test_of_a_long_log_mostly_the_end_is_shown(execute: Any) -> None:
    def log() -> str:
        """Logs."""
        return "begin " + "x" * 20_000 + " end"

    outcome = execute("log", tools={"log": make_tool(log, tail=True)})
    assert outcome.text.startswith("begin x") and outcome.text.endswith("x end") and outcome.kept in outcome.text
    assert outcome.text.index("left out") < 2_200 and 8_000 < len(outcome.text) < 8_300


def test_old_results_make_room(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    for number in range(FILES_MAX + 5):
        path = folder / f"old-{number}.txt"
        path.touch()
        os.utime(path, (number, number))
    name = ResultStore(folder, "f" * 32).keep("new")
    left = {path.name for path in folder.iterdir()}
    assert len(left) == FILES_MAX and name.endswith("f-1") and "old-5.txt" not in left and "old-6.txt" in left


@pytest.mark.parametrize("name", ["tool_result:../../secret", "tool_result:", "tool_result:0123456789ab-9"])
def test_only_results_that_are_there_can_be_named(execute: Any, name: str) -> None:
    outcome = execute("read_file", {"path": name})
    assert not outcome.ok and "call the tool again" in outcome.text


def test_lone_surrogates_are_kept(context: ToolContext) -> None:
    name = context.results.keep("a\udcb2b")
    path = context.results.find(name)
    assert path is not None and path.read_bytes().decode("utf-8", "surrogatepass") == "a\udcb2b"


def test_what_a_tool_returns_that_is_no_text_is_json(execute: Any) -> None:
    def facts() -> dict[str, Any]:
        """Gives facts."""
        return {"größe": [1, None]}

    assert execute("facts", tools={"facts": make_tool(facts)}).text == '{"größe":[1,null]}'


def test_a_fault_of_a_tool_is_a_result_and_on_record(execute: Any) -> None:
    def broken() -> str:
        """Breaks."""
        raise ZeroDivisionError("of all things")

    def leaving() -> str:
        """Leaves."""
        raise SystemExit(3)

    with turn() as health:
        outcome = execute("broken", tools={"broken": make_tool(broken)})
    assert not outcome.ok and "ZeroDivisionError: of all things" in outcome.text
    assert health.degraded == ["tool_executor"]
    assert "SystemExit" in execute("leaving", tools={"leaving": make_tool(leaving)}).text


def test_the_turn_that_a_tool_runs_in_is_known_to_it(execute: Any) -> None:
    def failing() -> str:
        """Notes a failure."""
        from rune.subsystem_health import record_failure

        record_failure("of_a_tool", "noted")
        return "done"

    with turn() as health:
        assert execute("failing", tools={"failing": make_tool(failing)}).ok
    assert health.degraded == ["of_a_tool"] and "of_a_tool" in registry()


# Time


def test_a_tool_that_hangs_is_told_to_stop_and_left_behind(execute: Any) -> None:
    told = threading.Event()

    def hang(context: ToolContext) -> str:
        """Hangs."""
        if context.stop.wait(10):
            told.set()
        return ""

    outcome = execute("hang", tools={"hang": make_tool(hang, timeout=0.05)})
    assert not outcome.ok and "within 0.05 s" in outcome.text
    assert told.wait(5)


def test_a_cancel_ends_the_wait(execute: Any) -> None:
    cancel = threading.Event()

    def cancelling(context: ToolContext) -> str:
        """Is cancelled."""
        cancel.set()
        context.stop.wait(10)
        return ""

    begun = time.monotonic()
    outcome = execute("cancelling", tools={"cancelling": make_tool(cancelling)}, cancel=cancel)
    assert "cancelled" in outcome.text and time.monotonic() - begun < 5


# Approvals


def test_a_call_that_approval_is_made_only_with_it(execute: Any) -> None:
    done: list[str] = []

    def write(what: str) -> str:
        """Writes."""
        done.append(what)
        return "written"

    tools = {"write": make_tool(write, approval=True)}
    assert "approval" in execute("write", {"what": "a"}, tools).text
    assert not execute("write", {"what": "b"}, tools, approve=lambda tool, arguments: False).ok
    asked: list[Any] = []

    def approve(tool: Tool, arguments: Any) -> bool:
        asked.append((tool.name, dict(arguments)))
        return True

    assert execute("write", {"what": "c"}, tools, approve=approve).text == "written"
    assert (done, asked) == (["c"], [("write", {"what": "c"})])
    assert not execute("write", {"what": 4}, tools, approve=approve).ok and len(asked) == 1


# The workspace


@pytest.mark.parametrize(
    "path", ["../secret.txt", "inner/../../secret.txt", "/etc/passwd", "~/x", "a.txt/../../secret.txt"]
)
def test_paths_that_lead_out_are_refused(execute: Any, path: str) -> None:
    outcome = execute("read_file", {"path": path})
    assert not outcome.ok and "secret" not in outcome.text.replace(path, "").replace("secret.txt", "")


@pytest.mark.parametrize("name", ["read_file", "list_files", "search_text"])
def test_links_that_lead_out_are_refused(execute: Any, root: Path, name: str) -> None:
    (root / "link").symlink_to(root.parent)
    (root / "file_link").symlink_to(root.parent / "secret.txt")
    extra = {"text": "secret"} if name == "search_text" else {}
    for path in ("link", "link/secret.txt", "file_link"):
        outcome = execute(name, {"path": path, **extra})
        assert not outcome.ok and "outside of the workspace" in outcome.text
    assert "secret.txt:" not in execute("search_text", {"text": "secret"}).text
    assert "link (a link)" in execute("list_files").text


def test_links_inside_are_followed(execute: Any, root: Path) -> None:
    (root / "again").symlink_to(root / "a.txt")
    assert execute("read_file", {"path": "again"}).text.startswith("first")
    loop = root / "loop"
    loop.symlink_to(loop)
    assert not execute("read_file", {"path": "loop"}).ok


def test_absolute_paths_inside_are_taken(execute: Any, root: Path) -> None:
    assert execute("read_file", {"path": str(root / "a.txt")}).ok


def test_the_home_inside_the_workspace_is_out_of_reach(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "state").mkdir(parents=True)
    (home / "config.toml").write_text("openai_api_key = 'needle'")
    context = ToolContext(Workspace(tmp_path, closed=[home]), ResultStore(home / "state" / "tool_results", "a" * 32))
    with pytest.raises(ToolError, match="must not touch"):
        file_tools.read_file(context, "home/config.toml")
    assert "home" not in file_tools.list_files(context, depth=5)
    assert "config" not in file_tools.search_text(context, "needle")
    inside = Workspace(home / "work", closed=[home])  # a workspace that was set there is meant
    assert inside.resolve("x") == home / "work" / "x"


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "\ud800"])
def test_paths_that_are_none_are_a_result(execute: Any, path: str) -> None:
    assert not execute("read_file", {"path": path}).ok


def test_what_is_no_regular_file_is_refused_at_once(execute: Any, root: Path) -> None:
    os.mkfifo(root / "pipe")
    outcome = execute("read_file", {"path": "pipe"})
    assert not outcome.ok and "no regular file" in outcome.text
    assert "a folder" in execute("read_file", {"path": "inner"}).text
    assert "No such file" in execute("read_file", {"path": "absent"}).text
    assert execute("search_text", {"text": "needle"}).ok


# The tools


def test_reading_by_pages_gives_every_line_once(execute: Any, root: Path) -> None:
    lines = [f"line {number} " + "x" * (number % 97) for number in range(2000)]
    (root / "long.txt").write_text("\n".join(lines))
    seen: list[str] = []
    position = 1
    while True:
        outcome = execute("read_file", {"path": "long.txt", "first_line": position})
        assert outcome.ok and not outcome.kept and len(outcome.text) <= 8000
        *shown, last = outcome.text.split("\n")
        if not last.startswith("[line "):
            seen += [*shown, last]
            break
        seen += shown
        position += len(shown)
    assert seen == lines


def test_reading_odd_files(execute: Any, root: Path) -> None:
    assert "binary" in execute("read_file", {"path": "picture.png"}).text
    (root / "empty").touch()
    assert execute("read_file", {"path": "empty"}).text == "empty is empty"
    assert "has 3 lines" in execute("read_file", {"path": "a.txt", "first_line": 9}).text
    (root / "latin").write_bytes(b"caf\xe9\r\nend")
    assert execute("read_file", {"path": "latin"}).text == "caf\ufffd\nend"
    (root / "min.js").write_text("a" * 100_000 + "\nlast")
    text = execute("read_file", {"path": "min.js"}).text
    assert "the line goes on" in text and text.endswith("last") and len(text) < 3000


def test_listing(execute: Any, root: Path) -> None:
    assert execute("list_files").text == "a.txt 19\ninner/\npicture.png 12"
    (root / ".git").mkdir()
    (root / ".git" / "config").touch()
    assert execute("list_files", {"pattern": "*.py", "depth": 3}).text == "inner/code.py 45"
    assert ".git/" in execute("list_files", {"depth": 3}).text
    assert ".git/config" not in execute("list_files", {"depth": 3}).text
    assert "no folder" in execute("list_files", {"path": "a.txt"}).text
    assert execute("list_files", {"pattern": "*.nothing"}).text == "nothing is there"
    for number in range(file_tools.ENTRIES_MAX):
        (root / "inner" / f"f{number:04}").touch()
    assert "[1 more were left out" in execute("list_files", {"path": "inner"}).text


def test_searching(execute: Any, root: Path) -> None:
    assert execute("search_text", {"text": "needle"}).text == "inner/code.py:4: return 'needle'"
    assert "not found" in execute("search_text", {"text": "wanted"}).text
    assert "(.*)" not in execute("search_text", {"text": "n.*e"}).text.replace("'n.*e'", "")
    assert execute("search_text", {"text": "second", "path": "a.txt"}).text == "a.txt:2: second"
    assert "not found" in execute("search_text", {"text": "second", "files": "*.py"}).text
    (root / "many").write_text("needle\n" * 500)
    text = execute("search_text", {"text": "needle"}).text
    assert text.count("needle") == file_tools.HITS_MAX and "stopped after" in text
    (root / "huge.log").write_bytes(b"needle " * 800_000)
    assert "1 files of more than" in execute("search_text", {"text": "absent"}).text
    (root / "wide").write_text("x" * 500 + "target" + "y" * 500)
    line = execute("search_text", {"text": "target"}).text
    assert "target" in line and line.startswith("wide:1: …x") and "y…\n[1 files" in line and len(line) < 290


def test_a_walk_has_an_end(execute: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tools, "VISITED_MAX", 3)
    assert "more than 3 entries" in execute("list_files", {"depth": 3}).text


def test_annotations_reach_the_schema() -> None:
    def add(a: Annotated[int, msgspec.Meta(ge=0, description="a number")], b: int = 2) -> int:
        """Adds."""
        return a + b

    made = make_tool(add, name="sum")
    assert made.name == "sum" and made.parameters["properties"]["a"]["minimum"] == 0
    assert made.check({"a": 1}) == {"a": 1, "b": 2}
