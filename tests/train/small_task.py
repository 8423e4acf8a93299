"""A real task, small enough for tests: a language model of two layers on text drawn by a rule."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from qkv.models.decoder_only import DecoderOnly
from qkv.models.llama import LLAMA, LlamaConfig
from qkv.models.saving import save_folder
from qkv.nn.embedding import WordEmbedding
from qkv.nn.linear import Linear
from qkv.nn.norm import RMSNorm
from qkv.nn.rotary import Rotary
from qkv.nn.transformer import Decoder
from qkv.train.order import Examples, Order, Shuffled
from qkv.train.settings import Settings
from qkv.train.task import Task

VOCABULARY, TOKENS = 13, 11


@dataclass(frozen=True)
class Rows:
    """Texts of the same length; each token is to be told from those before it."""

    ids: Tensor
    lengths: Tensor

    @property
    def targets(self) -> int:
        return int((self.lengths - 1).sum())

    def to(self, device: torch.device) -> "Rows":
        return Rows(self.ids.to(device), self.lengths.to(device))


class SmallTask(Task[Rows]):
    """Each token is three times the one before and one more, or now and then any other."""

    name = "small"
    judged_by = "loss"
    higher_is_better = False

    def __init__(
        self, examples: int = 61, *, dropout: float = 0.0, tied: bool = True, n: int = 24
    ) -> None:
        random = np.random.default_rng(7)
        ids = np.empty((examples + 20, TOKENS), np.int64)
        ids[:, 0] = random.integers(VOCABULARY, size=len(ids))
        for at in range(1, TOKENS):
            other = random.integers(VOCABULARY, size=len(ids))
            ids[:, at] = np.where(random.random(len(ids)) < 0.1, other, ids[:, at - 1] * 3 + 1)
            ids[:, at] %= VOCABULARY
        self.ids, self.held_out = torch.from_numpy(ids[:examples]), torch.from_numpy(ids[examples:])
        self.lengths = torch.from_numpy(random.integers(2, TOKENS + 1, size=examples))
        self.dropout, self.tied, self.n = dropout, tied, n

    def describe(self) -> Mapping[str, Any]:
        return {
            "data": {"examples": len(self.ids), "tokens": TOKENS},
            "model": {"n": self.n, "tied": self.tied, "dropout": self.dropout},
        }

    @property
    def config(self) -> LlamaConfig:
        return LlamaConfig(
            VOCABULARY, self.n, 2, 3, 2 * self.n, TOKENS, tie_word_embeddings=self.tied
        )

    def model(self) -> nn.Module:
        decoder = Decoder(
            2, self.n, 3, 2 * self.n, cross=False, norm=lambda n: RMSNorm(n, eps=1e-6),
            norm_first=True, activation="silu", gated=True, bias=False, feed_forward_bias=False,
            rotary=Rotary(self.n // 3, 10_000.0), dropout=self.dropout,
        )  # fmt: skip
        head = None if self.tied else Linear(self.n, VOCABULARY, bias=False)
        words = WordEmbedding(VOCABULARY, self.n)
        nn.init.normal_(words.weight, std=0.02)
        return DecoderOnly(self.config, words, decoder, head=head, most=TOKENS)

    def order(self, batch: int, seed: int) -> Order:
        return Shuffled(len(self.ids), batch, seed)

    def batch(self, examples: Examples) -> Rows:
        return Rows(self.ids[examples], self.lengths[examples])

    def loss(self, model: nn.Module, batch: Rows, label_smoothing: float) -> Tensor:
        places = torch.arange(1, TOKENS, device=batch.ids.device)
        wanted = batch.ids[:, 1:].masked_fill(places >= batch.lengths[:, None], -100)
        logits = model(batch.ids[:, :-1])
        return cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), reduction="sum", label_smoothing=label_smoothing
        )

    def measure(self, model: nn.Module) -> Mapping[str, float]:
        logits = model(self.held_out[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), self.held_out[:, 1:].flatten())
        return {"loss": float(loss)}

    def samples(self, model: nn.Module) -> list[str]:
        logits = model(self.held_out[:2, :-1])
        return [" ".join(map(str, row.tolist())) for row in logits.argmax(-1)]

    def save(self, model: nn.Module, folder: Path) -> None:
        save_folder(model, LLAMA, folder)


def settings(**changes: Any) -> Settings:
    """Settings of a few steps."""
    usual: dict[str, Any] = {
        "steps": 24, "batch": 7, "learning_rate": 1e-2, "warmup": 5, "measure_every": 6,
        "save_every": 6, "seed": 3,
    }  # fmt: skip
    return Settings(**usual | changes)
