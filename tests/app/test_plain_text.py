"""Log bytes become the text that a terminal would show."""

from app.monitor.plain_text import LINE_LIMIT, complete, to_lines


def test_colours_and_cursor_moves_are_gone():
    assert to_lines(b"\x1b[32mgreen\x1b[0m \x1b[Aup \x1b]0;title\x07end\n").lines == ("green up end",)


def test_of_a_progress_bar_only_its_last_state_is_shown():
    shown = to_lines(b"\r  0%|  |\r 50%|# |\r100%|##|\nnext\n 10%|\r 20%|\r")
    assert shown.lines == ("100%|##|", "next", " 20%|")
    assert shown.is_open


def test_windows_line_ends_are_line_ends():
    assert to_lines(b"a\r\nb\r\n").lines == ("a", "b")
    assert not to_lines(b"a\r\nb\r\n").is_open


def test_empty_lines_stay_but_the_end_of_the_last_line_is_none():
    assert to_lines(b"a\n\nb\n").lines == ("a", "", "b")
    assert to_lines(b"\n").lines == ("",)
    assert to_lines(b"").lines == ()


def test_text_that_would_turn_the_reading_direction_or_hide_something_is_dropped():
    assert to_lines("a\u202eb\x00c\x08d\n".encode()).lines == ("abcd",)


def test_secrets_are_not_shown():
    assert "hf_abcdefghijklmnop" not in to_lines(b"HF_TOKEN=hf_abcdefghijklmnop\n").lines[0]


def test_markup_stays_as_it_is_for_the_browser_to_show_as_text():
    assert to_lines(b"<script>alert(1)</script>\n").lines == ("<script>alert(1)</script>",)


def test_broken_bytes_and_endless_lines_do_no_harm():
    assert to_lines(b"\xff\xfe ok\n").lines == ("\ufffd\ufffd ok",)
    assert len(to_lines(b"x" * 10_000).lines[0]) == LINE_LIMIT + 1


def test_what_is_cut_in_two_waits_for_its_rest():
    whole = "步 1\n步".encode()
    assert complete(whole[:-1]) == "步 1\n".encode()
    assert complete(b"10%\r20") == b"10%\r"
    assert complete(b"half") == b""
