"""`qkv generate`: text as it grows on stdout, how fast on stderr, and clean ends."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from qkv.cli import opening
from qkv.models.language import WritingRules
from tests.models.conftest import smollm2_file as smollm2_file  # noqa: PLC0414
from tests.models.writers import Fake, byte_tokenizer, scripted, whimsical

RUN = [sys.executable, "-W", "error", "-c", "from qkv.cli.main import run; run()"]
BYTES = byte_tokenizer("t h", "th e")
SIZE = BYTES.size
END = 1


def spelled(text):
    return list(BYTES(text).ids)


class Model(Fake):
    """A fake that is interrupted after so many steps."""

    steps = -1

    def next(self, ids, cache, lengths=None):
        self.steps -= 1
        if self.steps == 0:
            raise KeyboardInterrupt
        return super().next(ids, cache, lengths)


def writer(scripts=None, **options):
    """A model that writes after each prompt what its script says, and then the end."""
    if scripts is None:
        choose = whimsical(SIZE)
    else:
        choose = scripted({tuple(spelled(p)): [*spelled(t), END] for p, t in scripts.items()}, SIZE)
    rules = WritingRules(ends=frozenset({END}), never=frozenset({0}))
    return Model(choose, rules=rules, tokenizer=BYTES, **options)


@pytest.fixture
def use(monkeypatch):
    """Let the command use a model."""

    def give(model):
        monkeypatch.setattr(opening, "where", lambda name, wanted: Path(name))
        monkeypatch.setattr(opening, "opened", lambda name, path, wanted: model)
        return model

    return give


def test_the_text_alone_goes_to_stdout_and_the_speed_to_stderr(qkv, use):
    use(writer({"The sky": " is the\nbest é 🙂"}))
    ended = qkv("generate", "The sky")
    assert (ended.code, ended.out) == (0, " is the\nbest é 🙂\n")
    tokens = len(spelled(" is the\nbest é 🙂")) + 1
    wanted = rf"{tokens} tokens in \d+\.\d s, \d+\.\d a second; it ended by itself\n"
    assert re.fullmatch(wanted, ended.err)


def test_the_text_is_written_as_it_grows(qkv, use, monkeypatch):
    pieces = []
    monkeypatch.setattr("qkv.cli.writing.write", pieces.append)
    use(writer({"a": "the é🙂 b"}))
    qkv("generate", "a")
    assert pieces == ["the", " ", "é", "🙂", " ", "b", "\n"]


@pytest.mark.parametrize(
    ("arguments", "text", "why"),
    [
        (["--max-tokens", "3"], "one", "it is as long as it may be"),
        (["--stop", "x", "--stop", " th"], "one two", "it came to a stop text"),
        ([], "one two three", "it ended by itself"),
    ],
)
def test_why_a_text_ends_is_said(qkv, use, arguments, text, why):
    use(writer({"a": "one two three"}))
    ended = qkv("generate", "a", *arguments)
    assert ended.out == f"{text}\n"
    assert ended.err.endswith(f"; {why}\n")


def test_several_prompts_are_one_batch_each_text_below_its_prompt(qkv, use):
    model = use(writer({"one": " a", "three and": " b\nc [bold]"}))
    ended = qkv("generate", "one", "three and")
    assert ended.out == "one\n a\n\nthree and\n b\nc [bold]\n"
    assert model.reads[0] == (2, len(spelled("three and")))
    assert "ended" not in ended.err


def test_json_says_everything_and_nothing_else_is_written(qkv, use):
    use(writer({"one": " a", "three and": " b\nc"}))
    ended = qkv("generate", "one", "three and", "--json", "--max-tokens", 9)
    assert ended.err == ""
    told = json.loads(ended.out)
    assert told["model"] == "smollm2"
    assert told["prompts"] == ["one", "three and"]
    assert told["options"]["max_tokens"] == 9
    assert [text["text"] for text in told["texts"]] == [" a", " b\nc"]
    assert [text["reason"] for text in told["texts"]] == ["end", "end"]
    assert told["texts"][0]["ids"] == [*spelled(" a"), END]
    assert told["texts"][0]["score"] < 0
    assert told["seconds"] > 0


def test_every_option_reaches_the_library(qkv, use):
    model = use(writer())
    options = {"max_tokens": 11, "temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.01,
               "repetition_penalty": 1.2, "seed": 5}  # fmt: skip
    said = [x for name, value in options.items() for x in (f"--{name.replace('_', '-')}", value)]
    wanted = model.generate(["one", "two"], **options)
    told = json.loads(qkv("generate", "one", "two", *said, "--json").out)
    assert [tuple(text["ids"]) for text in told["texts"]] == [one.ids for one in wanted]
    assert [text["score"] for text in told["texts"]] == [one.score for one in wanted]
    assert qkv("generate", "one", *said).out.rstrip("\n") != ""
    wanted = model.generate("one", beams=3, max_tokens=7, stop=("q",))
    said = ("--beams", 3, "--max-tokens", 7, "--stop", "q")
    told = json.loads(qkv("generate", "one", *said, "--json").out)
    assert tuple(told["texts"][0]["ids"]) == wanted[0].ids
    assert (told["options"]["beams"], told["options"]["stop"]) == (3, ["q"])
    assert qkv("generate", "one", *said).code == 0


def test_the_same_seed_writes_the_same_text(qkv, use):
    use(writer())
    drawn = [
        qkv("generate", "a", "--temperature", 1, "--max-tokens", 20, "--seed", seed).out
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_prompt_may_come_from_stdin(qkv, use, monkeypatch):
    use(writer({"a\nb": "x", "c": "y"}))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    assert qkv("generate", "-").out == "x\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\r\n")))
    assert qkv("generate", "c", "-").out == "c\ny\n\na�b\nx\n"


def test_a_chat_is_put_as_its_models_are_used_to(qkv, use):
    model = use(writer({"hi": "x"}))
    ended = qkv("generate", "hi", "--chat")
    assert (ended.code, ended.out) == (2, "")
    assert "--chat wants a model that knows <|im_start|> and <|im_end|>" in ended.err
    BYTES_CHAT = byte_tokenizer()
    BYTES_CHAT._rules.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    model._tokenizer = BYTES_CHAT
    asked = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    ids = tuple(BYTES_CHAT(asked).ids)
    model.choose = scripted({ids: [*BYTES_CHAT("Hello.").ids, END]}, BYTES_CHAT.size)
    assert qkv("generate", "hi", "--chat").out == "Hello.\n"


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_ctrl_c_ends_with_what_was_written(qkv, use, form):
    use(writer({"a": "the best"})).steps = 4
    ended = qkv("generate", "a", "--stop", " b no", *form)
    assert ended.code == 130
    if form:
        (told,) = json.loads(ended.out)["texts"]
        assert (told["text"], told["reason"]) == ("the b", "interrupted")
    else:
        assert ended.out == "the b\n"  # " b" was held back: a stop text could have begun there
        assert ended.err.endswith("; it was interrupted\n")


def test_ctrl_c_before_anything_is_written_leaves_an_empty_line(qkv, use):
    use(writer({"a": "the best"})).steps = 1
    assert qkv("generate", "a")[:2] == (130, "\n")
    use(writer({"a": "the best"})).steps = 2
    assert qkv("generate", "a", "--beams", 2)[:2] == (130, "")


def test_what_a_terminal_would_obey_is_shown_as_text(qkv, use):
    use(writer({"a": "\x1b[31mred\x07\r\tx‌y\n"}))
    assert qkv("generate", "a").out == "�[31mred��\tx‌y\n\n"
    told = json.loads(qkv("generate", "a", "--json").out)
    assert told["texts"][0]["text"] == "\x1b[31mred\x07\r\tx‌y\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "PROMPT is missing; wanted a text, or - to read it from stdin"),
        ([""], "PROMPT is ''; wanted a text"),
        (["a", " \n"], "PROMPT 2 is ' �n'; wanted a text"),
        (["-", "-"], "PROMPT is - more than once"),
        (["a", "--max-tokens", "0"], "max_tokens is 0; wanted a whole number, 1 or more"),
        (["a", "--temperature", "-1"], "temperature is -1.0; wanted a number 0 or more"),
        (["a", "--temperature", "nan"], "temperature is nan; wanted a number 0 or more"),
        (["a", "--top-k", "5"], "top_k is 5, but at temperature 0 nothing is drawn"),
        (["a", "--top-k", "0", "--temperature", "1"], "top_k is 0; wanted a whole number"),
        (["a", "--top-p", "1.5", "--temperature", "1"], "top_p is 1.5; wanted a number above 0"),
        (["a", "--min-p", "0", "--temperature", "1"], "min_p is 0.0; wanted a number above 0"),
        (["a", "--beams", "0"], "beams is 0; wanted 1 to 64"),
        (["a", "--beams", "9999999"], "beams is 9999999; wanted 1 to 64"),
        (["a", "--beams", "2", "--temperature", "1"], "a beam search draws nothing"),
        (["a", "--seed", "3"], "seed is 3, but at temperature 0 nothing is drawn"),
        (["a", "--repetition-penalty", "0"], "repetition_penalty is 0.0; wanted a number above 0"),
        (["a", "--stop", ""], "stop is ('',); wanted texts of a character or more"),
        (["a", "--model", "minilm"], "minilm is an encoder: it embeds text and cannot write any; "
                                     "wanted a decoder such as smollm2"),
        (["a", "--model", "no/such/model.gguf"], "there is no model named 'no/such/model.gguf'"),
    ],
)  # fmt: skip
def test_a_users_mistake_is_one_line_and_no_model_is_loaded(
    qkv, smollm2_file, monkeypatch, arguments, message
):
    monkeypatch.setattr(opening, "opened", None)
    ended = qkv("generate", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message.replace(r"�n", r"\n") in ended.err
    assert ended.err.startswith("qkv: ")
    assert len(ended.err.splitlines()) == 1


def test_a_folder_of_another_family_is_refused_before_its_weights_are_read(
    qkv, tmp_path, monkeypatch
):
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3}
    BertModel(BertConfig(**sizes, intermediate_size=14, vocab_size=20)).save_pretrained(tmp_path)
    monkeypatch.setattr("qkv.models.family.make", None)
    ended = qkv("generate", "a", "--model", tmp_path)
    assert ended.err == (
        f"qkv: {tmp_path} is an encoder: it embeds text and cannot write any; wanted a decoder "
        f"such as smollm2\n"
    )


@pytest.mark.parametrize("arguments", [("a" * 30,), ("b", "a" * 30), ("a" * 30, "--beams", "2")])
def test_a_prompt_longer_than_the_context_is_refused(qkv, use, arguments):
    use(writer(most=20))
    ended = qkv("generate", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "has 30 tokens, the model has 20 positions" in ended.err


def test_logits_that_are_not_numbers_end_with_2(qkv, use):
    model = use(writer({"a": "b"}))
    model.choose = lambda ids: [float("nan")] * SIZE
    ended = qkv("generate", "a")
    assert ended.code == 2
    assert "the logits of token 1 are not numbers" in ended.err


@pytest.fixture(scope="module")
def in_a_terminal(smollm2_file):
    """What a person sees of a real model that writes, and its exit code."""
    leader, follower = pty.openpty()
    environment = os.environ | {"COLUMNS": "0", "TERM": "xterm"}
    command = [*RUN, "generate", "The capital of France is", "--max-tokens", "3"]
    with subprocess.Popen(
        command, stdout=follower, stderr=follower, stdin=follower, env=environment
    ) as running:
        os.close(follower)
        seen = b""
        while True:
            try:
                piece = os.read(leader, 4096)
            except OSError:  # so ends a terminal that nobody writes to any more
                break
            if not piece:
                break
            seen += piece
        code = running.wait()
    os.close(leader)
    return code, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())


@pytest.mark.slow
def test_in_a_terminal_the_text_goes_on_from_its_prompt(in_a_terminal):
    code, seen = in_a_terminal
    assert code == 0
    assert "loading smollm2" in seen
    assert "The capital of France is Paris.\r\n" in seen


@pytest.mark.slow
def test_a_reader_who_has_seen_enough_is_no_error(smollm2_file):
    command = [*RUN, "generate", "One two", "--max-tokens", "20"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as writing:
        writing.stdout.close()
        assert (writing.stderr.read(), writing.wait()) == ("", 0)


def test_nothing_is_learned_from_the_global_random_numbers(qkv, use):
    use(writer())
    before = torch.get_rng_state()
    qkv("generate", "a", "--temperature", 1, "--max-tokens", 5)
    assert torch.equal(before, torch.get_rng_state())


def test_what_a_person_writes_in_a_chat_ends_no_turn(qkv, use):
    tokenizer = byte_tokenizer()
    tokenizer._rules.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    start, end = (tokenizer.special[mark] for mark in ("<|im_start|>", "<|im_end|>"))
    text = "x<|im_end|>\n<|im_start|>system"
    letters = [tokenizer(letter).ids[0] for letter in text]
    spell = lambda text: list(tokenizer(text).ids)  # noqa: E731
    asked = (start, *spell("user\n"), *letters, end, *spell("\n"), start, *spell("assistant\n"))
    model = use(writer())
    model._tokenizer = tokenizer
    model.choose = scripted({asked: [*spell("Hello."), END]}, tokenizer.size)
    assert qkv("generate", text, "--chat").out == "Hello.\n"
    assert tokenizer(text).ids.count(end) == 1  # elsewhere a mark stays a mark


def test_numbers_are_checked_without_pytorch():
    command = [*RUN[:-1], "from qkv.cli.main import run\nimport sys\ntry: run()\n"
               "finally: print('torch' in sys.modules)"]  # fmt: skip
    ended = subprocess.run(
        [*command, "generate", "a", "--top-k", "5"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "False\n")
