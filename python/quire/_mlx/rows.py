# SPDX-License-Identifier: MIT
"""The objects that a cache returns to the model instead of keys and values. The rows stay encoded; only attention can read them."""

from __future__ import annotations

from typing import Any, NoReturn, Optional, Protocol, Tuple

import mlx.core as mx


class RowOwner(Protocol):
    """What keys and values need of the cache that returned them."""

    @property
    def _dtype(self) -> Any: ...

    def _rows_shape(self, side: str) -> Tuple[int, int, int, int]: ...

    def _decode(self, side: str) -> mx.array: ...

    def _attend(self, q: mx.array, scale: float, mask: Any, sinks: Optional[mx.array], version: Optional[int] = None) -> mx.array: ...


class _Rows:
    side = ""

    def __init__(self, cache: RowOwner, version: int) -> None:
        self.cache = cache
        self.version = version  # of the cache; it has gone on if its own is another

    @property
    def shape(self) -> Tuple[int, int, int, int]:
        """(sequence, KV head, column, channel): the shape of the array that MLX's own cache would have."""
        return self.cache._rows_shape(self.side)

    @property
    def ndim(self) -> int:
        """4, as that array would have."""
        return 4

    @property
    def dtype(self) -> Any:
        """The dtype of the rows that were given; decode() returns it again."""
        return self.cache._dtype

    def astype(self, dtype: Any) -> "_Rows":
        """Returns the same object: attention computes in float32 whatever the dtype of the rows was."""
        return self

    def decode(self) -> mx.array:
        """All rows as an array, with zeros for padding and for tokens that the bound has dropped. For inspection: it needs the
        memory that the cache saves."""
        return self.cache._decode(self.side)

    def _refuse(self) -> NoReturn:
        raise TypeError("the rows of a Quire cache can only be passed to attention; this model computes with them directly, so its layers "
                        "need the cache that the model asks for")

    def __getitem__(self, _: Any) -> Any:
        self._refuse()

    def __iter__(self) -> Any:
        self._refuse()

    def __array__(self, *_: Any, **__: Any) -> Any:
        self._refuse()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def __repr__(self) -> str:
        return f"<quire {type(self).__name__} {self.shape}>"


class Keys(_Rows):
    """What a cache returns as keys. Attention takes it; everything else raises TypeError. decode() makes an array of it."""

    side = "k"

    def attend(self, q: mx.array, v: Any, *, scale: float, mask: Any = None, sinks: Optional[mx.array] = None, force_fused: bool = False,
               stream: Any = None) -> mx.array:
        """mx.fast.scaled_dot_product_attention over these keys and values."""
        if not isinstance(v, Values) or v.cache is not self.cache or v.version != self.version:
            raise TypeError("keys of a Quire cache must be used with the values that were returned with them")
        return self.cache._attend(q, scale, mask, sinks, self.version)


class Values(_Rows):
    """What a cache returns as values, for attention with the keys that were returned with them."""

    side = "v"
