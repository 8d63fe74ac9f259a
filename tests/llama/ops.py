#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""llama.cpp's own test of ops on the device: SET_ROWS and FLASH_ATTN_EXT. Full form: the whole list (half an hour)."""
import re

import kit
from kit import expect, part


def ops(op, pattern, least):
    args = ["test", "-b", "QUIRE0", "-o", op] + (["-p", pattern] if pattern else [])
    done = kit.run("test-backend-ops", args, timeout=7200, check=False)
    passed = re.search(r"(\d+)/(\d+) tests passed", done.out + done.err)
    n = int(passed[1]) if passed else 0
    bad = [line for line in done.out.split("\n") if "FAIL" in line]
    expect(done.code == 0 and n >= least and passed[1] == passed[2], f"{op} {pattern or 'all'}: {n} cases pass",
           "\n".join(bad[:5]) or done.err[-800:])


def run():
    part(ops, "SET_ROWS", None, 200)
    if kit.quick:
        for sizes in (r"hsk=(40|72|80),hsv=\d+.*kv=113,nb=(1|3)", r"hsk=64,hsv=64.*kv=113,nb=3,",
                      r"hsk=128,hsv=128.*kv=512,nb=1,", r"hsk=(192|320|576),.*kv=113,nb=3"):
            part(ops, "FLASH_ATTN_EXT", sizes, 20)
    else:
        part(ops, "FLASH_ATTN_EXT", None, 3000)


kit.main(run)
