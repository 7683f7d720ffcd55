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
    for text in ("version: 1\ncluster: {}\n", yaml.safe_dump({**yaml.safe_load(YAML), "stage": "kto"}), "- 1"):
        source.write_text(text)
        assert main(["import", str(source)]) == 2
        assert "->" in capsys.readouterr().err


def test_deepspeed_settings_larger_than_a_job_file_are_not_read(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"padding": "x" * MAXIMUM_TEXT, "zero_optimization": {"stage": 2}}
    source.with_name("ds.json").write_text(json.dumps(settings))
    assert main(["import", str(source), "--json"]) == 0
    (line,) = (entry for entry in json.loads(capsys.readouterr().out)["lines"] if entry["key"] == "deepspeed")
    assert line["code"] == "import_deepspeed_unknown"
