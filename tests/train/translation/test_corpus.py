"""Sentence pairs of several sets: what trains, and what never does."""

from itertools import islice
from pathlib import Path

import pytest

from qkv.errors import ArgumentError, FileError
from qkv.train.translation.corpus import CLAUSES, JOINTS, PHRASEBOOK, Corpus
from qkv.train.translation.spelling import plain
from tests.train.unchecked import quickly_read  # noqa: F401


@pytest.fixture(scope="module")
def both(quickly_read: None) -> Corpus:  # noqa: F811
    return Corpus.open([PHRASEBOOK, CLAUSES], seed=3, limit=2000)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.tsv"
    rows = [f"number {i}\tnúmero {i}" for i in range(40)]
    path.write_text("\n".join([*rows, "number 7\tel siete"]) + "\n", "utf-8")
    return path


def test_what_is_held_out_trains_in_no_set(both: Corpus) -> None:
    apart = {pair.source for pair in both.held_out}
    assert {pair.origin for pair in both.held_out} == {PHRASEBOOK, CLAUSES}
    training = list(both.training())
    assert not apart & {pair.source for pair in training}
    ours = {pair.source for pair in both.held_out if pair.origin == PHRASEBOOK}
    for pair in training:
        assert not any(part in ours for part in _parts(pair.source))
    assert "the sky is blue" in ours


def test_joined_sentences_are_sentences_of_the_book_with_a_word_between(both: Corpus) -> None:
    book, long = both.parts
    known = {pair.source: pair.target for pair in book.reading()}
    counts = set()
    for pair in long.reading():
        parts = _parts(pair.source)
        counts.add(len(parts))
        joints = pair.source.split()
        expected, rest = [], pair.source
        for part in parts:
            rest = rest.removeprefix(part).strip()
            joint, _, rest = rest.partition(" ")
            expected += [known[part], *([dict(JOINTS)[joint]] if joint else [])]
        assert pair.target == " ".join(expected)
        assert len(joints) > 6
    assert counts == {2, 3, 4}


@pytest.mark.slow
def test_pairs_are_read_again_alike_and_another_seed_holds_out_others() -> None:
    one = Corpus.open([CLAUSES], seed=3, limit=2000)
    assert list(one.training()) == list(one.training())
    again, other = (Corpus.open([CLAUSES], seed=seed, limit=2000) for seed in (3, 4))
    assert again.held_out == one.held_out
    assert again.describe() == one.describe()
    assert other.describe() != one.describe()
    assert set(other.held_out) != set(one.held_out)


def test_a_file_is_held_out_in_part_and_its_doubles_stay_together(mine: Path) -> None:
    for seed in range(5):
        pairs = Corpus.open([str(mine)], seed=seed)
        training, apart = list(pairs.training()), pairs.held_out
        assert len(training) + len(apart) == 41
        assert 4 <= len(apart) <= 5
        assert not {pair.source for pair in training} & {pair.source for pair in apart}


def test_a_sentence_that_another_set_holds_out_does_not_train(tmp_path: Path) -> None:
    file = tmp_path / "sky.tsv"
    file.write_text(
        "the sky is blue\tel cielo es azul\n" * 3 + "a b\tc d\n" + "e f\tg h\n", "utf-8"
    )
    pairs = Corpus.open([str(file), PHRASEBOOK], limit=2000)
    assert pairs.sets == (str(file), PHRASEBOOK)
    assert "the sky is blue" not in {pair.source for pair in pairs.training()}


def test_another_spelling_of_what_is_held_out_does_not_train(tmp_path: Path) -> None:
    file = tmp_path / "sky.tsv"
    file.write_text("The sky is blue.\tEl cielo es azul.\nTHE SKY IS BLUE!\tx y\na b\tc d\n" * 2
                    + "e f\tg h\n", "utf-8")  # fmt: skip
    pairs = Corpus.open([str(file), PHRASEBOOK], limit=2000)
    assert "the sky is blue" not in {plain(pair.source) for pair in pairs.training()}
    for seed in range(6):
        alone = Corpus.open([str(file)], seed=seed)
        training, apart = ({plain(pair.source) for pair in side}
                           for side in (alone.training(), alone.held_out))  # fmt: skip
        assert training
        assert apart
        assert not training & apart


def test_a_sentence_of_the_book_that_a_file_holds_out_does_not_train(
    both: Corpus, tmp_path: Path
) -> None:
    rows = list(islice(both.parts[0].reading(), 40))
    file = tmp_path / "same.tsv"
    file.write_text("".join(f"{row.source.upper()}.\t{row.target}\n" for row in rows), "utf-8")
    pairs = Corpus.open([str(file), PHRASEBOOK], seed=3, limit=2000)
    apart = {plain(pair.source) for pair in pairs.held_out if pair.origin == str(file)}
    assert len(apart) == 4
    assert apart <= {pair.source for pair in pairs.parts[1].reading()}
    assert not apart & {plain(pair.source) for pair in pairs.training()}


def test_one_sentence_however_spelt_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "one.tsv"
    file.write_text("The sky.\tEl cielo.\nthe sky\tel cielo\n", "utf-8")
    with pytest.raises(ArgumentError, match="holds one sentence; wanted 2 or more"):
        Corpus.open([str(file)])


def test_the_description_names_every_set_and_what_is_in_it(mine: Path) -> None:
    told = Corpus.open([str(mine)], seed=2).describe()
    assert told["split"] == 2
    mine.write_text(mine.read_text("utf-8").replace("número 5", "cinco"), "utf-8")
    assert Corpus.open([str(mine)], seed=2).describe() != told


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "holds no pairs"), ("one\n", ":1: "), ("a b\tc\n", "one sentence; wanted 2 or more")],
)
def test_a_file_that_cannot_teach_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "few.tsv"
    path.write_text(content, "utf-8")
    with pytest.raises((ArgumentError, FileError), match=message):
        Corpus.open([str(path)])


def test_a_set_twice_and_a_limit_of_one_are_refused() -> None:
    with pytest.raises(ArgumentError, match="clauses, clauses; wanted each set once"):
        Corpus.open([CLAUSES, CLAUSES])
    with pytest.raises(ArgumentError, match="limit is 1; wanted 2"):
        Corpus.open(limit=1)


def _parts(text: str) -> list[str]:
    """Sentences between the joints."""
    parts, words = [[]], text.split()
    for word in words:
        if word in dict(JOINTS):
            parts.append([])
        else:
            parts[-1].append(word)
    return [" ".join(part) for part in parts]
