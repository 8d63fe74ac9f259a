# SPDX-License-Identifier: MIT
"""The library's read and write callbacks on Python's binary files."""

from __future__ import annotations

import ctypes
import io
from typing import BinaryIO, Optional, Union

from . import _native as n

_EIO = 10


class _Stream:
    """Keeps an exception of a callback, which cannot pass through C code, and raises it afterwards."""

    def __init__(self, file: Optional[BinaryIO] = None) -> None:
        self.file: BinaryIO = io.BytesIO() if file is None else file
        self.error: Optional[BaseException] = None

    def check(self, status: int) -> None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        n.check(status)


class Writer(_Stream):
    def __init__(self, file: Optional[BinaryIO] = None) -> None:
        super().__init__(file)
        self.callback = n.WRITE(self._write)

    def _write(self, _ctx: Optional[int], data: int, size: int) -> int:
        try:
            left = ctypes.string_at(data, size)
            while left:  # a file without a buffer may take less
                taken = self.file.write(left)
                left = b"" if taken is None else left[taken:]
            return 0
        except BaseException as error:  # KeyboardInterrupt too: C must come to its end first
            self.error = error
            return _EIO

    def bytes(self) -> bytes:
        assert isinstance(self.file, io.BytesIO)
        return self.file.getvalue()


class Reader(_Stream):
    def __init__(self, source: Union[bytes, BinaryIO]) -> None:
        super().__init__(io.BytesIO(source) if isinstance(source, (bytes, bytearray, memoryview)) else source)
        self.callback = n.READ(self._read)

    def _read(self, _ctx: Optional[int], data: int, size: int) -> int:
        try:
            done = 0
            while done < size:  # a file without a buffer may give less
                got = bytes(self.file.read(size - done))
                if not got:
                    raise EOFError(f"expected {size} bytes, but the file ended after {done}")
                ctypes.memmove(data + done, got, len(got))
                done += len(got)
            return 0
        except BaseException as error:
            self.error = error
            return _EIO
