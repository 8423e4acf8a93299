"""A trained bias by distance: word order within attention itself."""

import math

import torch
from jaxtyping import Int
from torch import Tensor, nn

from qkv.core.mask import Mask
from qkv.errors import ArgumentError
from qkv.nn.attending import positive


class RelativeBias(nn.Module):
    """b[bucket(j − i)] is added to the similarity of query i and key j      Raffel et al. 2020

    Half of the buckets hold one distance each, the rest grow logarithmically up to `most`; what
    is further away shares the last one (section 2.1, T5). One number a head and bucket.

    Args:
        num_heads: heads of the queries.
        buckets: how many distances are told apart.
        most: distance from which all are the same.
        both_ways: whether half of the buckets are for keys ahead of a query; without, as in a
            decoder, they are all as near as the query itself.
        device, dtype: of the table.

    Raises:
        ArgumentError: too few buckets for both ways, or `most` among the single distances.
    """

    def __init__(
        self,
        num_heads: int,
        buckets: int = 32,
        most: int = 128,
        both_ways: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Draw the table: N(0, 1)."""
        super().__init__()
        self.num_heads, self.buckets = (
            positive("num_heads", num_heads),
            positive("buckets", buckets),
        )
        self.most, self.both_ways = most, both_ways
        each_way = buckets // 2 if both_ways else buckets
        if each_way < 2 or (both_ways and buckets % 2):
            raise ArgumentError(f"buckets is {buckets}; wanted 2 or more each way, an even number")
        if most <= each_way // 2:
            raise ArgumentError(f"most is {most}; wanted more than {each_way // 2} (single ones)")
        table = torch.empty(buckets, num_heads, device=device, dtype=dtype)
        self.weight = nn.Parameter(nn.init.normal_(table))

    def forward(self, queries: int, keys: int) -> Mask:
        """Return the bias of so many queries, the last ones, and keys, as a mask to be joined."""
        if not 0 < queries <= keys:
            raise ArgumentError(f"{queries} queries of {keys} keys; wanted 1 to {keys}")
        device = self.weight.device
        row = torch.arange(keys - queries, keys, device=device)[:, None]
        column = torch.arange(keys, device=device)
        return Mask.bias(self.weight[self.bucket(column - row)].permute(2, 0, 1)[None])

    def bucket(self, distance: Int[Tensor, "queries keys"]) -> Int[Tensor, "queries keys"]:
        """Return the number of the bucket of each distance, key − query."""
        if not self.both_ways:
            return self._one_way((-distance).clamp(min=0), self.buckets)
        half = self.buckets // 2
        return self._one_way(distance.abs(), half) + half * (distance > 0)

    def _one_way(self, distance: Tensor, buckets: int) -> Tensor:
        single = buckets // 2  # distances 0, 1, … have a bucket each
        share = torch.log(distance.clamp(min=1).float() / single) / math.log(self.most / single)
        shared = single + (share * (buckets - single)).long()
        return torch.where(distance < single, distance, shared.clamp(max=buckets - 1))

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"num_heads={self.num_heads}, buckets={self.buckets}, most={self.most}"
