# SPDX-License-Identifier: MIT
"""Model files of mlx-lm as they are, small and with random weights: floats in Quire's cache give the texts that mlx-lm's cache gives."""
import importlib
import unittest

import mlx.core as mx
import quire.mlx_lm as quire_mlx
from mlx.utils import tree_map
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from support import greedy

COMMON = dict(hidden_size=64, num_hidden_layers=2, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
              layer_norm_eps=1e-5, vocab_size=211, head_dim=16, max_position_embeddings=512, rope_theta=10000.0, rope_scaling=None,
              partial_rotary_factor=0.5, attention_bias=False, mlp_bias=False)
EXPERTS = dict(num_local_experts=2, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=32)
WINDOWS = dict(sliding_window=8, sliding_window_pattern=2)
TIED = dict(tie_word_embeddings=True)
N_NAMES = dict(n_ctx=512, n_embd=64, n_head=4, n_layer=2, n_positions=512, n_inner=96, layer_norm_epsilon=1e-5)
MLA = dict(q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16, n_routed_experts=4, n_shared_experts=1, n_group=1,
           topk_group=1, first_k_dense_replace=1, moe_layer_freq=1, routed_scaling_factor=1.0, norm_topk_prob=True, scoring_func="sigmoid",
           topk_method="noaux_tc", num_experts_per_tok=1, moe_intermediate_size=32)
YARN = dict(rope_scaling=dict(type="yarn", factor=1.0, mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=512))
SLIDING, FULL = ["sliding_attention"], ["full_attention"]
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
    "qwen2_moe": dict(shared_expert_intermediate_size=32, **EXPERTS), "phimoe": EXPERTS, "internlm3": dict(bias=False, qkv_bias=False), "glm": {},
    "minimax": dict(shared_intermediate_size=32, rotary_dim=8, **EXPERTS), "ernie4_5_moe": dict(use_bias=False, moe_num_experts=2, moe_k=1, **TIED),
    "exaone": dict(num_layers=2, layer_norm_epsilon=1e-5), "gptj": dict(rotary_dim=8, **N_NAMES), "gpt_bigcode": N_NAMES,
    "lille-130m": dict(block_size=512, n_kv_heads=2, **N_NAMES), "nanbeige": {}, "deepseek": MLA, "dots1": dict(**MLA, **TIED), "deepseek_v2": {**MLA, **YARN},
    "Klear": dict(num_experts=2, num_shared_experts=1, decoder_sparse_step=1, mlp_only_layers=[], **MLA), "glm4_moe": dict(use_qk_norm=True, **MLA, **TIED),
    "llama4_text": dict(intermediate_size_mlp=96, no_rope_layers=[1, 0], use_qk_norm=True, **TIED), "apertus": dict(post_norm=True, qk_norm=True, **TIED),
    # layers with a window or a recurrent state keep mlx-lm's caches
    "olmo3": dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"]), "gemma3": dict(text_config=dict(model_type="gemma3_text", **COMMON, **WINDOWS)),
    "qwen3_next": dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4,
                       full_attention_interval=2, decoder_sparse_step=1, shared_expert_intermediate_size=32, mlp_only_layers=[], norm_topk_prob=True,
                       **EXPERTS, **TIED),
    # the last layers attend to the keys of earlier ones
    "gemma3n": dict(text_config=dict(COMMON, model_type="gemma3n_text", num_hidden_layers=10, intermediate_size=[96] * 10, num_kv_shared_layers=4, vocab_size_per_layer_input=211,
                                     sliding_window=8, rope_local_base_freq=10000.0, final_logit_softcapping=30.0, layer_types=(SLIDING * 4 + FULL) * 2,
                                     activation_sparsity_pattern=[0.0] * 10, hidden_size_per_layer_input=16, altup_num_inputs=2, altup_coef_clip=120.0,
                                     altup_correct_scale=True, altup_active_idx=0, laurel_rank=8)),
    "gemma4_text": dict(num_hidden_layers=6, global_head_dim=32, vocab_size_per_layer_input=211, num_kv_shared_layers=2, hidden_size_per_layer_input=16,
                        sliding_window=8, layer_types=(SLIDING + FULL) * 3, use_double_wide_mlp=False),
    # every second layer keeps its window
    "gemma3_text": WINDOWS, "cohere2": dict(logit_scale=0.1, layer_norm_bias=False, **WINDOWS),
    # and attention sinks
    "gpt_oss": dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"], **EXPERTS),
}
FEW = {"gemma3_text": 1, "cohere2": 1, "gpt_oss": 1, "olmo3": 1, "gemma3": 1, "qwen3_next": 1, "gemma3n": 1, "gemma4_text": 2}  # of the layers; else 2
ALONE = {  # these compute with keys themselves
    "deepseek_v3": MLA,
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


def followed(model, caches):
    """A greedy text, and the distribution of each of its tokens."""
    found = list(generate_step(mx.array(PROMPT), model, max_tokens=12, prompt_cache=caches))
    return [int(t) for t, _ in found], mx.stack([p.astype(mx.float32) for _, p in found])


class Models(unittest.TestCase):
    def test_texts(self):
        for name, more in MODELS.items():
            with self.subTest(name):
                model = build(name, more)
                caches = quire_mlx.make_cache(model, "f32")
                self.assertEqual(sum(isinstance(c, quire_mlx.QuireKVCache) for c in caches), FEW.get(name, 2))
                ours, theirs = (followed(model, c) for c in (caches, make_prompt_cache(model)))
                self.assertEqual(ours[0], theirs[0])
                self.assertLess(float(mx.abs(ours[1] - theirs[1]).max() / mx.abs(theirs[1]).max()), 1e-3)

    def test_models_that_need_mlx_lms_cache_say_so(self):
        for name, more in ALONE.items():
            model = build(name, more)
            with self.assertRaises(TypeError):
                greedy(model, PROMPT, quire_mlx.make_cache(model, "f32"), 2)


if __name__ == "__main__":
    unittest.main()
