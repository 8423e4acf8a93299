"""A Calculation as one figure."""

import builtins

import pytest
import torch

from qkv import Mask, SelfAttention
from qkv.core.calculation import Calculation
from qkv.errors import MissingPackageError
from qkv.nn.attention import MaskedSelfAttention

pytest.importorskip("matplotlib")


def masked() -> Calculation:
    layer = MaskedSelfAttention(2, mask=Mask.causal())
    return layer.explain(torch.randn(3, 2), tokens=["draw", "$a_b$", "map"])


def test_every_matrix_becomes_a_labelled_heat_map(tmp_path):
    c = masked()
    figure = c.plot()
    figure.savefig(tmp_path / "steps.png", dpi=40)  # draws the labels, dollar signs included
    titles = [axes.get_title().split("\n")[0] for axes in figure.axes]
    assert titles == [step.name for step in c if step.value.size > 1]
    weights = next(axes for axes in figure.axes if axes.get_title().startswith("weights"))
    assert [label.get_text() for label in weights.get_xticklabels()][::2] == ["draw", "map"]


def test_blocked_entries_are_left_out_of_the_colours():
    axes = next(a for a in masked().plot().axes if a.get_title().startswith("masked"))
    assert axes.images[0].get_array().mask.sum() == 3


def test_without_matplotlib_the_error_says_how_to_install_it(monkeypatch):
    real = builtins.__import__

    def absent(name, *args):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args)

    c = SelfAttention(2).explain(torch.randn(3, 2))
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingPackageError, match=r"pip install 'qkv\[plot\]'"):
        c.plot()
