# SPDX-License-Identifier: MIT
"""Writes the golden files: main.py OUTDIR. Run by scripts/make-golden, which sets things up."""
import importlib
import os
import sys

import goldfile

FILES = ("affine", "ggml", "attend", "ring", "batch", "row", "tv")


def main(out):
    os.makedirs(out, exist_ok=True)
    for name in FILES:
        path = os.path.join(out, f"{name}.gold")
        goldfile.write(path, importlib.import_module(name).make())
        print(f"{name}.gold {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
