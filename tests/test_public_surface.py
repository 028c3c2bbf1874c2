"""The public names: each is there, they are sorted, and importing Rune loads no HTTP client."""

from __future__ import annotations

import subprocess
import sys

import rune


def test_every_public_name_is_there() -> None:
    assert rune.__all__ == sorted(rune.__all__, key=lambda n: (not n.isupper(), not n[:1].isupper(), n))
    for name in rune.__all__:
        assert getattr(rune, name) is not None
    assert set(rune.__all__) <= set(dir(rune))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(rune, "nosuch")


def test_importing_rune_is_light() -> None:
    heavy = "httpx numpy rich click xllamacpp sqlite3 asyncio"
    code = f"import sys, rune; print([name for name in {heavy.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_every_public_class_says_what_it_is() -> None:
    for name in rune.__all__:
        if isinstance(getattr(rune, name), type):
            assert getattr(rune, name).__doc__, name
