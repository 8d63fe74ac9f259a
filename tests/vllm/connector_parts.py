# SPDX-License-Identifier: MIT
"""The connector without an engine: identities, settings, look-ups and loads, with a real store and a real redis-server."""
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from checks import Checks
from quire_vllm import digests, identity, settings
from quire_vllm.connector import check
from quire_vllm.figures import Counter, Figures
from quire_vllm.moving import Moving
from quire_vllm.pages import Blocks, PageForm
from quire_vllm.policy import parse
from quire_vllm.scheduling import Load, Save, Scheduling, StepMetadata

ok = Checks()
LAYERS, HEADS, D, PAGE = 3, 2, 64, 64


def impl(name, **members):
    return type(name, (), members)()


# --- settings, digests, identities ---------------------------------------------------------------


def secret(folder, name="tenant.key", data=bytes(range(32)), mode=0o600):
    path = Path(folder) / name
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


def check_settings(folder):
    key = secret(folder)
    read = settings.read
    given = read({"directory": "d", "disk_bytes": "64G", "secret_file": key, "remote": "[::1]:7000"})
    ok((given.disk_bytes, given.remote_tier().host, given.remote_tier().port, given.secret) == (64 << 30, "::1", 7000, bytes(range(32))),
       "sizes with a letter, addresses in brackets, secrets")
    ok("00010203" not in repr(given) and repr(bytes(range(32))) not in repr(given), "the secret is not in what is printed")
    ok(read({"directory": "d", "secret_file": secret(folder, "hex", bytes(range(32)).hex().encode() + b"\n")}).secret == bytes(range(32)),
       "a secret in hex digits")
    for extra, what, part in (
            ({"secret_file": key}, "neither directory nor remote", "a directory, a remote, or both"),
            ({"directory": "d"}, "no secret", "secret_file"),
            ({"directory": "d", "secret_file": secret(folder, "open", mode=0o644)}, "a secret that others can read", "chmod 600"),
            ({"directory": "d", "secret_file": secret(folder, "short", b"x" * 31)}, "a secret of 31 bytes", "32 bytes or 64 hex"),
            ({"directory": "d", "secret_file": str(Path(folder) / "none")}, "a secret that is not there", "No such file"),
            ({"directory": "d", "secret_file": key, "dir": "x"}, "an unknown setting", "'dir'"),
            ({"directory": 3, "secret_file": key}, "a directory that is a number", "must be a text"),
            ({"directory": "d", "secret_file": key, "load_ms": True}, "a time that is true", "whole number"),
            ({"directory": "d", "secret_file": key, "load_ms": 0}, "no time to load", "less than 1"),
            ({"directory": "d", "secret_file": key, "disk_bytes": "64X"}, "a size that is none", "K, M, G or T"),
            ({"remote": "a:b:c", "secret_file": key}, "an address that is none", "HOST:PORT"),
            ({"directory": "d", "secret_file": key, "tls": 1}, "a flag that is a number", "true or false")):
        ok.raises(lambda: read(extra), what, part)


def check_digests(folder):
    os.environ["QUIRE_CACHE"] = str(Path(folder) / "cache")
    file = Path(folder) / "weights.safetensors"
    file.write_bytes(b"a" * 100000)
    os.utime(file, (1, 1))
    time.sleep(3.1)  # a file that has just changed is read again each time
    import hashlib
    want = hashlib.sha256(file.read_bytes()).hexdigest()
    ok(digests.of_file(str(file)) == want, "the digest is the SHA-256 of the contents")
    record = Path(folder) / "cache/digests"
    ok(want in record.read_text() and record.stat().st_mode & 0o777 == 0o600, "it is remembered in a file of mode 0600")
    planted = record.read_text().replace(want, "0" * 64)
    record.write_text(planted)
    ok(digests.of_file(str(file)) == want, "a damaged record is not used")
    line = "1" * 64 + digests._identity(file.stat())
    record.write_text(digests._HEAD + line + digests._check(line) + "\n")
    ok(digests.of_file(str(file)) == "1" * 64, "a whole record is used without reading the file")
    record.chmod(0o622)
    ok(digests.of_file(str(file)) == want, "a record that others can write to is not used")
    tool = os.environ.get("QUIRE_TOOL")
    if tool:  # the same file of records serves both
        record.unlink(missing_ok=True)
        digests.of_file(str(file))
        ok(want in record.read_text(), "records of the connector have the form of quire store's")


class HF:
    def __init__(self, **members):
        self.members = members

    def to_dict(self):
        return dict(self.members, _name_or_path="/somewhere", transformers_version="1")


def config(hf=None, model=None, **more):
    hf = HF(rope_parameters={"rope_type": "default", "rope_theta": 1e4}, layers=3) if hf is None else hf
    members = dict(hf_config=hf, dtype="bfloat16", quantization=None, model_impl="auto", disable_sliding_window=False, max_model_len=4096,
                   model=str(model), revision=None, trust_remote_code=False, model_weights="")
    members.update(more)
    return SimpleNamespace(model_config=SimpleNamespace(**members), cache_config=SimpleNamespace(cache_dtype="auto"),
                           load_config=SimpleNamespace(load_format="auto", download_dir=None))


def check_identity(folder):
    def text(version="0.32.0", device="cpu", **members):
        return identity.model_text(config(**members), version, device)
    base = text()
    for what, other in (("vLLM's version", text(version="0.33.0")), ("the device", text(device="cuda")), ("the dtype", text(dtype="float16")),
                        ("the quantization", text(quantization="awq")),
                        ("RoPE's base", text(hf=HF(rope_parameters={"rope_type": "default", "rope_theta": 5e5}, layers=3))),
                        ("an override of the configuration", text(hf=HF(rope_parameters={"rope_type": "default", "rope_theta": 1e4}, layers=2)))):
        ok(other != base, f"{what} is part of the identity")
    moved = HF(rope_parameters={"rope_type": "default", "rope_theta": 1e4}, layers=3)
    moved.to_dict = lambda: dict(moved.members, _name_or_path="/elsewhere", transformers_version="2")
    ok(text(hf=moved) == base, "where the model lies is not part of the identity")
    ok(text(max_model_len=8192) == base, "the longest context is not part of it with plain RoPE")
    for kind in ("dynamic", "longrope"):
        hf = HF(rope_scaling={"type": kind, "factor": 2.0})
        ok(text(hf=hf) != text(hf=hf, max_model_len=8192), f"the longest context is part of it with RoPE of the kind {kind}")
    master = bytes(range(32))
    salts = [None, "", "a", "b", "0", "1", "aa", "\udc80"]
    ok(len({identity.tenant_secret(master, s) for s in salts}) == len(salts), "each cache_salt has a secret of its own, and none has another")
    ok(identity.tenant_secret(bytes(32), "a") != identity.tenant_secret(master, "a"), "secrets of salts depend on the server's secret")
    ok("geheim" not in identity.tenant_name(master, "geheim"), "the name for operators does not tell the salt")
    model = Path(folder) / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    one = identity.weights_digest(config(model=model))
    (model / "model.safetensors").write_bytes(b"weightz")
    ok(identity.weights_digest(config(model=model)) != one, "one changed byte of the weights is another digest")
    (model / "model.safetensors").write_bytes(b"weights")
    ok(identity.weights_digest(config(model=model)) == one, "the same bytes have the same digest")
    (model / "model-2.safetensors").write_bytes(b"more")
    ok(identity.weights_digest(config(model=model)) != one, "a file of weights more is another digest")
    empty = Path(folder) / "empty"
    empty.mkdir()
    ok.raises(lambda: identity.weights_digest(config(model=empty)), "a model without weights", "no files of weights")
    ok.raises(lambda: identity.weights_digest(config(model="nobody/nothing")), "a model that is not on this machine", "not found on this machine")
    dummy = config(model=model)
    dummy.load_config.load_format = "dummy"
    ok.raises(lambda: identity.weights_digest(dummy), "weights that are made up", "dummy")


def check_start():
    def start(policy="recompute", spec=None, **parallel):
        return SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_load_failure_policy=policy), parallel_config=SimpleNamespace(**parallel),
                               speculative_config=spec and SimpleNamespace(method=spec))
    check(start())
    check(start(spec="ngram"))
    ok.raises(lambda: check(start(policy="fail")), "kv_load_failure_policy fail", '"kv_load_failure_policy": "recompute"')
    ok.raises(lambda: check(start(spec="eagle")), "a draft model", "ngram works")
    ok.raises(lambda: check(start(pipeline_parallel_size=2)), "pipeline parallel", "pipeline_parallel_size")


# --- moving pages, with a store ---------------------------------------------------------------------


class Request(SimpleNamespace):
    def __init__(self, name, tokens, salt=None, **members):
        super().__init__(request_id=name, all_token_ids=list(tokens), cache_salt=salt, lora_request=None, mm_features=[], prompt_embeds=None,
                         prompt_token_ids=list(tokens), pooling_params=None, resumable=False, skip_reading_prefix_cache=False,
                         num_preemptions=0, num_prompt_tokens=len(tokens))
        self.__dict__.update(members)

    @property
    def num_tokens(self):
        return len(self.all_token_ids)


class Part:
    """A worker and a scheduler over one store, with memory of their own."""

    def __init__(self, extra, weights="w", policy="r8", tokens=64, rank=0, ranks=1, n_blocks=40, seed=5):
        self.settings = settings.read(extra)
        self.form = PageForm(parse(policy), LAYERS, HEADS, D, D, torch.bfloat16, False)
        model = identity.Model(weights, "{}", self.form.layout, self.form.page_bytes, "test", ranks)
        self.store = identity.open_store(self.settings)
        self.counter = Counter()
        self.caches = [torch.randn(n_blocks, HEADS, tokens, 2 * D, generator=torch.Generator().manual_seed(seed + i)).to(torch.bfloat16)
                       for i in range(LAYERS)]
        self.moving = Moving(self.settings, identity.Spaces(self.store, model, self.settings.secret, [rank]), self.counter)
        self.moving.use(Blocks(self.form, tokens, self.caches, [impl("FlashAttentionImpl")] * LAYERS))
        self.scheduling = Scheduling(self.settings, identity.Spaces(self.store, model, self.settings.secret, range(ranks)), tokens, self.counter,
                                     True, True)

    def matched(self, request, computed=0):
        for _ in range(2000):
            got = self.scheduling.matched(request, computed)
            if got[0] is not None:
                return got
            time.sleep(0.001)
        raise AssertionError("a look-up does not end")

    def save(self, request, blocks):
        count = len(request.all_token_ids)
        step = self.scheduling.metadata(SimpleNamespace(
            num_scheduled_tokens={request.request_id: count}, scheduled_new_reqs=[SimpleNamespace(
                req_id=request.request_id, block_ids=[blocks], num_computed_tokens=0)],
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set(), num_computed_tokens=[])))
        self.moving.begin_saves(step)
        return step

    def flush(self):
        for _ in range(3000):
            if not self.moving._queued_bytes:
                break
            time.sleep(0.01)
        time.sleep(0.02)
        self.store.flush(20)

    def load(self, request, external, blocks, wait=20):
        self.scheduling.allocated(request, blocks, external)
        self.moving.begin_loads(StepMetadata(loads=self.scheduling._loads))
        self.scheduling._loads = []
        return self.ended(request.request_id, wait)

    def ended(self, name, wait=20):
        end = time.monotonic() + wait
        while time.monotonic() < end:
            got = self.moving.take_ended()
            if name in got:
                return self.moving.take_failed()
            time.sleep(0.002)
        raise AssertionError("a load does not end")

    def page(self, blocks, first, count):
        b = self.moving._blocks
        return b.encode(b.copy(blocks, first, count))

    def close(self):
        self.scheduling.close()
        self.moving.close()
        identity.release_store(self.settings)


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
    a.close()
    text = repr(Load("r", ("geheim", ""), np.arange(3), 0, [1])) + repr(Save("r", ("geheim", ""), 0, np.arange(3), 0, 1, [1]))
    ok("geheim" not in text and "array" not in text, "what vLLM prints of a failed step has neither salts nor tokens")
    figures = Figures()
    figures.add(loaded_tokens=3)
    ok(figures.aggregate(Figures(data={"loaded_tokens": 4, "saved_pages": 1})).reduce() == {"Quire loaded tokens": 7, "Quire saved pages": 1},
       "figures of ranks are added")


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


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def check_remote(folder):
    if not shutil.which("redis-server"):
        print("skipped: no redis-server")
        return
    port = free_port()
    server = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
                              stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        for _ in range(500):
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
        server.kill()
        server.wait()
        began = time.monotonic()
        failed = b.load(again, found[0], list(range(11, 18)))
        ok(failed == set(range(11, 17)), "the remote dies between look-up and load: all blocks are to be computed", str(failed))
        ok(time.monotonic() - began < 4, "within the time limit of the load")
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
    a.scheduling._look_up = lambda *_: time.sleep(2) or (PAGE, time.monotonic())
    began = time.monotonic()
    many = [a.scheduling.matched(Request(f"many {i}", range(i, i + 100)), 0)[0] for i in range(50)]
    ok(many == [None] * 50 and time.monotonic() - began < 0.2, "slow look-ups do not stop the scheduler", f"{time.monotonic() - began:.3f} s")
    ok(a.matched(Request("last", range(100))) == (0, False) and time.monotonic() - began < 1.5, "a request whose look-up does not end is computed")
    a.close()


def main():
    with tempfile.TemporaryDirectory(prefix="quire-vllm-parts-") as folder:
        os.environ["QUIRE_CACHE"] = str(Path(folder) / "cache")
        check_settings(folder)
        check_digests(folder)
        check_identity(folder)
        check_start()
        check_moving(folder)
        check_requests(folder)
        check_damage(folder)
        check_remote(folder)
        check_closing(folder)
        check_slow(folder)
    return ok.end()


if __name__ == "__main__":
    sys.exit(main())
