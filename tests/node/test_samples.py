"""Samples of data sets are counted as the engine reads them, or the reason why not is given. The program runs as on a
node."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backend.cluster.node_programs import SAMPLES, node_program
from backend.node.samples import rows as rows_module
from backend.node.samples.drawn import Drawn
from backend.node.samples.lengths import as_mapping, sequences
from backend.node.samples.main import count
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON


def wanted(folder: Path, *names: str, **others: Any) -> dict[str, Any]:
    request = {"folder": str(folder), "names": names, "described": False, "max_samples": None, "val_size": 0,
               "mix_strategy": "concat", "shares": None}  # fmt: skip
    return {**request, "model": None, "chat": False, **others}


def asked(folder: Path, *names: str, described: bool = True, most: int | None = None, val: float = 0) -> dict[str, Any]:
    result = count(wanted(folder, *names, described=described, max_samples=most, val_size=val))
    assert result.pop("unmeasured", None) or "code" in result
    return result


def on_node(python: str, *arguments: str, **question: Any) -> dict[str, Any]:
    """Return the answer of the program as it runs on a node."""
    answer = subprocess.run(
        [python, *arguments, "-", "count", json.dumps(question), "--token", "T"],
        input=node_program(SAMPLES), check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    data: dict[str, Any] = json.loads(answer.stdout.decode().removeprefix("T"))
    return data


def describe(folder: Path, **entries: Any) -> None:
    (folder / "dataset_info.json").write_text(json.dumps(entries))


@pytest.mark.parametrize(
    ("strategy", "shares", "samples"),
    [
        ("concat", None, 40),
        ("interleave_once", None, 40),
        ("interleave_under", None, 20),
        ("interleave_over", None, 60),
        ("interleave_under", [0.5, 0.5], 20),
        ("interleave_over", [0.2, 0.8], 50),
    ],
)
def test_a_mixture_has_the_rows_that_its_shares_ask_for(
    tmp_path: Path, strategy: str, shares: list[float] | None, samples: int
) -> None:
    (tmp_path / "small.jsonl").write_text('{"text": "x"}\n' * 10)
    (tmp_path / "large.jsonl").write_text('{"text": "x"}\n' * 30)
    result = count(wanted(tmp_path, "small.jsonl", "large.jsonl", mix_strategy=strategy, shares=shares))
    assert (result["samples"], result["rows"]) == (samples, {"small.jsonl": 10, "large.jsonl": 30})
    held_out = count(wanted(tmp_path, "small.jsonl", "large.jsonl", mix_strategy=strategy, shares=shares, val_size=0.1))
    assert held_out["samples"] == samples * 0.9


@pytest.mark.parametrize("size", [0, 1, 3, 250])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_is_counted_whatever_its_elements_hold_and_wherever_a_chunk_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, indent: int | None
) -> None:
    dice = random.Random(size)
    rows = [
        {"text": "".join(dice.choices('],[{}"\\\n 字', k=dice.randrange(40))), "inner": [1, [2]]} for _ in range(size)
    ]
    (tmp_path / "a.json").write_text(
        "\ufeff\n " + json.dumps(rows, indent=indent, ensure_ascii=False), encoding="utf-8"
    )
    for chunk in (7, 64, 1 << 20):
        monkeypatch.setattr(rows_module, "CHUNK", chunk)
        assert rows_module.rows_of_json(str(tmp_path / "a.json"), Drawn()) == size


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("a.jsonl", '{"a": 1}\n\n{"a": 2}', 2),
        ("a.json", '{"a": 1}\n{"a": 2}\n', 2),
        ("a.csv", 'q,a\n"two\nlines",x\n\ny,z\n', 2),
        ("a.txt", "one\n\nthree", 3),
    ],
)
def test_every_kind_of_text_is_counted_as_its_reader_splits_it(tmp_path: Path, name: str, text: str, rows: int) -> None:
    (tmp_path / name).write_text(text)
    assert asked(tmp_path, name, described=False) == {"samples": rows, "rows": {name: rows}}


def test_what_the_entry_and_the_job_say_about_the_number_counts(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for name in ("one.jsonl", "two.jsonl"):
        (tmp_path / "many" / name).write_text("{}\n" * 10)
    (tmp_path / "few.jsonl").write_text("{}\n" * 3)
    describe(tmp_path, many={"file_name": "many"}, few={"file_name": "few.jsonl"},
             drawn={"hf_hub_url": "x/y", "num_samples": 50})  # fmt: skip
    assert asked(tmp_path, "many", "few", "drawn") == {"samples": 73, "rows": {"many": 20, "few": 3, "drawn": 50}}
    assert asked(tmp_path, "many", "few", most=5)["rows"] == {"many": 5, "few": 3}
    assert [asked(tmp_path, "many", val=val)["samples"] for val in (0.01, 0.5, 4)] == [19, 10, 16]
    assert asked(tmp_path, "few.jsonl#2", described=False)["samples"] == 2


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        (None, "dataset_unknown"),
        ({"hf_hub_url": "x/y"}, "dataset_not_local"),
        ({"script_url": "x.py"}, "dataset_not_local"),
        ({"file_name": "none.json"}, "dataset_file_missing"),
        ({"file_name": "a.zip"}, "dataset_kind"),
        ({"file_name": "torn.json"}, "dataset_unreadable"),
        ({"file_name": "latin.json"}, "dataset_unreadable"),
    ],
)
def test_what_cannot_be_counted_has_a_reason(tmp_path: Path, entry: dict[str, Any] | None, code: str) -> None:
    (tmp_path / "a.zip").touch()
    (tmp_path / "torn.json").write_text('[{"a": 1}, {"a": ')
    (tmp_path / "latin.json").write_bytes(b'[{"a": "\xe9"}]')
    describe(tmp_path, **({"it": entry} if entry else {}))
    assert asked(tmp_path, "it")["code"] == code


def test_a_folder_without_a_table_is_named(tmp_path: Path) -> None:
    assert asked(tmp_path, "it") == {"code": "dataset_info_missing", "values": {"path": str(tmp_path)}}


@pytest.mark.e2e
@needs_node_environment
def test_tables_are_counted_with_the_engines_pyarrow_and_agree_with_its_reader(tmp_path: Path) -> None:
    script = (
        "import sys, datasets; d = datasets.Dataset.from_dict({'a': list(range(1234))});"
        "d.to_parquet(sys.argv[1] + '/a.parquet'); d.save_to_disk(sys.argv[1] + '/saved');"
        "d.to_json(sys.argv[1] + '/a.jsonl'); d.to_csv(sys.argv[1] + '/a.csv')"
    )
    subprocess.run([NODE_PYTHON, "-c", script, tmp_path], check=True, capture_output=True)
    (arrow,) = (tmp_path / "saved").glob("*.arrow")
    names = ["a.parquet", "a.jsonl", "a.csv", str(arrow.relative_to(tmp_path))]
    assert on_node(NODE_PYTHON, **wanted(tmp_path, *names))["rows"] == dict.fromkeys(names, 1234)


TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.enable_truncation(4)
tokenizer.save(sys.argv[1] + "/tokenizer.json")
"""


@pytest.mark.e2e
@needs_node_environment
def test_samples_are_measured_by_the_models_tokenizer_and_weigh_as_their_data_sets_do(tmp_path: Path) -> None:
    """A word is a token: 900 rows of 10 and 300 of 30. A chat tokenizer would cut all of them."""
    subprocess.run([NODE_PYTHON, "-c", TOKENIZER, tmp_path], check=True, capture_output=True)
    (tmp_path / "short.jsonl").write_text(900 * f"{json.dumps({'instruction': 4 * 'ask ', 'output': 6 * 'tell '})}\n")
    text = [{"from": "human", "value": 8 * "ask "}, {"from": "gpt", "value": 20 * "tell "}]
    (tmp_path / "long.json").write_text(json.dumps(300 * [{"talk": text, "note": 500 * "never "}]))
    entry = {"file_name": "long.json", "formatting": "sharegpt", "columns": {"messages": "talk"}}
    describe(tmp_path, short={"file_name": "short.jsonl"}, long=entry)
    question = wanted(tmp_path, "short", "long", described=True, model=str(tmp_path))
    answer = on_node(NODE_PYTHON, **question)
    assert answer == {"samples": 1200, "rows": {"short": 900, "long": 300}, "tokens": 15}
    # Two messages a row, five tokens each.
    assert on_node(NODE_PYTHON, **{**question, "chat": True})["tokens"] == 25
    missing = on_node(NODE_PYTHON, **{**question, "model": str(tmp_path / "none")})
    assert missing["samples"] == 1200
    assert "none/tokenizer.json" in missing["unmeasured"]


def test_rows_are_drawn_from_all_parts_of_a_stream_alike() -> None:
    drawn = Drawn(most=400)
    assert drawn.offer_all(range(6_000)) + drawn.offer_all(range(6_000, 10_000)) == 10_000
    tenths = [sum(part * 1000 <= row < (part + 1) * 1000 for row in drawn.rows()) for part in range(10)]
    assert (len(set(drawn.rows())), sum(tenths)) == (400, 400)
    assert all(20 <= tenth <= 60 for tenth in tenths)


@pytest.mark.parametrize(
    ("row", "columns", "expected"),
    [
        (b'{"instruction": "a", "input": "b", "output": "c", "id": "x"}', None, [("a\nb\nc", 2)]),
        ({"system": "s", "instruction": "a", "output": "b", "history": [["c", "d"]]}, None, [("a\nb\ns\nc\nd", 5)]),
        ({"conversations": [{"from": "human", "value": "a"}]}, None, [("human\na", 1)]),
        ({"q": "a", "r": "b", "junk": "c"}, {"query": "q", "response": "r"}, [("a\nb", 1)]),
        ({"messages": [{"content": [{"text": "a"}, {"image": "data:image/png;base64,AAAA"}]}]}, None, [("a", 1)]),
        ({"instruction": "a", "chosen": "b", "rejected": {"value": "c"}}, None, [("a\nb", 2), ("a\nc", 2)]),
        (b"torn {", None, [("", 0)]),
    ],
)
def test_a_row_is_measured_by_what_is_trained_on(
    row: Any, columns: dict[str, str] | None, expected: list[tuple[str, int]]
) -> None:
    assert sequences(as_mapping(row), columns) == expected


def test_it_runs_on_an_interpreter_that_has_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    answer = on_node(sys.executable, "-ISE", **wanted(tmp_path, "a.jsonl", model=str(tmp_path)))
    assert answer["samples"] == 1
    assert "tokenizer.json" in answer["unmeasured"]
