#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Scaled-down recorded agent sessions over several quire serve that share a cluster (scripts/replay-sessions). The long form: 200 requests."""
import json
import subprocess
import sys
import tempfile


from sidecar import kit


def sessions(n, *options):
    """Servers take turns, so that most of what is reused must come from the store of the fleet."""
    with tempfile.NamedTemporaryFile("r", suffix=".trace") as trace:
        done = subprocess.run([sys.executable, str(kit.ROOT / "scripts/replay-sessions"), "--start", "2", "--requests", str(n), "--choose", "round-robin",
                               "--concurrent", "1", "--pause", "0.3", "--trace", trace.name, *options], capture_output=True, text=True)
        if done.returncode:
            raise kit.Broken(done.stderr[-2000:])
        n_lines = sum(not line.startswith("#") for line in trace)
    out = json.loads(done.stdout.splitlines()[-1])
    servers = json.loads(done.stderr.splitlines()[-1])["servers_say"]
    kit.note(f"{out['hit_percent']} % of {out['prompt_tokens']} tokens reused, ideal {out['ideal_percent']} %")
    kit.expect(out["requests"] == n == n_lines and out["retries"] == 0, "every request is answered, and in the trace")
    kit.expect(out["prompt_tokens"] == sum(s["prompt_tokens"] for s in servers), "script and servers count the same tokens")
    kit.expect(out["cached_tokens"] == sum(s["warm_tokens"] + s["restored_tokens"] for s in servers), "and the same that were reused")
    kit.expect(sum(s["restored_tokens"] for s in servers) > 0, "some came from the store")
    kit.expect(out["points_below_ideal_whole_pages"] < 10, "most of the ideal is reached", json.dumps(out))


def run():
    kit.programs()
    kit.model("smollm2-135m")
    if kit.quick:
        kit.part(sessions, 14, "--sessions", "3", "--per-group", "2", "--longest", "900")
    else:
        kit.part(sessions, 200)



kit.main(run)
