#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One file for every host: the same plug-in in all of them, and what it does with those it does not know.

The program quire_llama_device (tests/llama/device) drives the device through ggml's API; here it runs against the
libraries of each host. Environment: QUIRE_LLAMA_DEVICE, its path.
"""
import json
import os
import subprocess

import kit
from kit import Broken, expect, note, part

PROMPT = "The capital of France is"
SOME = ["attend-f16", "attend-q8_0", "attend-q4_0", "sched", "bytes", "state", "streams", "shift", "window", "flip", "odd-ops"]


def host(*args):
    """Directory of a host, or None where it is not to be had."""
    done = subprocess.run([str(kit.ROOT / "scripts/get-llama"), *args], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        note(f"get-llama {' '.join(args)}: not here")
        return None
    return done.stdout.strip().split("\n")[-1]


def device_program():
    return os.environ.get("QUIRE_LLAMA_DEVICE") or str(kit.ROOT / "build/release/bin/quire_llama_device")


def drive(name, directory, *more, tests=(), policies=(), loader=()):
    chosen = [a for t in tests for a in ("-t", t)]
    command = [*loader, device_program(), *chosen, *more, directory, str(kit.plugin()), *policies]
    done = subprocess.run(command, env=kit.environment(False), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", timeout=900)
    lines = [line for line in done.stdout.split("\n") if " checks" in line]
    expect(done.returncode == 0 and lines, f"{name}: {len(lines)} parts of the device test pass", done.stdout[-1500:])


def generate(name, program, env=None, plugin=True):
    command = [program, "-m", kit.model("smollm2-135m"), "-p", PROMPT, "-n", "12", "--temp", "0", "-c", "1024",
               "-no-cnv", "-t", kit.threads]
    done = subprocess.run(command, env={**kit.environment(plugin), **(env or {})}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", timeout=300)
    if done.returncode or PROMPT not in done.stdout:
        raise Broken(f"{name}: {' '.join(command)}: {done.stderr[-1000:]}")
    return done


def source_host():
    drive("source, OpenMP", str(kit.programs()))
    for policy in ["r5/r4"] if kit.quick else ["k8v4", "r5/r4", "tq4/tq3", "small", "h:a4g64/a2g32"]:
        drive(f"source, {policy}", str(kit.programs()), policies=[policy])


def source_without_openmp():
    if directory := host("--no-openmp", "--ggml"):
        drive("source, no OpenMP", directory, tests=SOME)


def crate():
    if directory := host("--crate", "--ggml"):
        drive("crate", directory, tests=SOME)


def debian():
    directory = host("--debian")
    if not directory:
        return
    for env in ({}, {"QUIRE_KV": "r8/r4"}):
        done = generate("debian", f"{directory}/llama-completion", env)
        expect("Paris" in done.stdout and "bytes/token" in done.stderr,
               f"debian: the device answers, {env.get('QUIRE_KV', 'declared types')}", done.stderr[-800:])


def node():
    directory = host("--node")
    if not directory:
        return
    texts = []
    for plugin in (False, True):
        command = [f"{directory}/node", str(kit.HERE / "node_generate.mjs"), "--from", directory, "--model",
                   kit.model("smollm2-135m"), "--prompt", PROMPT, "--tokens", "12", "--threads", "1"]
        done = subprocess.run(command, env=kit.environment(plugin), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, errors="replace", timeout=600)
        if done.returncode:
            raise Broken(f"node: {' '.join(command)}: {done.stderr[-1000:]}")
        texts.append(json.loads(done.stdout.strip().split("\n")[-1])["text"])
        if plugin:
            expect("bytes/token" in done.stderr, "node: the device is used", done.stderr[-800:])
    expect(texts[0][:7] == texts[1][:7] == " Paris.", "node: the same answer as stock", repr(texts))


def headers():
    """host.h against the real headers of both sources."""
    for args in (("--source",), ("--crate", "--source")):
        if source := host(*args):
            command = ["gcc", "-std=gnu11", "-fsyntax-only", f"-I{source}/ggml/include", f"-I{source}/ggml/src",
                       f"-I{kit.ROOT}/plugins/ggml", str(kit.ROOT / "plugins/ggml/abi_check.c")]
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
            expect(done.returncode == 0, f"headers of {' '.join(args)} are as host.h says", done.stderr[-1500:])


def compiled(name, text):
    source, library = kit.folder() / f"{name}.c", kit.folder() / f"{name}.so"
    source.write_text(text)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


def unknown_versions():
    """A host of an unknown version goes on without the device, and says how to get one."""
    program = str(kit.programs() / "llama-completion")
    for version in ("0.99.0", "0.3.1", "none"):
        done = generate(version, program, {"LD_LIBRARY_PATH": kit.with_version(version)})
        expect("Paris" in done.stdout and f"quire: not loaded: ggml {version} is not supported" in done.stderr and
               "QUIRE_GGML_SOURCE" in done.stderr, f"ggml {version} is refused, and the host answers", done.stderr[-800:])
    # A version that lies about its layout: 0.26 has another table of buffer types, and another API version.
    done = generate("lie", program, {"LD_LIBRARY_PATH": kit.with_version("0.26.0")})
    expect("Paris" in done.stdout and "quire: not loaded: ggml 0.26.0" in done.stderr,
           "a host that is not what its version says is refused", done.stderr[-800:])


def settings():
    program = str(kit.programs() / "llama-completion")
    bad = {"x9": "is not a preset or a codec", "c:r4/r4": "needs a profile", "r4,sinks=4:f16": "sinks= cannot be used with llama.cpp"}
    for policy, why in bad.items():
        done = generate(policy, program, {"QUIRE_KV": policy})
        expect("Paris" in done.stdout and why in done.stderr, f"QUIRE_KV={policy} is refused in one line", done.stderr[-800:])
    file = kit.folder() / "quire.conf"
    file.write_text("# a comment\nkv = r5/r4\nlog = 1\n")
    done = generate("config", program, {"QUIRE_CONFIG": str(file), "QUIRE_LOG": "1"})
    expect("policy: r5/r4" in done.stderr, "a config file gives the policy", done.stderr[-800:])
    done = generate("config", program, {"QUIRE_CONFIG": str(file), "QUIRE_KV": "r8/r4", "QUIRE_LOG": "1"})
    expect("policy: r8/r4" in done.stderr, "the environment wins over the file", done.stderr[-800:])
    file.write_text("kvv = r4\n")
    done = generate("config", program, {"QUIRE_CONFIG": str(file)})
    expect('"kvv" is not a setting' in done.stderr, "an unknown setting is named", done.stderr[-800:])


def chain():
    program = str(kit.programs() / "llama-completion")
    library = compiled("chained", """#include <stddef.h>
#include <stdio.h>
struct reg { int version; void *entry[4]; void *context; };
static const char *name(void *r) { (void)r; return "CHAINED"; }
static size_t count(void *r) { (void)r; return 0; }
static struct reg reg = { 2, { (void *)name, (void *)count }, NULL };
struct reg *ggml_backend_init(void) { fputs("chained backend asked\\n", stderr); return &reg; }
""")
    done = generate("chain", program, {"QUIRE_CHAIN": library})
    expect("chained backend asked" in done.stderr and "bytes/token" in done.stderr and "Paris" in done.stdout, "QUIRE_CHAIN loads another backend",
           done.stderr[:800])
    done = generate("chain", program, {"QUIRE_CHAIN": "/nowhere/lib.so"})
    expect("QUIRE_CHAIN: /nowhere/lib.so was not loaded" in done.stderr and "bytes/token" in done.stderr,
           "a chained backend that is missing does no harm", done.stderr[:800])


def run():
    for step in (source_host, source_without_openmp, crate, debian, node, headers, unknown_versions, settings, chain):
        part(step)


kit.main(run)
