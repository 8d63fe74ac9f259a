#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Rows with NaN in one slot: the other slots of a unified cache share tiles with them and must not notice."""
import struct

import kit
from kit import expect, note
from slotfile import SlotFile

NAN = {"f16": struct.pack("<H", 0x7E00), "bf16": struct.pack("<H", 0x7FC0)}
INFINITY = {"f16": struct.pack("<H", 0x7C00), "bf16": struct.pack("<H", 0x7F80)}


def poison(file, kind):
    """Every row of K and V: all values, or the scale of every block."""
    for rows in file.rows:
        n = rows.n * rows.row_bytes
        if kind in NAN:
            half = n // 4 * 2
            file.data[rows.offset:rows.end] = NAN[kind] * (half // 2) + INFINITY[kind] * ((n - half) // 2)
        else:  # q8_0: blocks of 34 bytes that begin with the scale
            for i, byte in enumerate(NAN["f16"]):
                file.data[rows.offset + i:rows.end:34] = bytes([byte]) * (n // 34)


def neighbours(path, kind, policy):
    """The same requests beside a slot with a clean and with a poisoned file: not a bit of an answer may differ."""
    env = {"QUIRE_KV": policy} if policy else None
    name = f"{kind}" + (f", {policy}" if policy else "")
    args = ["-c", 2048, "-np", 4, "-kvu", "--cache-ram", 0, "-ctk", kind, "-ctv", kind]
    n, poisonous = 12 if kit.quick else 48, kit.text(5000, 330)
    with kit.Server(path, *args, plugin=False) as s:
        s.completion(poisonous, 4, slot=0)
        clean = s.save(0, "clean")
        file = SlotFile(clean)
        poison(file, kind)
        file.write(s.slots / "poisoned")
        slots = s.slots
    answers = {}
    for which in ("clean", "poisoned"):
        with kit.Server(path, *args, env=env, slots=slots) as s:
            call = dict(n=n, n_probs=3, ignore_eos=True)
            got = [s.completion(kit.PROMPTS[1], slot=1, **call)]       # cells before those of slot 0
            s.restore(0, which)
            if which == "poisoned":
                kept = SlotFile(s.save(0, "kept"))
                note(f"{name}: NaN rows come out " + ("as they went in" if kept.data == file.data else
                                                      "as something else: they are not stored"))
            s.completion(poisonous, 8, slot=0, ignore_eos=True)                  # stores what it computes from them
            begin = kit.PROMPTS[1] + got[0].text
            got.append(s.completion(begin, slot=1, **call))                      # goes on behind them
            got.append(s.completion(kit.PROMPTS[3], slot=2, **call))             # begins behind them
            got.append(s.completion(kit.text(60000, 700), slot=3, **call))       # many queries at once
            s.erase(0)
            got.append(s.completion(kit.text(70000, 600), slot=0, **call))       # takes over their cells
            s.restore(0, which)
            got += s.together([dict(prompt=kit.PROMPTS[5], slot=2, **call),
                               dict(prompt=kit.text(60000, 500), slot=3, **call)])
            answers[which] = got
    parts = ["before", "goes on", "begins", "long prompt", "in the same cells", "short of two at once",
             "long of two at once"]
    for what, a, b in zip(parts, answers["clean"], answers["poisoned"]):
        # Cells of two at once lie as their requests came in, so these are rounded in another order each time.
        same = kit.tie(a, b) if "at once" in what else (a.tokens, a.probs) == (b.tokens, b.probs)
        expect(same, f"{name}: beside NaN as beside a clean slot, {what}",
               f"{a.text!r} and {b.text!r}, {a.probs[:1]} and {b.probs[:1]}")


def run():
    smol = kit.model("smollm2-135m")
    kit.part(neighbours, smol, "f16", None)
    kit.part(neighbours, smol, "q8_0", None)
    if not kit.quick:
        kit.part(neighbours, smol, "f16", "r5/r4")
        kit.part(neighbours, smol, "bf16", None)


kit.main(run)
