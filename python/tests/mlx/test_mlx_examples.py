# SPDX-License-Identifier: MIT
"""The examples for mlx-lm with input that ends at once, and with models whose first layer has no keys or that compute with them.

Their ordinary use is in the tests python_mlx_chat and python_mlx_many.
"""
import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from support import ROOT, model_folder

TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
COMMON = dict(hidden_size=32, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512)


def made(folder, kind, **more):
    """A model of two layers with random weights and the tokenizer of the real one, as mlx_lm.load() needs it."""
    module = __import__(f"mlx_lm.models.{kind}", fromlist=["Model"])
    real = Path(model_folder())
    config = dict(model_type=kind, vocab_size=json.loads((real / "config.json").read_text())["vocab_size"], num_hidden_layers=2, **COMMON, **more)
    mx.random.seed(3)
    model = module.Model(module.ModelArgs.from_dict(config))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    for name in TOKENIZER:
        shutil.copy(real / name, folder)
    return folder


class Examples(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.folder = Path(work.name)

    def run_it(self, name, model, *arguments, status=0):
        done = subprocess.run([sys.executable, str(ROOT / "examples" / "python" / name), str(model), *arguments], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def hybrid(self):
        return made(self.folder, "lfm2", norm_eps=1e-5, conv_bias=False, conv_L_cache=3, block_dim=32, block_multiple_of=8, block_ffn_dim_multiplier=1.0,
                    block_auto_adjust_ff_dim=False, block_ff_dim=32, layer_types=["conv", "full_attention"])

    def test_nothing_was_said(self):
        self.assertNotIn("MB", self.run_it("chat.py", self.hybrid()))

    def test_the_first_layer_has_no_keys(self):
        model = self.hybrid()
        for more in ((), ("--max-tokens", "16")):
            said = self.run_it("chat.py", model, "--say", "Hello", "--say", "And again", "--answer-tokens", "4", *more)
            self.assertRegex(said, r"in 1 of 2 layers")
        self.assertRegex(said, "16 of [0-9]+ tokens")
        self.assertRegex(self.run_it("batch.py", model, "--answer-tokens", "4", "--prompts", "2"), r"\([0-9]+ tokens, [0-9.]+ MB\)")

    def test_a_model_that_computes_with_keys(self):
        model = made(self.folder, "gemma2", head_dim=16, intermediate_size=32, rms_norm_eps=1e-5)
        self.assertIn("\nTypeError: ", self.run_it("chat.py", model, "--say", "Hello", status=1))

    def test_numbers_of_prompts(self):
        for wrong in ("0", "-1", "99"):
            self.assertIn("--prompts", self.run_it("batch.py", self.folder, "--prompts", wrong, status=2))


if __name__ == "__main__":
    unittest.main()
