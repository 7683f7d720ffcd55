"""The program that shows rows of a data set as the model sees them: what it reads, and LLaMA-Factory's own encoding."""

import json
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from PIL import Image

from app.demo.tiny_model import DATA_FOLDER, MODEL_FOLDER, TEMPLATE, make_rows
from backend.cluster.node_programs import DATA_PREVIEW, node_program
from backend.cluster.program_answers.data import DataPreview
from backend.cluster.typed_json import answer_of
from backend.node.data_preview import main
from backend.node.data_preview.encoding import thumbnail
from backend.node.data_preview.reading import Faults, Kept, media_check
from tests.nodes import skip_without_node_environment
from tools.browser import CHECKOUT
from tools.programs import NODE_PYTHON, SWIFT, swift_python


def kept(rows: list[Any], **more: Any) -> Kept:
    result = Kept(100, more.pop("check", lambda row, number: None), 0)
    result.offer_all(rows)
    return result


def test_the_first_rows_and_equal_rows_are_found_by_their_numbers():
    result = kept([b'{"a": 1, "b": 2}', b'{"a": 2}', b'{"b": 2, "a": 1}', b'{"a": 3}'])
    assert result.first == [(1, {"a": 1, "b": 2}), (2, {"a": 2})]
    assert (result.read, result.duplicates, result.duplicate_rows) == (4, 1, [[1, 3]])


@pytest.mark.parametrize("row", [b'{"a": ', b'"a text"', b"[1]", "not a mapping", b"\xff"])
def test_a_row_that_no_training_can_read_is_refused_with_its_number(row):
    with pytest.raises(ValueError, match="row 17"):
        kept([*({"a": number} for number in range(16)), row])


def test_a_picture_with_a_relative_path_is_shown_from_the_folder_of_pictures(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "here.png")
    assert thumbnail({"bytes": None, "path": "here.png"}, str(tmp_path))
    assert thumbnail(str(tmp_path / "here.png"), "/") == thumbnail("here.png", str(tmp_path)) != ""
    assert thumbnail("gone.png", str(tmp_path)) == ""


def test_missing_pictures_are_counted_with_their_rows(tmp_path):
    (tmp_path / "here.png").touch()
    faults = Faults()
    rows = [{"images": ["here.png"]}, {"images": ["gone.png", "here.png"]}, {"images": None}, {"images": "off.png"}]
    kept(rows, check=media_check(["images"], str(tmp_path), faults))
    [fault] = faults.answer()
    assert (fault["code"], fault["count"], fault["rows"]) == ("media_missing", 2, [[2, "gone.png"], [4, "off.png"]])


def test_a_package_that_the_engine_lacks_is_named(monkeypatch):
    """The message is that of ms-swift for Qwen3-VL; packages and modules are named by different errors."""
    words = "The 'qwen_vl_utils>=0.0.14' distribution was not found and is required by this application."
    for error, name in (
        (PackageNotFoundError(words), "qwen_vl_utils>=0.0.14"),
        (ImportError("no", name="decord"), "decord"),
    ):

        def fail(request, error=error):
            raise error

        monkeypatch.setitem(main.ENGINES, "swift", fail)
        answer = main.preview({"engine": "swift", "folder": "/data"})
        assert answer == {"code": "dataset_needs_module", "values": {"path": "/data", "module": name}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with the demo's tokenizer, and data sets with faults."""
    skip_without_node_environment()
    folder = tmp_path_factory.mktemp("preview")
    command = [str(NODE_PYTHON), "app/demo/tiny_model.py", str(folder)]
    subprocess.run(command, check=True, cwd=CHECKOUT, env={"PYTHONPATH": str(CHECKOUT)}, capture_output=True)
    rows = make_rows(40)
    pairs = [{"conversations": [{"from": "human", "value": row["instruction"]}],
              "chosen": {"from": "gpt", "value": row["output"]},
              "rejected": {"from": "gpt", "value": "?"}} for row in rows]  # fmt: skip
    answers = [{key: value for key, value in row.items() if key != "output"} for row in rows]
    columns = {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}
    odd = [{"conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": "!"}]} for _ in range(9)]
    odd[6]["conversations"].pop()
    sets = {
        "doubled": ([*rows, rows[4]], {}),
        "unanswered": (answers, {}),
        "odd": (odd, {"formatting": "sharegpt"}),
        "pairs": (pairs, {"formatting": "sharegpt", "ranking": True, "columns": columns}),
    }
    info = {name: {"file_name": f"{name}.json", **entry} for name, (_, entry) in sets.items()}
    info["broken"] = {"file_name": "broken.jsonl"}
    for name, (content, _) in sets.items():
        (folder / DATA_FOLDER / f"{name}.json").write_text(json.dumps(content))
    lines = [json.dumps(row) for row in rows]
    lines[16] = lines[16][:-5]
    (folder / DATA_FOLDER / "broken.jsonl").write_text("\n".join(lines))
    (folder / DATA_FOLDER / "dataset_info.json").write_text(json.dumps(info))
    (folder / DATA_PREVIEW).write_bytes(node_program(DATA_PREVIEW))
    return folder


def preview(folder: Path, dataset: str, **config: Any) -> DataPreview:
    """Return the program's answer as the server reads it."""
    whole = {
        "model_name_or_path": str(folder / MODEL_FOLDER),
        "dataset": dataset,
        "dataset_dir": str(folder / DATA_FOLDER),
        "template": TEMPLATE,
        "stage": "sft",
        "cutoff_len": 2048,
        "tensor_model_parallel_size": 2,
        **config,
    }
    return ask(folder, str(NODE_PYTHON), engine="llamafactory", config=whole, megatron=False)


def by_swift(folder: Path, python: str, name: str, **config: Any) -> DataPreview:
    """Return the program's answer for a file under ms-swift."""
    stage, root = config.pop("stage", "sft"), config.pop("images_root", None)
    whole = {
        "model": str(folder / MODEL_FOLDER), "model_type": "qwen3", "template": "qwen3_nothinking",
        "dataset": [str(folder / DATA_FOLDER / name)], "max_length": 2048, "tensor_model_parallel_size": 2, **config,
    }  # fmt: skip
    files = {"stage": stage, "folder": str(folder / DATA_FOLDER), "names": [name], "images_root": root}
    return ask(folder, python, engine="swift", config=whole, megatron=True, files=files)


def ask(folder: Path, python: str, files: Mapping[str, Any] = MappingProxyType({}), **question: Any) -> DataPreview:
    command = [
        python,
        str(folder / DATA_PREVIEW),
        "preview",
        json.dumps({**question, **files, "seed": 1}),
        "--token",
        "T:",
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    [line] = [line for line in output.splitlines() if line.startswith("T:")]
    return answer_of("node", DataPreview, json.loads(line[2:]))


@pytest.mark.e2e  # It imports LLaMA-Factory.
def test_rows_are_shown_with_their_template_and_what_is_trained_and_cut(folder):
    answer = preview(folder, "doubled,unanswered,odd", cutoff_len=24)
    doubled, unanswered, odd = answer["datasets"]
    assert (doubled["rows"], doubled["duplicates"], doubled["duplicate_rows"]) == (41, 1, [(5, 41)])
    assert [(fault["code"], fault["detail"], fault["count"]) for fault in unanswered["faults"]] == [
        ("column_missing", "output", 40)
    ]
    assert [(fault["code"], fault["rows"]) for fault in odd["faults"]] == [("row_dropped", [(7, "")])]
    example = answer["examples"][0]
    assert (example["dataset"], example["row"], example["kind"]) == ("doubled", 1, "first")
    [sequence] = example["sequences"]
    assert sequence["tokens"] == 24 < sequence["uncut_tokens"]
    texts = [(text, trained) for text, _, trained in sequence["uncut"]]
    row = make_rows(1)[0]
    assert texts == [
        (f"<|im_start|>user\n{row['instruction']}<|im_end|>\n<|im_start|>assistant\n", False),
        (f"{row['output']}<|im_end|>\n", True),
    ]
    assert {example["dataset"] for example in answer["examples"]} == {"doubled", "odd"}
    assert len(answer["lengths"]) == 41 + 8
    assert 0 < sum(answer["trained"]) < sum(answer["lengths"])


@pytest.mark.e2e  # It imports LLaMA-Factory.
def test_both_answers_of_a_pair_are_shown(folder):
    answer = preview(folder, "pairs", stage="dpo")
    sequences = answer["examples"][0]["sequences"]
    assert [sequence["part"] for sequence in sequences] == ["chosen", "rejected"]
    assert sequences[1]["stretches"][-1][0] == "?<|im_end|>\n"


@pytest.mark.e2e  # It imports LLaMA-Factory.
def test_a_file_with_a_broken_row_is_refused_with_the_row(folder):
    answer = preview(folder, "broken")
    assert answer["code"] == "dataset_unreadable"
    assert answer["values"]["reason"].startswith("row 17:")


@pytest.fixture(scope="module")
def swift(folder) -> str:
    """Return ms-swift's interpreter, and write files with the rows that it reads."""
    if (python := swift_python()) is None:
        pytest.skip(f"{SWIFT} does not name an interpreter that has ms-swift")
    rows = make_rows(40)
    chats = [{"messages": [{"role": "user", "content": row["instruction"]},
                           {"role": "assistant", "content": row["output"]}]} for row in rows]  # fmt: skip
    asked = [{"query": row["instruction"], "response": row["output"]} for row in rows]
    odd = [dict(row) for row in asked]
    odd[6]["response"] = None
    odd[9]["query"] = "long " * 400
    pairs = [{**chat, "rejected_response": "?"} for chat in chats]
    chats[4] = {"messages": [{"role": "robot", "content": "?"}, *chats[4]["messages"]]}
    for name, content in {"chats": chats, "asked": asked, "odd": odd, "pairs": pairs}.items():
        (folder / DATA_FOLDER / f"{name}.jsonl").write_text("\n".join(map(json.dumps, content)))
    return python


@pytest.mark.e2e  # It imports ms-swift.
def test_swift_shows_rows_with_its_template_and_names_those_that_it_leaves_out(folder, swift):
    answer = by_swift(folder, swift, "odd.jsonl", max_length=128)
    [odd] = answer["datasets"]
    assert (odd["rows"], odd["columns"]) == (40, ["query", "response"])
    faults = {fault["code"]: [number for number, _ in fault["rows"]] for fault in odd["faults"]}
    assert faults == {"nothing_trained": [7], "row_too_long": [10]}
    [sequence] = answer["examples"][0]["sequences"]
    texts = [(text, trained) for text, _, trained in sequence["stretches"]]
    row = make_rows(1)[0]
    assert texts[0][0].startswith(f"<|im_start|>user\n{row['instruction']}<|im_end|>\n<|im_start|>assistant\n")
    assert texts[-1] == (f"{row['output']}<|im_end|>\n", True)
    assert len(answer["lengths"]) == 39
    assert max(answer["lengths"]) > answer["cutoff"] == 128


@pytest.mark.e2e  # It imports ms-swift.
@pytest.mark.parametrize(("stage", "parts"), [("dpo", ["chosen", "rejected"]), ("pt", [""])])
def test_swift_shows_both_answers_of_a_pair_and_trains_every_token_of_a_text(folder, swift, stage, parts):
    answer = by_swift(folder, swift, "pairs.jsonl" if stage == "dpo" else "chats.jsonl", stage=stage)
    sequences = answer["examples"][0]["sequences"]
    assert [sequence["part"] for sequence in sequences] == parts
    if stage == "dpo":
        assert sequences[1]["stretches"][-1][0] == "?<|im_end|>\n"
    else:
        assert sequences[0]["trained_tokens"] == sequences[0]["tokens"] - 1, "nothing predicts the first token"
        [fault] = answer["datasets"][0]["faults"]
        assert (fault["code"], fault["rows"]) == ("row_left_out", [(5, "")])
        assert "robot" in fault["detail"]


@pytest.mark.e2e  # It imports ms-swift.
def test_swift_shows_the_prompt_of_a_row_without_its_answer_where_the_model_answers(folder, swift):
    answer = by_swift(folder, swift, "asked.jsonl", stage="grpo")
    assert answer["datasets"][0]["faults"] == []
    [sequence] = answer["examples"][0]["sequences"]
    [(text, _, trained)] = sequence["stretches"]
    assert text.startswith(f"<|im_start|>user\n{make_rows(1)[0]['instruction']}<|im_end|>\n<|im_start|>assistant\n")
    assert make_rows(1)[0]["output"] not in text.split("assistant")[1]
    assert not trained


@pytest.mark.e2e  # It imports ms-swift.
def test_swift_refuses_a_file_with_a_broken_row_with_the_row(folder, swift):
    answer = by_swift(folder, swift, "broken.jsonl")
    assert answer["values"]["reason"].startswith("row 17:")
