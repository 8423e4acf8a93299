"""Small inputs of every kind: padded sentences, pictures, sounds. The same ones at every call."""

import torch
from torch import Tensor

Inputs = dict[str, Tensor]

BATCH, TOKENS, DECODED, VOCABULARY = 3, 9, 5, 101
PADDED = 3
"""Tokens that are padding in the second sentence: on the right for encoders, on the left for
decoders, as they are used."""


def _random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _words(tokens: int, seed: int) -> Tensor:
    ids = torch.arange(5, VOCABULARY)  # the first are special in many vocabularies
    at = torch.randint(len(ids), (BATCH, tokens), generator=torch.Generator().manual_seed(seed))
    return ids[at]


def _real(tokens: int, left: bool) -> Tensor:
    real = torch.ones(BATCH, tokens, dtype=torch.long)
    real[1, :PADDED] = 0
    return real if left else real.flip(-1)


def sentences() -> Inputs:
    """Sentences for an encoder; the second one is padded on the right."""
    return {"input_ids": _words(TOKENS, 2), "attention_mask": _real(TOKENS, left=False)}


def prompts() -> Inputs:
    """Sentences for a decoder; the second one is padded on the left."""
    return {"input_ids": _words(TOKENS, 2), "attention_mask": _real(TOKENS, left=True)}


def translations() -> Inputs:
    """Padded sentences, and the beginnings of their translations."""
    return {**sentences(), "decoder_input_ids": _words(DECODED, 3)}


def whole_sentences() -> Inputs:
    """Sentences of one length: for models that take no mask."""
    return {"input_ids": _words(TOKENS - 1, 2)}


def documents() -> Inputs:
    """Sentences that are long enough for twelve blocks of four words."""
    return {"input_ids": _words(48, 2)}


def pictures(side: int = 32) -> Inputs:
    """Pictures of three colours."""
    return {"pixel_values": _random(BATCH, 3, side, side)}


def large_pictures() -> Inputs:
    """Pictures of twice the side."""
    return pictures(64)


def captions() -> Inputs:
    """Padded sentences, each with a picture."""
    return {**sentences(), **pictures()}


def films() -> Inputs:
    """Four pictures each."""
    return {"pixel_values": _random(BATCH, 4, 3, 32, 32)}


def sounds() -> Inputs:
    """Four hundred samples of air pressure each."""
    return {"input_values": _random(BATCH, 400)}


def spectrograms() -> Inputs:
    """Eight frequencies at forty times, and the beginnings of the texts."""
    return {"input_features": _random(BATCH, 8, 40), "decoder_input_ids": _words(DECODED, 3)}


def spoken_frames() -> Inputs:
    """Forty times with eight frequencies, and the beginnings of the texts."""
    return {"input_features": _random(BATCH, 40, 8), "decoder_input_ids": _words(DECODED, 3)}


def features() -> Inputs:
    """Rows of numbers, with no words or pictures behind them."""
    return {"inputs": _random(BATCH, TOKENS, 32)}
