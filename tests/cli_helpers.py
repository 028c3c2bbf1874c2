"""``rune`` as a person calls it: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from playback import unused_port


class Rune:
    """Calls ``rune`` with a home of its own and an Ollama address where nothing listens unless set.

    A model without tools is told of none unless ``RUNE_TOOL_PROMPT`` is set: recorded answers count other prompts.
    """

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("RUNE_", "OLLAMA_"))}
        self.env |= {"RUNE_HOME": str(self.home), "OLLAMA_HOST": f"http://127.0.0.1:{unused_port()}"}
        self.env["RUNE_TOOL_PROMPT"] = "off"

    def __call__(self, *args: str, stdin: str | bytes = "", **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "rune.cli.main", *args],
            input=stdin if isinstance(stdin, bytes) else stdin.encode(),
            capture_output=True,
            env={**self.env, **env},
            timeout=120,
            check=False,
        )
        out, err = (stream.decode("utf-8", "backslashreplace") for stream in (done.stdout, done.stderr))
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(args, done.returncode, out, err)

    def json(self, *args: str, code: int = 0, **env: str) -> Any:
        done = self(*args, "--json", **env)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)
