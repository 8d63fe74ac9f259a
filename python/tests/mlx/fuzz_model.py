# SPDX-License-Identifier: MIT
"""What a cache must contain, in numpy: all rows that a sequence ever got and has not lost by a trim, and the columns around them."""
import copy

import numpy as np
from reference import attention

Q, H, D = 4, 2, 16
SCALE = D**-0.5


class Model:
    """bound: max_tokens, sinks, spare; zeros without one. A row that the bound has dropped stays here; nothing may show another in its place."""

    def __init__(self, batch, bound=(0, 0, 0), padding=()):
        self.batch, self.bound = batch, bound
        self.rows = [np.zeros((2, H, 0, D), np.float32) for _ in padding]  # K and V
        self.padding, self.columns, self.end = list(padding), 0, None

    def copy(self):
        return copy.deepcopy(self)

    def length(self, i):
        columns = self.columns if self.end is None else min(self.columns, self.end[i])
        return max(columns - self.padding[i], 0)

    # ------------------------------------------------------------------ changes

    def append(self, k, v):
        n, _, count, _ = k.shape
        if not self.rows:
            self.rows, self.padding = [np.zeros((2, H, 0, D), np.float32) for _ in range(n)], [0] * n
        before = [self.length(i) for i in range(n)]
        start = self.columns
        self.columns += count
        for i in range(n):
            first = max(start, self.padding[i]) - start
            more = self.length(i) - before[i]
            self.rows[i] = np.concatenate([self.rows[i], np.stack([k[i], v[i]])[:, :, first:first + more]], 2)

    def trim(self, count):
        self.columns -= min(count, self.columns)
        self.rows = [r[:, :, :self.length(i)] for i, r in enumerate(self.rows)]

    def shift(self, by):
        self.columns += by
        self.padding = [p + by for p in self.padding]
        self.end = None if self.end is None else [e + by for e in self.end]

    def filter(self, which):
        self.rows, self.padding = [self.rows[i] for i in which], [self.padding[i] for i in which]
        self.end = None if self.end is None else [self.end[i] for i in which]
        self.shift(-min(min(self.padding, default=self.columns), self.columns))

    def extend(self, other):
        other, columns = other.copy(), max(self.columns, other.columns)
        self.shift(columns - self.columns)
        other.shift(columns - other.columns)
        self.rows += other.rows
        self.padding += other.padding
        self.end = None if self.end is None else self.end + other.end

    def finalize(self):
        if self.end is not None:
            self.padding = [p + max(self.columns - e, 0) for p, e in zip(self.padding, self.end)]
            self.end = None

    def extract(self, i):
        one = Model(False, self.bound, [0])
        one.rows, one.columns = [self.rows[i]], self.length(i)
        return one

    @staticmethod
    def merge(models):
        batch = Model(True, models[0].bound)
        batch.columns = max(m.columns for m in models)
        batch.padding = [batch.columns - m.columns for m in models]
        batch.rows = [m.rows[0] if m.rows else np.zeros((2, H, 0, D), np.float32) for m in models]
        return batch

    # ------------------------------------------------------------------ answers

    def shown(self, side):
        """What decode() shows: zeros for padding and for rows that the bound hides."""
        out = np.zeros((len(self.rows), H, self.columns, D), np.float32)
        most, sinks, _ = self.bound
        for i, r in enumerate(self.rows):
            n = r.shape[2]
            seen = np.ones(n, bool) if not most or n <= most else (np.arange(n) < sinks) | (np.arange(n) >= n - (most - sinks))
            out[i, :, self.padding[i]:self.padding[i] + n][:, seen] = r[side][:, seen]
        return out

    def attend(self, i, q, added, both_ways):
        """Outputs of the queries of the last columns that are tokens of sequence i, with the columns they are in. q: (head, column, channel)."""
        count, n = q.shape[1], self.rows[i].shape[2]
        start = self.columns - count
        first = max(start, self.padding[i])
        last = max(self.padding[i] + n, first)
        if first >= last:
            return slice(0, 0), None
        most, sinks, _ = self.bound
        p = np.arange(first, last)[:, None] - self.padding[i]
        j = np.arange(n)[None]
        seen = np.ones((last - first, n), bool) if both_ways else j <= p
        if most:
            seen = seen & ((j < sinks) | (j > p - (most - sinks)))
        mask = np.where(seen, 0.0, -np.inf)[None, None]
        if added is not None:
            mask = mask + added[:, :, first - start:last - start, self.padding[i]:self.padding[i] + n]
        k, v = self.rows[i][:1], self.rows[i][1:]
        return slice(first - start, last - start), attention(q[None, :, first - start:last - start], k, v, SCALE, mask)[0]

