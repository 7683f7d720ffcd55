"""Sentences of the catalogues in the output of a program, whatever their words are."""

import re
from string import Formatter

from app.text import catalogue


def said(text: str, key: str, lang: str = "en") -> dict[str, str] | None:
    """Return the values that a text has in place of the placeholders of `key`. None if it lacks the sentence.

    A placeholder at the end of a sentence takes the rest of the line.
    """
    pattern, names = "", set()
    for words, name, _, _ in Formatter().parse(catalogue(lang)[key]):
        pattern += re.escape(words)
        if name is not None:
            pattern += f"(?P={name})" if name in names else f"(?P<{name}>.*?)"
            names.add(name)
    if pattern.endswith("*?)"):
        pattern = pattern.removesuffix("?)") + ")"
    match = re.search(pattern, text)
    return match.groupdict() if match else None
