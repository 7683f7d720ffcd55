"""The job file is read and written without loss, and its problems are reported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.job.cluster import Host
from backend.job.mapping import dump_job, get_value, load_job, parameters, parse_job, to_mapping, with_values
from backend.job.patterns import PRINTABLE
from backend.job.problems import errors

SMALLEST = {"cluster": {"gpu": "h100-80g", "nodes": 4, "gpus_per_node": 8}, "model": {"preset": "qwen3-vl-8b"}}


def problems_of(**changes):
    return parse_job({**SMALLEST, **changes})[1]


def test_cluster_and_model_are_enough_for_a_plan():
    job, problems = parse_job(SMALLEST)
    assert problems == []
    assert job.world_size == 32
    assert to_mapping(job) == {"version": 1, **SMALLEST}


def test_what_is_missing_is_named_by_its_path():
    job, problems = parse_job({"cluster": {"gpu": "h100-80g"}})
    assert job is None
    assert [(p.code, p.field) for p in problems] == [
        ("missing_key", "cluster.nodes"),
        ("missing_key", "cluster.gpus_per_node"),
    ]


def test_unknown_keys_are_kept_and_reported_with_the_nearest_known_one():
    job, problems = parse_job({**SMALLEST, "parallel": {"tensr": 4, "tensor": 2}, "colour": {"a": [1]}})
    assert [(p.code, p.field, p.severity) for p in problems] == [
        ("unknown_key_near", "parallel.tensr", "warning"),
        ("unknown_key", "colour", "warning"),
    ]
    again, _ = load_job(dump_job(job))
    assert again == job
    assert to_mapping(again)["parallel"] == {"tensor": 2, "tensr": 4}


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"name": "a; rm -rf /"}, "bad_format", "name"),
        ({"name": ""}, "bad_format", "name"),
        ({"name": "x" * 65}, "bad_format", "name"),
        ({"training": {"output_dir": "/data/with space"}}, "bad_format", "training.output_dir"),
        ({"training": {"output_dir": "/data/$(reboot)"}}, "bad_format", "training.output_dir"),
        ({"training": {"dataset": "a'b"}}, "bad_format", "training.dataset"),
        ({"training": {"micro_batch_size": 0}}, "too_small", "training.micro_batch_size"),
        ({"training": {"micro_batch_size": True}}, "wrong_type", "training.micro_batch_size"),
        ({"training": {"micro_batch_size": 1.5}}, "wrong_type", "training.micro_batch_size"),
        ({"training": {"learning_rate": "fast"}}, "wrong_type", "training.learning_rate"),
        ({"training": {"learning_rate": float("nan")}}, "wrong_type", "training.learning_rate"),
        ({"training": {"packing": "yes"}}, "wrong_type", "training.packing"),
        ({"training": {"stage": "rlhf"}}, "not_a_choice", "training.stage"),
        ({"training": []}, "wrong_type", "training"),
        ({"cluster": "home"}, "unknown_cluster", "cluster"),
        ({"environment": {"A": "b\nc"}}, "bad_format", "environment.A"),
        ({"environment": {"A": {"b": 1}}}, "wrong_type", "environment.A"),
        ({"parallel": {"recompute_modules": ["moon"]}}, "not_a_choice", "parallel.recompute_modules[0]"),
    ],
)
def test_a_bad_value_is_refused_with_its_field(changes, code, field):
    assert [(p.code, p.field) for p in errors(problems_of(**changes))] == [(code, field)]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "null"), (False, "false"), ("x" * 200, "x" * 80 + "...")],
)
def test_a_wrong_value_is_quoted_as_the_file_says_it_and_no_longer_than_a_line(value, shown):
    (problem,) = errors(problems_of(training={"stage": value}))
    assert problem.values["value"] == shown


@pytest.mark.parametrize("address", ["-oProxyCommand=x", "a b", "h;ls", "`id`", "", "a\nb", "/etc"])
def test_a_hostile_address_is_refused(address):
    hosts = [{"address": address}]
    assert [p.code for p in problems_of(cluster={**SMALLEST["cluster"], "hosts": hosts})] == ["bad_format"]


@pytest.mark.parametrize("address", ["::1", "2001:db8::17", "fd00:0:0:1::2", "::ffff:10.0.0.1", "node-1.rack_2.lan"])
def test_an_address_may_be_of_either_kind_or_a_name(address):
    assert (
        problems_of(cluster={**SMALLEST["cluster"], "hosts": [{"address": address, "fabric_address": address}]}) == []
    )


@pytest.mark.parametrize("address", ["[2001:db8::1]", "[2001:db8::1]:22", "node1:22", "fe80::1%eth0", "FE80::1", "::g"])
def test_an_address_that_no_other_node_could_dial_is_refused(address):
    (problem,) = problems_of(cluster={**SMALLEST["cluster"], "hosts": [{"address": address}]})
    assert (problem.code, problem.values["format"]) == ("bad_format", "address")


def test_a_node_with_an_ipv6_address_and_a_port_is_named_without_doubt():
    assert [Host(address="fd00::2").name, Host(address="fd00::2", port=2222).name] == ["fd00::2", "[fd00::2]:2222"]


def test_chinese_folders_are_fine():
    assert problems_of(training={"output_dir": "/共享/输出"}) == []


def test_a_learning_rate_as_people_write_it_is_a_number():
    job, problems = load_job("cluster: {gpu: a, nodes: 1, gpus_per_node: 1}\ntraining: {learning_rate: 2e-5}")
    assert problems == []
    assert job.training.learning_rate == 2e-5


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: [", "not_yaml"),
        ("just words", "not_a_mapping"),
        ("", "not_a_mapping"),
        ("a: &x [1]\nb: *x", "yaml_alias"),
        ("cluster:\n  nodes: 1\n  nodes: 2", "not_yaml"),
        ("a: " + "x" * 300_000, "file_too_large"),
        ("!!python/object/apply:os.system ['id']", "not_yaml"),
        ("extra: {a: " + "[" * 3000 + "]" * 3000 + "}", "yaml_deep"),
        ("extra: " + "{a: " * 3000 + "1" + "}" * 3000, "yaml_deep"),
        ("extra: {a: 0x" + "f" * 50_000 + "}", "not_yaml"),
        ("extra: {a: " + ":".join(["59"] * 9000) + "}", "not_yaml"),
    ],
)
def test_text_that_is_no_job_is_refused(text, code):
    job, problems = load_job(text)
    assert job is None
    assert [p.code for p in problems] == [code]


def test_every_parameter_is_listed_once_with_its_default():
    job, _ = parse_job(SMALLEST)
    table = parameters()
    assert len(table) > 80
    for path, parameter in table.items():
        # A job has the whole of cluster.scheduler or nothing of it.
        if not parameter.required and not path.startswith(("cluster.gpu", "model.preset", "cluster.scheduler.")):
            assert get_value(job, path) == parameter.default, path


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "tensor": st.sampled_from([1, 2, 4, 8]),
            "pipeline": st.integers(1, 64),
            "recompute": st.sampled_from(["none", "selective", "full"]),
            "recompute_modules": st.lists(st.sampled_from(["mlp", "moe"]), max_size=2),
            "sequence": st.booleans(),
            "optimizer_offload_fraction": st.floats(0, 1),
        },
    ),
    st.dictionaries(
        st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), st.from_regex(PRINTABLE, fullmatch=True), max_size=3
    ),
)
def test_a_job_written_and_read_again_is_equal(parallel, environment):
    job, problems = parse_job({**SMALLEST, "parallel": parallel, "environment": environment})
    assert problems == []
    assert load_job(dump_job(job)) == (job, [])


CALIBRATION = {
    "gpu": {"memory_gib": 80, "bf16_tflops": 900, "hbm_gb_per_s": 3000},
    "run": "20261121-101500-qwen3-vl-8b-sft-0a1b",
    "run_date": "2026-11-21",
    "engine": "llamafactory-megatron",
    "time_ratio": 1.09,
    "constants": "2026-11-21-0123abcd",
    "memory_ratio": 1.02,
    "probe_date": "2026-11-20",
    "matmul_tflops": 612.5,
    "matmul_precision": "fp16",
    "intra_node_bus_gb_per_s": 361.0,
    "inter_node_bus_gb_per_s": 38.5,
}


def test_a_calibration_is_kept_with_the_cluster():
    job, problems = parse_job({**SMALLEST, "cluster": {**SMALLEST["cluster"], "calibration": CALIBRATION}})
    assert problems == []
    assert to_mapping(job)["cluster"]["calibration"] == CALIBRATION
    assert load_job(dump_job(job)) == (job, [])


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("time_ratio", 0, "too_small"),
        ("time_ratio", 1000, "too_large"),
        ("memory_ratio", "much", "wrong_type"),
        ("matmul_tflops", -1, "not_above"),
        ("inter_node_bus_gb_per_s", float("nan"), "wrong_type"),
        ("run_date", "yesterday", "bad_format"),
        ("run", "../../etc", "bad_format"),
        ("engine", "abacus", "not_a_choice"),
    ],
)
def test_a_wrong_calibration_is_named_by_its_field(key, value, code):
    job, problems = parse_job({**SMALLEST, "cluster": {**SMALLEST["cluster"], "calibration": {key: value}}})
    assert job is None
    assert [(p.code, p.field) for p in problems] == [(code, f"cluster.calibration.{key}")]


def test_an_edit_at_a_path_changes_only_that():
    job, _ = parse_job(SMALLEST)
    edited = with_values(job, {"parallel.tensor": 4, "name": "x"})
    assert (edited.parallel.tensor, edited.name) == (4, "x")
    assert with_values(edited, {"parallel.tensor": 1, "name": "job"}) == job


@pytest.mark.parametrize("changes", [{"name": "x" * 10_000}, {"engine": "y" * 10_000}])
def test_a_message_quotes_the_start_of_a_long_value(changes):
    _, problems = parse_job({**SMALLEST, **changes})
    assert len(str(problems[0].values["value"])) < 100


@pytest.mark.parametrize("key", ["cluster.nodes", "name.x", "a.b", "."])
def test_a_key_with_a_dot_is_refused_for_written_out_again_it_would_be_another(key):
    """`cluster.nodes: 64` was read as an unknown key, and saved as 64 nodes."""
    job, problems = parse_job({"cluster": {"gpu": "cpu", "nodes": 1, "gpus_per_node": 1}, "a": 1, key: 64})
    assert job is None
    assert [problem.field for problem in problems if problem.code == "dotted_key"] == [key]
