#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Processes of a quire serve killed under load, in random order: scripts/kill-serve (50 times), with --quick 4 times.

Killed are quire serve itself, its llama-server, the gateway before it, and masters of the cluster of redis-servers that is its remote tier. A request that is answered
is answered with the right text; after each restart requests are answered again; at the end no process and no file is left, and the store is whole.
Then the same requests with a full disk, and while the time of day jumps. QUIRE_SEED chooses another order.
"""
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from servers import Cluster, Direct, ask, make_secret
from sidecar import Sidecar, kit, llama_server, tool

expect, note, part = kit.expect, kit.note, kit.part
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
SEED = int(os.environ.get("QUIRE_SEED", "23"))
KILLS = 4 if kit.quick else 50
N_PROMPTS = 3 if kit.quick else 8
CONTEXT = 1024
PATIENCE = 120  # seconds in which a request that is sent after a restart must be answered
TEXT = kit.TEXT_FILE.read_text()
right = {}  # the answer to each prompt
OPTIONS = ("--min-tokens", "128", "--kv", "safe")


def prompts():
    """A passage and the beginning of it again: the model goes on with the passage, far from any tie, if its rows of the passage are right."""
    found = []
    for i in range(N_PROMPTS):
        passage = TEXT[3000 + 2500 * i:][:650].split(" ", 1)[1]
        found.append(f"Passage {i}:\n\n{passage}\n\nPassage {i}, the same words once more:\n\n" + passage[:250].rsplit(" ", 1)[0])
    return found


def complete(port, prompt, timeout=PATIENCE):
    """The text, or None if there was no whole answer."""
    try:
        status, _, answer = ask(port, "POST", "/completion", {"prompt": prompt, "n_predict": 6, "temperature": 0, "seed": 1}, timeout)
        return json.loads(answer)["content"] if status == 200 else None
    except (OSError, ValueError, EOFError):
        return None
    except Exception as e:  # http.client.IncompleteRead and others of it
        if type(e).__module__ == "http.client":
            return None
        raise


def find_answers():
    """Of prompts whose answer does not depend on how a batch was cut: the likeliest token is far before the second."""
    with Direct(llama_server("smollm2-135m", CONTEXT), "-np", "1", policy="safe") as d:
        for prompt in prompts():
            answer = json.loads(d.ask("POST", "/completion", {"prompt": prompt, "n_predict": 6, "temperature": 0, "seed": 1, "n_probs": 2})[2])
            tops = [[t["logprob"] for t in p["top_logprobs"]] for p in answer["completion_probabilities"]]
            if min(a - b for a, b in tops) > 0.2:
                right[prompt] = answer["content"]


def alive_with(words):
    """Processes whose command line has these words."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid() and words.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


class Load:
    """Clients that ask all the time, and what came of it."""

    def __init__(self, port, right, n=2):
        self.port, self.right = port, right
        self.counts = {"right": 0, "none": 0}
        self.wrong, self.lock, self.ended = [], threading.Lock(), False
        self.threads = [threading.Thread(target=self.work, args=(SEED + i,)) for i in range(n)]
        for t in self.threads:
            t.start()

    def work(self, seed):
        chance = random.Random(seed)
        while not self.ended:
            prompt = chance.choice(list(self.right))
            got = complete(self.port, prompt)
            with self.lock:
                if got is None:
                    self.counts["none"] += 1
                elif got == self.right[prompt]:
                    self.counts["right"] += 1
                else:
                    self.wrong.append(got)
            if got is None:
                time.sleep(0.1)

    def end(self):
        self.ended = True
        for t in self.threads:
            t.join()


def has_gateway():
    return "--replica" in subprocess.run([tool(), "serve", "--help"], stdout=subprocess.PIPE, text=True).stdout


class Fleet:
    """A cluster, one quire serve and a gateway before it, whose processes can be killed and started again."""

    def __init__(self, place, cluster):
        self.place, self.cluster, self.folders, self.gateway = place, cluster, set(), None
        self.options = (*OPTIONS, "--secret-file", make_secret(place / "key"), "--remote", cluster.address())
        self.serve_port = self.port = kit.free_port()
        self.start()
        if has_gateway():
            self.port = kit.free_port()
            self.start_gateway()

    def start(self):
        # The same port each time, as a service has it.
        self.serve = Sidecar(self.place / "store", "-np", "2", options=self.options, context=CONTEXT, port=self.serve_port)
        self.folders.add(self.serve.folder())

    def start_gateway(self):
        self.gateway = subprocess.Popen([tool(), "serve", "--replica", f"127.0.0.1:{self.serve_port}", "--port", str(self.port)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait_ready(self):
        """What is before the server knows that it is there again."""
        end = time.monotonic() + PATIENCE
        while self.gateway and time.monotonic() < end:
            try:
                if ask(self.port, "GET", "/quire/health", timeout=5)[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)

    def kill_gateway(self, _):
        self.gateway.kill()
        self.gateway.wait()
        self.start_gateway()

    def end(self):
        if self.gateway:
            self.gateway.terminate()
            self.gateway.wait(120)
        self.serve.stop()
        self.serve.log.close()

    def kill_sidecar(self, _):
        self.serve.process.kill()
        self.serve.process.wait()
        self.serve.log.close()
        self.start()

    def kill_server(self, _):
        self.serve.kill_server()

    def kill_master(self, chance):
        masters = [i for i in range(len(self.cluster.ports)) if "role:master" in self.cluster.command(i, "INFO", "replication")]
        i = chance.choice(masters)
        self.cluster.kill(i)
        time.sleep(chance.uniform(0.1, 2))
        self.cluster.start(i)
        self.cluster.wait_well()


def verify(store):
    done = subprocess.run([tool(), "store", "verify", "--dir", str(store)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    expect(done.returncode == 0, "the store is whole", done.stdout[-600:])
    strange = [p.name for p in Path(store).rglob("*") if p.is_file() and re.search(r"tmp|\.[A-Za-z0-9]{6}$", p.name)]
    expect(not strange, "no temporary file is left in it", str(strange))


def killed_under_load():
    chance = random.Random(SEED)
    with tempfile.TemporaryDirectory(prefix="quire-serve-kill.") as place, Cluster(3, 0 if kit.quick else 3) as cluster:
        fleet = Fleet(Path(place), cluster)
        kinds = [fleet.kill_sidecar, fleet.kill_server, fleet.kill_master, *([fleet.kill_gateway] if fleet.gateway else [])]
        order = [kinds[i % len(kinds)] for i in range(KILLS)]
        chance.shuffle(order)
        load, unanswered, wrong = Load(fleet.port, right), [], []
        try:
            for i, kill in enumerate(order):
                time.sleep(chance.uniform(0.1, 1.5))
                kill(chance)
                fleet.wait_ready()
                fleet.folders.add(fleet.serve.folder())
                prompt = chance.choice(list(right))
                got = complete(fleet.port, prompt)
                what = f"{i} {kill.__name__}"
                if got is None:
                    unanswered.append(what)
                elif got != right[prompt]:
                    wrong.append((what, got, right[prompt]))
        finally:
            load.end()
            figures = fleet.serve.figures() if fleet.serve.process.poll() is None else {}
            said = fleet.serve.text()
            fleet.end()
        names = [k.__name__ for k in order]
        note(f"seed {SEED}: " + ", ".join(f"{n} {names.count(n)} times" for n in sorted(set(names))) + f"; {load.counts['right']} answers, {load.counts['none']} requests without one")
        note(f"of the last process: {figures}")
        expect(not unanswered, "a request that is sent after the restart is answered", f"{unanswered} {said[-1500:]}")
        expect(not wrong and not load.wrong, "no answer is wrong", f"{wrong[:2]} {load.wrong[:3]}")
        expect(load.counts["right"] >= KILLS // 2, "and there were answers in between", str(load.counts))
        expect(figures.get("miscounted") == 0 and figures.get("restores_short") == 0, "no count was wrong", str(figures))
        left = [str(f) for f in fleet.folders if f and f.exists()]
        expect(not left, "no folder of a quire serve is left", str(left))
        alive = [f"{f} {alive_with(str(f))}" for f in fleet.folders if f and alive_with(str(f))]
        expect(not alive, "no llama-server is left", str(alive))
        verify(Path(place) / "store")


def disk_full():
    with tempfile.TemporaryDirectory(prefix="quire-serve-full.") as place:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", place], stderr=subprocess.DEVNULL).returncode:
            note("a full disk needs the right to mount; left out")
            return
        try:
            with Sidecar(Path(place) / "store", "-np", "1", options=(*OPTIONS, "--store-size", "64M"), context=CONTEXT) as s:
                got = []
                for _ in range(2):
                    for prompt in right:
                        got.append(complete(s.port, prompt) == right[prompt])
                        time.sleep(0.5)  # it saves
                room = os.statvfs(place)
                note(f"{room.f_bavail * room.f_frsize >> 10} KiB of 6 MiB are free; {s.figures()}")
                expect(all(got), "with a full disk requests are answered", f"{got} {s.text()[-1500:]}")
                expect(s.process.poll() is None and s.figures()["miscounted"] == 0, "and quire serve goes on")
            expect(s.ended == 0, "it stops cleanly", f"status {s.ended}")
            verify(Path(place) / "store")
        finally:
            subprocess.run(["umount", place], check=True)


def clock_jumps():
    with tempfile.TemporaryDirectory(prefix="quire-serve-clock.") as place:
        place = Path(place)
        made = subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", str(place / "clock_jump.so"), str(Path(__file__).with_name("clock_jump.c"))])
        expect(made.returncode == 0, "the shim compiles")
        jump = place / "jump"
        jump.write_bytes(struct.pack("q", 0))
        env = {"LD_PRELOAD": str(place / "clock_jump.so"), "CLOCK_JUMP_FILE": str(jump)}
        day, got, restores = 86400, [], 0
        with open(jump, "r+b", buffering=0) as file:
            for seconds in (0, 400 * day, -20000 * day, -3600) if not kit.quick else (400 * day, -20000 * day):
                with Sidecar(place / "store", "-np", "1", options=OPTIONS, context=CONTEXT, env=env) as s:
                    for i, prompt in enumerate(right):
                        if i == 1:  # between two requests of one process too
                            os.pwrite(file.fileno(), struct.pack("q", seconds), 0)
                        begin = time.monotonic()
                        got.append((seconds, complete(s.port, prompt) == right[prompt], round(time.monotonic() - begin, 1)))
                        if not i and not restores:
                            s.wait_figure("saves", 1, 5)
                    restores += s.figures()["restores"]
        expect(all(ok for _, ok, _ in got), "while the time of day jumps, requests are answered", str(got))
        expect(restores > 0, "and prompts are restored", str(got))
        verify(place / "store")


def run():
    find_answers()
    if not expect(len(right) >= 2, "there are prompts with clear answers", str(right)):
        return
    note(f"{len(right)} prompts, such as the answer {next(iter(right.values()))!r}")
    part(killed_under_load)
    part(disk_full)
    part(clock_jumps)


if __name__ == "__main__":
    sys.exit(kit.main(run))
