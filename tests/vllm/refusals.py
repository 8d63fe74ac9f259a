# SPDX-License-Identifier: MIT
"""What cannot be done is refused in one sentence before the model is loaded; without a policy vLLM is as it is."""
import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace

from checks import Checks
from models import answers, engine, make, prompt
from quire_vllm import policy, versions

check = Checks()


def texts():
    for text, containing in {"r9": "r9", "r8,edge=2:f16": "all layers", "r8,sinks=64:f16": "all layers", "window=r4": "all layers",
                             "c:r4/r4": "profile", "r8/": "cannot be used", "k=r8": "cannot be used", " r8": "cannot be used",
                             "r8\0": "zero character"}.items():
        check.raises(lambda: policy.parse(text), f"the policy {text!r}", containing)
    for text, k, v in (("r8", "r8", "r8"), ("k8v4", None, None), ("r8/r4", "r8", "r4"), ("k=r8,v=f16", "r8", "f16"), ("f32", "f32", "f32")):
        found = policy.parse(text)
        check(k is None or (found.k, found.v) == (k, v), f"the policy {text} is {found.k}/{found.v}")
    for given in ("r8", {"kv": 8}, {}, {"kv": "r8", "more": 1}, []):
        check.raises(lambda: policy.chosen(SimpleNamespace(additional_config={"quire": given})), f"additional_config {given!r}", "must be")
    os.environ["QUIRE_KV"] = "r4"
    check(policy.chosen(SimpleNamespace(additional_config={})).k == "r4", "QUIRE_KV is the policy")
    check(policy.chosen(SimpleNamespace(additional_config={"quire": {"kv": "r8"}})).k == "r8", "additional_config comes before QUIRE_KV")
    check(policy.chosen(SimpleNamespace(additional_config={"quire": {"kv": "off"}})) is None, "additional_config can say off")
    del os.environ["QUIRE_KV"]
    check(policy.chosen(None) is None and policy.chosen(SimpleNamespace(additional_config={})) is None, "no policy")
    for version, known in {"0.32.0": True, "0.32.0+cpu": True, "0.31.0": False, "0.32.1": False, "0.33.0.dev1+g123": False}.items():
        found = versions.refusal(version)
        check((found is None) == known and (known or "\n" not in found), f"vLLM {version}: {found or 'known'}")


def engines(folder):
    model = make(folder, "llama")
    for options, containing in (({"block_size": 16}, "64 tokens"), ({"kv_cache_dtype": "fp8"}, "exclude each other")):
        check.raises(lambda: engine(model, "r8", **options), f"{options}", containing)
    odd = make(f"{folder}/odd", "llama", head_dim=80)
    check.raises(lambda: engine(odd, "tv4"), "a codec without tiles for heads of 80", "heads of 80")
    first = engine(model, "off")
    from vllm import LLM
    check.raises(lambda: LLM(model=model, dtype="float32", max_model_len=512, kv_cache_memory_bytes=1 << 26, enforce_eager=True,
                             skip_tokenizer_init=True, additional_config={"quire": {"kv": "r8"}}),
                 "another policy in the same process", "another process")
    stock = sum("CPUAttentionBackendImpl" in type(x.impl).__name__ for x in
                first.llm_engine.vllm_config.compilation_config.static_forward_context.values() if hasattr(x, "impl"))
    check(stock == 4, f"without a policy {stock} layers are vLLM's own")
    check(len(answers(first, [prompt(10)], 4)[0]) == 4, "and answer")
    del first
    mla = make(folder, "deepseek2")
    check.raises(lambda: engine(mla, "r8"), "a model with MLA", "no MLA")


def unknown_version():
    """In a process of its own: the registry is left alone, and one line is printed."""
    code = ("import vllm; vllm.__version__ = '0.99.0'; import quire_vllm; quire_vllm.register(); "
            "from vllm.v1.attention.backends.registry import AttentionBackendEnum as e; print('overridden', e.CPU_ATTN.is_overridden())")
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, "VLLM_LOGGING_LEVEL": "WARNING"})
    lines = [x for x in done.stdout.splitlines() if "quire-vllm does not know vLLM 0.99.0" in x]
    check(done.returncode == 0 and len(lines) == 1 and "overridden False" in done.stdout, "an unknown version of vLLM runs without Quire",
          done.stdout[-500:])


if __name__ == "__main__":
    texts()
    with tempfile.TemporaryDirectory(prefix="quire-vllm-") as folder:
        engines(folder)
    unknown_version()
    sys.exit(check.end())
