#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The simulated fleet (scripts/simulate-fleet): what must hold whatever the figures are, and that it agrees with real runs."""
import json
import os
import sys
from pathlib import Path

from scripts import loaded

ROOT = Path(__file__).resolve().parents[2]
failed = 0


def expect(ok, what):
    global failed
    failed += not ok
    print(("ok " if ok else "FAILED ") + what, flush=True)


script = loaded("simulate-fleet")  # it reads the sessions once


def fleet(ssd, **settings):
    return script.fleet("llama-3.1-8b", 4, load=0.15, ssd_gb=ssd, **{
        "hours": 1, "warmup_hours": 0, "saving": 1, "remote_gb": 0, "grain": 32, "slots": 4, "least_bound": 4, "affinity_token": 32768, **settings})


def check_sums(r, name):
    pages = [r[f"pages_from_{place}"] for place in ("slot", "cache", "ssd", "remote")]
    expect(64 * sum(pages) == r["reused_tokens"], f"{name}: the pages of all places are the tokens that were reused")
    expect(r["reused_tokens"] <= r["ideal_tokens"] < r["prompt_tokens"], f"{name}: at most the ideal is reused ({r['hit_percent']:.1f} of "
           f"{r['ideal_percent']:.1f} %)")
    # A request that is under way at the end has read its pages, and is not counted itself.
    for place, read in (("ssd", "ssd_read_bytes"), ("remote", "net_in_bytes")):
        bytes_ = r[f"pages_from_{place}"] * r["page_bytes"]
        expect(bytes_ <= r[read] <= 1.1 * bytes_ + 1e11, f"{name}: bytes read from {place} are those of its pages")
    expect(r["ssd_stored_bytes"] <= r["ssd_gb"] * 1e9 * r["servers"], f"{name}: no disk holds more than its limit")
    stretch = r["grain"] * (4096 + -(-int(r["page_bytes"]) // 4096) * 4096)
    left = r["ssd_written_bytes"] / (stretch - 4096) - r["evicted"]
    expect(abs(left * stretch - r["ssd_stored_bytes"]) < stretch, f"{name}: what was written and not evicted is stored")


def check_trace(path):
    """A real run of scripts/replay-sessions: the result beside the trace has its command and figures."""
    real = json.loads(path.with_suffix(".json").read_text())
    r = script.simulate(f"trace={path}", {"servers": real["servers"], "grain": 1, **real["simulate"]})
    off = abs(r["hit_percent"] - real["hit_percent"]) / real["hit_percent"]
    expect(off <= 0.05, f"{path.name}: {r['hit_percent']:.1f} % simulated, {real['hit_percent']:.1f} % in reality, {100 * off:.1f} % apart")
    expect(r["told_percent"] == real["hit_percent"] or abs(r["told_percent"] - real["hit_percent"]) < 0.01, f"{path.name}: is the trace of that run")
    expect(abs(r["ideal_percent"] - real["ideal_percent"]) < 0.01, f"{path.name}: both count the same ideal")


def check_published():
    """The quickest fleet of some tables: its row of docs/scale/results.jsonl comes again."""
    kept = [json.loads(line) for line in script.RESULTS.read_text().splitlines()]
    for case, i in (("ssd", 0), ("network", 0), ("grain", 3)):
        model, servers, more = script.cases()[case][i]
        row, r = [r for r in kept if r["case"] == case][i], script.fleet(model, servers, **more)
        off = [name for name in ("requests", "prompt_tokens", "hit_percent", "first_median_s", "dollars_per_million") if name in row and abs(r[name] - row[name]) > 1e-3 * row[name]]
        expect(not off and row["hit_percent"] > 0, f"--case {case} gives the published row again: {r['hit_percent']:.2f} % {off}")


def main():
    if not Path(os.environ.get("QUIRE_FLEET") or ROOT / "build/release/bin/quire_fleet").exists():
        print("skipped: quire_fleet is not built")
        sys.exit(77)
    runs = {size: fleet(size) for size in (0, 30, 100, 400)}
    for size, r in runs.items():
        if size:
            check_sums(r, f"{size} GB")
    check_sums(fleet(100, remote_gb=100, rule=2), "with a remote tier, any server")
    check_sums(fleet(100, saving=0), "saved as quire serve does")
    hits = [r["hit_percent"] for r in runs.values()]
    expect(all(a <= b + 0.2 for a, b in zip(hits, hits[1:])), f"hits do not fall with the size of the disk: {hits}")
    expect(hits[-1] > hits[0] + 1, "a disk helps")
    again, other = fleet(30), fleet(30, seed=2)
    expect(again == runs[30], "the same seed gives the same figures")
    expect(again["prompt_tokens"] != other["prompt_tokens"], "another seed gives others")
    check_published()
    for path in sorted((ROOT / "docs/scale").glob("*.trace")):
        check_trace(path)
    sys.exit(1 if failed else 0)


main()
