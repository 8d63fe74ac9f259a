# SPDX-License-Identifier: MIT
"""One layer, without a model: the plug-in beside vLLM's kernels and beside double precision; equal bits however the work is divided."""
import os
import sys

import torch

from checks import Checks
from scene import Quire, Scene, Stock, error
from quire_vllm import _native as own

check = Checks()
FORMS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# Relative error against double precision. Stock's own is printed beside it.
MOST = {"f32": 2e-6, "f16": 1e-3, "bf16": 6e-3}
MIXED = [(1, 1), (300, 1), (128, 128), (517, 200), (64, 1), (1030, 6)]


def exactness():
    for form, dtype in FORMS.items():
        for heads in ((9, 3, 64), (8, 2, 128), (4, 1, 256)):
            scene = Scene(MIXED, heads, dtype)
            want = scene.exact()
            quire, stock = error(Quire(scene, form).attend(), want), error(Stock(scene).attend(), want)
            check(quire <= MOST[form], f"{form} tiles, heads {heads}: error {quire:.1e} (vLLM {stock:.1e})")
    scene = Scene(MIXED, (8, 2, 128), torch.float32)
    want = scene.exact()
    for policy, most in (("r8", 1e-2), ("k8v4", 1.2e-1), ("r4", 1.5e-1), ("q8_0", 1e-2)):
        got = error(Quire(scene, policy).attend(), want)
        check(got <= most, f"{policy} tiles: error {got:.1e}")


def options():
    slopes = torch.tensor([2.0 ** -(i + 1) for i in range(8)])
    cases = {"window 100": dict(window=100), "window 64": dict(window=64), "soft cap": dict(softcap=2.0), "ALiBi": dict(alibi=slopes),
             "sinks": dict(sinks=torch.linspace(-2, 3, 8)), "scale": dict(scale=0.3),
             "window, soft cap and sinks": dict(window=200, softcap=3.0, sinks=torch.linspace(-2, 3, 8))}
    for name, given in cases.items():
        for form in ("f32", "bf16"):
            scene = Scene(MIXED, (8, 2, 128), FORMS[form], seed=1)
            want = scene.exact(**given)
            ours = dict(given)
            theirs = dict(given)
            if "sinks" in given:
                ours["sinks"] = theirs["sinks"] = given["sinks"].to(FORMS[form])
                want = scene.exact(**{**given, "sinks": ours["sinks"]})
            quire = error(Quire(scene, form, **ours).attend(), want)
            try:
                stock = f"{error(Stock(scene, **theirs).attend(), want):.1e}"
            except RuntimeError as refused:
                stock = str(refused).splitlines()[0][:60]
            check(quire <= 2 * MOST[form], f"{form} tiles, {name}: error {quire:.1e} (vLLM {stock})")


def equal_bits():
    """The same queries, keys and values give the same bits."""
    for form, policy in (("bf16", "r8"), ("f32", "f32"), ("f16", "r4"), ("bf16", "k8v4")):
        scene = Scene([(700, 700), (333, 333)], (8, 2, 128), FORMS[form], seed=2)
        whole = Quire(scene, policy)
        want = whole.attend().clone()
        # Other blocks, beside other sequences.
        other = Scene([(700, 700), (333, 333)], (8, 2, 128), FORMS[form], seed=2, spare_blocks=11)
        other.q, other.k, other.v = scene.q, scene.k, scene.v
        check(torch.equal(Quire(other, policy).attend(), want), f"{policy} in {form}: equal bits in other blocks")
        # Chunks of both sequences in turn, each written before it attends.
        chunked = Quire(scene, policy, write=False)
        parts = [[], []]
        done = [0, 0]
        while done != [700, 333]:
            ends = [min(done[0] + 128, 700), min(done[1] + 61, 333)]
            scene.set_step([(ends[i], ends[i] - done[i]) for i in range(2)])
            rows = [x[i][done[i]:ends[i]] for x in (scene.k, scene.v) for i in range(2)]
            slots = torch.cat([scene.slots(i, done[i], ends[i]) for i in range(2)])
            chunked.write(torch.cat(rows[:2]), torch.cat(rows[2:]), slots)
            chunked.begin()
            q = torch.cat([scene.q[i][done[i]:ends[i]] for i in range(2)])
            got = chunked.attend(q, torch.empty_like(q))
            parts[0].append(got[:ends[0] - done[0]])
            parts[1].append(got[ends[0] - done[0]:])
            done = ends
        check(torch.equal(torch.cat(parts[0] + parts[1]), want), f"{policy} in {form}: equal bits in chunks and mixed batches")
        check(torch.equal(chunked.cache, whole.cache), f"{policy} in {form}: equal tiles")
        # One query at a time.
        scene.set_step([(700, 1), (333, 1)])
        chunked.begin()
        q = torch.stack([scene.q[0][-1], scene.q[1][-1]])
        got = chunked.attend(q, torch.empty_like(q))
        check(torch.equal(got, torch.stack([want[699], want[1032]])), f"{policy} in {form}: equal bits in decode")
        # Queries and outputs that are parts of wider tensors, as vLLM's are.
        scene.set_step([(700, 700), (333, 333)])
        chunked.begin()
        wide, into = torch.randn(1033, 30, 128).to(FORMS[form]), torch.randn(1033, 11, 128).to(FORMS[form])
        wide[:, 4:12], kept = torch.cat(scene.q), into.clone()
        got = chunked.attend(wide[:, 4:12], into[:, 2:10])
        kept[:, 2:10] = want
        check(torch.equal(into, kept), f"{policy} in {form}: equal bits from and to strided rows, and nothing beside them")
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            again = Quire(scene, policy)
            check(torch.equal(again.attend(), want), f"{policy} in {form}: equal bits with {threads} threads")


def threads():
    """No second OpenMP runtime, no second team."""
    torch.set_num_threads(2)
    big = torch.randn(2048, 2048)
    for _ in range(3):
        big @ big
        big.sum()
    before = len(os.listdir("/proc/self/task"))
    layer = Quire(Scene([(4096, 64)]), "r8")
    for _ in range(3):
        layer.attend()
    after = len(os.listdir("/proc/self/task"))
    check(after == before, f"{after} threads after attending, {before} before")
    found = own.openmp_runtimes()
    check(found == own.RUNTIMES, f"OpenMP runtimes: {found}, before the plug-in {own.RUNTIMES}")


def hostile():
    """What vLLM never does is refused, and nothing is written."""
    scene = Scene([(200, 3)], (4, 2, 64), torch.float32)
    layer = Quire(scene, "f32")
    before = layer.cache.clone()
    for name, slots in {"beyond the last block": torch.tensor([scene.n_blocks * scene.block])}.items():
        check.raises(lambda: layer.write(scene.k[0][:1], scene.v[0][:1], slots), f"a slot {name}")
    layer.write(scene.k[0][:2], scene.v[0][:2], torch.tensor([-1, -1]))
    check(torch.equal(layer.cache, before), "rows without a slot are skipped")
    good = scene.table.clone()
    for name, block in {"beyond the memory": scene.n_blocks, "negative": -1}.items():
        scene.table[0, 1] = block
        layer.begin()
        check.raises(layer.attend, f"a block that is {name}")
    scene.table.copy_(good)
    scene.set_step([(2, 3)])
    check.raises(layer.begin, "more queries than tokens")
    scene.set_step([(200, 3)])
    layer.begin()
    check.raises(lambda: layer.attend(out=layer.out[:2]), "an output that is too short")


if __name__ == "__main__":
    for part in (exactness, options, equal_bits, threads, hostile):
        part()
    sys.exit(check.end())
