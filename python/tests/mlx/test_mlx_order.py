# SPDX-License-Identifier: MIT
"""When rows are read: K, V and Q that are not computed yet, or are being computed on another stream, give what computed ones give.

Quire reads MLX's memory with the CPU. On a Mac the other stream is the GPU's; here it is another one of the CPU. What is tested is that rows are
read after they were computed, not before, and that they are those which were given.
"""
import sys
import unittest

import mlx.core as mx
import numpy as np
import quire.mlx_lm as quire_mlx
from quire._mlx import arrays as _arrays
from support import attend, numpy

B, Q, H, D = 2, 4, 2, 64
POLICIES = ("f32", "r8/r4", "a8g64")
SIZES = (70, 1, 3, 1, 64)


def slow(seed, *shape, dtype):
    """An array that takes a while to be computed, and is not computed yet."""
    x = mx.array(np.random.default_rng(seed).standard_normal((128, 128)).astype(np.float32) / 11)
    y = x
    for _ in range(12):
        y = mx.tanh(y @ x) + x
    n = int(np.prod(shape))
    return mx.tile(y.reshape(-1), -(-n // y.size))[:n].reshape(shape).astype(dtype)


def steps(dtype, stream=None, prepare=lambda arrays: None):
    """Q, K and V of each step, as a model has them: heads before tokens by transposing."""
    for i, n in enumerate(SIZES):
        with mx.stream(stream or mx.default_stream(mx.default_device())):
            arrays = [slow(10 * i + j, B, n, h, D, dtype=dtype).transpose(0, 2, 1, 3) for j, h in enumerate((Q, H, H))]
        prepare(arrays)
        yield arrays


def run(policy, arrays):
    """The output of each step, and all rows at the end."""
    cache = quire_mlx.QuireKVCache(policy)
    out = [numpy(attend(cache, *one)) for one in arrays]
    return out + [numpy(cache.keys.decode()), numpy(cache.values.decode())]


class Order(unittest.TestCase):
    def same(self, a, b, message):
        self.assertTrue(all(np.array_equal(x, y) for x, y in zip(a, b)) and len(a) == len(b), message)

    def test_streams(self):
        other = mx.new_stream(mx.cpu)
        for policy in POLICIES:
            for dtype in (mx.float32, mx.float16, mx.bfloat16):
                want = run(policy, steps(dtype, None, mx.eval))
                self.assertGreater(min(np.abs(x).max() for x in want), 0.01)
                message = f"{policy}, {dtype}"
                self.same(run(policy, steps(dtype)), want, f"not computed: {message}")
                self.same(run(policy, steps(dtype, other)), want, f"not computed, another stream: {message}")
                self.same(run(policy, steps(dtype, other, mx.async_eval)), want, f"being computed, another stream: {message}")

    def test_from_one_step_to_the_next(self):
        """Rows that depend on the attention before, on streams that take turns."""
        streams = [mx.new_stream(mx.cpu) for _ in range(3)]

        def chain(is_lazy):
            cache = quire_mlx.QuireKVCache("r8/r4")
            x, found = slow(1, 1, H, 5, D, dtype=mx.float32), []
            for i in range(8):
                with mx.stream(streams[i % 3] if is_lazy else mx.default_stream(mx.cpu)):
                    k, v = mx.tanh(x + i), x * 0.5 + slow(i, 1, H, 5, D, dtype=mx.float32)
                    if not is_lazy:
                        mx.eval(k, v)
                    x = attend(cache, mx.concatenate([k, k], axis=1), k, v)[:, :H]
                    found.append(x)
            return [numpy(x) for x in found]

        self.same(chain(True), chain(False), "a chain of steps")

    def test_given_rows_stay(self):
        """What is assigned to the arrays after they were given is not in the cache, as with mlx-lm's own caches."""
        for dtype in (mx.float32, mx.float16, mx.bfloat16):
            for computed in (False, True):
                k, v = mx.ones((1, H, 4, D), dtype), mx.ones((1, H, 4, D), dtype)
                if computed:
                    mx.eval(k, v)
                cache = quire_mlx.QuireKVCache("f32")
                keys, values = cache.update_and_fetch(k, v)
                k[:, :, 1], v[:, :, 2] = 5, 7
                k += 1
                self.assertEqual({*numpy(keys.decode()).ravel(), *numpy(values.decode()).ravel()}, {1.0}, f"{dtype}, computed: {computed}")

    def test_memory_is_not_used_again(self):
        """The rows are pending until attention is called. Nothing that is computed meanwhile may take their memory."""
        for prepare in (mx.eval, mx.async_eval, lambda arrays: None):
            cache = quire_mlx.QuireKVCache("f32")
            k, v = slow(1, 1, H, 64, D, dtype=mx.float32), slow(2, 1, H, 64, D, dtype=mx.float32)
            want = numpy(slow(1, 1, H, 64, D, dtype=mx.float32)), numpy(slow(2, 1, H, 64, D, dtype=mx.float32))
            prepare([k, v])
            cache.update_and_fetch(k, v)
            k, v = mx.negative(k), mx.exp(v)  # nobody else has the arrays that were given
            for _ in range(20):
                mx.eval(k, v, mx.random.normal((1, H, 64, D)))
            self.same((numpy(cache.keys.decode()), numpy(cache.values.decode())), want, "pending rows")

    def test_no_copy(self):
        """Rows are read where MLX has them, in the layout of a model: heads before tokens by transposing."""
        for dtype in (mx.float32, mx.float16, mx.bfloat16):
            base = mx.ones((1, 64, H, D), dtype)
            x = base.transpose(0, 2, 1, 3)
            given = _arrays.bits(_arrays.floats(x))
            mx.eval(x, base, given)
            there = np.array(_arrays.bits(base), copy=False).ctypes.data
            seen = _arrays.look(given)
            self.assertEqual(seen.strides[1:3], (D * seen.itemsize, H * D * seen.itemsize), dtype)
            self.assertEqual(seen.ctypes.data, there, dtype)


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
