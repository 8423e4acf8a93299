"""Alignment: how the decoder of a recurrent network looks back at what its encoder read.

Two ways to compare a state of the decoder with a row of the memory: a small network (Bahdanau,
Cho and Bengio 2015) and the dot product (Luong, Pham and Manning 2015). What follows is the same:
the weights are a softmax, and the context is the rows of the memory mixed by them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.core.calculation import Calculation
from qkv.core.fused import attention
from qkv.core.mask import Mask
from qkv.core.operations import Operation
from qkv.core.steps import softmax
from qkv.core.working import Working
from qkv.errors import ShapeError
from qkv.nn.attending import positive

Labels = Sequence[str] | None


class Alignment(nn.Module, ABC):
    """c_i = Σ_j α_ij h_j with α_i = softmax_j(e_ij)        Bahdanau et al. 2015, eq. 5 and 6

    A way of aligning says what e_ij is: `similarities`.
    """

    title: str
    """What a written calculation is headed with."""

    @abstractmethod
    def keys(self, memory: Float[Tensor, "batch keys n_hidden"]) -> Float[Tensor, "batch keys d_k"]:
        """Return what each row of the memory is compared by; the same for all queries."""

    @abstractmethod
    def similarities(
        self,
        states: Float[Tensor, "batch queries n_hidden"],
        keys: Float[Tensor, "batch keys d_k"],
    ) -> Float[Tensor, "batch queries keys"]:
        """Return e_ij: how well state i and row j of the memory go together."""

    @abstractmethod
    def write(self, w: Working, states: str, memory: str) -> str:
        """Write down how the similarities come about; return the name of that step."""

    def weights(
        self,
        states: Float[Tensor, "batch queries n_hidden"],
        keys: Float[Tensor, "batch keys d_k"],
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch queries keys"]:
        """α = softmax(e), a row for each state

        Args:
            states: of the decoder.
            keys: what `keys` made of the memory.
            lengths: real rows of each memory; what stands behind them gets no weight.
        """
        e = self.similarities(states, keys)
        if lengths is not None:
            hidden = torch.arange(keys.shape[1], device=keys.device) >= lengths[:, None]
            e = e.masked_fill(hidden[:, None], -math.inf)
        return e.softmax(-1)

    def forward(
        self,
        states: Float[Tensor, "batch queries n_hidden"],
        memory: Float[Tensor, "batch keys n_hidden"],
        keys: Float[Tensor, "batch keys d_k"],
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch queries n_hidden"]:
        """Return the context of each state: the rows of the memory, mixed by its weights.

        The arguments are those of `weights`, and the memory that the keys were made of.
        """
        return self.weights(states, keys, lengths) @ memory

    @torch.no_grad()
    def explain(
        self,
        states: Float[Tensor, "queries n_hidden"],
        memory: Float[Tensor, "keys n_hidden"],
        *,
        tokens: Labels = None,
        key_tokens: Labels = None,
    ) -> Calculation:
        """Write down every step for one example, without padding.

        Args:
            states: of the decoder, one a row.
            memory: what the encoder made of the source.
            tokens, key_tokens: names of the rows of the two.

        Raises:
            ShapeError: not two matrices of the same width, or labels that do not fit.
        """
        if states.dim() != 2 or memory.dim() != 2 or states.shape[1] != memory.shape[1]:
            raise ShapeError(
                f"states are {tuple(states.shape)} and the memory is {tuple(memory.shape)}; wanted "
                f"two matrices as wide as each other"
            )
        w = Working(self.title)
        s = w.given("states", states, symbol="S", rows=tokens,
                    says="what the decoder knows when it looks: its queries")  # fmt: skip
        h = w.given("memory", memory, symbol="H", rows=key_tokens,
                    says="what the encoder made of each word of the source")  # fmt: skip
        weights = softmax(w, self.write(w, s, h), symbol="A")
        output = w.step(
            Operation.PRODUCT, "output", weights, h, symbol="A H",
            says="each row mixes the memory by its weights: the context of a word",
        )  # fmt: skip
        return w.finish({output: self(states[None], memory[None], self.keys(memory[None]))[0]})


class DotAttention(Alignment):
    """e_ij = s_i · h_j        Luong et al. 2015, section 3.1, "dot"

    softmax(S Hᵀ) H is attention with one head, nothing projected and nothing scaled: it runs as
    such, in one fused call for all queries, which `qkv.watch` sees.
    """

    title = "Alignment by dot product"

    def keys(
        self, memory: Float[Tensor, "batch keys n_hidden"]
    ) -> Float[Tensor, "batch keys n_hidden"]:
        """Return the memory as it is."""
        return memory

    def similarities(
        self,
        states: Float[Tensor, "batch queries n_hidden"],
        keys: Float[Tensor, "batch keys n_hidden"],
    ) -> Float[Tensor, "batch queries keys"]:
        """S Hᵀ"""
        return states @ keys.mT

    def forward(
        self,
        states: Float[Tensor, "batch queries n_hidden"],
        memory: Float[Tensor, "batch keys n_hidden"],
        keys: Float[Tensor, "batch keys n_hidden"],
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch queries n_hidden"]:
        """softmax(S Hᵀ) H"""
        mask = None if lengths is None else Mask.padding(lengths)
        q, k, v = states[:, None], keys[:, None], memory[:, None]  # one head
        return attention(q, k, v, mask, scale=1.0)[:, 0]

    def write(self, w: Working, states: str, memory: str) -> str:
        """Write down S Hᵀ."""
        return w.step(
            Operation.PRODUCT_TRANSPOSED, "similarities", states, memory, symbol="S Hᵀ",
            says="how alike each state and each row of the memory are: their dot product",
        )  # fmt: skip


class AdditiveAttention(Alignment):
    """e_ij = v · tanh(WQ s_i + WK h_j)        Bahdanau et al. 2015, appendix A.1.2

    The paper's W_a, U_a and v_a are WQ, WK and v.

    Args:
        n_hidden: values of a state, and of a row of the memory.
        d_k: values of the network in between; n_hidden by default.
    """

    title = "Additive alignment"

    def __init__(self, n_hidden: int, d_k: int | None = None) -> None:
        """Draw the weights: WQ, WK, v."""
        super().__init__()
        d_k = n_hidden if d_k is None else positive("d_k", d_k)
        self.WQ = nn.Linear(positive("n_hidden", n_hidden), d_k, bias=False)
        self.WK = nn.Linear(n_hidden, d_k, bias=False)
        self.v = nn.Linear(d_k, 1, bias=False)

    def keys(self, memory: Float[Tensor, "batch keys n_hidden"]) -> Float[Tensor, "batch keys d_k"]:
        """H WKᵀ"""
        keys: Tensor = self.WK(memory)
        return keys

    def similarities(
        self,
        states: Float[Tensor, "batch queries n_hidden"],
        keys: Float[Tensor, "batch keys d_k"],
    ) -> Float[Tensor, "batch queries keys"]:
        """v · tanh(WQ s_i + WK h_j), which is made for every pair of them"""
        bent = torch.tanh(self.WQ(states)[:, :, None] + keys[:, None])
        return self.v(bent)[..., 0]  # type: ignore[no-any-return]

    def write(self, w: Working, states: str, memory: str) -> str:
        """Write down the network, a section for each state."""
        places = [str(i + 1) for i in range(self.v.weight.shape[1])]
        for name, layer in (("WQ", self.WQ), ("WK", self.WK)):
            w.given(name, layer.weight, symbol=name, rows=places, says="changes in training")
        w.given("v", self.v.weight, symbol="v", rows=["v"], columns=places,
                says="says what each of the values in between counts")  # fmt: skip
        queries = w.step(Operation.PRODUCT_TRANSPOSED, "queries", states, "WQ", symbol="S WQᵀ",
                         says="the states, as they are compared")  # fmt: skip
        keys = w.step(Operation.PRODUCT_TRANSPOSED, "keys", memory, "WK", symbol="H WKᵀ",
                      says="the memory, as it is compared")  # fmt: skip
        labels = w.labels(queries)
        columns = [self._column(w, queries, keys, i) for i in range(len(labels))]
        across = w.step(Operation.CONCATENATE, "similarities by source", *columns, symbol="Eᵀ",
                        columns=labels, says="a column for each state")  # fmt: skip
        return w.step(Operation.TRANSPOSE, "similarities", across, symbol="E",
                      says="how well each state and each row of the memory fit")  # fmt: skip

    def _column(self, w: Working, queries: str, keys: str, i: int) -> str:
        """Write down the similarities of state i, one below the other."""
        section = f"state {i + 1}/"
        query = w.step(Operation.ROWS, f"{section}query", queries, symbol="q", selection=[i],
                       says="this state alone")  # fmt: skip
        sums = w.step(Operation.ADD, f"{section}sums", keys, query, symbol="K + q",
                      says="added to every row of the memory")  # fmt: skip
        bent = w.step(Operation.TANH, f"{section}bent", sums, symbol="tanh(K + q)",
                      says="bent: sums alone would rank the rows alike for all states")  # fmt: skip
        return w.step(Operation.PRODUCT_TRANSPOSED, f"{section}similarities", bent, "v",
                      symbol="e", says="one number a row: its dot product with v")  # fmt: skip
