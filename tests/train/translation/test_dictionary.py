"""The dictionary: IBM's model 1 against a plain loop, and a translation word by word."""

import random
from collections import defaultdict

import pytest

from qkv.train.data.pairs import TextPair
from qkv.train.translation import dictionary
from qkv.train.translation.corpus import Corpus, Part
from qkv.train.translation.dictionary import Dictionary, learnt

LEXICON = {"sun": "sol", "moon": "luna", "sea": "mar", "red": "rojo", "cold": "frío", "the": "el"}


@pytest.fixture
def pairs(seed: int) -> list[TextPair]:
    drawn = random.Random(seed)
    found = []
    for _ in range(70):
        words = drawn.sample(sorted(LEXICON), drawn.randint(1, 4))
        target = [LEXICON[word] for word in words] + ["muy"] * drawn.randint(0, 2)
        drawn.shuffle(target)
        found.append(TextPair(" ".join(words), " ".join(target)))
    return found


def by_loops(pairs: list[TextPair], rounds: int) -> dict[str, dict[str, float]]:
    """Brown et al. 1993, model 1, as it stands in a textbook."""
    t: dict[tuple[str, str], float] = defaultdict(lambda: 1.0)
    for _ in range(rounds):
        counts: dict[tuple[str, str], float] = defaultdict(float)
        totals: dict[str, float] = defaultdict(float)
        for source, target in pairs:
            read = ["", *source.split()]
            for s in target.split():
                whole = sum(t[s, e] for e in read)
                for e in read:
                    counts[s, e] += t[s, e] / whole
                    totals[e] += t[s, e] / whole
        t = defaultdict(float, {(s, e): n / totals[e] for (s, e), n in counts.items()})
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for (s, e), chance in t.items():
        found[e][s] = chance
    return found


@pytest.mark.parametrize("rounds", [1, 3, 7])
def test_each_word_has_the_form_that_a_plain_loop_finds(pairs, rounds):
    wanted = by_loops(pairs, rounds)
    found = learnt(pairs, rounds)
    assert set(found) == set(LEXICON)
    for word, form in found.items():
        assert wanted[word][form] == pytest.approx(max(wanted[word].values()), rel=1e-9)


def test_enough_rounds_find_the_lexicon(pairs):
    assert learnt(pairs, 20) == LEXICON


def test_a_text_is_translated_word_by_word_and_what_is_unknown_stays():
    known = Dictionary({"the": "el", "sky": "cielo", "do": "", "is": "es"})
    assert known.translate(["The sky IS blue.", "do", "sky do sky"]) == [
        "el cielo es blue", "", "cielo cielo",
    ]  # fmt: skip


def corpus(pairs: list[TextPair], words: dict[str, str]) -> Corpus:
    part = Part("mine", lambda: iter(pairs), (), {}, words)
    return Corpus((part,), 0)


def test_only_words_that_came_with_no_translation_are_learnt(pairs, monkeypatch):
    some = {word: form.upper() for word, form in LEXICON.items() if word not in {"sea", "cold"}}
    seen = []
    monkeypatch.setattr(dictionary, "learnt", lambda pairs: seen.extend(pairs) or learnt(seen, 20))
    made = Dictionary.of(corpus(pairs, some))
    assert made.entries == some | {"sea": "mar", "cold": "frío"}
    assert seen == [pair for pair in pairs if {"sea", "cold"} & set(pair.source.split())]


def test_long_sentences_and_more_than_enough_are_not_read(pairs, monkeypatch):
    seen = []
    monkeypatch.setattr(dictionary, "learnt", lambda pairs: seen.extend(pairs) or {})
    long = TextPair("sea " * 101, "mar")
    Dictionary.of(corpus([long, *pairs, long], {}))
    assert seen == pairs
    seen.clear()
    monkeypatch.setattr(dictionary, "ENOUGH", 100)
    Dictionary.of(corpus(pairs, {}))
    sizes = [(len(a.split()) + 1) * len(b.split()) for a, b in pairs]
    assert sum(sizes[: len(seen)]) <= 100 < sum(sizes[: len(seen) + 1])


def test_no_pairs_make_an_empty_dictionary():
    assert learnt([]) == {}


def test_a_translation_without_words_teaches_nothing():
    wordless = TextPair("wow", "")
    assert learnt([wordless]) == {}
    assert learnt([wordless, TextPair("red", "rojo")]) == learnt([TextPair("red", "rojo")])
    Dictionary.of(corpus([TextPair("Wow!", "!!!"), TextPair("red", "rojo")], {}))
