"""`Weights`: the attention matrix as an object that answers like the matrix and is never formed."""

from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.core import fused
from qkv.core.mask import Mask
from qkv.errors import ArgumentError, ShapeError
from qkv.weights.blocks import Block, Softmax, asked_for, in_full
from qkv.weights.checks import check_operands, check_real, check_scale, check_whole, joined
from qkv.weights.logits import Logits, LogitsOfHead, Similarities
from qkv.weights.regions import Regions, along, crop, run_of
from qkv.weights.strongest import strongest_keys
from qkv.weights.summary import Summary, summarise

DENSE = 1 << 26
"""Numbers that `dense` forms without being told to: 256 MB in float32."""


class Top(NamedTuple):
    """The strongest weights of every query, strongest first, and the keys that they go to."""

    weights: Float[Tensor, "*batch_heads queries k"]
    keys: Int[Tensor, "*batch_heads queries k"]


class Weights:
    """softmax(cap(Q Kᵀ · scale) + M), never formed      Vaswani et al. 2017, equation 1.

    It answers like the matrix, with the axes (…batch, heads, queries, keys): `weights @ x`,
    `weights.mT @ x`, rows, tiles, the diagonal, and what needs the whole of it. Each question
    is one pass over blocks of rows that fit into the processor's cache, so that memory grows
    with the number of tokens and not with its square. Answers are differentiable by q, k, x, a
    trained bias and sinks, again within that memory.

    q and k in half precision are computed with in float32, and every answer is in float32;
    float64 stays float64. A query that may look at nothing has weights of 0, an entropy of 0
    and a `logsumexp` of −∞. What is hidden from every query has no influence, NaN included.

    Args:
        q: queries; axes may be missing on the left down to (queries, d_k).
        k: keys; each of the kv_heads serves heads / kv_heads heads in a row (0 0 1 1).
        mask: who may look at whom.
        scale: by default 1 / √d_k.
        softcap: c · tanh(scaled / c) before the mask is added (Gemma 2, section 2).
        sinks: logits that take weight and give nothing, beside those of the keys: one number
            a head, or axes that broadcast to (…, heads, queries, number). The rows of the
            weights then sum to less than 1.

    Raises:
        ShapeError: axes do not fit each other.
        MaskError: the mask is no `Mask`, or does not fit.
        ArgumentError: dtypes differ, or a number is out of its range.
    """

    def __init__(
        self,
        q: Float[Tensor, "*batch_heads queries d_k"],
        k: Float[Tensor, "*batch_kv_heads keys d_k"],
        *,
        mask: Mask | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        """Check what was given; nothing is computed yet."""
        check_operands(q, k, mask, softcap)
        scale = q.shape[-1] ** -0.5 if scale is None else check_scale(scale)
        wide = torch.promote_types(q.dtype, torch.float32)
        q4, k4 = fused.four_axes(q).to(wide), fused.four_axes(k).to(wide)
        logits = Similarities(q4, k4, scale, softcap, mask, q.shape[:-3])
        self._hold(logits, q.shape[:-2], sinks)

    @classmethod
    def of(cls, logits: Logits, sinks: Tensor | None = None) -> "Weights":
        """Return the softmax of any other calculation of logits (batch, heads, queries, keys)."""
        if not isinstance(logits, Logits):
            raise ArgumentError(
                f"logits are a {type(logits).__name__}; wanted what has shape, dtype, device, "
                f"reach and tile (`qkv.weights.logits.Logits`); for q and k say Weights(q, k)"
            )
        weights = cls.__new__(cls)
        weights._hold(logits, torch.Size(logits.shape[:2]), sinks)
        return weights

    def _hold(self, logits: Logits, leading: torch.Size, sinks: Tensor | None) -> None:
        self._leading = leading
        total = None if sinks is None else joined(sinks, leading, logits)
        self._softmax = Softmax(logits, total)
        self._logsumexp: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """(…batch, heads, queries, keys), as far as q has these axes."""
        return torch.Size((*self._leading, *self._softmax.logits.shape[2:]))

    @property
    def dtype(self) -> torch.dtype:
        """That of every answer."""
        return self._softmax.logits.dtype

    @property
    def device(self) -> torch.device:
        """Where the answers are."""
        return self._softmax.logits.device

    def __repr__(self) -> str:
        return f"Weights{tuple(self.shape)}"

    def __getitem__(self, which: object) -> NoReturn:
        """Say what to ask instead: an index would form the matrix."""
        raise ArgumentError(
            f"weights[{which!r}] would form the matrix; wanted .head(h, batch), .rows(…), "
            f".tile(rows, columns), or .dense()[…] where it is small"
        )

    @property
    def mT(self) -> "Transposed":
        """The matrix with queries and keys exchanged, for `weights.mT @ x`."""
        return Transposed(self)

    @property
    def logsumexp(self) -> Float[Tensor, "*batch_heads queries"]:
        """ln Σ_j exp(logit_ij), sinks included; −∞ for a query that may look at nothing.

        Kept once computed, where nothing is trained.
        """
        if self._logsumexp is not None:
            return self._logsumexp
        (found,) = self._softmax.by_rows(lambda b: (asked_for(b.logsumexp),), keep="logsumexp")
        found = self._restored(found)
        if not self._softmax.trainable:
            self._logsumexp = found
        return found

    def __matmul__(
        self, x: Float[Tensor, "*axes keys width"]
    ) -> Float[Tensor, "*batch_heads queries width"]:
        """P X, for any width.

        Args:
            x: axes that broadcast to (…batch, heads or kv_heads, keys, width).

        Raises:
            ShapeError: x does not have a row for each key, or other batch axes or heads.
        """
        logits, values = self._softmax.logits, self._values(x, "keys")
        groups = logits.shape[1] // values.shape[1]
        if isinstance(logits, Similarities):
            if self._softmax.sinks is None and x.shape[-1]:
                with in_full(self.device):
                    return self._restored(logits.attend(values))
            values = logits.seen(values)
        values = values.repeat_interleave(groups, 1)

        def product(b: Block) -> tuple[Tensor]:
            across = slice(b.columns.start, b.columns.stop)
            return (b.weights @ values[b.examples, b.heads, across],)

        return self._restored(self._softmax.by_rows(product, values)[0])

    def transposed_product(
        self, x: Float[Tensor, "*axes queries width"]
    ) -> Float[Tensor, "*batch_heads keys width"]:
        """Pᵀ X: what `weights.mT @ x` calls."""
        values = self._values(x, "queries")

        def product(b: Block) -> tuple[Tensor]:
            rows = values[b.examples, b.heads, b.rows.start : b.rows.stop]
            return (rows.mT @ b.weights,)  # its transpose: the faster product

        return self._restored(self._softmax.by_columns(product, values)).mT

    def received(self) -> Float[Tensor, "*batch_heads keys"]:
        """Σ_i p_ij: how much each key is looked at, by all queries together."""

        def question(b: Block) -> tuple[Tensor]:
            ones = b.weights.new_ones(1, len(b.rows))
            return ((ones @ b.weights)[..., 0, :],)  # as a product: faster than a sum

        return self._restored(self._softmax.by_columns(question))

    def entropy(self) -> Float[Tensor, "*batch_heads queries"]:
        """−Σ_j p_ij ln p_ij in nats, never below 0.

        Over the keys alone: what goes to sinks is no part of the sum, nor are the rest scaled up.
        """
        (found,) = self._softmax.by_rows(lambda b: (asked_for(b.entropy),), keep="entropy")
        return self._restored(found)

    def diagonal(self, offset: int = 0) -> Float[Tensor, "*batch_heads length"]:
        """p_{i, i + offset}, as `torch.diagonal` counts it: offset −1 is the key before.

        With fewer queries than keys, where the last query stands at the last key, a query's own
        key is at offset = keys − queries.
        """
        offset, (queries, keys) = check_whole("offset", offset), self.shape[-2:]
        rows = range(max(0, -offset), max(0, -offset, min(queries, keys - offset)))

        def question(b: Block) -> tuple[Tensor]:
            return (along(b, range(b.rows.start + offset, b.rows.stop + offset)),)

        return self._restored(self._softmax.by_rows(question, rows=rows)[0])

    def top(self, k: int) -> Top:
        """Return the k strongest weights of every query and the keys that they go to.

        Where a query may look at fewer than k keys the rest are weights of 0, to other keys.

        Raises:
            ArgumentError: k is not from 1 to the number of keys.
        """
        keys = self.shape[-1]
        if not isinstance(k, int) or not 1 <= k <= keys:
            raise ArgumentError(f"top got k={k}; there are {keys} keys, wanted 1 to {keys}")

        def question(b: Block) -> tuple[Tensor, Tensor]:
            return strongest_keys(b, k, keys)

        return Top(*map(self._restored, self._softmax.by_rows(question)))

    def map(self, height: int = 64, width: int = 64) -> Float[Tensor, "*batch_heads height width"]:
        """Return the matrix made small: the mass on groups of keys, as groups of queries have it.

        Queries and keys are cut into runs of nearly equal length. An entry is the mean, over
        the queries of its run, of their weight on all the keys of its run, so rows sum to 1 as
        those of the matrix do. Sizes above those of the matrix are cut down to them.
        """
        regions = Regions.of(self._softmax, height, width)
        return self._restored(regions.map(self._softmax))

    def rows(self, i: int | range | slice) -> Float[Tensor, "..."]:
        """Return whole rows, (…, heads, rows, keys); without the axis of rows for an int."""
        found = self.tile(i, slice(None))
        return found if isinstance(i, range | slice) else found[..., 0, :]

    def tile(
        self, rows: int | range | slice, columns: int | range | slice
    ) -> Float[Tensor, "*batch_heads rows columns"]:
        """Return a part of the matrix; an int is a run of one.

        Raises:
            ArgumentError: rows or columns outside of the matrix, or in steps.
        """
        queries, keys = self.shape[-2:]
        down, across = run_of("rows", rows, queries), run_of("columns", columns, keys)

        def question(b: Block) -> tuple[Tensor]:
            return (crop(b.weights, b.columns, across),)

        return self._restored(self._softmax.by_rows(question, rows=down)[0])

    def dense(self, limit: int = DENSE) -> Float[Tensor, "*batch_heads queries keys"]:
        """Return the whole matrix.

        Raises:
            ArgumentError: it has more than `limit` numbers.
        """
        if (numbers := self.shape.numel()) > check_whole("limit", limit):
            size = numbers * self.dtype.itemsize / 1e9
            raise ArgumentError(
                f"the weights are {tuple(self.shape)}, {numbers:,} numbers in {size:.1f} GB; "
                f"wanted at most {limit:,}: ask for rows, a tile, map() or head(h), or pass "
                f"limit={numbers}"
            )
        return self.tile(slice(None), slice(None))

    def head(self, h: int, batch: int = 0) -> "Weights":
        """Return one head of one example, (1, 1, queries, keys).

        Args:
            h: number of the head.
            batch: number of the example, several batch axes counted as one.

        Raises:
            ArgumentError: there is no such head or example.
        """
        examples, heads = self._softmax.logits.shape[:2]
        for name, got, size in (("h", h, heads), ("batch", batch, examples)):
            check_whole(name, got)
            if not -size <= got < size:
                raise ArgumentError(f"head got {name}={got}; wanted 0 to {size - 1}")
        h, batch = h % heads, batch % examples
        logits = self._softmax.logits
        one: Logits = LogitsOfHead(logits, batch, h)
        if hasattr(logits, "head"):
            one = logits.head(batch, h)
        sinks = self._softmax.sinks
        return Weights.of(one, None if sinks is None else sinks[batch, h, None, None, :, None])

    def summary(
        self,
        *,
        top: int = 8,
        map: tuple[int, int] = (64, 64),
        valid: Bool[Tensor, "batch queries"] | None = None,
        separators: Bool[Tensor, "batch keys"] | None = None,
        words: Int[Tensor, "batch keys"] | None = None,
        offset: int | None = None,
    ) -> Summary:
        """Ask everything at once, in one pass; see `Summary`.

        Args:
            top: strongest weights of each query that are kept.
            map: height and width of the small map.
            valid: queries that are no padding; by default all.
            separators: keys that are.
            words: a number for each word, to find the same one again.
            offset: position of the first query along the keys; by default the last query stands
                at the last key.

        Raises:
            ShapeError: valid, separators or words do not fit the weights.
            ArgumentError: top or a size of the map is below 1; valid or separators are no booleans.
        """
        return summarise(
            self._softmax,
            top=top,
            map=map,
            valid=valid,
            separators=separators,
            words=words,
            offset=offset,
        )

    def _restored(self, answer: Tensor) -> Tensor:
        return answer.reshape(*self._leading, *answer.shape[2:])

    def _values(self, x: Tensor, axis: str) -> Float[Tensor, "batch heads_of_x tokens width"]:
        """Return x with four axes; its heads are those of the weights, or those of the keys."""
        logits, own = self._softmax.logits, check_real("x", x).shape[:-2]
        heads, tokens = logits.shape[1], self.shape[-1 if axis == "keys" else -2]
        keys = getattr(logits, "k", None)
        if keys is not None and axis == "keys" and own[-1:] == keys.shape[1:2]:
            heads = own[-1]  # one for each head of the keys
        wanted = (*self._leading[:-1], heads)[: len(self._leading)]
        fits = x.dim() >= 2 and x.shape[-2] == tokens and len(own) <= len(wanted)
        if not fits or any(n not in (1, m) for n, m in zip(own[::-1], wanted[::-1], strict=False)):
            raise ShapeError(
                f"x is {tuple(x.shape)}, the weights are {tuple(self.shape)}: wanted "
                f"{(*wanted, tokens)} and any width, one row for each of the {axis}"
            )
        x = x.to(self.dtype).expand(*wanted, *x.shape[-2:])
        return x.reshape(logits.shape[0], heads, *x.shape[-2:])


@dataclass(frozen=True)
class Transposed:
    """Keys × queries, for products from the left."""

    weights: Weights

    @property
    def mT(self) -> Weights:
        """The weights again."""
        return self.weights

    def __matmul__(
        self, x: Float[Tensor, "*axes queries width"]
    ) -> Float[Tensor, "*batch_heads keys width"]:
        """Pᵀ X.

        Args:
            x: axes that broadcast to (…batch, heads, queries, width).
        """
        return self.weights.transposed_product(x)
