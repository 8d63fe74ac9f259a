#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Two llama-servers share prompts through the store (scripts/share-slots): stock types, V transposed, and the device. The rows that
come back are those that were stored, bit for bit."""
import importlib.machinery
import importlib.util
import tempfile

import kit
from kit import expect
from slotfile import SlotFile

loader = importlib.machinery.SourceFileLoader("share_slots", str(kit.ROOT / "scripts" / "share-slots"))
share_slots = importlib.util.module_from_spec(importlib.util.spec_from_loader("share_slots", loader))
loader.exec_module(share_slots)

CASES = [("f16", [], None), ("q8_0 and q4_0", ["-ctk", "q8_0", "-ctv", "q4_0"], None), ("V transposed", ["-fa", "off"], None),
         ("device r8/r4", [], "r8/r4")]


def rows_equal(files, n):
    """Whether the first n rows of every layer and side are equal in two slot files."""
    slots = []
    for data in files:
        with tempfile.NamedTemporaryFile(dir=kit.folder()) as f:
            f.write(data)
            f.flush()
            slots.append(SlotFile(f.name))
    a, b = slots
    pairs = list(zip(a.rows, b.rows))
    return bool(pairs) and len(a.rows) == len(b.rows) and all(
        x.type == y.type and x.row_bytes == y.row_bytes and
        a.data[x.offset:x.offset + n * x.row_bytes] == b.data[y.offset:y.offset + n * y.row_bytes] for x, y in pairs)


def case(name, types, policy):
    place = ["--dir", tempfile.mkdtemp(dir=kit.folder(), prefix="pages-"), "--cap", "256M"]
    n = 700 if kit.quick else 2000
    r = share_slots.share(kit.model("smollm2-135m"), n, types, policy, place)
    whole = n // 64 * 64
    expect(r["loaded"] == whole, f"{name}: {whole} of {n} tokens came back", f"{r['loaded']}")
    expect(r["cached"] >= whole - 1, f"{name}: they were not computed again", f"{r['cached']} of {n}")
    if "-fa" not in types:  # transposed V has no rows to compare; the text must do
        expect(rows_equal(r["files"], whole), f"{name}: rows are equal bit for bit")
    expect(kit.tie(*r["answers"]), f"{name}: the text goes on as without the store", f"{[a.text for a in r['answers']]}")
    expect(r["shared_ms"] < 0.7 * r["alone_ms"], f"{name}: the first token comes sooner",
           f"{r['alone_ms']:.0f} ms alone, {r['shared_ms']:.0f} ms shared")
    kit.note(f"first token after {r['alone_ms']:.0f} ms alone, {r['shared_ms']:.0f} ms shared; slot of {r['slot_mb']:.1f} MB")


def run():
    for one in CASES[:2] + CASES[3:] if kit.quick else CASES:
        kit.part(case, *one)


kit.main(run)
