#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Scripts that measure, each in its shortest form: it ends well and prints a row. The figures mean nothing.

    tests/system/short_forms.py [--quick | NAME...]     all, those that take seconds, or these; --list prints the commands

What they print is kept in build/short/NAME.log. Exit status 77: none of them, or with --quick not all, could run, because a host or a model is not
to be had here.
"""
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build/short"
SMALL = "--pairs 1 --reps 1 --prefill 16 --decode 4"
# name: (command, what it must print); {out}: a folder
QUICK = {
    "bench_python_calls": ("scripts/bench-python calls --seconds 0.2 r8", r"\d"),
    "bench_serve_quick": ("scripts/bench-serve --quick events idle", r'"part": "idle"'),
    "memory_llama": ("scripts/memory-llama --ctx 512 --tokens 64 --policies r4 --stock q8_0", r"\| quire r4 \|"),
}
FORMS = {
    **QUICK,
    "bench_builds": ("scripts/bench-builds build/release/bin/quire build/release/bin/quire 0", r"decode +\w+ +r8 .* ms"),
    "bench_tables": ("QUIRE_BENCH_DIR={out}/tables scripts/bench-tables --quick", r"\| r3 \|"),
    "bench_end_to_end": ("scripts/bench-end-to-end --models made --depths 0,256 --caches 'stock f16,Quire safe,Quire small, profile' --rounds 1 --decode 4 --prefill 16 "
                         "--json {out}/end-to-end.jsonl", r"made 256 Quire small, profile: decode"),
    "bench_llama": (f"scripts/bench-llama --depths 0,64 {SMALL} --policies f16,r4 --read 25 --bytes f16=23040,r4=6120 --json {{out}}/llama.jsonl", r"\| 64 \| r4 \| decode .* % \|"),
    "bench_models": ("scripts/bench-models --depth 64 --tokens 1 --rounds 1 --layers 7 --caches 'stock f16,r4' --folder {out} --json {out}/models.jsonl", r"\| deepseek-v3.2 \| r4 \|"),
    "bench_serve": ("scripts/bench-serve --quick first-token overhead chats long", r'"part": "long"'),
    "bench_store": ("build/release/bin/quire_store_bench 1 8 {out}", r'"op":"remote-save"'),
    "bench_history": ("scripts/bench-history --file {out}/history.jsonl", r"rows, .* measurements"),
    "bench_peers": ("scripts/bench-peers decode:256 --only quire --seconds 1", r'"impl": "quire"'),
    "bench_python": ("scripts/bench-python --short", r"ok"),
    "bench_mlx_vlm": ("scripts/bench-mlx-vlm --short --rounds 1", r"\| prefill memory \|"),
    "bench_vllm": ("scripts/bench-vllm --quick --threads 1 --busy --policies r8", r'"config": "r8"'),
    "bench_vllm_engine": ("scripts/bench-vllm-engine --tokens 128 --rounds 1 --policies r8 --sequences 1 --steps 2", r'"step_ms"'),
    "bench_vllm_writing": ("scripts/bench-vllm-writing --tokens 128 --rounds 1 --policies r8 --only made", r'"share"'),
    "vllm_memory": ("tests/vllm/run.py memory.py 1", r"reading only"),
    "turboquant": ("python/tests/mlx/run.py eval/turboquant.py @model --contexts 1 --forms r4", r"r4"),
    "replay_sessions": ("scripts/replay-sessions --start 3 --requests 12 --longest 512", r'"hit_percent"'),
    "replay_gateway": ("scripts/replay-sessions --start 3 --gateway --requests 12 --longest 512 --kill-at 6 --trace {out}/kill.trace", r'"hit_percent"'),
    "simulate_trace": ("scripts/simulate-fleet --trace docs/scale/replay-three.trace --servers 3", r'"hit_percent"'),
    "simulate_fleet": ("scripts/simulate-fleet --servers 4 --ssd 30 --set hours=0.2 --set warmup_hours=0", r'"dollars_per_million"'),
    "share_slots": ("scripts/share-slots --tokens 128 --policy r8", r"second server"),
    "model_arm": ("scripts/model-arm", r"\d"),
    "eval_jobs": (" && ".join(f"python3 eval/run.py --results {{out}}/eval --job '{{{{\"model\": \"smollm2-135m+f32\", {job}}}}}'" for job in (
        '"what": "divergence", "cache": "r4", "text": "wiki", "ctx": 512, "chunks": 1', '"what": "attention", "tokens": 256, "recipe": "calibrate@512x8"',
        '"what": "needles", "cache": "r8", "tokens": 512', '"what": "greedy", "cache": "r8", "n": 4, "prompts": 2, "slots": 2',
        '"what": "continuation", "cache": "r8", "tokens": 512, "n": 8')), r"continuation r8"),
}


def command_of(name):
    return FORMS[name][0].format(out=OUT)


def run(name):
    """Seconds, or why it failed; None: not to be had here."""
    command, printed = command_of(name), FORMS[name][1]
    log, begin = OUT / f"{name}.log", time.monotonic()
    with open(log, "w") as out:
        code = subprocess.run(["bash", "-euo", "pipefail", "-c", command],
                              cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT).returncode
    text = log.read_text(errors="replace")
    if code in (77, 3):
        return None
    if code == 0 and re.search(printed, text):
        return time.monotonic() - begin
    return f"status {code}" + ("" if code else f", and it does not print {printed}") + ": " + text[-1500:]


def main():
    words = sys.argv[1:]
    if words == ["--list"]:
        print("\n".join(f"{name}: {command_of(name)}" for name in FORMS))
        return 0
    names = list(QUICK) if words == ["--quick"] else words or list(FORMS)
    if unknown := [name for name in names if name not in FORMS]:
        sys.exit(f"short_forms: there is no {', '.join(unknown)}; --list prints the names")
    OUT.mkdir(parents=True, exist_ok=True)
    for need in (["get-llama"], ["get-models", "smollm2-135m"], ["python-venv", "--tools"]):
        if subprocess.run([ROOT / "scripts" / need[0], *need[1:]], stdout=subprocess.DEVNULL).returncode == 3:
            print(f"skipped: scripts/{' '.join(need)} gave nothing")
            return 77
    results = {}
    for name in names:
        results[name] = got = run(name)
        print(f"not to be had here: {name}" if got is None else f"FAILED {name}: {got}" if isinstance(got, str) else f"ok {name}, {got:.0f} s", flush=True)
    if any(isinstance(x, str) for x in results.values()):
        return 1
    missing = [name for name, x in results.items() if x is None]
    return 77 if missing and (words == ["--quick"] or len(missing) == len(names)) else 0


if __name__ == "__main__":
    sys.exit(main())
