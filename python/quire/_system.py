# SPDX-License-Identifier: MIT
"""What operating systems answer in different ways."""

from __future__ import annotations

import ctypes
import os
import sys


def processors() -> int:
    """The number of threads that compute fastest: one for each processor that this process may use. Of cores with different speeds, only
    the fast ones count, because a call ends when its slowest thread does."""
    if sys.platform == "darwin":
        return _sysctl("hw.perflevel0.physicalcpu") or _sysctl("hw.physicalcpu") or os.cpu_count() or 1  # the first since macOS 12
    else:
        return len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """The memory of the machine."""
    if sys.platform == "darwin":
        return _sysctl("hw.memsize")
    else:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def processor_name() -> str:
    if sys.platform == "darwin":
        return _sysctl_text("machdep.cpu.brand_string")
    else:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        return names[0] if names else os.uname().machine


if sys.platform == "darwin":
    _by_name = ctypes.CDLL(None).sysctlbyname
    _by_name.restype = ctypes.c_int
    _by_name.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.c_void_p, ctypes.c_size_t]

    def _sysctl(name: str) -> int:
        """A number of the system, which has 4 or 8 bytes; 0 if there is none of that name."""
        value, size = ctypes.c_uint64(0), ctypes.c_size_t(8)
        return 0 if _by_name(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0) else value.value

    def _sysctl_text(name: str) -> str:
        value = ctypes.create_string_buffer(256)
        size = ctypes.c_size_t(len(value))
        return "" if _by_name(name.encode(), value, ctypes.byref(size), None, 0) else value.value.decode(errors="replace")
