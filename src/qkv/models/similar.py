"""Which texts are alike: cosines of their embeddings, and groups of them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from qkv.errors import ArgumentError

BLOCK = 1 << 22
"""Cosines that are looked at at a time: n × n of them would be too many."""
STARTS = 10
"""Beginnings that are tried; the grouping that fits best is kept."""
ROUNDS = 300
"""Rounds at most; a grouping is stable long before."""


@dataclass(frozen=True)
class Group:
    """Texts that are alike.

    Attributes:
        members: which, the most central first.
        cosines: of each with the centre of the group.
    """

    members: tuple[int, ...]
    cosines: tuple[float, ...]


def similarities(x: Float[Tensor, "texts n_embed"]) -> Float[Tensor, "texts texts"]:
    """x_i · x_j / (|x_i| |x_j|): the cosine of every two rows."""
    x = normalize(x.double(), dim=-1)
    return (x @ x.mT).clamp(-1, 1)


def nearest(
    x: Float[Tensor, "texts n_embed"], most: int = 1
) -> tuple[Float[Tensor, "texts few"], Int[Tensor, "texts few"]]:
    """Return the cosines and the numbers of the rows that are most like each, itself left out.

    Of several that are alike to the last digit the first comes first. There are `most` of them,
    or as many as there are other rows.

    Raises:
        ArgumentError: fewer than two rows, or `most` below 1.
    """
    if len(x) < 2 or most < 1:
        raise ArgumentError(f"x has {len(x)} rows and most is {most}; wanted 2 and 1, or more")
    x, few = normalize(x.double(), dim=-1), min(most, len(x) - 1)
    cosines, places, rows = [], [], max(1, BLOCK // len(x))
    for start in range(0, len(x), rows):
        block = (x[start : start + rows] @ x.mT).clamp(-1, 1)
        own = torch.arange(len(block), device=x.device)
        block[own, own + start] = -torch.inf
        found = block.sort(dim=-1, descending=True, stable=True)
        cosines.append(found.values[:, :few])
        places.append(found.indices[:, :few])
    return torch.cat(cosines), torch.cat(places)


def groups(x: Float[Tensor, "texts n_embed"], number: int, *, seed: int = 0) -> list[Group]:
    """Group rows by their directions: spherical k-means       Dhillon and Modha 2001, section 3

        centre_c = Σ x_i / |Σ x_i|, over the rows i of group c, which are of length 1
        row i belongs to the centre with the largest x_i · centre_c

    Both in turn, from several beginnings; the grouping with the largest Σ x_i · centre_c is kept.
    The same rows and seed give the same groups.

    Args:
        x: one row a text.
        number: of groups.
        seed: of the beginnings.

    Returns:
        The groups, largest first; each has a member at least.

    Raises:
        ArgumentError: `number` is not from 1 to the number of rows.
    """
    if not 1 <= number <= len(x):
        raise ArgumentError(f"number is {number} for {len(x)} texts; wanted 1 to {len(x)} groups")
    x = normalize(x.double().cpu(), dim=-1)
    random = torch.Generator().manual_seed(seed)
    found = [_settled(x, _beginning(x, number, random)) for _ in range(STARTS)]
    best = max(found, key=lambda labels: float(_fit(x, labels, number).sum()))
    cosines = _fit(x, best, number)
    made = [_group(torch.nonzero(best == c).flatten(), cosines) for c in range(number)]
    return sorted(made, key=lambda group: (-len(group.members), min(group.members)))


def _group(members: Tensor, cosines: Tensor) -> Group:
    order = members[cosines[members].argsort(descending=True, stable=True)]
    return Group(tuple(order.tolist()), tuple(cosines[order].tolist()))


def _beginning(x: Tensor, number: int, random: torch.Generator) -> Tensor:
    """Centres that lie apart: each next one is drawn by 1 − cosine  Arthur, Vassilvitskii 2007."""
    chosen = [int(torch.randint(len(x), (1,), generator=random))]
    while len(chosen) < number:
        away = (1 - (x @ x[chosen].mT).amax(dim=-1)).clamp(min=0)
        away[chosen] = 0
        if float(away.sum()) < 1e-9:  # only copies are left
            away = torch.ones(len(x), dtype=x.dtype)
            away[chosen] = 0
        chosen.append(int(torch.multinomial(away, 1, generator=random)))
    return x[chosen]


def _settled(x: Tensor, centres: Tensor) -> Tensor:
    """Return the group of each row, once no row changes its group any more."""
    number = len(centres)
    labels = _filled(x @ centres.mT, number)
    for _ in range(ROUNDS):
        moved = _filled(x @ _centres(x, labels, number).mT, number)
        if torch.equal(moved, labels):
            break
        labels = moved
    return labels


def _filled(cosines: Tensor, number: int) -> Tensor:
    """Give each row to its nearest centre, and the row that fits worst to one that has none."""
    fit, labels = cosines.max(dim=-1)
    for empty in sorted(set(range(number)) - set(labels.tolist())):
        sizes = torch.bincount(labels, minlength=number)
        movable = torch.where(sizes[labels] > 1, fit, torch.inf)
        worst = int(movable.argmin())
        labels[worst], fit[worst] = empty, 1.0
    return labels


def _centres(x: Tensor, labels: Tensor, number: int) -> Tensor:
    total = x.new_zeros(number, x.shape[-1]).index_add(0, labels, x)
    return normalize(total, dim=-1)


def _fit(x: Tensor, labels: Tensor, number: int) -> Tensor:
    """Cosine of each row with the centre of its group."""
    return (x * _centres(x, labels, number)[labels]).sum(dim=-1).clamp(-1, 1)
