"""Splits the lines of ~/.ssh/config and matches its patterns, as OpenSSH does (readconf.c, misc.c, match.c)."""

import re
from collections.abc import Iterator
from ipaddress import ip_address

SPACE = " \t\r\n"


def keyword(line: str) -> tuple[str, str]:
    """A line's keyword in small letters, and the rest. The keyword of a comment or an empty line is empty."""
    word, rest = _delimited(line)
    if not word:
        word, rest = _delimited(rest)
    return ("", "") if word.startswith("#") else (word.lower(), rest)


def _delimited(text: str) -> tuple[str, str]:
    """The text up to white space or one `=`, and what follows; a word may stand in double quotes."""
    found = re.search(r'[ \t\r\n"=]', text)
    if found is None:
        return text, ""
    at = found.start()
    if text[at] == '"':
        end = text.find('"', at + 1)
        if end < 0:
            raise ValueError("a quotation mark is not closed")
        return text[:at] + text[at + 1 : end], text[end + 1 :].lstrip(SPACE)
    rest = text[at + 1 :].lstrip(SPACE)
    if text[at] != "=" and rest.startswith("="):
        rest = rest[1:].lstrip(SPACE)
    return text[:at], rest


def words(text: str) -> list[str]:
    """Split arguments as OpenSSH does (argv_split): quotes, backslashes, a comment after a complete word."""
    found: list[str] = []
    at = 0
    while at < len(text):
        if text[at] in " \t":
            at += 1
            continue
        if text[at] == "#":
            break
        word, at = _word(text, at)
        found.append(word)
    return found


def _word(text: str, at: int) -> tuple[str, int]:
    word, quote = "", ""
    while at < len(text):
        letter, after = text[at], text[at + 1 : at + 2]
        if letter == "\\" and (after in ("'", '"', "\\") or (after == " " and not quote)):
            word += after
            at += 1
        elif not quote and letter in " \t":
            break
        elif not quote and letter in "'\"":
            quote = letter
        elif letter == quote:
            quote = ""
        else:
            word += letter
        at += 1
    if quote:
        raise ValueError("a quotation mark is not closed")
    return word, at


def argument(left: Iterator[str]) -> str:
    """The next of the words; an equals sign may stand between it and the criterion."""
    value = next(left, "")
    return next(left, "") if value == "=" else value.removeprefix("=")


def host_matches(host: str, rest: str) -> bool:
    """Whether a pattern of a Host matches, and no pattern with an exclamation mark does."""
    is_found = False
    for pattern in words(rest):
        if pattern.startswith("!"):
            if _like(host, pattern[1:]):
                return False
        elif _like(host, pattern):
            is_found = True
    return is_found


def in_list(text: str, patterns: str) -> bool:
    parts = patterns.split(",")
    if any(part.startswith("!") and _like(text, part[1:]) for part in parts):
        return False
    return any(_like(text, part) for part in parts)


def _like(text: str, pattern: str) -> bool:
    """Only `*` and `?` are special."""
    parts = re.split(r"(\*+|\?)", pattern)
    regex = "".join(".*" if part.startswith("*") else "." if part == "?" else re.escape(part) for part in parts)
    return re.fullmatch(regex, text, re.DOTALL) is not None


def is_address(name: str) -> bool:
    try:
        ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
