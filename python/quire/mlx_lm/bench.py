# SPDX-License-Identifier: MIT
"""Measures mlx-lm on this machine with its own caches and with Quire's, and prints a table that can be sent on.

    python -m quire.mlx_lm.bench                                     a made model: random weights, nothing is fetched
    python -m quire.mlx_lm.bench --model FOLDER --contexts 2048,8192  a model that mlx_lm.load() accepts
    python -m quire.mlx_lm.bench --device cpu                         with MLX on the CPU, too
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import math
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache

import quire

from .._mlx.pools import default_pools
from .._system import memory_bytes, processor_name
from .make import make_cache

CHUNK = 512  # tokens of a prompt that go through the model at once, as mlx-lm's programs do with larger ones
REFERENCE = "mlx-lm KVCache"
POLICIES = ("f16", "a8g64", "safe", "balanced", "small", "a4g64")


# ------------------------------------------------------------------- models


def made_model(layers: int, hidden: int, heads: int, kv_heads: int, dtype: Any) -> Any:
    """Heads of 128. Weights so large that the tokens differ in their probability."""
    from mlx.utils import tree_map
    from mlx_lm.models.llama import Model, ModelArgs
    mx.random.seed(1)
    model = Model(ModelArgs(model_type="llama", hidden_size=hidden, num_hidden_layers=layers, intermediate_size=2 * hidden,
                            num_attention_heads=heads, rms_norm_eps=1e-5, vocab_size=4096, head_dim=128, num_key_value_heads=kv_heads))
    model.update(tree_map(lambda x: (mx.random.normal(x.shape) * 1.5 * x.shape[-1] ** -0.5 if x.ndim > 1 else x).astype(dtype),
                          model.parameters()))
    mx.eval(model.parameters())
    return model


def load(name: str) -> Tuple[Any, Any]:
    import mlx_lm
    loaded = mlx_lm.load(name)
    return loaded[0], loaded[1]


def text_tokens(tokenizer: Any, n: int) -> List[int]:
    """Of the text that the package brings along, as often as needed."""
    package = Path(quire.__file__).resolve().parent
    places = package / "share/quire/eval/text/calibrate.txt", package.parents[1] / "eval/text/calibrate.txt"  # the second in a checkout
    text = next(p for p in places if p.exists()).read_text()
    ids: List[int] = list(tokenizer.encode(text[:8 * n]))
    return (ids * -(-n // len(ids)))[:n]


# ------------------------------------------------------------------- caches


def own_bits(model: Any, bits: int) -> List[Any]:
    return [QuantizedKVCache(64, bits) if type(c) is KVCache else c for c in make_prompt_cache(model)]


def all_caches(model: Any, policies: Sequence[str]) -> Dict[str, Callable[[], List[Any]]]:
    found: Dict[str, Callable[[], List[Any]]] = {REFERENCE: lambda: list(make_prompt_cache(model))}
    for bits in (8, 4):
        found[f"mlx-lm QuantizedKVCache, {bits} bits"] = lambda bits=bits: own_bits(model, bits)  # type: ignore[misc]
    for policy in policies:
        found[f"Quire {policy}"] = lambda policy=policy: list(make_cache(model, policy))  # type: ignore[misc]
    return found


# ------------------------------------------------------------------ measure


def measure(model: Any, cache: List[Any], ids: Sequence[int], n_decode: int) -> Tuple[float, float, int, Any]:
    """Tokens per second of the prompt and of single tokens after it; bytes of the cache; log-probabilities after each of those tokens.

    The tokens after the prompt are given, not chosen, so that every cache sees the same ones.
    """
    context = len(ids) - n_decode
    begin = time.perf_counter()
    for at in range(0, context, CHUNK):
        mx.eval(model(mx.array(ids[at:min(at + CHUNK, context)])[None], cache=cache)[:, -1])
    prefill = context / (time.perf_counter() - begin)
    times, found = [], []
    for token in ids[context:]:
        begin = time.perf_counter()
        logits = model(mx.array([[token]]), cache=cache)[0, -1]
        mx.eval(logits)
        times.append(time.perf_counter() - begin)
        logits = logits.astype(mx.float32)
        found.append(np.array(logits - mx.logsumexp(logits)))
    return prefill, 1 / statistics.median(times), sum(c.nbytes for c in cache), np.stack(found)


def distance(reference: Any, found: Any) -> Tuple[float, float]:
    """Kullback-Leibler divergence of the next token's distribution, in nats, and how often the best token is the same."""
    p = np.exp(reference.astype(np.float64))
    kl = float((p * (reference.astype(np.float64) - found)).sum(axis=1).mean())
    return max(kl, 0.0), float((reference.argmax(axis=1) == found.argmax(axis=1)).mean())


def rows(model: Any, tokens: Sequence[int], contexts: Sequence[int], policies: Sequence[str], n_decode: int) -> List[Dict[str, Any]]:
    found = []
    for context in contexts:
        reference: Optional[Any] = None
        for name, make in all_caches(model, policies).items():
            row: Dict[str, Any] = {"context": context, "cache": name}
            try:
                prefill, decode, n, logprobs = measure(model, make(), tokens[:context + n_decode], n_decode)
                reference = logprobs if reference is None else reference
                kl, same = distance(reference, logprobs)
                row.update(prefill=round(prefill, 2), decode=round(decode, 2), bytes=n, kl=float(f"{kl:.3g}"), same=round(same, 3))
            except Exception as error:  # one cache that does not fit the model should not hide the others
                row["failed"] = f"{type(error).__name__}: {error}"
            found.append(row)
            print(line(row), flush=True)
            gc.collect()
    return found


# -------------------------------------------------------------------- print

HEAD = ("| context | cache | prompt tokens/s | generated tokens/s | cache MiB | KL | same token |\n"
        "|---:|---|---:|---:|---:|---:|---:|")


def line(row: Dict[str, Any]) -> str:
    first = f"| {row['context']} | {row['cache']} |"
    if "failed" in row:
        return f"{first} {str(row['failed'])[:120]} | | | | |"
    return (f"{first} {row['prefill']:.1f} | {row['decode']:.2f} | {row['bytes'] / 2**20:.2f} | {row['kl']:.2g} | "
            f"{100 * row['same']:.0f} % |")


def machine() -> Dict[str, Any]:
    system = f"macOS {platform.mac_ver()[0]}" if sys.platform == "darwin" else platform.system()
    return {"processor": processor_name(), "memory_bytes": memory_bytes(), "system": f"{system} {platform.machine()}",
            "mlx_device": str(mx.default_device()), "threads": default_pools().n_threads, "instructions": quire.isa(),
            "quire": quire.__version__, "mlx": importlib.metadata.version("mlx"), "mlx_lm": importlib.metadata.version("mlx-lm"),
            "python": platform.python_version()}


def counts(text: str) -> List[int]:
    found = [int(part) if part.isdigit() else 0 for part in text.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers of tokens, such as 1024,4096")
    return found


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m quire.mlx_lm.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder or name for mlx_lm.load(); without it a model is made")
    parser.add_argument("--contexts", type=counts, default=[1024, 4096, 16384], help="tokens of the prompt, such as 1024,4096 (default: %(default)s)")
    parser.add_argument("--policies", default=",".join(POLICIES), help="of Quire (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=32, help="to generate after each prompt (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "gpu"), help="MLX's device (default: as MLX chooses)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file, too")
    parser.add_argument("--short", action="store_true", help="a very small model and 70 tokens of context: shows that it works, measures nothing")
    args = parser.parse_args(arguments)
    if args.tokens < 1:
        parser.error("--tokens must be at least 1")
    if args.device:
        mx.set_default_device(mx.Device(mx.DeviceType.cpu if args.device == "cpu" else mx.DeviceType.gpu))
    contexts: List[int] = [70] if args.short else args.contexts
    shape = (2, 128, 4, 2, mx.float32) if args.short else (4, 2048, 16, 4, mx.float16)
    model, tokenizer = load(args.model) if args.model else (made_model(*shape), None)
    n = max(contexts) + args.tokens
    tokens = text_tokens(tokenizer, n) if tokenizer else np.random.default_rng(0).integers(0, 4096, n).tolist()
    what = machine()
    name = Path(args.model).name if args.model else f"made, {shape[0]} layers, {shape[2]} query and {shape[3]} KV heads of 128, {str(shape[4]).rpartition('.')[2]}"
    print(f"{what['processor']}, {what['memory_bytes'] / 2**30:.0f} GiB, {what['system']}\n"
          f"Quire {what['quire']} ({what['instructions']}, {what['threads']} threads), mlx {what['mlx']} on {what['mlx_device']}, mlx-lm {what['mlx_lm']}, "
          f"Python {what['python']}\nmodel: {name}; {args.tokens} tokens generated\n\n{HEAD}", flush=True)
    found = rows(model, tokens, contexts, args.policies.split(","), args.tokens)
    print(f"\nKL and same token: against {REFERENCE} after the same tokens. Send all of this, from the first line on, with the command that you used.")
    if args.json:
        Path(args.json).write_text(json.dumps({**what, "model": name, "tokens": args.tokens, "rows": found}, indent=1) + "\n")
    failed = any("failed" in row or not math.isfinite(row["kl"]) for row in found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
