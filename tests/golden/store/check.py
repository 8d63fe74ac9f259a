#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The keys of keys_v1.txt computed anew from docs/formats/store.md, with Python's hashlib. Roots of plans need the plan's
fingerprint and are left to store_format."""
import hashlib
import hmac
import struct
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SECRET = bytes(range(1, 17)) + bytes(16)


def field(tag, data):
    return struct.pack("<IQ", tag, len(data)) + data


def u32(*values):
    return struct.pack(f"<{len(values)}I", *values)


def raw_root(weights="w", tokenizer="t", adapter="", scale=0.0):
    fields = [(1, u32(1)), (2, SECRET), (3, weights.encode()), (4, tokenizer.encode()), (5, adapter.encode()),
              (6, struct.pack("<d", scale)), (7, b"base=10000"), (8, u32(64)), (12, b"rows"),
              (13, struct.pack("<Q", 1000)), (14, b"")]
    return hashlib.sha256(b"".join(field(t, d) for t, d in fields)).digest()


def keys():
    roots = [raw_root(), raw_root("wt", "t"), raw_root("w", "tt"), raw_root(adapter="a", scale=0.75)]
    found = {f"raw-root-{i}": r for i, r in enumerate(roots)}
    parent = roots[0]
    for page in range(3):
        tokens = [i * i for i in range(64 * page, 64 * page + 64)]
        tail = b""
        if page == 2:
            tokens[130 - 128] = 0xffffffff
            tail = u32(1, 130 - 128) + b"\xab" * 32
        parent = hashlib.sha256(parent + u32(64, *tokens) + tail).digest()
        found[f"page-{page}"] = parent
        found[f"object-{page}"] = hashlib.sha256(parent + u32(1)).digest()
    extracted = hmac.new(roots[0], SECRET, hashlib.sha256).digest()
    found["seal-key"] = hmac.new(extracted, b"quire seal 1\x01", hashlib.sha256).digest()
    return found


found, wrong = keys(), 0
frozen = dict(line.split() for line in (HERE / "keys_v1.txt").read_text().splitlines())
for name, key in found.items():
    if frozen.get(name) != key.hex():
        print(f"{name}: {key.hex()}, frozen {frozen.get(name)}")
        wrong += 1
print(f"{len(found)} keys computed, {wrong} differ")
sys.exit(wrong != 0)
