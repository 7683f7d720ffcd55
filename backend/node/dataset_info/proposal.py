"""Proposes an entry of dataset_info.json for a file, from the names and kinds of the columns of its first rows."""

from __future__ import annotations

import os
from typing import Any

from backend.node.checks.dataset_columns import first_rows
from backend.node.samples.rows import KINDS, Refused

from .table import folder_of

FIRST_ROWS = 50
ALPACA = {
    "prompt": ("instruction", "prompt", "question", "problem"),
    "query": ("input", "query"),
    "response": ("output", "response", "answer", "completion", "text"),
    "history": ("history",),
}
"""Column of an entry -> names that data sets give it. LLaMA-Factory's own names come first."""
COMMON = {
    "system": ("system", "system_prompt"),
    "tools": ("tools",),
    "images": ("images", "image"),
    "videos": ("videos", "video"),
    "audios": ("audios", "audio"),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
}
MESSAGES = ("conversations", "messages", "conversation", "dialog")
ROLES = {
    "user_tag": ("human", "user"),
    "assistant_tag": ("gpt", "assistant", "model"),
    "observation_tag": ("observation", "tool"),
    "function_tag": ("function_call", "function"),
    "system_tag": ("system",),
}


def propose(request: dict[str, Any]) -> dict[str, Any]:
    """Return an entry for the file `path`, which may lie outside of the folder, and the columns of its first rows."""
    folder = folder_of(request)
    path = os.path.join(folder, os.path.expanduser(request["path"]))
    if os.path.splitext(path)[1][1:] not in KINDS:
        raise Refused("dataset_kind", path=path, kinds=", ".join(KINDS))
    if not os.path.isfile(path):
        raise Refused("dataset_file_missing", paths=path)
    rows = table_rows(path) if path.endswith((".parquet", ".arrow")) else first_rows(path)[:FIRST_ROWS]
    if path.endswith(".txt"):
        rows = [{"text": ""}]
    if not rows:
        raise Refused("dataset_unreadable", path=path, reason="row 1 is no JSON object, or the file is empty")
    inside = os.path.relpath(path, folder)
    file_name = path if inside.startswith(os.pardir) else inside
    columns = list(dict.fromkeys(str(name) for row in rows for name in row))
    return {"entry": {"file_name": file_name, **entry_of(rows, columns)}, "columns": columns[:200]}


def table_rows(path: str) -> list[dict[str, Any]]:
    """Return the first rows of a parquet file. An arrow file has none that can be read cheaply."""
    if path.endswith(".arrow"):
        return []
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise Refused("dataset_needs_module", path=path, module=error.name or "pyarrow") from error
    with parquet.ParquetFile(path) as file:
        batch = next(file.iter_batches(FIRST_ROWS), None)
    return [] if batch is None else list(batch.to_pylist())


def entry_of(rows: list[dict[str, Any]], columns: list[str]) -> dict[str, Any]:
    """Return the format, the columns and the tags that fit the rows."""
    named = {key: column for key, names in COMMON.items() if (column := first_of(names, columns))}
    ranking = {"ranking": True} if "chosen" in named and "rejected" in named else {}
    messages = next((name for name in MESSAGES if any(isinstance(row.get(name), list) for row in rows)), None)
    if messages is None:
        alpaca = {key: column for key, names in ALPACA.items() if (column := first_of(names, columns))}
        if ranking:
            alpaca.pop("response", None)
        return {"formatting": "alpaca", **ranking, "columns": {**alpaca, **named}}
    turns = [turn for row in rows for turn in row.get(messages) or [] if isinstance(turn, dict)]
    is_openai = any("role" in turn for turn in turns)
    role, content = ("role", "content") if is_openai else ("from", "value")
    used = {str(turn.get(role)) for turn in turns}
    tags = {tag: first_of(names, used) or names[is_openai and len(names) > 1] for tag, names in ROLES.items()}
    return {
        "formatting": "openai" if any("tool_calls" in turn for turn in turns) else "sharegpt",
        **ranking,
        "columns": {"messages": messages, **named},
        "tags": {"role_tag": role, "content_tag": content, **tags},
    }


def first_of(names: tuple[str, ...], there: Any) -> str | None:
    """Return the first of the names that is there."""
    return next((name for name in names if name in there), None)
