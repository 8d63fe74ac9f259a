#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""quire run with a real host: the device is found and used, sizes are those of llama.cpp, and a static host is refused."""
import json
import os
import re
import subprocess

import kit
from kit import Broken, expect, part

PROMPT = "The capital of France is"


def tool():
    return os.environ.get("QUIRE_TOOL") or str(kit.ROOT / "build/release/bin/quire")


def quire_run(options, host_arguments, env=None, program="llama-completion"):
    command = [tool(), "run", *options, "--", str(kit.programs() / program), *host_arguments]
    clean = kit.environment(False)
    clean["QUIRE_PLUGIN"] = str(kit.plugin())
    return subprocess.run(command, env={**clean, **(env or {})}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace", timeout=600)


def arguments(model, ctx=1024):
    return ["-m", kit.model(model), "-p", PROMPT, "-n", "8", "--temp", "0", "-c", str(ctx), "-no-cnv", "-t", kit.threads]


def answers():
    for policy in ("safe", "r8/r4"):
        done = quire_run(["--kv", policy], arguments("smollm2-135m"), {"QUIRE_LOG": "1"})
        line = done.stderr.split("\n")[0]
        expect(done.returncode == 0 and "Paris" in done.stdout and re.match(rf"quire run: {policy}.* 22\.5 MiB in f16, .* saved$", line)
               and "bytes/token" in done.stderr, f"{policy}: one line, then the answer under the device", done.stderr[-800:])


def sizes():
    """What the command says of f16 is what the host makes without the device."""
    for model, ctx in (("smollm2-135m", 2048), ("gemma3-270m", 8192)):
        told = json.loads(quire_run(["--json", "--kv", "r8/r4"], arguments(model, ctx)).stderr.split("\n")[0])
        # One sequence: llama-completion makes one.
        done = subprocess.run([str(kit.programs() / "llama-completion"), *arguments(model, ctx), "-v"], env=kit.environment(False),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=600)
        made = sum(float(size) for size in re.findall(r"KV buffer size = +([0-9.]+) MiB", done.stdout))
        if not made:
            raise Broken("the host tells no size of its cache")
        expect(abs(told["f16_bytes"] / 2**20 - made) <= 0.01 * made, f"{model}: {made} MiB of f16, as the host says",
               f"{told['f16_bytes'] / 2**20} MiB and {made} MiB")


def refused():
    done = quire_run([], arguments("smollm2-135m"), {"LD_LIBRARY_PATH": kit.with_version("0.99.0")})
    expect(done.returncode == 1 and "cannot load the device: ggml 0.99.0 is not supported" in done.stderr and not done.stdout,
           "a host of an unknown version is refused before it starts", done.stderr[-800:])
    done = quire_run(["--kv", "r4,sinks=4:f16"], arguments("smollm2-135m"))
    expect(done.returncode == 1 and "sinks= cannot be used with llama.cpp" in done.stderr, "a policy that the device cannot have is refused",
           done.stderr[-800:])


def profile_beside():
    model = kit.folder() / "model.gguf"
    model.symlink_to(kit.model("smollm2-135m"))
    profile = kit.folder() / "model.quire-profile"
    text = kit.folder() / "text.txt"
    text.write_text(kit.text(0, 60000))
    kit.run("llama-perplexity", ["-m", model, "-f", text, "-c", 512, "--chunks", 4, "-t", kit.threads],
            env={"QUIRE_PROFILE_RECORD": str(profile)})
    host = ["-m", str(model), *arguments("smollm2-135m")[2:]]
    done = quire_run(["--kv", "balanced"], host, {"QUIRE_LOG": "1"})
    expect(f"with the profile {profile}" in done.stderr and "c:r5/r4" in done.stderr and "policy: c:r5/r4" in done.stderr,
           "the profile beside the model is used by a preset", done.stderr[:1200])
    done = quire_run(["--kv", "r8/r4"], host)
    expect("profile" not in done.stderr.split("\n")[0], "a policy that needs none goes without", done.stderr[:400])


def run():
    for step in (answers, sizes, refused, profile_beside):
        part(step)


kit.main(run)
