"""Sums over all nodes of the network, in the clear or under masks."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import array_api_compat as aac

from .block import Block
from .messages import Reduce

Array = Any


def network_sum(
    block: Block,
    kind: str,
    value: Array,
    finish: Callable[[Array], Array] | None = None,
    size: int | None = None,
    bound: Any = None,
) -> Generator[Reduce, Array, Array]:
    """The sum of `value` (length,) over all blocks of the network, or what the root makes of it (`finish`), an array (size,).

    To be used with `yield from` inside a node's program. `bound` is a public bound on the entries of the sum of
    absolute values; it scales sums under masks (privacy/masks.py).
    """
    sealer, size = block.sealer, value.shape[0] if size is None else size
    then = finish or _as_it_is
    if sealer is None:
        return (yield Reduce(kind, value, then, size))
    integers = aac.array_namespace(value).isdtype(value.dtype, "integral")

    def opened(total: Array) -> Array:
        total = sealer.open(kind, total, bound, integers)
        return then(total if integers else block.array(total))

    return (yield Reduce(kind, sealer.seal(kind, value, bound), opened, size))


def _as_it_is(total: Array) -> Array:
    return total
