# SPDX-License-Identifier: MIT
"""Attention against float64 over the rows that come back out of the cache."""

from __future__ import annotations

import io
import unittest
from typing import Any, List

import numpy as np
from support import BOUND, error, one_layer, reference, rows

import quire

POLICIES = ["f32", "f16", "bf16", "a8g64/a4g64", "a4g64", "a3g32/a6g32", "q8_0/q4_0", "r5/r4", "r8/r3", "tq4/tq3", "tv4/tv3", "h:a4g32/a2g32"]


def filled(pool: quire.Pool, length: int = 300, seed: int = 1, **ring: int) -> quire.Sequence:
    shape = pool.shape(0)
    sequence = pool.sequence(**ring)
    sequence.append(rows(seed, length, shape.n_kv_heads, shape.d_k), rows(seed + 1, length, shape.n_kv_heads, shape.d_v))
    return sequence


def to_bf16(x: Any) -> Any:
    """Rounded to nearest, ties to even."""
    u = x.view(np.uint32)
    return ((u + 0x7fff + (u >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(x: Any) -> Any:
    return (x.astype(np.uint32) << 16).view(np.float32)


class Attend(unittest.TestCase):
    def check(self, out: object, wanted: object) -> None:
        self.assertLess(error(out, wanted), BOUND)

    def test_codecs_of_k_and_v(self) -> None:
        for policy in POLICIES:
            for count in (1, 9):
                with self.subTest(policy=policy, queries=count), one_layer(policy) as pool:
                    s = filled(pool)
                    q = rows(7, count, 8, 64)
                    self.check(s.attend(q), reference(q, s.rows("k"), s.rows("v")))

    def test_head_sizes(self) -> None:
        for d, d_v, heads, per in ((64, 96, 2, 4), (80, 80, 1, 1), (96, 128, 3, 2), (192, 128, 2, 1)):
            with self.subTest(d=d, d_v=d_v), one_layer("k8v4", heads=heads, per=per, d=d, d_v=d_v) as pool:
                s = filled(pool, 130)
                q = rows(7, 5, heads * per, d)
                self.check(s.attend(q), reference(q, s.rows("k"), s.rows("v")))

    def test_rows_come_back_near_what_went_in(self) -> None:
        with one_layer("a8g64/a4g64") as pool:
            s = filled(pool)
            # A step of the scale, the range of a group over 2^bits - 1: MLX moves the scale so that zero is a code.
            for side, seed, steps in (("k", 1, 255), ("v", 2, 15)):
                given = rows(seed, 300, 2, 64)
                bound = (given.max(2) - given.min(2))[..., None] / steps
                self.assertTrue((np.abs(s.rows(side) - given) <= bound * 1.1).all())

    def test_options(self) -> None:
        with one_layer("f16") as pool:
            s = filled(pool, 200)
            k, v, q = s.rows("k"), s.rows("v"), rows(9, 6, 8, 64)
            per_head = rows(10, 8)
            for options in ({"scale": 0.3}, {"softcap": 5.0}, {"alibi": -np.abs(per_head)}, {"sink_logits": per_head * 4},
                            {"bidirectional": True}):
                with self.subTest(**{k: str(x) for k, x in options.items()}):
                    self.check(s.attend(q, **options), reference(q, k, v, **options))
            self.check(s.attend(q, position=100), reference(q, k, v, first=100))

    def test_masks(self) -> None:
        with one_layer("f16") as pool:
            s = filled(pool, 200)
            k, v, q = s.rows("k"), s.rows("v"), rows(9, 6, 8, 64)
            additive = rows(11, 8, 6, 200)
            additive[:, :, 30:60] = -np.inf
            self.check(s.attend(q, mask=additive[0]), reference(q, k, v, mask=additive[:1]))
            self.check(s.attend(q, mask=additive), reference(q, k, v, mask=additive))  # per query head under GQA
            half = additive.astype(np.float16)
            self.check(s.attend(q, mask=half), reference(q, k, v, mask=half))
            sees = np.random.default_rng(3).random((6, 200)) < 0.5
            sees[:, 0] = True
            self.check(s.attend(q, mask=sees), reference(q, k, v, mask=np.where(sees, 0, -np.inf)[None]))
            tail = quire.Mask(additive[0][:, 150:], first=150)
            whole = np.zeros((1, 6, 200))
            whole[0, :, 150:] = additive[0][:, 150:]
            self.check(s.attend(q, mask=tail), reference(q, k, v, mask=whole))
            spread = np.broadcast_to(additive[0, :1], (6, 200))  # one line for all queries, without a copy
            self.check(s.attend(q, mask=spread), reference(q, k, v, mask=spread[None]))

    def test_window_and_ring(self) -> None:
        k, v, q = rows(1, 400, 2, 64), rows(2, 400, 2, 64), rows(3, 400, 8, 64)
        with one_layer("f32,window=f32", windows=[70]) as pool:
            s = pool.sequence()
            outs = []
            for first in range(0, 400, 50):
                with s.step(50) as step:
                    step.append(0, k[first:first + 50], v[first:first + 50])
                    outs.append(step.attend(0, q[first:first + 50]))
            self.check(np.concatenate(outs), reference(q, k, v, window=70))
            self.check(s.attend(q[-1:]), reference(q[-1:], k, v, window=70))
            with self.assertRaises(quire.QuireError) as raised:
                s.attend(q[:300])
            self.assertEqual(raised.exception.status, "ERANGE")
        with one_layer("f32") as pool:
            s = pool.sequence(max_tokens=100, sinks=4, spare_tokens=50)
            for first in range(0, 400, 50):
                s.append(k[first:first + 50], v[first:first + 50])
                out = s.attend(q[first:first + 50])  # spare_tokens kept what the first of them see
                self.check(out, reference(q[first:first + 50], k[:first + 50], v[:first + 50], ring=(100, 4)))
            self.assertLess(pool.stats.n_pages, 7)

    def test_v_is_part_of_k(self) -> None:
        plan = quire.Plan("r8", n_q_heads=4, n_kv_heads=1, d_k=96, d_v=64, v_in_k=True)
        with quire.Pool(plan, 1 << 24) as pool:
            s = pool.sequence()
            s.append(rows(1, 100, 1, 96))
            q = rows(2, 3, 4, 96)
            self.check(s.attend(q), reference(q, s.rows("k"), s.rows("v")))
            self.assertTrue((s.rows("v") == s.rows("k")[:, :, :64]).all())
        plan = quire.Plan("tv4", n_q_heads=4, n_kv_heads=1, d_k=64, d_v=64, v_in_k=True)  # the whole head, as tv rotates it
        with quire.Pool(plan, 1 << 24) as pool:
            s = pool.sequence()
            s.append(rows(1, 100, 1, 64))
            q = rows(2, 3, 4, 64)
            self.check(s.attend(q), reference(q, s.rows("k"), s.rows("k")))
        with self.assertRaisesRegex(quire.QuireError, "because V is a part of K"):
            quire.Plan("tv4", n_q_heads=4, n_kv_heads=1, d_k=64, d_v=32, v_in_k=True)

    def test_batch_gives_the_bits_of_each_alone(self) -> None:
        for threads in (1, 3):
            with one_layer("a4g64", threads=threads) as pool:
                lengths, counts = (5, 200, 64, 129), (1, 7, 64, 2)
                seqs = [filled(pool, n, seed=i) for i, n in enumerate(lengths)]
                qs = [rows(20 + i, n, 8, 64) for i, n in enumerate(counts)]
                together = pool.attend(seqs, qs)
                for s, q, out in zip(seqs, qs, together):
                    self.assertTrue((s.attend(q) == out).all())
                    self.check(out, reference(q, s.rows("k"), s.rows("v")))

    def test_queries_that_are_made_when_they_are_asked_for(self) -> None:
        class Lazy(List[int]):
            """Gives arrays that nobody else keeps, and asks for memory of their size so that a freed one is overwritten."""

            def __getitem__(self, i: Any) -> Any:
                made.append(np.full((64, 8, 64), np.nan, np.float32))
                return rows(20 + i, 64, 8, 64)

        made: List[Any] = []
        with one_layer("f16") as pool:
            s = filled(pool, 100)
            for i, out in enumerate(pool.attend([s] * 4, Lazy(range(4)))):  # type: ignore[arg-type]
                self.check(out, reference(rows(20 + i, 64, 8, 64), s.rows("k"), s.rows("v")))

    def test_step_of_two_sequences_in_two_layers(self) -> None:
        plan = quire.Plan("k8v4", n_layers=2, n_q_heads=8, n_kv_heads=2, d_k=64)
        with quire.Pool(plan, 1 << 26) as pool:
            a, b = pool.sequence(), pool.sequence()
            a.append([rows(1, 40, 2, 64)] * 2, [rows(2, 40, 2, 64)] * 2)
            with pool.step([a, b], [3, 70]) as step:
                outs = []
                for layer in range(2):
                    step.append(layer, rows(3 + layer, 73, 2, 64), rows(5 + layer, 73, 2, 64))
                    outs.append(step.attend(layer, rows(8, 73, 8, 64)))
                self.assertEqual((len(a), len(b)), (40, 0))  # not yet
            self.assertEqual((len(a), len(b)), (43, 70))
            q = rows(8, 73, 8, 64)
            for layer in range(2):
                self.check(outs[layer][:3], reference(q[:3], a.rows("k", layer), a.rows("v", layer)))
                self.check(outs[layer][3:], reference(q[3:], b.rows("k", layer), b.rows("v", layer)))

    def test_partial_results_join(self) -> None:
        with one_layer("f32") as pool:
            k, v, q = rows(1, 200, 2, 64), rows(2, 200, 2, 64), rows(3, 2, 8, 64)
            parts = []
            for part in (slice(0, 90), slice(90, 200)):
                s = pool.sequence()
                s.append(k[part], v[part])
                parts.append(s.attend(q, bidirectional=True, partial=True))
            quire.merge(*parts)
            sinks = rows(4, 8)
            short = quire.Partial(parts[0].acc, parts[0].max[:1], parts[0].sum)
            for call in (lambda: quire.finish(short), lambda: quire.merge(short, parts[1]), lambda: quire.merge(parts[0], short)):
                with self.assertRaisesRegex(ValueError, "shapes"):
                    call()
            self.check(quire.finish(parts[0], sinks), reference(q, k, v, bidirectional=True, sink_logits=sinks))

    def test_forms_of_queries_and_outputs(self) -> None:
        """f16 and bf16 queries are exact in float32, and the result is that of float32, rounded at the end."""
        q, mask = rows(9, 6, 8, 64), rows(11, 6, 200)
        with one_layer("a4g64") as pool:
            s = filled(pool, 200)
            for dtype, given in (("f16", q.astype(np.float16)), ("bf16", to_bf16(q))):
                exact = given.astype(np.float32) if dtype == "f16" else from_bf16(given)
                by_head = np.ascontiguousarray(given.transpose(1, 0, 2)).transpose(1, 0, 2)
                for options in ({}, {"mask": mask}):
                    wanted = s.attend(exact, **options)
                    rounded = wanted.astype(np.float16) if dtype == "f16" else to_bf16(wanted)
                    for asked in (given, by_head):
                        out = s.attend(asked, dtype=dtype, **options)
                        self.assertEqual(out.dtype, given.dtype)
                        self.assertTrue((out == rounded).all())
                    self.assertTrue((s.attend(given, dtype=dtype, out=np.empty((6, 8, 64), np.float32), **options) == wanted).all())
                part, whole = (s.attend(x, dtype=d, partial=True) for x, d in ((given, dtype), (exact, None)))
                for one, other in zip(part, whole):
                    self.assertEqual(one.dtype, np.float32)
                    self.assertTrue((one == other).all())
                with s.step(6) as step:
                    step.append(0, rows(1, 6, 2, 64), rows(2, 6, 2, 64))
                    wanted = step.attend(0, exact, masks=[mask])
                    rounded = wanted.astype(np.float16) if dtype == "f16" else to_bf16(wanted)
                    self.assertTrue((step.attend(0, by_head, dtype=dtype, masks=[mask]) == rounded).all())
                    step.abort()
            self.assertEqual(s.attend(q.astype(np.float16)).dtype, np.float16)  # float16 says what it is
            self.assertTrue((s.attend(q, out=np.empty((6, 8, 64), np.float16)) == s.attend(q).astype(np.float16)).all())
            with self.assertRaisesRegex(TypeError, "bf16"):
                s.attend(to_bf16(q))
            with self.assertRaisesRegex(TypeError, "bf16"):
                s.attend(q, out=np.empty((6, 8, 64), np.uint16))

    def test_other_instruction_sets(self) -> None:
        try:
            for isa in ("c", None):
                quire.use_isa(isa)
                with one_layer("a4g64") as pool:
                    s = filled(pool)
                    q = rows(7, 3, 8, 64)
                    self.check(s.attend(q), reference(q, s.rows("k"), s.rows("v")))
        finally:
            quire.use_isa(None)


class Change(unittest.TestCase):
    def test_fork_and_trim(self) -> None:
        with one_layer("a4g64") as pool:
            s = filled(pool, 100)
            before = s.codes("k").codes
            fork = s.fork()
            fork.trim(70)
            fork.append(rows(50, 10, 2, 64), rows(51, 10, 2, 64))
            self.assertEqual((len(s), len(fork)), (100, 80))
            self.assertTrue((s.codes("k").codes == before).all())
            self.assertTrue((fork.codes("k", 0, 0, 70).codes == before[:70]).all())
            self.assertGreater(pool.stats.n_copies, 0)
            with self.assertRaises(ValueError):
                fork.trim(-1)
            with self.assertRaises(quire.QuireError):
                fork.trim(81)

    def test_convert(self) -> None:
        with one_layer("f32") as pool:
            s = filled(pool, 100)
            k = s.rows("k")
            plan = quire.Plan("a4g64", n_q_heads=8, n_kv_heads=2, d_k=64)
            s.convert(plan)
            self.assertEqual(s.policy, "a4g64/a4g64")
            self.assertTrue((s.codes("k").codes[:, 0] == quire.encode("a4g64", k[:, 0])).all())

    def test_coded_rows_are_taken_as_they_are(self) -> None:
        with one_layer("a4g64") as pool:
            s = filled(pool, 100)
            for k, v in ((s.mlx("k"), s.mlx("v")), (s.codes("k"), s.codes("v"))):
                other = pool.sequence()
                other.append(k, v)
                for side in "kv":
                    self.assertTrue((other.codes(side).codes == s.codes(side).codes).all())
            with self.assertRaises(quire.QuireError) as raised:
                pool.sequence().append(quire.NativeRows("a4g32", np.zeros((1, 2, 40), np.uint8)), s.codes("v", 0, 0, 1))
            self.assertEqual(raised.exception.status, "EMISMATCH")
            for codec in ("r4", "q4_0", "f32"):
                words = quire.MlxRows(codec, np.zeros((1, 2, 8), np.uint32), *[np.zeros((1, 2, 1), np.float16)] * 2)
                with self.assertRaises(quire.QuireError) as raised:
                    pool.sequence().append(words, words)
                self.assertEqual(raised.exception.status, "EUNSUPPORTED")

    def test_what_is_wrong_is_named(self) -> None:
        with one_layer() as pool:
            s, q = filled(pool, 10), rows(7, 1, 8, 64)
            for call in (s.attend, lambda q, **options: pool.attend([s], [q], **options)):
                with self.assertRaisesRegex(TypeError, "^attend.* no option causal; the options are scale, "):
                    call(q, causal=True)
            with self.assertRaisesRegex(TypeError, r"k has dtype float64.*astype\(numpy.float32\)"):
                s.append(rows(1, 2, 2, 64).astype(np.float64), rows(1, 2, 2, 64))
            with self.assertRaisesRegex(ValueError, r"\(2, 5, 64\).*axes are \(token, head, channel\)"):
                s.append(rows(1, 2, 5, 64), rows(1, 2, 5, 64))
            other = quire.Plan("r4", n_q_heads=8, n_kv_heads=2, d_k=128)
            for change in (pool.add_plan, s.convert):
                with self.assertRaisesRegex(quire.QuireError, "plan is for other layers"):
                    change(other)
            self.assertEqual(len(s), 10)

    def test_abort_leaves_nothing(self) -> None:
        with one_layer() as pool:
            s = filled(pool, 10)
            with self.assertRaises(ZeroDivisionError):
                with s.step(5) as step:
                    step.append(0, rows(1, 5, 2, 64), rows(2, 5, 2, 64))
                    1 / 0
            self.assertEqual(len(s), 10)
            s.append(rows(1, 5, 2, 64), rows(2, 5, 2, 64))
            self.assertEqual(len(s), 15)

    def test_full_pool_changes_nothing(self) -> None:
        plan = quire.Plan("k8v4", n_q_heads=8, n_kv_heads=2, d_k=64)
        with quire.Pool(plan, plan.bytes(128)) as pool:
            s = pool.sequence()
            s.append(rows(1, 100, 2, 64), rows(2, 100, 2, 64))
            with self.assertRaises(quire.PoolFull) as raised:
                s.append(rows(1, 100, 2, 64), rows(2, 100, 2, 64))
            self.assertEqual(raised.exception.status, "EFULL")
            self.assertEqual(len(s), 100)

    def test_snapshot(self) -> None:
        with one_layer("a8g64/r4") as pool:
            s = filled(pool, 200, max_tokens=100, sinks=4)
            data = s.to_bytes()
            info = quire.snapshot_info(data)
            self.assertEqual((info.policy, info.length, info.ring.max_tokens), ("a8g64/r4", 200, 100))
            loaded = pool.load(data)
            q = rows(7, 1, 8, 64)
            self.assertTrue((loaded.attend(q) == s.attend(q)).all())
            self.assertEqual(loaded.to_bytes(), data)
            with self.assertRaises(EOFError):
                pool.load(data[:-1])
            with one_layer("balanced") as other:  # as if the preset had meant other codecs when the file was made
                with self.assertRaises(quire.QuireError) as refused:
                    other.load(data)
                self.assertEqual(refused.exception.status, "EMISMATCH")
                self.assertRegex(str(refused.exception), r"snapshot_info\(\).*add_plan\(\)")  # what to do
                other.add_plan(quire.Plan(info.policy, layers=other.plan.layers))
                self.assertEqual(other.load(data).to_bytes(), data)

            class Slow(io.BytesIO):
                """A file without a buffer: moves as many bytes as it likes."""

                def read(self, size: Any = -1) -> bytes:
                    return super().read(min(size, 1000))

                def write(self, data: Any) -> int:
                    return super().write(bytes(data)[:1000])

            slow = Slow()
            s.save(slow)
            self.assertEqual(slow.getvalue(), data)
            self.assertEqual(pool.load(Slow(data)).to_bytes(), data)
            damaged = bytearray(data)
            damaged[len(data) // 2] ^= 1
            with self.assertRaises(quire.QuireError) as raised:
                pool.load(bytes(damaged))
            self.assertEqual(raised.exception.status, "EFORMAT")
        with one_layer("f16") as other, self.assertRaises(quire.QuireError) as raised:
            other.load(data)
        self.assertEqual(raised.exception.status, "EMISMATCH")


if __name__ == "__main__":
    unittest.main()
