"""Classify: an encoder reads a text, and one linear layer on top says which label it has.

The encoder begins from scratch, with tokens made of the texts; or it is a loaded one, such as
MiniLM, with its own tokens: tuned as a whole, or left as it is.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from qkv.errors import ArgumentError
from qkv.models.bert import Bert, BertConfig
from qkv.models.classifier import CLASSIFIER, Classifier, ClassifierConfig
from qkv.models.formats.files import Unwritten
from qkv.models.saving import save_folder
from qkv.models.text.tokenizer import Tokenizer
from qkv.train.data.faults import Faults
from qkv.train.data.fingerprint import Fingerprint
from qkv.train.data.held_out import held_out
from qkv.train.data.labelled import LabelledText, numbered
from qkv.train.order import Examples, OfLikeLength, Order
from qkv.train.settings import Settings
from qkv.train.targets import nats
from qkv.train.task import Task, Tensors
from qkv.train.vocabulary import trained_bpe

HELD_OUT = 0.2

FEWEST = 3
"""Texts of a label of which one can be held out."""

AT_ONCE = 64
"""Texts that are tried at once in a measure."""

SHOWN = 4
"""Texts that are shown with what they were found to be."""

SPREAD = 0.02
"""Standard deviation of an embedding's numbers, from scratch."""

BEGIN, END = "[CLS]", "[SEP]"
"""Stand around a text."""

NO_DATA = (
    "data is missing: no labelled texts are built in. Wanted a file with a text and its label in "
    "every row: --data reviews.tsv"
)


@dataclass(frozen=True)
class TextBatch(Tensors):
    """Texts in tokens, padded on the right, and the numbers of their labels."""

    ids: Int[Tensor, "batch tokens"]
    lengths: Int[Tensor, "batch"]
    labels: Int[Tensor, "batch"]

    @property
    def targets(self) -> int:
        """How many texts are judged."""
        return len(self.labels)


Places = Sequence[tuple[str, int]]
"""Where texts stand: files and lines."""


class Encoding(NamedTuple):
    """What the classifier stands on.

    Attributes:
        config: sizes of the encoder.
        tokenizer: cuts text into its tokens.
        bert: with its weights, where it was loaded.
        name: of what was loaded; None from scratch.
    """

    config: BertConfig
    tokenizer: Tokenizer
    bert: Bert | None = None
    name: str | None = None


class Classify(Task[TextBatch]):
    """The label of a text; a batch is so many tokens, padding counted.

    Args:
        texts: with their labels.
        data: what they are, as JSON.
        encoding: what the classifier stands on.
        places: where each text stands, by file and line, for the errors.
        frozen: whether that is left as it is.
        dropout: of what is trained.
        longest: tokens at which a text is cut.
        seed: of what is held out.

    Raises:
        ArgumentError: fewer than two labels, or a label of a single text.
        LinesError: texts in which the encoder finds no token; names them all.
    """

    name = "classify"
    judged_by = "accuracy"
    usual: ClassVar[Settings] = Settings(
        steps=800, batch=1024, learning_rate=1e-3, weight_decay=0.05, measure_every=100,
        save_every=400,
    )  # fmt: skip
    """From scratch."""

    def __init__(
        self,
        texts: Sequence[LabelledText],
        data: Mapping[str, Any],
        encoding: Encoding,
        *,
        places: Places | None = None,
        frozen: bool = False,
        dropout: float = 0.2,
        longest: int = 128,
        seed: int = 0,
    ) -> None:
        """Cut the texts into tokens, and hold a fifth of each label out."""
        self.labels = labels_of(texts)
        self.texts, self._data, self.encoding, self._seed = texts, data, encoding, seed
        self.frozen, self._dropout = frozen, 0.0 if frozen else dropout
        self._most = min(longest, encoding.config.max_position_embeddings)
        self._rows = _rows(texts, encoding.tokenizer, self._most, places)
        numbers = {label: number for number, label in enumerate(self.labels)}
        self._truth = np.array([numbers[label] for _, label in texts], np.int64)
        self.training, self.held_out = _split(texts, seed)

    @classmethod
    def open(
        cls,
        data: Sequence[str] = (),
        *,
        seed: int = 0,
        model: str | None = None,
        frozen: bool = False,
        vocabulary: int = 8000,
        dropout: float | None = None,
        longest: int = 128,
    ) -> "Classify":
        """Read labelled texts, and load or lay out the encoder.

        Args:
            data: paths of files, each row a text and its label.
            seed: of what is held out.
            model: the name or folder of an encoder such as minilm; from scratch where None.
            frozen: whether that encoder is left as it is, and only the layer on top learns.
            vocabulary: tokens, from scratch.
            dropout: 0.2 from scratch, 0.1 on top of a model.
            longest: tokens at which a text is cut.

        Raises:
            ArgumentError: no data, labels that `labels_of` refuses, or a model that is no encoder
                of text.
            FileError: a file that is not there, or whose rows are not as wanted, or hold no token
                of the model; names them all.
            ModelError, MissingPackageError: the model cannot be loaded.
        """
        if not data:
            raise ArgumentError(NO_DATA)
        if frozen and model is None:
            raise ArgumentError("frozen leaves a loaded encoder as it is: wanted a model too")
        if longest < 3:
            raise ArgumentError(f"longest is {longest}; wanted 3 tokens or more")
        seen = Fingerprint()
        read = [(path, line, row) for path in data for line, row in numbered(path)]
        texts, places = list(seen.through(one for *_, one in read)), [one[:2] for one in read]
        labels_of(texts)
        if model is not None:
            return OnTop(
                texts, seen.describe(), _loaded(model), places=places, frozen=frozen, seed=seed,
                dropout=0.1 if dropout is None else dropout, longest=longest,
            )  # fmt: skip
        training, _ = _split(texts, seed)
        encoding = _from_scratch((texts[i].text for i in training), vocabulary, longest)
        return cls(
            texts, seen.describe(), encoding, places=places, seed=seed, longest=longest,
            dropout=0.2 if dropout is None else dropout,
        )  # fmt: skip

    def describe(self) -> Mapping[str, Any]:
        """Return what it stands on, the labels, and what the texts are."""
        c = self.encoding.config
        return {
            "model": self.encoding.name, "frozen": self.frozen, "dropout": self._dropout,
            "layers": c.num_hidden_layers, "size": c.hidden_size, "vocabulary": c.vocab_size,
            "longest": self._most, "labels": list(self.labels), "held_out_by": self._seed,
            **self._data,
        }  # fmt: skip

    def model(self) -> Classifier:
        """Return a new layer on top of an encoder that is new, or as it was loaded."""
        config = ClassifierConfig.on(self.encoding.config, self.labels)
        made = Classifier(config, Unwritten(self.encoding.tokenizer), dropout=self._dropout)
        if self.encoding.bert is not None:
            made.bert.load_state_dict(self.encoding.bert.state_dict())
        else:
            _narrow(made.bert)
        made.bert.requires_grad_(not self.frozen)
        return made

    def order(self, batch: int, seed: int) -> Order:
        """Return the order of the texts, those of like length together."""
        return OfLikeLength([len(self._rows[i]) for i in self.training], batch, seed)

    def batch(self, examples: Examples) -> TextBatch:
        """Return examples side by side."""
        return self._batch(self.training[examples])

    def loss(self, model: nn.Module, batch: TextBatch, label_smoothing: float) -> Tensor:
        """−Σ log softmax(y) at the label of each text, over the batch"""
        logits: Tensor = model(batch.ids, batch.lengths)
        return nats(logits, batch.labels, label_smoothing)

    def measure(self, model: nn.Module) -> Mapping[str, float]:
        """Return the share that is right, and F1 as the mean of all labels."""
        truth = self._truth[self.held_out]
        found = self._found(model, self.held_out)
        return {
            "accuracy": float((found == truth).mean()),
            "macro_f1": macro_f1(truth, found, len(self.labels)),
        }

    def samples(self, model: nn.Module) -> list[str]:
        """Tell of a few texts what they were found to be, and what they are."""
        places = np.linspace(0, len(self.held_out) - 1, SHOWN).round().astype(np.int64)
        shown = self.held_out[np.unique(places)]
        told = zip(shown, self._found(model, shown), strict=True)
        return [self._told(int(i), self.labels[number]) for i, number in told]

    def save(self, model: nn.Module, folder: Path) -> None:
        """Write the model with its vocabulary."""
        save_folder(model, CLASSIFIER, folder, tokenizer=self.encoding.tokenizer)

    def _batch(self, at: Examples) -> TextBatch:
        rows = [torch.tensor(self._rows[i]) for i in at]
        lengths = torch.tensor([len(row) for row in rows])
        return TextBatch(
            pad_sequence(rows, batch_first=True), lengths, torch.from_numpy(self._truth[at])
        )

    def _found(self, model: nn.Module, at: Examples) -> npt.NDArray[np.int64]:
        """Return the number of the most probable label of each text; like lengths run together."""
        device = next(model.parameters()).device
        found = np.empty(len(at), np.int64)
        order = np.argsort([len(self._rows[i]) for i in at], kind="stable")
        for start in range(0, len(at), AT_ONCE):
            some = order[start : start + AT_ONCE]
            batch = self._batch(at[some]).to(device)
            found[some] = model(batch.ids, batch.lengths).argmax(dim=-1).cpu().numpy()
        return found

    def _told(self, i: int, found: str) -> str:
        text, label = self.texts[i]
        short = text if len(text) <= 60 else f"{text[:60]}…"
        verdict = "right" if found == label else f"it is {label}"
        return f"{short!r}: {found} ({verdict})"


class OnTop(Classify):
    """The label of a text, by an encoder that was loaded."""

    usual: ClassVar[Settings] = Settings(
        steps=500, batch=1024, learning_rate=1e-4, weight_decay=0.01, warmup=50, measure_every=100,
        save_every=250,
    )  # fmt: skip


def labels_of(texts: Sequence[LabelledText]) -> tuple[str, ...]:
    """Return the different labels in the order of the alphabet.

    Raises:
        ArgumentError: fewer than two, one with a single text, or none of which one can be held out.
    """
    counts = Counter(label for _, label in texts)
    if len(counts) < 2:
        raise ArgumentError(f"the labels are {sorted(counts)}; wanted two or more different ones")
    rare = sorted(label for label, count in counts.items() if count < 2)
    if rare:
        raise ArgumentError(
            f"of {', '.join(map(repr, rare[:20]))} there is one text each; wanted two or more of "
            f"every label ({len(rare)} of {len(counts)} labels have one)"
        )
    if max(counts.values()) < FEWEST:
        raise ArgumentError(
            f"no label has {FEWEST} texts; wanted {FEWEST} or more of some label, to hold one out"
        )
    return tuple(sorted(counts))


def _split(texts: Sequence[LabelledText], seed: int) -> tuple[Examples, Examples]:
    """Return what is trained on and what is held out: of each label a fifth, of no text a copy.

    Capital letters and blanks make no other text.

    Raises:
        ArgumentError: nothing is left of a label to train on.
    """
    alike = _numbers(" ".join(text.casefold().split()) for text, _ in texts)
    training, apart = held_out(
        len(texts), HELD_OUT, seed, alike=alike, strata=_numbers(label for _, label in texts)
    )
    labels, left = {label for _, label in texts}, {texts[i].label for i in training}
    if gone := sorted(labels - left):
        raise ArgumentError(
            f"of {', '.join(map(repr, gone[:20]))} nothing is left to train on, since copies of a "
            f"text are held out together; wanted more different texts of every label"
        )
    return training, apart


def _numbers(texts: Iterable[str]) -> list[int]:
    """Number texts as they are met first."""
    known: dict[str, int] = {}
    return [known.setdefault(text, len(known)) for text in texts]


def macro_f1(truth: npt.NDArray[np.int64], found: npt.NDArray[np.int64], labels: int) -> float:
    """(1/L) Σ_l 2 TP_l / (2 TP_l + FP_l + FN_l) over the L labels that are there or were found"""
    right = np.bincount(truth[truth == found], minlength=labels)  # TP
    either = np.bincount(truth, minlength=labels) + np.bincount(found, minlength=labels)
    somewhere = either > 0
    return float((2 * right[somewhere] / either[somewhere]).mean())  # either = 2 TP + FP + FN


def _rows(
    texts: Sequence[LabelledText], tokenizer: Tokenizer, most: int, places: Places | None
) -> list[tuple[int, ...]]:
    """Cut texts into tokens; of those that have none, those of one file are named."""
    rows: list[tuple[int, ...]] = []
    faults: dict[str, Faults] = {}
    for number, (text, _) in enumerate(texts):
        try:
            rows.append(_cut(tokenizer(text).ids, most))
        except ArgumentError as error:
            path, line = ("the texts", number + 1) if places is None else places[number]
            faults.setdefault(path, Faults(Path(path))).add(line, str(error))
    for fault in faults.values():
        fault.refuse()
    return rows


def _cut(ids: Sequence[int], most: int) -> tuple[int, ...]:
    """Cut what is too long; the token at the end stays."""
    return tuple(ids) if len(ids) <= most else (*ids[: most - 1], ids[-1])


def _narrow(bert: Bert) -> None:
    """Draw the tables anew, with the spread of BERT's own: AdamW moves small numbers further."""
    for table in (bert.embedding.token, bert.embedding.position, bert.embedding.segment):
        nn.init.normal_(table.weight, std=SPREAD)


def _loaded(name: str) -> Encoding:
    from qkv.models import load

    found = load(name)
    if not isinstance(found, Bert):
        raise ArgumentError(
            f"model is {name!r}, a {type(found).__name__}; wanted an encoder of text such as minilm"
        )
    return Encoding(found.config, found.tokenizer, found, name)


def _from_scratch(texts: Iterable[str], vocabulary: int, longest: int) -> Encoding:
    tokenizer = trained_bpe(
        texts, vocabulary, special=("[PAD]", BEGIN, END), before=(BEGIN,), after=(END,),
        space=True, compose=True, lower=True,
    )  # fmt: skip
    config = BertConfig(
        tokenizer.size, 128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512,
        max_position_embeddings=longest, type_vocab_size=1,
    )  # fmt: skip
    return Encoding(config, tokenizer)
