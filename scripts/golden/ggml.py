# SPDX-License-Identifier: MIT
"""ggml.gold: cache rows as llama.cpp's own CPU backend writes and reads them.

The libraries are the prebuilt ones of the npm package; QUIRE_GGML_DIR names their folder.
"""
import ctypes as C
import glob
import os

import numpy as np

from families import families, names
from goldfile import text

f32 = np.float32
TYPES = {"q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20}   # enum ggml_type
BLOCK_BYTES = {"q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "q8_0": 34, "iq4_nl": 18}
CONVERT = C.CFUNCTYPE(None, C.c_void_p, C.c_void_p, C.c_int64)
D = 256


class Traits(C.Structure):                          # struct ggml_type_traits, ggml.h
    _fields_ = [("type_name", C.c_char_p), ("blck_size", C.c_int64),
                ("blck_size_interleave", C.c_int64), ("type_size", C.c_size_t),
                ("is_quantized", C.c_bool), ("to_float", CONVERT), ("from_float_ref", CONVERT)]


class TraitsCpu(C.Structure):                       # struct ggml_type_traits_cpu, ggml-cpu.h
    _fields_ = [("from_float", CONVERT), ("vec_dot", C.c_void_p), ("vec_dot_type", C.c_int),
                ("nrows", C.c_int64)]


def function(lib, name, restype, *args):
    f = getattr(lib, name)
    f.restype, f.argtypes = restype, args
    return f


def load():
    """The base library, and every CPU variant this machine can run, by name."""
    folder = os.environ["QUIRE_GGML_DIR"]
    base = C.CDLL(os.path.join(folder, "libggml-base.so"), mode=C.RTLD_GLOBAL)
    variants = {}
    for path in sorted(glob.glob(os.path.join(folder, "libggml-cpu-*.so"))):
        lib = C.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
        if function(lib, "ggml_backend_score", C.c_int)() > 0:
            function(lib, "ggml_cpu_init", None)()
            variants[os.path.basename(path)[len("libggml-cpu-"):-len(".so")]] = lib
    return base, variants


def encode(convert, x, row_bytes):
    """Rows [R,D] by one from_float."""
    out = np.empty((len(x), row_bytes), np.uint8)
    for row, o in zip(x, out):
        row, buf = np.ascontiguousarray(row), np.full(row_bytes, 0xAA, np.uint8)
        convert(row.ctypes.data, buf.ctypes.data, D)
        o[:] = buf
    return out


def decode(convert, rows):
    out = np.empty((len(rows), D), f32)
    for row, o in zip(rows, out):
        row, buf = np.ascontiguousarray(row), np.empty(D, f32)
        convert(row.ctypes.data, buf.ctypes.data, D)
        o[:] = buf
    return out


def blank_undefined(rows, x):
    """iq4_nl writes uninitialised codes for a block below 1e-15: make them 0, flag them."""
    amax = np.abs(x.reshape(len(x), -1, 32)).max(-1)
    defined = (amax >= f32(1e-15)).astype(np.uint8)
    blocks = rows.reshape(len(rows), -1, BLOCK_BYTES["iq4_nl"]).copy()
    assert not blocks[defined == 0][:, :2].any()                # the scale is 0 all the same
    blocks[defined == 0] = 0
    return blocks.reshape(rows.shape), defined


def rows_that_differ(rng, fast, ref, want=2):
    """Random rows where the x86 q8_0 (127/max, ties to even) is not the reference one."""
    found = []
    while len(found) < want:
        x = rng.standard_normal((1, D)).astype(f32)
        n = D // 32 * BLOCK_BYTES["q8_0"]
        if not np.array_equal(encode(fast, x, n), encode(ref, x, n)):
            found.append(x)
    return np.concatenate(found)


def ties():
    """Rows with exact ties: half steps of q8_0, q4_0 and q5_0, middles of the iq4_nl table."""
    table = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], f32)
    middles = (table[1:] + table[:-1]) / 2
    rows = np.zeros((4, D // 32, 32), f32)
    rows[0] = (np.arange(D).reshape(-1, 32) - 128) % 127 + .5
    rows[1] = (np.arange(D).reshape(-1, 32) % 32 - 16) * .5
    rows[2] = (np.arange(D).reshape(-1, 32) * 7 % 64 - 32) * .5
    rows[3] = np.resize(middles, 32)
    for row, edge in zip(rows, (127, -8, -16, -127)):
        row[:, 0] = edge
    rows[:, 1::2, 0] *= -1
    return rows.reshape(4, D)


def make():
    base, variants = load()
    get = function(base, "ggml_get_type_traits", C.POINTER(Traits), C.c_int)
    traits = {t: get(n).contents for t, n in TYPES.items()}
    cpu = {v: {t: function(lib, "ggml_get_type_traits_cpu", C.POINTER(TraitsCpu), C.c_int)(n).contents
               for t, n in TYPES.items()} for v, lib in variants.items()}
    for t, n in TYPES.items():                      # the structs are what this file thinks they are
        assert traits[t].type_name == t.encode() and traits[t].blck_size == 32 and traits[t].is_quantized
        assert traits[t].type_size == BLOCK_BYTES[t]
        assert all(c[t].nrows in (1, 2) and c[t].vec_dot_type in (8, 9) for c in cpu.values())
    plain = [v for v in variants if v in ("x64", "sse42")]        # no AVX: q8_0 is the reference
    avx = [v for v in variants if v not in plain]
    assert avx, "this machine has no AVX; the x86 q8_0 rows cannot be made here"
    print("  ggml variants:", " ".join(sorted(variants)))
    q8_ref = CONVERT(C.cast(base.quantize_row_q8_0_ref, C.c_void_p).value)

    rng = np.random.default_rng(2)
    # denormal rows make 1/d infinite, which C leaves undefined in ggml: not tested
    fam = [f for f in families(rng) if f[0] != "denormal"]
    fam.append(("ties", ties()))
    fam.append(("q8_0_differs", rows_that_differ(rng, cpu[avx[0]]["q8_0"].from_float, q8_ref)))
    x = np.concatenate([rows for _, rows in fam])
    arrays = {"families": text(names(fam)), "x": x}
    for t in TYPES:
        n = D // 32 * BLOCK_BYTES[t]
        ref = encode(q8_ref if t == "q8_0" else traits[t].from_float_ref, x, n)
        rows = encode(cpu[avx[0]][t].from_float, x, n)
        if t == "iq4_nl":
            (ref, defined), (rows, _) = blank_undefined(ref, x), blank_undefined(rows, x)
            arrays["iq4_nl_defined"] = defined
        for v in variants:
            got = encode(cpu[v][t].from_float, x, n)
            got = blank_undefined(got, x)[0] if t == "iq4_nl" else got
            assert np.array_equal(got, ref if v in plain else rows), (v, t)
        arrays[f"{t}_rows"] = rows
        if t == "q8_0":
            arrays["q8_0_ref_rows"] = ref
            print("  q8_0: rows where x86 and reference differ:", int((rows != ref).any(1).sum()))
        else:
            assert np.array_equal(rows, ref), t
        arrays[f"{t}_dequant"] = decode(traits[t].to_float, rows)
        assert np.isfinite(arrays[f"{t}_dequant"]).all(), t
    return arrays
