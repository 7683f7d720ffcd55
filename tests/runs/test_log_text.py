import pytest

from backend.runs.collect.log_text import decoded, readable

LINE = "训练第 3 步，损失 1.25"


@pytest.mark.parametrize("text", ["", "plain\n", f"{LINE}\nstep 3\n", "Größe 1 µs\n"])
def test_text_is_as_it_was_written(text: str) -> None:
    assert decoded(text.encode()) == text


def test_lines_in_gbk_stand_beside_lines_in_utf_8() -> None:
    data = f"{LINE}\n".encode() + f"没有那个文件或目录: {LINE}\n".encode("gbk") + f"step 3\n{LINE}\n".encode()
    assert decoded(data) == f"{LINE}\n没有那个文件或目录: {LINE}\nstep 3\n{LINE}\n"


@pytest.mark.parametrize("lost", [1, 2])
def test_a_line_that_was_cut_within_a_letter_loses_that_letter_alone(lost: int) -> None:
    assert decoded(LINE.encode()[lost:]).endswith(LINE[1:])
    assert decoded(LINE.encode() + LINE.encode()[:lost]).startswith(LINE)


def test_bytes_that_are_no_text_are_no_error() -> None:
    assert decoded(bytes(range(256)) * 3).count("\ufffd") > 100


def test_log_text_shows_what_a_terminal_would() -> None:
    data = b"\x1b[31mred\x1b[0m\n 1%|# | 1/8\r 2%|## | 2/8\rdone\nwin\r\n\xff\n"
    assert readable(data) == "red\ndone\nwin\n�\n"
