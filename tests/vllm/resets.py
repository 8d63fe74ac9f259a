# SPDX-License-Identifier: MIT
"""The connector without an engine: resets, changed weights, many tenants, memory."""
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from identities import ok, secret
from part import HEADS, LAYERS, PAGE, D, Part, Request
from quire_vllm import connector, identity, moving, weights


def check_resets(folder):
    """What reset_cache() does while vLLM keeps its own prefix cache, and what changed weights do before it."""
    a = Part({"directory": str(Path(folder) / "resets"), "disk_bytes": "64M", "secret_file": secret(folder)})
    pool = SimpleNamespace(num_gpu_blocks=40, free=39, cached_block_hash_to_block={}, get_num_free_blocks=lambda: pool.free)
    part = SimpleNamespace(_scheduling=a.scheduling, _pool=pool)
    tokens, blocks = list(range(4 * PAGE + 1)), [1, 2, 3, 4, 5]

    def saves(name, computed=0, prompt=tokens):
        request = Request(name, prompt)
        a.matched(request, computed)
        got = [(s.first_page, s.n_pages) for s in a.save(request, blocks, computed).saves]
        a.scheduling.finished(request)
        a.flush()
        return got
    ok(saves("before") == [(0, 4)], "a prompt is saved")
    for free, cached, what in ((35, {}, "a request has blocks"), (39, {"hash": 1}, "vLLM's own cache has blocks")):
        pool.free, pool.cached_block_hash_to_block = free, cached
        ok(connector.QuireConnector.reset_cache(part) is False, f"a reset while {what} does not succeed")
        ok(saves("local", 3 * PAGE) == [], "what vLLM's own cache had before is not saved as if it were new, nor what is computed from it")
        ok(a.matched(Request("later", tokens)) == (0, False), "and nobody finds it")
        ok(saves("computed") == [(0, 4)], "what is computed from its beginning is saved")
        long = Request("long", tokens + list(range(2 * PAGE)))
        ok(a.matched(long, 2 * PAGE) == (2 * PAGE, True), "it is found, also behind rows of vLLM's own cache")
        a.scheduling.allocated(long, [1, 2, 3, 4, 5, 6, 7], 2 * PAGE)
        a.scheduling._loads.clear()
        ok(a.save(long, [1, 2, 3, 4, 5, 6, 7], 4 * PAGE).saves == [], "but what is computed from both is not saved")
    pool.free, pool.cached_block_hash_to_block = 39, {}
    ok(connector.QuireConnector.reset_cache(part) is True, "a reset of an empty cache succeeds")
    ok(saves("after", 3 * PAGE) == [(0, 4)], "from then on everything is saved")

    # Changed weights, which vLLM does not tell of.
    class Layer:
        pass

    class Worker:
        def __init__(self, config):
            self.vllm_config, self.calls = config, []

        def reload_weights(self, *arguments):
            self.calls.append(arguments)
            return 5

        def sleep(self, level=1):
            self.calls.append(level)

    class Model:
        def __init__(self, layer):
            self.modules = lambda: iter([self, layer])

        def load_weights(self, weights):
            return weights
    config, layer, told = SimpleNamespace(), Layer(), []
    watch = weights.Watch(config, layer, lambda name: (told.append(name), a.moving.weights_changed(name)))
    for owner, method in ((Worker, "reload_weights"), (Worker, "sleep"), (Model, "load_weights"), (Worker, "reload_weights"), (Worker, "none")):
        weights.tell_before(owner, method)
    Worker(SimpleNamespace()).reload_weights()
    Model(Layer()).load_weights(1)
    worker = Worker(config)
    worker.sleep()
    worker.sleep(level=1)
    ok(not told, "weights of another engine, and sleep that keeps them, change nothing", str(told))

    def step():
        a.moving.begin_loads(a.scheduling.metadata(SimpleNamespace(
            num_scheduled_tokens={}, scheduled_new_reqs=[],
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set(), num_computed_tokens=[]))))
    step()
    ok(worker.reload_weights("path") == 5 and worker.calls[-1] == ("path",), "a method that changes weights does what it did")
    worker.sleep(2)
    ok(Model(layer).load_weights(7) == 7 and told == ["reload_weights", "sleep", "load_weights"], "and tells of it, once", str(told))
    before, again = a.counter.total["saved_pages"], Request("again", tokens)
    found = a.matched(again)
    ok(found == (4 * PAGE, True) and a.load(again, found[0], blocks) == {1, 2, 3, 4}, "after that nothing is loaded: its blocks are to be computed")
    saves("changed", prompt=tokens[::-1])
    ok(a.counter.total["saved_pages"] == before, "and nothing is saved")
    connector.QuireConnector.reset_cache(part)
    step()
    saves("new weights")
    ok(a.counter.total["saved_pages"] == before + 4, "after a reset pages are saved again")
    again = Request("again", tokens)
    ok(a.matched(again) == (4 * PAGE, True) and not a.load(again, 4 * PAGE, blocks), "and loaded")
    connector.QuireConnector.reset_cache(part)
    worker.reload_weights()  # before a step of the new word
    step()
    saves("order")
    ok(a.counter.total["saved_pages"] == before + 8, "reset, change: what is computed after both is saved")
    del watch
    a.close()


def check_tenants(folder):
    """Namespaces whose pages a slow remote has not taken yet stop nobody, and their number is limited."""
    class Space:
        def __init__(self):
            self.may_close, self.is_closed = gate, False

        def close(self):
            self.may_close.wait()
            self.is_closed = True
    gate, made = threading.Event(), []
    store = SimpleNamespace(raw_namespace=lambda *_: made.append(Space()) or made[-1])
    model = SimpleNamespace(identity=lambda *_: None, rank_layout=lambda *_: "", page_bytes=1)
    spaces = identity.Spaces(store, model, b"", [0], most=3)
    began = time.monotonic()
    for i in range(6):
        with spaces.using((str(i), "")):
            pass
    ok(time.monotonic() - began < 60 and len(made) == 6, "leaving a tenant does not wait for others that are closed")
    ok.raises(lambda: spaces.enter(("more", "")), "a tenant while as many wait as may be kept", "too slow")
    with spaces.using(("5", "")):
        ok(True, "one that is open is still used")
    names = [t.name for t in threading.enumerate()].count("quire-close")
    ok(names == 1, "one thread closes them", str(names))
    gate.set()
    spaces.close()
    spaces._closer.join(60)
    ok(not spaces._closer.is_alive() and all(s.is_closed for s in made), "closing all closes each of them, and the thread ends")


def check_memory(folder):
    """Saves and loads use the same memory again and again, and no more of it than a piece needs."""
    piece, moving._PIECE_BYTES = moving._PIECE_BYTES, 3 * LAYERS * HEADS * PAGE * 2 * D * 2
    try:
        a = Part({"directory": str(Path(folder) / "pieces"), "disk_bytes": "64M", "secret_file": secret(folder), "queue_bytes": "1M",
                  "load_threads": 1}, policy="bf16")
        ok(a.store.stats["queue_cap_bytes"] == 1 << 20, "the store's queue has the limit of queue_bytes")
        b = Part({"directory": str(Path(folder) / "follows"), "disk_bytes": "64M", "secret_file": secret(folder), "save_bytes": "3M"})
        ok(b.store.stats["queue_cap_bytes"] == 3 << 20, "without it that of save_bytes")
        b.close()
        kept = []
        for name in ("one", "two"):
            tokens = [ord(name[0])] * 8 * PAGE + [1]
            request, blocks = Request(name, tokens), list(range(1, 10))
            a.matched(request)
            a.save(request, blocks)
            a.flush()
            again = Request(f"{name} again", tokens)
            found = a.matched(again)
            ok(found == (8 * PAGE, True) and not a.load(again, found[0], list(range(20, 29))), f"{name}: eight pages in pieces of three")
            ok(np.array_equal(a.page(list(range(20, 28)), 0, 8), a.page(blocks, 0, 8)), f"{name}: they hold what was saved")
            rooms = a.moving._loaders.submit(lambda: a.moving._own.rooms).result()
            kept.append([x.ctypes.data for x in (a.moving._save_room, *rooms)])
            ok({len(x) for x in (a.moving._save_room, *rooms)} == {3}, f"{name}: memory for three pages each")
        ok(kept[0] == kept[1], "the second save and load use the memory of the first")
        a.close()
    finally:
        moving._PIECE_BYTES = piece
