"""Real conversations replayed turn by turn against servers that count with real tokenizers (``scripts/replay_table.py``)."""
