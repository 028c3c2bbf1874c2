"""``run_command``: no shell, no secrets, and nothing of a command outlives its limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rune.runtime import commands
from rune.runtime.commands import clean_environment

pytestmark = pytest.mark.skipif(os.name != "posix", reason="programs are run on POSIX only")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and subreapers")


def living(mark: str) -> list[str]:
    """The command lines of the processes that carry a mark in their arguments and are not dead."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if mark in line and state not in "ZX":
                    found.append(f"{folder.name} {line}")
    return found


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> Iterator[str]:
    """A text for the arguments of the processes of one test; none of them may be left at its end."""
    text = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    yield text
    left = living(text)
    for line in left:
        with contextlib.suppress(OSError):
            os.kill(int(line.split()[0]), signal.SIGKILL)
    assert not left


# What a command is


def test_a_command_is_a_line_or_a_list(approved: Any, root: Path) -> None:
    assert approved("run_command", {"command": "cat a.txt"}).text == "[exit code 0]\nfirst\nsecond\nthird"
    done = approved(
        "run_command", {"command": [sys.executable, "-c", "import sys; print(sys.argv[1:])", "a b", "$HOME"]}
    )
    assert done.text == "[exit code 0]\n['a b', '$HOME']"
    assert approved("run_command", {"command": f"{sys.executable} -c 'print(1)' \"a b\""}).text == "[exit code 0]\n1"
    assert approved("run_command", {"command": "true"}).text == "[exit code 0]\n(no output)"
    assert approved("run_command", {"command": "pwd"}).text == f"[exit code 0]\n{root}"


@pytest.mark.parametrize("line", ["cat a.txt | wc", "true && touch x", "echo hi > x", "sleep 1 &", "true ; touch x"])
def test_what_is_for_a_shell_is_refused(approved: Any, root: Path, line: str) -> None:
    outcome = approved("run_command", {"command": line})
    assert not outcome.ok and "for a shell" in outcome.text
    assert not (root / "x").exists()


@pytest.mark.parametrize(
    "line", ["echo $(touch x)", "echo `touch x`", "echo $HOME *", "echo hi;touch x", "echo a\ntouch x"]
)
def test_no_shell_reads_what_a_line_says(approved: Any, root: Path, line: str) -> None:
    outcome = approved("run_command", {"command": line})
    assert outcome.ok and "root" not in outcome.text and "a.txt" not in outcome.text
    assert not (root / "x").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ([], "empty"),
        (["", "x"], "empty"),
        ("echo 'open", "No closing quotation"),
        (["echo", "a\0b"], "NUL"),
        ("echo \ud800", "half a character"),
        (["echo"] * 501, "at most 500 arguments"),
        ("no-such-program-at-all", "No such file"),
        ("./a.txt", "Permission denied"),
        (["inner"], "No such file"),
        ({"a": 1}, "Expected"),
    ],
)
def test_what_cannot_be_run_is_a_result(approved: Any, command: Any, words: str) -> None:
    outcome = approved("run_command", {"command": command})
    assert not outcome.ok and words in outcome.text


def test_how_it_ended_is_told(approved: Any) -> None:
    assert approved("run_command", {"command": ["sh", "-c", "echo no >&2; exit 3"]}).text == "[exit code 3]\nno"
    assert approved("run_command", {"command": ["sh", "-c", "kill -SEGV $$"]}).text.startswith("[ended by signal 11]")
    read = approved("run_command", {"command": [sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"]})
    assert read.text == "[exit code 0]\n''"


def test_of_a_long_output_the_end_is_shown_and_the_whole_kept(approved: Any, context: Any) -> None:
    outcome = approved("run_command", {"command": ["seq", "1", "20000"]})
    assert outcome.ok and outcome.text.endswith("19999\n20000") and len(outcome.text) < 8_300
    path = context.results.find(outcome.kept)
    assert path.read_text().split("\n")[1:] == [str(number) for number in range(1, 20001)]


# The environment


def test_a_command_is_told_where_things_are_and_no_secrets(approved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "OPENAI_API_KEY": "needle",
        "AWS_SECRET_ACCESS_KEY": "needle",
        "GITHUB_TOKEN": "needle",
        "RUNE_OPENAI_API_KEY": "needle",
        "SSH_AUTH_SOCK": "/needle",
        "DATABASE_URL": "postgres://me:needle@db/x",
        "http_proxy": "http://me:needle@proxy",
        "LD_PRELOAD": "/needle.so",
        "PYTHONSTARTUP": "/needle.py",
        "GIT_SSH_COMMAND": "needle",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LANG", "C.UTF-8")
    text = approved("run_command", {"command": ["env"]}).text
    assert "needle" not in text and "LANG=C.UTF-8" in text and "PATH=" in text
    assert "needle" not in approved("run_command", {"command": ["sh", "-c", "cat /proc/$PPID/environ"]}).text


def test_the_environment_by_its_rules() -> None:
    kept = clean_environment(
        {"PATH": ".:/usr/bin::bin:/bin", "HOME": "/h", "LC_ALL": "C", "LANG": "http://a:b@c", "X": "1"}
    )
    assert kept["PATH"] == "/usr/bin:/bin" and kept["HOME"] == "/h" and kept["LC_ALL"] == "C"
    assert "LANG" not in kept and "X" not in kept
    assert os.path.isabs(clean_environment({})["PATH"].split(os.pathsep)[0])


def test_a_file_of_the_workspace_is_not_run_by_a_programs_name(
    approved: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "ls").write_text("#!/bin/sh\necho caught\n")
    (root / "ls").chmod(0o755)
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    assert "caught" not in approved("run_command", {"command": "ls"}).text
    assert "caught" in approved("run_command", {"command": "./ls"}).text


# Limits

LIMIT = 1.0
ENDLESS: dict[str, list[str]] = {
    "sleeps": ["sh", "-c", "sleep 600 # {mark}"],
    "spins": [sys.executable, "-c", "while True: pass", "{mark}"],
    "ignores every signal": [
        sys.executable,
        "-c",
        "import signal, time\n"
        "for n in range(1, 65):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "while True: time.sleep(1)",
        "{mark}",
    ],
    "forks": ["sh", "-c", "for i in 1 2 3 4 5; do sh -c 'sleep 600; : {mark}' & done; wait; : {mark}"],
    "forks twice": [
        "sh",
        "-c",
        "(sh -c 'sleep 600; : {mark}' &) ; (sh -c 'sleep 600; : {mark}' &) ; sleep 600; : {mark}",
    ],
    "a session of its own": ["sh", "-c", "setsid sh -c 'sleep 600; : {mark}' & sleep 600; : {mark}"],
    "forks twice into sessions": [
        "sh",
        "-c",
        "(setsid sh -c '(setsid sh -c \"sleep 600; : {mark}\" &); sleep 600; : {mark}' &); sleep 600; : {mark}",
    ],
    "ignores and forks into sessions": [
        sys.executable,
        "-c",
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork(): os._exit(0)\n"
        "while True: time.sleep(1)",
        "{mark}",
    ],
    "a tree of forks": [
        sys.executable,
        "-c",
        "import os, time\nfor _ in range(7):\n    if os.fork() == 0: os.setsid()\ntime.sleep(600)",
        "{mark}",
    ],
    "forks without end": [
        sys.executable,
        "-c",
        "import os, time\n"
        "begun = time.monotonic()\n"
        "while time.monotonic() - begun < 30:\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
        "    time.sleep(0.001)",
        "{mark}",
    ],
    "comes back when it is told to end": [
        sys.executable,
        "-c",
        "import os, signal, time\n"
        "def again(*_):\n"
        "    if os.fork() == 0: os.setsid()\n"
        "signal.signal(signal.SIGTERM, again)\n"
        "while True: time.sleep(0.05)",
        "{mark}",
    ],
    "stops itself": ["sh", "-c", "kill -STOP $$; : {mark}"],
    "floods and never ends": ["sh", "-c", "while :; do echo {mark}; sleep 0.001; done"],
    "closes its output": ["sh", "-c", "exec >&- 2>&-; sleep 600; : {mark}"],
}


@linux
@pytest.mark.parametrize("kind", ENDLESS)
def test_what_never_ends_is_stopped_with_all_its_children(approved: Any, mark: str, kind: str) -> None:
    begun = time.monotonic()
    outcome = approved(
        "run_command", {"command": [word.replace("{mark}", mark) for word in ENDLESS[kind]]}, timeout=LIMIT
    )
    took = time.monotonic() - begun
    assert living(mark) == []  # at once, not some time later
    if kind == "forks without end":  # its first process ended: so did the command
        assert outcome.ok and took < 5
        return
    assert not outcome.ok and "did not finish within 1 s" in outcome.text
    assert took < LIMIT + 1.5


@linux
def test_what_is_left_running_ends_with_the_command(approved: Any, mark: str) -> None:
    line = f"for i in 1 2 3; do setsid sh -c 'sleep 600; : {mark}' & done; sleep 0.2; echo done; : {mark}"
    outcome = approved("run_command", {"command": ["sh", "-c", line]}, timeout=20)
    assert outcome.ok and outcome.text.endswith("had left running were ended]\ndone") and outcome.elapsed_ms < 10_000
    assert living(mark) == []


@linux
@pytest.mark.parametrize("where", ["stdout", "stderr"])
def test_a_flood_is_stopped_long_before_its_time(approved: Any, mark: str, where: str) -> None:
    code = f"import sys\nwhile True: sys.{where}.write('{mark} ' * 4000)"
    outcome = approved("run_command", {"command": [sys.executable, "-c", code]}, timeout=60)
    assert not outcome.ok and f"more than {commands.OUTPUT_BYTES_MAX:,} bytes" in outcome.text
    assert outcome.elapsed_ms < 20_000 and len(outcome.text) < 8_400
    assert living(mark) == []


@linux
def test_one_line_without_end_is_a_flood_too(approved: Any) -> None:
    outcome = approved("run_command", {"command": ["cat", "/dev/zero"]}, timeout=60)
    assert not outcome.ok and "bytes" in outcome.text and outcome.elapsed_ms < 20_000


@linux
def test_a_cancel_ends_a_command_and_its_children(approved: Any, mark: str) -> None:
    cancel = threading.Event()
    threading.Timer(0.3, cancel.set).start()
    line = f"setsid sh -c 'sleep 600; : {mark}' & sleep 600; : {mark}"
    outcome = approved("run_command", {"command": ["sh", "-c", line]}, timeout=60, cancel=cancel)
    assert not outcome.ok and "cancelled" in outcome.text and outcome.elapsed_ms < 5_000
    assert living(mark) == []


@linux
def test_a_command_that_kills_its_keeper_is_stopped_all_the_same(approved: Any, mark: str) -> None:
    line = f"setsid sh -c 'sleep 600; : {mark}' & sleep 0.2; kill -9 $PPID; sleep 600; : {mark}"
    outcome = approved("run_command", {"command": ["sh", "-c", line]}, timeout=20)
    assert not outcome.ok and "ended the process that looks after it" in outcome.text and outcome.elapsed_ms < 10_000
    assert living(mark) == []


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_rune_that_is_killed_takes_its_command_along(tmp_path: Path, mark: str, number: int) -> None:
    line = f"setsid sh -c 'sleep 600; : {mark}' & sleep 600; : {mark}"
    code = (
        "import os, pathlib, sys\n"
        "from rune.runtime.commands import run\n"
        f"run(['sh', '-c', {line!r}], folder=pathlib.Path({str(tmp_path)!r}), environment=dict(os.environ), seconds=60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, start_new_session=True) as rune:
        until = time.monotonic() + 10
        while len(living(mark)) < 3 and time.monotonic() < until:  # Rune itself and the two
            time.sleep(0.02)
        os.kill(rune.pid, number)
    until = time.monotonic() + 5
    while living(mark) and time.monotonic() < until:
        time.sleep(0.02)
    assert living(mark) == []


@linux
def test_commands_side_by_side_do_not_end_one_another(approved: Any, mark: str) -> None:
    found: dict[int, str] = {}

    def one(number: int) -> None:
        line = f"sleep 0.{number}; echo {number}; : {mark}"
        found[number] = approved("run_command", {"command": ["sh", "-c", line]}).text

    threads = [threading.Thread(target=one, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: f"[exit code 0]\n{number}" for number in range(1, 7)}


@linux
def test_nothing_stays_open(approved: Any) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        approved("run_command", {"command": "true"})
        approved("run_command", {"command": "no-such-program"})
        approved("run_command", {"command": "sleep 9"}, timeout=0.1)
    assert set(os.listdir("/proc/self/fd")) <= before


@linux
def test_what_a_look_at_all_processes_misses_is_ended_all_the_same(mark: str) -> None:
    """The keeper as it is where a look takes longer than the processes live: what forks and ends is always ahead of it."""
    line = f"setsid sh -c 'setsid sleep 600 & sleep 600; : {mark}' & sleep 600; : {mark}"
    blind = (
        "import os, sys\n"
        "report = os.dup(1)\n"
        "from rune.runtime import command_keeper as keeper\n"
        "keeper._alive = lambda child: {}\n"
        "keeper.main(['keeper', '0.5', str(report), 'sh', '-c', sys.argv[1]])"
    )
    with subprocess.Popen([sys.executable, "-c", blind, line], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        keeper.wait(20)
        assert keeper.stdout is not None
        assert os.read(keeper.stdout.fileno(), 1000).split()[1:3] == [b"time", b"-9"]
    assert living(mark) == []
