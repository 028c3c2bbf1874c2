"""Runs one command and leaves nothing of it behind. A program of its own, which ``rune.runtime.commands`` starts:

    python -I -S command_keeper.py SECONDS REPORT_FD PROGRAM [ARGUMENT …]

Descendants of the command whose parents are gone become children of this process (Linux), so that none gets away by forking
twice. All of them are stopped when the command ends, when its time is over, and when standard input ends: that is a pipe from
Rune, so a Rune that is killed takes its command along. Two lines go to REPORT_FD: the command's process id as soon as it runs,
and at the end "WORD CODE LEFT": "ended", "time" or "stopped" (or "failed", with the error's number as CODE), the exit code,
and how many processes the command had left running.

Nothing of Rune is imported here: it has to start quickly.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

TERM_S = 0.5
"""Seconds between being asked to end and being killed, at most a tenth of the command's time; they are part of it."""

_KILL_S = 5.0  # seconds of killing what keeps coming back, then it is left
_HUNT = 100
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


def main(arguments: list[str]) -> int:
    seconds, report, command = float(arguments[1]), int(arguments[2]), arguments[3:]
    os.set_inheritable(report, False)
    _adopt_orphans()
    woken = _wake_on_children()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    deadline = time.monotonic() + seconds
    child, failure = _start(command, report)
    if failure:
        os.write(report, f"failed {failure} 0\n".encode())
        return 0
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)  # the pipe of the output ends with the command, not with its keeper
    os.dup2(nothing, 2)
    ask_at = deadline - min(TERM_S, seconds / 10)
    code: int | None = None
    word = ""
    while not word:
        code, _ = _reap(child, code)
        if code is not None:
            word = "ended"
        elif time.monotonic() >= ask_at:
            word = "time"
        else:
            ready = select.select([0, woken], [], [], max(0.0, ask_at - time.monotonic()))[0]
            if 0 in ready and not os.read(0, 1):
                word = "stopped"
            if woken in ready:
                os.read(woken, 4096)
    grace = min(TERM_S, seconds / 10) if word != "stopped" else TERM_S
    code, left = _end(child, code, grace)
    os.write(report, f"{word} {-signal.SIGKILL if code is None else code} {left}\n".encode())
    return 0


def _adopt_orphans() -> None:
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def _wake_on_children() -> int:
    """A descriptor that can be read when a child has ended."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return woken


def _start(command: list[str], report: int) -> tuple[int, int]:
    """The process id of the command in a session of its own, and 0; or the number of the error that kept it from starting."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        number = 0
        try:
            signal.set_wakeup_fd(-1)
            for ignored in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
                signal.signal(ignored, signal.SIG_DFL)
            os.setsid()
            os.write(report, f"{os.getpid()}\n".encode())  # before it is another program, which may kill its keeper
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.execvp(command[0], command)
        except OSError as exc:
            number = exc.errno or 5
        finally:
            os.write(tell, str(number or 5).encode())
            os._exit(127)
    os.close(tell)
    failure = os.read(told, 16)
    os.close(told)
    if failure:
        os.waitpid(child, 0)
    return child, int(failure or 0)


def _reap(child: int, code: int | None) -> tuple[int | None, bool]:
    """Takes in every child that has ended: the command's exit code once it is known (negative: the signal), and whether any
    child is left. Where orphans come to this process, nothing of the command is alive when none is."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, False
        if pid == 0:
            return code, True
        if pid == child:
            code = os.waitstatus_to_exitcode(status)


def _end(child: int, code: int | None, grace: float) -> tuple[int | None, int]:
    """Ends all that is left of the command; its exit code, and how many others there were."""
    left = _alive(child)
    others = len(left.keys() - {child})
    if left:
        _signal(left, signal.SIGTERM)
        _signal(left, signal.SIGCONT)  # a stopped process would not hear of it
        until = time.monotonic() + grace
        while left and time.monotonic() < until:
            time.sleep(0.005)
            code, _ = _reap(child, code)
            left = _alive(child)
    until = time.monotonic() + _KILL_S
    while time.monotonic() < until:
        code, more = _reap(child, code)
        left = _alive(child)
        if not more and not left:
            break
        _signal(left, signal.SIGKILL)
        for _ in range(_HUNT):  # a chain in which each forks and ends is faster than a look at all processes
            _kill_children()
            code, more = _reap(child, code)
            if not more:
                break
        time.sleep(0.001)
    return code, others


def _kill_children() -> None:
    """Kills the children that this process has now, also those that have just come to it."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            pids = file.read().split()
    except OSError:
        return
    for pid in pids:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except OSError:
            continue  # gone meanwhile


def _signal(left: dict[int, int], number: int) -> None:
    """A signal to whole groups at once: what forks without end is faster than one signal after the other."""
    for group in set(left.values()):
        try:
            os.killpg(group, number)
        except OSError:
            continue  # gone meanwhile


_HAS_PROC = os.path.exists("/proc/self/stat")


def _alive(child: int) -> dict[int, int]:
    """The processes below this one and in the command's session, each with its group; zombies do not count.

    Without /proc only the command's own group is known.
    """
    if not _HAS_PROC:
        try:
            os.killpg(child, 0)
        except OSError:
            return {}
        return {child: child}
    parents: dict[int, int] = {}
    groups: dict[int, int] = {}
    found: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent, group, session = file.read().rpartition(b")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        pid = int(name)
        parents[pid] = int(parent)
        if state not in (b"Z", b"X"):
            groups[pid] = int(group)
            if int(session) == child:
                found.add(pid)
    below = {os.getpid()}
    more = below
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - below
        below |= more
    # Never the keeper's own group, which a process may have been moved into before it was a session of its own.
    return {pid: groups[pid] for pid in (found | below) & groups.keys() if groups[pid] != os.getpgrp()}


if __name__ == "__main__":
    sys.exit(main(sys.argv))
