"""The memory of a home as contributors: each store is opened when a turn first asks it, and read-only on dry runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rune import contributors as made
from rune.context_broker import current_assembly
from rune.paths import database
from rune.settings import Settings

if TYPE_CHECKING:
    from rune.context.blocks import ContributionBlock
    from rune.context.collect import Contributor
    from rune.storage.database import Database
    from rune.transports.discovery import ModelFacts

__all__ = ["Stores"]

RECALLED = 3


class Stores:
    """The stores of one home. ``facts`` says what is known of a model without asking anybody."""

    def __init__(self, home: Path, settings: Settings, facts: Callable[[str], ModelFacts | None]) -> None:
        self._home = home
        self._settings = settings
        self._facts = facts
        self._lock = threading.Lock()
        self._databases: dict[bool, Database] = {}

    def contributors(self) -> dict[str, Contributor]:
        """A contributor for every block that comes out of a store, by the block's name."""
        return {
            "memory": made.memory(self._recall),
            "persona_memories": made.persona_memories(self._recall_persona),
            "consolidated": made.consolidated(self._consolidate),
            "neurons": self._neurons,
            "graphs": made.graphs(self._connections),
            "abstraction": made.abstraction(self._learned),
            "model_profile": made.model_profile(self._profile),
        }

    def close(self) -> None:
        """Lets the database go; the next turn opens it anew."""
        with self._lock:
            databases = list(self._databases.values())
            self._databases.clear()
        for db in databases:
            db.close()

    def database(self) -> Database:
        """The database of the home, opened on first use; read-only on dry runs. Raises StorageError."""
        from rune.storage.database import Database

        dry = current_assembly().dry
        with self._lock:
            if dry not in self._databases:
                self._databases[dry] = Database(database(self._home), readonly=dry)
            return self._databases[dry]

    # The stores are imported where they are asked: importing the operator stays quick.

    def _recall(self, task: str) -> str | None:
        from rune.memory.memory_store import cached_recall

        return cached_recall(self.database(), task, budget=RECALLED)

    def _recall_persona(self) -> str | None:
        from rune.memory.memory_store import PERSONA_QUERY, cached_recall

        return cached_recall(self.database(), PERSONA_QUERY, budget=RECALLED, kind="persona")

    def _consolidate(self, task: str, _session: Any, dry: bool) -> str | None:
        from rune.memory.memory_consolidation import MemoryConsolidation

        return MemoryConsolidation(self.database()).collect(task, budget=RECALLED, dry=dry)

    def _neurons(self, task: Any, session: Any) -> ContributionBlock | None:
        from rune.memory.warm_neuron_store import list_neurons

        def listing() -> str | None:
            hours = self._settings.neuron_half_life_hours
            text = made.task_text(task)
            return list_neurons(self.database(), text, half_life_hours=hours, dry=current_assembly().dry)

        return made.neurons(listing)(task, session)

    def _connections(self, task: str) -> str | None:
        from rune.memory.graph_memory import resolve_entity

        return resolve_entity(self.database(), task)

    def _learned(self, task: str) -> str | None:
        from rune.memory.abstraction import connect

        return connect(self.database()).facts(task)

    def _profile(self, model_id: str) -> str | None:
        from rune.memory.model_profiles import get_prompt_context

        of_model = self._settings.models.get(model_id)
        notes = of_model.get("notes") if isinstance(of_model, Mapping) else None
        return get_prompt_context(model_id, self._facts(model_id), notes)
