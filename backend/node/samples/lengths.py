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
JOINED = ("query", "input")
"""What follows the prompt in one message."""
MOST_LETTERS = 1 << 20
"""Of one sample that are measured."""
TEMPLATE = 5
"""Tokens that a chat template puts around a message: ChatML's <|im_start|> user newline and <|im_end|> newline, as many
in Llama 3's (LLaMA-Factory data/template.py)."""


class Unmeasured(Exception):
    """The lengths cannot be told; the text says why."""


def mean_tokens(rows: list[Any], columns: Mapping[str, Any] | None, model: str, *, chat: bool) -> float:
    """Of a sequence before it is cut, without images; in a chat with what its template adds. Unmeasured."""
    tokenizer = read_tokenizer(model)
    found = [sequence for row in rows for sequence in sequences(as_mapping(row), columns)]
    texts = [text for text, _ in found]
    if not any(texts):
        raise Unmeasured("no text in the columns that are trained on")
    tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts, add_special_tokens=False))
    return (tokens + chat * TEMPLATE * sum(messages for _, messages in found)) / len(found)


def read_tokenizer(model: str) -> Any:
    path = os.path.join(os.path.expanduser(model), "tokenizer.json")
    if os.path.exists(path) and not os.path.isfile(path):
        raise Unmeasured(f"{path}: no regular file")  # the library would wait for a pipe
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
        except (ValueError, RecursionError):
            return {}
    return row if isinstance(row, dict) else {}


def sequences(row: Mapping[str, Any], columns: Mapping[str, Any] | None) -> list[tuple[str, int]]:
    """Text and number of messages of the sequence that a row becomes, of both where it is a pair."""
    names = [str(columns[key]) for key in COMMON if columns.get(key)] if columns else list(dict.fromkeys(USUAL))
    pair = [str((columns or {}).get(key, key)) for key in PAIR]
    joined = (columns or {}).get("query")
    texts: list[str] = []
    messages = 0
    for name in names:
        value = row.get(name)
        if value:
            texts += strings(value)
            messages += messages_in(value) if name not in (joined, *JOINED) else 0
    common = "\n".join(texts)
    answers = ["\n".join(strings(row[name])) for name in pair if row.get(name)]
    if not answers:
        return [(common[:MOST_LETTERS], messages)]
    return [(f"{common}\n{answer}"[:MOST_LETTERS], messages + 1) for answer in answers]


def messages_in(value: Any) -> int:
    """One of a text; those of a conversation, and both of each turn of a history."""
    if not isinstance(value, (list, tuple)):
        return 1
    return sum(len(item) if isinstance(item, (list, tuple)) else 1 for item in value)


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
