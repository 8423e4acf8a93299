"""Text as it comes: whole characters, joined to what the tokenizer makes of all tokens."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from qkv.models.text.tokenizer import Tokenizer
from qkv.models.writing.streaming import UNKNOWN, Characters, Text, ending, spell
from tests.models.writers import byte_tokenizer

BYTES = byte_tokenizer("t h", "th e", "Ġ the", "Ã ©", "â Ĥ", "f Ã")
TEXTS = ["the café costs 3 €", "日本語 🙂👍🏽 ok", "é", "a\n\nb", "naïve — “the” ﬁ"]


def metaspace() -> Tokenizer:
    """Make a tokenizer as Llama's first: ▁ for a space, and bytes for what has no token."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocabulary |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for piece in ("▁", "▁the", "the", "▁a", "a", "b", "c", "é", "▁caf"):
        vocabulary[piece] = len(vocabulary)
    rules = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    rules.add_special_tokens(["<s>", "</s>"])
    rules.pre_tokenizer = pre_tokenizers.Metaspace()
    rules.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])  # fmt: skip
    return Tokenizer(rules)


META = metaspace()


def pieces(tokenizer: Tokenizer, ids: list[int], before: tuple[int, ...] = ()) -> list[str]:
    text = Text(tokenizer, before)
    return [*(text.add(number) for number in ids), text.close()]


@pytest.mark.parametrize("tokenizer", [BYTES, META], ids=["bytes", "metaspace"])
@settings(max_examples=20)
@given(text=st.one_of(st.sampled_from(TEXTS), st.text(min_size=1, max_size=9)), cut=st.integers(0))
def test_pieces_are_whole_characters_and_join_to_the_text(
    tokenizer: Tokenizer, text: str, cut: int
) -> None:
    ids = list(tokenizer(text).ids)
    cut %= len(ids)
    known = tokenizer.decode(ids[:cut])
    if not known.endswith(UNKNOWN):  # a prompt ends with a whole character
        whole = tokenizer.decode(ids)
        found = pieces(tokenizer, ids[cut:], tuple(ids[:cut]))
        assert known + "".join(found) == whole
        if UNKNOWN not in text:
            assert not any(UNKNOWN in piece for piece in found)


def test_a_character_comes_when_its_last_byte_comes() -> None:
    ids = list(BYTES("a€é").ids)  # a, two bytes as one token, a byte, two bytes as one token
    assert pieces(BYTES, ids) == ["a", "", "€", "é", ""]
    assert pieces(META, [META("ab").ids[1], 3 + 0xE2, 3 + 0x82, 3 + 0xAC]) == ["a", "", "", "€", ""]


def test_bytes_that_make_no_character_come_at_the_end_as_unknown() -> None:
    half = list(BYTES("€").ids)[:1]
    assert pieces(BYTES, half) == ["", UNKNOWN]
    assert pieces(BYTES, half + list(BYTES("ab").ids)) == ["", UNKNOWN + "a", "b", ""]


def test_a_space_between_prompt_and_text_is_kept_and_one_at_the_beginning_is_not() -> None:
    the = META._rules.token_to_id("▁the")
    assert META.decode([the]) == "the"
    assert "".join(pieces(META, [the, the], (1, the))) == " the the"
    assert "".join(pieces(META, [the, the], (1,))) == "the the"
    assert "".join(pieces(META, [the, 2, the], ())) == "the the"


def test_a_character_that_begins_in_the_prompt_is_not_lost() -> None:
    ids = list(BYTES("ab€c").ids)
    assert "".join(pieces(BYTES, ids[3:], tuple(ids[:3]))) == "€c"
    assert pieces(BYTES, [], tuple(ids[:3])) == [""]


def test_a_stop_text_ends_the_text_across_tokens_and_within_one() -> None:
    text = Text(BYTES, (), ("x\n", "the"))
    outs = [text.add(number) for number in BYTES("ax\ny").ids]
    assert (outs[:3], text.stopped, text.given) == (["a", "", ""], True, "a")
    text = Text(BYTES, (), (" t",))
    assert [text.add(number) for number in BYTES("a the").ids] == ["a", ""]
    assert (text.stopped, text.close(), text.given) == (True, "", "a")


def test_a_stop_text_that_is_complete_only_at_the_end_stops_too() -> None:
    text = Text(BYTES, (), (UNKNOWN,))
    text.add(BYTES("€").ids[0])
    assert not text.stopped
    assert (text.close(), text.stopped) == ("", True)


def test_what_was_held_back_comes_at_the_end() -> None:
    text = Text(BYTES, (), ("a\n\n",))
    assert [text.add(number) for number in BYTES("a\n").ids] == ["", ""]
    assert text.close() == "a\n"


def test_texts_that_fork_go_on_by_themselves() -> None:
    a, b, euro = BYTES("a").ids[0], BYTES("b").ids[0], BYTES("€").ids
    text = Text(BYTES, (), ("ab",))
    text.add(euro[0])
    text.add(euro[1])
    text.add(a)
    other = text.fork()
    assert (text.add(b), text.stopped, text.given) == ("", True, "€")
    assert (other.stopped, other.add(a), other.given) == (False, "a", "€a")


def test_a_text_ends_for_the_first_reason_that_there_is() -> None:
    a = BYTES("a").ids[0]
    assert ending(a, None, {1}, False) is None
    assert ending(a, None, {1}, True) == "length"
    assert ending(1, None, {1}, True) == "end"
    assert ending(a, Text(BYTES, (), ("a",)), {1}, True) == "stop"
    text = Text(BYTES, (), ("ab",))
    assert ending(a, text, {1}, False) is None
    assert (ending(1, text, {1}, False), text.given) == ("end", "a")


def test_tokens_that_end_texts_are_not_in_the_text() -> None:
    a, b = BYTES("a").ids[0], BYTES("b").ids[0]
    assert spell(BYTES, (), [a, b, 1], {1}) == "ab"
    assert spell(BYTES, (), [a, b], {b}) == "a"


def test_few_tokens_are_read_again_for_each_new_one() -> None:
    lengths = []

    class Counting(Tokenizer):
        def decode(self, ids: object, special: bool = False) -> str:
            lengths.append(len(ids))  # type: ignore[arg-type]
            return super().decode(ids, special)  # type: ignore[arg-type]

    characters = Characters(Counting(BYTES._rules), BYTES("the " * 99).ids)
    for number in BYTES("the café costs 3 €, " * 20).ids:
        characters.add(number)
    assert max(lengths[3:]) <= 6


@pytest.mark.parametrize("prompt", ["a�", "�", "a��", "€�", "<s>�"])
def test_a_prompt_may_end_with_the_mark_of_what_is_unknown(prompt: str) -> None:
    merged = byte_tokenizer("½ a", "ï ¿", "ï¿ ½", "a ï¿½")
    for tokenizer in (BYTES, merged, META):
        before = tuple(tokenizer(prompt).ids)
        after = tokenizer("cé", around=False).ids
        whole = tokenizer.decode([*before, *after])
        found = "".join(pieces(tokenizer, list(after), before))
        assert tokenizer.decode(before) + found == whole


def test_bytes_that_look_like_the_end_of_that_mark_are_still_a_beginning() -> None:
    begun = [BYTES("�").ids[0], BYTES("�").ids[1]]  # 0xEF 0xBF, and then another byte than 0xBD
    last = BYTES._rules.token_to_id("¾")
    assert "".join(pieces(BYTES, [last], (BYTES("a").ids[0], *begun))) == "\ufffe"
