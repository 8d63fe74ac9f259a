#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Two llama-servers share prompts through the store (scripts/share-slots): stock types, V transposed, the device, and two builds with
different versions of slot files. The rows that come back are those that were stored, bit for bit. Slots that were shifted or
re-used are refused."""
import importlib.machinery
import importlib.util
import struct
import subprocess
import tempfile

import kit
from kit import expect
from slotfile import SlotFile

loader = importlib.machinery.SourceFileLoader("share_slots", str(kit.ROOT / "scripts" / "share-slots"))
share_slots = importlib.util.module_from_spec(importlib.util.spec_from_loader("share_slots", loader))
loader.exec_module(share_slots)

CASES = [("f16", [], None), ("q8_0 and q4_0", ["-ctk", "q8_0", "-ctv", "q4_0"], None), ("V transposed", ["-fa", "off"], None),
         ("device r8/r4", [], "r8/r4")]


def rows_equal(files, n):
    """Whether the first n rows of every layer and side are equal in two slot files."""
    slots = []
    for data in files:
        with tempfile.NamedTemporaryFile(dir=kit.folder()) as f:
            f.write(data)
            f.flush()
            slots.append(SlotFile(f.name))
    a, b = slots
    pairs = list(zip(a.rows, b.rows))
    return bool(pairs) and len(a.rows) == len(b.rows) and all(
        x.type == y.type and x.row_bytes == y.row_bytes and
        a.data[x.offset:x.offset + n * x.row_bytes] == b.data[y.offset:y.offset + n * y.row_bytes] for x, y in pairs)


def new_place():
    return ["--dir", tempfile.mkdtemp(dir=kit.folder(), prefix="pages-"), "--cap", "256M"]


def case(name, types, policy, hosts=(None, None), n=700):
    n = n if kit.quick else 2000
    for _ in range(3):  # a busy machine can make one of two times long
        r = share_slots.share(kit.model("smollm2-135m"), n, types, policy, new_place(), hosts)
        if r["shared_ms"] < 0.7 * r["alone_ms"]:
            break
    whole = n // 64 * 64
    expect(r["loaded"] == whole, f"{name}: {whole} of {n} tokens came back", f"{r['loaded']}")
    expect(r["cached"] >= whole - 1, f"{name}: they were not computed again", f"{r['cached']} of {n}")
    if "-fa" not in types:  # transposed V has no rows to compare; the text must do
        expect(rows_equal(r["files"], whole), f"{name}: rows are equal bit for bit")
    expect(kit.tie(*r["answers"]), f"{name}: the text goes on as without the store", f"{[a.text for a in r['answers']]}")
    expect(r["shared_ms"] < 0.7 * r["alone_ms"], f"{name}: the first token comes sooner",
           f"{r['alone_ms']:.0f} ms alone, {r['shared_ms']:.0f} ms shared")
    kit.note(f"first token after {r['alone_ms']:.0f} ms alone, {r['shared_ms']:.0f} ms shared; slot of {r['slot_mb']:.1f} MB")


def make_adapter(width):
    """Path of a LoRA adapter of rank 4 for the queries of the first layer of a llama model."""
    def string(text):
        return struct.pack("<Q", len(text)) + text.encode()
    words = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    head = b"".join(string(k) + struct.pack("<I", 8) + string(v) for k, v in words.items())
    head += string("adapter.lora.alpha") + struct.pack("<If", 6, 4.0)
    one = struct.pack(f"<{4 * width}f", *(0.02 * ((7 * i) % 13 - 6) for i in range(4 * width)))
    for i, (side, shape) in enumerate((("a", (width, 4)), ("b", (4, width)))):
        head += string(f"blk.0.attn_q.weight.lora_{side}") + struct.pack("<IQQIQ", 2, *shape, 0, i * len(one))
    data = b"GGUF" + struct.pack("<IQQ", 3, 2, len(words) + 1) + head
    path = kit.folder() / "adapter.gguf"
    path.write_bytes(data + bytes(-len(data) % 32) + one + one)
    return path


def adapters():
    """The server tells which adapters it has and which ones the last request chose."""
    model = kit.model("smollm2-135m")
    store = share_slots.Store(new_place(), model)
    with kit.Server(model, "-c", 256, "-np", 1, "--lora", make_adapter(576), plugin=False) as s:
        url = ["--server", f"http://127.0.0.1:{s.port}"]
        tokens = s.tokens(kit.text(0, 1000))[:100]
        s.completion(tokens, 1, slot=0)
        slot = s.save(0, "with")
        said = refused(store, slot, *url)
        expect(said and "LoRA" in said, "an adapter of the server, not given to put-slot: refused", f"{said}")
        said = refused(store, slot, "--pid", s.process.pid)
        expect(said and "--lora" in said, "an adapter in the flags of the server, not given to put-slot: refused", f"{said}")
        settings = kit.folder() / "config/llama.cpp/config.ini"
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text("[*]\nlora = /x.gguf\n")
        other = subprocess.Popen(["llama-server", "600"], executable="/bin/sleep", env={"XDG_CONFIG_HOME": str(settings.parents[1])})
        said = refused(store, slot, "--pid", other.pid)
        other.kill()
        other.wait()
        expect(said and "lora in" in said and str(settings) in said, "an adapter in llama.cpp's config.ini, not given to put-slot: refused", f"{said}")
        given = ["--adapter", "a", "--adapter-scale", "1"]
        said = refused(store, slot, *url, *given)
        expect(said is None, "an adapter of the server, given: taken", f"{said}")
        s.completion(tokens, 1, slot=0, cache=False, lora=[{"id": 0, "scale": 0.5}])
        said = refused(store, s.save(0, "own"), *url, *given)
        expect(said and "of its own" in said, "an adapter scale of one request: refused", f"{said}")


def debian():
    """Directory of Debian's programs, or None."""
    done = subprocess.run([str(kit.ROOT / "scripts/get-llama"), "--debian"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        kit.note("get-llama --debian: not here")
        return None
    return done.stdout.strip()


def version(host):
    with kit.Server(kit.model("smollm2-135m"), "-c", 256, "-np", 1, plugin=False, host=host) as s:
        s.completion("Hello", 1, slot=0)
        return SlotFile(s.save(0, "one")).version


def builds(other):
    """The pages of one build serve the other, each with slot files of its own version; quantized rows, whose rotation one of them does
    not say, are not mixed."""
    versions = version(None), version(other)
    kit.note(f"slot files of versions {versions[0]} and {versions[1]}")
    for hosts in ((None, other), (other, None)):
        names = " to ".join(str(versions[h is other]) for h in hosts)
        case(f"f16, version {names}", [], None, hosts, n=330)
    case(f"q8_0, version {versions[1]}", ["-ctk", "q8_0", "-ctv", "q8_0"], None, (other, other), n=330)
    if versions != (3, 4):
        return
    store, types = share_slots.Store(new_place(), kit.model("smollm2-135m")), ["-c", 256, "-np", 1, "-ctk", "q8_0", "-ctv", "q8_0"]
    with kit.Server(kit.model("smollm2-135m"), *types, plugin=False) as s:
        tokens = s.tokens(kit.text(0, 1000))[:100]
        s.completion(tokens, 1, slot=0)
        store.put(s.save(0, "own"), s)
    with kit.Server(kit.model("smollm2-135m"), *types, plugin=False, host=other) as s:
        s.completion("Hello", 1, slot=0)
        got = store.get(s.save(0, "like"), tokens, s.slots / "shared")
    expect(got["tokens"] == 0, "q8_0, version 3 to 4: not mixed", f"{got}")


def refused(store, slot, *more):
    """What put-slot says to a slot it does not take; None: it takes it."""
    done = store.call("put-slot", "--computed-from-zero", *more, slot)
    return done.stderr.strip() if done.returncode else None


def changed(how):
    """Rows of a slot that did not come from its tokens alone."""
    flags = {"context shift": ["--context-shift"], "cache re-use": ["--cache-reuse", 32], "re-use of one request": []}[how]
    model = kit.model("smollm2-135m")
    store = share_slots.Store(new_place(), model)
    with kit.Server(model, "-c", 256 if how == "context shift" else 1024, "-np", 1, "--cache-ram", 0, *flags, plugin=False) as s:
        process = ["--pid", s.process.pid, "--server", f"http://127.0.0.1:{s.port}"]
        begin, middle, end = (s.tokens(kit.text(at, n), special=False)[:m] for at, n, m in
                              ((2000, 600, 70), (9000, 800, 90), (20000, 2000, 260)))
        if how == "context shift":
            s.completion(begin + middle, 160, slot=0, ignore_eos=True)
            expect(s.says("slot context shift"), f"{how}: happened")
        else:
            more = {"n_cache_reuse": 32} if how == "re-use of one request" else {}
            s.completion(begin + middle + end, 1, slot=0)
            again = s.completion(begin + end, 1, slot=0, **more)
            expect(again.n_cached > len(begin) + 64, f"{how}: happened", f"{again.n_cached} tokens")
        slot = s.save(0, "changed")
        said = refused(store, slot)
        expect(said and "order of the cells" in said, f"{how}: the slot file shows it, and is refused", f"{said}")
        s.erase(0)
        s.completion(begin, 1, slot=0)
        slot = s.save(0, "honest")
        said = refused(store, slot, *process)
        if flags:
            expect(said and flags[0] in said, f"{how}: a server with this flag is refused", f"{said}")
        else:
            expect(said is None, "an honest slot is taken", f"{said}")


def run():
    for one in CASES[:2] + CASES[3:] if kit.quick else CASES:
        kit.part(case, *one)
    for how in ("context shift", "cache re-use", "re-use of one request"):
        kit.part(changed, how)
    kit.part(adapters)
    other = debian()
    if other:
        kit.part(builds, other)


kit.main(run)
