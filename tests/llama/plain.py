#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the device cannot do, it leaves to the host, in one line: without address space for its tiles, and under flags
that split a model in other ways than by layers. The program then does what stock does."""
import resource
import subprocess

import kit
from kit import expect, note, part

PROMPT = "The capital of France is"
LIMIT = 1400 << 20  # bytes of address space: enough for the declared cache of 32768 cells, not for tiles beside it


def complete(*args, plugin=True, env=None, limit=None):
    command = [str(kit.programs() / "llama-completion"), "-m", kit.model("smollm2-135m"), "-p", PROMPT, "-n", "8", "--temp", "0",
               "-no-cnv", "-t", kit.threads, *map(str, args)]
    return subprocess.run(command, env={**kit.environment(plugin), **(env or {})}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", timeout=300,
                          preexec_fn=limit and (lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))))


def said(done, words):
    return sum(line.startswith("quire: ") and words in line for line in done.stderr.split("\n"))


def answers(done):
    return done.returncode == 0 and "Paris" in done.stdout


def address_space():
    """ulimit -v: the server must not start and then fail every request."""
    if not expect(answers(complete("-c", 32768, plugin=False, limit=LIMIT)), "stock fits into the address space"):
        return
    for policy in ({}, {"QUIRE_KV": "r8/r8"}):
        done = complete("-c", 32768, env=policy, limit=LIMIT)
        if "bytes/token" in done.stderr:  # r8 is half as large, and may fit
            note("tiles fit into the address space")
        else:
            expect(said(done, "could not reserve address space") == 1, "without address space one line says so", done.stderr[-1500:])
        expect(answers(done), f"with little address space it answers, {policy or 'declared types'}", done.stderr[-1500:])


def row_split():
    """Stock computes on the CPU as without the flag."""
    for policy in ({}, {"QUIRE_KV": "r8/r4"}):
        done = complete("-c", 1024, "-sm", "row", env=policy)
        expect(answers(done) and "bytes/token" in done.stderr, f"-sm row: the device is used, {policy or 'declared types'}",
               done.stderr[-1500:])


def tensor_split():
    """Stock has no device for it and refuses to load the model: so it does with the device, and does not abort."""
    stock = complete("-c", 1024, "-sm", "tensor", plugin=False)
    for args, env in ((["-sm", "tensor"], {}), (["--split-mode", "tensor"], {}), ([], {"LLAMA_ARG_SPLIT_MODE": "tensor"})):
        done = complete("-c", 1024, *args, env=env)
        name = " ".join(args) or "LLAMA_ARG_SPLIT_MODE=tensor"
        expect(said(done, "not loaded: -sm tensor") == 1, f"{name}: one line says that the device is not loaded", done.stderr[-1500:])
        expect(done.returncode == stock.returncode and "GGML_ASSERT" not in done.stderr, f"{name}: the program ends as stock does",
               f"exit status {done.returncode}, stock {stock.returncode}: {done.stderr[-1500:]}")
    done = complete("-c", 1024, "-sm", "tensor", "-sm", "layer")
    expect(answers(done) and "bytes/token" in done.stderr, "-sm layer after -sm tensor: the last one counts", done.stderr[-1500:])


def config_folder():
    done = complete("-c", 512, env={"QUIRE_CONFIG": str(kit.folder())})
    expect(answers(done) and said(done, "not loaded: QUIRE_CONFIG: ") == 1, "a folder as QUIRE_CONFIG is refused in one line",
           done.stderr[-1500:])


def profile_length():
    """A length that is no number is not taken for none."""
    for value in ("abc", "8k", "-1", "4294967296"):
        done = complete("-c", 512, env={"QUIRE_PROFILE_LENGTH": value})
        expect(answers(done) and said(done, f"not loaded: QUIRE_PROFILE_LENGTH={value}: it is not a number of tokens") == 1,
               f"QUIRE_PROFILE_LENGTH={value} is refused in one line", done.stderr[-1500:])
    done = complete("-c", 512, env={"QUIRE_PROFILE_LENGTH": "8192"})
    expect(answers(done) and "bytes/token" in done.stderr, "QUIRE_PROFILE_LENGTH=8192 is taken", done.stderr[-1500:])


def long_settings():
    """However long a value is and whatever is in it, the reason is in the one line."""
    for value, reason in (("r" * 100000, "more than 511 characters"), ("r8\nr4", "is not a "), ("r8\x1b[31m", "is not a ")):
        done = complete("-c", 512, env={"QUIRE_KV": value})
        lines = [line for line in done.stderr.split("\n") if line.startswith("quire: not loaded: ")]
        expect(answers(done) and len(lines) == 1 and reason in lines[0] and "\x1b" not in lines[0],
               f"QUIRE_KV of {len(value)} characters is refused in one line with the reason", str(lines)[:1500])
    file = kit.folder() / "long.conf"
    file.write_text("# " + "x" * 9000 + "\nkv = r8/r4\n")
    done = complete("-c", 512, env={"QUIRE_CONFIG": str(file)})
    expect(answers(done) and "bytes/token" in done.stderr, "a line of QUIRE_CONFIG can be long", done.stderr[-1500:])


def run():
    for one in (address_space, row_split, tensor_split, config_folder, profile_length, long_settings):
        part(one)


kit.main(run)
