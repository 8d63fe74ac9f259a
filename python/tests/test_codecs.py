# SPDX-License-Identifier: MIT
"""Codecs without a cache, against golden files and, where it is installed, MLX itself."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np
from support import gold, rows

import quire


class Registry(unittest.TestCase):
    def test_list(self) -> None:
        names = [c.name for c in quire.codecs()]
        self.assertEqual(len(set(names)), len(names))
        self.assertLessEqual({"f32", "a4g64", "q8_0", "r4", "tq3", "c:r4", "h:a4g64", "tv4"}, set(names))
        a4 = next(c for c in quire.codecs() if c.name == "a4g64")
        self.assertEqual((a4.bits, a4.group, a4.is_mlx, a4.is_mlx_vlm, a4.is_float), (4, 64, True, False, False))
        tv4 = next(c for c in quire.codecs() if c.name == "tv4")
        self.assertEqual((tv4.bits, tv4.group, tv4.is_mlx, tv4.is_mlx_vlm, tv4.is_rotated), (4, 0, False, True, True))

    def test_bits(self) -> None:
        self.assertEqual(quire.bits("a4g64", 128), 4.5)
        self.assertEqual(quire.bits("f16", 64), 16)
        for call in (lambda: quire.bits("a9g64", 64), lambda: quire.encode("a9g64", rows(1, 2, 64)),
                     lambda: quire.encode("c:r4", rows(1, 2, 64))):
            with self.assertRaises((ValueError, quire.QuireError)):
                call()

    def test_what_is_wrong_is_named(self) -> None:
        for d in (0, 1025):
            with self.assertRaisesRegex(ValueError, f"d is {d}, not a number from 1 to 1024"):
                quire.round_trip("r4", rows(1, 2, d))
        with self.assertRaisesRegex(ValueError, "K only"):
            quire.encode("c:r4", rows(1, 2, 64), side="v")
        with self.assertRaisesRegex(quire.QuireError, "needs a profile"):
            quire.encode("c:r4", rows(1, 2, 64))

    def test_presets(self) -> None:
        self.assertIn("k8v4", [p.name for p in quire.presets()])


class Golden(unittest.TestCase):
    def test_affine_codes_are_those_of_mlx(self) -> None:
        file = gold("affine.gold")
        for bits in (2, 3, 4, 5, 6, 8):
            for group in (32, 64, 128):
                codec = f"a{bits}g{group}"
                wanted = [file[f"f16_b{bits}_g{group}_{part}"] for part in ("packed", "scales", "biases")]
                x = file["x_f16"]
                # Rows that hold no infinity or NaN: for these Quire has a rule of its own (docs/formats/codecs.md).
                use = np.isfinite(x).all(1) & np.isfinite(wanted[1]).all(1) & np.isfinite(wanted[2]).all(1)
                self.assertGreater(use.sum(), 15)
                with self.subTest(codec=codec):
                    native = quire.encode(codec, x[use])
                    joined = np.concatenate([np.ascontiguousarray(w[use]).view(np.uint8) for w in wanted], axis=1)
                    self.assertTrue((native == joined).all())
                    with quire.Format(codec, 256) as form:
                        got = form.encode_mlx(x[use])
                    for a, b in zip((got.words, got.scales, got.biases), wanted):
                        self.assertTrue((a.view(np.uint8) == np.ascontiguousarray(b[use]).view(np.uint8)).all())

    def test_ggml_blocks(self) -> None:
        file = gold("ggml.gold")
        x = file["x"]
        finite = np.isfinite(x).all(1)
        for codec in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1"):
            with self.subTest(codec=codec):
                use = finite & np.isfinite(file[f"{codec}_dequant"]).all(1)
                self.assertGreater(use.sum(), 15)
                self.assertTrue((quire.encode(codec, x[use]) == file[f"{codec}_rows"][use]).all())
                self.assertTrue((quire.decode(codec, file[f"{codec}_rows"][use], 256) == file[f"{codec}_dequant"][use]).all())

    def test_codes_and_norms_are_those_of_mlx_vlm(self) -> None:
        file = gold("tv.gold")
        for d in (64, 128, 256):
            for dt in ("f16", "bf16", "f32"):
                for side in "kv":
                    for bits in (2, 3, 4):
                        with self.subTest(bits=bits, d=d, dt=dt, side=side), quire.Format(f"tv{bits}", d, side) as form:
                            got = form.encode_mlx(file[f"x_{dt}_d{d}"], dtype="bf16" if dt == "bf16" else None)
                            self.assertIsNone(got.biases)
                            self.assertTrue((got.words == file[f"{dt}_d{d}_{side.upper()}_b{bits}_words"]).all())
                            norms = file[f"{dt}_d{d}_{side.upper()}_norms"]
                            self.assertTrue((got.scales[:, 0].view(np.uint16) == norms.view(np.uint16)).all())

    def test_a_state_of_mlx_vlm_goes_in_and_out(self) -> None:
        file = gold("tv.gold")
        # As mlx-vlm has them: (head, token, word) and (head, token).
        parts = {s: (file[f"state_{s.upper()}_words"][None], file[f"state_{s.upper()}_norms"][None]) for s in "kv"}
        rows_of = {s: quire.MlxRows(codec, parts[s][0].transpose(1, 0, 2), parts[s][1].transpose(1, 0)[..., None])
                   for s, codec in (("k", "tv3"), ("v", "tv4"))}
        plan = quire.Plan("tv3/tv4", n_q_heads=1, n_kv_heads=1, d_k=128)
        with quire.Pool(plan, 16 << 20) as pool, pool.sequence() as seq:
            seq.append(rows_of["k"], rows_of["v"])
            for side, given in rows_of.items():
                back = seq.mlx(side)
                self.assertTrue((back.words == given.words).all())
                self.assertTrue((back.scales.view(np.uint16) == given.scales.view(np.uint16)).all())
                self.assertIsNone(back.biases)
                values = file[f"state_{side.upper()}_values"]
                wrong = np.linalg.norm(seq.rows(side)[:, 0] - values, axis=1) / np.linalg.norm(values, axis=1)
                self.assertLess(wrong.max(), 5e-3)  # the tables are rounded to bytes: docs/formats/codecs.md

    def test_norms_that_are_not_finite(self) -> None:
        words = gold("tv.gold")["state_K_words"][:5, None]
        norms = np.array([3, np.inf, -np.inf, np.nan, 65504], np.float16).reshape(5, 1, 1)
        given = quire.MlxRows("tv3", words, norms)
        plan = quire.Plan("tv3", n_q_heads=1, n_kv_heads=1, d_k=128)
        with quire.Pool(plan, 16 << 20) as pool, pool.sequence() as seq:
            seq.append(given, given)
            self.assertEqual(pool.stats.recoded, 2 * 3)
            back, values = seq.mlx("k"), seq.rows("k")
            self.assertTrue(np.isfinite(values).all() and (values[3] == 0).all())
            self.assertTrue((back.words[[0, 4]] == words[[0, 4]]).all())
            self.assertTrue((np.abs(back.scales[[1, 2], 0, 0].astype(np.float32)) > 6e4).all())

    def test_rows_that_tv_does_not_have(self) -> None:
        x = rows(1, 2, 64)
        with quire.Format("tv4", 64) as form, quire.Format("a4g64", 64) as affine:
            for form_, wrong in ((form, affine.encode_mlx(x)), (affine, form.encode_mlx(x))):
                wrong = quire.MlxRows(form_.codec, *(a if a is None else a[:, None] for a in (wrong.words, wrong.scales, wrong.biases)))
                out = np.empty((2, 1, 64), np.float32)
                with self.assertRaisesRegex(ValueError, "biases"):
                    form_._through(wrong, out, 2, None, "f32")
        with self.assertRaises(quire.QuireError):
            quire.Format("tv4", 80)

    def test_mlx_itself(self) -> None:
        try:
            import mlx.core as mx  # type: ignore
        except ImportError:
            self.skipTest("no mlx here")
        x = rows(1, 500, 128).astype(np.float16)
        for bits, group in ((4, 64), (8, 32), (3, 128)):
            wanted = [np.array(a) for a in mx.quantize(mx.array(x), group_size=group, bits=bits)]
            with quire.Format(f"a{bits}g{group}", 128) as form:
                got = form.encode_mlx(x)
            for a, b in zip((got.words, got.scales, got.biases), wanted):
                self.assertTrue((a == b).all())


class RoundTrip(unittest.TestCase):
    def test_all_codecs(self) -> None:
        x = rows(1, 3, 50, 128)
        for codec in quire.codecs():
            if codec.is_calibrated:
                continue
            with self.subTest(codec=codec.name):
                for side in "kv":
                    codes = quire.encode(codec.name, x, side=side)
                    self.assertEqual((codes.dtype, codes.shape[:2]), (np.uint8, (3, 50)))
                    back = quire.decode(codec.name, codes, 128, side=side)
                    self.assertTrue((back == quire.round_trip(codec.name, x, side=side)).all())
                    # The error falls by about half for every bit; 2 bits leave a third of the norm.
                    wrong = np.linalg.norm(back - x) / np.linalg.norm(x)
                    # mlx-vlm's codebook of 6 bits is not converged
                    self.assertLess(wrong, (2.1 if codec.name == "tv6" else 2.0) * 2.0**-min(codec.bits, 8))
                    self.assertTrue((quire.encode(codec.name, x[1], side=side) == codes[1]).all())  # rows are independent

    def test_no_rows(self) -> None:
        none = np.empty((0, 3, 64), np.float32)
        self.assertEqual(quire.encode("a4g64", none).shape, (0, 3, 36))
        self.assertEqual(quire.round_trip("a4g64", none).shape, none.shape)
        with quire.Format("a4g64", 64) as form:
            self.assertEqual([x.shape for x in (form.encode_mlx(none).words, form.encode_mlx(none).scales)], [(0, 3, 8), (0, 3, 1)])

    def test_forms(self) -> None:
        x = rows(1, 10, 64)
        bf16: Any = (x.view(np.uint32) >> 16).astype(np.uint16)
        self.assertTrue((quire.encode("bf16", bf16, dtype="bf16").view(np.uint16) == bf16).all())
        self.assertTrue((quire.decode("f32", quire.encode("f32", x), 64, dtype="f16") == x.astype(np.float16)).all())
        with self.assertRaises(TypeError):
            quire.encode("a4g64", bf16)
        with self.assertRaises(TypeError):
            quire.encode("a4g64", x.astype(np.float64))
        with self.assertRaises(ValueError):
            quire.decode("a4g64", quire.encode("a4g64", x), 128)


class Profile(unittest.TestCase):
    def test_gather_save_and_use(self) -> None:
        import os
        import tempfile

        layers = [quire.Layer(4, 2, 64, 64)]
        k = rows(1, 600, 2, 64) + 5 * rows(9, 2, 64)  # channels with means, which a profile takes out
        with quire.Profile(layers) as profile:
            profile.observe_k(0, k)
            profile.observe_q(0, rows(2, 600, 4, 64))
            self.assertEqual(profile.digest, 0)
            profile.finish()
            self.assertNotEqual(profile.digest, 0)
            self.assertLess(profile.score_error(0, "c:r4"), profile.score_error(0, "r4"))
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "model.quire-profile")
                profile.save(path)
                with quire.Profile(layers) as other, self.assertRaises(quire.QuireError):
                    other.save(path)  # not finished: what is there stays
                with quire.Profile.load(path) as loaded:
                    self.assertEqual(loaded.digest, profile.digest)
                    plan = quire.Plan("k=c:r4,v=r4", layers=layers, profile=loaded)
            with self.assertRaises(quire.QuireError):
                quire.Plan("k=c:r4,v=r4", layers=layers)
            with quire.Pool(plan, 1 << 24) as pool:
                s = pool.sequence()
                s.append(k, rows(3, 600, 2, 64))
                plain = quire.round_trip("r4", k)
                self.assertLess(np.linalg.norm(s.rows("k") - k), 0.5 * np.linalg.norm(plain - k))

    def test_plan(self) -> None:
        plan = quire.Plan("k8v4", n_layers=4, n_q_heads=8, n_kv_heads=2, d_k=128, windows=[0, 512, 0, 512])
        self.assertEqual(plan.policy, "a8g64/a4g64")
        self.assertEqual((plan.layer(0).k, plan.layer(0).v, plan.layer(1).window), ("a8g64", "a4g64", 512))
        self.assertEqual(len(plan.page_bytes()), 2)
        self.assertIn("a8g64", plan.describe())
        self.assertGreater(plan.bytes(1000), plan.bytes(100))
        with self.assertRaisesRegex(quire.QuireError, "k9v4"):
            quire.Plan("k9v4", n_q_heads=8, n_kv_heads=2, d_k=128)
        for wrong in ({"n_q_heads": 7}, {"d_k": -1}, {"windows": [1, 2]}):
            with self.assertRaises((quire.QuireError, ValueError)):
                quire.Plan("k8v4", **{"n_q_heads": 8, "n_kv_heads": 2, "d_k": 128, **wrong})  # type: ignore[arg-type]


if __name__ == "__main__":
    unittest.main()
