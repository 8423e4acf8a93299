"""What stands before the text that is written: checked, padded on the left, and read."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.errors import ArgumentError, ModelError
from qkv.models.language import LanguageModel
from qkv.models.text.tokenizer import Tokenizer
from qkv.models.writing.options import Sampling
from qkv.nn.cache import KeyValueCache

Prompt = Sequence[int]


def checked(
    model: LanguageModel, prompts: Sequence[Prompt], cache: KeyValueCache | None
) -> list[Prompt]:
    """Return the prompts; what texts of the model begin with stands for an empty one.

    Raises:
        ArgumentError: no prompts, one without a token or with more than the model has positions
            for, one that holds no numbers of tokens, a cache that does not fit, or none where the
            model writes from what an encoder read.
    """
    if isinstance(prompts, str) or not prompts:
        raise ArgumentError(f"prompts is {prompts!r}; wanted the tokens of one or more texts")
    if model.from_source is not None and (cache is None or cache.memory is None):
        raise ArgumentError(
            f"a {type(model).__name__} writes from what its encoder has read, and there is none: "
            f"call {model.from_source}, or say cache=model.read(source)"
        )
    rows = [_row(i, prompt, model) for i, prompt in enumerate(prompts)]
    if cache is not None and cache.length:
        raise ArgumentError(f"the cache has read {cache.length} tokens already; wanted a fresh one")
    if cache is not None and cache.memory is not None and len(cache.memory) != len(rows):
        raise ArgumentError(
            f"there are {len(rows)} prompts, and the cache remembers {len(cache.memory)} sources; "
            f"wanted one prompt for each source"
        )
    return rows


def limits(model: LanguageModel, prompts: Sequence[Prompt], sampling: Sampling) -> list[int]:
    """Return how many tokens each row may write: the last one is not read, and needs no place."""
    most = sampling.max_tokens
    if model.most is None:
        return [most] * len(prompts)
    return [min(most, model.most - len(prompt) + 1) for prompt in prompts]


def room(model: LanguageModel, prompts: Sequence[Prompt], most: Sequence[int]) -> KeyValueCache:
    """Return a cache for the prompts and all that may be written, at most `most` on each row."""
    return model.new_cache(max(map(len, prompts)) + max(most) - 1)


def found_tokenizer(model: LanguageModel) -> Tokenizer | None:
    """Return the tokenizer of a model, or None where its folder had none."""
    try:
        return model.tokenizer
    except ModelError:
        return None


def read(
    model: LanguageModel, prompts: Sequence[Prompt], cache: KeyValueCache, chunk: int
) -> Float[Tensor, "rows vocabulary"]:
    """Read the prompts, so many tokens at a time; return the logits of what may follow each."""
    width = max(map(len, prompts))
    padding = [width - len(prompt) for prompt in prompts]
    rows = [[model.rules.pad] * n + list(row) for n, row in zip(padding, prompts, strict=True)]
    ids = torch.tensor(rows, device=model.device)
    if any(padding):  # of all chunks together, so `lengths` of the first cannot say it
        cache.start = torch.tensor(padding, device=model.device)
    for start in range(0, width, chunk):
        logits = model.next(ids[:, start : start + chunk], cache)
    return logits


def exact(logits: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows vocabulary"]:
    """Return logits in float32 at least: half as many digits would make ties of many tokens."""
    return logits.float() if logits.element_size() < 4 else logits


def no_numbers(place: int) -> ModelError:
    """Return the error of logits that are no numbers; `place` counts the tokens before."""
    return ModelError(
        f"the logits of token {place} are not numbers: the weights are broken, or the dtype is too "
        f"small for them"
    )


def all_forbidden() -> ModelError:
    """Return the error of rules that leave nothing to be written."""
    return ModelError("no token may be written: the model's rules forbid all of them")


def _row(i: int, prompt: Prompt, model: LanguageModel) -> Prompt:
    listed = isinstance(prompt, Sequence) and not isinstance(prompt, str)
    if not listed or not all(type(number) is int for number in prompt):
        raise ArgumentError(f"prompt {i} is {prompt!r}; wanted the numbers of its tokens")
    tokens = tuple(prompt) or model.rules.starts
    if not tokens:
        raise ArgumentError(f"prompt {i} is empty: the model wants a token to begin with")
    if model.most is not None and len(tokens) > model.most:
        raise ArgumentError(
            f"prompt {i} has {len(tokens)} tokens, the model has {model.most} positions: "
            f"choose a shorter prompt"
        )
    return tokens
