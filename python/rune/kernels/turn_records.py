"""A turn in the index beside a session's log, as bytes; the native kernels read the same.

A record says where a row begins and ends in the log (bytes), the turn's tokens, its digest and its chain digest, and what it
is: 0 a complete turn, 1 to 4 one of ``FAULTS``, 5 a row that is no turn. Behind it stand the first bytes of the record's SHA-256.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

from rune.errors import InvalidInput

__all__ = ["CHECK_BYTES", "FAULTS", "OTHER", "RECORD", "Record", "read_records"]

RECORD = struct.Struct("<QQq32s32sB3x")
CHECK_BYTES = 4

FAULTS = ("no user message", "tool call without result", "tool result without call", "no answer")
"""Why a turn cannot be offered; the number of one in a record is its place here, from 1."""

OTHER = len(FAULTS) + 1


class Record(NamedTuple):
    """A record as read; ``kind`` as above."""

    span: tuple[int, int]
    tokens: int
    digest: str
    chain: str
    kind: int


def read_records(data: bytes) -> Iterator[Record]:
    """The records of an index without its head. Raises InvalidInput for one that is not as it was written."""
    size = RECORD.size + CHECK_BYTES
    for at in range(0, len(data), size):
        record, check = data[at : at + RECORD.size], data[at + RECORD.size : at + size]
        if hashlib.sha256(record).digest()[:CHECK_BYTES] != check or len(check) != CHECK_BYTES:
            raise InvalidInput("the records are damaged")
        start, end, tokens, digest, chain, kind = RECORD.unpack(record)
        if kind > OTHER:
            raise InvalidInput("the records are damaged")
        yield Record((start, end), tokens, digest.hex(), chain.hex(), kind)
