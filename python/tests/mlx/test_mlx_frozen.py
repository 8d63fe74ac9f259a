# SPDX-License-Identifier: MIT
"""Prompt-cache files that earlier versions wrote, in tests/golden/frozen/VERSION: they hold the rows that they held.

    python/tests/mlx/run.py test_mlx_frozen.py --write FOLDER     writes the file and what it holds; for a release only (docs/promises.md)
"""
import hashlib
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

import mlx.core as mx
import quire
import quire.mlx_lm as quire_mlx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models import cache as mlx_cache
from support import ROOT, attend, numpy, rows

VERSIONS = ("0.1", "0.2")
Q, H, D = 4, 2, 32
STEP = int(os.environ.get("QUIRE_FLIP_STEP", "11"))
FILE, SEEN = "mlx-lm.safetensors", "mlx-lm.json"


def made():
    caches = [quire_mlx.QuireKVCache("r5/r4"), quire_mlx.QuireKVCache("k8v4", max_tokens=40, sinks=4), quire_mlx.QuireKVCache("f32"),
              quire_mlx.QuireKVCache()]  # 0.1 has no file of the last one
    for i, cache in enumerate(caches):
        for at in range(0, 90, 30):
            attend(cache, *(rows(100 * i + at + s, 1, h, 30, D, dtype=mx.float16) for s, h in ((1, Q), (2, H), (3, H))))
    return caches


def seen(caches):
    """Lengths and decoded rows. Attention is left out: its last bits may change."""
    found = []
    for c in caches:
        keys, values = c.keys, c.values
        found.append({"class": type(c).__name__, "offset": int(c.offset), "keys": digest(keys.decode()), "values": digest(values.decode())})
    return found


def digest(x):
    return hashlib.sha256(numpy(x).tobytes()).hexdigest()


class Frozen(unittest.TestCase):
    def test_versions(self):
        for version in VERSIONS:
            folder = ROOT / "tests" / "golden" / "frozen" / version
            wanted = json.loads((folder / SEEN).read_text())
            with self.subTest(version=version):
                caches = mlx_cache.load_prompt_cache(str(folder / FILE))
                self.assertEqual(seen(caches), wanted["caches"])
                # They go on, and what they give is what caches give that were never saved.
                for i, (old, new) in enumerate(zip(caches, made())):
                    more = [rows(900 + s, 1, h, 3, D, dtype=mx.float16) for s, h in ((1, Q), (2, H), (3, H))]
                    self.assertEqual(digest(attend(old, *more)), digest(attend(new, *more)), f"cache {i}")

    def test_presets(self):
        """As if they had been made with a preset that means something else now: 0.1 stored its name."""
        for version in VERSIONS:
            folder = ROOT / "tests" / "golden" / "frozen" / version
            wanted = json.loads((folder / SEEN).read_text())["caches"]
            arrays, marks = mx.load(str(folder / FILE), return_metadata=True)
            user, classes, scalars = tree_unflatten(list(marks.items()))
            marks = dict(tree_flatten([user, classes, [s for s in scalars if s == "" or not s[0].endswith("digest")]]))
            arrays = {name: array for name, array in arrays.items() if not name.endswith("digest")}
            policies = ["".join(map(chr, arrays[f"{i}.policy"].tolist())) for i in range(len(wanted))]
            self.assertFalse({p.split(",")[0] for p in policies} & {"safe", "balanced", "small"})
            for i in range(len(wanted)):
                arrays[f"{i}.policy"] = mx.array([ord(c) for c in ("small", "balanced", "safe", "small")[i]])
            with tempfile.TemporaryDirectory() as work, self.subTest(version=version):
                mx.save_safetensors(f"{work}/{FILE}", arrays, marks)
                self.assertEqual(seen(mlx_cache.load_prompt_cache(f"{work}/{FILE}")), wanted)

    def test_damage(self):
        """Bytes of the header (1 of STEP), of all numbers, and of the rows (200 of them) are changed: an exception, or the same rows."""
        for version in VERSIONS:
            folder = ROOT / "tests" / "golden" / "frozen" / version
            wanted = json.loads((folder / SEEN).read_text())["caches"]
            data = bytearray((folder / FILE).read_bytes())
            refused = same = 0
            with tempfile.TemporaryDirectory() as work:
                file = Path(work) / FILE
                file.write_bytes(data)
                self.assertEqual(seen(mlx_cache.load_prompt_cache(str(file))), wanted)
                header = 8 + int.from_bytes(data[:8], "little")
                numbers = [range(header + v["data_offsets"][0], header + v["data_offsets"][1]) for v in json.loads(data[8:header]).values()
                           if "data_offsets" in v and v["data_offsets"][1] - v["data_offsets"][0] < 64]
                for at in [*range(0, header, STEP), *(at for part in numbers for at in part), *range(header, len(data), (len(data) - header) // 200)]:
                    data[at] ^= 1 << at % 8
                    file.write_bytes(data)
                    data[at] ^= 1 << at % 8
                    try:
                        caches = mlx_cache.load_prompt_cache(str(file))
                        found = seen(caches)
                    except Exception as error:  # mlx and mlx-lm raise many kinds
                        self.assertNotIsInstance(error, (AssertionError, MemoryError))
                        refused += 1
                        continue
                    if found == wanted:
                        same += 1
                    elif all(isinstance(c, quire_mlx.QuireKVCache) for c in caches):
                        self.fail(f"{version}: byte {at} changed, and other rows are read")
            print(f"{version}: {refused} refused, {same} with the same rows", flush=True)


def write(folder):
    caches = made()
    mlx_cache.save_prompt_cache(str(folder / FILE), caches)
    caches = mlx_cache.load_prompt_cache(str(folder / FILE))
    version = quire.__version__ if hasattr(quire, "__version__") else ""
    (folder / SEEN).write_text(json.dumps({"version": version, "caches": seen(caches)}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write(Path(sys.argv[2]))
    else:
        unittest.main()
