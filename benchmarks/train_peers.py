"""Who trains beside us: Hugging Face's `Trainer`, a plain loop, and two models of plain PyTorch."""

import tempfile
import time
from collections.abc import Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from qkv.train.schedule import learning_rate
from qkv.train.settings import Settings
from qkv.train.tasks.language import Language

Seconds = list[float]


class PlainModel(nn.Module):
    """The encoder layers of PyTorch under a causal mask: as wide, as deep, with as many numbers."""

    def __init__(self, task: Language) -> None:
        """Draw the weights; two matrices of 4 n here are three of 8/3 n in SwiGLU."""
        super().__init__()
        sizes, n = task.config, task.config.hidden_size
        self.words = nn.Embedding(sizes.vocab_size, n)
        self.places = nn.Parameter(torch.randn(task.context, n) * 0.02)
        layer = nn.TransformerEncoderLayer(
            n, sizes.num_attention_heads, 4 * n, dropout=0.0, activation="gelu",
            batch_first=True, norm_first=True, bias=False,
        )  # fmt: skip
        self.tower = nn.TransformerEncoder(
            layer, sizes.num_hidden_layers, nn.LayerNorm(n), enable_nested_tensor=False
        )
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(task.context))
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits."""
        x = self.tower(self.words(ids) + self.places, mask=self.mask, is_causal=True)
        return F.linear(x, self.words.weight)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, n: int, heads: int) -> None:
        """Draw the weights."""
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(n, bias=False), nn.LayerNorm(n, bias=False)
        self.qkv, self.out = nn.Linear(n, 3 * n, bias=False), nn.Linear(n, n, bias=False)
        self.up, self.down = nn.Linear(n, 4 * n, bias=False), nn.Linear(4 * n, n, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return as many rows."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class SmallGPT(nn.Module):
    """GPT-2 in small (Radford et al. 2019): learned places, LayerNorm, GELU, one table of words."""

    def __init__(self, task: Language) -> None:
        """Draw the weights as GPT-2 does."""
        super().__init__()
        sizes, n = task.config, task.config.hidden_size
        self.words, self.places = nn.Embedding(sizes.vocab_size, n), nn.Embedding(task.context, n)
        self.blocks = nn.ModuleList(
            Block(n, sizes.num_attention_heads) for _ in range(sizes.num_hidden_layers)
        )
        self.norm = nn.LayerNorm(n, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                last = name.endswith(("out.weight", "down.weight"))
                std = 0.02 * (2 * len(self.blocks)) ** -0.5 if last else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits."""
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.words.weight)


def plain_steps(model: nn.Module, task: Language, settings: Settings) -> Iterator[float]:
    """Train a model step by step, as one writes it down; gives when each step ended."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = AdamW(
        groups, settings.learning_rate, settings.betas, weight_decay=settings.weight_decay,
        fused=True,
    )  # fmt: skip
    batches = task.order(settings.batch, settings.seed).batches()
    for step, examples in enumerate(islice(batches, settings.steps)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, settings)
        batch = task.batch(examples)
        logits = model(batch.ids)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.following.flatten())
        loss.backward()
        clip_grad_norm_(model.parameters(), settings.clip or 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        yield time.perf_counter()


class Pieces(torch.utils.data.Dataset[dict[str, Tensor]]):
    """The windows of all steps in a row; `Trainer`'s model moves labels by one itself."""

    def __init__(self, task: Language, settings: Settings) -> None:
        """Look up which they are."""
        steps = islice(task.order(settings.batch, settings.seed).batches(), settings.steps)
        self._task, self._places = task, [place for batch in steps for place in batch.tolist()]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        ids = self._task.training.windows([self._places[number]], self._task.context)[0]
        row = torch.from_numpy(ids)
        return {"input_ids": row, "labels": row}


def ends_of_theirs(task: Language, settings: Settings) -> Seconds:
    """Train Hugging Face's Llama of the same sizes by its `Trainer`; return when steps ended."""
    import transformers

    transformers.logging.set_verbosity_error()
    sizes, ends = task.config, Seconds()

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]  # untyped
        def on_step_end(self, *_: object, **__: object) -> None:
            ends.append(time.perf_counter())

    config = transformers.LlamaConfig(
        vocab_size=sizes.vocab_size, hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size, num_hidden_layers=sizes.num_hidden_layers,
        num_attention_heads=sizes.num_attention_heads, max_position_embeddings=task.context + 1,
        tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, max_steps=settings.steps, per_device_train_batch_size=settings.batch,
            learning_rate=settings.learning_rate, weight_decay=settings.weight_decay,
            adam_beta1=settings.betas[0], adam_beta2=settings.betas[1], adam_epsilon=1e-8,
            max_grad_norm=settings.clip or 1.0, warmup_steps=settings.warmup,
            lr_scheduler_type="cosine", optim="adamw_torch_fused",
            train_sampling_strategy="sequential",
            save_strategy="no", eval_strategy="no", logging_strategy="no", report_to="none",
            disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
        pieces = Pieces(task, settings)
        transformers.Trainer(model, arguments, train_dataset=pieces, callbacks=[Clock()]).train()
    return ends
