"""Rotary positions: queries and keys are turned by their place in the text."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.core.product import learns, plain
from qkv.errors import ArgumentError

Layout = Literal["halves", "pairs"]


class Angles(NamedTuple):
    """cos(p θᵢ) and sin(p θᵢ) of every position p; axes (tokens, turned) or (batch, 1, …).

    `signed` is sin with the sign that a value's partner enters with: rotate(x) sin is
    partner(x) signed, which needs no negative and no joining of halves.
    """

    cos: Float[Tensor, "*batch tokens turned"]
    sin: Float[Tensor, "*batch tokens turned"]
    signed: Float[Tensor, "*batch tokens turned"]


@dataclass(frozen=True)
class Rotary:
    """x cos(p θ) + rotate(x) sin(p θ), θᵢ = base^(−2i / d)      Su et al. 2021, section 3.4

    The dot product of a query and a key then depends on how far apart they are.

    Attributes:
        d_k: values of a query and of a key.
        base: the slowest of the d / 2 hands turns once in 2π · base tokens.
        layout: which two values turn together: "halves", i and i + d / 2, as Hugging Face
            stores Llama; "pairs", 2i and 2i + 1, as the paper and GGUF files write them.
        part: how many values turn, the first ones (GPT-NeoX); all by default.
        scaling: `rope_type` "default", "linear" (factor) or "llama3" (factor, low_freq_factor,
            high_freq_factor, original_max_position_embeddings), by their names in config.json.

    Raises:
        ArgumentError: an odd number of values would turn, the base is not above 0, or the
            scaling is not known.
    """

    d_k: int
    base: float = 10_000.0
    layout: Layout = "halves"
    part: int | None = None
    scaling: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        """Check the sizes."""
        turned = self.turned
        if turned < 2 or turned % 2 or turned > self.d_k:
            raise ArgumentError(f"rotary turns {turned} of {self.d_k} values; wanted an even part")
        if self.layout not in ("halves", "pairs"):
            raise ArgumentError(f"layout is {self.layout!r}; wanted 'halves' or 'pairs'")
        if not 0 < self.base < math.inf:
            raise ArgumentError(f"base is {self.base!r}; wanted a number above 0")
        self.frequencies()

    @property
    def turned(self) -> int:
        """How many values of a head turn."""
        return self.d_k if self.part is None else self.part

    def frequencies(self) -> Float[Tensor, "hands"]:
        """Return θ, one angle a token for each two values, in float32 as models are trained."""
        steps = torch.arange(0, self.turned, 2, device="cpu")  # never meta: see a model being built
        theta = 1.0 / self.base ** (steps.float() / self.turned)
        scaling = self.scaling or {}
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        match kind:
            case "default":
                return theta
            case "linear":
                return theta / _number(scaling, "factor")
            case "llama3":
                return _llama3(theta, scaling)
        raise ArgumentError(f"rope_type is {kind!r}; known: default, linear, llama3")

    def angles(
        self, positions: Int[Tensor, "*batch tokens"], dtype: torch.dtype = torch.float32
    ) -> Angles:
        """Return cos and sin for these positions: computed in float32, given in `dtype`.

        float32 because the models are trained so: exact angles would be other ones, by 1e-5 of a
        turn after a few hundred tokens.
        """
        theta = self.frequencies().to(positions.device)
        angle = positions[..., None].float() * theta
        if self.layout == "halves":
            angle = torch.cat((angle, angle), -1)
        else:
            angle = angle.repeat_interleave(2, -1)
        if angle.dim() > 2:
            angle = angle.unsqueeze(-3)  # the same for every head
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        signed = sin.clone()
        signed[..., self._hands()[0]].neg_()
        return Angles(cos, sin, signed)

    def turn(
        self, x: Float[Tensor, "*batch heads tokens d_k"], angles: Angles
    ) -> Float[Tensor, "*batch heads tokens d_k"]:
        """x cos(p θ) + rotate(x) sin(p θ)"""
        if self.part is not None:
            rest = x[..., self.part :]
            return torch.cat((self._turn(x[..., : self.part], angles), rest), -1)
        return self._turn(x, angles)

    def _turn(self, x: Tensor, angles: Angles) -> Tensor:
        if learns(x) and plain(x, angles.cos):
            turned: Tensor = _Turned.apply(x, angles.cos, angles.signed, self._hands())
            return turned
        if self.layout == "halves":
            partner = x.roll(self.turned // 2, -1)
        else:
            partner = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return torch.addcmul(x * angles.cos, partner, angles.signed)

    def _hands(self) -> tuple[slice, slice]:
        """Return where the first values of all pairs stand, and where the second ones."""
        if self.layout == "halves":
            return slice(0, self.turned // 2), slice(self.turned // 2, None)
        return slice(0, None, 2), slice(1, None, 2)


class _Turned(torch.autograd.Function):
    """The turning, in fewer operations for training; its gradient is turned back."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cos: Tensor, signed: Tensor, hands: tuple[slice, slice]
    ) -> Tensor:
        ctx.save_for_backward(cos, signed)
        ctx.hands = hands
        y = x * cos
        for one, other in (hands, hands[::-1]):
            y[..., one].addcmul_(x[..., other], signed[..., one])
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        cos, signed = ctx.saved_tensors
        return _Turned.apply(dy, cos, -signed, ctx.hands), None, None, None


def _llama3(theta: Tensor, scaling: Mapping[str, object]) -> Tensor:
    """Slow hands turn `factor` times slower, fast ones as before      Llama 3.1's release"""
    factor, known = _number(scaling, "factor"), _number(scaling, "original_max_position_embeddings")
    low, high = _number(scaling, "low_freq_factor"), _number(scaling, "high_freq_factor")
    turns = known / (2 * math.pi / theta)  # of each hand within the original context
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - share) * theta / factor + share * theta


def _number(scaling: Mapping[str, object], key: str) -> float:
    value = scaling.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ArgumentError(f"rope scaling says {key} {value!r}; wanted a number above 0")
    return float(value)
