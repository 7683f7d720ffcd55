"""Splitting of the lines of ~/.ssh/config and matching of its patterns, as in OpenSSH (readconf.c, misc.c, match.c)."""

import re
from collections.abc import Iterator
from ipaddress import ip_address

SPACE = " \t\r\n"


def keyword(line: str) -> tuple[str, str]:
    """Return a line's keyword in small letters, and the rest. A comment or an empty line has an empty keyword."""
    word, rest = _delimited(line)
    if not word:
        word, rest = _delimited(rest)
    return ("", "") if word.startswith("#") else (word.lower(), rest)


def _delimited(text: str) -> tuple[str, str]:
    """Return the text up to white space or one `=`, and the rest. The first part may be in double quotes."""
    delimiter = re.search(r'[ \t\r\n"=]', text)
    if delimiter is None:
        return text, ""
    start = delimiter.start()
    if text[start] == '"':
        end = text.find('"', start + 1)
        if end < 0:
            raise ValueError("a quotation mark is not closed")
        return text[:start] + text[start + 1 : end], text[end + 1 :].lstrip(SPACE)
    rest = text[start + 1 :].lstrip(SPACE)
    if text[start] != "=" and rest.startswith("="):
        rest = rest[1:].lstrip(SPACE)
    return text[:start], rest


def words(text: str) -> list[str]:
    """Split arguments as OpenSSH does (argv_split): quotes, backslashes, a comment after a complete word."""
    arguments: list[str] = []
    index = 0
    while index < len(text):
        if text[index] in " \t":
            index += 1
            continue
        if text[index] == "#":
            break
        word, index = _word(text, index)
        arguments.append(word)
    return arguments


def _word(text: str, index: int) -> tuple[str, int]:
    """Return the word that starts at `index`, and the index behind it."""
    word, quote = "", ""
    while index < len(text):
        letter, after = text[index], text[index + 1 : index + 2]
        if letter == "\\" and (after in ("'", '"', "\\") or (after == " " and not quote)):
            word += after
            index += 1
        elif not quote and letter in " \t":
            break
        elif not quote and letter in "'\"":
            quote = letter
        elif letter == quote:
            quote = ""
        else:
            word += letter
        index += 1
    if quote:
        raise ValueError("a quotation mark is not closed")
    return word, index


def argument(left: Iterator[str]) -> str:
    """Return the next word, without an equals sign before it."""
    value = next(left, "")
    return next(left, "") if value == "=" else value.removeprefix("=")


def host_matches(host: str, rest: str) -> bool:
    """Return whether a pattern of a Host line matches, and no pattern with an exclamation mark does."""
    is_match = False
    for pattern in words(rest):
        if pattern.startswith("!"):
            if _like(host, pattern[1:]):
                return False
        elif _like(host, pattern):
            is_match = True
    return is_match


def in_list(text: str, patterns: str) -> bool:
    parts = patterns.split(",")
    if any(part.startswith("!") and _like(text, part[1:]) for part in parts):
        return False
    return any(_like(text, part) for part in parts)


def _like(text: str, pattern: str) -> bool:
    """Return whether a pattern matches the whole text. Only `*` and `?` are special."""
    parts = re.split(r"(\*+|\?)", pattern)
    regex = "".join(".*" if part.startswith("*") else "." if part == "?" else re.escape(part) for part in parts)
    return re.fullmatch(regex, text, re.DOTALL) is not None


def is_address(name: str) -> bool:
    try:
        ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
