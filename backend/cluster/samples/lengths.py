"""Tokens of a mean sample, by the model's tokenizer, from rows that were drawn."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

COMMON = ("system", "tools", "prompt", "query", "response", "history", "messages")
PAIR = ("chosen", "rejected")
"""Answers of which each is a sequence of its own, behind what they have in common."""
# What LLaMA-Factory's data/parser.py DatasetAttr reads where an entry names no columns, and what ms-swift reads.
USUAL = ("instruction", "input", "output", "conversations", "text", "content", *COMMON)
MOST_LETTERS = 1 << 20
"""Of one sample that are measured."""


class Unmeasured(Exception):
    """The lengths cannot be told; the text says why."""


def mean_tokens(rows: list[Any], columns: Mapping[str, Any] | None, model: str) -> float:
    """Of a sequence before it is cut, without what the chat template and images add. Unmeasured."""
    tokenizer = read_tokenizer(model)
    texts = [text for row in rows for text in sequences(as_mapping(row), columns)]
    if not any(texts):
        raise Unmeasured("no text in the columns that are trained on")
    lengths = [len(encoding.ids) for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    return sum(lengths) / len(lengths)


def read_tokenizer(model: str) -> Any:
    path = os.path.join(os.path.expanduser(model), "tokenizer.json")
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises plain Exception for a file that is not there or not its own
        raise Unmeasured(f"{path}: {error}"[:300]) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def as_mapping(row: Any) -> Mapping[str, Any]:
    if isinstance(row, bytes):
        try:
            row = json.loads(row)
        except ValueError:
            return {}
    return row if isinstance(row, dict) else {}


def sequences(row: Mapping[str, Any], columns: Mapping[str, Any] | None) -> list[str]:
    """The text of the sequence that a row becomes, of both where it is a pair."""
    names = [str(columns[key]) for key in COMMON if columns.get(key)] if columns else list(dict.fromkeys(USUAL))
    pair = [str((columns or {}).get(key, key)) for key in PAIR]
    common = "\n".join(text for name in names for text in strings(row.get(name)))
    answers = ["\n".join(strings(row[name])) for name in pair if row.get(name)]
    return [f"{common}\n{answer}"[:MOST_LETTERS] for answer in answers] or [common[:MOST_LETTERS]]


def strings(value: Any) -> Iterator[str]:
    """Every text in a value, images in its midst left out."""
    if isinstance(value, str):
        if not value.startswith("data:"):
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings(item)
