"""The state of one task on its way through the operator."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from rune.errors import InvalidInput

__all__ = ["TaskState"]


@dataclass(slots=True)
class TaskState:
    """A task: its text, the id that joins it to its trace row, and the channel it came by.

    ``images`` are base64 strings that go with the text. Raises InvalidInput for a text that is empty or no text.
    """

    task: str
    task_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    channel: str = "cli"
    images: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.task, str):
            raise InvalidInput(f"a task must be text, not {type(self.task).__name__}")
        if not self.task.strip() and not self.images:
            raise InvalidInput("the task is empty: say what is asked")
