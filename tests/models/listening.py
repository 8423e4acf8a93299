"""A small Whisper of random weights that can spell, and recordings that were made by formulas."""

import math
from collections.abc import Iterable
from dataclasses import replace

import tokenizers
import torch
from tokenizers import AddedToken, decoders, pre_tokenizers
from torch import Tensor

from qkv.models.language import WritingRules
from qkv.models.text.tokenizer import Tokenizer
from qkv.models.whisper import Marks, Whisper, WhisperConfig

WORDS = ["It", " was", " the", " best", " of", " times", ",", " worst", ".", "日", "本", " été"]


def spelling() -> tuple[Tokenizer, dict[str, int]]:
    """A tokenizer of bytes, of some words on top, and of the marks; and the numbers of all."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(characters)}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(word)[0][0]
        for end in range(2, len(letters) + 1):
            if letters[:end] not in vocabulary:
                vocabulary[letters[:end]] = len(vocabulary)
                merges.append((letters[: end - 1], letters[end - 1]))
    rules = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = decoders.ByteLevel()
    marks = ["<|start|>", "<|end|>", "<|notimestamps|>", "<|en|>", "<|fr|>"]
    rules.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    return Tokenizer(rules), rules.get_vocab()


def listener(positions: int = 50, most: int = 23, **marks: object) -> Whisper:
    """Return the model; its windows are as long as `positions` of 20 ms."""
    tokenizer, numbers = spelling()
    config = WhisperConfig(
        vocab_size=len(numbers), num_mel_bins=11, d_model=12, encoder_layers=2,
        encoder_attention_heads=3, encoder_ffn_dim=17, decoder_layers=2,
        decoder_attention_heads=2, decoder_ffn_dim=19, max_source_positions=positions,
        max_target_positions=most,
    )  # fmt: skip
    model = Whisper(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    model._tokenizer = tokenizer
    model.marks = replace(
        Marks(start=numbers["<|start|>"], no_timestamps=numbers["<|notimestamps|>"]), **marks
    )  # type: ignore[arg-type]
    end, known = numbers["<|end|>"], {tokenizer(word).ids[0] for word in WORDS}
    never = frozenset(numbers.values()) - known - {end}
    model.rules = WritingRules(model.marks.prompt(), frozenset({end}), end, never)
    return model.eval()


def spoken_at(times: Iterable[tuple[float, float]], seconds: float, rate: int = 16_000) -> Tensor:
    """Noise that is loud at some times, and very quiet at all others."""
    t = torch.arange(int(seconds * rate)) / rate
    loud = torch.zeros_like(t, dtype=torch.bool)
    for start, end in times:
        loud |= (t >= start) & (t < end)
    noise = torch.randn_like(t) * torch.sin(2 * math.pi * 140 * t)
    return torch.where(loud, 0.2, 1e-4) * noise
