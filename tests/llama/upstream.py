#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""llama.cpp's own tests of saved states, of threads and of states that are rolled back, unchanged, with the device: declared types and
a policy. Long form: saved states of every architecture that llama.cpp can write, and longer texts.
"""
import json
import re
import subprocess

import kit
from kit import expect

POLICIES = [None, "r8"]
# Hybrids, and DeepSeek V4 with its compressed rows: llama.cpp runs the test of rolled back states with these kinds.
ROLLED_BACK = ["nemotron_h-dense", "qwen3next-moe", "kimi-k3-moe", "deepseek4-moe"]


def host_test(program, args, policy, what, in_tiles=True):
    """One test: it passes, and the device had a cache, if it is one for tiles."""
    directory = kit.test_programs()
    env = kit.environment(True, {"QUIRE_KV": policy} if policy else None)
    try:
        done = subprocess.run([str(directory / program), *map(str, args)], env=env, timeout=600, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    except subprocess.TimeoutExpired:
        raise kit.Broken(f"no end after 600 s: {program} {what}") from None
    log = kit.folder() / f"{program}-{policy}-{re.sub('[^a-z0-9_-]', '-', what)}.log"
    log.write_text(done.stdout)
    said = [line for line in done.stdout.splitlines() if "fail" in line or line.startswith("quire: the ")]
    name = f"{program} {what}, {policy or 'declared types'}"
    expect(done.returncode == 0, name, f"exit status {done.returncode}: " + " | ".join(said[-4:]))
    if not in_tiles:
        return
    expect("quire: total: " in done.stdout if policy else "quire: declared types are used" in done.stdout,
           f"{name}: the device has the cache", str(log))


def saved_models():
    """A directory with all models that llama.cpp can write."""
    directory, models = kit.test_programs(), kit.folder() / "models"
    models.mkdir()
    listed = subprocess.run([str(directory / "matrix"), "--list"], env=kit.environment(False), stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True, check=True)
    for line in listed.stdout.splitlines():
        config = json.loads(line)
        # What llama.cpp writes of a Gemma4 it does not load.
        if not config["left_out"] and config["arch"] != "gemma4":
            subprocess.run([str(directory / "matrix"), "--save", str(models), config["name"]], env=kit.environment(False),
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return models


def run():
    smol = kit.model("smollm2-135m")
    directory = kit.test_programs()
    n = 8 if kit.quick else 32
    models = directory / "models" if kit.quick else saved_models()
    for policy in POLICIES:
        kit.part(host_test, "test-save-load-state", ["--models", models], policy, "small models")
        for path, what in [(smol, "SmolLM2")] + ([] if kit.quick else [(kit.model("gemma3-270m"), "Gemma3")]):
            kit.part(host_test, "test-save-load-state", ["-m", path, "-n", n, "-c", 512], policy, what)
            kit.part(host_test, "test-state-restore-fragmented", ["-m", path], policy, what)
        kit.part(host_test, "test-thread-safety",
                 ["-m", smol, "-ngl", 99, "-p", "The meaning of life is", "-n", n, "-c", 256, "-ub", 32, "-np", 4, "-t", 2], policy, "SmolLM2")
        for name in ROLLED_BACK:
            kit.part(host_test, "test-recurrent-state-rollback", ["-m", directory / "models" / f"{name}.gguf"], policy, name,
                     in_tiles=name != "deepseek4-moe")


kit.main(run)
