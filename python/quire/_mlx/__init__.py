# SPDX-License-Identifier: MIT
"""What the caches of quire.mlx_lm and quire.mlx_vlm have in common. It needs MLX, but neither mlx-lm nor mlx-vlm. Nothing here is for users."""
