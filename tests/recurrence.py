"""Recurrent networks a second time, by NumPy in float64: one text at a time, no padding.

Written from the papers' equations and PyTorch's of the GRU; every step is a loop.
"""

import numpy as np
from torch import nn

from tests.reference import Array, array, softmax_rows

Numbers = dict[str, Array]


def numbers(module: nn.Module) -> Numbers:
    """The parameters of a module, by their names."""
    return {name: array(value) for name, value in module.state_dict().items()}


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def gru(p: Numbers, x: Array, states: list[Array], suffix: str = "") -> list[Array]:
    """One step of all layers, from the first upwards: their states after the input x.

    r = σ(W_r x + U_r h), z = σ(W_z x + U_z h), n = tanh(W_n x + r (U_n h)), h′ = (1 − z) n + z h
    """
    after = []
    for layer, h in enumerate(states):
        end = f"l{layer}{suffix}"
        W, U = p[f"weight_ih_{end}"], p[f"weight_hh_{end}"]
        inputs = W @ x + p[f"bias_ih_{end}"]
        hidden = U @ h + p[f"bias_hh_{end}"]
        (ir, iz, i_n), (hr, hz, h_n) = np.split(inputs, 3), np.split(hidden, 3)
        r, z = sigmoid(ir + hr), sigmoid(iz + hz)
        n = np.tanh(i_n + r * h_n)
        x = (1 - z) * n + z * h
        after.append(x)
    return after


def within(p: Numbers, name: str) -> Numbers:
    """The parameters below a name."""
    return {k.removeprefix(f"{name}."): v for k, v in p.items() if k.startswith(f"{name}.")}


def encode(p: Numbers, x: Array) -> tuple[Array, Array]:
    """The memory, and where the last layer's two directions end; p is of an encoder."""
    rnn = within(p, "rnn")
    layers = sum(name.startswith("weight_hh") for name in rnn) // 2
    for layer in range(layers):
        one = {k.replace(f"_l{layer}", "_l0"): v for k, v in rnn.items() if f"_l{layer}" in k}
        half = one["weight_hh_l0"].shape[1]
        forwards, backwards = [np.zeros(half)], [np.zeros(half)]
        for row in x:
            forwards.append(gru(one, row, [forwards[-1]])[0])
        for row in x[::-1]:
            backwards.append(gru(one, row, [backwards[-1]], "_reverse")[0])
        x = np.hstack([forwards[1:], backwards[:0:-1]])
        summary = np.hstack([forwards[-1], backwards[-1]])
    return x, summary


def similarity(p: Numbers, kind: str, state: Array, row: Array) -> float:
    if kind == "dot":
        return float(np.sum(state * row))
    bent = np.tanh(p["attention.WQ.weight"] @ state + p["attention.WK.weight"] @ row)
    return float(np.sum(p["attention.v.weight"][0] * bent))


def decode(
    p: Numbers, kind: str | None, y: Array, memory: Array, summary: Array
) -> tuple[Array, Array]:
    """What the next words are told by, and the weights; p is of a decoder."""
    rnn, n = within(p, "rnn"), len(summary)
    begun = np.tanh(p["start.weight"] @ summary + p["start.bias"])
    states = [begun[i : i + n] for i in range(0, len(begun), n)]
    outputs, weights = [], []

    def look() -> Array:
        e = np.array([[similarity(p, kind or "", states[-1], row) for row in memory]])
        weights.append(softmax_rows(e)[0])
        return np.sum([w * row for w, row in zip(weights[-1], memory, strict=True)], axis=0)

    for word in y:
        context = summary
        if kind == "additive":
            context = look()
        states = gru(rnn, word if kind == "dot" else np.hstack([word, context]), states)
        if kind == "dot":
            context = look()
        joined = np.hstack([context, states[-1]])
        outputs.append(np.tanh(p["mix.weight"] @ joined + p["mix.bias"]))
    return np.array(outputs), np.array(weights)


def logits(p: Numbers, kind: str | None, source: list[int], ids: list[int]) -> tuple[Array, Array]:
    """What a model tells of the token behind each, and its weights; p is of a whole model."""
    table = p["words.weight"]
    embedded = table * np.sqrt(table.shape[1])
    memory, summary = encode(within(p, "encoder"), embedded[source])
    outputs, weights = decode(within(p, "decoder"), kind, embedded[ids], memory, summary)
    return outputs @ table.T + p["logit_bias"], weights
