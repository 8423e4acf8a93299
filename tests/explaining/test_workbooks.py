"""The article's calculations and a real model's head, recalculated by LibreOffice."""

import pytest

from qkv.explaining.examples import EXAMPLES, explain_example
from qkv.explaining.model import ModelText
from tests.show.libreoffice import assert_all_recalculate, assert_recalculates


@pytest.mark.slow
def test_every_example_recalculates_to_numpys_numbers(tmp_path):
    assert_all_recalculate({name: explain_example(name) for name in EXAMPLES}, tmp_path)


@pytest.mark.slow
def test_a_head_of_minilm_recalculates_to_numpys_numbers(minilm_folder, tmp_path):
    text = "the coffee spilled on the laptop and it stopped working"
    assert_recalculates(ModelText.read(text, "minilm").explain(6, 6), tmp_path)
