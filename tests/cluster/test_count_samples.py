"""Samples of data sets are counted as the engine takes them, or it is said why not. The program runs as on a node."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backend.cluster import count_samples
from backend.cluster.count_samples import count
from backend.cluster.data_size import PROGRAM
from backend.cluster.programs import node_program
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON


def asked(folder: Path, *names: str, described: bool = True, most: int | None = None, val: float = 0) -> dict[str, Any]:
    return count({"folder": str(folder), "names": names, "described": described, "max_samples": most, "val_size": val})


def describe(folder: Path, **entries: Any) -> None:
    (folder / "dataset_info.json").write_text(json.dumps(entries))


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
        monkeypatch.setattr(count_samples, "CHUNK", chunk)
        assert count_samples.rows_of_json(str(tmp_path / "a.json")) == size


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
def test_what_cannot_be_counted_is_said_why(tmp_path: Path, entry: dict[str, Any] | None, code: str) -> None:
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
    subprocess.run([NODE_PYTHON, "-c", script, tmp_path], check=True, capture_output=True, timeout=300)
    (arrow,) = (tmp_path / "saved").glob("*.arrow")
    names = ["a.parquet", "a.jsonl", "a.csv", str(arrow.relative_to(tmp_path))]
    wanted = {"folder": str(tmp_path), "names": names, "described": False, "max_samples": None, "val_size": 0}
    answer = subprocess.run(
        [NODE_PYTHON, "-", "count", json.dumps(wanted), "--token", "T"],
        input=node_program(PROGRAM), check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    assert json.loads(answer.stdout.decode().removeprefix("T"))["rows"] == dict.fromkeys(names, 1234)


def test_it_runs_on_an_interpreter_that_has_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    wanted = {"folder": str(tmp_path), "names": ["a.jsonl"], "described": False, "max_samples": None, "val_size": 0}
    answer = subprocess.run(
        [sys.executable, "-ISE", "-", "count", json.dumps(wanted), "--token", "T"],
        input=node_program(PROGRAM), check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    assert json.loads(answer.stdout.decode().removeprefix("T"))["samples"] == 1
