"""The command line: its output on each stream, and its exit status."""

import io
import json
import socket
from pathlib import Path

import pytest
import yaml

from app.cli.output import table
from app.main import COMMANDS, OLD_NAMES, main
from app.text import LANGUAGES, t
from app.text.plans import rounded
from backend import __version__
from backend.job.presets import intervals
from tests.texts import said

JOB = {
    "name": "seed",
    "cluster": {"gpu": "h100-80g", "nodes": 4, "gpus_per_node": 8},
    "model": {"preset": "qwen3-vl-8b"},
    # Without images, because TP would train vision parts wrongly.
    "training": {"gradient_accumulation_steps": 8, "images_per_sample": 0},
    "engine": "llamafactory-megatron",
    "parallel": {"tensor": 4},
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path / "home"))
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def job_file(tmp_path):
    def write(file="job.yaml", **changes):
        path = tmp_path / file
        path.write_text(yaml.safe_dump({**JOB, **changes}))
        return str(path)

    return write


@pytest.fixture
def run(capsys):
    """Return a function that runs a command and returns (status, stdout, stderr)."""

    def run(*arguments):
        try:
            status = main(arguments)
        except SystemExit as end:
            status = end.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_version_and_help_are_printed(run):
    assert run("--version") == (0, f"megaboard {__version__}\n", "")
    status, out, _ = run("--help")
    assert status == 0
    assert all(f"    {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_in_both_languages(run, command):
    for lang in LANGUAGES:
        status, out, _ = run("--lang", lang, command, "--help")
        assert status == 0
        assert ("语言" in out) == (lang == "zh")


@pytest.mark.parametrize("old", OLD_NAMES)
def test_the_old_name_of_a_command_works_and_may_be_the_name_of_a_file(run, old):
    status, out, _ = run("--lang", "zh", old, "--help")
    assert (status, out) == run("--lang", "zh", OLD_NAMES[old], "--help")[:2]
    assert f" {old} " not in run("--help")[1]
    status, _, err = run("estimate", old)
    assert (status, f"/{old}" in err or f" {old}" in err) == (2, True)


def test_an_unknown_command_or_option_is_wrong_input(run):
    assert run("explode")[0] == 2
    assert run("estimate")[0] == 2
    assert run("estimate", "x", "--explode")[0] == 2


def test_estimate_prints_stages_and_bubble(run, job_file):
    status, out, err = run("estimate", job_file(parallel={"tensor": 2, "pipeline": 2, "virtual_pipeline": 2}))
    assert status == 0
    assert [line.partition(":")[0] for line in err.splitlines()] == ["note parallel.pipeline_layout"]
    assert t("en", "term.weights") in out
    assert said(out, "cli.estimate.bubble")["textbook"] == "5.9%"
    assert t("en", "cli.estimate.batch", data=8, batch=64) in out


def test_estimate_prints_speed_its_error_the_time_breakdown_and_the_speed_up_over_one_node(run, job_file):
    path = job_file(training={**JOB["training"], "samples": 10_000, "sample_tokens": 3000})
    figures = json.loads(run("estimate", "--json", path)[1])
    out = run("estimate", path)[1]
    assert (figures["memory_unknown"], figures["time_unknown"]) == ([], ["stack"])
    speed = said(out, "cli.estimate.speed")
    assert speed["mfu"] == f"{100 * figures['mfu']:.1f}%"
    assert speed["speed"] == f"{rounded(figures['tokens_per_s_per_gpu']):,}"
    assert t("en", "cli.estimate.hours", hours=f"{figures['hours']:.1f}") in out
    known = intervals()
    for name, interval in (("time", known.time["megatron"]), ("memory", known.memory["megatron"])):
        factors = {"low": f"{interval.low:.0%}", "high": f"{interval.high:.0%}"}
        assert t("en", f"accuracy.{name}", sources=known.sources, **factors) in out
    for key, name in (("hours", "hours"), ("gib", "need_gib")):
        ends = {end: f"{figures[f'{name}_{end}']:,.1f}" for end in ("low", "high")}
        assert t("en", f"accuracy.{key}", **ends) in out
    assert figures["iteration_s_low"] < figures["iteration_s"] < figures["iteration_s_high"]
    assert t("en", "why.spends", parts=t("en", "advice.part.compute"))[:-1] in out
    speed_up = said(out, "cli.estimate.speed_up")
    assert speed_up["nodes"] == "4"
    assert 2 < float(speed_up["faster"]) < 3


def test_without_the_lengths_of_samples_hours_are_an_upper_bound_and_it_says_what_narrows_them(run, job_file):
    path = job_file(training={**JOB["training"], "samples": 10_000})
    figures = json.loads(run("estimate", "--json", path)[1])
    assert (figures["memory_unknown"], figures["time_unknown"]) == (["lengths"], ["lengths", "stack"])
    for lang in LANGUAGES:
        out = run("--lang", lang, "estimate", path)[1]
        assert t(lang, "accuracy.hours.up_to", high=f"{figures['hours_high']:,.1f}") in out
        for key in ("memory.lengths", "time.lengths", "time.stack"):
            assert t(lang, f"accuracy.not_known.{key}") in out


def test_estimate_prints_no_unknown_speed_and_no_speed_up_of_one_node(run, job_file):
    alone = run("estimate", job_file(cluster={**JOB["cluster"], "nodes": 1}))[1]
    assert said(alone, "cli.estimate.speed")
    assert not said(alone, "cli.estimate.speed_up")
    unknown = run("estimate", job_file(cluster={**JOB["cluster"], "gpu": "cpu"}, engine="llamafactory-ddp",
                                       training={"precision": "fp32"}))[1]  # fmt: skip
    assert not said(unknown, "cli.estimate.speed")


def test_the_language_comes_from_the_option_or_the_terminal(run, job_file, monkeypatch):
    path = job_file()
    assert said(run("estimate", path, "--lang", "zh")[1], "cli.estimate.bubble", "zh")
    assert said(run("--lang", "zh", "estimate", path)[1], "cli.estimate.bubble", "zh")
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert said(run("estimate", path)[1], "cli.estimate.bubble", "zh")
    assert said(run("estimate", path, "--lang=en")[1], "cli.estimate.bubble", "en")


def test_estimate_as_json_is_an_object_for_one_file_and_a_list_for_more(run, job_file):
    output = json.loads(run("estimate", "--json", job_file())[1])
    assert (output["name"], output["fits"], output["data_parallel"], output["problems"]) == ("seed", True, 8, [])
    several = json.loads(run("estimate", "--json", job_file(), job_file("other.yaml", name="other"))[1])
    assert [answer["name"] for answer in several] == ["seed", "other"]


def test_a_plan_that_does_not_fit_is_reported_and_is_not_a_failure(run, job_file):
    path = job_file(parallel={"tensor": 1}, cluster={**JOB["cluster"], "gpu": "rtx4090-24g"})
    status, out, err = run("estimate", "--json", path)
    assert (status, err) == (0, "")
    assert [problem["code"] for problem in json.loads(out)["problems"]] == ["over_memory"]


def test_a_wrong_job_gets_one_line_per_problem_and_status_2(run, job_file):
    status, out, err = run("estimate", job_file(cluster={"nodes": 0, "gpus_per_node": "eight"}))
    assert (status, out) == (2, "")
    lines = err.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith(("error cluster", "warning cluster")) and " -> " in line for line in lines)


def test_an_illegal_plan_has_problems_and_no_figures(run, job_file):
    status, out, _ = run("estimate", "--json", job_file(parallel={"tensor": 3}))
    assert status == 2
    answer = json.loads(out)
    assert set(answer) == {"name", "problems"}
    assert answer["name"] == "seed"
    assert set(answer["problems"][0]) == {"code", "field", "message", "fix", "severity"}


def test_a_file_that_cannot_be_read_is_wrong_input(run, tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (str(tmp_path / "nowhere.yaml"), str(tmp_path), str(tmp_path / "binary")):
        status, _, err = run("estimate", path)
        assert status == 2
        assert path in err
    status, out, err = run("plan", "--json", path)
    assert (status, [problem["code"] for problem in json.loads(out)["problems"]]) == (2, ["file_unreadable"])
    assert len(err.splitlines()) == 1
    assert "longer" in run("estimate", "/dev/zero")[2]


def test_standard_input_is_read_for_a_dash(run, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(JOB)))
    assert run("estimate", "-")[0] == 0
    monkeypatch.setattr("sys.stdin", None)
    for command in ("estimate", "plan", "import"):
        status, _, err = run(command, "-")
        assert (status, len(err.splitlines())) == (2, 1)


def test_jsonl_prints_one_answer_for_every_line(run, monkeypatch):
    lines = [
        json.dumps(JOB),
        "nonsense",
        "[1]",
        '{"cluster": 5}',
        "[" * 100_000,
        '{"cluster": "\\ud800", "model": {}}',
        "",
        '"\udcff"',
        f'"{"a" * 600_000}"',
        json.dumps({**JOB, "name": "illegal", "parallel": {"tensor": 3}}),
        '{"name": "wrong", "cluster": {"nodes": "four"}}',
        json.dumps({**JOB, "name": "last"}),
    ]
    sent = "\n".join(lines).encode(errors="surrogateescape")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(sent)))
    status, out, _ = run("estimate", "--jsonl", "-")
    answers = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [answer["name"] for answer in answers] == [
        "seed",
        "2",
        "3",
        "4",
        "5",
        "6",
        "7",
        "8",
        "illegal",
        "wrong",
        "last",
    ]
    assert [bool(answer["problems"]) for answer in answers] == [False, *[True] * 9, False]


def test_a_model_configuration_of_an_unknown_user_is_named(run, job_file):
    status, _, error = run("estimate", job_file(model={"hf_config": "~no-such-user/config.json"}))
    assert (status, "model.hf_config" in error) == (2, True)


def test_a_model_configuration_may_be_beside_the_job(run, job_file, tmp_path):
    config = {"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
              "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
              "tie_word_embeddings": True, "attention_bias": False, "hidden_act": "silu"}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run("estimate", job_file(model={"hf_config": "config.json"}))[0] == 0
    status, _, err = run("estimate", job_file(model={"hf_config": "nowhere.json"}))
    assert status == 2
    assert "model.hf_config" in err


def test_a_named_cluster_comes_from_the_home_folder(run, job_file, home):
    path = job_file(cluster="lab")
    assert "lab" in run("estimate", path)[2]
    (home / "clusters").mkdir(parents=True)
    (home / "clusters" / "lab.yaml").write_text(yaml.safe_dump(JOB["cluster"]))
    assert run("estimate", path)[0] == 0


@pytest.mark.slow
def test_plan_lists_legal_plans_best_first(run, job_file):
    status, out, _ = run("plan", job_file(), "--json", "--top", "3")
    answer = json.loads(out)
    assert status == 0
    assert len(answer["plans"]) == 3 < answer["count"]
    assert all(plan["fits"] and plan["global_batch_size"] == 64 for plan in answer["plans"])
    assert set(answer["plans"][0]["parallel"]) == {
        "tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor",
    }  # fmt: skip
    assert sum(answer["rejected"].values()) > 0
    node = {**JOB["cluster"], "nodes": 1}
    everything = json.loads(run("plan", job_file(cluster=node), "--json")[1])
    assert everything["plans"][everything["recommended"]]["fit"] == "fits"
    assert all(plan["fit"] != "fits" for plan in everything["plans"][: everything["recommended"]])
    assert run("plan", job_file(), "--top", "3")[1].splitlines()[0].startswith("3 of ")
    assert run("plan", job_file(), "--top", "-1")[0] == 2


def test_render_writes_files_that_need_no_megaboard(run, job_file, tmp_path):
    status, out, _ = run("render", job_file(), "--out", str(tmp_path / "deep" / "out"))
    assert status == 0
    assert {Path(line).name for line in out.splitlines()} >= {"config.yaml", "launch.sh"}
    assert (tmp_path / "deep" / "out" / "launch.sh").stat().st_mode & 0o111


def test_render_deletes_only_unchanged_files_of_another_job(run, job_file, tmp_path):
    out = tmp_path / "out"
    cluster = {"gpu": "h100-80g", "nodes": 4, "gpus_per_node": 8}
    assert run("render", job_file(cluster=cluster), "--out", str(out))[0] == 0
    (out / "node2.sh").write_text("mine now")
    (out / "node9.sh").write_text("mine")
    two = job_file(cluster=cluster | {"nodes": 2})
    status, _, err = run("render", two, "--out", str(out))
    assert status == 0
    assert "node2.sh" in err
    assert {path.name for path in out.glob("node*.sh")} == {"node0.sh", "node1.sh", "node2.sh", "node9.sh"}
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.yaml").write_text("model: mine")
    status, _, err = run("render", two, "--out", str(tmp_path / "own"))
    assert (status, "config.yaml" in err) == (2, True)
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["config.yaml"]
    assert (tmp_path / "own" / "config.yaml").read_text() == "model: mine"


def test_render_reports_settings_that_the_engine_reads_differently(run, job_file, tmp_path):
    training = {"template": "qwen3_vl_nothink", "save_total_limit": 1, "freeze": {"vision_tower": True}}
    parallel = {"tensor": 4, "overlap_grad_reduce": True}
    path = job_file(engine="swift-megatron", training=training, parallel=parallel, extra={"mirco_batch": 1})
    status, _, err = run("render", path, "--out", str(tmp_path / "out"))
    assert status == 0
    assert {line.split(":")[0] for line in err.splitlines()} >= {
        "warning parallel.overlap_grad_reduce",
        "warning extra.mirco_batch",
        "note training.template",
        "note training.save_total_limit",
    }
    path = job_file(training={"prepare": {"shuffle": True}, "dataset": "d"})
    assert "launch.sh" in run("render", path, "--out", str(tmp_path / "out"))[2]


def test_an_unusable_home_folder_or_output_is_reported_on_one_line(run, job_file, tmp_path, monkeypatch):
    with open("/dev/full", "w") as full, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", full)
        status, _, err = run("estimate", job_file())
    assert (status, len(err.splitlines())) == (1, 1)
    (tmp_path / "file").write_text("")
    for home in (str(tmp_path / "file" / "home"), "~no-such-user/home"):
        monkeypatch.setenv("MEGABOARD_HOME", home)
        status, out, err = run("status")
        assert (status, out, len(err.splitlines())) == (1, "", 1)
        assert home in err


def test_letters_that_the_terminal_lacks_are_escaped(job_file, monkeypatch):
    path = job_file(parallel={"tensor": 3})
    for command in (["estimate", path, job_file("legal.yaml")], ["estimate", "--json", path]):
        out = io.BytesIO()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, encoding="ascii"))
        assert main(["--lang", "zh", *command]) == 2
    assert json.loads(out.getvalue())["problems"][0]["message"][-1] == "\u3002"


def test_a_folder_below_a_tilde_is_wrong_input(run, job_file, tmp_path):
    status, _, err = run("render", job_file(training={"output_dir": "~/x"}), "--out", str(tmp_path / "out"))
    assert (status, "training.output_dir" in err) == (2, True)


def test_render_into_a_folder_that_cannot_be_written_is_a_failure(run, job_file, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = run("render", job_file(), "--out", str(tmp_path / "file"))
    assert status == 1
    assert "file" in err


def test_a_launch_without_hosts_names_the_missing_fields(run, job_file):
    for command in ("check", "launch"):
        status, _, err = run(command, job_file())
        assert status == 2
        assert "cluster.hosts" in err


def test_a_node_that_cannot_be_reached_is_named_and_status_is_1(run, job_file):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        cluster = {
            "gpu": "cpu", "nodes": 1, "gpus_per_node": 1, "run_root": "/tmp/x",
            "environments": {"llamafactory": {"python": "/usr/bin/python3"}},
            "hosts": [{"address": "127.0.0.1", "port": port, "user": "nobody"}],
        }  # fmt: skip
        training = {"dataset": "d", "dataset_dir": "/d", "template": "qwen3", "precision": "fp32", "output_dir": "/o"}
        path = job_file(cluster=cluster, model={"preset": "qwen3-0.6b", "path": "/m"}, training=training,
                        engine="llamafactory-ddp", parallel={})  # fmt: skip
        for command in ("check", "launch"):
            status, _, err = run(command, path)
            assert status == 1
            assert f"[127.0.0.1:{port}]" in err


def test_runs_that_do_not_exist_are_wrong_input(run):
    assert run("status") == (0, t("en", "cli.status.none") + "\n", "")
    for command in ("status", "logs", "stop"):
        status, _, err = run(command, "nothing")
        assert status == 2
        assert "nothing" in err


def test_an_invalid_address_or_password_file_is_reported_before_the_page_is_built(run, tmp_path):
    status, _, err = run("serve", "--host", "0.0.0.0")
    assert status == 2
    assert "--allowed-host" in err
    status, _, err = run("serve", "--port", "0", "--password-file", str(tmp_path / "nowhere"))
    assert status == 2
    assert "nowhere" in err
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        status, _, err = run("serve", "--port", str(other.getsockname()[1]))
    assert status == 1
    assert "--port" in err
    assert "gradio" not in err
    assert run("serve", "--port", "99999")[0] == 1


def test_chinese_columns_are_aligned():
    lines = table(["层", "x"], [["a", "1"], ["并行", "22"]]).splitlines()
    assert lines == ["层     x", "a      1", "并行  22"]


@pytest.mark.parametrize("command", ["estimate", "plan"])
def test_a_learning_rate_for_another_batch_gets_a_note_with_both_ways_to_scale_it(run, job_file, command):
    training = {**JOB["training"], "learning_rate": 2e-5, "learning_rate_batch": 32}
    status, _, err = run(command, job_file(training=training))
    assert status == 0
    assert "chosen for a global batch of 32" in err
    assert "4e-5 (linear) or 2.83e-5 (square root" in err
    top = ["--top", "1"] if command == "plan" else []
    problems = json.loads(run(command, job_file(training=training), "--json", *top)[1])["problems"]
    assert [item["field"] for item in problems] == ["training.learning_rate"]
    assert run(command, job_file(training={**training, "learning_rate_batch": 64}))[2] == ""


@pytest.mark.parametrize("lang", LANGUAGES)
def test_plan_names_the_node_that_limits_the_others_and_the_speed_without_it(run, job_file, lang):
    hosts = [{"address": "10.0.0.1"}, {"address": "10.0.0.2", "gpu_memory_gib": 24.0}]
    file = job_file(
        cluster={"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 1, "hosts": hosts},
        model={"preset": "qwen3-8b"}, training={"global_batch_size": 4}, parallel={},
    )  # fmt: skip
    out = run("--lang", lang, "plan", file, "--top", "1")[1]
    assert "10.0.0.2" in out
    assert "23.6 GiB" in out
    answer = json.loads(run("--lang", lang, "plan", file, "--top", "1", "--json")[1])
    assert answer["smallest"]["nodes"] == ["10.0.0.2"]
    assert answer["smallest"]["others_gib"] == 79.11
    assert "10.0.0.2" in run("--lang", lang, "estimate", file)[2]


@pytest.mark.parametrize("command", [["estimate"], ["import"]])
def test_text_from_a_file_cannot_control_the_terminal(tmp_path, command, capsys):
    path = tmp_path / "job.yaml"
    odd = '"\\e]0;title\\a\\e[31mred"'
    training = {"stage": "sft", "do_train": True, "model_name_or_path": "m", "template": "t"}
    head = yaml.safe_dump(training if command == ["import"] else JOB)
    path.write_text(f"{head}\n{odd}: {odd}\n")
    main([*command, str(path)])
    message = "".join(capsys.readouterr())
    assert "red" in message
    assert not set(message) & {chr(code) for code in range(32) if chr(code) not in "\n\t"}
