# SPDX-License-Identifier: MIT
"""What arrays are taken, by every way in, and what a call adds to the library's own time."""

from __future__ import annotations

import ctypes
import unittest
from typing import Any

import numpy as np
from support import one_layer, rows

import calls
import quire
from quire import _native


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


class Arrays(unittest.TestCase):
    def test_what_is_refused(self) -> None:
        with one_layer() as pool:
            s = pool.sequence()
            k, v = rows(1, 6, 2, 64), rows(2, 6, 2, 64)
            kinds: Any = [
                (TypeError, k.astype(np.float64), "float64"), (TypeError, k.astype(np.int8), "int8"), (TypeError, memoryview(k), "k"),
                (TypeError, k.astype(">f4"), "k"), (TypeError, k.view(np.uint32).astype(np.uint16), "bf16"),
                (ValueError, k[:, :1], "shape"), (ValueError, k[:, :, :63], "shape"), (ValueError, k[0], "shape"),
                (ValueError, k[::-1], "backwards"), (ValueError, np.broadcast_to(k[:1], k.shape), "overlap"),
                (ValueError, rows(1, 6, 64, 2).transpose(0, 2, 1), "side by side"),
                (ValueError, np.zeros(6 * 512 + 1, np.uint8)[1:].view(np.float32).reshape(6, 2, 64), "aligned"),
            ]
            for error, wrong, word in kinds:
                with self.subTest(word=word), self.assertRaisesRegex(error, word):
                    s.append(wrong, v)
            with self.assertRaisesRegex(ValueError, "v is missing"):
                s.append(k)
            with self.assertRaisesRegex(ValueError, "shape"):
                s.append(k, v[:5])
            self.assertEqual(len(s), 0)
            s.append(k, v)
            q = rows(3, 2, 8, 64)
            for error, wrong in ((TypeError, q.astype(np.float64)), (TypeError, q.astype(np.uint16)), (ValueError, q[:, :7]),
                                 (ValueError, rows(3, 7, 8, 64))):
                with self.assertRaises(error):
                    s.attend(wrong)
            out = np.zeros((2, 8, 64), np.float32)
            out.flags.writeable = False
            with self.assertRaisesRegex(ValueError, "written"):
                s.attend(q, out=out)
            with s.step(2) as step:
                step.append(0, k[:2], v[:2])
                with self.assertRaisesRegex(ValueError, "shape"):
                    step.attend(0, q[:1])
                with self.assertRaisesRegex(TypeError, "float32"):
                    step.attend(0, q, out=np.zeros((2, 8, 64), np.float16), partial=True)
                with self.assertRaisesRegex(TypeError, "numpy array"):
                    step.append(0, k[:2].tolist(), v[:2])  # type: ignore[arg-type]
            with self.assertRaisesRegex(ValueError, "layer"):
                s.attend(q, layer=1)
            with self.assertRaisesRegex(TypeError, "unknown_option"):
                s.attend(q, unknown_option=1)

    def test_every_way_in_refuses_the_same(self) -> None:
        """Calls accept arrays without gaps after fewer checks; what differs in one way only must not pass for one."""
        def wrong(right: Any, writes: bool) -> Any:
            tokens, heads, width = right.shape
            raw = np.zeros(right.nbytes + 8, np.uint8)
            yield TypeError, right.astype(np.float64)
            yield TypeError, right.astype(">f4")
            yield TypeError, right.astype(np.uint16)
            yield TypeError, right.view(np.int32)
            yield TypeError, right.tolist()
            yield TypeError, memoryview(right)
            yield ValueError, right[:-1]
            yield ValueError, right[:0]
            yield ValueError, right[None]
            yield ValueError, right.reshape(tokens, heads // 2, width * 2)
            yield ValueError, right.reshape(heads, tokens, width)
            yield ValueError, right.reshape(-1)
            yield ValueError, np.zeros((), np.float32)
            yield ValueError, np.concatenate([right, right], 2)
            yield ValueError, np.concatenate([right, right])
            yield ValueError, np.concatenate([right, right], 2)[:, :, ::2]
            yield ValueError, np.asfortranarray(right)
            yield ValueError, right[::-1]
            yield ValueError, right[:, ::-1]
            yield ValueError, np.broadcast_to(right[:1], right.shape)
            yield ValueError, np.broadcast_to(right[:, :1], right.shape)
            yield ValueError, raw[1:1 + right.nbytes].view(np.float32).reshape(right.shape)
            if writes:
                fixed = right.copy()
                fixed.flags.writeable = False
                yield ValueError, fixed
                yield ValueError, np.frombuffer(bytes(right.nbytes), np.float32).reshape(right.shape)

        with one_layer() as pool:
            s = pool.sequence()
            k, v, q, out = rows(1, 3, 2, 64), rows(2, 3, 2, 64), rows(3, 3, 8, 64), rows(4, 3, 8, 64)
            s.append(k, v)
            step = s.step(3)
            ways: Any = [(k, False, lambda x: step.append(0, x, v)), (v, False, lambda x: step.append(0, k, x)),
                         (q, False, lambda x: step.attend(0, x)), (q, False, lambda x: step.attend(0, x, out=out)),
                         (out, True, lambda x: step.attend(0, q, out=x)), (out, True, lambda x: s.attend(q, out=x)),
                         (q, False, lambda x: step.attend(0, x, scale=0.1, dtype="f32"))]
            for way, (right, writes, call) in enumerate(ways):
                call(right)
                for i, (error, array) in enumerate(wrong(right, writes)):
                    with self.subTest(way=way, i=i), self.assertRaises(error):
                        call(array)
            for layer in (-1, 1, 2**32):
                for call in (lambda: step.append(layer, k, v), lambda: step.attend(layer, q), lambda: s.attend(q, layer)):
                    with self.assertRaisesRegex(ValueError, "layer"):
                        call()
            with self.assertRaisesRegex(ValueError, "missing"):
                step.append(0, k)
            step.commit()
            for call in (lambda: step.append(0, k, v), lambda: step.attend(0, q), lambda: step.attend(0, q, out=out)):
                with self.assertRaises(quire.ClosedError):
                    call()

    def test_every_kind_of_right_array_gives_the_same(self) -> None:
        class Own(np.ndarray):  # type: ignore[type-arg]
            pass

        with one_layer() as pool:
            s = pool.sequence()
            k, v, q = rows(1, 2, 2, 64), rows(2, 2, 2, 64), rows(3, 2, 8, 64)
            s.append(k, v)
            fixed = q.copy()
            fixed.flags.writeable = False
            gaps = np.concatenate([q, q], 2)[:, :, :64]
            with s.step(2) as step:
                step.append(0, k, v)
                wanted = step.attend(0, q)
                for i, same in enumerate((fixed, gaps, q.view(Own), q.astype("=f4"), np.ascontiguousarray(q.transpose(1, 0, 2)).transpose(1, 0, 2))):
                    room = rows(5, 6, 8, 64)
                    kept = room.copy()
                    with self.subTest(i=i):
                        self.assertTrue((step.attend(0, same) == wanted).all())
                        self.assertIs(type(step.attend(0, same)), np.ndarray)
                        into = room[2:4]
                        self.assertIs(step.attend(0, same, out=into), into)
                        self.assertTrue((into == wanted).all())
                        room[2:4] = kept[2:4]
                        self.assertTrue((room == kept).all())
                half = step.attend(0, q.astype(np.float16))
                self.assertEqual(half.dtype, np.float16)
                self.assertLess(np.abs(half - wanted).max(), 0.01)
            nothing = pool.sequence()
            with pool.step([nothing, s], [0, 2]) as step:
                step.append(0, k, v)
                self.assertEqual(step.attend(0, q).shape, (2, 8, 64))
            with nothing.step(0) as step:
                step.append(0, k[:0], v[:0])
                self.assertEqual(step.attend(0, q[:0]).shape, (0, 8, 64))

    def test_numbers_that_do_not_fit(self) -> None:
        """ctypes would cut them: 2^32 + 1 tokens would be 1."""
        plan = quire.Plan("k8v4", n_q_heads=8, n_kv_heads=2, d_k=64)
        profile = quire.Profile([quire.Layer(8, 2, 64, 64)])
        with one_layer() as pool:
            s = pool.sequence()
            s.append(rows(1, 5, 2, 64), rows(2, 5, 2, 64))
            q, big = rows(3, 1, 8, 64), 2**32 + 1
            for call in (lambda: plan.layer(big - 1), lambda: plan.bytes(big), lambda: plan.bytes(1, max_tokens=-1),
                         lambda: pool.sequence(max_tokens=big), lambda: s.step(big), lambda: s.step(-1), lambda: s.trim(big),
                         lambda: s.attend(q, position=-1), lambda: s.attend(q, position=big), lambda: quire.Pool(plan, -1),
                         lambda: quire.Pool(plan, 2**64 + (1 << 26)), lambda: quire.Threads(big), lambda: quire.Store(disk_threads=-1),
                         lambda: quire.Store(disk_bytes=2**64), lambda: quire.Store(remote=quire.Remote("a", port=big)),
                         lambda: profile.observe_k(0, rows(1, 5, 2, 64), -1), lambda: profile.set_length(big),
                         lambda: profile.score_error(big - 1, "r4")):
                with self.assertRaises(ValueError):
                    call()
            with self.assertRaises(TypeError):
                s.step(1.5)  # type: ignore[arg-type]

    def test_strided_views_are_taken_as_they_lie(self) -> None:
        with one_layer("f32") as pool:
            k, v = rows(1, 9, 2, 64), rows(2, 9, 2, 64)
            s = pool.sequence()
            by_head = np.ascontiguousarray(k.transpose(1, 0, 2)).transpose(1, 0, 2)
            wide = np.zeros((18, 2, 100), np.float32)
            wide[::2, :, :64] = v
            s.append(by_head, wide[::2, :, :64])
            self.assertTrue((s.rows("k") == k).all() and (s.rows("v") == v).all())
            q = rows(3, 4, 8, 64)
            q_by_head = np.ascontiguousarray(q.transpose(1, 0, 2)).transpose(1, 0, 2)
            out = np.zeros((8, 4, 64), np.float32)
            s.attend(q_by_head, out=out.transpose(1, 0, 2))
            self.assertTrue((out.transpose(1, 0, 2) == s.attend(q)).all())
            with s.step(4) as step:
                step.append(0, k[:4], v[:4])
                step.attend(0, q_by_head, out=out.transpose(1, 0, 2))
                self.assertTrue((out.transpose(1, 0, 2) == step.attend(0, q)).all())
            into = np.zeros((2, 9, 64), np.float16)
            s.rows("k", 0, 0, 9, out=into.transpose(1, 0, 2), dtype="f16")
            self.assertTrue((into.transpose(1, 0, 2) == k.astype(np.float16)).all())

    def test_forms_of_rows(self) -> None:
        k = rows(1, 70, 2, 64)
        bf16 = (k.view(np.uint32) >> 16).astype(np.uint16)
        with one_layer("f32") as pool:
            s = pool.sequence()
            s.append(bf16, bf16, dtype="bf16")
            self.assertTrue((s.rows("k").view(np.uint32) == bf16.astype(np.uint32) << 16).all())
            self.assertTrue((s.rows("v", dtype="bf16") == bf16).all())
            s.append(k.astype(np.float16), k.astype(np.float16))
            self.assertTrue((s.rows("k", 0, 70) == k.astype(np.float16).astype(np.float32)).all())
            for dtype in ("f16", "f64"):
                with self.assertRaises((TypeError, ValueError)):
                    s.append(bf16, bf16, dtype=dtype)

    def test_nothing_is_copied(self) -> None:
        """The library gets the address of the array itself, and appending takes no memory of the size of the rows."""
        seen = []
        real = _native.lib.quire_step_append_rows

        def spy(step: Any, layer: int, index: int, k: Any, v: Any) -> int:
            seen.append((k.data, v.data))
            return int(real(step, layer, index, k, v))

        k, v = rows(1, 4096, 8, 128), rows(2, 4096, 8, 128)
        with one_layer("k8v4", heads=8, per=1, d=128) as pool:
            s = pool.sequence()
            _native.lib.quire_step_append_rows = spy
            try:
                s.append(k, v)
            finally:
                _native.lib.quire_step_append_rows = real
            self.assertEqual(seen, [(k.ctypes.data, v.ctypes.data)])
            before = _resident()
            for _ in range(3):
                s.append(k, v)
            # Three times 32 MiB of floats went in; the pages of k8v4 take a fifth of that.
            self.assertLess(_resident() - before, pool.stats.used_bytes + (8 << 20))


class Cost(unittest.TestCase):
    def test_what_python_adds_to_a_call(self) -> None:
        """At most several times what scripts/bench-python calls measures, in one of several tries: the machine may be busy."""
        for _ in range(6):
            above = {row["kind"]: row["above_c_us"] for row in calls.measure("r8", 0.5)}
            if above["step"] < 40 and above["step, out"] < 40 and above["sequence"] < 80:
                return
        self.fail(f"Python adds {above} us")


if __name__ == "__main__":
    unittest.main()
