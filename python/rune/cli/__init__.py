"""The command line: one module a command group, ``main`` puts them together."""
