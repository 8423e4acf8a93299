"""The recurrent translator: against loops by NumPy, in a folder and back, greedy and with beams."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from qkv.errors import ArgumentError, ModelError
from qkv.models import load
from qkv.models.recurrent import RECURRENT, Recurrent, RecurrentConfig
from qkv.models.saving import save_folder
from qkv.models.text.tokenizer import Tokenizer
from qkv.nn.cache import KeyValueCache
from tests.models.altering import change_config, change_weights, refusal
from tests.recurrence import logits, numbers
from tests.reference import agree, array

KINDS = [None, "additive", "dot"]
SOURCES, TARGETS = torch.tensor([7, 1, 4]), torch.tensor([3, 5, 2])
PAD, START, END = 0, 1, 2
WORDS = ["<pad>", "<s>", "</s>", "▁the", "▁sky", "▁is", "▁blue", "▁el", "▁cielo", "▁es", "▁azul"]


def made(kind: str | None, vocabulary: int = 11, layers: int = 2, **more: Any) -> Recurrent:
    """A model in float64 whose outputs differ well from each other."""
    config = RecurrentConfig(
        vocabulary, 5, 6, layers, kind, decoder_start_token_id=START, pad_token_id=PAD,
        eos_token_id=END, **more,
    )  # fmt: skip
    model = Recurrent(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.6)
    return model


def texts(vocabulary: int = 11) -> tuple[Tensor, Tensor]:
    return torch.randint(3, vocabulary, (3, 7)), torch.randint(3, vocabulary, (3, 5))


def tokenizer() -> Tokenizer:
    rules = tokenizers.Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, "<pad>"))
    rules.pre_tokenizer = pre_tokenizers.Metaspace()
    rules.decoder = decoders.Metaspace()
    rules.add_special_tokens(WORDS[:3])
    rules.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", END)])
    return Tokenizer(rules)


def saved(model: Recurrent, folder: Path, dtype: torch.dtype = torch.float64) -> Recurrent:
    save_folder(model, RECURRENT, folder, tokenizer=tokenizer(), dtype=dtype)
    return load(folder, dtype=dtype)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 3])
def test_logits_and_weights_are_those_of_loops(kind: str | None, layers: int) -> None:
    model = made(kind, layers=layers)
    source, ids = texts()
    found = model(source, ids, SOURCES, TARGETS)
    seen = None if kind is None else model.weights(source, ids, SOURCES)
    p = numbers(model)
    for text in range(3):
        real = int(SOURCES[text])
        wanted, weights = logits(p, kind, source[text, :real].tolist(), ids[text].tolist())
        agree(found[text], wanted, 1e-11)
        if seen is not None:
            agree(seen[text, :, :real], weights, 1e-12)
            assert not seen[text, :, real:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind: str | None) -> None:
    model = made(kind)
    source, ids = texts()
    wide = torch.full((3, 9), PAD), torch.full((3, 8), PAD)
    for text in range(3):
        wide[0][text, : SOURCES[text]] = source[text, : SOURCES[text]]
        wide[1][text, : TARGETS[text]] = ids[text, : TARGETS[text]]
    one, two = model(source, ids, SOURCES, TARGETS), model(*wide, SOURCES, TARGETS)
    for text, real in enumerate(TARGETS.tolist()):
        agree(one[text, :real], array(two[text, :real]), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_learns(kind: str | None) -> None:
    model = made(kind)
    model(*texts(), SOURCES).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_values_are_dropped_in_training_only() -> None:
    model = made("dot", layers=1, dropout=0.5)
    given = (*texts(), SOURCES)
    assert torch.equal(model(*given), model(*given))
    model.train()
    assert not torch.equal(model(*given), model(*given))
    assert not torch.equal(model.read(given[0]).memory, model.read(given[0]).memory)
    told = torch.ones(1, 5, dtype=torch.float64)
    assert not torch.equal(model.logits(told), model.logits(told))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_saved_is_loaded(kind: str | None, dtype: torch.dtype, tmp_path: Path) -> None:
    model = made(kind, dropout=0.1, bad_words_ids=[[PAD], [START]][:1]).to(dtype)
    loaded = saved(model, tmp_path, dtype)
    assert loaded.config == model.config
    assert not loaded.training
    assert (loaded.rules.starts, loaded.rules.ends) == ((START,), frozenset({END}))
    assert (loaded.rules.pad, loaded.rules.never) == (PAD, frozenset({PAD}))
    given = (*texts(), SOURCES)
    agree(loaded(*given), array(model(*given)), 1e-12 if dtype == torch.float64 else 1e-5)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    loaded(*given).sum().backward()
    assert loaded.encoder.rnn.weight_ih_l0.grad is not None


@pytest.mark.usefixtures("as_shipped")
def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    save_folder(made("additive"), RECURRENT, tmp_path)
    change_config(tmp_path, attention="general")
    said = refusal(tmp_path, ModelError)
    assert (
        "makes no qkv_recurrent: attention is 'general'; wanted 'additive', 'dot' or None" in said
    )
    change_config(tmp_path, attention="additive", d_hidden=7)
    assert "n_hidden is 7; wanted an even number" in refusal(tmp_path, ModelError)
    change_config(tmp_path, attention="dot", d_hidden=6)
    assert "surplus: decoder.attention.WK.weight, " in refusal(tmp_path, ModelError)
    change_config(tmp_path, attention="additive")
    change_weights(tmp_path, lambda tensors: tensors.pop("encoder.weight_hh_l1_reverse"))
    assert "missing: encoder.weight_hh_l1_reverse" in refusal(tmp_path, ModelError)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunks", [[1] * 5, [2, 3], [5]])
def test_a_text_that_is_read_in_parts_gives_the_same_logits(
    kind: str | None, chunks: list[int]
) -> None:
    model = made(kind)
    source, ids = texts()
    wanted, cache, end = model(source, ids, SOURCES), model.read(source, SOURCES), 0
    for size in chunks:
        found = model.next(ids[:, end : end + size], cache)
        end += size
        assert cache.length == end
        agree(found, array(wanted[:, end - 1]), 1e-12)
    assert not found.requires_grad


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunks", [[1] * 5, [2, 3], [5]])
def test_padding_before_a_text_is_not_read(kind: str | None, chunks: list[int]) -> None:
    model = made(kind)
    source, ids = texts()
    alone = [
        model(source[i : i + 1, : SOURCES[i]], ids[i : i + 1, 5 - TARGETS[i] :])[0, -1]
        for i in range(3)
    ]
    cache = model.read(source, SOURCES)
    cache.start = 5 - TARGETS
    for part in ids.split(chunks, dim=1):
        found = model.next(part, cache)
    agree(found, array(torch.stack(alone)), 1e-12)
    told = model.next(ids, model.read(source, SOURCES), TARGETS)
    agree(told, array(torch.stack(alone)), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beams", [1, 3])
def test_texts_are_written_together_as_each_alone(kind: str | None, beams: int) -> None:
    model = made(kind)
    source, _ = texts()
    prompts = [(), (START, 4), (START, 5, 6)]
    options: dict[str, Any] = {"max_tokens": 9, "beams": beams}
    together = model.generate(prompts, cache=model.read(source, SOURCES), **options)
    for i, one in enumerate(together):
        cache = model.read(source[i : i + 1, : SOURCES[i]])
        (alone,) = model.generate([prompts[i]], cache=cache, **options)
        assert one.ids == alone.ids
        assert one.score == pytest.approx(alone.score, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_wide_search_finds_the_best_of_all_texts(kind: str | None) -> None:
    model = made(kind, vocabulary=4)
    source, most = torch.tensor([[3, 1, 0, 3, 2]]), 3
    best = (-math.inf, ())
    for ids in itertools.chain.from_iterable(
        itertools.product(range(4), repeat=n) for n in range(1, most + 1)
    ):
        if END in ids[:-1] or (ids[-1] != END and len(ids) < most):
            continue
        chances = model(source, torch.tensor([[START, *ids[:-1]]]))[0].log_softmax(-1)
        score = float(chances[range(len(ids)), list(ids)].sum()) / len(ids)
        best = max(best, (score, ids))
    (found,) = model.generate([()], cache=model.read(source), beams=64, max_tokens=most)
    assert (found.ids, found.score) == (best[1], pytest.approx(best[0], abs=1e-9))


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_translated_in_batches_of_any_size(kind: str | None, tmp_path: Path) -> None:
    model = saved(made(kind), tmp_path)
    lines = ["the sky is blue", "blue", "is the sky blue the sky"]
    wanted = []
    for line in lines:
        row = torch.tensor([tokenizer()(line).ids])
        (one,) = model.generate([()], cache=model.read(row), beams=2, max_tokens=6)
        wanted.append((one.ids, one.text))
    for size in (1, 2, 8):
        found = model.translate(lines, batch_size=size, beams=2, max_tokens=6)
        assert [(one.ids, one.text) for one in found] == wanted


@pytest.mark.parametrize("kind", ["additive", "dot"])
def test_what_is_explained_is_what_was_computed(kind: str) -> None:
    model = made(kind)
    source, ids = [3, 4, 5, 6, END], [START, 7, 8]
    told = model.explain(source, ids, tokens=["<s>", "el", "cielo"], key_tokens=WORDS[3:8])
    told.verify()
    assert told.step("weights").rows == ("<s>", "el", "cielo")
    assert told.step("weights").columns == tuple(WORDS[3:8])
    _, weights = logits(numbers(model), kind, source, ids)
    agree(told["weights"], weights, 1e-12)


def test_a_vocabulary_of_one_says_the_same_for_ever() -> None:
    config = RecurrentConfig(1, 3, 4, attention="additive")
    model = Recurrent(config).eval()
    ids = torch.zeros(2, 3, dtype=torch.long)
    assert not model(ids, ids).log_softmax(-1).any()
    (one,) = model.generate([(0,)], cache=model.read(ids[:1]), max_tokens=4)
    assert (one.ids, one.score) == ((0,) * 4, 0.0)


@pytest.mark.usefixtures("as_shipped")
def test_what_cannot_be_meant_is_refused() -> None:
    model, (source, ids) = made("dot"), texts()
    with pytest.raises(ArgumentError, match="source reach from 11 to 11; the model's table has 11"):
        model(torch.tensor([[11]]), ids[:1])
    with pytest.raises(ArgumentError, match="ids reach from -1 to -1; the model's table has 11"):
        model(source[:1], torch.tensor([[-1]]))
    with pytest.raises(ArgumentError, match="the text has 0 tokens"):
        model(source, ids[:, :0])
    with pytest.raises(ArgumentError, match="the text has 0 tokens"):
        model.read(source[:, :0])
    for name, lengths in (("source_lengths", ([7, 8, 1], None)), ("lengths", (None, [5, 0, 1]))):
        with pytest.raises(ArgumentError, match=rf"^{name} are \[.*wanted one whole number a row"):
            model(source, ids, *lengths)
    for wrong in ([7, 1], torch.tensor([7.0, 1.0, 4.0])):
        with pytest.raises(ArgumentError, match=r"wanted one whole number a row, 1 to 7"):
            model.read(source, wrong)
    with pytest.raises(ArgumentError, match="the cache has no memory; wanted what `read"):
        model.next(ids, KeyValueCache(2))
    cache = model.read(source)
    model.next(ids, cache)
    with pytest.raises(ArgumentError, match="lengths are given, but the cache has read already"):
        model.next(ids, cache, TARGETS)
    with pytest.raises(ArgumentError, match=r"call model\.translate\(texts\), or say cache="):
        model.generate([()])
    with pytest.raises(ModelError, match="has no tokenizer"):
        model.translate("the sky")


def test_a_single_vector_has_no_weights_to_show() -> None:
    model, given = made(None), texts()
    for ask in (lambda: model.weights(*given), lambda: model.explain([3, 4], [START])):
        with pytest.raises(ArgumentError, match="this model has no attention: all that its decod"):
            ask()
