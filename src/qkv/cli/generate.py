"""`qkv generate`: a decoder writes on, token by token."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from qkv.errors import ArgumentError

HELP = """Let a model write on.

\b
  qkv generate "The capital of France is" --max-tokens 8
  qkv generate "Once upon a time" --temperature 0.8 --top-p 0.9 --seed 7
  qkv generate "What is attention?" --chat
  qkv generate "The sky is" "The sea is" --beams 4 --json
  qkv generate - < prompt.txt

The text goes to stdout as it is written; Ctrl-C ends it there.
"""

Prompts = Annotated[
    list[str] | None, typer.Argument(metavar="PROMPT...", help="What stands before; - is stdin.")
]
Model = Annotated[str, typer.Option(help="A model's name (smollm2), its folder or its .gguf file.")]
MaxTokens = Annotated[int, typer.Option(metavar="N", help="Tokens that are written at most.")]
Temperature = Annotated[
    float, typer.Option(metavar="T", help="0 takes the best token each time; above 0 one is drawn.")
]
TopK = Annotated[int | None, typer.Option(metavar="K", help="Draw from the K most likely tokens.")]
TopP = Annotated[
    float | None, typer.Option(metavar="P", help="Draw from the fewest as likely as P together.")
]
MinP = Annotated[
    float | None, typer.Option(metavar="P", help="Draw from those P times as likely as the best.")
]
Beams = Annotated[int, typer.Option(metavar="N", help="Follow N texts at once; print the best.")]
Seed = Annotated[int | None, typer.Option(help="Of what is drawn (0).")]
Penalty = Annotated[
    float, typer.Option(metavar="X", help="Above 1 makes tokens of the text less likely.")
]
Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may be repeated.")
]
Chat = Annotated[bool, typer.Option("--chat", help="Put each prompt as what a person asks.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

MOST_BEAMS = 64


def generate(
    prompts: Prompts = None,
    *,
    model: Model = "smollm2",
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    beams: Beams = 1,
    seed: Seed = None,
    repetition_penalty: Penalty = 1.0,
    stop: Stop = None,
    chat: Chat = False,
    json: Json = False,
) -> None:
    """Let a model write on."""
    from qkv.cli.opening import Wanted, opened, where
    from qkv.cli.texts import given
    from qkv.models.writing.options import Sampling

    if not 1 <= beams <= MOST_BEAMS:
        raise ArgumentError(f"beams is {beams}; wanted 1 to {MOST_BEAMS}")
    if seed is not None and temperature == 0:
        raise ArgumentError(
            f"seed is {seed}, but at temperature 0 nothing is drawn; say --temperature 1 too"
        )
    wanted = Wanted(("gpt2", "llama"), "a decoder such as smollm2")
    path = where(model, wanted)
    texts = given(prompts or (), "PROMPT")
    options: dict[str, Any] = {
        "max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p,
        "min_p": min_p, "beams": beams, "seed": seed or 0, "stop": tuple(stop or ()),
        "repetition_penalty": repetition_penalty,
    }  # fmt: skip
    sampling = Sampling(**options)
    loaded = opened(model, path, wanted)
    asked = [_asked(loaded, text) for text in texts] if chat else texts
    from qkv.cli.writing import Writing

    writing = Writing(loaded, asked, sampling)
    if json:
        writing.write_json({"model": model, "options": options, "prompts": texts})
    else:
        writing.write(texts)


def _asked(model: Any, text: str) -> list[int]:
    """Put a text as a person's turn of a talk; the model's own turn comes next.

    What the person writes is text, whatever it looks like: it ends no turn and begins none.
    """
    start, end = "<|im_start|>", "<|im_end|>"
    known: Mapping[str, int] = model.tokenizer.special
    if start not in known or end not in known:
        raise ArgumentError(f"--chat wants a model that knows {start} and {end}: this has not")
    ids = list(model.tokenizer(f"{start}user\nx{end}\n{start}assistant\n").ids)
    begins, ends = ids.index(known[start]) + 1, ids.index(known[end])
    return [*ids[:begins], *model.tokenizer.plain(f"user\n{text}"), *ids[ends:]]
