"""The tokenizer of a folder that has a vocabulary and no tokenizer.json.

vocab.txt holds the pieces of words of BERT (Wu et al. 2016, Devlin et al. 2018), one a line;
vocab.json and merges.txt the byte pairs of GPT-2 (Radford et al. 2019). tokenizer_config.json may
say more, and the defaults are those of the two models.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordPiece
from tokenizers.processors import TemplateProcessing

from qkv.errors import FileError

WORD_PIECES, BYTE_PAIRS = "vocab.txt", ("vocab.json", "merges.txt")


def find_rules(folder: Path) -> tokenizers.Tokenizer | None:
    """Return the rules of a folder's vocabulary; None where it has none of these files.

    Raises:
        FileError: they are there and cannot be read.
    """
    settings, added = _json(folder, "tokenizer_config.json"), _json(folder, "added_tokens.json")
    try:
        if (folder / WORD_PIECES).is_file():
            return _word_pieces(folder / WORD_PIECES, settings)
        if all((folder / name).is_file() for name in BYTE_PAIRS):
            return _byte_pairs(folder, settings, added)
    except FileError:
        raise
    except Exception as error:  # `tokenizers` raises nothing more special
        raise FileError(f"{folder} holds no vocabulary that can be read: {error}") from error
    return None


def _word_pieces(path: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """[CLS] text [SEP]        Devlin et al. 2018, figure 2"""
    words = path.read_text("utf-8").split("\n")
    vocabulary = {word.rstrip("\r"): number for number, word in enumerate(words) if word}
    named = {
        role: _content(settings.get(f"{role}_token", token))
        for role, token in {
            "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]",
        }.items()
    }  # fmt: skip
    absent = [named[role] for role in ("unk", "cls", "sep") if named[role] not in vocabulary]
    if absent:
        raise FileError(f"{path} does not hold {', '.join(absent)}; wanted one piece a line")
    rules = tokenizers.Tokenizer(WordPiece(vocabulary, unk_token=named["unk"]))
    rules.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    rules.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rules.decoder = decoders.WordPiece()
    rules.add_special_tokens([token for token in named.values() if token in vocabulary])
    begin, end = named["cls"], named["sep"]
    rules.post_processor = TemplateProcessing(
        single=[begin, "$A", end],
        special_tokens=[(token, vocabulary[token]) for token in (begin, end)],
    )
    return rules


def _byte_pairs(
    folder: Path, settings: Mapping[str, Any], added: Mapping[str, Any]
) -> tokenizers.Tokenizer:
    vocabulary, merges = (str(folder / name) for name in BYTE_PAIRS)
    rules = tokenizers.Tokenizer(BPE.from_file(vocabulary, merges))
    space = bool(settings.get("add_prefix_space", False))
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    rules.decoder = decoders.ByteLevel()
    ends = [_content(settings.get(f"{role}_token", "<|endoftext|>")) for role in ("bos", "eos")]
    known = [token for token in dict.fromkeys(ends) if rules.token_to_id(token) is not None]
    further = sorted(added, key=lambda token: int(added[token]))
    rules.add_special_tokens(
        [AddedToken(token, normalized=False) for token in dict.fromkeys([*known, *further])]
    )
    moved = [token for token in further if rules.token_to_id(token) != added[token]]
    if moved:
        raise FileError(
            f"{folder} numbers {', '.join(moved)} otherwise than its vocabulary goes on"
        )
    return rules


def _content(token: object) -> str:
    """Return a token that is written as a text, or as an object with more about it."""
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _json(folder: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads((folder / name).read_text("utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{folder / name} cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}
