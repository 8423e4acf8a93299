"""A Calculation in a notebook."""

from html.parser import HTMLParser

import torch

from qkv import MaskedSelfAttention, MultiHeadAttention, SelfAttention


class Tags(HTMLParser):
    """Collects the tags, and complains about ones that are not closed."""

    VOID = frozenset({"br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_is_well_formed_and_has_a_table_for_every_step():
    c = MultiHeadAttention(3, num_heads=2, n_out=3).explain(torch.randn(4, 3))
    tags = Tags()
    tags.feed(c._repr_html_())
    assert tags.open == []
    assert tags.seen.count("table") == len(c)
    assert tags.seen.count("details") == len(c.sections)


def test_blocked_entries_are_shown_as_minus_infinity():
    told = MaskedSelfAttention(2, mask=True).explain(torch.randn(3, 2))._repr_html_()
    assert told.count("<td>-∞</td>") == 2 * 3  # three above the diagonal, in the mask and masked


def test_tokens_are_escaped():
    told = SelfAttention(2).explain(torch.randn(1, 2), tokens=["<script>alert(1)</script>"])
    assert "<script>" not in told._repr_html_()
    assert "&lt;script&gt;" in told._repr_html_()


def test_large_matrices_show_their_corner():
    told = SelfAttention(40).explain(torch.randn(30, 40))._repr_html_()
    assert "the corner of 30 × 40" in told
