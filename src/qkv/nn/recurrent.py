"""Recurrent networks: an encoder that reads word by word, and three decoders that write so.

The first passes on a single vector (Cho et al. 2014; Sutskever, Vinyals and Le 2014), the second
looks back before each word (Bahdanau, Cho and Bengio 2015), the third after it (Luong, Pham and
Manning 2015). The sizes and all else are alike, so that what differs is how they look.
"""

from typing import Literal, NamedTuple, TypeVar, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from qkv.errors import ArgumentError
from qkv.nn.alignment import AdditiveAttention, Alignment, DotAttention
from qkv.nn.attending import positive, probability
from qkv.nn.cache import KeyValueCache

Attending = Literal["additive", "dot"]

Rows = TypeVar("Rows", Tensor, PackedSequence)


class Source(NamedTuple):
    """What a decoder knows of a text that was read.

    Attributes:
        memory: one row a word; without attention a single row for the whole text.
        keys: what the rows are compared by; without attention the memory itself.
        lengths: real rows of each text, or None where all are.
    """

    memory: Float[Tensor, "batch keys n_hidden"]
    keys: Float[Tensor, "batch keys d_k"]
    lengths: Int[Tensor, "batch"] | None


class Decoded(NamedTuple):
    """What a decoder makes of a text.

    Attributes:
        output: h̃, what each next word is told by.
        queries: the states with which it looked at the source.
        last: the states after the last word, a layer after the other.
    """

    output: Float[Tensor, "batch tokens n_embed"]
    queries: Float[Tensor, "batch tokens n_hidden"]
    last: Float[Tensor, "layers batch n_hidden"]


class RecurrentEncoder(nn.Module):
    """h_j = [h→_j; h←_j]: every word with what stands before and behind it

    Bahdanau et al. 2015, section 3.2: two gated networks (GRU, Cho et al. 2014), one a direction.

    Args:
        n_embed: values a word.
        n_hidden: values of a row of the memory: half of them from each direction.
        num_layers: networks on top of each other.
        dropout: probability that a value between two layers is dropped in training.

    Raises:
        ArgumentError: a size that is odd or below 1.
    """

    def __init__(
        self, n_embed: int, n_hidden: int, num_layers: int = 1, *, dropout: float = 0.0
    ) -> None:
        """Draw the weights."""
        super().__init__()
        if positive("n_hidden", n_hidden) % 2:
            raise ArgumentError(f"n_hidden is {n_hidden}; wanted an even number, half a direction")
        self.rnn = _gru(n_embed, n_hidden // 2, num_layers, dropout, bidirectional=True)

    def forward(
        self, x: Float[Tensor, "batch keys n_embed"], lengths: Int[Tensor, "batch"] | None = None
    ) -> tuple[Float[Tensor, "batch keys n_hidden"], Float[Tensor, "batch n_hidden"]]:
        """Return the memory, and the single vector: where both directions end, side by side.

        Args:
            x: words, padded on the right.
            lengths: real words of each row; the memory is 0 behind them.
        """
        if lengths is None:
            memory, ends = _run(self.rnn, x)
        else:
            counts = lengths.to("cpu", torch.int64)
            packed = pack_padded_sequence(x, counts, batch_first=True, enforce_sorted=False)
            rows, ends = _run(self.rnn, packed)
            memory, _ = pad_packed_sequence(rows, batch_first=True, total_length=x.shape[1])
        return memory, torch.cat((ends[-2], ends[-1]), dim=-1)


class RecurrentDecoder(nn.Module):
    """h̃_t = tanh(W [c_t; s_t])        Luong et al. 2015, equation 5

    The state s_t, and the context c_t that it goes with, are

        None          s_t = GRU(s_{t−1}, [y_t; c]), c the single vector      Cho et al. 2014, A.1.2
        "additive"    s_t = GRU(s_{t−1}, [y_t; c_t]), c_t by s_{t−1}         Bahdanau et al., A.2.2
        "dot"         s_t = GRU(s_{t−1}, y_t), c_t by s_t                    Luong et al., figure 2

    with y_t the word that was written last, and s_0 = tanh(W_s c) of the single vector in all of
    them. Where the context does not wait for the states (None and "dot"), a text is read by one
    call. "additive" goes word by word as its paper has it, since c_t is part of what s_t is made
    of; what each of them costs is mostly v · tanh(…) of every pair, which is the same either way.

    Args:
        n_embed: values a word, and of h̃.
        n_hidden: values of a state, and of a row of the memory.
        num_layers: networks on top of each other; it is the last one's state that looks.
        attention: how it looks at the source: None, "additive" or "dot".
        dropout: probability that a value between two layers is dropped in training.

    Raises:
        ArgumentError: a size below 1, or another kind of attention.
    """

    def __init__(
        self,
        n_embed: int,
        n_hidden: int,
        num_layers: int = 1,
        *,
        attention: Attending | None = None,
        dropout: float = 0.0,
    ) -> None:
        """Draw the weights."""
        super().__init__()
        self.attention = _alignment(attention, n_hidden)
        fed = 0 if attention == "dot" else n_hidden  # of the context, in what a step reads
        self.rnn = _gru(n_embed + fed, n_hidden, num_layers, dropout)
        self.start = nn.Linear(n_hidden, num_layers * n_hidden)
        self.mix = nn.Linear(2 * n_hidden, n_embed)

    def source(
        self,
        memory: Float[Tensor, "batch keys n_hidden"],
        summary: Float[Tensor, "batch n_hidden"],
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Source:
        """Return what is kept of what the encoder gave: without attention, the single vector."""
        if self.attention is None:
            return Source(summary[:, None], summary[:, None], None)
        return Source(memory, self.attention.keys(memory), lengths)

    def begin(
        self, summary: Float[Tensor, "batch n_hidden"]
    ) -> Float[Tensor, "layers batch n_hidden"]:
        """s_0 = tanh(W_s c)        Bahdanau et al. 2015, appendix A.2.2"""
        states: Tensor = torch.tanh(self.start(summary))
        by_layer: Tensor = states.unflatten(-1, (-1, summary.shape[-1])).transpose(0, 1)
        return by_layer.contiguous()

    def forward(
        self,
        y: Float[Tensor, "batch tokens n_embed"],
        source: Source,
        states: Float[Tensor, "layers batch n_hidden"],
    ) -> Decoded:
        """Read words, each of which stands before the one that is to be told.

        Args:
            y: the words.
            source: what `source` gave.
            states: what `begin` gave, or the last ones of what was read before.
        """
        match self.attention:
            case AdditiveAttention():
                read, queries, contexts, last = self._step_by_step(y, source, states)
            case None:
                contexts = source.memory.expand(-1, y.shape[1], -1)
                read, last = _run(self.rnn, torch.cat((y, contexts), dim=-1), states)
                queries = read
            case alignment:
                read, last = _run(self.rnn, y, states)
                queries, contexts = read, alignment(read, *source)
        output = torch.tanh(self.mix(torch.cat((contexts, read), dim=-1)))
        return Decoded(output, queries, last)

    def _step_by_step(
        self, y: Tensor, source: Source, states: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Look with the state that each word finds, and read word and context together."""
        assert self.attention is not None
        read: list[Tensor] = []
        queries: list[Tensor] = []
        contexts: list[Tensor] = []
        for word in y.split(1, dim=1):
            query = states[-1][:, None]
            context = self.attention(query, *source)
            state, states = _run(self.rnn, torch.cat((word, context), dim=-1), states)
            for kept, new in ((read, state), (queries, query), (contexts, context)):
                kept.append(new)
        return torch.cat(read, 1), torch.cat(queries, 1), torch.cat(contexts, 1), states


class StateCache(KeyValueCache):
    """What a recurrent decoder keeps of what was read: a state a layer, however long the text is.

    What it knows of the source is in `memory`, `memory_lengths` and, as keys and values, in the
    first layer.

    Args:
        source: what the decoder looks at.
        states: with which it begins.
    """

    def __init__(self, source: Source, states: Float[Tensor, "layers batch n_hidden"]) -> None:
        """Nothing has been read yet."""
        super().__init__(len(states))
        self.memory, self.memory_lengths = source.memory, source.lengths
        self.layers[0].cross.extend(source.keys, source.memory)
        self.states, self._length = states, 0

    @property
    def source(self) -> Source:
        """What the decoder looks at."""
        keys, memory = self.layers[0].cross.read()
        return Source(memory, keys, self.memory_lengths)

    @property
    def length(self) -> int:
        """Tokens read so far, padding included."""
        return self._length

    def keep(self, states: Float[Tensor, "layers batch n_hidden"], tokens: int) -> None:
        """Go on from these states, after so many more tokens."""
        self.states, self._length = states, self._length + tokens

    def cut(self, length: int) -> None:
        """Refuse to forget: a state holds all that was read, and gives none of it back.

        Raises:
            ArgumentError: fewer tokens than were read, or more.
        """
        if length != self._length:
            raise ArgumentError(
                f"length is {length}, but a state of {self._length} tokens stays so"
            )

    def reorder(self, rows: Int[Tensor, "beams"], *, memory: bool = True) -> None:
        """Let row i go on from what row rows[i] has read; see `KeyValueCache`."""
        super().reorder(rows, memory=memory)
        self.states = self.states[:, rows]


def _alignment(kind: str | None, n_hidden: int) -> Alignment | None:
    if kind is not None and kind not in get_args(Attending):
        known = ", ".join(map(repr, get_args(Attending)))
        raise ArgumentError(f"attention is {kind!r}; wanted {known} or None")
    if kind is None:
        return None
    return AdditiveAttention(n_hidden) if kind == "additive" else DotAttention()


def _gru(
    n_inputs: int, n_hidden: int, num_layers: int, dropout: float, *, bidirectional: bool = False
) -> nn.GRU:
    sizes = {"n_embed": n_inputs, "n_hidden": n_hidden, "num_layers": num_layers}
    for name, number in sizes.items():
        positive(name, number)
    dropped = probability("dropout", dropout)
    between = dropped if num_layers > 1 else 0.0
    return nn.GRU(
        n_inputs, n_hidden, num_layers, batch_first=True, dropout=between,
        bidirectional=bidirectional,
    )  # fmt: skip


def _run(rnn: nn.GRU, x: Rows, states: Tensor | None = None) -> tuple[Rows, Tensor]:
    """Run a network in the precision of its weights: its state adds up what all words leave."""
    weight = next(rnn.parameters())
    with torch.autocast(weight.device.type, enabled=False):
        given = x.to(weight.dtype), None if states is None else states.to(weight.dtype)
        rows, last = rnn(*given)
    return rows, last
