# SPDX-License-Identifier: MIT
"""The state of mlx-vlm's TurboQuant caches: norms (sequence, head, token) in f16 and packed indices (sequence, head, token, word). They
are the rows of Quire's tv codecs (docs/formats/codecs.md), so they go in and out without being encoded again."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import mlx.core as mx
from mlx_vlm.turboquant import BatchTurboQuantKVCache, TurboQuantKVCache, TurboQuantMSEState, resolve_kv_bits

from .. import _native as n
from .._mlx.arrays import FORMS
from .._mlx.cache import Cache
from .._mlx.convert import Side, check_position, give_codes, take_codes
from ..codecs import codecs
from ..rows import MLX_VLM_FLAG, codec_bits, codec_info

WIDTHS = tuple(sorted(c.bits for c in codecs() if c.is_mlx_vlm))
_HALVES = "codes of half bits split a head by what the first prompt contained, and Quire does not have them"


def is_codec(name: str) -> bool:
    return bool(codec_info(name).flags & MLX_VLM_FLAG)


def policy_of_bits(bits: Optional[float], key_bits: Optional[float] = None, value_bits: Optional[float] = None) -> str:
    """The policy that has mlx-vlm's TurboQuant codes: 4 is tv4/tv4, 3.5 is tv3/tv4, as mlx-vlm resolves kv_bits."""
    if bits is None:
        if key_bits is None or value_bits is None:
            raise ValueError("key_bits and value_bits need each other, or bits")
        bits = max(key_bits, value_bits)
    _, *sides = resolve_kv_bits(bits, key_bits, value_bits)
    for name, width in zip(("key_bits", "value_bits"), sides):
        if width not in WIDTHS:
            raise ValueError(f"{name}={width:g}: {_HALVES if width % 1 else f'Quire has TurboQuant codes of {WIDTHS[0]} to {WIDTHS[-1]} bits'}")
    return "/".join(f"tv{width:g}" for width in sides)


def policy_of(cache: Any) -> str:
    """The policy with the codes of a TurboQuant cache; ValueError if there is none."""
    why = _why_not(cache)
    if why:
        raise ValueError(f"{why}; name a policy, and the rows go through floats and are encoded a second time")
    return policy_of_bits(cache.bits, cache.key_bits, cache.value_bits)


def _why_not(cache: Any) -> Optional[str]:
    """Why Quire has no codec for the state, as a sentence without its end."""
    for name in ("key", "value"):
        width, state = getattr(cache, f"{name}_bits"), getattr(cache, f"{name}s")
        if width % 1:
            return f"{name}_bits={width:g}: {_HALVES}"
        if width not in WIDTHS:
            return f"{name}_bits={width:g}: Quire has TurboQuant codes of {WIDTHS[0]} to {WIDTHS[-1]} bits"
        if cache.seed != 0:
            return f"seed={cache.seed}: Quire has the signs of seed 0"
        if state is None:
            continue
        if type(state) is not TurboQuantMSEState:
            return f"{name}s are a {type(state).__name__}, and Quire has codes without residuals only"
        d = _dim(cache, name)
        if not n.lib.quire_codec_row_bytes(f"tv{width:g}".encode(), d):
            return f"head size {d}: Quire has TurboQuant codes for powers of two from 16 to 512"
    return None


def _dim(cache: Any, name: str) -> int:
    """The head size. A cache that was made from a state has no codec object, but its words tell."""
    codec = getattr(cache, f"{name}_codec", None)
    words: int = getattr(cache, f"{name}s").indices.shape[3]
    return int(codec.dim) if codec is not None else words * 32 // int(getattr(cache, f"{name}_bits"))


def check(cache: Any, count: int) -> None:
    """Refuses states that are not norms and indices of `count` tokens. Where they do not fit each other, take_codes() or MLX says so."""
    for name in ("key", "value"):
        state, codec, width = getattr(cache, f"{name}s"), getattr(cache, f"{name}_codec", None), getattr(cache, f"{name}_bits")
        if type(state) is not TurboQuantMSEState:
            continue
        norms, words = state.norms, state.indices
        if not isinstance(norms, mx.array) or not isinstance(words, mx.array) or norms.dtype not in FORMS or words.dtype != mx.uint32 or \
                norms.ndim != 3 or words.ndim != 4 or norms.shape != words.shape[:3] or not norms.shape[0] or not norms.shape[1]:
            raise ValueError(f"{name}s of the {type(cache).__name__} must be norms (sequence, head, token) of a float dtype and indices "
                             "(sequence, head, token, word) of uint32, for the same tokens")
        if codec is not None and not width % 1 and words.shape[3] != -(-codec.dim * int(width) // 32):
            raise ValueError(f"{name}s of the {type(cache).__name__} have {words.shape[3]} words, but {name}_bits={width:g} and the head size "
                             f"is {codec.dim}")
        check_position(cache, count, norms.shape[2])


def _side(state: Any, count: int) -> Side:
    return state.indices[:, :, :count], state.norms[:, :, :count, None], None


def take(ours: Cache, cache: Any, count: int) -> bool:
    """The first `count` columns, bit for bit; False if the codecs of the policy are others. check() has been called."""
    if _why_not(cache):
        return False
    dims = _dim(cache, "key"), _dim(cache, "value")
    return take_codes(ours, (f"tv{cache.key_bits:g}", f"tv{cache.value_bits:g}"), dims, (_side(cache.keys, count), _side(cache.values, count)),
                      mx.float32)


def floats(cache: Any, count: int) -> Tuple[mx.array, mx.array]:
    """The rows as mlx-vlm decodes them."""
    states = cache.keys, cache.values
    if any(type(state) is not TurboQuantMSEState for state in states):
        k, v = cache.dequantize()
        return k[:, :, :count], v[:, :, :count]
    if getattr(cache, "key_codec", None) is None:  # made from a state
        d_k, d_v = _dim(cache, "key"), _dim(cache, "value")
        cache = TurboQuantKVCache(bits=cache.bits, key_bits=cache.key_bits, value_bits=cache.value_bits, seed=cache.seed)
        cache._ensure_codecs(mx.zeros((1, 1, 1, d_k)), mx.zeros((1, 1, 1, d_v)))
    k, v = cache.dequantize(*(TurboQuantMSEState(s.norms[:, :, :count], s.indices[:, :, :count]) for s in states))
    return k, v


def give(cache: Any, k: str, v: str, is_batch: bool) -> Any:
    """A TurboQuant cache with the codes of a Quire cache. The caller sets its position."""
    k_bits, v_bits = codec_bits(k), codec_bits(v)
    total = k_bits + 0.5 if v_bits == k_bits + 1 else max(k_bits, v_bits)  # 3.5 means 3 and 4
    options = dict(bits=total, key_bits=k_bits, value_bits=v_bits)
    theirs: Any = BatchTurboQuantKVCache(list(cache._padding), **options) if is_batch else TurboQuantKVCache(**options)
    _, d_k, d_v = cache._shape
    theirs._ensure_codecs(mx.zeros((1, 1, 1, d_k)), mx.zeros((1, 1, 1, d_v)))
    sides = (give_codes(cache, side, mx.float16) for side in "kv")
    theirs.keys, theirs.values = (TurboQuantMSEState(norms[..., 0], words) for words, norms, _ in sides)
    return theirs
