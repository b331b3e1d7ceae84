"""Payloads that can be made again from five words, and read back block by block.

A payload is a function of (seed, namespace, key, sequence, size). Its bytes do not compress. Each 512-byte block starts
with a stamp, so that a reader who never saw the writer tells an old block from a torn, a zeroed or a corrupt one and
names it. What is too small for a stamp is told by its length and digest.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from itertools import groupby

BLOCK_BYTES = 512
_STAMP = struct.Struct("<4sIIQI")  # magic, sequence, block, size, crc32 of what this payload is of
_MAGIC = b"dbck"
STAMP_BYTES = _STAMP.size
"""A shorter value carries no stamp; a block of just this length has nothing but its stamp to vouch for it."""

ZERO, CORRUPT, FOREIGN = -1, -2, -3
"""In place of a sequence: zeros; a stamped block whose bytes are not what was put; a block of something else."""

Blocks = tuple[tuple[int, int], ...]
"""Runs of blocks, in order: (sequence or one of the three above, how many)."""


def make(seed: int, namespace: str, key: str, sequence: int, size: int) -> bytes:
    """The payload of one put: exactly ``size`` bytes."""
    name = f"{seed}/{namespace}/{key}"
    body = bytearray(hashlib.shake_128(f"{name}/{sequence}/{size}".encode()).digest(size))
    whose = zlib.crc32(name.encode())
    for block, start in enumerate(range(0, size - _STAMP.size + 1, BLOCK_BYTES)):
        _STAMP.pack_into(body, start, _MAGIC, sequence, block, size, whose)
    return bytes(body)


def digest(value: bytes) -> str:
    """SHA-256 of a value, in hex."""
    return hashlib.sha256(value).hexdigest()


def read(seed: int, namespace: str, key: str, value: bytes) -> Blocks:
    """Whose blocks a value is made of; empty where it is too small to carry a stamp.

    A block counts for a sequence only if every byte of it is what that put wrote at that place.
    """
    whose = zlib.crc32(f"{seed}/{namespace}/{key}".encode())
    made: dict[tuple[int, int], bytes] = {}
    found: list[int] = []
    last: tuple[int, int] | None = None
    if len(value) < _STAMP.size:
        return ()
    for start in range(0, len(value), BLOCK_BYTES):
        block = value[start : start + BLOCK_BYTES]
        if len(block) >= _STAMP.size:
            magic, sequence, number, size, owner = _STAMP.unpack_from(block)
            ours = magic == _MAGIC and owner == whose
            last = (sequence, size) if ours and number * BLOCK_BYTES == start else None
        else:
            ours = last is not None  # the end of a payload, too short for a stamp of its own
        if last is not None and last not in made:
            made[last] = make(seed, namespace, key, *_plausible(last, len(value)))
        if last is not None and made[last][start : start + BLOCK_BYTES][: len(block)] == block:
            found.append(last[0])  # asked first: the end of a payload may be a zero byte or two by chance
        elif not block.strip(b"\0"):
            found.append(ZERO)
        else:
            found.append(CORRUPT if ours else FOREIGN)
    return tuple((who, len(list(run))) for who, run in groupby(found))


_LARGEST_BYTES = 1 << 30


def _plausible(stamp: tuple[int, int], length: int) -> tuple[int, int]:
    """A damaged stamp may claim any size: never make more than a value can have been."""
    sequence, size = stamp
    return sequence, size if size <= max(_LARGEST_BYTES, length) else 0
