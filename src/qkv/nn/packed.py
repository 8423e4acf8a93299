"""Packed projections: WQ, WK and WV of all heads lie in one parameter.

Self-attention is then one matrix product for all of them, and every head is a view.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.core.product import linear
from qkv.core.steps import Head, Projection
from qkv.errors import ArgumentError, ModelError
from qkv.nn.attending import PROJECTIONS, AttentionLayer
from qkv.nn.rotary import Angles

_PACKED = {"weight": "WQKV", "bias": "bQKV"}


class PackedProjections(AttentionLayer):
    """X WQᵀ, X WKᵀ and X WVᵀ, the weights of all heads one below the other.

    Parameters: `WQKV`, (rows of WQ, then WK, then WV) × n_embed, and `bQKV` for those of them
    that have a bias. A state dict speaks of them apart, as `WQ.weight`, `WK.weight`, `WV.weight`;
    loading takes that layout and the one of single heads, `heads.0.WQ.weight`.
    """

    several = True
    bQKV: nn.Parameter | None

    def _build(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        self._lengths = [
            self.num_heads * self.d_k, self.kv_heads * self.d_k, self.kv_heads * self.d_v,
        ]  # fmt: skip
        named = zip(PROJECTIONS, self._lengths, strict=True)
        biases = sum(length for name, length in named if name in self.biased)
        packed = torch.empty(sum(self._lengths), self.n_embed, device=device, dtype=dtype)
        self.WQKV = nn.Parameter(packed)
        bias = torch.empty(biases, device=device, dtype=dtype)
        self.register_parameter("bQKV", nn.Parameter(bias) if biases else None)
        self._draw()

    @property
    def dtype(self) -> torch.dtype:
        """Of the packed weights."""
        return self.WQKV.dtype

    @torch.no_grad()
    def _draw(self) -> None:
        """Draw WQ, WK, WV of one head after the other, each as `nn.Linear` draws itself."""
        if self.WQKV.is_meta:
            return
        for head in range(self.num_heads):
            fresh = head % (self.num_heads // self.kv_heads) == 0  # shared ones are drawn once
            for name in PROJECTIONS if fresh else ("WQ",):
                rows, bias = self.rows(name, head), self.bias(name)
                nn.init.kaiming_uniform_(self.weight(name)[rows], a=5**0.5)
                if bias is not None:
                    nn.init.uniform_(bias[rows], -(self.n_embed**-0.5), self.n_embed**-0.5)

    def project(
        self, enc_q: Tensor, enc_k: Tensor, enc_v: Tensor, angles: Angles | None = None
    ) -> tuple[
        Float[Tensor, "*batch heads queries d_k"],
        Float[Tensor, "*batch kv_heads keys d_k"],
        Float[Tensor, "*batch kv_heads keys d_v"],
    ]:
        """Return queries, keys and values of every head; one product where X is the same."""
        if enc_q is enc_k and enc_k is enc_v:
            packed = linear(enc_q, self.WQKV, self._whole_bias())
            if self.d_k == self.d_v:  # the same as below in fewer calls, which one token notices
                return self._side_by_side(packed, angles)
            q, k, v = torch.split(packed, self._lengths, -1)
        else:
            encodings = zip(PROJECTIONS, (enc_q, enc_k, enc_v), strict=True)
            q, k, v = (linear(x, self.weight(n), self.bias(n)) for n, x in encodings)
        return (
            self.turn(q.unflatten(-1, (self.num_heads, self.d_k)).transpose(-3, -2), angles),
            self.turn(k.unflatten(-1, (self.kv_heads, self.d_k)).transpose(-3, -2), angles),
            v.unflatten(-1, (self.kv_heads, self.d_v)).transpose(-3, -2),
        )

    def _side_by_side(self, packed: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor, Tensor]:
        """Cut heads of one size: those of queries, then of keys, then of values."""
        own, shared = self.num_heads, self.kv_heads
        heads = packed.view(*packed.shape[:-1], own + 2 * shared, self.d_k).transpose(-3, -2)
        if angles is None:
            q, k, v = heads.split_with_sizes((own, shared, shared), -3)
            return q, k, v
        turning, v = heads.split_with_sizes((own + shared, shared), -3)
        q, k = self.turn(turning, angles).split_with_sizes((own, shared), -3)
        return q, k, v

    def queries(self, enc_q: Tensor) -> Float[Tensor, "*batch heads queries d_k"]:
        """Return the queries of every head alone, by one product."""
        packed = linear(enc_q, self.weight("WQ"), self.bias("WQ"))
        q: Tensor = packed.unflatten(-1, (self.num_heads, self.d_k)).transpose(-3, -2)
        return q

    def weight(self, name: str) -> Float[Tensor, "outputs n_embed"]:
        """Return one projection's rows of the packed weight, as a view."""
        at = PROJECTIONS.index(name)
        return self.WQKV.narrow(0, sum(self._lengths[:at]), self._lengths[at])

    def bias(self, name: str) -> Float[Tensor, "outputs"] | None:
        """Return one projection's part of the packed bias, as a view; None where it has none."""
        if name not in self.biased or self.bQKV is None:
            return None
        lengths = dict(zip(PROJECTIONS, self._lengths, strict=True))
        before = PROJECTIONS[: PROJECTIONS.index(name)]
        start = sum(lengths[other] for other in before if other in self.biased)
        return self.bQKV.narrow(0, start, lengths[name])

    def _whole_bias(self) -> Tensor | None:
        """The bias of all three; zeros for those that have none beside those that have one."""
        if self.bQKV is None or self.biased.issuperset(PROJECTIONS):
            return self.bQKV
        biases = (self.bias(name) for name in PROJECTIONS)
        zeros = (self.bQKV.new_zeros(length) for length in self._lengths)
        return torch.cat([z if b is None else b for b, z in zip(biases, zeros, strict=True)])

    def head(self, index: int) -> Head:
        """Return the projections of one head, counted from 0."""
        view = HeadView(self, index)
        return Head(index + 1, view.WQ.projection, view.WK.projection, view.WV.projection)

    @property
    def WQ(self) -> "ProjectionView":
        """The query weights of all heads; reads like an `nn.Linear`."""
        return ProjectionView(self, "WQ")

    @property
    def WK(self) -> "ProjectionView":
        """The key weights of all heads; reads like an `nn.Linear`."""
        return ProjectionView(self, "WK")

    @property
    def WV(self) -> "ProjectionView":
        """The value weights of all heads; reads like an `nn.Linear`."""
        return ProjectionView(self, "WV")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in (*PROJECTIONS, "heads"):
            raise ArgumentError(
                f"{name} is a view on the packed parameters WQKV and bQKV and cannot be replaced; "
                f"copy into {'heads[i].WQ' if name == 'heads' else name}.weight under "
                f"torch.no_grad(), or load_state_dict"
            )
        super().__setattr__(name, value)

    def _parts(self, kind: str, prefix: str) -> dict[str, Tensor]:
        """Views on the parts of a packed parameter by the names that a state dict gives them."""
        part = self.weight if kind == "weight" else self.bias
        named = ((f"{prefix}{name}.{kind}", part(name)) for name in PROJECTIONS)
        return {name: value for name, value in named if value is not None}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for kind, packed in _PACKED.items():
            if destination.pop(f"{prefix}{packed}", None) is not None:
                for name, value in self._parts(kind, prefix).items():
                    destination[name] = value if keep_vars else value.detach()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        join_heads(state_dict, prefix, self)
        _, _, missing, _, errors = args  # metadata, strict, missing, unexpected, errors
        for kind, packed in _PACKED.items():
            wanted = self._parts(kind, prefix)
            if not wanted or f"{prefix}{packed}" in state_dict:
                continue
            given = {name: state_dict.pop(name) for name in wanted if name in state_dict}
            missing.extend(name for name in wanted if name not in given)
            unfit = {n for n, value in given.items() if value.shape != wanted[n].shape}
            errors.extend(
                f"size mismatch for {name}: {tuple(given[name].shape)} in the state dict, "
                f"{tuple(wanted[name].shape)} in the layer"
                for name in sorted(unfit)
            )
            kept = {name: value.detach() for name, value in wanted.items()}
            kept.update({name: value for name, value in given.items() if name not in unfit})
            devices = {value.device for value in given.values()}
            if len({*devices, *(value.device for value in kept.values())}) == 1:
                state_dict[f"{prefix}{packed}"] = torch.cat(list(kept.values()))
        super()._load_from_state_dict(state_dict, prefix, *args)


class ProjectionView:
    """Rows of a packed projection: of one head, or of all; reads like an `nn.Linear`."""

    layer: PackedProjections
    name: str
    rows: slice

    def __init__(self, layer: PackedProjections, name: str, rows: slice = slice(None)) -> None:
        """Look at some rows of what `layer` calls `name`."""
        self.__dict__.update(layer=layer, name=name, rows=rows)

    @property
    def weight(self) -> Float[Tensor, "outputs n_embed"]:
        """View on the packed weight, outputs × n_embed."""
        return self.layer.weight(self.name)[self.rows]

    @property
    def bias(self) -> Float[Tensor, "outputs"] | None:
        """View on the packed bias, or None."""
        bias = self.layer.bias(self.name)
        return None if bias is None else bias[self.rows]

    @property
    def projection(self) -> Projection:
        """The two of them."""
        return Projection(self.weight, self.bias)

    def __call__(self, x: Float[Tensor, "*batch n_embed"]) -> Float[Tensor, "*batch outputs"]:
        """X Wᵀ + b."""
        return linear(x, self.weight, self.bias)

    def __setattr__(self, attribute: str, value: object) -> NoReturn:
        packed = "bQKV" if attribute == "bias" else "WQKV"
        raise ArgumentError(
            f"{self.name} is a view on the packed parameter {packed}: its {attribute} cannot be "
            f"replaced; copy into it, {self.name}.{attribute}.copy_(…), under torch.no_grad()"
        )

    def __repr__(self) -> str:
        return f"{self.name}: {' × '.join(map(str, self.weight.shape))}"


class HeadView:
    """One head of a `MultiHeadAttention`: views on its rows of WQ, WK and WV."""

    WQ: ProjectionView
    WK: ProjectionView
    WV: ProjectionView

    def __init__(self, layer: PackedProjections, head: int) -> None:
        """Look at the head of that number, counted from 0."""
        views = {name: ProjectionView(layer, name, layer.rows(name, head)) for name in PROJECTIONS}
        self.__dict__.update(views)

    def __setattr__(self, attribute: str, value: object) -> NoReturn:
        raise ArgumentError(
            f"a head is a view on the packed parameter WQKV: its {attribute} cannot be replaced; "
            f"copy into it, {attribute}.weight.copy_(…), under torch.no_grad()"
        )


class Heads(Sequence[HeadView]):
    """Read-only sequence of the heads of a layer: views on its packed parameters."""

    def __init__(self, layer: PackedProjections) -> None:
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
        return HeadView(self._layer, range(len(self))[index])

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


def join_heads(state: dict[str, Tensor], prefix: str, layer: PackedProjections) -> None:
    """Rewrite `heads.0.WQ.weight`, … in a state dict into `WQ.weight`, …, in place.

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
