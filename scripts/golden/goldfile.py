# SPDX-License-Identifier: MIT
"""Writer of golden files; the reader is tests/support/gold.c, the format is in gold.h."""
import numpy as np

TYPES = {"uint8": "u8", "uint16": "u16", "uint32": "u32", "int8": "i8", "int32": "i32",
         "int64": "i64", "float32": "f32", "float64": "f64", "float16": "f16"}
ALIGN = 64


def text(lines):
    """Lines of text as a u8 array, newline after each."""
    return np.frombuffer("".join(line + "\n" for line in lines).encode("ascii"), np.uint8)


def bf16(bits):
    """Marks a uint16 array as raw bfloat16 bits."""
    assert bits.dtype == np.uint16
    return "bf16", bits


def _typed(a):
    if isinstance(a, tuple):
        return a
    return TYPES[a.dtype.name], a


def _place(blob, data):
    """Offset of data in blob: where the same bytes already stand (aligned), else at its end."""
    at = blob.find(data) if len(data) >= ALIGN else -1
    while at >= 0 and at % ALIGN:
        at = blob.find(data, at + 1)
    if at < 0:
        blob.extend(bytes(-len(blob) % ALIGN))
        at = len(blob)
        blob.extend(data)
    return at


def write(path, arrays):
    """arrays: dict of name to numpy array or bf16(...)."""
    blob, rows = bytearray(), []
    for name, a in arrays.items():
        kind, a = _typed(a)
        assert len(name) < 64 and " " not in name and a.ndim <= 6, name
        data = np.ascontiguousarray(a).astype(a.dtype.newbyteorder("<"), copy=False).tobytes()
        rows.append((f"{name} {kind} {a.ndim} " + "".join(f"{d} " for d in a.shape),
                     _place(blob, data), len(data)))

    def header(base):
        lines = "".join(f"{head}{base + at} {n}\n" for head, at, n in rows)
        return f"quire-gold 1\n{lines}end\n".encode("ascii")
    base = 0
    while len(header(base)) > base:                     # offsets are absolute
        base = -(-len(header(base)) // ALIGN) * ALIGN
    with open(path, "wb") as f:
        f.write(header(base).ljust(base, b"\0") + blob)
