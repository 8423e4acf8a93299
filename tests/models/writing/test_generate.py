"""Greedy and drawn text: Hugging Face's tokens, rows that do not know of each other, clean ends."""

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qkv.errors import ArgumentError, ModelError
from qkv.models.formats.files import Files
from qkv.models.language import LanguageModel, WritingRules
from qkv.models.writing.generate import Writer, stream, write
from qkv.models.writing.sampling import Sampling
from qkv.models.writing.written import Written
from qkv.nn.cache import KeyValueCache
from tests.models import writers
from tests.models.writers import END, Fake, byte_tokenizer, prompts, scripted, theirs_writes

LENGTHS = [7, 3, 11, 7]
EQUAL = [5, 5]
MAKERS = {"llama": writers.llama, "gpt2": writers.gpt2}
BYTES = byte_tokenizer("t h", "th e", "Ġ the")
STOP_AT = frozenset({1})


NO_FILES = Files(Path("/no/such"))


class Said(SimpleNamespace):
    """A configuration of 9 tokens."""

    vocab_size = 9


@pytest.fixture(params=MAKERS)
def pair(
    request: pytest.FixtureRequest, tmp_path: Path, as_shipped: None
) -> tuple[LanguageModel, Any]:
    """Our model and Hugging Face's, of the same weights; shapes unchecked, which takes long."""
    return MAKERS[request.param](tmp_path)


@pytest.fixture
def model(tmp_path: Path, as_shipped: None) -> LanguageModel:
    """A Llama of 40 positions that hardly ever ends by itself."""
    return writers.llama(tmp_path, max_position_embeddings=40, eos_token_id=None)[0]


def ids(written: list[Written]) -> list[tuple[int, ...]]:
    return [row.ids for row in written]


# --- what stands before all ---


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rules_that_forbid_every_token_are_named(model: LanguageModel, temperature: float) -> None:
    every = frozenset(range(model.config.vocab_size))
    model.rules = replace(model.rules, never=every)
    with pytest.raises(ModelError, match="no token may be written"):
        model.generate([[5, 6]], max_tokens=3, temperature=temperature)


@pytest.mark.parametrize("begin", [1, 42])
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.usefixtures("as_shipped")
def test_a_text_from_nothing_begins_as_hugging_faces(tmp_path: Path, name: str, begin: int) -> None:
    ours, theirs = MAKERS[name](tmp_path, bos_token_id=begin)
    expected = theirs.generate(do_sample=False, max_new_tokens=9)[0].tolist()
    (written,) = ours.generate([[]], max_tokens=9)
    assert [begin, *written.ids] == expected
    assert ours.rules.starts == (begin,)


def test_what_starts_a_decoder_goes_before_what_begins_a_text() -> None:
    config, files = SimpleNamespace(vocab_size=9, bos_token_id=3), Files(Path("nowhere"))
    assert WritingRules.of(config, files).starts == (3,)
    config.decoder_start_token_id = 0
    assert WritingRules.of(config, files).starts == (0,)


# --- Hugging Face's tokens ------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [LENGTHS, EQUAL, [9]])
def test_32_greedy_tokens_are_hugging_faces(pair: tuple[Any, Any], lengths: list[int]) -> None:
    ours, theirs = pair
    for seed in range(2):
        rows = prompts(lengths, seed)
        found = ours.generate(rows, max_tokens=32)
        assert ids(found) == theirs_writes(theirs, rows, max_new_tokens=32)[1]
        for row in found:
            assert row.reason == ("end" if row.ids[-1] == END else "length")


def test_rows_that_end_early_do_not_disturb_the_others(tmp_path: Path) -> None:
    ends = [END, *range(10, 18)]
    ours, theirs = writers.llama(tmp_path, eos_token_id=ends)
    rows = prompts([7, 3, 11, 7, 2, 5, 13, 4])
    found = ours.generate(rows, max_tokens=32)
    assert ids(found) == theirs_writes(theirs, rows, max_new_tokens=32)[1]
    assert len({len(row.ids) for row in found}) > 4


def test_the_penalty_on_repetitions_is_hugging_faces(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    rows = prompts(LENGTHS)
    options = {"repetition_penalty": 1.3}
    found = ours.generate(rows, max_tokens=32, **options)
    assert ids(found) == theirs_writes(theirs, rows, max_new_tokens=32, **options)[1]
    assert ids(found) != ids(ours.generate(rows, max_tokens=32))


def test_a_translation_is_hugging_faces_with_its_forced_end(tmp_path: Path) -> None:
    ours, theirs = writers.marian(tmp_path)
    source, lengths = padded_source([5, 9, 2])
    for most in (1, 4, 32):
        found = ours.generate([[]] * 3, cache=ours.read(source, lengths), max_tokens=most)
        expected = theirs_writes(
            theirs, [[0]], source=given(source, lengths), max_new_tokens=most, num_beams=1
        )
        assert ids(found) == expected[1]
        assert found[0].ids[-1] == END


def padded_source(lengths: list[int]) -> tuple[torch.Tensor, list[int]]:
    rows = [torch.tensor(row) for row in prompts(lengths, seed=5)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=100), lengths


def given(source: torch.Tensor, lengths: list[int]) -> dict[str, torch.Tensor]:
    real = torch.arange(source.shape[1]) < torch.tensor(lengths)[:, None]
    return {"input_ids": source, "attention_mask": real.long()}


def test_the_score_is_the_mean_log_probability(pair: tuple[Any, Any]) -> None:
    ours, _ = pair
    (prompt,) = prompts([7])
    (found,) = ours.generate([prompt], max_tokens=9)
    with torch.no_grad():
        logits = ours(torch.tensor([[*prompt, *found.ids]]))[0].log_softmax(-1)
    chances = [logits[6 + i, token].item() for i, token in enumerate(found.ids)]
    assert found.score == pytest.approx(sum(chances) / len(chances), abs=1e-12)


# --- rows, chunks, caches -------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"temperature": 1.2, "seed": 7}])
def test_a_row_does_not_depend_on_the_others(pair: tuple[Any, Any], options: Any) -> None:
    ours, _ = pair
    rows = prompts(LENGTHS)
    together = ids(ours.generate(rows, max_tokens=20, **options))
    others = prompts([2, 19, 5, 8], seed=9)
    for i, row in enumerate(rows):
        mixed = [row if i == j else other for j, other in enumerate(others)]
        assert ids(ours.generate(mixed, max_tokens=20, **options))[i] == together[i]
    if not options:
        assert [ids(ours.generate([row], max_tokens=20))[0] for row in rows] == together


@pytest.mark.parametrize("chunk", [1, 2, 5, 7, 11])
def test_chunks_of_the_prompt_change_nothing(pair: tuple[Any, Any], chunk: int) -> None:
    ours, _ = pair
    rows = prompts([11, 3, 1, 7])
    whole, parts = (ours.generate(rows, max_tokens=12, chunk=n) for n in (512, chunk))
    assert ids(whole) == ids(parts)
    assert [row.score for row in parts] == pytest.approx([row.score for row in whole], abs=1e-9)


def test_a_prompt_is_read_in_chunks_and_each_token_once() -> None:
    fake = Fake(scripted({(5, 6, 7, 8, 9): [1, 2, 3], (5, 6): [4, 4, 4]}, 10))
    assert ids(fake.generate([[5, 6, 7, 8, 9], [5, 6]], max_tokens=3, chunk=2)) == [
        (1, 2, 3),
        (4, 4, 4),
    ]
    assert fake.reads == [(2, 2), (2, 2), (2, 1), (2, 1), (2, 1)]


def test_rows_that_have_ended_are_left_out() -> None:
    scripts = {(5,): [2, 2, 2, 2], (6, 6): [1], (7, 7, 7): [2, 3, 1], (8,): [1]}
    fake = Fake(scripted(scripts, 10), rules=WritingRules(ends=STOP_AT))
    found = fake.generate(list(scripts), max_tokens=4)
    assert ids(found) == [tuple(script) for script in scripts.values()]
    assert [row.reason for row in found] == ["length", "end", "end", "end"]
    assert fake.reads == [(4, 3), (2, 1), (2, 1), (1, 1)]


def test_a_cache_that_has_read_is_refused(model: LanguageModel) -> None:
    cache = model.new_cache()
    model.generate([[5, 6]], max_tokens=3, cache=cache)
    with pytest.raises(ArgumentError, match="the cache has read 4 tokens already; wanted a fresh"):
        model.generate([[5, 6]], cache=cache)


def test_prompts_that_do_not_match_the_sources_are_refused(tmp_path: Path) -> None:
    ours, _ = writers.marian(tmp_path)
    source, lengths = padded_source([5, 9, 2])
    message = "there are 2 prompts, and the cache remembers 3 sources; wanted one prompt for each"
    with pytest.raises(ArgumentError, match=message):
        ours.generate([[], []], cache=ours.read(source, lengths))


# --- the end of a text ----------------------------------------------------------------------------


def test_a_text_ends_where_the_model_has_no_more_positions(model: LanguageModel) -> None:
    rows = prompts([40, 33, 39, 5])
    found = model.generate(rows, max_tokens=64)
    assert [len(row.ids) for row in found] == [1, 8, 2, 36]
    assert {row.reason for row in found} == {"length"}
    assert ids(found) == [ids(model.generate([row], max_tokens=64))[0] for row in rows]


@pytest.mark.parametrize("beams", [1, 3])
def test_a_prompt_that_is_too_long_is_refused(model: LanguageModel, beams: int) -> None:
    message = r"prompt 1 has 41 tokens, the model has 40 positions: choose a shorter prompt"
    with pytest.raises(ArgumentError, match=message):
        model.generate(prompts([3, 41]), beams=beams)


def test_the_last_token_is_forced_at_each_rows_own_end() -> None:
    fake = Fake(
        scripted({(5,): [2] * 9, (6, 6, 6): [2] * 9}, 10),
        rules=WritingRules(ends=STOP_AT, last=1), most=5,
    )  # fmt: skip
    assert ids(fake.generate([[5], [6, 6, 6]], max_tokens=4)) == [(2, 2, 2, 1), (2, 2, 1)]


def test_rules_say_what_begins_a_text_and_what_is_never_written() -> None:
    rules = WritingRules(starts=(7, 8), never=frozenset({2}), never_first=frozenset({3, 1}))
    fake = Fake(lambda read: [0, 4, 9, 5, 3, 2, 1, 0, 0, 0], rules=rules)
    (found,) = fake.generate([[]], max_tokens=3)
    assert (found.ids, fake.reads[0]) == ((4, 3, 3), (1, 2))


def test_an_empty_prompt_is_refused_where_nothing_begins_a_text() -> None:
    with pytest.raises(ArgumentError, match="prompt 1 is empty: the model wants a token to begin"):
        Fake(scripted({}, 9)).generate([[5], []])


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"prompts is \[\]; wanted the tokens of one or more texts"),
        ([5, 6], "prompt 0 is 5; wanted the numbers of its tokens"),
        ([[5], [6.0]], r"prompt 1 is \[6.0\]; wanted the numbers of its tokens"),
        ([[True]], r"prompt 0 is \[True\]; wanted the numbers of its tokens"),
    ],
)
def test_what_are_no_prompts_is_refused(rows: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Fake(scripted({}, 9)).generate(rows)


def test_logits_that_are_no_numbers_are_refused() -> None:
    for options in ({}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3}):
        with pytest.raises(ModelError, match="the logits of token 2 are not numbers"):
            Fake(lambda read: [float("nan")] * 9).generate([[5, 6]], **options)
    for late in (0, 2):  # at once, and when some is written
        fake = Fake(lambda read, late=late: [float("nan") if len(read) >= 2 + late else 1.0] * 9)
        with pytest.raises(ModelError, match=f"logits of token {2 + late} are not numbers"):
            fake.generate([[5, 6]], beams=2, max_tokens=9)
        assert len(fake.reads) == 1 + late


def test_options_are_known_by_name_in_generate_and_stream() -> None:
    fake, message = Fake(scripted({}, 9)), "there is no option max_new_tokens; known are"
    with pytest.raises(ArgumentError, match=message):
        fake.generate([[5]], max_new_tokens=5)
    with pytest.raises(ArgumentError, match=message):
        fake.stream([5], max_new_tokens=5)


@pytest.mark.parametrize(
    ("words", "wanted"), [([[4], [7]], {4, 7}), ([], set()), (None, set()), ([(5,)], {5})]
)
def test_forbidden_words_of_one_token_are_never_written(words: Any, wanted: set[int]) -> None:
    assert WritingRules.of(Said(bad_words_ids=words), NO_FILES).never == wanted


@pytest.mark.parametrize("words", [[[4, 5]], [[4], [5, 6]], [[]], [4], 4, "ab", [None], {"a": 1}])
def test_forbidden_words_that_cannot_be_obeyed_are_refused(words: Any) -> None:
    with pytest.raises(ModelError, match=r"bad_words_ids holds .*; wanted lists of one token each"):
        WritingRules.of(Said(bad_words_ids=words), NO_FILES)


# --- drawing --------------------------------------------------------------------------------------


def test_the_same_seed_draws_the_same_and_another_draws_another(model: LanguageModel) -> None:
    rows = prompts(LENGTHS)
    options: dict[str, Any] = {"temperature": 1.5, "max_tokens": 20}
    once, again, other = (ids(model.generate(rows, seed=n, **options)) for n in (3, 3, 4))
    assert once == again
    assert all(a != b for a, b in zip(once, other, strict=True))


def test_rows_of_one_prompt_draw_by_themselves(model: LanguageModel) -> None:
    rows = prompts([5]) * 4
    assert len(set(ids(model.generate(rows, temperature=1.5, max_tokens=20)))) == 4


@pytest.mark.usefixtures("as_shipped")
def test_global_random_numbers_stay_as_they_are(model: LanguageModel) -> None:
    before = torch.random.get_rng_state(), random.getstate()
    model.generate(prompts(LENGTHS), temperature=1.0, top_p=0.9, max_tokens=5)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert before[1] == random.getstate()


def test_texts_are_as_likely_as_the_model_says() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [1.5, 0.0, 0.5]], dtype=torch.float64)
    fake = Fake(lambda read: logits[len(read) % 2].tolist())
    times = 3000
    found = fake.generate([[0]] * times, temperature=0.8, max_tokens=2)
    first, second = (logits[i] / 0.8 for i in (1, 0))
    expected = torch.outer(first.softmax(0), second.softmax(0)).flatten() * times
    counts = torch.bincount(torch.tensor([3 * a + b for a, b in ids(found)]), minlength=9)
    distance = ((counts - expected) ** 2 / expected).sum()  # χ² with 8 degrees of freedom
    assert distance < 26.1  # 99.9 %


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}])
def test_filters_that_leave_one_token_are_greedy(model: LanguageModel, options: Any) -> None:
    rows = prompts(LENGTHS)
    drawn = model.generate(rows, temperature=2.0, max_tokens=15, **options)
    assert ids(drawn) == ids(model.generate(rows, max_tokens=15))


# --- text -----------------------------------------------------------------------------------------


def talker(*says: str) -> tuple[Fake, list[list[int]]]:
    """Make a fake that writes each of these texts, and the prompts after which it does."""
    starts = [list(BYTES("ab" * i + "x").ids) for i in range(len(says))]
    scripts = {
        tuple(start): [*BYTES(text).ids, 1] for start, text in zip(starts, says, strict=True)
    }
    rules = WritingRules(ends=STOP_AT)
    return Fake(scripted(scripts, BYTES.size), rules=rules, tokenizer=BYTES), starts


SAYS = ("I see the café\n\nand the sea", "the 🙂 end", "no € here")


def test_the_text_is_that_of_the_tokens_without_prompt_and_end() -> None:
    fake, starts = talker(*SAYS)
    found = fake.generate(starts)
    assert [row.text for row in found] == list(SAYS)
    assert all(row.reason == "end" and row.ids[-1] == 1 for row in found)


@pytest.mark.parametrize("beams", [1, 3])
def test_stop_texts_end_each_row_where_they_are_complete(beams: int) -> None:
    fake, starts = talker(*SAYS)
    found = fake.generate(starts, stop=("\n\n", " end", "zzz"), beams=beams)
    assert [row.text for row in found] == ["I see the café", "the 🙂", "no € here"]
    assert [row.reason for row in found] == ["stop", "stop", "end"]
    assert BYTES.decode(found[0].ids) == "I see the café\n\n"


@pytest.mark.parametrize("options", [{}, {"stop": ("\n\n", "e s")}, {"max_tokens": 15}])
def test_a_stream_joins_to_the_generated_text(options: dict[str, Any]) -> None:
    fake, starts = talker(*SAYS)
    for start, text in zip(starts, SAYS, strict=True):
        pieces = list(fake.stream(start, **options))
        (found,) = fake.generate([start], **options)
        assert "".join(pieces) == found.text
        assert "" not in pieces
        if not options:
            assert found.text == text
            assert len(pieces) > 5


def test_half_a_character_at_the_end_is_the_same_in_stream_and_text() -> None:
    fake, starts = talker("a€")
    (found,) = fake.generate(starts, max_tokens=3)
    assert found.text == "a\ufffd" == "".join(fake.stream(starts[0], max_tokens=3))


def test_a_text_is_a_prompt_and_so_are_several() -> None:
    fake, _ = talker(*SAYS)
    assert [row.text for row in fake.generate("x")] == [SAYS[0]]
    assert [row.text for row in fake.generate(["abx", "x"])] == [SAYS[1], SAYS[0]]
    assert "".join(fake.stream("abx")) == SAYS[1]


def test_a_model_without_a_tokenizer_writes_tokens_only(model: LanguageModel) -> None:
    (found,) = model.generate(prompts([3]), max_tokens=2)
    with pytest.raises(ModelError, match="has no tokenizer: there are ids, but no text"):
        assert found.text
    for call in (
        lambda: model.generate("text"),
        lambda: model.generate(prompts([3]), stop=("a",)),
        lambda: model.generate(prompts([3]), stop=("a",), beams=2),
        lambda: model.stream(prompts([3])[0]),
    ):
        with pytest.raises(ModelError, match="has no tokenizer: give it ids, not text"):
            call()


def test_a_stream_of_beams_is_refused_at_once() -> None:
    fake, starts = talker("a")
    with pytest.raises(ArgumentError, match="beams is 4, but the text of a beam search is known"):
        fake.stream(starts[0], beams=4)


# --- what stays behind ----------------------------------------------------------------------------


def test_a_model_trains_after_it_has_written(model: LanguageModel) -> None:
    model.generate(prompts([5, 3]), max_tokens=4, temperature=1.0)
    model.generate(prompts([5, 3]), max_tokens=4, beams=2)
    assert not torch.is_inference_mode_enabled()
    model(torch.tensor(prompts([7]))).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_between_pieces_of_a_stream_gradients_are_on() -> None:
    fake, starts = talker("several pieces")
    for _ in fake.stream(starts[0]):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()


def test_text_is_read_only_where_somebody_asks_for_it() -> None:
    fake, starts = talker(*SAYS)
    asleep = Writer(fake, starts, Sampling(), None, live=False)
    assert all(row.text is None for row in asleep.rows)


def test_write_and_stream_have_greedy_defaults() -> None:
    fake, starts = talker(*SAYS)
    assert write(fake, starts)[1].text == SAYS[1] == "".join(stream(fake, starts[1]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logits_of_half_precision_are_chosen_from_in_float32(dtype: torch.dtype) -> None:
    class Half(Fake):
        def next(self, ids: torch.Tensor, cache: KeyValueCache, lengths: Any = None) -> Any:
            return super().next(ids, cache, lengths).to(dtype)

    (found,) = Half(lambda read: [1.0, 3.0, 2.0]).generate([[0]], max_tokens=4)
    expected = torch.tensor([1.0, 3.0, 2.0]).log_softmax(0)[1].item()
    assert (found.ids, found.score) == ((1, 1, 1, 1), pytest.approx(expected, abs=1e-6))
