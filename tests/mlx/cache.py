#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""quire cache with the real mlx-lm 0.31.3 and 0.32.2: files of each are shown, converted, loaded again by each, attended to.

Prints one line per check; exit status 77 if one of them cannot be had (scripts/get-mlx-lm). Environment: QUIRE_TOOL,
QUIRE_MLX_ATTEND, the programs.
"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TOOL = os.environ.get("QUIRE_TOOL") or str(ROOT / "build/release/bin/quire")
ATTEND = os.environ.get("QUIRE_MLX_ATTEND") or str(ROOT / "build/release/bin/quire_mlx_attend")
VERSIONS = {"a": "0.31.3", "b": "0.32.2"}
failed = 0


def expect(right, what, detail=""):
    global failed
    failed += not right
    print(f"ok {what}" if right else f"FAILED {what}: {detail}", flush=True)
    return right


def python(version):
    done = subprocess.run([str(ROOT / "scripts/get-mlx-lm"), version], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"skipped: no mlx-lm {version}")
        sys.exit(77)
    return done.stdout.strip()


def quire(*args):
    return subprocess.run([TOOL, "cache", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def loads(layout, file, original, *how):
    """Whether the real mlx-lm of that layout finds in a file what it should."""
    done = subprocess.run([pythons[layout], str(HERE / "check.py"), str(file), str(original), *map(str, how)],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode == 0 and done.stdout.strip().endswith("ok"), done.stdout[-800:]


def convert(layout, name, *args):
    out = folder / "out.safetensors"
    out.unlink(missing_ok=True)
    done = quire("convert", *args, "--out", out, folder / layout / f"{name}.safetensors")
    return out if done.returncode == 0 else None, done.stderr


def check(what, layout, name, to_layout, args, *how):
    out, why = convert(layout, name, *args, "--layout", to_layout)
    right, detail = loads(to_layout, out, folder / layout / f"{name}.npz", *how) if out else (False, why)
    expect(right, what, detail)


def show(layout):
    expected = {"plain": ("KVCache", 321, "f16", "f16"), "bf16": ("KVCache", 33, "bf16", "bf16"), "trimmed": ("KVCache", 65, "f16", "f16"),
                "q4g64": ("QuantizedKVCache", 81, "a4g64", "a4g64"), "q8g32": ("QuantizedKVCache", 81, "a8g32", "a8g32"),
                "ring": ("RotatingKVCache", 32, "f16", "f16"), "ring_young": ("RotatingKVCache", 21, "f16", "f16")}
    for name, (kind, tokens, k, v) in expected.items():
        done = quire("show", "--json", folder / layout / f"{name}.safetensors")
        found = json.loads(done.stdout or "{}")
        layer = found.get("layers", [{}])[-1]
        expect(found.get("layout") == layout and (layer.get("class"), layer.get("tokens"), layer.get("k"), layer.get("v")) ==
               (kind, tokens, k, v), f"show: {name}, layout {layout}", done.stdout[:300] + done.stderr)


def same_codecs(layout):
    other = "b" if layout == "a" else "a"
    for name in ("plain", "wide_v", "bf16", "f32", "trimmed", "q4g64", "q8g32", "q4bf16", "ring", "ring_young", "mixed"):
        for to in (layout, other):
            check(f"{name} of {VERSIONS[layout]} in layout {to} is the same to mlx-lm {VERSIONS[to]}", layout, name, to, [], "exact")


def other_codecs(layout):
    for to in VERSIONS:
        for codec, group, bits in (("a4g64", 64, 4), ("a8g32", 32, 8), ("a2g64", 64, 2)):
            check(f"plain of {VERSIONS[layout]} as {codec} for {VERSIONS[to]}: the bits that mlx makes", layout, "plain", to,
                  ["--to", codec], "quantized", group, bits)
        check(f"q4g64 of {VERSIONS[layout]} as f16 for {VERSIONS[to]}", layout, "q4g64", to, ["--to", "f16"], 5e-4)
        check(f"q8g32 of {VERSIONS[layout]} as a8g64 for {VERSIONS[to]}", layout, "q8g32", to, ["--to", "a8g64"], 1e-2)
        check(f"ring of {VERSIONS[layout]} as bf16 for {VERSIONS[to]}", layout, "ring", to, ["--to", "bf16"], 4e-3)


def split_bits(layout):
    """Five fields; no mlx-lm of these versions reads them, so they come back as floats."""
    split = folder / "split.safetensors"
    done = quire("convert", "--to", "a8g64/a4g64", "--layout", "a", "--out", split, folder / layout / "plain.safetensors")
    shown = json.loads(quire("show", "--json", split).stdout or "{}")
    layer = shown.get("layers", [{}])[0]
    expect((layer.get("k"), layer.get("v")) == ("a8g64", "a4g64"), f"different bits are written and read, from layout {layout}", done.stderr)
    out = folder / "out.safetensors"
    quire("convert", "--to", "f16", "--layout", layout, "--out", out, split)
    right, detail = loads(layout, out, folder / layout / "plain.npz", 0.1)
    expect(right, "and come back as floats", detail)
    done = quire("convert", "--to", "a8g64/a4g64", "--layout", "b", "--out", out, folder / layout / "plain.safetensors")
    expect(done.returncode == 1 and "layout b cannot store different bits" in done.stderr, "layout b has no form for them", done.stderr)


def refusals(layout):
    for name, args, word in (("ring", ["--to", "a4g64"], "no quantized RotatingKVCache"), ("plain", ["--to", "r4"], "mlx-lm files can contain only"),
                             ("plain", ["--to", "f16/a4g64"], "both floats or both quantized"), ("plain", ["--to", "a4g128"], "a head size that is a multiple")):
        done = quire("convert", *args, "--out", folder / "no", folder / layout / f"{name}.safetensors")
        expect(done.returncode == 1 and word in done.stderr and not list(folder.glob("no*")), f"{name} {' '.join(args)} is refused", done.stderr)


ORACLE = """
import sys, numpy as np
want, q, out = np.load(sys.argv[1]), np.fromfile(sys.argv[2], np.float32), np.fromfile(sys.argv[3], np.float32)
layers, at, qat, worst = len(want.files) // 2, 0, 0, 0
for i in range(layers):
    k, v = want[f"k{i}"][0].astype(np.float64), want[f"v{i}"][0].astype(np.float64)
    for h in range(4):
        query = q[qat:qat + k.shape[2]].astype(np.float64); qat += k.shape[2]
        s = k[h // 2] @ query / np.sqrt(k.shape[2]); p = np.exp(s - s.max()); p /= p.sum()
        mine = out[at:at + v.shape[2]]; at += v.shape[2]
        truth = p @ v[h // 2]
        worst = max(worst, np.linalg.norm(mine - truth) / np.linalg.norm(truth))
assert at == len(out)
print(worst)
"""


def attention(layout):
    """The library reads the file and attends; numpy does the same over the rows that mlx-lm had, in double precision."""
    for name in ("plain", "wide_v", "bf16", "trimmed", "q4g64", "q8g32", "q4bf16", "ring"):
        queries, out = folder / "q.bin", folder / "o.bin"
        state = 12345
        values = []
        for _ in range(12 * 4 * 128):
            state = (state * 1103515245 + 12345) % 2**31
            values.append(state / 2**30 - 1)
        queries.write_bytes(struct.pack(f"<{len(values)}f", *values))
        done = subprocess.run([ATTEND, folder / layout / f"{name}.safetensors", queries, out], stderr=subprocess.PIPE, text=True)
        worst = subprocess.run([pythons["b"], "-c", ORACLE, folder / layout / f"{name}.npz", queries, out], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
        error = float(worst.stdout or "nan")
        expect(done.returncode == 0 and error < 5e-4, f"attention over {name} of {VERSIONS[layout]}: {error:.1e} from the oracle",
               done.stderr + worst.stderr[-500:])


pythons = {layout: python(version) for layout, version in VERSIONS.items()}
folder = Path(tempfile.mkdtemp(prefix="quire-mlx-"))
for layout in VERSIONS:
    (folder / layout).mkdir()
    subprocess.run([pythons[layout], str(HERE / "make.py"), str(folder / layout)], check=True)
    for step in (show, same_codecs, other_codecs, split_bits, refusals, attention):
        step(layout)
if failed:
    print(f"{failed} failed; the files are in {folder}")
else:
    shutil.rmtree(folder)
sys.exit(failed > 0)
