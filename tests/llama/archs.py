#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every architecture that llama.cpp knows and can compute on the CPU, as a small model with random weights: with the device the
result is that of llama.cpp, twice the same, and `quire plan` says of its header what the device then does.

    tests/llama/archs.py --quick          QUIRE_KV=r8 for all, the other modes for some
    tests/llama/archs.py                  all modes for all
    tests/llama/archs.py --write          the same, and writes docs/models.md
    tests/llama/archs.py NAME...          all modes for these, as in `llama-dense deepseek2-moe`

A model is made and run by the program of scripts/get-llama-tests, one process for each model and mode, because a fault may end it.
"""
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import kit
from kit import ROOT, expect, note

PAGE = ROOT / "docs/models.md"
CONTEXT = 1024  # of matrix.cpp

# The types that the host is told, in the order in which they are tried: a latent cache has one type for K and V.
FLOAT, QUANTIZED = [("f16", "f16")], [("q8_0", "q4_0"), ("q8_0", "q8_0")]
# name: QUIRE_KV, types, the largest NMSE against llama.cpp on the CPU with the same types. llama.cpp's own test allows 1e-4 between
# its devices. Worst seen: 3.4e-6 with f16, 3.6e-6 with quantized types, 3.9e-5 with r8, 6.5e-3 with balanced (plamo2).
MODES = {
    "f16": (None, FLOAT, 1e-4),
    "quantized": (None, QUANTIZED, 1e-4),
    "r8": ("r8", FLOAT, 1e-4),
    "balanced": ("balanced", FLOAT, 2e-2),
}
# Of these all modes in the short form: every kind of cache that llama.cpp has, and where r8 and balanced were worst.
SOME = """llama-dense qwen3-dense phi3-dense gemma3-dense gemma3n-dense gemma4-dense gpt-oss-moe llama4-moe deepseek2-moe
deepseek32-moe deepseek4-moe glm-dsa-moe dots3note-moe minimax-m3-moe qwen4exp-moe qwen3next-moe falcon-h1-dense nemotron_h-dense
plamo2-dense lfm2-dense grok-moe t5-dense hrm_text-dense""".split()

KINDS = {"tiles": "in tiles", "partly": "partly in tiles", "plain": "as without Quire", "none": "no KV cache"}


# --- running -------------------------------------------------------------------------------------

class Result:
    """Of one model in one mode. `left_out`: why the host does not run it; `wrong`: what is wrong, or None."""

    def __init__(self, name, mode, row, log):
        self.name, self.mode, self.row, self.log = name, mode, row, log
        self.left_out = self.wrong = None
        status = row["status"]
        if status in ("refused", "stock-failed"):
            self.left_out = "the host refuses it: " + (self.host_error() or status)
        elif status != "ran":
            self.wrong = f"{status}; {self.last_line()}"
        elif not row["same"]:
            self.wrong = "not the same twice"
        elif not row["nmse"] <= MODES[mode][2]:
            self.wrong = f"NMSE {row['nmse']:.1e} is above {MODES[mode][2]:.0e}"

    def host_error(self):
        lines = [line for line in self.log.splitlines() if line.startswith(("llama_", "GGML_ASSERT")) or "GGML_ASSERT" in line]
        return re.sub(r"^.*?(\w+: )", "", lines[-1]) if lines else ""

    def last_line(self):
        lines = [line for line in self.log.splitlines() if line.startswith("quire: ") and ", ggml " not in line]
        return lines[-1] if lines else self.log.strip()[-200:]

    def kind(self):
        """What the device did: tiles, partly, plain or none; None if nothing can be said."""
        if self.left_out or "f16_bytes" not in self.row:
            return None
        if not self.row["caches"]:
            return "none"
        if not self.row["tiles"] or not self.row["f16_bytes"]:
            return "plain"
        # What the rows of all tokens would take in f16, if all of them were in tiles.
        n_tokens = 128
        return "tiles" if self.row["f16_bytes"] >= sum(c["row"] for c in self.row["caches"]) * 2 * n_tokens else "partly"


def run_one(directory, name, mode):
    policy, pairs, _ = MODES[mode]
    env = kit.environment(True, {"QUIRE_KV": policy} if policy else None)
    for k, v in pairs:
        try:
            done = subprocess.run([str(directory / "matrix"), name, k, v], env=env, timeout=120, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
            out, err, code = done.stdout, done.stderr, done.returncode
        except subprocess.TimeoutExpired:
            out, err, code = "", "", "no end after 120 s"
        try:
            row = json.loads(out)
        except ValueError:  # it ended in the middle; before it names the caches, it has not used the device
            row = {"name": name, "status": f"ended with {code}" if '"caches"' in out or not out else "stock-failed"}
        if row["status"] != "refused":
            break
    return Result(name, mode, row, err)


def run_all(directory, wanted):
    """{(name, mode): Result}, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda pair: run_one(directory, *pair), wanted)
        return dict(zip(wanted, results))


def plans(directory, names):
    """What `quire plan` says of the header of each model."""
    tool = kit.tool()
    found = {}
    for name in names:
        done = subprocess.run([tool, "plan", "--json", "--ctx", str(CONTEXT), str(directory / "headers" / f"{name}.gguf")],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode == 0:
            found[name] = json.loads(done.stdout)
        elif "without a KV cache" in done.stderr:
            found[name] = {"cache": "none", "cache_note": done.stderr.strip().rpartition("without a KV cache: ")[2]}
        else:
            raise kit.Broken(f"quire plan fails with the header of {name}: {done.stderr}")
    return found


# --- checks --------------------------------------------------------------------------------------

def check_plan(result, plan):
    """The kind, the size of the cache in f16 as the host has it, and the memory of the device under r8."""
    kind, row = result.kind(), result.row
    if kind is None or MODES[result.mode][1] != FLOAT:  # quantized V makes the host keep flash attention on
        return []
    if kind != plan["cache"]:
        return [f"quire plan says that the cache is {KINDS[plan['cache']]}, but it is {KINDS[kind]} (tools/llama/arch.c)"]
    if kind == "none":
        return []
    sizes = {p["policy"]: p["kv_bytes"] for p in plan["policies"]}
    wrong = []
    if abs(sizes["f16"] / 2**20 - row["host_mib"]) > 0.031:  # the host prints two digits for each of up to five caches
        wrong.append(f"quire plan says {sizes['f16'] / 2**20:.2f} MiB in f16, and llama.cpp has {row['host_mib']:.2f}")
    # Tiles begin at pages of the system, and each buffer has its own.
    if result.mode == "r8" and kind == "tiles" and not sizes["safe"] <= row["reserved"] <= sizes["safe"] * 1.01 + 8192:
        wrong.append(f"quire plan says {sizes['safe']:.0f} bytes in r8, and the device has {row['reserved']}")
    if result.mode == "r8" and kind == "partly" and not row["reserved"] < sizes["safe"] < row["reserved"] + row["host_mib"] * 2**20:
        wrong.append(f"quire plan says {sizes['safe']:.0f} bytes in r8, the device has {row['reserved']}, and not all of it")
    return wrong


def check(name, results, plan):
    wrong = [f"{r.mode}: {r.wrong}" for r in results if r.wrong]
    for r in results:
        wrong += [f"{r.mode}: {w}" for w in check_plan(r, plan)]
    figures = ", ".join(f"{r.mode} {r.row['nmse']:.1e}" for r in results if "nmse" in r.row)
    left_out = "".join(f"; {r.mode} left out, {r.left_out}" for r in results if r.left_out)
    expect(not wrong, f"{name}: {KINDS[plan['cache']]}, NMSE {figures or 'none'}{left_out}", "; ".join(dict.fromkeys(wrong)))
    return not wrong


# --- the page ------------------------------------------------------------------------------------

HEAD = """# Architectures

What Quire's device does with the cache of each architecture that llama.cpp {version} knows. `tests/llama/archs.py --write` makes this
page: it computes 128 tokens with a small model of each architecture, whose weights are random, once on the CPU by llama.cpp alone and twice with
the device, and compares all logits. `quire plan model.gguf` says the same of a model file, [of which the beginning is enough](operator.md#what-fits).

- *in tiles*: all of the cache is Quire's. *partly in tiles*: a part is stored as without Quire, for the reason given. *as without Quire*: the model runs, and nothing is
  gained.
- The figures are normalized mean squared errors against llama.cpp with the same declared types: `f16`, `q8_0` for K and `q4_0` for V (a latent cache has
  `q8_0` for both), then the policies `r8` and `balanced` against `f16`. Random weights exaggerate the cost of few bits, so they tell a fault from rounding and not how good
  a policy is; that is in [fidelity.md](fidelity.md). Allowed are 1e-4, and 2e-2 for `balanced`. The last digits depend on the machine.
- *-*: llama.cpp refuses the types for this architecture or fails by itself.

{counts}

| architecture | cache | f16 | q8_0/q4_0 | r8 | balanced | note |
|---|---|---|---|---|---|---|
"""
LEFT_OUT = """
## Not tried

llama.cpp's own test of all architectures leaves these out:

| architectures | why |
|---|---|
{rows}
"""


def figure(results, mode):
    values = [r.row["nmse"] for r in results if r.mode == mode and "nmse" in r.row]
    return "-" if not values else f"{max(values):.0e}" if max(values) else "0"


def page(configs, results, planned):
    by_arch, left_out = {}, {}
    for c in configs:
        if c["left_out"]:
            left_out.setdefault(c["left_out"], set()).add(c["arch"])
        else:
            by_arch.setdefault(c["arch"], []).append(c["name"])
    rows, kinds = [], []
    for arch, names in sorted(by_arch.items()):
        mine = [r for r in results.values() if r.name in names]
        plan = planned[names[0]]
        kinds.append(plan["cache"])
        figures = [figure(mine, mode) for mode in MODES]
        rows.append(f"| {arch} | {KINDS[plan['cache']]} | {' | '.join(figures)} | {plan.get('cache_note', '')} |")
    counts = ", ".join(f"{kinds.count(k)} {words}" for k, words in KINDS.items())
    version = re.search(r"npm_version=(\S+)", (ROOT / "scripts/get-llama-lib").read_text())[1]
    return (HEAD.format(version=f"0.5.0 (from node-llama-cpp {version})", counts=f"{len(rows)} architectures: {counts}.") + "\n".join(rows) + "\n" +
            LEFT_OUT.format(rows="\n".join(f"| {', '.join(sorted(archs))} | {why} |" for why, archs in sorted(left_out.items()))))


def check_page(planned):
    """The committed page agrees in kind; its figures are those of the machine that made it."""
    text = PAGE.read_text() if PAGE.exists() else ""
    said = dict(re.findall(r"^\| (\S+) \| ([^|]+) \|", text, re.M))
    words = {re.sub(r"-(dense|moe)$", "", name): KINDS[plan["cache"]] for name, plan in planned.items()}
    wrong = [f"{arch}: {said.get(arch)}, but it is {kind}" for arch, kind in words.items() if said.get(arch) != kind]
    expect(not wrong, f"docs/models.md agrees with {len(words)} architectures", "; ".join(wrong[:5]) + "; make it with tests/llama/archs.py --write")


# --- main ----------------------------------------------------------------------------------------

wanted_names = [a for a in sys.argv[1:] if not a.startswith("-")]
writes = "--write" in sys.argv[1:]
sys.argv = [sys.argv[0]] + [a for a in sys.argv[1:] if a.startswith("-") and a != "--write"]


def run():
    directory = kit.test_programs()
    listed = subprocess.run([str(directory / "matrix"), "--list"], env=kit.environment(False), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, check=True)
    configs = [json.loads(line) for line in listed.stdout.splitlines()]
    names = [c["name"] for c in configs if not c["left_out"]]
    expect(set(wanted_names + SOME) <= set(names), "the models that are named here exist", f"{sorted(set(wanted_names + SOME) - set(names))}")
    if wanted_names:
        names = [n for n in names if n in wanted_names]
    planned = plans(directory, names)
    wanted = [(n, m) for n in names for m in MODES if not kit.quick or m == "r8" or n in SOME]
    results = run_all(directory, wanted)
    good = [check(n, [r for r in results.values() if r.name == n], planned[n]) for n in names]
    for mode in MODES:
        ran = [r for r in results.values() if r.mode == mode and "nmse" in r.row]
        if ran:
            worst = max(ran, key=lambda r: r.row["nmse"])
            note(f"{mode}: {len(ran)} models, worst {worst.row['nmse']:.1e} ({worst.name})")
    if wanted_names:
        return
    expect(len(names) >= 130 and len(configs) >= 159, f"{len(names)} models of {len({c['arch'] for c in configs})} architectures")
    if writes and all(good):
        PAGE.write_text(page(configs, results, planned))
    check_page(planned)


kit.main(run)
