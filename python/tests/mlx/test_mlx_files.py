# SPDX-License-Identifier: MIT
"""Prompt-cache files that were changed: each is refused with a sentence, or gives the answers of the file that was saved."""
import copy
import hashlib
import json
import os
import pickle
import random
import tempfile
import unittest

import mlx.core as mx
import numpy as np
import quire
import quire.mlx_lm as quire_mlx
from mlx_lm.models import cache as mlx_cache
from quire._mlx import state
from support import attend, numpy, rows

Q, H, D = 4, 2, 32
FLIPS = int(os.environ.get("QUIRE_FLIPS", "150"))
INTEGERS = (-1, 0, 1, 2, 3, 5, 63, 64, 65, 100, 4096, 5000, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, -2**31, -2**62)
WORDS = ("", "f16", "f32", "bf16", "r4", "safe", "k8v4", "nonsense", "r8/r8", "f32/f32", "f32,edge=1:r4", "f32,sinks=4:f16", "x" * 600, "\0", "f32\0", "0" * 64)


def made(kind):
    """Caches as a model would have them, and what they answer."""
    options = {"ring": dict(max_tokens=20, sinks=2, spare=4), "edge": dict(index=1, n_layers=3)}.get(kind, {})
    policy = "f32,edge=1:r8" if kind == "edge" else "f32"
    caches = [quire_mlx.QuireKVCache(policy, **options) for _ in range(3)]
    for i, cache in enumerate(caches):
        attend(cache, *(rows(s, 1, h, 40 + 30 * i, D, dtype=mx.float16) for s, h in ((1, Q), (2, H), (3, H))))
    if kind == "filler":
        theirs = mlx_cache.RotatingKVCache(20, keep=2)
        for at in range(50):
            theirs.update_and_fetch(rows(at, 1, H, 1, D), rows(at + 1, 1, H, 1, D))
        caches[0] = quire_mlx.from_mlx(theirs, "f32", spare=4)
    return [caches[0].merge(caches)] if kind == "batch" else caches[:1]


def digest(x):
    return hashlib.sha256(numpy(x).tobytes()).hexdigest()


def answers(caches):
    """What a model and a user can learn of caches."""
    found = []
    for c in caches:
        n = len(c._sequences)
        found += [type(c).__name__, np.array(c.offset).tolist(), c._padding, c.size(), c._dtype, c.is_trimmable(), digest(c.keys.decode())]
        for _ in range(2):
            out = attend(c, *(rows(s, n, h, 2, D) for s, h in ((4, Q), (5, H), (6, H))))
            found.append(digest(out))
        try:
            found.append(c.trim(5))
        except ValueError as e:
            found.append(str(e))
        found.append(digest(attend(c, *(rows(s, n, h, 1, D) for s, h in ((4, Q), (5, H), (6, H))))))
    return found


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = os.path.join(folder.name, "cache.safetensors")
        self.refusals = self.accepted = 0

    def look(self, want, what):
        """Loads the file."""
        try:
            caches = mlx_cache.load_prompt_cache(self.file)
            foreign = [c for c in caches if not isinstance(c, (quire_mlx.QuireKVCache, quire_mlx.BatchQuireKVCache))]
        except Exception as e:  # mlx and mlx-lm raise many kinds for files that are not theirs
            self.assertFalse(isinstance(e, (AssertionError, MemoryError)), f"{what}: {e!r}")
            self.refusals += 1
            return
        if foreign or not caches:
            return
        self.assertEqual(answers(caches), want, what)
        self.accepted += 1

    def ours(self, want, what):
        """Loads the file, of which only what is Quire's was changed."""
        try:
            caches = mlx_cache.load_prompt_cache(self.file)
        except ValueError as e:
            self.assertRegex(str(e), r"[a-z]", what)
            self.refusals += 1
            return
        self.assertEqual(answers(caches), want, what)
        self.accepted += 1

    def test_every_field(self):
        for kind in ("single", "batch", "ring", "edge", "filler"):
            mlx_cache.save_prompt_cache(self.file, made(kind))
            arrays, metadata = mx.load(self.file, return_metadata=True)
            mx.eval(arrays)
            want = answers(mlx_cache.load_prompt_cache(self.file))
            self.assertEqual(want, answers(made(kind)))
            for without in (False, True):  # the digest
                kept = {k: v for k, v in arrays.items() if not (without and k.endswith("digest"))}
                marks = dict(metadata)
                if without:
                    marks = flattened(marks, "0.digest")
                for name, array in kept.items():
                    values = changes(name, array)
                    for value in values:
                        if without and name.split(".")[1] in ("index", "n_layers", "dtype", "spare", "floors"):
                            continue  # only the digest knows these
                        if array.shape == value.shape and array.dtype == value.dtype and bool((array == value).all()):
                            continue
                        mx.save_safetensors(self.file, {**kept, name: value}, marks)
                        self.ours(want, f"{kind} {name} {value} without={without}")
                    if not (without and name.split(".")[1] == "floors"):
                        mx.save_safetensors(self.file, {k: v for k, v in kept.items() if k != name}, flattened(marks, name))
                        if not name.endswith("digest"):
                            self.ours(want, f"{kind} without {name}")
        self.assertGreater(self.refusals, 500)

    def test_bits(self):
        rng = random.Random(5)
        for kind in ("single", "batch"):
            mlx_cache.save_prompt_cache(self.file, made(kind))
            with open(self.file, "rb") as f:
                data = f.read()
            want = answers(mlx_cache.load_prompt_cache(self.file))
            header = 8 + int.from_bytes(data[:8], "little")
            # MLX reads where the header's offsets say, so bits of digits are left alone.
            places = [i for i in range(8, header) if not chr(data[i]).isdigit()] + [i for i in range(header, len(data))]
            for _ in range(FLIPS):
                i = rng.choice(places) if rng.random() < 0.7 else rng.randrange(header, len(data))
                broken = bytearray(data)
                broken[i] ^= 1 << rng.randrange(8)
                with open(self.file, "wb") as f:
                    f.write(broken)
                self.look(want, f"{kind} byte {i}")
        self.assertGreater(self.refusals, FLIPS)

    def test_states_that_are_not_states(self):
        for bad in (None, 3, [], {}, {"policy": "f32"}, (mx.zeros(3), mx.zeros(3), 3)):
            cache = made("single")[0]
            with self.assertRaises(ValueError):
                cache.state = bad
            self.assertEqual(cache.offset, 40)
            with self.assertRaises(ValueError):
                quire_mlx.QuireKVCache.from_state(bad)
        batch = made("batch")[0]
        with self.assertRaisesRegex(ValueError, "padding"):
            quire_mlx.QuireKVCache.from_state(dict(batch.state.items()))
        single = dict(made("single")[0].state.items())
        self.assertEqual(quire_mlx.BatchQuireKVCache.from_state(single).offset.tolist(), [40])


def renamed(cache, policy):
    """The state as a version wrote it that stored what the user had said."""
    saved = {name: value for name, value in cache.state.items() if name != "digest"}
    saved["policy"] = policy
    return {**saved, "digest": state._digest(*state._read(saved))}


def pickled(cache, policy):
    """The same for a pickle."""
    text, _, snapshots = state.to_bytes(cache).partition(b"\0")
    plain = json.loads(text)
    plain["policy"], sizes = policy, plain.pop("sizes")
    plain["digest"] = renamed(cache, policy)["digest"]
    return json.dumps({**plain, "sizes": sizes}).encode() + b"\0" + snapshots


class Presets(unittest.TestCase):
    """What a preset stands for may change; files stay readable (docs/promises.md)."""

    def made(self, kind, codecs):
        options = {"ring": dict(max_tokens=20, sinks=2, spare=4), "edge": dict(index=0, n_layers=3)}.get(kind, {})
        caches = [quire_mlx.QuireKVCache(codecs, **options) for _ in range(2)]
        for i, cache in enumerate(caches):
            attend(cache, *(rows(s, 1, h, 40 + 30 * i, D, dtype=mx.float16) for s, h in ((1, Q), (2, H), (3, H))))
        return caches[0].merge(caches) if kind == "batch" else caches[0]

    def test_no_state_names_a_preset(self):
        for preset in ("safe", "balanced", "small", "k8v4", "balanced,edge=1:f16"):
            for cache in (quire_mlx.QuireKVCache(preset), self.made("ring", preset), self.made("batch", preset)):
                said = dict(cache.state.items())["policy"]
                self.assertEqual(said, quire.Plan(preset, n_q_heads=1, n_kv_heads=1, d_k=D).policy)
                self.assertNotIn(said.split(",")[0], [p.name for p in quire.presets()])
                self.assertNotIn(preset.encode(), state.to_bytes(cache))

    def test_the_preset_has_the_same_meaning(self):
        """Such caches and new ones belong together."""
        for kind, more in (("single", ""), ("ring", ""), ("batch", ""), ("edge", ",edge=1:f16"), ("single", ",sinks=4:f16")):
            cache = self.made(kind, "balanced" + more)
            other = type(cache).from_state(renamed(cache, "balanced" + more))
            self.assertEqual(other.settings, cache.settings)
            self.assertEqual(answers([other]), answers([cache]))

    def test_the_preset_had_another_meaning(self):
        for kind, more in (("single", ""), ("ring", ""), ("batch", ""), ("edge", ",edge=1:f32"), ("single", ",sinks=4:f16")):
            for name, codecs in (("balanced", "r5/r4"), ("safe", "f16"), ("small", "q8_0/r4")):
                cache = self.made(kind, codecs + more)
                want = answers([copy.copy(cache)])
                saved = renamed(cache, name + more)
                loaded = [type(cache).from_state(saved), type(cache).from_state({k: v for k, v in saved.items() if k != "digest"}),
                          state.from_bytes(type(cache), pickled(cache, name + more))]
                again = [pickle.loads(pickle.dumps(c)) for c in loaded]
                for other in (*loaded, *again):
                    self.assertNotIn(name, repr(other))
                    self.assertEqual(other.settings, loaded[0].settings)
                    self.assertEqual(answers([other]), want, f"{kind} {name}")

    def test_only_a_preset_may_disagree(self):
        cache = self.made("single", "r5/r4")
        for policy in ("k8v4", "r6/r4", "r5/r4,sinks=4:f16", "safely", "", "c:r5/r4"):
            with self.assertRaises(ValueError, msg=policy):
                quire_mlx.QuireKVCache.from_state(renamed(cache, policy))


def flattened(marks, name):
    """The marks that mlx-lm keeps of strings and numbers, without those of one array."""
    from mlx.utils import tree_flatten, tree_unflatten
    user, classes, scalars = tree_unflatten(list(marks.items()))
    return dict(tree_flatten([user, classes, [s for s in scalars if s == "" or s[0] != name]]))


def changes(name, array):
    """Arrays that could stand in its place."""
    if array.dtype == mx.uint8:
        half = array[:array.shape[0] // 2]
        return [half, mx.concatenate([array, array]), mx.zeros_like(array), array.astype(mx.int32), array[None]]
    if name.endswith(("policy", "dtype", "digest")):
        return [mx.array([ord(c) for c in word]) for word in WORDS if word]
    if array.ndim:
        return [mx.full(array.shape, v, mx.int64) for v in INTEGERS] + [array[:-1], mx.concatenate([array, array]), array.astype(mx.float32), array + 1]
    return [mx.array(v, mx.int64) for v in INTEGERS] + [mx.array(1.5), mx.array(True)]


if __name__ == "__main__":
    unittest.main()
