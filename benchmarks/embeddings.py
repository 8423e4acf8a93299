"""What MiniLM's embeddings are good for, by our model and by Hugging Face's: the same numbers.

    python -m benchmarks.embeddings

Two measures. The 50 news texts of Lee et al. 2005 come with how similar people found each two of
them: the correlation of that with the cosines. The 10,605 movie-review snippets of Hutto and
Gilbert 2014 come with how positive people found them: a logistic regression on the embeddings,
trained on four fifths and asked about the last one. The texts are third parties'; they are read
from the packages that carry them (gensim, and the source package of vaderSentiment).
"""

import argparse
import io
import sys
import tarfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

if not __package__:  # run as a file: the checkout's root stands in for this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from qkv import load
from qkv.models.named import find

REVIEWS = Path(sys.prefix) / "share" / "qkv" / "vaderSentiment-3.2.1.tar.gz"
INNER = "vaderSentiment-3.2.1/additional_resources/hutto_ICWSM_2014.tar.gz"
SNIPPETS = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
PEARSON, HALF_A_POINT = 0.6, 0.005
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Embed = Callable[[Sequence[str]], Matrix]


class Reviews(NamedTuple):
    """Snippets, and whether people found each of them positive."""

    texts: list[str]
    positive: list[bool]


def lee() -> tuple[list[str], Matrix]:
    """Return the 50 texts, and how similar people found each two of them, 0 to 1."""
    spec = find_spec("gensim")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("pip install --no-deps gensim==4.4.0")
    folder = Path(spec.submodule_search_locations[0]) / "test" / "test_data"
    texts = (folder / "lee.cor").read_text("latin-1").splitlines()
    return texts, np.loadtxt(folder / "similarities0-1.txt")


def reviews() -> Reviews:
    """Return the movie-review snippets in the order of their file."""
    if not REVIEWS.exists():
        raise FileNotFoundError(
            f"pip download --no-deps --no-binary :all: -d {REVIEWS.parent} vaderSentiment==3.2.1"
        )
    with tarfile.open(REVIEWS) as outer:
        inner = outer.extractfile(INNER)
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as folder:
            file = folder.extractfile(SNIPPETS)
            assert file is not None
            lines = file.read().decode("utf-8", "replace").splitlines()
    rows = [line.split("\t", 2) for line in lines if line.strip()]
    return Reviews([text for *_, text in rows], [float(mean) > 0 for _, mean, _ in rows])


def ours() -> Embed:
    """Return our embedding of texts."""
    model = load("minilm")
    return lambda texts: model.embed(list(texts)).double().numpy()


def theirs() -> Embed:
    """Return Hugging Face's: its model and tokenizer, the mean of the tokens, length 1."""
    from transformers import AutoModel, AutoTokenizer

    folder = str(find("minilm"))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    model.eval()

    @torch.no_grad()
    def embed(texts: Sequence[str]) -> Matrix:
        rows = []
        for start in range(0, len(texts), 32):
            batch = tokenizer(list(texts[start : start + 32]), padding=True, return_tensors="pt")
            mask = batch["attention_mask"][..., None]
            mean = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
            rows.append(torch.nn.functional.normalize(mean, dim=-1))
        return torch.cat(rows).double().numpy()

    return embed


def correlation(embed: Embed) -> float:
    """Return Pearson's correlation of cosines and people's similarities, each pair once."""
    texts, people = lee()
    x = embed(texts)
    pairs = np.triu_indices(len(texts), 1)
    return float(np.corrcoef((x @ x.T)[pairs], people[pairs])[0, 1])


def accuracy(embed: Embed, some: int | None = None) -> float:
    """Return the share of held-out snippets that a regression on embeddings gets right.

    Args:
        embed: makes one row a text.
        some: take only so many snippets; all by default.
    """
    from sklearn.linear_model import LogisticRegression

    texts, positive = reviews()
    order = np.random.default_rng(42).permutation(len(texts))[:some]
    x, y = embed([texts[i] for i in order]), np.array(positive)[order]
    cut = len(order) * 4 // 5
    fitted = LogisticRegression(max_iter=1000).fit(x[:cut], y[:cut])
    return float(fitted.score(x[cut:], y[cut:]))


def main() -> int:
    """Measure, print, and return 1 if something was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embeddings", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--some", type=int, help="take only so many snippets: for development")
    some = parser.parse_args().some
    met = True
    for what, measure in (
        ("Lee et al., Pearson", correlation),
        ("movie reviews, accuracy", lambda embed: accuracy(embed, some)),
    ):
        mine, other = measure(ours()), measure(theirs())
        print(f"{what:<24} ours {mine:.4f}    Hugging Face {other:.4f}", flush=True)
        met &= abs(mine - other) <= HALF_A_POINT and ("Pearson" not in what or mine >= PEARSON)
    print("met" if met else "MISSED")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
