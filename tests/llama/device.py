#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""quire_llama_device against the libraries of the host built from source: for builds with sanitizers."""
import os
import subprocess

import kit
from kit import expect


def run():
    program = os.environ["QUIRE_LLAMA_DEVICE"]
    env = {**kit.environment(False), "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}
    for policies in ([], ["r5/r4"]):
        done = subprocess.run([program, str(kit.programs()), str(kit.plugin()), *policies], env=env,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        expect(done.returncode == 0, f"device test, {policies or 'declared types'}", done.stdout[-3000:])


kit.main(run)
