"""Packed heads: one matrix product for all of them, and a view on each."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn, overload

import torch
from torch import Tensor, nn

from qkv.errors import ArgumentError, ModelError

if TYPE_CHECKING:
    from qkv.nn.attention import MultiHeadAttention

PROJECTIONS = ("WQ", "WK", "WV")


class PackedLinear(nn.Linear):
    """The same projection of several heads, one below the other; its owner draws the weights."""

    def reset_parameters(self) -> None:
        """Leave the numbers to `draw`: heads take turns, as when each is a module of its own."""


def draw(linear: nn.Linear, rows: slice) -> None:
    """Draw some rows of a projection as `nn.Linear` draws a layer of that size."""
    with torch.no_grad():
        nn.init.kaiming_uniform_(linear.weight[rows], a=5**0.5)
        if linear.bias is not None:
            bound = linear.in_features**-0.5
            nn.init.uniform_(linear.bias[rows], -bound, bound)


class ProjectionView:
    """Rows of a packed projection that belong to one head; reads like an `nn.Linear`."""

    def __init__(self, packed: nn.Linear, name: str, rows: slice) -> None:
        """Look at some rows of `packed`, which its layer calls `name`."""
        self.__dict__.update(packed=packed, name=name, rows=rows)

    packed: nn.Linear
    name: str
    rows: slice

    @property
    def weight(self) -> Tensor:
        """View on the packed weight, (out of one head) × (in)."""
        return self.packed.weight[self.rows]

    @property
    def bias(self) -> Tensor | None:
        """View on the packed bias, or None."""
        return None if self.packed.bias is None else self.packed.bias[self.rows]

    def __setattr__(self, attribute: str, value: object) -> NoReturn:
        where = f"{self.name}.{attribute}[{self.rows.start}:{self.rows.stop}]"
        raise ArgumentError(
            f"a head is a view on packed parameters: to set its {self.name}.{attribute} copy into "
            f"the layer's {where} under torch.no_grad()"
        )


class HeadView:
    """One head of a `MultiHeadAttention`: views on its rows of WQ, WK and WV."""

    def __init__(self, WQ: ProjectionView, WK: ProjectionView, WV: ProjectionView) -> None:
        """Look at three projections."""
        self.__dict__.update(WQ=WQ, WK=WK, WV=WV)

    WQ: ProjectionView
    WK: ProjectionView
    WV: ProjectionView

    def __setattr__(self, attribute: str, value: object) -> NoReturn:
        raise ArgumentError(
            f"a head is a view on packed parameters: its {attribute} cannot be replaced; copy "
            f"into the layer's {attribute}.weight under torch.no_grad()"
        )


class Heads(Sequence[HeadView]):
    """Read-only sequence of the heads of a layer: views on its packed parameters."""

    def __init__(self, layer: "MultiHeadAttention") -> None:
        """Look at a layer."""
        self._layer = layer

    def __len__(self) -> int:
        return self._layer.num_heads

    @overload
    def __getitem__(self, index: int) -> HeadView: ...
    @overload
    def __getitem__(self, index: slice) -> list[HeadView]: ...
    def __getitem__(self, index: int | slice) -> HeadView | list[HeadView]:
        """Return one head, or a list of them."""
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        number = range(len(self))[index]
        layer = self._layer
        return HeadView(
            *(ProjectionView(getattr(layer, p), p, layer.rows(p, number)) for p in PROJECTIONS)
        )

    def __iter__(self) -> Iterator[HeadView]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"{len(self)} heads of {self._layer}"

    def state_dict(self) -> dict[str, Tensor]:
        """Return the layout of a list of single heads: `0.WQ.weight`, `0.WK.weight`, …"""
        state = {}
        for number, head in enumerate(self):
            for name in PROJECTIONS:
                view = getattr(head, name)
                state[f"{number}.{name}.weight"] = view.weight.detach()
                if view.bias is not None:
                    state[f"{number}.{name}.bias"] = view.bias.detach()
        return state


def pack(state: dict[str, Tensor], prefix: str, layer: "MultiHeadAttention") -> None:
    """Rewrite `heads.0.WQ.weight`, … in a state dict into packed tensors, in place.

    Raises:
        ModelError: heads that share keys and values have different ones.
    """
    for name in PROJECTIONS:
        for kind in ("weight", "bias"):
            keys = [f"{prefix}heads.{i}.{name}.{kind}" for i in range(layer.num_heads)]
            if not all(key in state for key in keys):
                continue
            slices = [state.pop(key) for key in keys]
            shared = layer.num_heads // layer.kv_heads if name != "WQ" else 1
            for i, tensor in enumerate(slices):
                if i % shared and not torch.equal(tensor, slices[i - i % shared]):
                    raise ModelError(
                        f"{keys[i]} differs from {keys[i - i % shared]}, but kv_heads="
                        f"{layer.kv_heads} makes these heads share their {name}"
                    )
            state[f"{prefix}{name}.{kind}"] = torch.cat(slices[::shared])
