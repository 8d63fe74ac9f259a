# SPDX-License-Identifier: MIT
"""A prompt of 4,096 tokens: Quire's cache takes what its plan says, and attention over it a copy of nothing; mlx-vlm decodes its cache to floats."""
import unittest

from measure_vlm import D, FLOAT_BYTES, HEADS, KV_HEADS, prefill
import quire.mlx_vlm as quire_vlm
from mlx_vlm.turboquant import TurboQuantKVCache
import quire

TOKENS, PIECE = 4096, 256


class Memory(unittest.TestCase):
    def test_prefill(self):
        with quire.Plan("tv4", n_q_heads=HEADS, n_kv_heads=KV_HEADS, d_k=D) as plan:
            planned = TOKENS // 64 * plan.page_bytes()[0]
        _, decoded, _ = prefill(TurboQuantKVCache(bits=4), TOKENS, PIECE)
        self.assertGreater(decoded, TOKENS * FLOAT_BYTES)  # all of K and V, and what comes between
        pools = quire_vlm.Pools(1 << 28)
        ours = quire_vlm.QuireKVCache("tv4", pools=pools)
        mlx, _, pages = prefill(ours, TOKENS, PIECE)
        self.assertEqual(pages, planned)
        self.assertEqual(pools.peak_bytes, planned)
        self.assertLess(mlx, 2 * PIECE * HEADS * D * 4)  # the output, and a copy of it
        print(f"mlx-vlm decodes to {decoded / 1e6:.1f} MB; Quire has {pages / 1e6:.1f} MB of pages and {mlx / 1e6:.1f} MB of MLX")


if __name__ == "__main__":
    unittest.main()
