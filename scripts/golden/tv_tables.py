# SPDX-License-Identifier: MIT
"""Writes src/codec/tv_table.c, the tables of the tv codecs: tv_tables.py FILE. Run by scripts/make-golden."""
import sys

import numpy as np

import mlx_vlm_parts as parts

MOST = 127                                              # kernels multiply signed bytes


def cell_weights(codebook, d):
    """How often a coordinate of a random unit vector takes each entry."""
    edges = np.concatenate([[-1], (codebook[:-1] + codebook[1:]) / 2, [1]])
    x = np.linspace(-1, 1, 2_000_001)
    mass = np.concatenate([[0], np.cumsum((1 - x[1:] ** 2) ** ((d - 3) / 2))])
    return np.diff(np.interp(edges, x, mass)) / mass[-1]


def byte_table(codebook, d):
    """Bytes t and the float u with the least mean square of codebook - u t."""
    c = codebook.astype(np.float64)
    w = cell_weights(c, d)
    best = None
    for largest in np.arange(64 * 64, MOST * 64 + 32) / 64:
        t = np.rint(c * (largest / np.abs(c).max()))
        u = (w * c * t).sum() / (w * t * t).sum()
        error = (w * (c - u * t) ** 2).sum()
        if np.abs(t).max() <= MOST and (best is None or error < best[0] * (1 - 1e-9)):
            best = error, t.astype(int), np.float32(u)
    assert (np.diff(best[1]) > 0).all()
    return best[1], best[2]


def search_order(middles):
    """In the order in which a search by halves asks for them: one, then one of two, one of four, ..."""
    levels, step = [], len(middles) + 1
    while step > 1:
        levels.extend(middles[step // 2 - 1::step])
        step //= 2
    return levels


def lines(words, per_line):
    return ["".join(f" {word}," for word in words[i:i + per_line])[1:] for i in range(0, len(words), per_line)]


def number(x):
    text = f"{x:.9g}"
    return f"{text if '.' in text or 'e' in text else text + '.0'}f"


def signs_text(turboquant, d, side):
    minus = np.array(turboquant._rht_sign_vector(d, parts.SEEDS[side])) < 0
    bits = np.packbits(np.pad(minus, (0, -d % 64)), bitorder="little").view("<u8")
    return ["{"] + lines([f"0x{word:016x}u" for word in bits], 4) + ["},"]


def table_text(turboquant, d, bits):
    c = parts.codec(turboquant, d, bits, "K")
    t, unit = byte_table(np.array(c.codebook), d)
    middles = np.array(c._midpoints)
    assert (np.diff(middles) > 0).all()
    return (["{", f".unit = {number(unit)},", ".table = {"] + lines([str(x) for x in t], 16) +
            ["},", ".middle = {"] + lines([number(x) for x in search_order(middles)], 8) + ["},", "},"])


def text(turboquant):
    out = ["/* SPDX-License-Identifier: MIT */",
           "/* tv_table: what mlx-vlm 0.7.10 derives from a head size. Written by scripts/golden/tv_tables.py. */",
           '#include "codec/tv.h"', "", "/* clang-format off */", "",
           "/* K, V; head sizes 16, 32, ... 512. */",
           "const uint64_t quire_tv_minus[2][QUIRE_TV_SIZES][QUIRE_TV_MOST_D / 64] = {"]
    for side in parts.SEEDS:
        out.append("{")
        for d in parts.SIZES:
            out += signs_text(turboquant, d, side)
        out.append("},")
    out += ["};", "", "/* 2 to 6 bits; head sizes as above. */",
            "const quire_tv quire_tv_tables[QUIRE_TV_WIDTHS][QUIRE_TV_SIZES] = {"]
    for bits in parts.BITS:
        out.append("{")
        for d in parts.SIZES:
            out += table_text(turboquant, d, bits)
        out.append("},")
    return "\n".join(out + ["};", ""])


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="ascii") as f:
        f.write(text(parts.load()))
