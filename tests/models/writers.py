"""Tiny models that write: ours, and Hugging Face's of the same random weights; and a fake one."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor

from qkv.models import look
from qkv.models.family import make
from qkv.models.gpt2 import GPT2
from qkv.models.language import LanguageModel, WritingRules
from qkv.models.llama import LLAMA
from qkv.models.marian import MARIAN
from qkv.models.text.tokenizer import Tokenizer
from qkv.nn.cache import KeyValueCache

END = 3
VOCABULARY = 101


def llama(folder: Path, **sizes: Any) -> tuple[LanguageModel, Any]:
    """Make a Llama of unequal sizes, grouped heads and an untied head, in float64."""
    from transformers import LlamaConfig, LlamaForCausalLM

    values = {
        "vocab_size": VOCABULARY, "hidden_size": 30, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10,
        "intermediate_size": 37, "max_position_embeddings": 97, "tie_word_embeddings": False,
        "eos_token_id": END, "pad_token_id": 0, "bos_token_id": 1,
    }  # fmt: skip
    return both(LlamaForCausalLM(LlamaConfig(**(values | sizes))), LLAMA, folder)


def gpt2(folder: Path, **sizes: Any) -> tuple[LanguageModel, Any]:
    """Make a GPT-2 of unequal sizes, in float64."""
    from transformers import GPT2Config, GPT2LMHeadModel

    values = {
        "vocab_size": VOCABULARY, "n_embd": 21, "n_layer": 2, "n_head": 3, "n_inner": 35,
        "n_positions": 97, "eos_token_id": END, "pad_token_id": 0, "bos_token_id": 1,
    }  # fmt: skip
    return both(GPT2LMHeadModel(GPT2Config(**(values | sizes))), GPT2, folder, std=0.5)


def marian(folder: Path, **sizes: Any) -> tuple[Any, Any]:
    """Make a Marian of unequal sizes, in float64; its pad token begins texts, never written."""
    from transformers import MarianConfig, MarianMTModel

    values = {
        "vocab_size": VOCABULARY, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3,
        "encoder_attention_heads": 3, "decoder_attention_heads": 4, "encoder_ffn_dim": 19,
        "decoder_ffn_dim": 29, "max_position_embeddings": 97, "activation_function": "swish",
        "scale_embedding": True, "eos_token_id": END, "pad_token_id": VOCABULARY - 1,
        "decoder_start_token_id": VOCABULARY - 1, "forced_eos_token_id": END,
    }  # fmt: skip
    model = MarianMTModel(MarianConfig(**(values | sizes)))
    model.generation_config.bad_words_ids = [[VOCABULARY - 1]]
    model.generation_config.forced_eos_token_id = END
    return both(model, MARIAN, folder, std=0.8)


def both(theirs: Any, family: Any, folder: Path, std: float = 0.35) -> tuple[Any, Any]:
    """Draw weights such that texts do not only repeat themselves; return both models."""
    theirs = theirs.double().eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if not parameter.requires_grad:
                continue  # positions that are computed stay as they are
            norm = ("norm" in name or "ln_" in name) and name.endswith("weight")
            small = 0.1 if name.endswith("bias") else 0.2 if "wte" in name else std
            parameter.normal_(mean=float(norm), std=small)
    theirs.save_pretrained(folder)
    return make(family, look(folder), torch.float64, "cpu"), theirs


def prompts(lengths: Sequence[int], seed: int = 0, start: int = 4) -> list[list[int]]:
    """Draw prompts without special tokens."""
    numbers = torch.Generator().manual_seed(seed)
    return [torch.randint(start, VOCABULARY, (n,), generator=numbers).tolist() for n in lengths]


@torch.no_grad()
def theirs_writes(
    model: Any, rows: Sequence[Sequence[int]], *, source: Any = None, **options: Any
) -> Any:
    """Return what Hugging Face's `generate` gives, without the prompts and what fills rows up."""
    width, pad = max(map(len, rows)), model.config.pad_token_id
    ids = torch.tensor([[pad] * (width - len(row)) + list(row) for row in rows])
    real = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    options = {"do_sample": False, "return_dict_in_generate": True, "output_scores": True} | options
    if source is None:
        found = model.generate(ids, attention_mask=real, **options)
    else:
        found, width = model.generate(**source, **options), 1
    return found, [cut(row[width:].tolist(), model) for row in found.sequences]


def cut(ids: list[int], model: Any) -> tuple[int, ...]:
    """Return ids up to the first that ends texts, itself included."""
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    found = next((i + 1 for i, number in enumerate(ids) if number in ends), len(ids))
    return tuple(ids[:found])


class Fake(LanguageModel):
    """Writes what it is told: the logits of a row are `choose` of all the ids that it has read.

    It keeps them where other models keep keys and values, so that a cache that is reordered
    wrongly, or padding that is read, shows.
    """

    def __init__(
        self,
        choose: Callable[[list[int]], Sequence[float]],
        *,
        rules: WritingRules | None = None,
        tokenizer: Tokenizer | None = None,
        most: int | None = None,
    ) -> None:
        super().__init__()
        self.choose, self.most, self.num_layers = choose, most, 1
        self.rules = WritingRules() if rules is None else rules
        self._tokenizer = tokenizer
        self.reads: list[tuple[int, ...]] = []

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def next(self, ids: Tensor, cache: KeyValueCache, lengths: Any = None) -> Tensor:
        self.reads.append(tuple(ids.shape))
        kept = ids[:, None, :, None].double()
        read = cache.layers[0].own.extend(kept, kept)[0][:, 0, :, 0].long().tolist()
        start = [0] * len(read) if cache.start is None else cache.start.tolist()
        rows = [self.choose(row[n:]) for row, n in zip(read, start, strict=True)]
        return torch.tensor(rows, dtype=torch.float64)


def scripted(
    scripts: dict[tuple[int, ...], Sequence[int]], size: int
) -> Callable[[list[int]], list[float]]:
    """Let a fake write after each prompt what stands in its script, then nothing but token 0."""

    def choose(ids: list[int]) -> list[float]:
        for prompt, script in scripts.items():
            if tuple(ids[: len(prompt)]) == prompt:
                written = len(ids) - len(prompt)
                token = script[written] if written < len(script) else 0
                return [5.0 * (number == token) for number in range(size)]
        return [float("nan")] * size  # a row has read what is not its own

    return choose


def whimsical(size: int, seed: int = 0) -> Callable[[list[int]], list[float]]:
    """Let a fake's logits be random numbers, others for each text that it has read."""

    def choose(ids: list[int]) -> list[float]:
        numbers = random.Random(f"{seed} {ids}")
        return [numbers.gauss(0, 1.5) for _ in range(size)]

    return choose


def byte_tokenizer(*merges: str) -> Tokenizer:
    """Make a byte-level tokenizer: a token for each byte, and for each of these merges."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1} | {letter: i + 2 for i, letter in enumerate(alphabet)}
    pairs = []
    for merge in merges:
        left, right = merge.split()
        pairs.append((left, right))
        vocabulary.setdefault(left + right, len(vocabulary))
    rules = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=pairs))
    rules.add_special_tokens(["<s>", "</s>"])
    rules.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(rules)
