"""What must not be written, against Hugging Face's processors in float64."""

import torch
from torch import Tensor

from qkv.models.language import WritingRules
from qkv.models.writing.restrictions import Restrictions

PROMPTS = [[5, 5, 7], [0, 1], [12]]
LIMITS = [4, 2, 9]


def numbers(size: int = 13) -> Tensor:
    return torch.randn(3, size, dtype=torch.float64)


def test_the_penalty_is_hugging_faces_and_padding_has_none() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    theirs = RepetitionPenaltyLogitsProcessor(1.7, prompt_ignore_length=torch.tensor([0, 1, 2]))
    ids = torch.tensor([[5, 5, 7], [9, 0, 1], [9, 9, 12]])
    ours = Restrictions(WritingRules(), 1.7, PROMPTS, LIMITS)
    for written in range(5):
        logits = numbers()
        before = logits.clone()
        torch.testing.assert_close(ours(logits, written), theirs(ids, logits), rtol=0, atol=1e-12)
        assert torch.equal(logits, before)
        tokens = torch.randint(13, (3,))
        ids = torch.cat([ids, tokens[:, None]], 1)
        ours.wrote(tokens)


def test_rows_that_go_on_from_others_take_their_penalty_along() -> None:
    ours = Restrictions(WritingRules(), 2.0, PROMPTS, LIMITS)
    ones = torch.ones(3, 13)
    ours(ones, 0)
    ours.wrote(torch.tensor([1, 2, 3]))
    ours.keep([2, 0])
    seen = [set(row.nonzero().flatten().tolist()) for row in ours(ones[:2], 1) < 1]
    assert seen == [{12, 3}, {5, 7, 1}]


def test_tokens_that_are_never_written_are_hugging_faces() -> None:
    from transformers.generation.logits_process import (
        SuppressTokensAtBeginLogitsProcessor,
        SuppressTokensLogitsProcessor,
    )

    rules = WritingRules(never=frozenset({3, 11}), never_first=frozenset({0, 3, 4}))
    always = SuppressTokensLogitsProcessor([3, 11])
    first = SuppressTokensAtBeginLogitsProcessor([0, 3, 4], begin_index=3)
    ours = Restrictions(rules, 1.0, PROMPTS, LIMITS)
    ids = torch.tensor([[5, 5, 7], [9, 0, 1], [9, 9, 12]])
    for written in range(3):
        logits = numbers()
        before = logits.clone()
        expected = first(ids, always(ids, logits))
        assert torch.equal(ours(logits, written), expected)
        assert torch.equal(logits, before)
        ids = torch.cat([ids, ids[:, :1]], 1)


def test_the_last_token_is_forced_where_a_row_is_as_long_as_it_may_be() -> None:
    ours = Restrictions(WritingRules(last=6, never=frozenset({6})), 1.0, PROMPTS, LIMITS)
    forced = [-torch.inf] * 6 + [0.0] + [-torch.inf] * 6
    for written, rows in ((0, []), (1, [1]), (2, []), (3, [0])):
        logits = numbers()
        before = logits.clone()
        found = ours(logits, written)
        assert [row for row in range(3) if found[row].tolist() == forced] == rows
        assert torch.equal(logits, before)
    ours.keep([1, 2])
    assert ours(numbers()[:2], 8)[1].tolist() == forced
