#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Slots of a llama-server behind quire serve: with a draft model; when they cannot be saved or restored; and where their files are."""
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from sidecar import Sidecar, kit, read_until, tool

expect, note, part = kit.expect, kit.note, kit.part
TEXT = (kit.ROOT / "eval/text/wiki.txt").read_text()
HERE = Path(__file__).resolve().parent
folder = Path(tempfile.mkdtemp(prefix="quire-slots-test."))
faults = folder / "faults"
# A /dev/shm with little room, for one program.
SMALL = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=16m none /dev/shm && exec "$0" "$@"']


def model(ffn=256):
    return kit.made_model("--layers", "2", "--heads", "4", "--kv-heads", "2", "--head-size", "64", "--embd", "256", "--ffn", str(ffn), "--ctx", "8192")


def start(store, *flags, options=("--kv", "none"), faulty=False, before=(), ffn=256):
    """ffn: the larger it is, the longer a prompt takes to compute, and the surer it is that quire serve finds restoring faster on a busy machine too."""
    program = kit.programs() / "llama-server"
    os.environ.update(REAL_SERVER=str(program), FAULTS=str(faults))
    line = [str(HERE / "faulty_server.py" if faulty else program), "-m", model(ffn), "-c", "4096", "-t", "1"]
    return Sidecar(store if store == "none" else folder / store, *flags, options=options, server=line, before=before)


def reused(answer):
    return answer["timings"]["cache_n"]


def drafted(cache):
    """A slot that is filled from a file has nothing for the draft model, whose rows of other prompts must not stay."""
    flags = ("-np", "2", "-md", model(), "--spec-type", "draft-simple")
    with start("none", *flags, options=("--kv", cache)) as s:
        prompts = [s.short_rest(TEXT[at:at + 900]) for at in (0, 4000)]
        plain = [s.complete(p, 4) for p in prompts]
    expect(all(p["timings"].get("draft_n") for p in plain), f"the server drafts, {cache}", str(plain[0]["timings"]))
    with start(f"draft-{cache}", *flags, options=("--kv", cache)) as s:
        for p in prompts:
            s.complete(p, 4)
        expect(s.wait_figure("saves", 2), f"prompts are saved beside a draft model, {cache}", s.text()[-1500:])
    with start(f"draft-{cache}", *flags, options=("--kv", cache)) as s:
        for turn in range(3):  # the third finds its slots filled and used
            for i, p in enumerate(prompts):
                again = s.complete(p + (TEXT[9000:9400] if turn == 1 else ""), 4)
                if turn == 0:
                    expect(again["content"] == plain[i]["content"], f"with the same text, {cache}", f"{plain[i]['content']!r} {again['content']!r}")
        f = s.figures()
        expect(f["restores"] >= 2 and f["restored_tokens"] > 0 and f["restores_short"] == f["restores_failed"] == 0, f"they are restored, {cache}", str(f))


def unrestored():
    """A server that takes no slot files: that is counted; three in a row end restoring, which is said once. The answers are as ever."""
    faults.write_text("")
    with start("unrestored") as s:
        texts = [s.complete(TEXT[4000 * i:4000 * i + 900], 2)["content"] for i in range(4)]
    with start("unrestored", faulty=True) as s:
        faults.write_text("restore")
        for i in range(4):
            again = s.complete(TEXT[4000 * i:4000 * i + 900], 2)
            f, most = s.figures(), min(i + 1, 3)
            expect(f["restores_failed"] == most and f["restores"] == 0, f"failed restores are counted, {most}", str(f))
            expect(again["content"] == texts[i], "the answer is the same")
        expect(s.wait_text("no longer restored") and s.text().count("no longer restored") == 1, "the third is the last, and it is said once")
        health = json.loads(s.ask("GET", "/quire/health")[2])
        expect(health["status"] == "degraded" and health["restoring"] is False, "/quire/health says it", str(health))


def no_room():
    """A slot that holds a part of the prompt is kept if no file with more of it can be written."""
    ignoring = (sys.executable, "-c", "import os, sys; os.execv(sys.argv[1], sys.argv[1:])")  # Python ignores SIGXFSZ, and so does what it becomes
    prompt, longer = TEXT[:900], TEXT[:3600]
    with start("room", "-np", "2") as s:
        s.complete(longer, 1)
    with start("room", "-np", "2", before=ignoring) as s:
        first = s.complete(prompt, 1)
        resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (400 << 10, resource.RLIM_INFINITY))
        again = s.complete(longer, 1)
        resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        n = sum(first["timings"][k] for k in ("cache_n", "prompt_n"))
        expect(reused(again) >= n - 1 and s.figures()["restores_failed"] == 1, "what a slot holds is used", f"{first['timings']} {again['timings']} {s.figures()}")


def little_memory():
    """What does not fit into memory is computed; what would not fit at once comes one after the other."""
    prompts = [TEXT[4000 * i:4000 * i + 1800] for i in range(4)]
    with start("memory", "-np", "4") as s:
        first = [s.complete(p, 2) for p in prompts]
        expect(s.wait_figure("saves", 4), "prompts are saved", str(s.figures()))
    one = 2 * 1024 * max(p["timings"]["prompt_n"] for p in first)  # a slot file, and pages for it
    with start("memory", options=("--kv", "none", "--slot-memory", str(one // 4))) as s:
        for p, before in zip(prompts[:2], first):
            expect(s.complete(p, 2)["content"] == before["content"], "without memory it is computed")
        f = s.figures()
        expect(f["restores_refused"] == 2 and f["restores"] == f["restores_failed"] == 0, "that is counted", str(f))
        expect(s.text().count("more memory than there is for them now") == 1, "and said once", s.text()[-1500:])
        # It is counted before it is said.
        expect(s.wait_figure("saves_refused", 1) and s.wait_text("more memory than there is for slot files") and
               s.text().count("more memory than there is for slot files") == 1, "nor are slots saved", f"{s.figures()} {s.text()[-1500:]}")
    with start("memory", "-np", "4", options=("--kv", "none", "--slot-memory", str(one * 5 // 4))) as s:
        # Not compared with the texts above: requests that are computed in one batch are rounded otherwise.
        got = [None] * 4
        threads = [threading.Thread(target=lambda i=i: got.__setitem__(i, s.complete(prompts[i], 2)["content"])) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        f = s.figures()
        expect(all(got) and f["restores"] >= 2 and f["restores"] + f["restores_refused"] == 4,
               "with memory for one, they are restored one after the other", f"{got} {f}")


def by_model(store):
    return subprocess.run([tool(), "store", "du", "--by", "model", "--json", "--dir", str(store)], stdout=subprocess.PIPE, text=True, timeout=120).stdout


def lost_disk():
    """A directory that cannot be used: the server starts all the same, says so, and keeps prompts again when it can be used."""
    later = folder / "later"
    with start("later") as s:
        s.complete(TEXT[:900], 1)
        expect(s.wait_figure("saves", 1), "a prompt is kept")
        expect(all(f"\nquire_serve_{line}\n" in s.metrics() for line in ("ready 1", "degraded 0")), "the figures say that all is well", s.metrics()[:600])
        file = Path(model()).name[:63]
        expect(s.wait(lambda: f'"model_name":"{file}"' in by_model(later)), "quire store du shows whose pages they are", by_model(later))
    head = later / "quire-store"
    kept = head.read_bytes()
    version = (99).to_bytes(4, "little") + (2**32 - 1 - 99).to_bytes(4, "little")
    for what, place, damage in (("no directory", "/dev/null/pages", None), ("a store of a later version", later, kept[:8] + version + kept[16:])):
        if damage:
            head.write_bytes(damage)
        with start(place) as s:
            expect(s.complete(TEXT[:900], 1)["timings"]["prompt_n"] > 64, f"it starts and computes, {what}")
            health = json.loads(s.ask("GET", "/quire/health")[2])
            expect(health["status"] == "degraded" and health["disk"] == "not used" and health["store"] is False, f"/quire/health says it, {what}", str(health))
            expect("\nquire_serve_degraded 1\n" in s.metrics(), f"and so do the figures, {what}", s.metrics()[:600])
            expect(s.text().count("prompts are not kept on disk: ") == 1, f"one line says why, {what}", s.text()[-800:])
    head.write_bytes(kept)
    with start("later") as s:
        expect(reused(s.complete(TEXT[:900], 1)) > 64, "what was kept is still there")
    (later / "serve.key").chmod(0o644)
    with start("later") as s:
        expect("not kept on disk" in s.text() and json.loads(s.ask("GET", "/quire/health")[2])["disk"] == "not used", "nor does a key that others can read keep it from starting", s.text()[-800:])
    done = subprocess.run([tool(), "serve", "--store-size", "1M", "--", "llama-server"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=120)
    expect(done.returncode == 2 and "16M" in done.stderr, "too small a store is refused", done.stderr)


def controlled():
    """POST /v1/chat/completions/control is about a request that runs, and uses no slot."""
    with start("none") as s:
        n = s.complete(TEXT[:900], 1)["timings"]["prompt_n"]
        s.ask("POST", "/v1/chat/completions/control", {"id": "none", "action": "reasoning_end"})
        s.complete(TEXT[:900], 1)
        f = s.figures()
        expect(f["unwatched"] == 0 and f["warm_tokens"] >= n - 1, "slots are known after it", str(f))


def slot_files(s):
    return list(s.folder().glob("slot-*"))


def unsaved():
    """A slot that cannot be saved is still what it was. A file that comes late is removed."""
    faults.write_text("")
    prompt = TEXT[:900]
    with start("unsaved", "-np", "2", faulty=True) as s:
        faults.write_text("late")  # not before: what the server is like is learnt through a slot file
        first = s.complete(prompt, 1)
        expect(s.wait_figure("saves_refused", 1), "the refusal is counted", str(s.figures()))
        expect(s.wait(lambda: slot_files(s)), "the file comes late", str(s.figures()))
        faults.write_text("")
        n = sum(first["timings"][k] for k in ("cache_n", "prompt_n"))
        more = s.complete(prompt + TEXT[9000:9400], 1)
        expect(reused(more) >= n - 1, "the slot is still known", f"{first['timings']} {more['timings']}")
        log = [line for line in s.text().splitlines() if "path=/completion" in line]
        expect(s.wait_figure("saves", 1), "it is saved when it has grown", "\n".join(log))
        s.complete(TEXT[20000:20900], 1)
        expect(s.wait_figure("saves", 2), "the next prompt is saved", str(s.figures()))
        expect(s.wait(lambda: not slot_files(s)), "no slot file is left", str(slot_files(s)))


def left():
    """A client leaves before the server has begun; the server begins its request all the same, in a slot that another prompt was restored to."""
    faults.write_text("")
    with start("left", ffn=4096) as s:
        texts = [s.complete(TEXT[4000 * i:4000 * i + 900], 1)["content"] for i in range(4)]
    with start("left", faulty=True, ffn=4096) as s:
        faults.write_text("slow")
        for i in range(3):
            body = json.dumps({"prompt": TEXT[30000 + 3000 * i:30900 + 3000 * i], "n_predict": 1}).encode()
            with socket.create_connection(("127.0.0.1", s.port)) as c:
                c.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                time.sleep(0.3)
            again = s.complete(TEXT[4000 * i:4000 * i + 900], 1)
            note(f"{reused(again)} tokens reused after a client had left")
            expect(again["content"] == texts[i], "the answer is the same")
            expect(s.figures()["restores"] == i + 1 and s.wait_figure("left", i + 1) and s.figures()["left"] == i + 1, "it was restored", str(s.figures()))
        faults.write_text("")
        time.sleep(2)
        last = s.complete(TEXT[12000:12900], 1)
        expect(reused(last) >= 128 and "no longer restored" not in s.text(), "prompts are still restored", f"{last['timings']} {s.figures()}")


def scripted(*before, options=()):
    return subprocess.Popen([*before, tool(), "serve", "--kv", "none", "--store", "none", *options, "--", str(HERE / "scripted.py"), "--port", "0"],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(p):
    p.send_signal(signal.SIGTERM)
    return p.communicate(timeout=120)[0]


def may_mount():
    return shutil.which("unshare") and subprocess.run([*SMALL, "true"], capture_output=True).returncode == 0


def places():
    """Where slot files are is said if it is not /dev/shm, and that they are not encrypted if that matters."""
    if not may_mount():
        return note("left out: no mount namespace")
    secret = folder / "key"
    secret.write_bytes(os.urandom(32))
    secret.chmod(0o600)
    sealed = ("--seal-disk", "--secret-file", str(secret))
    in_memory = subprocess.run(["stat", "-f", "-c", "%T", "/tmp"], capture_output=True, text=True).stdout.strip() == "tmpfs"
    for options in ((), sealed):
        p = scripted(*SMALL, options=options)
        said = read_until(p, p.stdout, "listening at", 120) + ended(p)  # where they are is said before
        expect(said.count("slot files are in /tmp: /dev/shm has less than 1 GiB free") == 1, "it says where, and why", said)
        expect(said.count("slot files are not") == bool(options and not in_memory), f"what is not encrypted is said, {options}", said)


def run():
    try:
        part(drafted, "none")
        part(drafted, "safe")
        part(unrestored)
        part(no_room)
        part(little_memory)
        part(lost_disk)
        part(unsaved)
        part(left)
        part(controlled)
        part(places)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(kit.main(run))
