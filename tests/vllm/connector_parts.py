# SPDX-License-Identifier: MIT
"""The connector without an engine: identities, settings, look-ups and loads, with a real store and a real redis-server."""
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import run
import torch
from identities import check_digests, check_identity, check_settings, check_start, ok, secret
from part import HEADS, LAYERS, PAGE, D, Part, Request
from quire_vllm import identity
from quire_vllm.figures import Figures
from quire_vllm.scheduling import Load, Save, StepMetadata
from resets import check_memory, check_resets, check_tenants
from traces import check_traces


def check_moving(folder):
    key = secret(folder)
    extra = {"directory": str(Path(folder) / "pages"), "disk_bytes": "256M", "secret_file": key}
    tokens = list(range(1000, 1000 + 5 * PAGE))
    a = Part(extra, policy="bf16")
    request = Request("r1", tokens + [1], salt="alice")
    ok(a.matched(request) == (0, False), "an empty store has nothing")
    a.save(request, [3, 9, 4, 7, 5, 6])
    a.flush()
    ok(a.counter.total["saved_pages"] == 5, "five finished pages are saved, the page that is not full is not")
    saved = a.page([3, 9, 4, 7, 5], 0, 5)
    again = Request("r2", tokens + [1], salt="alice")
    ok(a.matched(again) == (5 * PAGE, True), "the same salt finds them")
    for salt in (None, "", "bob", "alice "):
        ok(a.matched(Request(f"salt {salt!r}", tokens + [1], salt=salt)) == (0, False), f"the salt {salt!r} finds nothing")
    ok(a.matched(Request("whole", tokens, salt="alice")) == (4 * PAGE, True), "one token of a prompt is left to compute")
    ok(a.matched(Request("other", [7] + tokens[1:] + [1], salt="alice")) == (0, False), "another first token finds nothing")
    failed = a.load(again, 5 * PAGE, [11, 12, 13, 14, 15])
    ok(not failed and np.array_equal(a.page([11, 12, 13, 14, 15], 0, 5), saved), "loaded pages hold the bytes that were saved")
    third = Request("r3", tokens + [1], salt="alice")
    before = a.page([20, 21], 0, 2)
    ok(a.matched(third, 2 * PAGE) == (3 * PAGE, True), "what vLLM's own cache has is not loaded")
    ok(not a.load(third, 3 * PAGE, [20, 21, 22, 23, 24]) and np.array_equal(a.page([20, 21], 0, 2), before), "its blocks are not written")
    ok(np.array_equal(a.page([22, 23, 24], 0, 3), saved[2:]), "the others are")
    ok(a.matched(third) == (0, False), "after a load the request is not looked up again")
    third.num_preemptions = 1
    ok(a.matched(third) == (5 * PAGE, True), "after a preemption it is")
    reading = Request("r4", tokens + [1], salt="alice", skip_reading_prefix_cache=True)
    ok(a.matched(reading) == (0, False), "a request for log-probabilities of its prompt loads nothing")
    a.scheduling.reset()
    ok(a.matched(Request("r5", tokens + [1], salt="alice")) == (0, False), "after reset_cache() nothing from before is found")
    a.close()

    for what, part in (("other weights", dict(weights="x")), ("another policy", dict(policy="r8")), ("another rank", dict(rank=1, ranks=2))):
        b = Part(extra, **{"policy": "bf16", **part})
        ok(b.matched(Request("r", tokens + [1], salt="alice")) == (0, False), f"{what}: nothing is found")
        b.close()
    other_key = dict(extra, secret_file=secret(folder, "other.key", bytes(32)))
    b = Part(other_key, policy="bf16")
    ok(b.matched(Request("r", tokens + [1], salt="alice")) == (0, False), "another secret of the server: nothing is found")
    b.close()
    b = Part(extra, policy="bf16", seed=77)
    request = Request("r", tokens + [1], salt="alice")
    ok(b.matched(request) == (5 * PAGE, True), "another process with the same identity finds all")
    ok(not b.load(request, 5 * PAGE, [1, 2, 3, 4, 5]) and np.array_equal(b.page([1, 2, 3, 4, 5], 0, 5), saved), "and loads the same bytes")
    found = b"".join(p.read_bytes() for p in (Path(folder) / "pages").rglob("*") if p.is_file())
    ok(saved[0][:64].tobytes() not in found, "no file holds the bytes of a page")
    ok(b"alice" not in found, "no file holds the salt")
    b.close()


def check_requests(folder):
    extra = {"directory": str(Path(folder) / "requests"), "disk_bytes": "64M", "secret_file": secret(folder)}
    a = Part(extra)
    tokens = list(range(200))
    for member, value, figure in (("lora_request", object(), "refused_lora"), ("mm_features", [object()], "refused_media"),
                                  ("prompt_embeds", object(), "refused_embeddings"), ("pooling_params", object(), "refused_other"),
                                  ("resumable", True, "refused_other")):
        request = Request(member, tokens, **{member: value})
        before = a.counter.total[figure]
        got = [a.scheduling.matched(request, 0) for _ in range(3)]
        ok(got == [(0, False)] * 3 and a.counter.total[figure] == before + 1, f"a request with {member} is passed through and counted once")
        ok(not a.save(request, [1, 2, 3, 4]).saves, f"nothing is saved for a request with {member}")
        a.scheduling.finished(request)
    # what a step saves: chunks, drafts that are not accepted yet, decoding, preemption
    request = Request("steps", range(150))
    a.matched(request)

    def step(name, computed, new, blocks, whole=False):
        none = SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set(), num_computed_tokens=[])
        cached = SimpleNamespace(req_ids=[name], new_block_ids=[[blocks] if blocks else None], resumed_req_ids={name} if whole == "resumed" else set(),
                                 num_computed_tokens=[computed])
        news = [SimpleNamespace(req_id=name, block_ids=[blocks], num_computed_tokens=computed)] if whole is True else []
        out = a.scheduling.metadata(SimpleNamespace(num_scheduled_tokens={name: new}, scheduled_new_reqs=news,
                                                    scheduled_cached_reqs=none if whole is True else cached))
        return [(s.start, len(s.tokens), s.first_page, s.n_pages, s.block_ids) for s in out.saves]
    ok(step("steps", 0, 100, [5, 6], True) == [(0, 64, 0, 1, [5])], "the first chunk finishes page 0")
    ok(step("steps", 100, 50, [7]) == [(64, 64, 1, 1, [5, 6])], "the second finishes page 1")
    request.all_token_ids += range(40)  # 190 tokens; four drafts would fill page 2
    ok(step("steps", 189, 5, []) == [], "drafted tokens that are not accepted do not finish a page")
    request.all_token_ids += [1, 2, 3]
    ok(step("steps", 192, 1, []) == [(128, 64, 2, 1, [5, 6, 7])], "accepted ones do")
    request.num_preemptions += 1
    a.matched(request)
    ok(step("steps", 0, 193, [8, 9, 10, 11], "resumed") == [], "pages that were handed over before a preemption are not handed over again")
    a.scheduling.finished(request)
    ok(not a.scheduling._known and not a.scheduling._refused, "nothing is kept of requests that ended")
    # memory for saves
    small = Part(dict(extra, save_bytes=1, directory=str(Path(folder) / "small")))
    for i in range(4):
        small.moving._queued_bytes += 1  # as if the saver had not come to it yet
        request = Request(f"many {i}", range(i, i + 129))
        small.matched(request)
        small.save(request, [1, 2, 3])
    ok(small.counter.total["dropped_pages"] == 8, "saves beyond the memory for them are dropped and counted")
    small.moving._queued_bytes -= 4
    small.close()
    part = Part(dict(extra, save_bytes=5 * LAYERS * HEADS * PAGE * 2 * D * 2, directory=str(Path(folder) / "five")))
    for name, want in (("long", 5), ("error", 5), ("after", 7)):
        request, copy = Request(name, [ord(name[0])] * (2 if name == "after" else 8) * PAGE + [1]), part.moving._blocks.copy
        if name == "error":
            part.moving._blocks.copy = lambda *_: torch.empty(1 << 60)
        part.matched(request)
        part.save(request, list(range(1, 10)))
        ok(part.moving._queued_bytes <= part.settings.save_bytes, f"{name}: copies keep within the memory for them")
        part.flush()
        part.moving._blocks.copy = copy
        ok(part.counter.total["saved_pages"] == want, f"{name}: what fits into the memory is saved", str(part.counter.total))
    ok(part.counter.total["save_errors"] == 1, "a copy that fails is counted, and the engine goes on")
    part.close()
    a.close()
    text = repr(Load("r", ("geheim", ""), np.arange(3), 0, [1])) + repr(Save("r", ("geheim", ""), 0, np.arange(3), 0, 1, [1]))
    ok("geheim" not in text and "array" not in text, "what vLLM prints of a failed step has neither salts nor tokens")
    figures = Figures()
    figures.add(loaded_tokens=3)
    ok(figures.aggregate(Figures(data={"loaded_tokens": 4, "saved_pages": 1})).reduce() == {"Quire loaded tokens": 7, "Quire saved pages": 1},
       "figures of ranks are added")


def check_resaving(folder):
    """A prefix that vLLM's own cache has is saved only where the store says that it has it not."""
    a = Part({"directory": str(Path(folder) / "resaving"), "disk_bytes": "64M", "secret_file": secret(folder)})
    tokens, blocks, look_up = list(range(4 * PAGE + 1)), [1, 2, 3, 4, 5], a.scheduling._look_up

    def saves(name, prompt, computed):
        request = Request(name, prompt)
        a.scheduling.new_request(request)
        while not a.scheduling._known[name].lookup.done():
            time.sleep(0.001)
        ok(a.scheduling.matched(request, computed) == (0, False), f"{name}: nothing is loaded")
        return [(s.first_page, s.n_pages) for s in a.save(request, blocks, computed).saves]

    def broken(*_):
        raise ValueError("Namespace is closed")
    a.scheduling._may_load = False  # kv_producer
    ok(saves("new", tokens, 0) == [(0, 4)], "who only saves saves a new prompt")
    a.flush()
    ok(saves("again", tokens, 3 * PAGE) == [], "who only saves saves no page twice")
    ok(saves("computed", tokens, 0) == [], "also where vLLM's own cache has lost it and it is computed")
    ok(saves("longer", tokens + list(range(PAGE)), 0) == [(4, 1)], "of a longer one what is new is saved")
    ok(saves("other", tokens[::-1], 3 * PAGE) == [(0, 4)], "but one that the store has not")
    a.scheduling._may_load, a.scheduling._look_up = True, broken
    ok(saves("broken", tokens[::-1], 3 * PAGE) == [(3, 1)], "a look-up that fails: only what is computed is saved")
    request, lines = a.scheduling._known["broken"].request, []
    a.scheduling._known.clear()
    handler = logging.Handler()
    handler.emit = lines.append
    logging.getLogger("vllm.quire").addHandler(handler)
    for _ in range(3):
        a.matched(request)
    logging.getLogger("vllm.quire").removeHandler(handler)
    ok(len(lines) == 1, "it is logged once", str(lines))
    known = a.scheduling._known["broken"]
    ok(known.lookup is None and a.counter.total["lookup_errors"] == 2, "and counted once; its error is not kept", str(a.counter.total))
    a.scheduling._look_up = look_up
    ok(a.matched(request) == (0, False), "it is not made again at once")
    known.failed_at -= 6
    a.flush()
    again = a.matched(request)
    ok(again == (4 * PAGE, True), "but after some seconds", str(again))
    a.close()


def check_damage(folder):
    directory = Path(folder) / "damaged"
    extra = {"directory": str(directory), "disk_bytes": "256M", "secret_file": secret(folder)}
    a = Part(extra, policy="bf16")
    tokens = list(range(8 * PAGE + 1))
    request = Request("r", tokens)
    a.matched(request)
    a.save(request, list(range(1, 10)))
    a.flush()
    size = a.form.page_bytes
    a.close()
    slabs = [p for p in directory.rglob("*") if p.is_file() and p.stat().st_size >= size and "index" not in p.name]
    big = max(slabs, key=lambda p: p.stat().st_blocks)
    with open(big, "r+b") as f:  # every page but the first two of the file
        data = bytearray(f.read())
        nonzero = [i for i in range(0, len(data), 4096) if any(data[i:i + 4096])]
        for i in nonzero[len(nonzero) // 3:]:
            data[i + 2000] ^= 0x40
        f.seek(0)
        f.write(data)
    b = Part(extra, policy="bf16")
    request = Request("again", tokens)
    found = b.matched(request)
    failed = b.load(request, found[0], list(range(11, 20))) if found[1] else None
    ok(found[0] > 0 and bool(failed), f"damaged pages: of {found[0]} tokens found, blocks {sorted(failed or [])} are to be computed")
    good = found[0] // PAGE - len(failed or [])
    ok(failed == set(range(11 + good, 11 + found[0] // PAGE)), "all blocks behind the first one that did not come are named")
    ok(b.counter.total["failed_tokens"] == len(failed or []) * PAGE, "their tokens are counted")
    b.close()


def check_remote(folder):
    if not shutil.which("redis-server"):
        print("skipped: no redis-server")
        return
    port = run.free_port()
    server = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
                              stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        for _ in range(5000):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.02)
        extra = {"remote": f"127.0.0.1:{port}", "secret_file": secret(folder), "load_ms": 3000}
        a = Part(extra)
        tokens = list(range(6 * PAGE + 1))
        request = Request("r", tokens, salt="s")
        a.matched(request)
        a.save(request, list(range(1, 8)))
        a.flush()
        b = Part(dict(extra, lookup_ms=2000), seed=9)
        again = Request("again", tokens, salt="s")
        found = b.matched(again)
        ok(found == (6 * PAGE, True), "another server finds the pages in the remote")
        c = Part(dict(extra, lookup_ms=2000, load_ms=60000, load_threads=1), seed=9)
        hung = [Request(f"hung {i}", tokens, salt="s") for i in range(3)]
        for each in hung:
            c.matched(each)
            c.scheduling.allocated(each, list(range(11, 18)), 6 * PAGE)
        d = Part(dict(extra, load_ms=3001))  # a store of its own
        d.matched(Request("early", tokens, salt="s"))
        server.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        c.moving.begin_loads(StepMetadata(loads=c.scheduling._loads))
        while not c.moving._running and time.monotonic() - began < 20:
            time.sleep(0.01)
        is_running = bool(c.moving._running)
        c.moving.close()
        ok(is_running and time.monotonic() - began < 40, "closing ends loads from a remote that hangs", f"{time.monotonic() - began:.1f} s")
        ok(c.moving.take_ended() == {each.request_id for each in hung}, "and tells all of their requests")
        late = Request("late", list(range(1, 4 * PAGE + 2)), salt="s")
        d.scheduling._know(late)
        d.save(late, [1, 2, 3, 4, 5])
        while d.moving._queued_bytes:
            time.sleep(0.01)
        began, limit = time.monotonic(), identity._FLUSH_S
        identity._FLUSH_S = 0.5
        ok(not d.close() and d.counter.total["saved_pages"] == 4 and time.monotonic() - began < limit - 1,
           "the end waits for a remote that hangs only as long as it may", f"{time.monotonic() - began:.1f} s, {d.counter.total}")
        identity._FLUSH_S = limit
        server.send_signal(signal.SIGCONT)
        server.kill()
        server.wait()
        began = time.monotonic()
        failed = b.load(again, found[0], list(range(11, 18)))
        ok(failed == set(range(11, 17)), "the remote dies between look-up and load: all blocks are to be computed", str(failed))
        ok(time.monotonic() - began < 10, "within the time limit of the load, and what a busy machine takes")
        ok(b.matched(Request("later", tokens, salt="s")) == (0, False), "a dead remote has nothing")
        b.close()
        a.close()
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def check_closing(folder):
    """Closing while loads are under way: every request is told, nothing writes to blocks afterwards."""
    extra = {"directory": str(Path(folder) / "closing"), "disk_bytes": "256M", "secret_file": secret(folder)}
    a = Part(extra, policy="bf16", n_blocks=200)
    tokens = list(range(60 * PAGE + 1))
    request = Request("r", tokens)
    a.matched(request)
    a.save(request, list(range(1, 62)))
    a.flush()
    for i in range(6):
        again = Request(f"load {i}", tokens)
        a.matched(again)
        a.scheduling.allocated(again, list(range(100, 161)), 60 * PAGE)
    a.moving.begin_loads(StepMetadata(loads=a.scheduling._loads))
    a.close()
    ended = a.moving.take_ended()
    ok(ended == {f"load {i}" for i in range(6)}, "all loads end when the connector is closed", str(ended))


def check_slow(folder):
    a = Part({"directory": str(Path(folder) / "slow"), "disk_bytes": "64M", "secret_file": secret(folder), "lookup_ms": 200})
    gate = threading.Event()
    a.scheduling._look_up = lambda *_: gate.wait(120) and (PAGE, time.monotonic())
    began = time.monotonic()
    many = [a.scheduling.matched(Request(f"many {i}", range(i, i + 100)), 0)[0] for i in range(50)]
    ok(many == [None] * 50 and time.monotonic() - began < 5, "slow look-ups do not stop the scheduler", f"{time.monotonic() - began:.3f} s")
    ok(a.matched(Request("last", range(100))) == (0, False) and time.monotonic() - began < 60, "a request whose look-up does not end is computed")
    gate.set()
    a.close()
    b = Part({"directory": str(Path(folder) / "slow loads"), "disk_bytes": "64M", "secret_file": secret(folder), "load_ms": 300, "load_threads": 1})
    b.moving._load_pages = lambda *_: time.sleep(2) or 0
    loads = [Load(f"load {i}", (None, ""), np.arange(2 * PAGE, dtype=np.uint32), 0, [2 * i, 2 * i + 1]) for i in range(6)]
    began = time.monotonic()
    b.moving.begin_loads(StepMetadata(loads=loads))
    b.ended("load 5")
    ok(time.monotonic() - began < 9, "loads that wait for a thread end with their time limit",
       f"{time.monotonic() - began:.2f} s")
    b.close()


def main():
    with tempfile.TemporaryDirectory(prefix="quire-vllm-parts-") as folder:
        os.environ["QUIRE_CACHE"] = str(Path(folder) / "cache")
        check_settings(folder)
        check_digests(folder)
        check_identity(folder)
        check_start()
        check_moving(folder)
        check_traces(folder)
        check_requests(folder)
        check_resaving(folder)
        check_resets(folder)
        check_tenants(folder)
        check_memory(folder)
        check_damage(folder)
        check_remote(folder)
        check_closing(folder)
        check_slow(folder)
    return ok.end()


if __name__ == "__main__":
    sys.exit(main())
