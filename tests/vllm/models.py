# SPDX-License-Identifier: MIT
"""Small models with random weights, in the form that vLLM loads, and engines."""
import gc
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from vllm import LLM, SamplingParams
from vllm.v1.attention import selector

VOCABULARY = 2048
_BASE = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 512,
         "num_hidden_layers": 4, "max_position_embeddings": 32768, "torch_dtype": "float32", "tie_word_embeddings": False,
         "rms_norm_eps": 1e-5, "hidden_act": "silu"}
CONFIGS = {
    # Heads of 128, two KV heads: for tensor parallel 2.
    "llama": {**_BASE, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2,
              "head_dim": 128, "rope_theta": 10000.0},
    # Every second layer has a window; scores have a soft cap.
    "gemma2": {**_BASE, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "num_attention_heads": 4,
               "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 96, "attn_logit_softcapping": 5.0,
               "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 64, "hidden_activation": "gelu_pytorch_tanh",
               "rope_theta": 10000.0, "tie_word_embeddings": True},
    # MLA; it is refused before its weights are read.
    "deepseek2": {**_BASE, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "num_attention_heads": 4,
                  "num_key_value_heads": 4, "kv_lora_rank": 128, "q_lora_rank": None, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64,
                  "v_head_dim": 64, "n_routed_experts": 4, "first_k_dense_replace": 4, "moe_layer_freq": 1, "rope_theta": 10000.0},
}


def weights(config, seed=7):
    """Large enough that attention matters and tokens are seldom close to each other."""
    random = torch.Generator().manual_seed(seed)
    width, inner, heads = config["hidden_size"], config["intermediate_size"], config["head_dim"]

    def matrix(rows, columns, gain=1.0):
        return torch.randn(rows, columns, generator=random) * (gain * columns ** -0.5)

    made = {"model.embed_tokens.weight": torch.randn(VOCABULARY, width, generator=random)}
    gemma = config["model_type"] == "gemma2"
    norm = torch.zeros(width) if gemma else torch.ones(width)
    made["model.norm.weight"] = norm.clone()
    if not config["tie_word_embeddings"]:
        made["lm_head.weight"] = matrix(VOCABULARY, width, 3.0)
    names = ["input_layernorm", "post_attention_layernorm"]
    if gemma:
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name in names:
            made[f"{at}{name}.weight"] = norm.clone()
        for name, count, gain in (("q", config["num_attention_heads"], 2.0), ("k", config["num_key_value_heads"], 2.0),
                                  ("v", config["num_key_value_heads"], 1.0)):
            made[f"{at}self_attn.{name}_proj.weight"] = matrix(count * heads, width, gain)
        made[f"{at}self_attn.o_proj.weight"] = matrix(width, config["num_attention_heads"] * heads)
        made[f"{at}mlp.gate_proj.weight"], made[f"{at}mlp.up_proj.weight"] = matrix(inner, width), matrix(inner, width)
        made[f"{at}mlp.down_proj.weight"] = matrix(width, inner)
    return made


def make(folder, name, **changes):
    folder = Path(folder) / name
    folder.mkdir(parents=True)
    config = {**CONFIGS[name], **changes}
    (folder / "config.json").write_text(json.dumps(config))
    if "head_dim" in config:
        save_file(weights(config), folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def engine(model, policy, **options):
    """An engine in this process; there may be only one at a time, because the end of one ends what they share. policy: "off" is vLLM as it is."""
    gc.collect()
    selector._cached_get_attn_backend.cache_clear()  # so that one process can have engines with different policies
    given = dict(model=model, dtype="float32", max_model_len=2048, kv_cache_memory_bytes=64 << 20, enforce_eager=True, seed=0,
                 additional_config={"quire": {"kv": policy}}, disable_log_stats=True)
    given.update(options)
    if not (Path(model) / "tokenizer.json").exists():
        given["skip_tokenizer_init"] = True
    return LLM(**given)


def prompt(n_tokens, seed=0):
    random = torch.Generator().manual_seed(1000 + seed)
    return {"prompt_token_ids": torch.randint(3, VOCABULARY, (n_tokens,), generator=random).tolist()}


def answers(llm, prompts, n_tokens=16, **options):
    """Token numbers of the greedy answer to each prompt."""
    how = SamplingParams(temperature=0, max_tokens=n_tokens, ignore_eos=True, detokenize=False, **options)
    return [list(x.outputs[0].token_ids) for x in llm.generate(prompts, how, use_tqdm=False)]
