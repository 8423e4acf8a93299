"""Whisper against Hugging Face's own, from the same files: sound, states, logits, whole texts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from qkv.errors import ArgumentError, ModelError
from qkv.models import load
from qkv.models.whisper import Whisper
from qkv.models.writing.generate import write
from qkv.models.writing.sampling import Sampling
from tests.models.peers import close

TINY = {
    "vocab_size": 101, "num_mel_bins": 7, "d_model": 30, "encoder_layers": 3,
    "encoder_attention_heads": 5, "encoder_ffn_dim": 37, "decoder_layers": 2,
    "decoder_attention_heads": 3, "decoder_ffn_dim": 41, "max_source_positions": 23,
    "max_target_positions": 43,
}  # fmt: skip
EQUAL = dict.fromkeys(TINY, 8) | {
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
}  # fmt: skip
TOKENS = {
    "decoder_start_token_id": 3, "bos_token_id": 3, "eos_token_id": 2, "pad_token_id": 2,
    "suppress_tokens": [5, 7], "begin_suppress_tokens": [6, 2],
}  # fmt: skip
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}

Tiny = Callable[..., tuple[Path, Any]]


@pytest.fixture
def whisper(tmp_path: Path) -> Tiny:
    """Make a folder of random weights, and return it with Hugging Face's model of it."""

    def build(**sizes: Any) -> tuple[Path, Any]:
        from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

        config = WhisperConfig(**(TINY | TOKENS | sizes), attn_implementation="eager")
        model = WhisperForConditionalGeneration(config).double()
        with torch.no_grad():  # also what starts as 0 or 1, which would hide its misuse
            for parameter in model.parameters():
                parameter.normal_(std=0.3)
            decoder = model.model.decoder  # else a few tokens would be repeated
            decoder.embed_tokens.weight.copy_(0.4 * normalize(decoder.embed_tokens.weight, dim=-1))
            decoder.layer_norm.bias.mul_(0.05)
            decoder.layer_norm.weight.add_(1)
            decoder.embed_positions.weight.mul_(3)
        model.generation_config = GenerationConfig(**TOKENS, return_timestamps=False)
        folder = tmp_path / "whisper"
        model.save_pretrained(folder)
        return folder, model.eval()

    return build


def read(folder: Path, dtype: torch.dtype = torch.float64, device: Any = "cpu") -> Whisper:
    model: Whisper = load(folder, dtype=dtype, device=device)
    return model


def change(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")


def drawn(sizes: dict[str, Any], batch: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Draw a spectrogram as long as the model's window, and a text."""
    frames = 2 * sizes["max_source_positions"]
    mel = torch.randn(batch, sizes["num_mel_bins"], frames, dtype=torch.float64)
    return mel, torch.randint(sizes["vocab_size"], (batch, tokens))


# --- states and logits ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sizes", [TINY, EQUAL], ids=["unequal primes", "equal"])
@torch.no_grad()
def test_every_state_and_the_logits_equal_hugging_faces(
    whisper: Tiny, sizes: dict[str, Any], dtype: torch.dtype, device: torch.device
) -> None:
    folder, reference = whisper(**sizes)
    model = read(folder, dtype, device)
    batch, tokens = (3, 11) if sizes is TINY else (8, 8)
    mel, ids = drawn(sizes, batch, tokens)
    expected = reference(mel, decoder_input_ids=ids, output_hidden_states=True)
    mel, ids = mel.to(device, dtype), ids.to(device)
    heard = model.encoder_states(mel)
    written = model.hidden_states(ids, model.read(mel))
    assert len(heard) == sizes["encoder_layers"] + 1
    assert len(written) == sizes["decoder_layers"] + 1
    for ours, theirs in zip(heard, expected.encoder_hidden_states, strict=True):
        assert ours.dtype == dtype
        close(ours, theirs, TOLERANCE[dtype])
    for ours, theirs in zip(written, expected.decoder_hidden_states, strict=True):
        close(ours, theirs, TOLERANCE[dtype])
    close(model(mel, ids), expected.logits, TOLERANCE[dtype])


@torch.no_grad()
def test_a_text_alone_equals_itself_padded_on_either_side(whisper: Tiny) -> None:
    model = read(whisper()[0])
    mel, ids = drawn(TINY, 2, 7)
    alone = model(mel[1:], ids[1:, :5])
    right = model(mel, torch.cat([ids[:, :5], ids[:, 5:]], 1), lengths=[7, 5])
    close(right[1, :5], alone[0], 1e-12)
    left = torch.cat([ids[:, 5:], ids[:, :5]], 1)
    close(model(mel, left, lengths=[7, 5], side="left")[1, 2:], alone[0], 1e-12)


@pytest.mark.parametrize("chunk", [1, 3, 11])
@torch.no_grad()
def test_cached_equals_uncached_equals_in_chunks(whisper: Tiny, chunk: int) -> None:
    model = read(whisper()[0])
    mel, ids = drawn(TINY, 3, 11)
    whole, cache = model(mel, ids), model.read(mel)
    for start in range(0, 11, chunk):
        part = ids[:, start : start + chunk]
        close(model.next(part, cache), whole[:, start + part.shape[1] - 1], 1e-10)
    assert cache.length == 11


@torch.no_grad()
def test_a_shorter_spectrogram_has_fewer_states(whisper: Tiny) -> None:
    """Two frames make one row, and an odd one at the end makes one more."""
    model = read(whisper()[0])
    mel, _ = drawn(TINY, 2, 1)
    for frames, rows in [(46, 23), (45, 23), (44, 22), (1, 1)]:
        assert model.encoder_states(mel[:, :, :frames])[0].shape == (2, rows, 30)


def test_gradients_reach_every_parameter(whisper: Tiny) -> None:
    model = read(whisper()[0])
    mel, ids = drawn(TINY, 2, 5)
    model(mel, ids).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


# --- whole texts ----------------------------------------------------------------------------------


def theirs(reference: Any, mel: Tensor, **options: Any) -> list[list[int]]:
    """What Hugging Face writes, without the prompt and what fills up the rows."""
    out = reference.generate(mel, max_new_tokens=32, **options)
    rows = out.tolist() if isinstance(out, Tensor) else out["sequences"].tolist()
    return [[number for number in row if number not in (2, 3)] for row in rows]


def ours(model: Whisper, mel: Tensor, **options: Any) -> list[list[int]]:
    written = write(model, [()] * len(mel), Sampling(max_tokens=32, **options), model.read(mel))
    return [[number for number in row.ids if number not in (2, 3)] for row in written]


@torch.no_grad()
def test_greedy_texts_equal_hugging_faces(whisper: Tiny) -> None:
    folder, reference = whisper()
    mel, _ = drawn(TINY, 5, 1)
    texts = ours(read(folder), mel)
    assert texts == theirs(reference, mel, num_beams=1)
    assert max(len(set(text)) for text in texts) > 3


@torch.no_grad()
def test_texts_of_four_beams_equal_hugging_faces(whisper: Tiny) -> None:
    folder, reference = whisper()
    mel, _ = drawn(TINY, 5, 1)
    assert ours(read(folder), mel, beams=4) == theirs(reference, mel, num_beams=4)


@torch.no_grad()
def test_suppressed_tokens_are_never_written(whisper: Tiny) -> None:
    folder, _ = whisper()
    for ids in ours(read(folder), drawn(TINY, 11, 1)[0]):
        assert not {5, 7} & set(ids)
        assert ids[0] != 6


# --- what stands before a text --------------------------------------------------------------------

MULTILINGUAL = {
    "is_multilingual": True, "no_timestamps_token_id": 90,
    "lang_to_id": {"<|en|>": 80, "<|fr|>": 81}, "task_to_id": {"translate": 84, "transcribe": 85},
}  # fmt: skip


def test_the_prompt_is_the_start_where_the_files_say_no_more(whisper: Tiny) -> None:
    model = read(whisper()[0])
    assert model.rules.starts == (3,)
    assert model.rules.ends == {2}
    assert model.rules.never == {5, 7}
    assert model.rules.never_first == {6, 2}
    assert model.marks.following == ()


def test_a_model_of_one_language_begins_with_start_and_no_timestamps(whisper: Tiny) -> None:
    folder, _ = whisper()
    change(folder, "generation_config.json", no_timestamps_token_id=90, alignment_heads=[[1, 2]])
    model = read(folder)
    assert model.rules.starts == (3, 90)
    assert model.rules.never == {5, 7, *range(91, 101)}
    assert model.marks.following == ((1, 2),)
    with pytest.raises(ArgumentError, match="language is 'fr'; the model knows one language only"):
        model.marks.prompt("fr")


def test_a_model_of_several_languages_is_told_which(whisper: Tiny) -> None:
    folder, _ = whisper()
    change(folder, "generation_config.json", **MULTILINGUAL)
    marks = read(folder).marks
    assert marks.prompt("fr") == (3, 81, 85, 90)
    assert marks.prompt() == (3, 90)
    with pytest.raises(ArgumentError, match="language is 'xx'; the model knows en, fr"):
        marks.prompt("xx")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"no_timestamps_token_id": 101}, "names the token 101; wanted one below 101"),
        ({"decoder_start_token_id": -1}, "names the token -1; wanted one below 101"),
        ({"no_timestamps_token_id": "x"}, "names the token 'x'; wanted one below 101"),
        (MULTILINGUAL | {"lang_to_id": {"<|en|>": True}}, "names the token True"),
        (MULTILINGUAL | {"lang_to_id": [1]}, "lang_to_id is [1]; wanted an object"),
        (MULTILINGUAL | {"task_to_id": 5}, "task_to_id is 5; wanted an object"),
        ({"alignment_heads": [[2, 0]]}, "lists the head [2, 0]; there are 2 × 3"),
        ({"alignment_heads": [[0, 3]]}, "lists the head [0, 3]; there are 2 × 3"),
        ({"alignment_heads": [[0, -1]]}, "lists the head [0, -1]; there are 2 × 3"),
        ({"alignment_heads": [[0, 1, 2]]}, "lists the head [0, 1, 2]; there are 2 × 3"),
        ({"alignment_heads": [7]}, "lists the head 7; there are 2 × 3"),
        ({"alignment_heads": 7}, "alignment_heads is 7; wanted a list"),
        ({"suppress_tokens": [101]}, "suppress_tokens is [101]"),
    ],
)
def test_files_that_name_what_is_not_there_are_refused(
    whisper: Tiny, said: dict[str, Any], message: str
) -> None:
    folder, _ = whisper()
    change(folder, "generation_config.json", **said)
    with pytest.raises(ModelError) as error:
        read(folder)
    assert message in str(error.value)


def test_another_activation_is_refused(whisper: Tiny) -> None:
    folder, _ = whisper()
    change(folder, "config.json", activation_function="relu")
    with pytest.raises(ModelError, match="activation_function is 'relu', only 'gelu' is known"):
        read(folder)


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("shape", [(1, 8, 46), (1, 7, 47), (1, 7, 0), (7, 46)])
def test_a_spectrogram_that_does_not_fit_is_refused(whisper: Tiny, shape: tuple[int, ...]) -> None:
    model = read(whisper()[0])
    with pytest.raises(ArgumentError, match=r"wanted \(batch, mels=7, frames=1 to 46\)"):
        model.read(torch.zeros(shape, dtype=torch.float64))


def test_a_text_longer_than_the_positions_is_refused(whisper: Tiny) -> None:
    model = read(whisper()[0])
    mel, ids = drawn(TINY, 1, 44)
    with pytest.raises(ArgumentError, match="the text has 44 tokens, the model takes 1 to 43"):
        model(mel, ids)
