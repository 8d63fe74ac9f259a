# SPDX-License-Identifier: MIT
"""Two engines of the real vLLM that share a directory: what one has computed the other loads, bit for bit.

    tests/vllm/run.py connector_share.py @model [SCENE...]      by default the first of SCENES; all: every one
"""
import os
import shutil
import sys
import tempfile
from pathlib import Path

from checks import Checks
from engines import Engine, in_process, words
from traces import search_files

ok = Checks()
LONG = words(1, 512 + 40)  # one chunk of 512 tokens and a rest: computed and loaded prefixes end at the same place
SALTED = words(2, 512 + 10)
SALT = "alice-0123456789"


def first(model, extra, options):
    with Engine(model, extra, **options) as e:
        out = e.generate([LONG]) + e.generate([SALTED], salts=[SALT]) + e.generate([words(3, 40)])
        e.settle()
        return out, e.figures()


def second(model, extra, options):
    with Engine(model, extra, **options) as e:
        out = {"long": e.generate([LONG])[0]}
        out["after load"] = e.figures()
        # One after the other, as the first engine had them: in a batch, chunks end elsewhere and bf16 rounds differently.
        out["wrong salts"] = [e.generate([SALTED], salts=[salt])[0] for salt in (None, "bob", SALT + " ")]
        out["after wrong salts"] = e.figures()
        out["salt"] = e.generate([SALTED], salts=[SALT])[0]
        out["after salt"] = e.figures()
        out["prompt logprobs"] = e.generate([SALTED], salts=[SALT], prompt_logprobs=1)[0]["ids"]
        out["after prompt logprobs"] = e.figures()
        out["free"], out["blocks"] = e.free_blocks(), e.scheduler.kv_cache_manager.block_pool.num_gpu_blocks
        return out


def damaged(model, extra, options):
    with Engine(model, extra, **options) as e:
        out = e.generate([LONG])[0]
        return out, e.figures(), e.free_blocks(), e.scheduler.kv_cache_manager.block_pool.num_gpu_blocks


def damage(directory):
    """Flips a bit in every 4 KiB of the second half of the largest file."""
    files = [p for p in Path(directory).rglob("*") if p.is_file() and "index" not in p.name]
    largest = max(files, key=lambda p: p.stat().st_blocks)
    with open(largest, "r+b") as f:
        data = bytearray(f.read())
        used = [i for i in range(0, len(data) - 4095, 4096) if any(data[i:i + 4096])]
        for i in used[len(used) // 2:]:
            data[i + 1000] ^= 4
        f.seek(0)
        f.write(data)


def scene(model, folder, name, options):
    options = dict(options)
    directory = Path(folder) / name.replace("/", "-")
    key = Path(folder) / "tenant.key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    kv = options.pop("kv", None)
    extra = {"directory": str(directory), "disk_bytes": "1G", "secret_file": str(key), **({"kv": kv} if kv else {})}
    computed, figures = in_process(first, model, extra, options)
    ok(figures["saved_pages"] >= 8 + 8 and not figures["dropped_pages"] and not figures["save_errors"], f"{name}: finished pages are saved",
       str(figures))
    found = [x for tokens in (LONG, SALTED) for x in search_files([directory], SALT, key.read_bytes(), tokens)[0]]
    ok(not found, f"{name}: no file has the salt, the secret or tokens", str(found[:10]))
    shutil.copytree(directory, f"{directory}-copy")
    loaded = in_process(second, model, extra, options)
    exact = kv is None
    ok(loaded["after load"]["loaded_tokens"] == 512 and loaded["long"]["cached"] == 512, f"{name}: another process loads the prefix",
       str(loaded["after load"]))
    if exact:
        ok(loaded["long"]["logprobs"] == computed[0]["logprobs"], f"{name}: its log-probabilities are those of the first one, bit for bit")
    ok(loaded["long"]["ids"] == computed[0]["ids"], f"{name}: and its tokens")
    ok(loaded["after wrong salts"]["loaded_tokens"] == 512 and loaded["after wrong salts"]["found_tokens"] == 512,
       f"{name}: other salts find nothing", str(loaded["after wrong salts"]))
    ok(all(o["logprobs"] == computed[1]["logprobs"] for o in loaded["wrong salts"]), f"{name}: they compute the same, bit for bit")
    ok(loaded["after salt"]["loaded_tokens"] == 512 + 512, f"{name}: the right salt loads its pages")
    if exact:
        ok(loaded["salt"]["logprobs"] == computed[1]["logprobs"], f"{name}: with the same log-probabilities")
    ok(loaded["prompt logprobs"] == computed[1]["ids"], f"{name}: a request for log-probabilities of its prompt is computed")
    ok(loaded["after prompt logprobs"]["loaded_tokens"] == loaded["after salt"]["loaded_tokens"], f"{name}: it loads nothing")
    ok(loaded["free"] == loaded["blocks"] - 1, f"{name}: all blocks are free at the end", f"{loaded['free']} of {loaded['blocks']}")
    return extra, computed, options


SCENES = {
    "r8": ("tiles of r8", dict(policy="r8")),
    "r4-128": ("tiles of r4 in blocks of 128", dict(policy="r4", block=128)),
    "bf16": ("rows of bf16", dict(dtype="bfloat16")),
    "bf16-r8": ("rows of bf16 as r8", dict(dtype="bfloat16", kv="r8")),
    "f32-128": ("rows of f32 in blocks of 128", dict(block=128)),
    "f32-32": ("rows of f32 in blocks of 32", dict(block=32)),
}


def main():
    model, wanted = sys.argv[1], sys.argv[2:] or ["r8"]
    import vllm  # noqa: F401  once, before the processes are forked
    with tempfile.TemporaryDirectory(prefix="quire-vllm-share-") as folder:
        if wanted == ["all"]:
            wanted = [*SCENES, "weights"]
        for name in [x for x in wanted if x != "weights"]:
            extra, computed, options = scene(model, folder, *SCENES[name])
            if name != "r8":
                continue
            copy = extra["directory"] + "-copy"
            damage(copy)
            out, figures, free, blocks = in_process(damaged, model, {**extra, "directory": copy}, options)
            ok(figures["failed_tokens"] > 0, "damaged pages do not load", str(figures))
            ok(out["ids"] == computed[0]["ids"], "what they held is computed, with the right tokens", f"{out['ids']} {computed[0]['ids']}")
            ok(free == blocks - 1, "and all blocks are free at the end")
        if "weights" in wanted:  # of the last scene; connector_parts.py has the short form
            changed = Path(folder) / "model"
            shutil.copytree(model, changed)
            with open(next(changed.glob("*.safetensors")), "r+b") as f:
                f.seek(-2, 2)
                last = f.read(1)
                f.seek(-2, 2)
                f.write(bytes([last[0] ^ 1]))
            out, figures, *_ = in_process(damaged, str(changed), extra, options)
            ok(figures["found_tokens"] == 0, "other weights find nothing", str(figures))
    return ok.end()


if __name__ == "__main__":
    sys.exit(main())
