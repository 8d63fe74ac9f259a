# SPDX-License-Identifier: MIT
"""Rows of numbers that are hard for quantizers in different ways."""
import numpy as np


def families(rng, d=256):
    """Pairs (name, float32 rows [n,d])."""
    def normal(n=1):
        return rng.standard_normal((n, d))
    h = np.abs(rng.standard_normal((1, d // 2)))
    made = [
        ("normal", normal(2)),
        ("outliers", normal() * np.where(rng.random((1, d)) < .02, 30, 1)),
        ("all_negative", -np.abs(normal()) - .1),
        ("all_positive", np.abs(normal()) + .1),
        ("constant", np.repeat(rng.standard_normal((1, 1)), d, 1)),
        ("zero", np.zeros((1, d))),
        ("minus_zero", -np.zeros((1, d))),
        ("huge", np.clip(normal() * 2e4, -65504, 65504)),
        ("tiny", normal() * 1e-6),
        ("below_floor", normal() * 1e-8),
        ("denormal", normal() * 3e-40),
        ("plus_minus_one", np.sign(normal())),
        ("symmetric", np.stack([h, -h], -1).reshape(1, d)),
        ("half_integers", rng.integers(-20, 21, (1, d)) * .5),
        ("one_hot", np.eye(1, d)),
        ("far_offset", 100 + normal() * .01),
        ("wide", np.clip(np.exp(np.longdouble(3) * normal()) * np.sign(normal()), -6e4, 6e4)),
    ]
    return [(name, x.astype(np.float32)) for name, x in made]


def names(fam):
    """One family name per row."""
    return [name for name, x in fam for _ in x]
