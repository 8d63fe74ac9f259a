# SPDX-License-Identifier: MIT
"""Model files of mlx-lm as they are, small and with random weights: floats in Quire's cache give the texts that mlx-lm's cache gives."""
import importlib
import unittest

import mlx.core as mx
import quire.mlx_lm as quire_mlx
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache
from support import greedy

COMMON = dict(hidden_size=64, num_hidden_layers=2, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
              layer_norm_eps=1e-5, vocab_size=211, head_dim=16, max_position_embeddings=512, rope_theta=10000.0, rope_scaling=None,
              partial_rotary_factor=0.5, attention_bias=False, mlp_bias=False)
EXPERTS = dict(num_local_experts=2, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=32)
WINDOWS = dict(sliding_window=8, sliding_window_pattern=2)
TIED = dict(tie_word_embeddings=True)
MODELS = {
    "llama": {}, "qwen2": {}, "qwen3": TIED, "gemma": {}, "phi": {}, "phi3": {}, "cohere": dict(logit_scale=0.1), "olmo2": {}, "glm4": {},
    "internlm2": dict(bias=False), "seed_oss": {}, "mimo": {}, "hunyuan_v1_dense": {}, "nanochat": {}, "helium": TIED,
    "ernie4_5": dict(use_bias=False, **TIED), "starcoder2": dict(norm_epsilon=1e-5), "nemotron": dict(hidden_act="relu2", norm_eps=1e-5),
    "smollm3": dict(no_rope_layer_interval=4, no_rope_layers=None), "stablelm": dict(use_qkv_bias=False),
    "exaone4": dict(sliding_window=None, sliding_window_pattern=None, **TIED),
    "granite": dict(logits_scaling=1.0, attention_multiplier=0.1, embedding_multiplier=1.0, residual_multiplier=1.0),
    "gpt_neox": dict(rotary_emb_base=10000, rotary_pct=0.5),
    "gpt2": dict(n_ctx=512, n_embd=64, n_head=4, n_layer=2, n_positions=512, layer_norm_epsilon=1e-5),
    "minicpm": dict(dim_model_base=64, scale_depth=1.4, scale_emb=1.0),
    # d_v is not d_k
    "minicpm3": dict(dim_model_base=64, scale_depth=1.4, scale_emb=1.0, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16,
                     v_head_dim=24, rope_scaling=dict(original_max_position_embeddings=512, long_factor=[1.0] * 8, short_factor=[1.0] * 8)),
    "mixtral": EXPERTS, "olmoe": EXPERTS, "qwen3_moe": dict(decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True, **EXPERTS, **TIED),
    # every second layer keeps its window
    "gemma3_text": WINDOWS, "cohere2": dict(logit_scale=0.1, layer_norm_bias=False, **WINDOWS),
    # and attention sinks
    "gpt_oss": dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"], **EXPERTS),
}
HALF = ("gemma3_text", "cohere2", "gpt_oss")
ALONE = {  # these compute with keys themselves
    "gemma2": dict(attn_logit_softcapping=50.0, final_logit_softcapping=30.0, query_pre_attn_scalar=16),
}
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]


def build(name, more):
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(1)
    model = module.Model(module.ModelArgs.from_dict({**COMMON, **more, "model_type": name}))
    wander = lambda x: mx.random.normal(x.shape) * (0.2 if x.ndim > 1 else 0.05) + (x.ndim == 1) if x.dtype == mx.float32 else x
    model.update(tree_map(wander, model.parameters()))
    mx.eval(model.parameters())
    return model


class Models(unittest.TestCase):
    def test_texts(self):
        for name, more in MODELS.items():
            with self.subTest(name):
                model = build(name, more)
                caches = quire_mlx.make_cache(model, "f32")
                self.assertEqual(sum(isinstance(c, quire_mlx.QuireKVCache) for c in caches), 1 if name in HALF else 2)
                self.assertEqual(greedy(model, PROMPT, caches, 12), greedy(model, PROMPT, make_prompt_cache(model), 12))

    def test_models_that_need_mlx_lms_cache_say_so(self):
        for name, more in ALONE.items():
            model = build(name, more)
            with self.assertRaises(TypeError):
                greedy(model, PROMPT, quire_mlx.make_cache(model, "f32"), 2)


if __name__ == "__main__":
    unittest.main()
