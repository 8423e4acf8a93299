"""Links in words: the strongest first, as many as fit, tokens as text."""

from qkv.show.links import WORD, Link, in_words


def test_a_line_a_head_names_who_looks_at_whom_and_how_much():
    told = in_words([("5.12", [Link("it", "laptop", 0.621), Link("stopped", "it", 0.2)]),
                     ("6.1", [Link("a", "b", 1.0)])], 100)  # fmt: skip
    assert [line.plain for line in told] == [
        "5.12   it → laptop 0.62   stopped → it 0.20",
        "6.1    a → b 1.00",
    ]


def test_links_that_do_not_fit_are_left_out_but_never_the_first():
    links = [Link("query", "key", 0.5)] * 9
    (line,) = in_words([("1.1", links)], 60)
    assert line.plain.count("query") == 3
    assert line.cell_len <= 60
    (line,) = in_words([("1.1", links)], 5)
    assert line.plain.count("query") == 1


def test_tokens_are_text_and_long_ones_are_cut():
    (line,) = in_words([("1.1", [Link("[bold]", "\x1b[31m", 0.5)])], 100)
    assert line.plain == "1.1   [bold] → �[31m 0.50"
    (line,) = in_words([("1.1", [Link("日" * 40, "x" * 40, 0.5)])], 100, arrow="->")
    assert line.cell_len == len("1.1   ") + 2 * WORD + len(" -> ") + len(" 0.50")
