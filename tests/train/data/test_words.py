"""Words of texts: small letters, numbered as they are met, the frequent ones a vocabulary."""

import random
from collections import Counter

import numpy as np
import pytest

from qkv.errors import ArgumentError
from qkv.train.data.words import Met, word_tokenizer, words_of


def test_words_are_small_letters_with_what_an_apostrophe_joins() -> None:
    text = "Don’t stop, don't! The <unk> nai\u0308ve 'cat' 12 the THE"
    wanted = ["don't", "stop", "don't", "the", "unk", "naïve", "cat", "12", "the", "the"]
    assert list(words_of(text)) == wanted


def test_a_vocabulary_numbers_its_words_and_calls_all_others_0() -> None:
    tokenizer = word_tokenizer(["don't", "the"])
    assert [tokenizer.piece(number) for number in range(3)] == ["<unk>", "don't", "the"]
    assert tokenizer.size == 3
    assert tokenizer.plain("THE don’t: zebra -- the") == (2, 1, 0, 2)
    assert tokenizer.plain("<unk>") == (0,)  # the letters in it, which are no word that is known
    assert word_tokenizer(["unk"]).plain("<unk>") == (1,)


def test_words_are_numbered_as_they_are_met() -> None:
    met = Met.of(["the cat, the DOG", "", "a cat"])
    assert met.words == ("the", "cat", "dog", "a")
    assert met.numbers.tolist() == [0, 1, 0, 2, 3, 1]


def test_the_frequent_ones_come_first_then_the_alphabet(seed: int) -> None:
    draw = random.Random(seed)
    words = [draw.choice("abcdefghij") * draw.randint(1, 3) for _ in range(500)]
    met = Met.of([" ".join(words)])
    some, counts = met.numbers[100:300], Counter(words[100:300])
    wanted = sorted(counts, key=lambda word: (-counts[word], word))
    assert list(met.frequent(some, 1000)) == wanted
    assert list(met.frequent(some.reshape(10, 20), 7)) == wanted[:7]
    kept = met.frequent(some, 7)
    assert np.array_equal(met.among(kept), word_tokenizer(kept).plain(" ".join(words)))


def test_one_word_is_no_choice() -> None:
    met = Met.of(["yes yes Yes, yes no"])
    with pytest.raises(ArgumentError, match="the text has 1 different words; wanted 2 or more"):
        met.frequent(met.numbers[:4], 10)
