# SPDX-License-Identifier: MIT
"""How far policies move the next token's distribution inside of vLLM, measured as docs/fidelity.md does with llama.cpp, and compared with that.

    tests/vllm/run.py eval/vllm_fidelity.py @model [--caches r8,k8v4,r4] [--contexts 16] [--ctx 2048] [--dtype float32] [--out FILE] [--check]

The text, its cut into contexts, the scored half and the figures are those of llama-perplexity: wiki.txt in contexts of 2,048 tokens, of which
the second half is scored. The base is the same vLLM with its own attention and cache. Logits are complete: the hidden states of every
scored token are taken from the model, and vLLM's own function makes logits of them. "fp8" is vLLM's --kv-cache-dtype fp8.

--out appends a line of JSON per cache. --check fails where a mean KL or a share of same tokens differs from llama.cpp's, after as many
contexts (eval/results/smollm2-135m.jsonl), by more than three standard errors of both together.
"""
import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "tests/vllm")]

import torch  # noqa: E402

import measure  # noqa: E402
from models import engine  # noqa: E402
from run import commit  # noqa: E402

SIGMAS = 3
AT_ONCE = 128  # positions whose logits are in memory


def contexts_of(llm, text, ctx, count):
    """Tokens as llama-perplexity cuts them. It puts BOS first where the model asks for that, and SmolLM2 does not."""
    ids = llm.get_tokenizer().encode((measure.TEXTS / f"{text}.txt").read_text().rstrip("\n"), add_special_tokens=False)
    if len(ids) < ctx * count:
        raise ValueError(f"{text}.txt has {len(ids)} tokens, fewer than {count} contexts of {ctx}")
    return [ids[ctx * i:ctx * (i + 1)] for i in range(count)]


def options_of(cache):
    """Policy of Quire, and more options of vLLM."""
    return ("off", {"kv_cache_dtype": cache}) if cache.startswith("fp8") else ("off" if cache == "stock" else cache, {})


class Hidden:
    """The last hidden states of contexts in an engine, [positions that are scored][width] each, and logits of such states."""

    def __init__(self, model, cache, dtype, ctx):
        policy, more = options_of(cache)
        # All of a context in one step, and nothing from the prefix cache: the hook then sees every position of it at once.
        self.llm = engine(model, policy, dtype=dtype, max_model_len=ctx + 64, max_num_batched_tokens=ctx + 64, max_num_seqs=1,
                          kv_cache_memory_bytes=256 << 20, enable_prefix_caching=False, **more)
        self.seen, self.ctx = [], ctx
        self.llm.apply_model(self.hook)

    def hook(self, model):
        self.model = model
        model.register_forward_hook(lambda _model, _arguments, out: self.seen.append(out.detach().clone()))

    def states(self, tokens):
        from vllm import SamplingParams

        self.seen.clear()
        self.llm.generate([{"prompt_token_ids": tokens}], SamplingParams(temperature=0, max_tokens=1, detokenize=False), use_tqdm=False)
        (whole,) = [x for x in self.seen if x.shape[0] >= self.ctx]
        return whole[self.ctx // 2:self.ctx - 1]

    def log_softmax(self, states):
        return torch.log_softmax(self.model.compute_logits(states).float(), dim=-1)


def compared(engine, base, mine, tokens):
    """Of each scored position: KL divergence, whether the likeliest token is the same, and both negative log-likelihoods of the true token."""
    truth = torch.tensor(tokens[len(tokens) // 2 + 1:])
    rows = []
    for at in range(0, len(truth), AT_ONCE):
        part = slice(at, min(at + AT_ONCE, len(truth)))
        p, q = engine.log_softmax(base[part]), engine.log_softmax(mine[part])
        true = truth[part, None]
        rows.append(torch.stack([(p.exp() * (p - q)).sum(-1), (p.argmax(-1) == q.argmax(-1)).float(), -p.gather(1, true)[:, 0],
                                 -q.gather(1, true)[:, 0]], 1).double())
    return torch.cat(rows)


def figures(rows):
    """As llama-perplexity prints them; errors are standard errors over the tokens."""
    n = len(rows)
    kld, same, base, mine = rows.unbind(1)

    def error(x):
        return float(x.std(unbiased=False)) / math.sqrt(n - 1)

    ratio = math.exp(float((mine - base).mean()))
    return {"tokens": n, "ppl": math.exp(float(mine.mean())), "ppl_base": math.exp(float(base.mean())), "kld": float(kld.mean()), "kld_error": error(kld),
            "kld99": float(kld.quantile(0.99)), "top1": 100 * float(same.mean()), "top1_error": 100 * error(same), "ratio": ratio,
            "ratio_error": ratio * error(mine - base)}


def of_llama(cache, text, ctx, contexts):
    """The figures that llama.cpp gave after as many contexts, or None."""
    for line in (HERE / "results/smollm2-135m.jsonl").read_text().splitlines():
        row = json.loads(line)
        job, found = row["job"], row["figures"]
        if job["what"] != "divergence" or (job["cache"], job["text"], job["ctx"]) != (cache, text, ctx) or len(found["by_chunk"]) < contexts:
            continue
        kld, error, top1, _ = found["by_chunk"][contexts - 1]
        if len(found["by_chunk"]) == contexts:
            kld, error, top1 = found["kld"], found["kld_error"], found["top1"]
        share, n = top1 / 100, contexts * (ctx // 2 - 1)
        # by_chunk has five digits after the point: what is cut off counts as an error.
        return {"kld": kld, "kld_error": max(error, 5e-6), "top1": top1, "top1_error": 100 * math.sqrt(share * (1 - share) / n)}
    return None


def judged(cache, mine, theirs):
    """Sentences about figures that differ from llama.cpp's by more than chance."""
    wrong = []
    for name in ("kld", "top1"):
        allowed = SIGMAS * math.hypot(mine[f"{name}_error"], theirs[f"{name}_error"])
        if not abs(mine[name] - theirs[name]) <= allowed:  # not so of NaN
            wrong.append(f"{cache}: {name} is {mine[name]:.6g} in vLLM and {theirs[name]:.6g} in llama.cpp, which is more than {allowed:.2g} apart")
    return wrong


def base_states(model, a):
    """The base's hidden states, kept, because each cache may be measured by a run of its own; and the contexts."""
    name = f"vllm.{Path(model).name}.{a.text}.{a.ctx}x{a.contexts}.{a.dtype}.states"

    def make(part):
        engine = Hidden(model, "stock", a.dtype, a.ctx)
        contexts = contexts_of(engine.llm, a.text, a.ctx, a.contexts)
        torch.save({"contexts": contexts, "states": [engine.states(x) for x in contexts]}, part)

    kept = torch.load(measure.once(measure.made() / name, make))
    return kept["contexts"], kept["states"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--caches", default="r8,k8v4,r4")
    p.add_argument("--text", default="wiki")
    p.add_argument("--contexts", type=int, default=16)
    p.add_argument("--ctx", type=int, default=2048)
    p.add_argument("--dtype", default="float32")
    p.add_argument("--out")
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    commit()  # before results are written
    contexts, base = base_states(a.model, a)
    wrong = []
    for cache in a.caches.split(","):
        began = time.monotonic()
        engine = Hidden(a.model, cache, a.dtype, a.ctx)
        rows = torch.cat([compared(engine, b, engine.states(tokens), tokens) for tokens, b in zip(contexts, base)])
        del engine
        mine, theirs = figures(rows), of_llama(cache, a.text, a.ctx, a.contexts)
        beside = f"; llama.cpp: KL {theirs['kld']:.6f}, same token {theirs['top1']:.2f} %" if theirs else ""
        print(f"{cache}: KL {mine['kld']:.6f} ± {mine['kld_error']:.2g}, 99 % {mine['kld99']:.4g}, same token {mine['top1']:.2f} %, "
              f"perplexity {mine['ppl']:.4f} ({mine['ratio']:.4f} times {mine['ppl_base']:.4f}){beside}", flush=True)
        if theirs:
            wrong += judged(cache, mine, theirs)
        elif a.check:
            wrong.append(f"{cache}: llama.cpp has no figures to compare with")
        if a.out:
            job = {"what": "vllm divergence", "model": Path(a.model).name, "cache": cache, "text": a.text, "ctx": a.ctx, "contexts": a.contexts, "dtype": a.dtype}
            command = (f"tests/vllm/run.py eval/vllm_fidelity.py @model --caches {cache} --text {a.text} --contexts {a.contexts} --ctx {a.ctx} "
                       f"--dtype {a.dtype} --out {os.path.relpath(a.out, HERE.parent)}")
            with open(a.out, "a") as f:
                f.write(json.dumps({"job": job, "figures": {k: float(f"{v:.6g}") for k, v in mine.items()}, "llama.cpp": theirs,
                                    "seconds": round(time.monotonic() - began), "commit": commit(), "command": command}) + "\n")
    print("\n".join(wrong) or "no figure differs from llama.cpp's by more than chance")
    return 1 if a.check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
