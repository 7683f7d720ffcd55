"""`megaboard launch` at the terminal, as far as no node is needed."""

from pathlib import Path

import pytest
import yaml

from app.main import main

JOB = {
    "cluster": {
        "gpu": "h100-80g",
        "nodes": 1,
        "gpus_per_node": 8,
        "environments": {"llamafactory": {"python": "/opt/lf/bin/python"}},
        "hosts": [{"address": "127.0.0.1", "port": 1}],
    },
    "model": {"preset": "qwen3-8b", "path": "/models/qwen3-8b"},
    "training": {"dataset": "demo", "dataset_dir": "/data", "template": "qwen3", "output_dir": "/runs"},
    "parallel": {"tensor": 2},
}


def test_a_launch_with_the_token_of_a_queued_run_prints_that_it_is_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path / "home"))
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(JOB))
    assert main(["launch", str(job), "--queue", "--token", "once"]) == 0
    queued = capsys.readouterr().out
    assert main(["launch", str(job), "--token", "once"]) == 0
    assert capsys.readouterr().out == queued


def test_stopping_a_queued_run_reports_no_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path / "home"))
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(JOB))
    assert main(["launch", str(job), "--queue"]) == 0
    run = capsys.readouterr().out.split()[0]
    assert main(["stop", run]) == 0
    assert capsys.readouterr().out == f"{run}: Stopped\n"
