# SPDX-License-Identifier: MIT
"""The connector in real engines beside what else vLLM can do: drafted tokens, a rank whose load fails alone, resets of the prefix cache, roles.

    tests/vllm/run.py connector_uses.py [drafts|ranks|resets|roles]...
"""
import os
import sys
import tempfile
from pathlib import Path

from checks import Checks
from engines import Engine, in_process
from models import make

ok = Checks()
LONG = [(31 * i * i + 17 * i) % 2000 + 40 for i in range(512 + 40)]  # one chunk of 512 tokens and a rest
OTHER = [(29 * i * i + 7 * i) % 2000 + 41 for i in range(512 + 40)]
OPTIONS = dict(policy="r8", skip_tokenizer_init=True)


def settings(folder, name):
    key = Path(folder) / "tenant.key"
    if not key.exists():
        key.write_bytes(os.urandom(32))
        key.chmod(0o600)
    return {"directory": str(Path(folder) / name), "disk_bytes": "256M", "secret_file": str(key)}


def asked(model, extra, prompts, options, max_tokens=8):
    """Each prompt in turn, then what the engine counted."""
    with Engine(model, extra, **OPTIONS, **options) as e:
        out = [e.generate([p], max_tokens=max_tokens, detokenize=False)[0] for p in prompts]
        if extra is not None:
            e.settle()
        counts = {x.name: x.value for x in e.llm.get_metrics() if x.name.startswith("vllm:spec_decode") and hasattr(x, "value")}
        return out, e.figures() if extra is not None else {}, counts, e.free_blocks() == e.scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1


def farthest(a, b):
    """The largest difference between log-probabilities that two answers both name."""
    return max((abs(dict(x)[t] - dict(y)[t]) for x, y in zip(a, b) for t in dict(x).keys() & dict(y).keys()), default=float("inf"))


# ----------------------------------------------------------------- drafts

NGRAM = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2, "prompt_lookup_min": 1}}
VARIED = [(41 * i * i + 11 * i) % 997 + 50 for i in range(1000)]  # what follows a token in it can be guessed, often wrongly
ANSWER = 200


def drafts(model, folder):
    """Rows of rejected drafts lie in blocks whose other rows are saved. Nothing of them may be in a page."""
    extra = settings(folder, "drafts")
    (plain,), *_ = in_process(asked, model, None, [VARIED], {}, ANSWER)
    (drafted,), figures, counts, free = in_process(asked, model, extra, [VARIED], NGRAM, ANSWER)
    made, taken = (counts.get(f"vllm:spec_decode_num_{name}_tokens", 0) for name in ("draft", "accepted"))
    ok(0 < taken < made, f"{made} tokens were drafted, {taken} of them accepted", str(counts))
    ok(drafted["ids"] == plain["ids"], "with drafts and the connector: the tokens of an engine with neither")
    ok(figures["saved_pages"] == (len(VARIED) + ANSWER - 1) // 64 and not figures["save_errors"], f"{figures['saved_pages']:.0f} pages are saved, those of the answer too",
       str(figures))
    ok(free, "all blocks are free at the end")

    (again,), figures, counts, free = in_process(asked, model, extra, [VARIED], NGRAM, ANSWER)
    ok(figures["loaded_tokens"] == 960 and again["cached"] == 960, "another engine with drafts loads the prompt", str(figures))
    ok(again["ids"] == plain["ids"] and counts.get("vllm:spec_decode_num_draft_tokens"), "and has the same tokens")
    ok(free and not figures["failed_tokens"], "all blocks are free at the end")

    # The pages of the answer, saved while drafts came and went, below the next question of a conversation.
    longer = VARIED + drafted["ids"] + LONG[:30]
    pages = len(longer[:-30]) // 64 * 64
    (loaded,), figures, *_ = in_process(asked, model, extra, [longer], {})
    (computed,), *_ = in_process(asked, model, None, [longer], {})
    ok(figures["loaded_tokens"] >= pages - 64, f"an engine without drafts loads {figures['loaded_tokens']:.0f} tokens, of which the answer has {figures['loaded_tokens'] - len(VARIED):.0f}",
       str(figures))
    ok(loaded["ids"] == computed["ids"], "its tokens are those of an engine that computes all of it")
    # Not bit for bit: one token at a time is multiplied by other kernels than a chunk.
    worst = farthest(loaded["logprobs"], computed["logprobs"])
    ok(worst <= 0.02, f"its log-probabilities differ by {worst:.2g} at most")


# ------------------------------------------------------------------ ranks

def disturb(worker, at, fails_at, seconds):
    """In a rank: loads take so many seconds, and on the ranks of fails_at only so many pages come."""
    import time

    from vllm.distributed import get_tensor_model_parallel_rank
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    rank, moving = get_tensor_model_parallel_rank(), get_kv_transfer_group()._moving
    inner = type(moving)._load_pages

    def load(load, blocks, first_page, n_pages, deadline):
        time.sleep(seconds.get(rank, 0))
        if rank not in fails_at:
            return inner(moving, load, blocks, first_page, n_pages, deadline)
        if not at:
            raise OSError("the disk of this rank is gone")
        return inner(moving, load, blocks, first_page, min(n_pages, first_page + at), deadline)
    moving._load_pages = load
    return rank


def settle(worker):
    """In a rank: waits until what was copied is in the store."""
    import time

    from vllm.distributed.kv_transfer import get_kv_transfer_group

    part = get_kv_transfer_group()
    while part._moving._queued_bytes:
        time.sleep(0.01)
    part._store.flush(30)


def ask_ranks(model, extra, scenes):
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    with Engine(model, extra, tensor_parallel_size=2, distributed_executor_backend="mp", memory=64 << 20, **OPTIONS) as e:
        inner, computed, out = e.scheduler.schedule, [], []

        def schedule(*arguments, **named):
            step = inner(*arguments, **named)
            computed.append(step.total_num_scheduled_tokens)
            return step
        e.scheduler.schedule = schedule  # vLLM's own figure of cached tokens has what it hoped to load

        def ask():
            computed.clear()
            out.append({**e.generate([LONG], detokenize=False)[0], "free": e.free_blocks()})
            out[-1]["computed"] = sum(computed) - len(out[-1]["ids"]) + 1

        ask()
        e.llm.collective_rpc(settle)
        for at, fails_at, seconds in scenes:
            e.llm.reset_prefix_cache()
            e.llm.collective_rpc(disturb, args=(at, fails_at, seconds))
            ask()
        out.append(e.scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1)
        return out


RANKS = {  # pages that come, ranks where no more come, seconds that a load takes by rank
    "rank 1 loads nothing, before rank 0 has loaded": (0, (1,), {0: 0.4}),
    "rank 1 loads nothing, after rank 0 has loaded": (0, (1,), {1: 0.4}),
    "rank 0 loads 3 pages of 8": (3, (0,), {}),
    "rank 1 loads 3 pages of 8, after rank 0 has loaded": (3, (1,), {1: 0.4}),
    "both load nothing": (0, (0, 1), {}),
    "both load": (0, (), {}),
}


def ranks(model, folder):
    """What one rank lacks, all ranks compute: the blocks of the others are not enough."""
    first, *rest, n_blocks = in_process(ask_ranks, model, settings(folder, "ranks"), list(RANKS.values()))
    ok(first["computed"] == len(LONG), "two ranks compute a prompt")
    for name, (at, fails_at, _), got in zip(RANKS, RANKS.values(), rest):
        came = 64 * at if fails_at else 512
        ok(got["ids"] == first["ids"], f"{name}: the tokens are right", f"{got['ids']} instead of {first['ids']}")
        worst = farthest(got["logprobs"], first["logprobs"])
        ok(worst <= (0 if came in (0, 512) else 0.02), f"{name}: log-probabilities differ by {worst:.2g}")  # other chunks round differently
        saved = len(LONG) - got["computed"]
        ok(saved == came, f"{name}: {saved} tokens were not computed", f"instead of {came}")
        ok(got["free"] == n_blocks, f"{name}: all blocks are free")


# ----------------------------------------------------------------- resets

def reset_engine(model, extra):
    from vllm import SamplingParams

    out = {}
    with Engine(model, extra, **OPTIONS) as e:
        def ask(name):
            out[name] = {**e.generate([LONG], detokenize=False)[0], **e.figures()}
            e.settle()

        ask("first")
        ask("again")
        out["plain reset"] = e.llm.reset_prefix_cache()
        ask("after a plain reset")
        out["whole reset"] = e.llm.reset_prefix_cache(reset_connector=True)
        ask("after a whole reset")
        e.llm.reset_prefix_cache()
        ask("after both")
        # While a request runs: its rows are from before.
        engine, params = e.llm.llm_engine, SamplingParams(temperature=0, max_tokens=100, ignore_eos=True, detokenize=False)
        engine.add_request("runs", {"prompt_token_ids": OTHER}, params)
        for _ in range(10):
            engine.step()
        saved = e.figures()["saved_pages"]
        out["reset while one runs"] = e.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
        ended = []
        while engine.has_unfinished_requests():
            ended += [x for x in engine.step() if x.finished]
        out["runs"] = {"ids": list(ended[0].outputs[0].token_ids), "saved before": saved}
        e.settle()
        # A reset that fails, because a request has blocks: rows from before stay in vLLM's own cache.
        engine.add_request("holds", {"prompt_token_ids": OTHER}, params)
        for _ in range(5):
            engine.step()
        out["reset beside one"] = e.llm.reset_prefix_cache(reset_connector=True)
        e.settle()
        saved = e.figures()["saved_pages"]
        engine.add_request("hits", {"prompt_token_ids": OTHER + LONG}, SamplingParams(temperature=0, max_tokens=4))
        while engine.has_unfinished_requests():
            engine.step()
        e.settle()
        out["saved beside one"] = e.figures()["saved_pages"] - saved
        out["reset alone"] = e.llm.reset_prefix_cache(reset_connector=True)
        # Weights that are changed; here they are the same again.
        ask("before a change")
        e.llm.collective_rpc("reload_weights")
        e.llm.reset_prefix_cache()
        ask("changed")
        e.llm.reset_prefix_cache(reset_connector=True)
        ask("changed and reset")
        e.llm.reset_prefix_cache()
        ask("at last")
        out["free"] = e.free_blocks() == e.scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1
    return out


def resets(model, folder):
    extra = settings(folder, "resets")
    got = in_process(reset_engine, model, extra)
    first = got["first"]
    ok(got["again"]["cached"] == 512 and got["again"]["loaded_tokens"] == 0, "vLLM's own prefix cache comes first")
    ok(got["plain reset"] and got["after a plain reset"]["loaded_tokens"] == 512, "after reset_prefix_cache() the store has the prefix")
    ok(got["whole reset"] and got["after a whole reset"]["loaded_tokens"] == 512 and got["after a whole reset"]["cached"] == 0,
       "after a reset of the connector too it is computed")
    ok(got["after both"]["loaded_tokens"] == 1024, "what the engine has stored since then it loads")
    ok(all(got[x]["logprobs"] == first["logprobs"] for x in ("after a plain reset", "after a whole reset", "after both")),
       "the log-probabilities are the same each time, bit for bit")
    (other, runs), figures, *_ = in_process(asked, model, extra, [LONG, OTHER], {}, 100)
    ok(other["cached"] == 512 and other["logprobs"][:8] == first["logprobs"], "another engine finds what was stored before the reset")
    (want,), *_ = in_process(asked, model, None, [OTHER], {}, 100)
    ok(got["runs"]["ids"] == want["ids"] == runs["ids"], "a request that ran during a reset has the right tokens", str(got["reset while one runs"]))
    ok(not got["reset beside one"] and got["saved beside one"] == 0, "a reset beside a request fails, and what it has computed is not saved again",
       str(got["saved beside one"]))
    before, changed, reset, last = (got[x] for x in ("before a change", "changed", "changed and reset", "at last"))
    ok(got["reset alone"] and before["saved_pages"] - got["runs"]["saved before"] >= 8, "a reset that succeeds lets everything be saved")
    ok(changed["saved_pages"] == before["saved_pages"] and changed["loaded_tokens"] == before["loaded_tokens"] and
       changed["logprobs"] == first["logprobs"], "after reload_weights() nothing is saved or loaded", f"{before} {changed}")
    ok(reset["saved_pages"] == changed["saved_pages"] + 8 and reset["loaded_tokens"] == changed["loaded_tokens"] and
       last["loaded_tokens"] == reset["loaded_tokens"] + 512, "until a reset: then the new pages are saved, and loaded", f"{reset} {last}")
    ok(got["free"], "all blocks are free at the end")


# ------------------------------------------------------------------ roles

def only(model, extra, role, prompts):
    with Engine(model, extra, role=role, **OPTIONS) as e:
        out = []
        for p in prompts:
            out.append(e.generate([p], detokenize=False)[0])
            e.settle()
            out[-1].update(e.figures())
            e.llm.reset_prefix_cache()
        return out


def roles(model, folder):
    extra = settings(folder, "roles")
    saved, again = in_process(only, model, extra, "kv_producer", [LONG, LONG])
    ok(saved["saved_pages"] == 8, "a producer saves", str(saved))
    ok(again["cached"] == 0 and not again["loaded_tokens"] and not again["found_tokens"], "and loads nothing, not even its own", str(again))
    ok(again["saved_pages"] == 8, "and saves nothing twice", str(again))
    loaded, new, twice = in_process(only, model, extra, "kv_consumer", [LONG, OTHER, OTHER])
    ok(loaded["cached"] == 512 and loaded["loaded_tokens"] == 512, "a consumer loads what a producer saved", str(loaded))
    ok(loaded["logprobs"] == saved["logprobs"], "with the same log-probabilities, bit for bit")
    ok(new["cached"] == twice["cached"] == 0 and not twice["saved_pages"], "and saves nothing", str(twice))
    (other,), figures, *_ = in_process(asked, model, extra, [OTHER], {})
    ok(not figures["found_tokens"] and other["ids"] == new["ids"], "a third engine finds nothing of what the consumer computed", str(figures))


PARTS = {x.__name__: x for x in (drafts, ranks, resets, roles)}


def main():
    with tempfile.TemporaryDirectory(prefix="quire-vllm-uses-") as folder:
        model = in_process(make, folder, "llama")  # torch starts no threads before the processes are forked
        for name in sys.argv[1:] or PARTS:
            PARTS[name](str(model), folder)
    return ok.end()


if __name__ == "__main__":
    sys.exit(main())
