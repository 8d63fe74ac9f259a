# SPDX-License-Identifier: MIT
"""The library's callbacks: on Python's binary files, and on functions.

An exception cannot pass through C code, so it is kept and raised when the call has returned. A Python function as a callback would lose some:
what a signal handler raises while C computes is raised when the next function is entered, before its first `try`, and ctypes prints it and
returns to C whatever lies on the stack. A generator that waits inside a `try` has no such moment. ctypes gives a callback all arguments at
once, and send() takes one: min(*arguments, key=generator.send) sends them one after the other, without a line of Python in between, and
returns the one with the smallest key. That is the first, which is always 0 (success), or if there was an exception the last, which is not.
"""

from __future__ import annotations

import ctypes
import io
import operator
from functools import partial
from typing import Any, BinaryIO, Callable, Generator, List, Optional, Union

from . import _native as n


class Callback:
    """Calls a function of the library with a callback, which calls `serve` with the arguments behind ctx."""

    def __init__(self, kind: Any, serve: Callable[..., None]) -> None:
        self._kind, self._serve = kind, serve
        self._error: Optional[BaseException] = None

    def _generator(self, count: int) -> Generator[int, int, None]:
        given: List[int] = [0] * count
        at, waits = 0, False
        while True:
            try:
                while True:  # begins again after an exception, and a signal can be noticed then
                    try:
                        while True:
                            waits = True
                            given[at] = yield 1 if at else 2 if self._error is None else 0
                            at, waits = (at + 1) % count, False
                            if not at and self._error is None:
                                self._serve(*given[1:])
                    except GeneratorExit as error:
                        if waits:
                            return  # of close()
                        self._error = error
                    except Exception as error:
                        if waits:
                            at = (at + 1) % count
                        if self._error is None:
                            self._error = error
                    except BaseException as error:  # KeyboardInterrupt, and C must come to its end first
                        if waits:
                            at = (at + 1) % count
                        self._error = error
            except BaseException as error:
                self._error = error

    def call(self, function: Callable[..., int], *first: Any, more: "tuple[Any, ...]" = ()) -> int:
        """function(*first, callback, NULL, *more): the status, if the callback has raised nothing."""
        generator = self._generator(len(self._kind._argtypes_))
        next(generator)
        try:
            status = function(*first, self._kind(partial(min, key=generator.send)), None, *more)
        finally:
            generator.close()
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error  # it refers to this frame
        return status


class Writer(Callback):
    def __init__(self, file: Optional[BinaryIO] = None) -> None:
        if file is not None and not callable(getattr(file, "write", None)):
            raise TypeError(f"file is a {type(file).__name__}, not a binary file: it has no write()")
        self.file: BinaryIO = io.BytesIO() if file is None else file
        super().__init__(n.WRITE, self._write)

    def _write(self, data: int, size: int) -> None:
        left = ctypes.string_at(data, size)
        while left:  # a file without a buffer may take less
            taken = self.file.write(left)
            if taken is None and isinstance(self.file, io.RawIOBase):
                raise BlockingIOError("the file takes nothing now; a file in non-blocking mode cannot be written to")
            if taken is None:  # of a file that does not say it
                return
            number = -1 if isinstance(taken, bool) or not hasattr(taken, "__index__") else operator.index(taken)
            if not 0 < number <= len(left):
                raise OSError(f"write() of the file returned {taken!r} for {len(left)} bytes")
            left = left[number:]

    def bytes(self) -> bytes:
        assert isinstance(self.file, io.BytesIO)
        return self.file.getvalue()


class Reader(Callback):
    def __init__(self, source: Union[bytes, BinaryIO]) -> None:
        if isinstance(source, (bytes, bytearray, memoryview)):
            source = io.BytesIO(source)
        elif not callable(getattr(source, "read", None)):
            raise TypeError(f"source is a {type(source).__name__}, neither bytes nor a binary file: it has no read()")
        self.file: BinaryIO = source
        super().__init__(n.READ, self._read)

    def _read(self, data: int, size: int) -> None:
        done = 0
        while done < size:  # a file without a buffer may give less
            found: Any = self.file.read(size - done)
            if found is None:
                raise BlockingIOError("the file has nothing now; a file in non-blocking mode cannot be read")
            try:
                got = memoryview(found).tobytes()  # not bytes(found), which an object can answer as it likes
            except TypeError:
                raise TypeError(f"read() of the file returned a {type(found).__name__}, not bytes; open it in binary mode") from None
            if not got:
                raise EOFError(f"expected {size} bytes, but the file ended after {done}")
            if len(got) > size - done:
                raise OSError(f"read({size - done}) of the file returned {len(got)} bytes")
            ctypes.memmove(data + done, got, len(got))
            done += len(got)
