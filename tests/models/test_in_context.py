"""A word where it stands: Hugging Face's hidden states of its tokens, layer by layer."""

from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.errors import ArgumentError
from qkv.models.bert import Bert
from qkv.models.in_context import in_context

TEXTS = ["The bank, the BANK and banks", "we embank", "bank"]


def test_rows_are_hugging_faces_states_of_the_words_tokens(
    minilm: Bert, minilm_folder: Path
) -> None:
    from transformers import BertModel

    theirs: Any = BertModel.from_pretrained(minilm_folder, dtype=torch.float64).eval()
    texts = ["the coffee spilled on the laptop", "a laptop, unbreakable: unbreakable"]
    words = {"laptop": (texts, [[6], [2]]), "unbreakable": (texts[1:], [[4, 5, 6], [8, 9, 10]])}
    names = minilm.tokenizer(texts[1]).names
    assert "".join(names[i].strip("#") for i in (4, 5, 6)) == "unbreakable"
    for word, (some, at) in words.items():
        found = in_context(minilm, some, word)
        which = [place.text for place in found.places]
        for row, (text, tokens) in enumerate(zip(which, at, strict=True)):
            ids = torch.tensor([minilm.tokenizer(some[text]).ids])
            with torch.no_grad():
                states = theirs(ids, output_hidden_states=True).hidden_states[1:]
                table = theirs.embeddings.word_embeddings(ids)
            wanted = torch.stack([state[0, tokens].mean(dim=0) for state in states])
            torch.testing.assert_close(found.layers[:, row].double(), wanted, rtol=0, atol=1e-5)
            own = table[0, tokens].mean(dim=0)
            torch.testing.assert_close(found.table[row].double(), own, rtol=0, atol=1e-6)


def test_whole_words_are_found_in_any_case_and_every_time(minilm: Bert) -> None:
    found = in_context(minilm, [TEXTS[0], TEXTS[2]], "Bank")
    assert [(p.text, p.start, p.stop) for p in found.places] == [(0, 4, 8), (0, 14, 18), (1, 0, 4)]
    torch.testing.assert_close(found.table[0], found.table[2])
    assert not torch.allclose(found.layers[-1, 0], found.layers[-1, 1], atol=1e-2)


def test_what_is_no_word_of_letters_is_taken_as_it_is(minilm: Bert) -> None:
    assert len(in_context(minilm, ["a (b|c)* d", "(b|c)*"], "(b|c)*").places) == 2
    assert len(in_context(minilm, ["in New York", "new york"], "New York").places) == 2


@pytest.mark.parametrize("word", ["bank", "", " ", "."])
def test_a_word_that_is_not_in_every_text_is_refused(minilm: Bert, word: str) -> None:
    with pytest.raises(
        ArgumentError, match=r"which is not in text \d \(.*wanted a word that is in"
    ):
        in_context(minilm, TEXTS, word)
