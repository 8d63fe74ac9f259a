#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Scaled-down recorded agent sessions over several quire serve that share a cluster (scripts/replay-sessions). The long form: 200 requests."""
import json
import subprocess
import sys
import tempfile

from sidecar import kit


def replay(*options):
    """What the script prints, and what the servers count."""
    done = subprocess.run([sys.executable, str(kit.ROOT / "scripts/replay-sessions"), *options], capture_output=True, text=True)
    if done.returncode:
        raise kit.Broken(done.stderr[-2000:])
    out = json.loads(done.stdout.splitlines()[-1])
    kit.note(f"{out['hit_percent']} % of {out['prompt_tokens']} tokens reused, ideal {out['ideal_percent']} %")
    return out, json.loads(done.stderr.splitlines()[-1])["servers_say"]


def take_turns(n, *options):
    """Servers take turns, so that most of what is reused must come from the store of the fleet."""
    with tempfile.NamedTemporaryFile("r", suffix=".trace") as trace:
        out, servers = replay("--start", "2", "--requests", str(n), "--choose", "round-robin", "--concurrent", "1", "--pause", "0.3", "--trace", trace.name,
                              *options)
        n_lines = sum(not line.startswith("#") for line in trace)
    kit.expect(out["requests"] == n == n_lines and out["retries"] == 0, "every request is answered, and in the trace")
    kit.expect(out["prompt_tokens"] == sum(s["prompt_tokens"] for s in servers), "script and servers count the same tokens")
    kit.expect(out["cached_tokens"] == sum(s["warm_tokens"] + s["restored_tokens"] for s in servers), "and the same that were reused")
    kit.expect(sum(s["restored_tokens"] for s in servers) > 0, "some came from the store")
    kit.expect(out["points_below_ideal_whole_pages"] < 10, "most of the ideal is reached", json.dumps(out))


def lose_one(n, servers, *options):
    """Behind a gateway: the server that has computed most is killed in the middle, and the others get from the store what it had."""
    out, said = replay("--start", str(servers), "--gateway", "--requests", str(n), "--kill-at", str(n // 2), *options)
    kit.expect(out["requests"] == n, "every request is answered", json.dumps(out))
    kit.expect(said.count(None) == 1, "one server is gone", json.dumps(said))
    kit.expect(sum(s["restored_tokens"] for s in said if s) > 0, "the others restored prompts")
    kit.expect(out["after_kill"]["points_below_ideal_whole_pages"] < 10, "most of the ideal is reached after the loss", json.dumps(out))


def run():
    kit.programs()
    kit.model("smollm2-135m")
    if kit.quick:
        short = ("--sessions", "3", "--per-group", "2", "--longest", "900")
        kit.part(take_turns, 14, *short)
        kit.part(lose_one, 14, 3, "--concurrent", "1", "--pause", "0.3", *short)
    else:
        kit.part(take_turns, 200)
        kit.part(lose_one, 200, 3)


kit.main(run)
