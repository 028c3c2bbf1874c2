"""Rows of the trace: their schema, how they are built and priced, how they are read."""
