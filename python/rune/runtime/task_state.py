"""A task on its way through a run: its text, its ids, and where it came from."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rune.errors import InvalidInput

__all__ = ["TaskState", "new_id"]


def new_id() -> str:
    """A random id of 32 hexadecimal digits."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class TaskState:
    """What the user asks, and what joins its trace to everything else.

    ``task`` is the text; ``task_id`` is made when it is ""; ``channel`` says where it came from ("cli", "api", …);
    ``images`` are base64 texts that go with it.

    Raises InvalidInput for a task without text, and for values of a wrong type.
    """

    task: str
    task_id: str = ""
    channel: str = "cli"
    images: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.task, str):
            raise InvalidInput(f"a task is a text, not {type(self.task).__name__}")
        if not self.task.strip():
            raise InvalidInput("the task is empty: say what is asked")
        for name in ("task_id", "channel"):
            if not isinstance(getattr(self, name), str):
                raise InvalidInput(f"the {name} of a task is a text, not {getattr(self, name)!r}")
        if isinstance(self.images, str) or not all(isinstance(image, str) for image in self.images):
            raise InvalidInput("the images of a task are a list of base64 texts")
        object.__setattr__(self, "task_id", self.task_id or new_id())
        object.__setattr__(self, "images", tuple(self.images))

    @classmethod
    def of(cls, task: Any, channel: str = "cli") -> TaskState:
        """``task`` itself when it is a TaskState (its channel counts), else one of that text."""
        return task if isinstance(task, cls) else cls(task, channel=channel)
