"""Mean number of tokens of a sample, by the model's tokenizer, from the drawn rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

COMMON = ("system", "tools", "prompt", "query", "response", "history", "messages")
PAIR = ("chosen", "rejected")
"""Columns of answers. Each answer becomes a sequence, after the columns that both have in common."""
# Columns of ms-swift, and of an entry without columns in LLaMA-Factory (data/parser.py DatasetAttr).
USUAL = ("instruction", "input", "output", "conversations", "text", "content", *COMMON)
JOINED = ("query", "input")
"""Columns that follow the prompt in one message."""
MOST_LETTERS = 1 << 20
"""Characters of one sample that are measured."""
TEMPLATE = 5
"""Tokens that a chat template adds to a message. ChatML adds <|im_start|> user newline and <|im_end|> newline. Llama 3
adds as many (LLaMA-Factory data/template.py)."""


class Unmeasured(Exception):
    """The lengths cannot be measured. The text has the reason."""


def mean_tokens(rows: list[Any], columns: Mapping[str, Any] | None, model: str, *, chat: bool) -> float:
    """Return the mean tokens of a sequence before it is cut, without images. A chat has the tokens of its template.

    Raises Unmeasured.
    """
    tokenizer = read_tokenizer(model)
    counted = [sequence for row in rows for sequence in sequences(as_mapping(row), columns)]
    texts = [text for text, _ in counted]
    if not any(texts):
        raise Unmeasured("no text in the columns that are trained on")
    tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts, add_special_tokens=False))
    return (tokens + chat * TEMPLATE * sum(messages for _, messages in counted)) / len(counted)


def read_tokenizer(model: str) -> Any:
    path = os.path.join(os.path.expanduser(model), "tokenizer.json")
    if os.path.exists(path) and not os.path.isfile(path):
        raise Unmeasured(f"{path}: no regular file")  # the library would wait for a pipe
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises plain Exception for a missing or invalid file
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
    """Return text and number of messages of a row's sequence, or of both sequences of a pair."""
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
    """Return the number of messages: one for a text, all of a conversation, and both of each turn of a history."""
    if not isinstance(value, (list, tuple)):
        return 1
    return sum(len(item) if isinstance(item, (list, tuple)) else 1 for item in value)


def strings(value: Any) -> Iterator[str]:
    """Yield every text in a value except images."""
    if isinstance(value, str):
        if not value.startswith("data:"):
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings(item)
