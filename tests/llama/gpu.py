#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Beside a GPU: quire run gives Quire the layers that stay on the CPU, and no layer moves.

The GPU is Mesa's Vulkan driver for the processor (scripts/get-llama --vulkan): results and memory are those of a real
device, times are not.
"""
import json
import os
import re
import shlex
import subprocess

import kit
from kit import Broken, expect, part

SURE = "1, 2, 3, 4, 5, 6,"  # every token is twenty times as likely as the next one: the text must be the same
PROMPT = "The capital of France is"
LAYERS = 30  # of SmolLM2; -ngl counts the output as one more
HALF = 16
TOKEN = 396  # bytes of a token in one layer of SmolLM2 in r8; 768 in f16

# Largest difference of a log-probability, of tokens that two answers share. 0.17 was seen, with all layers on the CPU.
DRIFT = 0.3

_plain = {}  # logs of servers without Quire, by -ngl


def tool():
    return os.environ.get("QUIRE_TOOL") or str(kit.ROOT / "build/release/bin/quire")


def environment(**more):
    return {**kit.environment(False), "QUIRE_PLUGIN": str(kit.plugin()), **more}


def run(command, env=None):
    done = subprocess.run([str(c) for c in command], env=env or kit.environment(False), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", timeout=300)
    if done.returncode:
        raise Broken(f"exit status {done.returncode}: {' '.join(map(str, command))}\n{done.stderr[-1500:]}")
    return done


def runtime():
    """Where the device keeps its counters."""
    place = kit.folder() / "runtime"
    place.mkdir(exist_ok=True)
    return str(place)


def host(policy):
    """A folder with a llama-server that is started by quire run."""
    folder = kit.folder() / f"host-{policy}"
    if not folder.exists():
        folder.mkdir()
        variables = {"QUIRE_PLUGIN": str(kit.plugin()), "QUIRE_LOG": "1", "XDG_RUNTIME_DIR": runtime()}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        command = shlex.join([tool(), "run", "--json", "--kv", policy, "--", str(kit.programs() / "llama-server")])
        (folder / "llama-server").write_text("\n".join(["#!/bin/sh", *lines, f'exec {command} "$@"', ""]))
        (folder / "llama-server").chmod(0o755)
    return folder


def server(model, *args, policy=None):
    return kit.Server(kit.model(model), "-c", 512, "-np", 1, *args, plugin=False, host=host(policy) if policy else None)


def answers(s):
    return s.completion(SURE, 6), s.completion(PROMPT, 6, n_probs=5)


def buffers(log, kind):
    """MiB by the name of the buffer; those of the CPU and of Quire together as "host"."""
    sizes = {}
    for name, size in re.findall(rf"(\S+) {kind} buffer size = +([0-9.]+) MiB", log):
        name = name if name.startswith("Vulkan") and not name.endswith("_Host") else "host"
        sizes[name] = round(sizes.get(name, 0) + float(size), 2)
    return {name: size for name, size in sizes.items() if size}


def quire_kv(log):
    return sum(float(size) for size in re.findall(r"QUIRE\S* KV buffer size = +([0-9.]+) MiB", log))


def said(log):
    """What quire run printed."""
    return json.loads(next(line for line in log.split("\n") if line.startswith('{"policy"')))


def same_place(model, ngl, own):
    """Declared types: text, weights and cache as without Quire; the cache of the layers on the CPU is Quire's."""
    name = f"{model}, -ngl {ngl}"
    with server(model, "-ngl", ngl) as s:
        plain, log = answers(s), s.log()
    with server(model, "-ngl", ngl, policy="declared") as s:
        ours, our_log = answers(s), s.log()
    _plain[ngl] = log
    expect(plain[0].text == ours[0].text and kit.tie(plain[1], ours[1]), f"{name}: the text of an f16 cache without Quire",
           f"{plain[0].text!r} {ours[0].text!r}, {plain[1].text!r} {ours[1].text!r}")
    worst, _ = kit.drift(plain[1], ours[1])
    kit.note(f"log-probabilities differ by up to {worst:.3f}")
    expect(worst <= DRIFT, f"{name}: log-probabilities differ by at most {DRIFT}", worst)
    for kind in ("model", "KV"):
        expect(buffers(log, kind) == buffers(our_log, kind) and buffers(log, kind), f"{name}: {kind} buffers {buffers(log, kind)}",
               f"{buffers(our_log, kind)} with Quire")
    expect(bool(own) == (quire_kv(our_log) > 0) and abs(quire_kv(our_log) - buffers(log, "KV").get("host", 0)) < 0.01,
           f"{name}: {quire_kv(our_log)} MiB of the cache are Quire's", our_log[:800])
    found = re.search(r"declared types are used unchanged: K f16 V f16, (\d+) layers", our_log)
    expect((int(found[1]) if found else 0) == own, f"{name}: {own} layers are Quire's", our_log[:800])


def counts(log, own):
    expect(f"full attention, {own} layers, {own * 64 * TOKEN} bytes/page" in log and f"total: {own * TOKEN} bytes/token, 51.6% of f16" in log,
           f"the log counts {own} layers", log[-1500:])


def by_hand(model):
    """Arguments that name the device are left alone."""
    with server(model, "-dev", "Vulkan0,QUIRE0", "-ts", "1,1", policy="r8") as s:
        answer = s.completion(SURE, 4)
        expect(answer.text.startswith(" 7, "), "by hand, r8: the text goes on", repr(answer.text))
        counts(s.log(), 14)


def with_policy(model):
    """Memory and states with half of the layers on the GPU."""
    own = LAYERS + 1 - HALF
    with server(model, "-ngl", HALF, policy="r8") as s:
        first = s.completion(PROMPT, 6)
        before = s.save(0, "before")
        s.erase(0)
        s.restore(0, "before")
        after = s.save(0, "after")
        expect(kit.same_files(before, after), "save, erase, restore, save gives the same file", kit.difference(before, after))
        again = s.completion(PROMPT + first.text, 4)
        s.erase(0)
        fresh = s.completion(PROMPT + first.text, 4)
        expect(again.n_cached > 4 and again.text == fresh.text and kit.sane(first.text + again.text),
               "a restored state goes on with the same text", f"{first.text!r} {again.text!r} {fresh.text!r}")
        counts(s.log(), own)
        told = said(s.log())
        (p,) = json.loads(run([tool(), "stat", "--json", s.process.pid], environment(XDG_RUNTIME_DIR=runtime())).stdout)["policies"]
        expect(told["layers"] == own and told["gpu_layers"] == LAYERS - own and told["bytes"] == 512 * own * TOKEN,
               f"the plan is for {own} layers", told)
        expect(p["bytes"] == (p["tokens"] + 63) // 64 * 64 * own * TOKEN and p["f16_bytes"] == p["tokens"] * own * 768 and
               p["bytes"] <= told["bytes"], f"quire stat counts {own} layers", p)
        pages = s.resident_kv()
        expect(p["bytes"] <= pages <= p["bytes"] + 65536, "the memory is what was planned", f"{pages} {p}")


def planned(model):
    """quire plan --vram against the sizes that the host prints."""
    for mib in range(400, 600):
        found = json.loads(run([tool(), "plan", "--json", "--ctx", 512, "--vram", f"{mib}M", kit.model(model)]).stdout)
        if found["gpu"]["ngl"] == HALF:
            break
    gpu = {k: v / 2**20 for k, v in found["gpu"].items() if k.endswith("_bytes")}
    made = {kind: buffers(_plain[HALF], kind)["Vulkan0"] for kind in ("model", "KV", "compute")}
    expect(found["gpu"]["ngl"] == HALF and abs(gpu["weights_bytes"] - made["model"]) < 0.1 and abs(gpu["kv_bytes"] - made["KV"]) < 0.01,
           f"quire plan --vram {mib}M: weights and cache are those that the host makes", f"{gpu} {made}")
    expect(made["compute"] < gpu["reserve_bytes"], f"its reserve of {gpu['reserve_bytes']:.0f} MiB holds the {made['compute']} MiB that the host takes",
           f"{gpu} {made}")
    line = shlex.split(found["command"])
    expect(line[-2:] == ["-ngl", str(HALF)] and line[:2] == ["quire", "run"], "the line to type has -ngl", found["command"])


def untouched(model):
    """Where Quire gets nothing it says why, and nothing changes."""
    program = kit.programs() / "llama-completion"
    cases = {"without -ngl": ["-c", "512"], "-nkvo": ["-ngl", "16", "-nkvo"], "-sm row": ["-ngl", "16", "-sm", "row"]}
    for why, more in cases.items():
        done = run([tool(), "run", "--env", "--", program, "-m", kit.model(model), *more], environment())
        expect(f"nothing is saved, because {why}" in done.stderr and "LLAMA_ARG" not in done.stdout, f"{why}: one sentence", done.stderr)
    done = run([tool(), "run", "--env", "--", program, "-m", kit.model(model), "-c", "512"], environment(LLAMA_ARG_N_GPU_LAYERS="16"))
    expect("LLAMA_ARG_DEVICE=QUIRE0,Vulkan0\nLLAMA_ARG_N_GPU_LAYERS=999\nLLAMA_ARG_TENSOR_SPLIT=15,16\n" in done.stdout,
           "--env prints the arrangement as variables", done.stdout + done.stderr)


def main():
    smol = "smollm2-135m"
    for ngl in (0, 1, HALF, 99):
        part(same_place, smol, ngl, LAYERS if ngl < 2 else max(LAYERS + 1 - ngl, 0))
    for step in (by_hand, with_policy, planned, untouched):
        part(step, smol)


if "QUIRE_LLAMA_BIN" not in os.environ:
    made = subprocess.run([str(kit.ROOT / "scripts/get-llama"), "--vulkan"], stdout=subprocess.PIPE, text=True)
    if made.returncode:
        kit.skip("scripts/get-llama --vulkan gave nothing")
    os.environ["QUIRE_LLAMA_BIN"] = made.stdout.strip().split("\n")[-1]
kit.main(main)
