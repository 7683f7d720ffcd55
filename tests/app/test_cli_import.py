"""`megaboard import`: a job file on standard output or in a file, and a report of every key."""

import json
from pathlib import Path

import pytest
import yaml

from app.main import main
from backend.job.mapping import MAXIMUM_TEXT, load_job

YAML = """
model_name_or_path: Qwen/Qwen3-8B
stage: sft
do_train: true
finetuning_type: full
dataset: d
template: qwen3
cutoff_len: 2048
deepspeed: ds.json
overwrite_output_dir: true
output_dir: /runs/one
per_device_train_batch_size: 1
learning_rate: 1e-5
bf16: true
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "sft.yaml"
    path.write_text(YAML)
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    return path


def test_the_job_file_goes_to_standard_output_and_the_report_to_standard_error(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(source), "--gpu", "a100-80g", "--nodes", "2"]) == 0
    output = capsys.readouterr()
    job, problems = load_job(output.out)
    assert problems == []
    assert job is not None
    assert (job.engine, job.cluster.nodes, job.cluster.gpu) == ("llamafactory-zero2", 2, "a100-80g")
    assert "overwrite_output_dir" in output.err
    assert "of 13 keys" in output.err


@pytest.mark.parametrize(("lang", "word"), [("en", "dropped"), ("zh", "丢弃")])
def test_with_out_the_report_goes_to_standard_output_in_the_user_s_language(
    source: Path, capsys: pytest.CaptureFixture[str], lang: str, word: str
) -> None:
    out = source.with_name("job.yaml")
    assert main(["--lang", lang, "import", str(source), "--out", str(out)]) == 0
    assert load_job(out.read_text())[0] is not None
    assert word in capsys.readouterr().out


def test_json_has_the_job_and_a_code_for_every_reason(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(source), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["job"]["training"]["cutoff_len"] == 2048
    codes = {line["key"]: line["code"] for line in output["lines"]}
    assert codes["overwrite_output_dir"] == "import_own_folder"
    assert "import_cluster" in {problem["code"] for problem in output["problems"]}


def test_a_job_file_and_other_stages_are_refused_with_a_fix(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("version: 1\ncluster: {}\n", yaml.safe_dump({**yaml.safe_load(YAML), "stage": "ppo"}), "- 1"):
        source.write_text(text)
        assert main(["import", str(source)]) == 2
        assert "->" in capsys.readouterr().err


def test_deepspeed_settings_larger_than_a_job_file_are_not_read(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"padding": "x" * MAXIMUM_TEXT, "zero_optimization": {"stage": 2}}
    source.with_name("ds.json").write_text(json.dumps(settings))
    assert main(["import", str(source), "--json"]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["code"] == "import_deepspeed_missing"


@pytest.mark.parametrize("place", ["beside", "working directory", "above"])
def test_files_are_looked_up_beside_the_yaml_in_the_working_directory_and_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    examples, work = tmp_path / "repository" / "examples" / "train", tmp_path / "work"
    folders = {"beside": examples, "working directory": work, "above": tmp_path / "repository"}
    for folder in (examples, work, folders[place] / "deepspeed"):
        folder.mkdir(parents=True, exist_ok=True)
    (folders[place] / "deepspeed" / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    source = examples / "sft.yaml"
    source.write_text(yaml.safe_dump({**yaml.safe_load(YAML), "deepspeed": "deepspeed/ds.json"}))
    monkeypatch.chdir(work)
    assert main(["import", str(source)]) == 0
    assert load_job(capsys.readouterr().out)[0].engine == "llamafactory-zero3"  # type: ignore[union-attr]


def test_accelerate_s_file_gives_the_sharding_and_the_machines(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = source.read_text().replace("deepspeed: ds.json\n", "")
    source.write_text(text)
    fsdp = {"fsdp_version": 2, "fsdp_offload_params": True, "fsdp_reshard_after_forward": False}
    accelerate = source.with_name("fsdp.yaml")
    settings = {"distributed_type": "FSDP", "num_machines": 2, "num_processes": 16, "fsdp_config": fsdp}
    accelerate.write_text(yaml.safe_dump(settings))
    assert main(["import", str(source), "--accelerate", str(accelerate), "--gpus-per-node", "4"]) == 0
    job = load_job(capsys.readouterr().out)[0]
    assert job is not None
    assert (job.engine, job.cluster.nodes, job.cluster.gpus_per_node) == ("llamafactory-fsdp", 2, 4)
    assert (job.parallel.fsdp.version, job.parallel.fsdp.offload, job.parallel.fsdp.reshard_after_forward) == (
        2,
        True,
        False,
    )
    assert main(["import", str(accelerate)]) == 2
    assert "--accelerate" in capsys.readouterr().err


def test_a_script_names_its_yaml_its_deepspeed_file_and_its_machines(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = source.with_name("train.sh")
    script.write_text("#!/bin/bash\nexport NNODES=2\nNPROC_PER_NODE=4 llamafactory-cli train sft.yaml cutoff_len=512\n")
    assert main(["import", str(script)]) == 0
    output = capsys.readouterr()
    job = load_job(output.out)[0]
    assert job is not None
    assert (job.engine, job.training.cutoff_len) == ("llamafactory-zero2", 512)
    assert (job.cluster.nodes, job.cluster.gpus_per_node) == (2, 4)
    assert "NPROC_PER_NODE" in output.err
    script.write_text("#!/bin/bash\nllamafactory-cli train other.yaml\n")
    assert main(["import", str(script)]) == 2
    assert "other.yaml" in capsys.readouterr().err
