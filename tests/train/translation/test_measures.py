"""The measures of translations: sacrebleu's, and the exact share."""

import pytest
import sacrebleu

from qkv.errors import MissingPackageError
from qkv.train.translation import measures
from qkv.train.translation.measures import check_package, measured

WANTED = ["el cielo es azul", "la casa es muy blanca y está lejos", "veo a los niños"]
FOUND = ["el cielo es azul", "la casa es blanca y está lejos", "veo los niño"]


def test_measures_are_those_of_sacrebleu_and_the_exact_share():
    told = measured(FOUND, WANTED)
    assert list(told) == ["chrf", "bleu", "exact"]
    assert told["exact"] == 1 / 3
    assert told["chrf"] == pytest.approx(sacrebleu.CHRF().corpus_score(FOUND, [WANTED]).score)
    assert told["bleu"] == pytest.approx(sacrebleu.BLEU().corpus_score(FOUND, [WANTED]).score)
    assert measured(WANTED, WANTED) == pytest.approx({"chrf": 100, "bleu": 100, "exact": 1})


def test_a_list_that_is_too_short_is_no_measure():
    with pytest.raises(ValueError, match="zip"):
        measured(FOUND[:2], WANTED)


def test_without_sacrebleu_it_is_said_how_to_install_it(monkeypatch):
    monkeypatch.setattr(measures, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'qkv\[train\]'"):
        check_package()
