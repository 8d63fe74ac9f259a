#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""quire.llama in a real llama-cpp-python (scripts/get-llama --python): chats, memory, saved states, and what it refuses.

python_generate.py runs in that Python. It has two sets of libraries: those that pip builds, and some with GGML_BACKEND_DL.
"""
import functools
import json
import os
import re
import subprocess
from pathlib import Path

import kit
import measure
from kit import Absent, Answer, Broken, expect, note, part

CHATS = [["What is the capital of France?", "And of Spain?"], ["Write one sentence about the sea."]]
TOKEN_BYTES = 23040  # SmolLM2's K and V in f16


@functools.lru_cache(None)
def host():
    """The virtual environment."""
    done = subprocess.run([str(kit.ROOT / "scripts/get-llama"), "--python"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise Absent("scripts/get-llama --python gave nothing")
    return Path(done.stdout.strip().split("\n")[-1])


def wide_model():
    """Weights of f32 do not amplify rounding, so that greedy texts are the same and not only similar."""
    path = measure.scratch() / "smollm2-135m+f32.gguf"
    if not path.exists():
        raise Absent(f"no {path.name} (eval/run.py --prepare --models smollm2-135m+f32)")
    return str(path)


def environment(env=None):
    clean = kit.environment(False)
    library = os.environ.get("QUIRE_LIBRARY") or str(kit.plugin().parent)
    return {**clean, "PYTHONPATH": str(kit.ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1", "QUIRE_LIBRARY": library, **(env or {})}


def python(*words, env=None):
    return subprocess.run([str(host() / "bin/python3"), *words], env=environment(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace", timeout=600)


def generate(kv, model, chats, n, state=False, env=None):
    wish = {"kv": kv, "model": model, "chats": chats, "n": n, "state": state, "threads": int(kit.threads), "device": str(kit.plugin())}
    done = python(str(kit.HERE / "python_generate.py"), json.dumps(wish), env=env)
    if done.returncode:
        raise Broken(f"python_generate.py with {kv}: {done.stderr[-1500:]}")
    out = json.loads(done.stdout.strip().split("\n")[-1])
    out["answers"] = [Answer(raw) for chat in out["chats"] for raw in chat]
    return out


# --- what it computes --------------------------------------------------------------------------------

def chats_as_without():
    stock, declared = (generate(kv, wide_model(), CHATS, 16) for kv in (None, "declared"))
    texts = [[a.text for a in out["answers"]] for out in (stock, declared)]
    note(" | ".join(texts[1]))
    expect("Paris" in texts[0][0] and "Madrid" in texts[0][1] and texts[0] == texts[1],
           "declared types: the same chats as without Quire", texts)
    expect(declared["held"][0][:3] == ["declared", 1, 1024], "the cache is the device's", declared["held"])


def chat_and_state(policy, percent):
    """A longer chat: memory; then a state that is saved, and loaded twice."""
    said = [["Here is a text. " + kit.text(0, 1200) + "\nWhat is the text about?"], CHATS[0][:1]]
    out = generate(policy, kit.model("smollm2-135m"), said, 16, state=True)
    expect(all(kit.sane(a.text) for a in out["answers"]), f"{policy}: the answers are plausible", [a.text for a in out["answers"]])
    ((name, contexts, cells, tokens, used, f16, saved, words),) = out["held"]
    tiles = (tokens + 63) // 64
    note(words)
    expect((contexts, cells) == (1, 1024) and 300 < tokens < 1024 and f16 == tokens * TOKEN_BYTES and
           abs(used / (tiles * 64 * TOKEN_BYTES) - percent / 100) < 0.005 and saved == f16 - used == out["saved"],
           f"{policy}: {saved / 2**20:.1f} MiB of {f16 / 2**20:.1f} MiB saved, as the counters say", out["held"])
    state = out["state"]
    _, loaded, again = state["texts"]
    expect(loaded == again, f"{policy}: a state that is loaded twice goes on in the same way, bit for bit", state["texts"])
    expect(all(n <= 16 + 2 for n in state["computed"]) and state["prompt"] > 64, f"{policy}: its {state['prompt']} tokens are not computed again",
           state)
    expect(out["after"] == [0], f"{policy}: closed models hold nothing", out["after"])


def loaded_at_run_time():
    """GGML_BACKEND_DL: without Quire such a package finds no CPU beside the program python3."""
    place = {"LLAMA_CPP_LIB_PATH": str(host() / "dynamic")}
    out = generate("r8", kit.model("smollm2-135m"), [CHATS[0][:1]], 12, env=place)
    expect(kit.sane(out["answers"][0].text) and out["held"][0][0] == "r8/r8", "GGML_BACKEND_DL: the device answers", out["held"])


def default_arguments():
    """A model that is loaded without what enable() returns works as before."""
    code = (f"from quire import llama; llama.enable('r8'); import llama_cpp; m = llama_cpp.Llama({kit.model('smollm2-135m')!r}, verbose=False)\n"
            "print(m('The capital of France is', max_tokens=4, temperature=0)['choices'][0]['text'], llama.report())")
    done = python("-c", code)
    expect("Paris" in done.stdout and done.stdout.strip().endswith("[]"), "a model with default arguments has its cache where it was",
           done.stdout + done.stderr[-800:])


def example():
    """The program of docs/python.md."""
    text = (kit.ROOT / "docs/python.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```py\n(from llama_cpp .*?)```", text, re.S)
    done = python("-c", block.replace('"model.gguf"', f"{kit.model('smollm2-135m')!r}, verbose=False, seed=1").replace("=200", "=24"))
    expect(done.returncode == 0 and re.search(r"^r6/r4: \d+ tokens in .* saved$", done.stdout, re.M), "the example of docs/python.md runs",
           done.stdout + done.stderr[-800:])


# --- what it refuses -----------------------------------------------------------------------------------

def refused(name, code, wanted, kind="RuntimeError", env=None):
    done = python("-c", code, env=env)
    said = done.stderr.strip().split("\n")
    expect(done.returncode == 1 and said[-1].startswith(f"{kind}: ") and wanted in said[-1] and not any("quire: " in line for line in said),
           f"{name}: {kind} in one line", done.stderr[-800:])


def other_version():
    """A folder of the package's libraries in which ggml says another version."""
    directory = kit.folder() / "libraries"
    directory.mkdir()
    for file in (host() / "dynamic").iterdir():
        data = file.read_bytes()
        (directory / file.name).write_bytes(data.replace(b"0.25.3\0", b"0.99.0\0") if "ggml-base" in file.name else data)
    return {"LLAMA_CPP_LIB_PATH": str(directory)}


def refusals():
    enable = "from quire import llama; llama.enable"
    refused("policy", f"{enable}('x9')", 'QUIRE_KV=x9: "x9" is not a preset or a codec')
    refused("sinks", f"{enable}('r4,sinks=4:f16')", "sinks= cannot be used with llama.cpp")
    refused("no profile", f"{enable}('r8', profile='/nowhere')", "QUIRE_PROFILE: /nowhere: No such file")
    refused("no device", f"{enable}(device='/nowhere/d.so')", "/nowhere/d.so was not found", "ImportError")
    refused("not a device", f"{enable}(device='{kit.TEXT_FILE}')", f"ggml does not load {kit.TEXT_FILE}")
    refused("ggml 0.99", f"{enable}()", "ggml 0.99.0 is not supported by this build of the device", env=other_version())
    refused("two policies", f"{enable}('r8'); llama.enable('r8'); llama.enable('r4')", "a process has one policy")
    model = kit.model("smollm2-135m")
    refused("after a model", f"import llama_cpp; m = llama_cpp.Llama({model!r}, vocab_only=True, verbose=False); {enable}()",
            "call quire.llama.enable() before the first one")
    done = python("-c", f"import os\n{enable}('r8')\nassert 'QUIRE_KV' not in os.environ and llama.report() == [] and llama.saved() == 0\n")
    expect(done.returncode == 0 and not done.stderr, "enable() says nothing and leaves the environment as it is", done.stderr[-800:])


def run():
    host(), wide_model()  # before the first check
    part(chats_as_without)
    part(chat_and_state, "r8", 51.6)
    part(chat_and_state, "balanced", 32.8)
    part(loaded_at_run_time)
    part(default_arguments)
    part(example)
    part(refusals)


kit.main(run)
