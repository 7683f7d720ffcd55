"""`megaboard calibrate` on stored runs, and the output of `megaboard benchmark` for measured speeds."""

import errno
import json
import os
from pathlib import Path

import pytest
import yaml

from app.cli.calibrate import speeds_text
from app.main import main
from app.text import render_problem
from app.text.intervals import range_words
from backend.cluster.benchmark import Slow, Speeds
from backend.estimate import estimate
from backend.estimate.time.efficiency import level_on, machine_of
from backend.job.cluster import Cluster
from backend.job.mapping import load_job, parse_job, with_values
from backend.job.presets import gpus, intervals
from backend.runs.store import run_store
from backend.runs.store.store import Store
from backend.runs.tasks.benchmark import slow_problems
from tools.stored_runs import StoredRun

RUN = "20261121-101500-job-0a1b"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LANG", "C")
    (tmp_path / "home" / "clusters").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def predicted_s(home: Path) -> float:
    """Store a finished run of 40 steps that took 1.1 times the predicted seconds, and return the prediction."""
    store = Store(home / "megaboard.db")
    run = StoredRun(store, RUN, now=1000.0, addresses=["10.0.0.1", "10.0.0.2"], gpus_per_node=4)
    run.start()
    with store.read() as connection:
        job, _ = load_job(run_store.run_row(connection, RUN)["job"])
    assert job is not None
    seconds = estimate(with_values(job, {"training.cutoff_len": 1024, "cluster.stack": "tuned"})).iteration_s
    assert seconds is not None
    fixed = {"step_s": 1.1 * seconds, "tokens": job.global_batch * 1024, "reserved_gib": 60.0}
    run.steps(1, 40, **fixed)
    for rank in range(2):
        run.exit(rank)
    run.add_event(run_store.EventKind.FINISHED)
    store.close()
    return seconds


def cluster_file(home: Path, **more: object) -> Path:
    hosts = [{"address": "10.0.0.1"}, {"address": "10.0.0.2"}]
    path = home / "clusters" / "lab.yaml"
    path.write_text(yaml.safe_dump({"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 4, "hosts": hosts, **more}))
    return path


def test_a_run_is_shown_beside_its_prediction_and_nothing_is_written(home, predicted_s, capsys):
    path = cluster_file(home)
    before = path.read_text()
    assert main(["calibrate", "job"]) == 0
    output = capsys.readouterr().out
    machine = machine_of(Cluster(gpu="h100-80g", nodes=1, gpus_per_node=8), gpus()["h100-80g"])
    assert machine is not None
    computed, interval = level_on(machine, intervals().level["as_run"]) * predicted_s, intervals().time["megatron"]
    assert f"predicted {range_words(interval.low * computed, interval.high * computed, 'en')} s" in output
    assert f"run: {RUN}" in output
    assert path.read_text() == before


def test_keep_saves_in_the_cluster_with_the_runs_hosts_and_corrects_its_estimates(home, predicted_s, capsys):
    path = cluster_file(home)
    assert main(["calibrate", RUN, "--keep"]) == 0
    job, problems = parse_job({"cluster": yaml.safe_load(path.read_text()), "model": {"preset": "qwen3-8b"}})
    assert job is not None, problems
    calibration = job.cluster.calibration
    assert (calibration.run, calibration.engine) == (RUN, "llamafactory-megatron")
    # The stored steps vary by a tenth.
    assert calibration.time_ratio == pytest.approx(1.1, rel=0.05)
    assert estimate(job).calibrated_on == RUN
    # A second calibration gives the same ratio, because it compares the run with the uncorrected estimate.
    assert main(["calibrate", RUN, "--keep", "lab"]) == 0
    assert yaml.safe_load(path.read_text())["calibration"]["time_ratio"] == calibration.time_ratio


def test_json_has_the_figures_and_why_there_is_no_memory_ratio(home, predicted_s, capsys):
    assert main(["calibrate", RUN, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["time_ratio"] == pytest.approx(1.1, rel=0.05)
    assert output["calibration"]["run"] == RUN
    assert {problem["code"] for problem in output["problems"]} == {
        "calibrate_images_assumed",
        "calibrate_short_samples",
    }


def test_figures_are_printed_when_the_calibration_cannot_be_saved(home, predicted_s, capsys, monkeypatch):
    path = cluster_file(home)
    before = path.read_text()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as on_a_full_disk:  # Permissions do not restrict root.
        on_a_full_disk.setattr("app.calibration.write_atomically", full)
        assert main(["calibrate", RUN, "--keep", "--json"]) == 1
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert (data["kept_in"], data["calibration"]["run"]) == (None, RUN)
    assert "cannot_write" in {problem["code"] for problem in data["problems"]}
    assert str(path) in err
    assert path.read_text() == before
    assert main(["calibrate", RUN, "--keep", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept_in"] == "lab"


def test_keep_is_refused_without_a_cluster_of_these_hosts(home, predicted_s, capsys):
    assert main(["calibrate", RUN, "--keep"]) == 2
    assert "--keep NAME" in capsys.readouterr().err


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_report_names_speeds_and_slow_nodes(lang):
    job, _ = parse_job({"cluster": {"gpu": "h100-80g", "nodes": 3, "gpus_per_node": 8}})
    assert job is not None
    slow = (
        Slow(what="network", node=2, measured=18.0, median=84.0),
        Slow(what="product", node=1, local_rank=7, measured=500.0, median=700.0),
        Slow(what="intra", node=0, measured=100.0, median=360.0),
        Slow(what="port", local_rank=3, measured=20.0, median=40.0),
    )
    speeds = Speeds(
        device="NVIDIA H100 80GB HBM3",
        precision="bf16",
        matmul_tflops=700.0,
        intra_node_bus_gb_per_s=360.0,
        inter_node_bus_gb_per_s=40.0,
        sizes={"intra": {1: 90.0, 256: 360.0}, "inter": {1: 8.0}},
        slow=slow,
    )
    assert "360.00" in speeds_text(speeds, job, lang)
    messages = [
        render_problem(lang, slow_problem)["message"]
        for slow_problem in slow_problems({0: "a", 1: "b", 2: "c"}, speeds)
    ]
    assert [
        "c" in messages[0],
        "21%" in messages[0],
        "7" in messages[1],
        "360" in messages[2],
        "50%" in messages[3],
    ] == [True] * 5
