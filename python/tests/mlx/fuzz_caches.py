# SPDX-License-Identifier: MIT
"""Random sequences of calls on the caches for mlx-lm beside a model in numpy, with interrupts at random moments, in child processes that may not
die.

    python/tests/mlx/run.py fuzz_caches.py [SEQUENCES [SEED]]        10,000 sequences are the long form

After each call a cache must contain exactly what the model says; after a call that was interrupted, what it said before the call or after it.
A call that is refused must change nothing. Exit status 1: a difference or a signal; hypothesis prints the shortest sequence that shows it.
"""
import copy
import faulthandler
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

sys.path += [os.environ["QUIRE_HYPOTHESIS"]] if "QUIRE_HYPOTHESIS" in os.environ else []  # run.py sets it

import mlx.core as mx
import numpy as np
import quire.mlx_lm as quire_mlx
from fuzz_model import SCALE, D, H, Model, Q
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st
from interrupts import Stop, interrupted, timed
from reference import error
from support import MOST, numpy

BLOCK = 500  # sequences of one child
COUNTS = (1, 1, 1, 2, 3, 7, 40, 64, 65, 130, 200)
BOUNDS = ((0, 0, 0), (0, 0, 0), (16, 2, 0), (40, 4, 8), (70, 0, 3), (20, 19, 150))
NO_INTERRUPT = 300  # moments from here on: none
REFUSED = (ValueError, TypeError)
done = {"calls": 0, "interrupts": 0, "refused": 0}


class Pair:
    """A cache and what it must contain."""

    def __init__(self, cache, model):
        self.cache, self.model = cache, model

    def differs(self, model, deep=True):
        """A sentence if the cache is not what the model says. deep: its rows too, which encodes those that are pending."""
        c = self.cache
        now = c._settle() if deep else c._now
        if not now.columns and not model.columns and not model.batch:
            return ""  # an empty cache may have forgotten how many sequences it was for
        if (now.columns, list(now.padding), None if now.end is None else list(now.end)) != (model.columns, model.padding, model.end):
            return f"columns {now.columns} {now.padding} {now.end}, not {model.columns} {model.padding} {model.end}"
        if not deep:
            return ""
        lengths = [0 if s is None else s.length for s in now.sequences]
        if lengths != [r.shape[2] for r in model.rows]:
            return f"lengths {lengths}, not {[r.shape[2] for r in model.rows]}"
        for side, name in enumerate("kv"):
            if model.columns and now.shape is not None and not np.array_equal(numpy(c._decode(name)), model.shown(side)):
                return f"other rows of {name}"
        return ""


class Run:
    """One sequence of calls on a few caches of the same settings."""

    def __init__(self, bound):
        self.bound = bound
        self.pools = POOLS[0]
        self.rng = np.random.default_rng(1)
        self.pairs = [Pair(self.single(), Model(False, bound))]

    def single(self):
        most, sinks, spare = self.bound
        return quire_mlx.QuireKVCache("f32", pools=self.pools, **(dict(max_tokens=most, sinks=sinks, spare=spare) if most else {}))

    def data(self, *shape):
        return self.rng.standard_normal(shape).astype(np.float32)

    def one(self, call, number, moment):
        done["calls"] += 1
        pair = self.pairs[number % len(self.pairs)]
        number //= 4
        kind = CALLS[call % len(CALLS)]
        model = pair.model.copy()
        act = getattr(self, kind)(pair.cache, model, number)  # changes the model; gives what is to be called, and what must come of it
        if act is None:
            return
        work, must, look = act
        result, refused, came = [], None, False
        call_it = lambda: result.append(work())
        try:
            if moment < NO_INTERRUPT:
                came = timed(call_it, moment * 2e-6, Stop) if moment % 4 == 3 else interrupted(call_it, moment)
            else:
                call_it()
        except REFUSED as e:
            refused = e
        done["interrupts"] += came
        done["refused"] += refused is not None
        if refused is not None and must == "work":
            raise refused
        if must == "refuse":
            assert refused is not None or came, f"{kind} was not refused"
            model = pair.model
        deep = number % 3 > 0  # otherwise the next call finds what this one left
        before, after = pair.differs(pair.model, deep), pair.differs(model, deep)
        if came and not after or not came and refused is None:
            assert not after, f"{kind}: {after}"
            pair.model = model
        else:
            # What was refused has changed nothing, except that rows of an update may be there whose attention was refused.
            assert not before or kind == "attend" and not after, f"{kind}, interrupted {came}, refused {refused}: {before}; {after}"
            pair.model = pair.model if not before else model
        if result and look is not None:
            look(result[0])

    def add(self, cache, model, where=None):
        pair = Pair(cache, model)
        wrong = pair.differs(model)
        assert not wrong, wrong
        self.pairs.append(pair)
        if len(self.pairs) > 4:
            self.pairs.pop(1)

    # ------------------------------------------------------------------ calls

    def attend(self, cache, model, number):
        n = len(model.rows) or 1 + number % 2
        if model.batch and not model.rows:
            return None
        count, kind = COUNTS[number % len(COUNTS)], number // len(COUNTS) % 5
        q, k, v = self.data(n, Q, count, D), self.data(n, H, count, D), self.data(n, H, count, D)
        model.append(k, v)
        ring, added, mask = bool(self.bound[0]), None, "causal"
        if kind == 1:
            added = self.data(1, Q, count, model.columns)
            mask = mx.array(added)
        elif kind == 2:
            mask = None
        elif kind == 3 and not ring:
            mask = cache.make_mask(count, return_array=True)
        both_ways = not ring and (kind == 1 or kind == 2 and count > 1)
        must = "may" if ring and kind == 2 and count > 1 else "work"
        sinks = mx.array(self.data(Q)) if kind == 4 else None
        given = [mx.array(x) for x in (q, k, v)]

        def work():
            keys, values = cache.update_and_fetch(*given[1:])
            out = mx.fast.scaled_dot_product_attention(given[0], keys, values, scale=SCALE, mask=mask, sinks=sinks)
            if kind == 0 and (not ring or count <= 128):
                again = mx.fast.scaled_dot_product_attention(given[0], keys, values, scale=SCALE, mask=mask)
                assert np.array_equal(numpy(out), numpy(again)), "the same keys gave another result"
            return out

        def look(out):
            got = numpy(out)
            for i in range(n):
                where, want = model.attend(i, q[i], added, both_ways)
                if want is not None and sinks is None:
                    assert error(got[i][:, where], want) < MOST, f"attention of sequence {i}"
                rest = np.delete(got[i], np.arange(count)[where], 1)
                assert not rest.any(), "padding has values"

        return work, must, look

    def update(self, cache, model, number):
        """Rows that nobody attends to."""
        n, count = len(model.rows) or 1, COUNTS[number % len(COUNTS)]
        if model.batch and not model.rows:
            return None
        k, v = self.data(n, H, count, D), self.data(n, H, count, D)
        model.append(k, v)
        given = mx.array(k), mx.array(v)
        return lambda: cache.update_and_fetch(*given), "work", None

    def wrong(self, cache, model, number):
        n = len(model.rows) or 1
        k = mx.array(self.data(n, H, 3, D))
        bad = [(k, k[:, :, :2]), (k, k[:, :1]), (k[0], k), (k, k[None]), (k.astype(mx.int32), k), (k, k.astype(mx.complex64)), (k, None),
               (mx.zeros((n + 1, H, 3, D)), k), (k[:, :, :, :0], k), (k, mx.zeros((n, H, 4, D))), (numpy(k), k)]
        if model.rows and cache._shape is not None:
            bad += [(k[..., :8], k), (k[:, :1], k[:, :1]), (mx.zeros((n + 1, H, 3, D)),) * 2]
        return lambda: cache.update_and_fetch(*bad[number % len(bad)]), "refuse", None

    def trim(self, cache, model, number):
        count = (0, 1, 2, 3, 8, 30, 63, 64, 100, 1000, -1, 1.5)[number % 12]
        if count in (-1, 1.5):
            return lambda: cache.trim(count), "refuse", None
        most, _, spare = self.bound
        model.trim(count)
        return lambda: cache.trim(count), "work" if not most else "may", None

    def copies(self, cache, model, number):
        make = (copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c)), lambda c: type(c).from_state(dict(c.state.items())))[number % 4]
        if number % 4 > 1 and number % 3:  # these are in the default pools, and could not be joined with others
            make = copy.copy
        look = lambda other: self.add(other, model.copy()) if other.pools is self.pools else Pair(other, model).differs(model) and self.fail()
        return lambda: make(cache), "work", look

    def fail(self):
        raise AssertionError("a loaded cache is another")

    def merge(self, cache, model, number):
        chosen = [p for p in self.pairs if not p.model.batch and len(p.model.rows) < 2]
        if not chosen:
            return None
        chosen = [chosen[(number >> i) % len(chosen)] for i in range(1 + number % 3)]
        for p in chosen:
            p.cache._settle()
        merged = Model.merge([p.model for p in chosen])
        return lambda: quire_mlx.QuireKVCache.merge([p.cache for p in chosen]), "work", lambda batch: self.add(batch, merged)

    def extract(self, cache, model, number):
        if not model.batch:
            return None
        if number % 7 == 0 or not model.rows:
            return lambda: cache.extract(len(model.rows) + number % 3), "refuse", None
        i = number % len(model.rows)
        return lambda: cache.extract(i), "work", lambda one: self.add(one, model.extract(i))

    def filter(self, cache, model, number):
        if not model.batch or not model.rows:
            return None
        if number % 7 == 0:
            bad = ([len(model.rows)], [-len(model.rows) - 1], [0.5], [True], None)[number // 7 % 5]
            return lambda: cache.filter(bad), "refuse", None
        which = [(number >> i) % len(model.rows) for i in range(number % 4)]
        model.filter(which)
        return lambda: cache.filter(mx.array(which, mx.int32) if number % 2 and which else which), "work", None

    def extend(self, cache, model, number):
        others = [p for p in self.pairs if p.model.batch]
        if not model.batch or number % 5 == 0 or len(model.rows) > 6:
            other = (quire_mlx.QuireKVCache("f32"), None, quire_mlx.BatchQuireKVCache([0], quire_mlx.Settings("r8")))[number % 3]
            return (lambda: cache.extend(other), "refuse", None) if model.batch else None
        other = others[number % len(others)]
        if (other.model.end is None) != (model.end is None):
            return lambda: cache.extend(other.cache), "refuse", None
        model.extend(other.model)
        return lambda: cache.extend(other.cache), "work", None

    def prepare(self, cache, model, number):
        if not model.batch or not model.rows:
            return None
        lengths = [(number >> i) % 5 for i in range(len(model.rows))]
        right = [max(lengths) - n for n in lengths]
        if number % 5 == 0:
            return lambda: cache.prepare(right_padding=right + [3], lengths=lengths), "refuse", None
        if not max(right):
            return lambda: cache.prepare(right_padding=right, lengths=lengths), "work", None
        if model.end is not None:
            return lambda: cache.prepare(right_padding=right, lengths=lengths), "refuse", None
        model.end = [model.columns + n for n in lengths]
        return lambda: cache.prepare(right_padding=mx.array(right), lengths=lengths), "work", None

    def finalize(self, cache, model, number):
        if not model.batch:
            return None
        model.finalize()
        return cache.finalize, "work", None

    def convert(self, cache, model, number):
        """To mlx-lm and back. A ring comes back without the rows that its bound had dropped."""
        if model.batch or not model.columns:
            return None
        spare = self.bound[2]
        back = lambda: quire_mlx.from_mlx(quire_mlx.to_mlx(cache), "f32", spare=spare, pools=self.pools)
        return back, "work", lambda other: self.add(other, model.copy())

    def stale(self, cache, model, number):
        if not model.columns or cache._shape is None or not model.rows:
            return None
        keys, values = cache.keys_and_values()
        n = len(model.rows)
        model.trim(0)

        def work():
            copy.copy(cache)
            cache.trim(0)
            mx.fast.scaled_dot_product_attention(mx.zeros((n, Q, 1, D)), keys, values, scale=1.0)

        return work, "refuse", None


CALLS = ("attend", "attend", "attend", "update", "wrong", "trim", "trim", "copies", "merge", "extract", "filter", "extend", "prepare", "finalize",
         "convert", "stale")
POOLS = []


def child(count, number):
    faulthandler.enable()
    sys.unraisablehook = lambda _: None  # interrupts in finalizers and in callbacks of the garbage collector
    POOLS.append(quire_mlx.Pools(threads=1))
    number_of = st.integers(0, 2**16)
    sequences = st.lists(st.tuples(st.integers(0, len(CALLS) - 1), number_of, st.integers(0, 2 * NO_INTERRUPT)), min_size=4, max_size=14)

    @seed(number)
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink])
    @given(st.integers(0, len(BOUNDS) - 1), sequences)
    def run(bound, calls):
        it = Run(BOUNDS[bound])
        for call in calls:
            it.one(*call)
        done["sequences"] = done.get("sequences", 0) + 1

    run()
    print(json.dumps(done))


def main():
    if sys.argv[1:2] == ["--child"]:
        return child(int(sys.argv[2]), int(sys.argv[3]))
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    total, began = {}, time.time()
    folder = tempfile.TemporaryDirectory()  # else hypothesis makes one where it is started
    env = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": folder.name}
    sizes = [min(BLOCK, count - at) for at in range(0, count, BLOCK)]
    run = lambda i: subprocess.run([sys.executable, __file__, "--child", str(sizes[i]), str(first + i)], stdout=subprocess.PIPE, text=True, env=env)
    with ThreadPoolExecutor(2) as threads:
        for i, ran in enumerate(threads.map(run, range(len(sizes)))):
            if ran.returncode:
                threads.shutdown(wait=False, cancel_futures=True)
                how = f"signal {-ran.returncode}" if ran.returncode < 0 else f"status {ran.returncode}"
                print(f"{ran.stdout}\nfuzz_caches: a child ended with {how}: {sizes[i]} sequences of seed {first + i}")
                return 1
            for name, number in json.loads(ran.stdout.splitlines()[-1]).items():
                total[name] = total.get(name, 0) + number
    print(f"fuzz_caches: {total['sequences']} sequences, {total['calls']} calls, {total['interrupts']} interrupted, {total['refused']} refused: no signal, "
          f"no difference ({time.time() - began:.0f} s, seed {first})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
