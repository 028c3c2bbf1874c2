"""Real processes that write and recall at the same time: nothing lost, nobody told of a lock."""

from __future__ import annotations

from pathlib import Path

from database_helpers import start
from rune.memory import memory_store
from rune.memory.memory_consolidation import MemoryConsolidation
from rune.storage.database import Database
from rune.storage.repair import inspect

WRITE = """
import sys
from rune.memory import memory_store
from rune.storage.database import Database
with Database(sys.argv[1]) as db:
    sys.stdin.readline()
    for number in range(5000):
        memory_store.add(db, f"writer {sys.argv[2]} wrote note {number}", source=sys.argv[2])
"""

RECALL = """
import sys
from rune.memory import memory_store, warm_neuron_store
from rune.memory.memory_consolidation import MemoryConsolidation
from rune.storage.database import Database
with Database(sys.argv[1]) as db:
    warm_neuron_store.add(db, "note")
    pipeline = MemoryConsolidation(db)
    sys.stdin.readline()
    turns, last = 0, 0
    while last < 9000:
        found = memory_store.search(db, f"note {turns}")
        pipeline.collect(f"note {turns}")
        warm_neuron_store.list_neurons(db, "note")
        rows = memory_store.list_memories(db, limit=1)
        last = rows[0].id if rows else 0
        turns += 1
    assert warm_neuron_store.list_rows(db)[0].mentions == turns
    print(turns)
"""


def test_two_processes_write_five_thousand_each_while_a_third_recalls(path: Path) -> None:
    processes = [start(WRITE, path, "a"), start(WRITE, path, "b"), start(RECALL, path)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert int(outputs[2]) > 0
    with Database(path) as db:
        MemoryConsolidation(db).consolidate()
        texts = {memory.text for memory in memory_store.list_memories(db, limit=20_000, superseded=True)}
        assert texts == {f"writer {name} wrote note {number}" for name in "ab" for number in range(5000)}
        assert memory_store.recall(db, "writer b wrote note 4321", 1)[0].text == "writer b wrote note 4321"
    condition = inspect(path)
    assert (condition.state, condition.detail) == ("ok", "")
