# SPDX-License-Identifier: MIT
"""Reads the files that llama-server writes for a slot: where the rows of each layer lie."""
import struct

TYPES = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 20: "iq4_nl", 30: "bf16"}


class Rows:
    """K or V of one layer: n rows of row_bytes from offset on. `cache` is 0, or 1 for the layers with a window."""

    def __init__(self, cache, side, layer, kind, row_bytes, n, offset):
        self.cache, self.side, self.layer, self.type = cache, side, layer, kind
        self.row_bytes, self.n, self.offset = row_bytes, n, offset
        self.end = offset + n * row_bytes

    def row(self, data, i):
        return data[self.offset + i * self.row_bytes:self.offset + (i + 1) * self.row_bytes]


class SlotFile:
    """data: the bytes, as a bytearray; rows: list of Rows; `layer` counts within its cache."""

    def __init__(self, path):
        self.data = bytearray(open(path, "rb").read())
        self.at = 0
        magic, version, n_words = self.take("III")
        if magic != 0x67677371:
            raise ValueError(f"{path} is no slot file")
        self.version = version
        self.at += 4 * n_words  # the server's own form of the tokens
        self.rows = []
        cache = 0
        while self.at < len(self.data):
            self.read_cache(cache)
            cache += 1

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def read_cache(self, cache):
        (n_streams,) = self.take("I")
        for _ in range(n_streams):
            (n_cells,) = self.take("I")
            if n_cells == 0:
                continue
            for _ in range(n_cells):
                _, n_seq = self.take("iI")
                self.at += 4 * n_seq
            v_transposed, n_layers = self.take("II")
            if self.version >= 4:
                self.take("II")  # rotations of K and V
            if v_transposed:
                raise ValueError("V is transposed: flash attention was off")
            for side in "kv":
                for layer in range(n_layers):
                    kind, row_bytes = self.take("iQ")
                    rows = Rows(cache, side, layer, TYPES.get(kind, kind), row_bytes, n_cells, self.at)
                    self.rows.append(rows)
                    self.at = rows.end

    def of(self, side, layer=None, cache=0):
        return [r for r in self.rows if r.side == side and r.cache == cache and layer in (None, r.layer)]

    def write(self, path):
        with open(path, "wb") as f:
            f.write(self.data)
