"""The program that reads, checks and changes dataset_info.json, with LLaMA-Factory's own parser and converter."""

import json
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from backend.cluster.node_programs import DATASET_INFO, node_program
from backend.cluster.program_answers.data import DatasetChecked
from backend.cluster.typed_json import answer_of
from backend.node.dataset_info.main import answer
from tests.nodes import skip_without_node_environment
from tools.programs import NODE_PYTHON

OLD = {"file_name": "old.json"}
NEW = {"file_name": "new.json", "columns": {"prompt": "question"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "dataset_info.json").write_text(json.dumps({"数据": OLD, "old": OLD}, ensure_ascii=False))
    return tmp_path


def do(action: str, folder: Path, **request: Any) -> dict[str, Any]:
    return answer(action, {"folder": str(folder), **request})


def entries(folder: Path) -> dict[str, Any]:
    return dict(do("read", folder)["entries"])


def test_an_entry_is_added_changed_and_removed_and_the_version_before_is_kept(folder):
    before = (folder / "dataset_info.json").read_text()
    assert do("write", folder, name="new", entry=NEW, seen=[None]) == {"is_changed": True}
    assert entries(folder) == {"数据": OLD, "old": OLD, "new": NEW}
    assert (folder / "dataset_info.json.bak").read_text() == before
    assert do("write", folder, name="new", entry=OLD, seen=[NEW]) == {"is_changed": True}
    assert do("write", folder, name="old", entry=None, seen=[OLD]) == {"is_changed": True}
    assert entries(folder) == {"数据": OLD, "new": OLD}
    assert "数据" in (folder / "dataset_info.json").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["dataset_info.json", "dataset_info.json.bak"]


def test_the_second_node_of_a_shared_folder_finds_the_entry_and_writes_nothing(folder):
    do("write", folder, name="new", entry=NEW, seen=[None])
    assert do("write", folder, name="new", entry=NEW, seen=[None]) == {"is_changed": False}
    do("write", folder, name="new", entry=None, seen=[NEW])
    assert do("write", folder, name="new", entry=None, seen=[NEW]) == {"is_changed": False}


def test_an_entry_that_somebody_else_changed_is_not_overwritten(folder):
    for seen in (None, NEW):
        assert do("write", folder, name="old", entry=NEW, seen=[seen])["code"] == "dataset_entry_changed"
    assert entries(folder)["old"] == OLD


def test_every_version_that_the_user_saw_on_some_node_may_be_replaced(folder):
    assert do("write", folder, name="old", entry=NEW, seen=[NEW, None, OLD]) == {"is_changed": True}
    assert do("write", folder, name="mine", entry=NEW, seen=[OLD, None]) == {"is_changed": True}
    assert entries(folder) == {"数据": OLD, "old": NEW, "mine": NEW}


def test_a_link_and_the_permissions_of_the_file_stay(folder):
    (folder / "dataset_info.json").rename(folder / "real.json")
    (folder / "real.json").chmod(0o664)
    (folder / "dataset_info.json").symlink_to("real.json")
    do("write", folder, name="new", entry=NEW, seen=[None])
    assert (folder / "dataset_info.json").is_symlink()
    assert stat.S_IMODE((folder / "real.json").stat().st_mode) == 0o664


def test_a_link_in_place_of_the_kept_version_leads_to_no_other_file(folder, tmp_path_factory):
    """Another user may write into a folder of data that users share, and so choose the text of the kept version."""
    private = tmp_path_factory.mktemp("home") / ".bashrc"
    private.write_text("mine")
    before = (folder / "dataset_info.json").read_text()
    (folder / "dataset_info.json.bak").symlink_to(private)
    do("write", folder, name="new", entry=NEW, seen=[None])
    assert private.read_text() == "mine"
    assert (folder / "dataset_info.json.bak").read_text() == before


@pytest.mark.parametrize("text", ["{", "[]", "\0"])
def test_a_broken_file_is_refused_and_not_replaced(folder, text):
    (folder / "dataset_info.json").write_text(text)
    for action, request in (("read", {}), ("write", {"name": "new", "entry": NEW, "seen": [None]})):
        assert do(action, folder, **request)["code"] == "dataset_info_broken"
    assert (folder / "dataset_info.json").read_text() == text


def test_a_folder_without_the_file_has_no_entries_and_gets_its_first_one(tmp_path):
    assert (do("read", tmp_path)["is_there"], entries(tmp_path)) == (False, {})
    do("write", tmp_path, name="new", entry=NEW, seen=[None])
    assert entries(tmp_path) == {"new": NEW}
    assert do("read", tmp_path / "gone")["code"] == "dataset_folder_missing"


TURNS = [{"from": "human", "value": "?"}, {"from": "gpt", "value": "!"}]
CHAT = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"instruction": "a", "input": "", "output": "b"}, {"formatting": "alpaca", "columns": {
            "prompt": "instruction", "query": "input", "response": "output"}}),
        ({"question": "a", "chosen": "b", "rejected": "c", "answer": "d"}, {"formatting": "alpaca", "ranking": True,
            "columns": {"prompt": "question", "chosen": "chosen", "rejected": "rejected"}}),
        ({"conversations": TURNS, "image": "a.png"}, {"formatting": "sharegpt",
            "columns": {"messages": "conversations", "images": "image"}, "tags": {"role_tag": "from",
            "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt", "observation_tag": "observation",
            "function_tag": "function_call", "system_tag": "system"}}),
        ({"messages": CHAT}, {"formatting": "sharegpt", "columns": {"messages": "messages"}, "tags": {
            "role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
            "observation_tag": "tool", "function_tag": "function", "system_tag": "system"}}),
    ],
)  # fmt: skip
def test_an_entry_is_proposed_from_the_first_rows(tmp_path, row, expected):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    inside = do("propose", tmp_path, path=str(tmp_path / "rows.jsonl"))
    assert inside["entry"] == {"file_name": "rows.jsonl", **expected}
    assert inside["columns"] == list(row)
    (tmp_path / "data").mkdir()
    outside = do("propose", tmp_path / "data", path="../rows.jsonl")
    assert Path(outside["entry"]["file_name"]).name == "rows.jsonl"
    assert outside["entry"]["file_name"].startswith("/")


@pytest.mark.parametrize(
    ("path", "code"),
    [("gone.json", "dataset_file_missing"), ("a.exe", "dataset_kind"), ("empty.json", "dataset_unreadable")],
)
def test_a_file_that_no_data_set_can_have_is_refused(tmp_path, path, code):
    (tmp_path / "empty.json").touch()
    assert do("propose", tmp_path, path=path)["code"] == code


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> Path:
    skip_without_node_environment()
    folder = tmp_path_factory.mktemp("broken")
    rows = [{"conversations": TURNS, "images": []} for _ in range(20)]
    (folder / "program.py").write_bytes(node_program(DATASET_INFO))
    (folder / "dataset_info.json").write_text("{}")
    lines = [json.dumps(row) for row in rows]
    lines[16] = lines[16][:-3]
    (folder / "json.jsonl").write_text("\n".join(lines))
    rows[4] = {"conversations": TURNS, "images": ["gone.png"]}
    rows[6] = {"conversations": [{"from": "robot", "value": "?"}, TURNS[1]], "images": []}
    (folder / "rows.json").write_text(json.dumps(rows))
    pairs = [{"conversations": TURNS[:1], "chosen": TURNS[1], "rejected": TURNS[1]} for _ in range(9)]
    pairs[2]["rejected"] = None
    (folder / "pairs.json").write_text(json.dumps(pairs))
    return folder


def check(folder: Path, entry: dict[str, Any]) -> DatasetChecked:
    """Return the program's answer as the server reads it."""
    question = json.dumps({"folder": str(folder), "name": "mine", "entry": {"formatting": "sharegpt", **entry}})
    command = [str(NODE_PYTHON), str(folder / "program.py"), "check", question, "--token", "T:"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    [line] = [line for line in output.splitlines() if line.startswith("T:")]
    return answer_of("node", DatasetChecked, json.loads(line[2:]))


def faults(answer: DatasetChecked) -> list[Any]:
    return sorted((fault["code"], fault["detail"], fault["rows"]) for fault in answer["faults"])


@pytest.mark.e2e  # It imports LLaMA-Factory.
def test_bad_json_a_missing_image_a_wrong_role_and_a_missing_column_are_named_with_their_rows(broken):
    columns = {"messages": "conversations", "images": "images"}
    refused = check(broken, {"file_name": "json.jsonl", "columns": columns})
    assert refused["code"] == "dataset_unreadable"
    assert refused["values"]["reason"].startswith("row 17:")
    assert faults(check(broken, {"file_name": "rows.json", "columns": columns})) == [
        ("media_missing", "", [(5, "gone.png")]),
        ("row_dropped", "", [(7, "robot")]),
    ]
    missing = check(broken, {"file_name": "rows.json", "columns": {"messages": "dialog"}})
    assert faults(missing) == [("column_missing", "dialog", [(None, "")])]


@pytest.mark.e2e  # It imports LLaMA-Factory.
def test_a_pair_without_one_answer_is_named_and_an_entry_that_the_parser_refuses_is_refused(broken):
    columns = {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}
    pairs = check(broken, {"file_name": "pairs.json", "ranking": True, "columns": columns})
    assert faults(pairs) == [("row_dropped", "", [(3, "")])]
    assert check(broken, {"file_name": "pairs.json", "formatting": "csv"})["code"] == "dataset_entry_refused"
