#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""quire stat with a real server: the counters are those of the cache, and the file goes with the process."""
import json
import os
import signal
import subprocess

import kit
from kit import expect, part


def tool():
    return os.environ.get("QUIRE_TOOL") or str(kit.ROOT / "build/release/bin/quire")


def stat(pid, env=None):
    done = subprocess.run([tool(), "stat", "--json", str(pid)], env={**os.environ, **(env or {})}, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def files(directory):
    return sorted(p.name for p in directory.iterdir())


def counters(directory):
    place = {"XDG_RUNTIME_DIR": str(directory)}
    with kit.Server(kit.model("smollm2-135m"), "-c", "2048", "-np", "1", env={**place, "QUIRE_KV": "r8/r4"}) as server:
        answer = server.completion("The capital of France is", 24)
        pid = server.process.pid
        found = stat(pid, place)
        if not expect(found is not None, "a running server is found", files(directory)):
            return
        (p,) = found["policies"]
        tiles = (p["tokens"] + 63) // 64
        expect(p["policy"] == "r8/r4" and p["contexts"] == 1 and p["cells"] == 2048 and 24 <= p["tokens"] <= 40 and
               p["bytes"] == tiles * 576000 and p["f16_bytes"] == p["tokens"] * 23040, "tokens and bytes are those of the cache", p)
        expect(0 < found["attend_seconds"] < found["compute_seconds"] and found["attend_calls"] % 30 == 0,
               "times and calls are plausible", found)
        expect(found["tiles_read"] >= 3 * found["attend_calls"], "each call reads a tile for each of 3 heads", found)
        expect(oct((directory / f"quire-stat.{os.getuid()}.{pid}").stat().st_mode & 0o777) == "0o600", "nobody else can read it")
        expect(bool(answer), "the server answered")
    expect(files(directory) == [], "the file goes with the process", files(directory))


def killed(directory):
    place = {"XDG_RUNTIME_DIR": str(directory)}
    server = kit.Server(kit.model("smollm2-135m"), "-c", "1024", env={**place, "QUIRE_KV": "r8/r4"})
    server.completion("One two three", 4)
    pid = server.process.pid
    os.kill(pid, signal.SIGKILL)
    server.process.wait()
    expect(len(files(directory)) == 1, "a killed process leaves its file")
    expect(stat(pid, place) is None and files(directory) == [], "which is not believed, and removed", files(directory))


def off(directory):
    place = {"XDG_RUNTIME_DIR": str(directory)}
    with kit.Server(kit.model("smollm2-135m"), "-c", "1024", env={**place, "QUIRE_STAT": "0"}) as server:
        server.completion("One two three", 4)
        expect(files(directory) == [], "QUIRE_STAT=0: no file")


def run():
    for step in (counters, killed, off):
        directory = kit.folder() / step.__name__
        directory.mkdir()
        part(step, directory)


kit.main(run)
