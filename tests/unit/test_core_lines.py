from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.lines import first_of, folded, one_line, printed


@given(st.text(), st.integers(20, 40))
def test_any_text_is_one_printable_line_of_a_bearable_length(text: str, longest: int) -> None:
    whole, short = one_line(text), one_line(text, longest)
    assert whole.isprintable()
    assert len(short) <= longest + 3
    assert one_line(whole) == whole
    assert (short == whole) == (len(whole) <= longest)


def test_what_can_be_shown_stays() -> None:
    assert one_line("gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n \\n") == "gr\u00fcn \\n"
    assert one_line("a\nb\x1bc\x00\udcff") == r"a\nb\x1bc\x00\udcff"


def test_prose_of_others_is_folded_and_moves_no_cursor() -> None:
    assert folded("  not\r\n\tfound \x1b[2J ") == r"not found \x1b[2J"


def test_first_are_named_and_the_others_counted() -> None:
    texts = ["a", "b", "c", "d", "e"]

    assert first_of(texts[:3]) == "a, b, c"
    assert first_of(texts) == "a, b, c and 2 more"
    assert first_of(texts, 1, apart="; ", last="; ", rest="others") == "a; and 4 others"
    assert first_of([]) == ""


def test_lines_are_printed_one_each_whatever_is_named_in_them() -> None:
    assert list(printed(["a", "b\n\x1b[2J"])) == ["a\n", "b\\n\\x1b[2J\n"]
