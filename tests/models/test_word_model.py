"""The small networks of words: their equations, their neighbours, their folder."""

from itertools import permutations

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import pre_tokenizers
from tokenizers.models import WordLevel

from qkv.errors import ArgumentError, ModelError, ShapeError
from qkv.models import load
from qkv.models.formats.files import Unwritten
from qkv.models.saving import save_folder
from qkv.models.text.tokenizer import Tokenizer
from qkv.models.word_model import WORD_MODEL, WordModel, WordModelConfig

WORDS = ("<unk>", "the", "cat", "dog", "ran", "sat", "on", "mat", "a", "who", "saw")
KINDS = ((1, False), (4, False), (3, True), (4, True))


@pytest.fixture
def tokenizer():
    rules = tokenizers.Tokenizer(
        WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    rules.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(rules)


@pytest.fixture
def made(tokenizer):
    """Make a model of random weights in float64."""

    def make(context=4, positions=False, size=7):
        model = WordModel(
            WordModelConfig(len(WORDS), size, context, positions), Unwritten(tokenizer)
        )
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        return model.double().eval()

    return make


def by_loops(model, row):
    """The equation, a number at a time."""
    C = model.embedding.weight.detach().numpy()
    U, b = (model.output.weight.detach().numpy(), model.output.bias.detach().numpy())
    if model.places is None:
        h = sum(C[word] for word in row)
    else:
        n = C.shape[1]
        H, d = (model.places.weight.detach().numpy(), model.places.bias.detach().numpy())
        h = np.tanh(sum(H[:, i * n : (i + 1) * n] @ C[word] for i, word in enumerate(row)) + d)
    return np.array([sum(U[j, k] * h[k] for k in range(len(h))) + b[j] for j in range(len(b))])


@pytest.mark.parametrize(("context", "positions"), KINDS)
def test_the_logits_are_those_of_the_equation(made, context, positions):
    model = made(context, positions)
    words = torch.randint(len(WORDS), (5, context))
    wanted = np.stack([by_loops(model, row) for row in words.tolist()])
    np.testing.assert_allclose(model(words).detach().numpy(), wanted, rtol=0, atol=1e-12)


def test_a_bag_of_words_has_no_order_and_places_have_one(made):
    bag, placed = made(4), made(4, positions=True)
    words = torch.tensor([1, 2, 3, 5])
    orders = torch.stack([words[list(order)] for order in permutations(range(4))])
    told = bag(orders).detach()
    assert float((told - told[0]).abs().max()) < 1e-13
    told = placed(orders).detach()
    apart = (told[:, None] - told[None]).abs().amax(dim=-1)
    assert float(apart.fill_diagonal_(1).min()) > 1e-3


@pytest.mark.parametrize(("context", "positions"), KINDS)
def test_every_weight_learns(made, context, positions):
    model = made(context, positions).train()
    model(torch.randint(len(WORDS), (50, context))).logsumexp(dim=-1).sum().backward()
    assert all(float(p.grad.abs().max()) > 0 for p in model.parameters())


def test_neighbours_are_the_words_with_the_largest_cosines(made):
    model = made(size=3)
    C = model.embedding.weight.detach().numpy()
    cosines = C @ C[2] / np.linalg.norm(C, axis=1) / np.linalg.norm(C[2])
    order = [int(i) for i in np.argsort(-cosines) if i not in (0, 2)]
    found = model.neighbours("cat", 4)
    assert [near.word for near in found] == [WORDS[i] for i in order[:4]]
    np.testing.assert_allclose([near.cosine for near in found], cosines[order[:4]], atol=1e-12)
    assert len(model.neighbours("cat", 1000)) == len(WORDS) - 2


def test_what_may_come_next_is_told_with_its_probability(made):
    model = made(3, positions=True)
    with torch.no_grad():
        model.output.bias[0] = 30.0  # the word for all others would win
    logits = by_loops(model, (2, 0, 6))
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    order = [int(i) for i in np.argsort(-shares) if i != 0]
    found = model.predict("the the cat zebra on", 3)
    assert [one.word for one in found] == [WORDS[i] for i in order[:3]]
    np.testing.assert_allclose([one.probability for one in found], shares[order[:3]], rtol=1e-9)
    assert model.predict(["cat", "zebra", "on"], 3) == found


def test_what_is_not_known_is_refused_by_name(made):
    model = made(4)
    with pytest.raises(ArgumentError, match="word is 'zebra'; wanted one of the 10 words"):
        model.neighbours("zebra")
    with pytest.raises(ArgumentError, match="word is 'the cat'; wanted one of the 10 words"):
        model.neighbours("the cat")
    with pytest.raises(ArgumentError, match="count is 0; wanted 1 or more"):
        model.neighbours("cat", 0)
    with pytest.raises(ArgumentError, match="words are 'the cat', which is 2; the model looks at"):
        model.predict("the cat")
    assert model.knows("the cat")
    assert not model.knows("the zebra")


@pytest.mark.usefixtures("as_shipped")
def test_words_that_do_not_fit_are_refused(made):
    model = made(4)
    with pytest.raises(ShapeError, match=r"words are \(2, 3\); wanted \(…, 4\)"):
        model(torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ArgumentError, match="words reach from 0 to 11; the model's table has 11"):
        model(torch.tensor([0, 1, 2, 11]))


def test_without_a_tokenizer_it_takes_ids_only(made):
    model = WordModel(WordModelConfig(11, 5, 1))
    assert model(torch.tensor([[3]])).shape == (1, 11)
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        model.neighbours("cat")
    with pytest.raises(ArgumentError, match="unk_token_id is 11 in a table of 11"):
        WordModel(WordModelConfig(11, 5, 1, unk_token_id=11))


@pytest.mark.parametrize(("context", "positions"), KINDS)
def test_its_folder_gives_the_same_model(made, tmp_path, context, positions):
    model = made(context, positions)
    save_folder(
        model, WORD_MODEL, tmp_path / "words", tokenizer=model.tokenizer, dtype=torch.float64
    )
    again = load(tmp_path / "words", dtype=torch.float64)
    assert (type(again), again.config, again.training) == (WordModel, model.config, False)
    words = torch.randint(len(WORDS), (13, context))
    assert torch.equal(again(words), model(words))
    assert again.neighbours("dog") == model.neighbours("dog")


def test_a_folder_whose_table_is_smaller_than_its_words_is_refused(made, tmp_path, tokenizer):
    model = WordModel(WordModelConfig(len(WORDS) - 1, 5, 1), Unwritten(tokenizer))
    save_folder(model, WORD_MODEL, tmp_path, tokenizer=tokenizer)
    with pytest.raises(ModelError, match="has tokens up to 10; the model's table has 10 rows"):
        load(tmp_path)
