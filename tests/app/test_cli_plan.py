"""`megaboard plan`: the output beside the table."""

import json

import pytest
import yaml

from app.main import main
from app.text import LANGUAGES, t

JOB = {
    "cluster": {"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 8},
    "model": {"preset": "qwen3-vl-8b"},
    "training": {"global_batch_size": 64},
}


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Return a function that runs `plan` for JOB with changes by section, and returns (status, stdout, stderr)."""
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path / "home"))

    def run(*options, **changes):
        job = {name: {**JOB[name], **changes.get(name, {})} for name in JOB}
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
        status = main(["plan", str(tmp_path / "job.yaml"), *options])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.mark.parametrize("option", ["--top=1", "--strategies", "--why-not=TP2", "--json"])
def test_problems_of_every_plan_are_printed_before_the_plans(run, option):
    frozen = {"vision_tower": True, "projector": True, "language_model": True}
    more = ["--top=1"] if option == "--json" else []
    status, out, err = run(option, *more, training={"freeze": frozen})
    assert status == 2
    assert "nothing is trained" in err
    assert out


def test_problems_of_the_job_s_plan_alone_are_not_reported(run):
    status, _, err = run("--top=1", training={"micro_batch_size": 3})
    assert (status, err) == (0, "")


@pytest.mark.parametrize("option", ["--strategies", "--top=1", "--why-not=TP2"])
def test_an_unknown_gpu_or_model_is_one_problem_and_no_table(run, option):
    status, out, err = run(option, cluster={"gpu": {"memory_gib": 64}})
    assert (status, out) == (2, "")
    assert err.count("bf16_tflops") == 2  # The problem and its fix.


@pytest.mark.parametrize("lang", LANGUAGES)
def test_an_offloading_plan_prints_the_host_memory_that_it_needs(run, lang):
    small = {"nodes": 1, "gpus_per_node": 1}
    clusters = [{**small, "host_memory_gib": gib} for gib in (None, 1000)]
    texts = [run(f"--lang={lang}", "--top=1", model={"preset": "qwen3-8b"}, cluster=cluster)[1] for cluster in clusters]
    need = json.loads(run("--json", "--top=1", model={"preset": "qwen3-8b"}, cluster=small)[1])["plans"][0]
    assert need["host_memory_gib"] > 16
    assert all(f"{need['host_memory_gib']:.1f} GiB" in text for text in texts)
    assert "1,000.0 GiB" in texts[1]


def test_a_plan_that_exceeds_the_host_memory_does_not_fit_and_says_why(run):
    small = {"model": {"preset": "qwen3-8b"},
             "cluster": {"nodes": 1, "gpus_per_node": 1, "host_memory_gib": 16}}  # fmt: skip
    plans = json.loads(run("--json", **small)[1])["plans"]
    over = [plan for plan in plans if "host_memory_exceeded" in [problem["code"] for problem in plan["problems"]]]
    assert over
    assert not any(plan["fits"] for plan in over)
    assert all(plan["host_memory_gib"] > 16 for plan in over)
    assert "no: RAM" in run("--top=999", **small)[1]
    rows = {row["strategy"]: row for row in json.loads(run("--strategies", "--json", **small)[1])["strategies"]}
    assert (rows["zero2-offload"]["fits"], rows["zero2-offload"]["reason"]["code"]) == (False, "host_too_large")
    assert "GiB of each node's memory" in rows["zero2-offload"]["reason"]["message"]


def test_rows_that_differ_only_in_switches_show_them(run):
    rows = run("--top=80", model={"preset": "qwen3-8b"})[1].splitlines()[3:]
    assert len(rows) == 80
    assert len(set(rows)) == len(rows)
    assert any("SP off" in row for row in rows)


def test_a_strategys_plan_is_shown_with_its_micro_batch_and_recomputation(run):
    lines = run("--strategies")[1].splitlines()
    assert any("DP16, micro-batch " in line and "full" in line for line in lines)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_strategies_that_are_compared_at_another_global_batch_say_so(run, lang):
    small = {"training": {"global_batch_size": 8}}
    line = run(f"--lang={lang}", "--strategies", **small)[1].splitlines()[1]
    assert all(number in line for number in ("16", "8"))
    output = json.loads(run("--strategies", "--json", **small)[1])
    assert (output["global_batch_size"], output["job_global_batch_size"]) == (16, 8)
    assert {row["plan"]["global_batch_size"] for row in output["strategies"] if row["plan"]} == {16}
    same = json.loads(run("--strategies", "--json")[1])
    assert (same["global_batch_size"], same["job_global_batch_size"]) == (64, 64)
    assert t(lang, "advice.batch", batch="64", wanted="64", ranks="16") not in run(f"--lang={lang}", "--strategies")[1]
