"""The data is complete before the gang's command starts. A program that fails or is stopped leaves nothing."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backend.cluster.node_programs import node_program
from backend.node.training import prepare_data

GANG = ["/bin/sh", "-c", "echo the gang starts"]
MAKES = "import os, sys; os.mkdir(sys.argv[2]); open(sys.argv[2] + '/rows', 'w').write(sys.argv[3])"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "tokenized" / "abc"


@pytest.fixture
def folder(tmp_path: Path, target: Path) -> Path:
    """Return a run folder."""
    path = tmp_path / "node0"
    path.mkdir()
    (path / "prepare.json").write_text(json.dumps({"target": str(target), "run": "r-1", "shuffle": 7}))
    return path


def start(folder: Path, rank: int, maker: int, program: str = MAKES, **variables: str) -> subprocess.Popen[str]:
    """Run prepare_data.py of one node with `program` in place of LLaMA-Factory's tokenisation."""
    (folder / prepare_data.MAKER).write_text(program)
    program_file = folder / "prepare_data.py"
    program_file.write_bytes(node_program(program_file.name))
    command = [sys.executable, str(program_file), str(folder), str(rank), str(maker), *GANG]
    environment = {**os.environ, **variables}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def test_the_maker_makes_the_data_and_becomes_the_gangs_command(folder: Path, target: Path) -> None:
    words, _ = start(folder, 0, 0, USE_MCA="1").communicate(timeout=60)
    assert words.splitlines()[-1] == "the gang starts"
    assert json.loads((target / "rows").read_text()) == {"shuffle": 7, "megatron": True}
    assert [entry.name for entry in target.parent.iterdir()] == ["abc"]


def test_tokenising_has_neither_the_gpus_nor_the_variables_of_a_training(folder: Path, target: Path) -> None:
    program = "import json, os, sys; os.mkdir(sys.argv[2]); json.dump(dict(os.environ), open(sys.argv[2] + '/e', 'w'))"
    variables = {"CUDA_VISIBLE_DEVICES": "0,1", "USE_MCA": "1", "ACCELERATE_USE_FSDP": "true"}
    start(folder, 0, 0, program, **variables).communicate(timeout=60)
    data = json.loads((target / "e").read_text())
    assert data["CUDA_VISIBLE_DEVICES"] == ""
    assert not set(prepare_data.OF_TRAINING) & set(data)


def test_data_that_is_there_is_taken_as_it_is(folder: Path, target: Path) -> None:
    target.mkdir(parents=True)
    started = start(folder, 0, 0, "raise SystemExit(3)")
    words, _ = started.communicate(timeout=60)
    assert (started.returncode, words.splitlines()[-1]) == (0, "the gang starts")


def test_a_maker_that_fails_keeps_its_status_and_leaves_nothing(folder: Path, target: Path) -> None:
    started = start(folder, 0, 0, "import os, sys; os.mkdir(sys.argv[2]); raise SystemExit(3)")
    words, _ = started.communicate(timeout=60)
    assert (started.returncode, words.splitlines()[-1]) == (3, f"{prepare_data.FAILED} (exit 3)")
    assert list(target.parent.iterdir()) == []


def test_a_maker_that_is_stopped_leaves_nothing(folder: Path, target: Path) -> None:
    started = start(folder, 0, 0, "import time; print('at work', flush=True); time.sleep(600)")
    assert started.stdout is not None
    assert started.stdout.readline() == "at work\n"
    started.send_signal(signal.SIGTERM)
    assert started.wait(60) == 128 + signal.SIGTERM
    started.stdout.close()
    assert list(target.parent.iterdir()) == []


def test_another_node_waits_with_a_line_for_each_beat_of_the_maker(folder: Path, target: Path) -> None:
    part = Path(f"{target}.r-1.0.part")
    part.mkdir(parents=True)
    started = start(folder, 1, 0, "raise SystemExit(3)")
    (part / "beat").write_text("41")
    assert started.stdout is not None
    assert started.stdout.readline() == "megaboard: waiting for the node that prepares the data (41)\n"
    target.mkdir()
    words, _ = started.communicate(timeout=60)
    assert (started.returncode, words.splitlines()[-1]) == (0, "the gang starts")


def test_what_killed_runs_left_of_the_same_data_is_removed_and_nothing_else(target: Path) -> None:
    old, fresh, other = (target.with_name(name) for name in ("abc.r-0.0.part", "abc.r-1.0.part", "abd.r-0.0.part"))
    for part in (old, fresh, other):
        part.mkdir(parents=True)
        (part / "beat").touch()
    for part in (old, other):
        os.utime(part / "beat", (0, 0))
    prepare_data.remove_abandoned(str(target))
    assert sorted(target.parent.iterdir()) == [fresh, other]


def test_the_faster_of_two_runs_gives_the_data_its_name(target: Path) -> None:
    for name in (target, target.with_name("mine")):
        name.mkdir(parents=True)
        (name / "rows").touch()
    prepare_data.move(str(target.with_name("mine")), str(target))
    assert target.is_dir()


class TestDigest:
    """The digest differs for data that would be tokenised differently."""

    @pytest.fixture
    def wanted(self, tmp_path: Path) -> dict[str, Any]:
        for name in ("data/parts", "model"):
            (tmp_path / name).mkdir(parents=True)
        (tmp_path / "data/parts/1.jsonl").write_text("{}")
        (tmp_path / "model/tokenizer.json").write_text("{}")
        (tmp_path / "model/model.safetensors").write_text("x")
        self.info(tmp_path, {"mine": {"file_name": "parts"}, "other": {"file_name": "o.json"}})
        return {"dataset_dir": str(tmp_path / "data"), "datasets": ["mine"], "model": str(tmp_path / "model")}

    @staticmethod
    def info(folder: Path, content: object) -> None:
        (folder / "data/dataset_info.json").write_text(json.dumps(content))

    @pytest.mark.parametrize("file", ["data/parts/1.jsonl", "data/parts/2.jsonl", "model/tokenizer.json"])
    def test_another_file_is_another_digest(self, tmp_path: Path, wanted: dict[str, Any], file: str) -> None:
        before = prepare_data.digest_of(wanted)
        (tmp_path / file).write_text('{"a": 1}')
        assert prepare_data.digest_of(wanted) != before

    def test_another_description_is_another_digest(self, tmp_path: Path, wanted: dict[str, Any]) -> None:
        before = prepare_data.digest_of(wanted)
        self.info(tmp_path, {"mine": {"file_name": "parts", "columns": {"prompt": "text"}}})
        assert prepare_data.digest_of(wanted) != before

    def test_weights_and_other_data_sets_change_nothing(self, tmp_path: Path, wanted: dict[str, Any]) -> None:
        before = prepare_data.digest_of(wanted)
        (tmp_path / "model/model.safetensors").write_text("more")
        self.info(tmp_path, {"mine": {"file_name": "parts"}})
        assert prepare_data.digest_of(wanted) == before

    @pytest.mark.parametrize("content", [[], None, {"mine": 5}, {}])
    def test_a_strange_description_is_no_error_here(
        self, tmp_path: Path, wanted: dict[str, Any], content: object
    ) -> None:
        self.info(tmp_path, content)
        assert len(prepare_data.digest_of(wanted)["digest"]) == 64
