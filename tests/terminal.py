"""A terminal of its own for a command, as a person has one."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import termios
import time


class Terminal:
    """A process in a terminal of its own."""

    def __init__(self, args: list[str], env: dict[str, str]) -> None:
        self.fd, inside = pty.openpty()

        def take_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            args, stdin=inside, stdout=inside, stderr=inside, env=env, preexec_fn=take_terminal, close_fds=True
        )
        os.close(inside)
        self.seen = ""

    def until(self, text: str, seconds: float = 60.0) -> None:
        """Reads until ``text`` was shown after what was waited for before."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} was never shown; but this was: {self.seen!r}"
            try:
                self.seen += os.read(self.fd, 65536).decode("utf-8", "replace")
            except OSError:  # the other side is closed
                break
        before, found, after = self.seen.partition(text)
        assert found, f"{text!r} was never shown; but this was: {before!r}"
        self.seen = after

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def close(self) -> int:
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()
            os.close(self.fd)
