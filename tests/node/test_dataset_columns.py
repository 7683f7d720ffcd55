"""Columns that LLaMA-Factory reads from a data set and that its first rows lack."""

import json
from pathlib import Path
from typing import Any

import pytest

from backend.node.checks.dataset_columns import missing_columns, row_without_text

ALPACA = {"instruction": "a", "input": "", "output": "b"}
CHAT = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
PAIR = {**CHAT, "chosen": {"from": "gpt", "value": "b"}, "rejected": {"from": "gpt", "value": "c"}}


@pytest.mark.parametrize(
    ("entry", "row", "missing"),
    [
        ({}, ALPACA, []),
        ({}, {"question": "a", "answer": "b"}, ["instruction", "input", "output"]),
        ({}, {"instruction": "a", "output": "b"}, ["input"]),
        ({"columns": {"prompt": "instruction", "response": "output"}}, {"instruction": "a", "output": "b"}, []),
        ({"columns": {"prompt": "question", "images": "picture"}}, {"question": "a"}, ["picture"]),
        ({"formatting": "sharegpt"}, CHAT, []),
        ({"formatting": "sharegpt"}, {"messages": []}, ["conversations"]),
        ({"formatting": "sharegpt", "columns": {"messages": "messages"}}, {"messages": []}, []),
        ({"formatting": "sharegpt", "ranking": True}, PAIR, ["None"]),
        (
            {"formatting": "sharegpt", "ranking": True, "columns": {"messages": "conversations", "chosen": "good"}},
            PAIR,
            ["good", "None"],
        ),
        ({"ranking": True, "columns": {"prompt": "instruction", "chosen": "c", "rejected": "r"}}, ALPACA, ["c", "r"]),
        ({"columns": {"prompt": "instruction", "response": "output", "kto_tag": "good"}}, ALPACA, ["good"]),
        ({"columns": {"prompt": ["instruction"]}}, ALPACA, []),
        ({"columns": 5}, ALPACA, []),
    ],
)
def test_columns_that_the_converter_reads_and_the_rows_lack(
    tmp_path: Path, entry: dict[str, Any], row: dict[str, Any], missing: list[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    assert missing_columns(entry, str(file)) == missing


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.json", json.dumps([{"question": 1}, ALPACA])),
        ("lines.json", f"{json.dumps({'question': 1})}\n{json.dumps(ALPACA)}\n"),
        ("table.csv", "instruction,input,output\na,b,c\n"),
    ],
)
def test_a_column_in_any_of_the_first_rows_is_there(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert missing_columns({}, str(tmp_path / name)) == []


def test_a_table_without_the_columns_is_named(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("question,answer\na,b\n")
    assert missing_columns({}, str(tmp_path / "table.csv")) == ["instruction", "input", "output"]


@pytest.mark.parametrize("text", ["", "[", "[1, 2]", "not JSON", '{"a": ', "[" * 100_000])
def test_a_file_without_readable_rows_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.json").write_text(text)
    assert missing_columns({}, str(tmp_path / "rows.json")) == []


def test_only_the_start_of_a_large_file_is_read(tmp_path: Path) -> None:
    large = tmp_path / "rows.json"
    with large.open("w") as file:
        file.write('[{"question": "')
        file.truncate(1 << 34)
    assert missing_columns({}, str(large)) == []


@pytest.mark.parametrize(
    ("rows", "names", "number"),
    [
        ([{"solution": "4"}, {"solution": "5"}], ["solution"], 0),
        ([{"solution": "4"}, {"messages": []}], ["solution"], 2),
        ([{"solution": 4}], ["solution"], 1),
        ([{"solution": None}], ["solution"], 1),
        ([{"solution": "4"}, {"answer": "5"}], ["answer", "solution"], 0),
        ([], ["solution"], 0),
    ],
)
def test_the_first_row_without_text_in_a_column_is_numbered(
    tmp_path: Path, rows: list[dict[str, Any]], names: list[str], number: int
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert row_without_text(names, str(file)) == number
