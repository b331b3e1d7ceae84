"""Disk images as files: sparse copies, and zeroed ranges that cost no room."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FICLONE = 0x40049409
FALLOC_KEEP_SIZE_PUNCH_HOLE = 0x03
ZEROES = bytes(1 << 20)
NOT_SUPPORTED = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM, errno.EBADF}


def data_extents(fd: int) -> Iterator[tuple[int, int]]:
    """The ranges (begin, end) of an open file that are not holes, in bytes."""
    size = os.fstat(fd).st_size
    end = 0
    while end < size:
        try:
            begin = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        end = os.lseek(fd, begin, os.SEEK_HOLE)
        yield begin, end


def copy_sparse(source: Path, target: Path) -> None:
    """Make `target` equal to `source`: a reflink where the file system can, else only what is not a hole."""
    with source.open("rb") as src, target.open("wb") as dst:
        try:
            fcntl.ioctl(dst.fileno(), FICLONE, src.fileno())
        except OSError as error:
            if error.errno not in NOT_SUPPORTED:
                raise
        else:
            return
        dst.truncate(os.fstat(src.fileno()).st_size)
        for begin, end in data_extents(src.fileno()):
            _copy_range(src.fileno(), dst.fileno(), begin, end)


def _copy_range(src: int, dst: int, begin: int, end: int) -> None:
    while begin < end:
        try:
            done = os.copy_file_range(src, dst, end - begin, begin, begin)
        except OSError as error:
            if error.errno not in NOT_SUPPORTED:
                raise
            done = os.pwrite(dst, os.pread(src, min(len(ZEROES), end - begin), begin), begin)
        if not done:
            message = "the image was cut short while it was copied"
            raise OSError(errno.EIO, message)
        begin += done


def zero_range(fd: int, offset: int, length: int) -> None:
    """Make a range read as zeroes, as a hole where the file system can."""
    if not _punch(fd, offset, length):
        for at in range(offset, offset + length, len(ZEROES)):
            os.pwrite(fd, memoryview(ZEROES)[: min(len(ZEROES), offset + length - at)], at)


def _punch(fd: int, offset: int, length: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.fallocate(
        ctypes.c_int(fd), ctypes.c_int(FALLOC_KEEP_SIZE_PUNCH_HOLE), ctypes.c_int64(offset), ctypes.c_int64(length)
    )
    return result == 0
