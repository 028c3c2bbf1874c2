"""The schema of Rune's database as numbered steps, and the check that a file has it.

A step is never edited once released: a change is a new step. ``PRAGMA user_version`` holds the number of the last step
taken and ``PRAGMA application_id`` says that the file is Rune's. A file with a higher number than this code knows is
refused, never taken back.
"""

from __future__ import annotations

import sqlite3

from rune.errors import StorageError

__all__ = [
    "APPLICATION_ID",
    "CONTENT_TABLES",
    "INDEXED",
    "LATEST",
    "REPAIR",
    "STEPS",
    "DamagedDatabase",
    "migrate",
    "verify",
]

APPLICATION_ID = 0x52554E45  # "RUNE"
REPAIR = "Run `rune doctor --repair`: it sets the file aside under another name and saves what it can."


class DamagedDatabase(StorageError):
    """The file is there and is not a whole database of Rune's; ``rune.storage.repair`` helps."""


_POSTINGS = """fts5(terms, content='', detail=none, columnsize=0, tokenize="ascii tokenchars '+#'")"""

# Posting lists hold terms that rune.memory.terms has already folded, so that the result does not hang on the Unicode
# tables of the SQLite at hand. Every row keeps its terms: a contentless FTS5 table is told them again on removal.
_STEP_1 = f"""
CREATE TABLE stat (
    kind TEXT PRIMARY KEY, rows INTEGER NOT NULL DEFAULT 0, length INTEGER NOT NULL DEFAULT 0,
    generation INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE TABLE term_df (
    kind TEXT NOT NULL, term TEXT NOT NULL, df INTEGER NOT NULL, PRIMARY KEY (kind, term)) WITHOUT ROWID;

CREATE TABLE memory (
    id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, text TEXT NOT NULL, source TEXT NOT NULL DEFAULT '',
    created REAL NOT NULL, seen REAL NOT NULL, said INTEGER NOT NULL DEFAULT 1, recalls INTEGER NOT NULL DEFAULT 0,
    recalled REAL, level INTEGER NOT NULL DEFAULT 0, superseded_by INTEGER, merge_key BLOB NOT NULL,
    terms TEXT NOT NULL, length INTEGER NOT NULL);
CREATE INDEX memory_merge ON memory (merge_key) WHERE superseded_by IS NULL;
CREATE INDEX memory_level ON memory (kind, level DESC, id) WHERE level > 0 AND superseded_by IS NULL;
CREATE INDEX memory_persona ON memory (id) WHERE kind = 'persona' AND superseded_by IS NULL;
CREATE INDEX memory_group ON memory (superseded_by) WHERE superseded_by IS NOT NULL;
CREATE TABLE memory_queue (id INTEGER PRIMARY KEY);
CREATE VIRTUAL TABLE memory_fts USING {_POSTINGS};
CREATE VIRTUAL TABLE persona_fts USING {_POSTINGS};

CREATE TABLE fact (
    id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL, source TEXT NOT NULL DEFAULT '', created REAL NOT NULL,
    folded TEXT NOT NULL, terms TEXT NOT NULL, length INTEGER NOT NULL);
CREATE INDEX fact_folded ON fact (folded);
CREATE VIRTUAL TABLE fact_like USING fts5(
    folded, content='fact', content_rowid='id', detail=none, columnsize=0, tokenize='trigram');

CREATE TABLE entity (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, key TEXT NOT NULL UNIQUE, type TEXT NOT NULL DEFAULT '',
    created REAL NOT NULL);
CREATE TABLE alias (
    key TEXT NOT NULL, entity INTEGER NOT NULL REFERENCES entity (id) ON DELETE CASCADE, text TEXT NOT NULL,
    first TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (key, entity)) WITHOUT ROWID;
CREATE INDEX alias_first ON alias (first, n);
CREATE INDEX alias_entity ON alias (entity);
CREATE TABLE edge (
    id INTEGER PRIMARY KEY AUTOINCREMENT, src INTEGER NOT NULL REFERENCES entity (id) ON DELETE CASCADE,
    relation TEXT NOT NULL, dst INTEGER NOT NULL REFERENCES entity (id) ON DELETE CASCADE,
    weight REAL NOT NULL DEFAULT 1, source TEXT NOT NULL DEFAULT '', created REAL NOT NULL);
CREATE UNIQUE INDEX edge_pair ON edge (src, dst, relation);
CREATE INDEX edge_src ON edge (src, weight DESC, id DESC);
CREATE INDEX edge_dst ON edge (dst, weight DESC, id DESC);

CREATE TABLE neuron (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, note TEXT NOT NULL DEFAULT '', key TEXT NOT NULL UNIQUE,
    first TEXT NOT NULL, n INTEGER NOT NULL, mentions INTEGER NOT NULL DEFAULT 0, activation REAL NOT NULL DEFAULT 0,
    fired REAL, potential REAL, created REAL NOT NULL);
CREATE INDEX neuron_first ON neuron (first, n);
CREATE INDEX neuron_potential ON neuron (potential DESC, id) WHERE potential IS NOT NULL;
CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

STEPS: tuple[tuple[int, str], ...] = ((1, _STEP_1),)
LATEST = STEPS[-1][0]

#: Tables whose rows cannot be worked out from others, in an order that respects references.
CONTENT_TABLES = ("memory", "memory_queue", "fact", "entity", "alias", "edge", "neuron", "setting")
#: kind -> (table, condition) of the rows whose terms are counted in ``term_df``; memories have posting lists as well.
INDEXED = {
    "memory": ("memory", "kind = 'memory' AND superseded_by IS NULL"),
    "persona": ("memory", "kind = 'persona' AND superseded_by IS NULL"),
    "fact": ("fact", "1"),
}
_REQUIRED = frozenset((*CONTENT_TABLES, "stat", "term_df", "memory_fts", "persona_fts", "fact_like"))


def verify(connection: sqlite3.Connection, where: str) -> int:
    """The version of a database of ours; DamagedDatabase for another program's or one with tables missing.

    A newer one is a plain StorageError.
    """
    application, version = _numbers(connection)
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if application != APPLICATION_ID:
        raise DamagedDatabase(
            f"{where} is a database of another program (application id {application:#x}, {len(names)} tables). {REPAIR}"
        )
    if version > LATEST:
        raise StorageError(
            f"{where} has schema version {version}, and this Rune knows versions up to {LATEST}. "
            "It was left as it is: use the newer Rune, or another RUNE_HOME."
        )
    missing = sorted(_REQUIRED - names) if version == LATEST else []
    if missing or version < 1:
        what = f"tables missing: {', '.join(missing)}" if missing else "it has no schema"
        raise DamagedDatabase(f"{where} is damaged: {what}. {REPAIR}")
    return version


def migrate(connection: sqlite3.Connection, where: str, steps: tuple[tuple[int, str], ...] | None = None) -> int:
    """Take the steps that are missing, all in one transaction, and return the version reached.

    Safe when several processes start at once: the version is read again under the write lock. A newer database raises
    StorageError.
    """
    steps = STEPS if steps is None else steps
    connection.execute("BEGIN IMMEDIATE")
    try:
        _, version = _numbers(connection)
        if version > steps[-1][0]:
            verify(connection, where)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for number, script in steps:
            if number > version:
                for statement in script.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return steps[-1][0]


def _numbers(connection: sqlite3.Connection) -> tuple[int, int]:
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    return application, int(connection.execute("PRAGMA user_version").fetchone()[0])
