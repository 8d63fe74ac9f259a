# SPDX-License-Identifier: MIT
"""Converts the weights of a model to f32, so that differences of the output come from the cache alone.

    python3 eval/expand.py IN.gguf OUT.gguf [NOISE]

With quantized weights llama.cpp also rounds activations to 8 bits, and any change of the cache changes that rounding. On these
models this adds a KL of about 0.004 that has nothing to do with the cache. NOISE (for example 0.02) adds random numbers of that
size, relative to each matrix, to imitate a fine-tune of the same base. Needs the packages gguf and numpy.
"""
import struct
import sys

import numpy as np
from gguf import GGUFReader, dequantize

ALIGN = 32


def tensor_info(t, offset):
    name = t.name.encode()
    return (struct.pack("<Q", len(name)) + name + struct.pack("<I", len(t.shape)) +
            b"".join(struct.pack("<Q", int(n)) for n in t.shape) + struct.pack("<IQ", 0, offset))


def head_end(reader):
    """Where the metadata ends: the first tensor's description begins there."""
    return min(int(t.field.offset) for t in reader.tensors)


def expand(source, out, noise=0.0):
    reader = GGUFReader(source)
    rng = np.random.default_rng(1)
    with open(source, "rb") as f:
        head = f.read(head_end(reader))
    with open(out, "wb") as f:
        f.write(head)
        offset = 0
        for t in reader.tensors:
            f.write(tensor_info(t, offset))
            offset += -(-4 * int(t.n_elements) // ALIGN) * ALIGN
        f.write(bytes(-f.tell() % ALIGN))
        for t in reader.tensors:
            values = dequantize(t.data, t.tensor_type).astype(np.float32).reshape(-1)
            if noise and len(t.shape) > 1:
                values = values + np.float32(noise * values.std()) * rng.standard_normal(values.size, np.float32)
            f.write(values.tobytes())
            f.write(bytes(-4 * values.size % ALIGN))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    expand(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
