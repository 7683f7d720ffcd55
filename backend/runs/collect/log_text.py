"""Conversion of log bytes to text."""

import re

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def readable(data: bytes) -> str:
    """Return log bytes as text, without colours. Of a line that a progress bar rewrote, only the last state is kept."""
    text = ANSI.sub("", decoded(data))
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))


def decoded(data: bytes) -> str:
    """Decode UTF-8; decode other lines as GBK when that is plausible, since nodes in China may have LANG=zh_CN.GBK."""
    text = data.decode("utf-8", errors="replace")
    return "\n".join(map(_line, data.split(b"\n"))) if "\ufffd" in text else text


def _line(line: bytes) -> str:
    text = line.decode("utf-8", errors="replace")
    broken = text.count("\ufffd")
    # A line cut in the middle of a letter, or one with a stray byte, is UTF-8 for the most part.
    if broken < 2 or sum(letter > "\x7f" for letter in text) > 2 * broken:
        return text
    try:
        return line.decode("gbk")
    except UnicodeDecodeError:
        return text
