# SPDX-License-Identifier: MIT
"""OpenVINO's CPU plug-in: a model of one PagedAttentionExtension. A configuration is K[/V][,PROPERTY=VALUE...]: types of the cache.

Its cache is filled by the operation itself, every block as a sequence of its own, so that filling costs no long attention.
A measured call also writes the rows of the queries."""
import numpy as np
import openvino as ov
from openvino import Model, PartialShape, Tensor, Type
from openvino import opset13 as op
from openvino._pyopenvino.op import _PagedAttentionExtension  # no public name builds it

import worker
from rows import D, KV_HEADS, Q_HEADS

BLOCK = 32         # tokens of a block of the CPU plug-in
FILL_TOKENS = 2048 # per call while the cache is filled
VALUE_TYPES = {Type.u8: np.uint8, Type.f16: np.float16, Type.f32: np.float32}


def parameter(shape, kind, name):
    node = op.parameter(PartialShape(shape), kind)
    node.set_friendly_name(name)
    node.output(0).get_tensor().set_names({name})
    return node


def model():
    def constant(value, kind):
        return op.constant(np.array(value, kind))

    def none(kind):
        return op.constant(np.zeros(0, kind))

    inputs = [parameter([-1, Q_HEADS * D], Type.f32, "q"), parameter([-1, KV_HEADS * D], Type.f32, "k"),
              parameter([-1, KV_HEADS * D], Type.f32, "v")]
    inputs += [parameter([-1] * 4, Type.dynamic, name) for name in ("key_cache.0", "value_cache.0")]
    inputs += [parameter([-1], Type.i32, name)
               for name in ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")]
    longest = parameter([], Type.i32, "max_context_len")
    i32, f32 = np.int32, np.float32
    # Scale, window, ALiBi; then what eviction, rotation, sparse attention, sinks and so on would need: off.
    settings = [constant(D ** -0.5, f32), constant(0, i32), none(f32), longest, none(i32), none(i32), none(i32), none(f32), none(f32),
                constant(64, i32), constant(8, i32), none(f32), constant(0, i32), none(i32), none(i32), none(i32), none(i32),
                none(np.uint8), none(i32)]
    attention = _PagedAttentionExtension([x.output(0) for x in inputs + settings])
    info = attention.get_rt_info()
    info["num_k_heads"] = info["num_v_heads"] = KV_HEADS
    info["k_head_size"] = info["v_head_size"] = D
    return Model([op.result(attention.output(0))], inputs + [longest], "attention")


def properties(text, threads):
    types, *more = text.split(",")
    k, _, v = types.partition("/")
    chosen = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32", "KEY_CACHE_PRECISION": k,
              "VALUE_CACHE_PRECISION": v or k}
    chosen.update(x.split("=") for x in more)
    return chosen


class Paged:
    isa = ""

    def __init__(self, core, text, q, k, v, threads):
        self.compiled = core.compile_model(model(), "CPU", properties(text, threads))
        self.request = self.compiled.create_infer_request()
        context, queries = len(k), len(q)
        n_blocks = (context + BLOCK - 1) // BLOCK
        self.bytes, self.memory = 0, []  # tensors do not own their memory
        for name in ("key_cache.0", "value_cache.0"):
            self.request.set_tensor(name, self.cache(self.compiled.input(name), n_blocks))
        for first in range(0, context, FILL_TOKENS):
            self.fill(k[first:first + FILL_TOKENS], v[first:first + FILL_TOKENS], first)
        last = context - queries
        self.feed(q, k[last:], v[last:], [last], [0, queries], range(n_blocks), [0, n_blocks], context)

    def cache(self, port, n_blocks):
        shape = [n_blocks] + [port.get_partial_shape()[i].get_length() for i in (1, 2, 3)]
        kind = port.get_element_type()
        size = int(np.prod(shape)) * kind.bitwidth // 8
        self.bytes += size
        memory = worker.huge(size)
        self.memory.append(memory)
        if kind in VALUE_TYPES:
            return Tensor(memory.view(VALUE_TYPES[kind]).reshape(shape), shared_memory=True)
        return Tensor(memory, ov.Shape(shape), kind)  # 4 bits

    def fill(self, k, v, first):
        n = len(k)
        blocks = (n + BLOCK - 1) // BLOCK
        begins = np.minimum(np.arange(blocks + 1) * BLOCK, n)
        self.feed(np.zeros((n, Q_HEADS * D)), k, v, np.zeros(blocks), begins, np.arange(blocks) + first // BLOCK,
                  range(blocks + 1), BLOCK)
        self.request.infer()

    def feed(self, q, k, v, past, begins, blocks, block_begins, longest):
        n = len(q)
        arrays = {name: np.array(np.reshape(x, (n, -1)), np.float32) for name, x in (("q", q), ("k", k), ("v", v))}
        arrays.update((name, np.array(x, np.int32)) for name, x in (
            ("past_lens", past), ("subsequence_begins", begins), ("block_indices", blocks), ("block_indices_begins", block_begins)))
        self.kept = arrays
        for name, array in arrays.items():
            self.request.set_tensor(name, Tensor(array, shared_memory=True))
        self.request.set_tensor("max_context_len", Tensor(np.array(longest, np.int32)))

    def run(self):
        self.request.infer()

    def out(self):
        return self.request.get_output_tensor(0).data


if __name__ == "__main__":
    CORE = ov.Core()
    worker.main(lambda *arguments: Paged(CORE, *arguments))
