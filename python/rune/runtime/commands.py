"""Running a program within limits of time and output, with nothing of it left behind; no shell, no secrets.

A keeper (``command_keeper.py``) stands between Rune and the program, so that the limits hold also where the program forks,
ignores signals, or Rune itself is killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rune.errors import ToolError

__all__ = ["OUTPUT_BYTES_MAX", "Ran", "clean_environment", "run"]

OUTPUT_BYTES_MAX = 10_000_000
"""Bytes of output after which a program is stopped."""

_KEEPER = Path(__file__).with_name("command_keeper.py")
_LOOK_S = 0.05
_WORDS = 4  # of a whole report
_KEEPER_S = 8.0  # seconds that the keeper may need beyond the program's time, before it is given up
_MARKED_S = 5.0
_MARK = "RUNE_COMMAND"
_PASSED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_[A-Z]+|TZ|TMPDIR|TEMP|TMP|XDG_(?:CACHE|CONFIG|DATA|STATE)_HOME|"
    r"VIRTUAL_ENV|CONDA_PREFIX|PYENV_ROOT|NVM_DIR|NODE_PATH|JAVA_HOME|GOPATH|GOROOT|GOCACHE|CARGO_HOME|RUSTUP_HOME|"
    r"SSL_CERT_FILE|SSL_CERT_DIR|SOURCE_DATE_EPOCH|CI"
)
_CREDENTIALS = re.compile(r"://[^/\s]*@")


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended: ``reason`` is "ended", "time", "stopped", "output", or "lost" when it killed what looks after it;
    ``code`` is the exit code, negative for a signal.

    ``output`` is standard output and standard error as they came. ``left`` processes were still running and were ended.
    """

    reason: str
    code: int
    output: bytes
    left: int


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a program is given of an environment: where things are and which language, never keys, tokens or addresses.

    Names that are not known to be harmless stay behind, and so do values that hold credentials. Of ``PATH`` only absolute
    folders are left, so that a file of the workspace is not run by a program's name.
    """
    kept = {
        name: value for name, value in environment.items() if _PASSED.fullmatch(name) and not _CREDENTIALS.search(value)
    }
    folders = [folder for folder in kept.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(folder)]
    return {
        **kept,
        "PATH": os.pathsep.join(folders),
        "NO_COLOR": "1",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "PYTHONDONTWRITEBYTECODE": "1",  # a file that is edited and run again within a second would run as it was
    }


def run(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    seconds: float,
    stop: threading.Event | None = None,
    output_max: int = OUTPUT_BYTES_MAX,
) -> Ran:
    """Runs a program until it ends, ``seconds`` are over, it has written ``output_max`` bytes, or ``stop`` is set.

    Raises ToolError when it cannot be started.
    """
    if os.name != "posix":
        raise ToolError("programs can be run on Linux and macOS only")
    report, told = os.pipe()
    mark = secrets.token_hex(16)
    try:
        keeper = subprocess.Popen(
            [_python(), "-I", "-S", str(_KEEPER), repr(seconds), str(told), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**environment, _MARK: mark},
            pass_fds=[told],
            start_new_session=True,
        )
    except (OSError, ValueError) as exc:
        os.close(report)
        raise ToolError(f"{command[0]!r} cannot be run: {exc}") from exc
    finally:
        os.close(told)
    watch = _Watch(keeper, report, output_max, mark)
    try:
        watch.until_over(time.monotonic() + seconds + _KEEPER_S, stop)
    finally:
        watch.close()
    return watch.outcome(command[0])


class _Watch:
    """One keeper: what it reports, and what its program writes."""

    def __init__(self, keeper: subprocess.Popen[bytes], report: int, output_max: int, mark: str) -> None:
        assert keeper.stdout is not None and keeper.stdin is not None
        self.keeper = keeper
        self.control = keeper.stdin
        self.output = bytearray()
        self.asked = ""
        self._max = output_max
        self._report = report
        self._mark = mark
        self._words = b""
        self._out = keeper.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._out, report):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)

    def until_over(self, deadline: float, stop: threading.Event | None) -> None:
        """Reads until the keeper has said how it ended, or is given up."""
        open_ = {self._out, self._report}
        while self._report in open_ and time.monotonic() < deadline:
            if stop is not None and stop.is_set():
                self._end("stopped")
            for key, _ in self._selector.select(_LOOK_S):
                if not self._read(key.fd):
                    self._selector.unregister(key.fd)
                    open_.discard(key.fd)
        while self._out in open_ and self._read(self._out, once=True):
            pass  # what was written before the end
        if self._report in open_:
            self.asked = self.asked or "time"

    def _read(self, descriptor: int, *, once: bool = False) -> bool:
        """Reads what is there; False at the end (with ``once`` also when nothing is there)."""
        try:
            piece = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return not once
        if descriptor == self._report:
            self._words += piece
        else:
            self.output += piece[: max(0, self._max - len(self.output))]
            if len(self.output) >= self._max:
                self._end("output")
        return bool(piece)

    def _end(self, why: str) -> None:
        """Has the keeper end the program; it does so when its standard input ends."""
        if not self.asked:
            self.asked = why
            with contextlib.suppress(OSError):
                self.control.close()

    def close(self) -> None:
        """Lets everything go; where the keeper did not do so, it and all that bears the program's mark is killed."""
        with contextlib.suppress(OSError):
            self.control.close()
        self._selector.close()
        words = self._words.split()
        if len(words) < _WORDS:  # the keeper was killed, by its program or by somebody else
            for group in (int(words[0]) if words else 0, self.keeper.pid):
                if group > 1:
                    with contextlib.suppress(OSError):
                        os.killpg(group, signal.SIGKILL)
            _kill_marked(self._mark)
        self.keeper.wait()
        os.close(self._report)
        assert self.keeper.stdout is not None
        self.keeper.stdout.close()

    def outcome(self, program: str) -> Ran:
        """How the program ended. Raises ToolError for one that was never started."""
        words = self._words.split()
        if len(words) < _WORDS:
            return Ran(self.asked or "lost", -signal.SIGKILL, bytes(self.output), 0)
        _, reason, code, left = words[0], words[1].decode(), int(words[2]), int(words[3])
        if reason == "failed":
            raise ToolError(f"{program!r} cannot be run: {os.strerror(code)}")
        return Ran(self.asked if reason == "stopped" and self.asked else reason, code, bytes(self.output), left)


def _kill_marked(mark: str) -> None:
    """Kills what inherited a mark in its environment (Linux), until nothing does: the keeper is no more, others went on."""
    wanted = f"{_MARK}={mark}".encode()
    until = time.monotonic() + _MARKED_S
    more = os.path.isdir("/proc/self")
    while more and time.monotonic() < until:
        more = False
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if wanted in Path("/proc", name, "environ").read_bytes().split(b"\0"):  # empty for one that is dead
                    os.kill(int(name), signal.SIGKILL)
                    more = True


def _python() -> str:
    """A Python to run the keeper with. Raises ToolError when there is none."""
    if sys.executable and not getattr(sys, "frozen", False):
        return sys.executable
    found = shutil.which("python3")
    if found is None:
        raise ToolError("programs cannot be run: there is no python3 to look after them")
    return found
