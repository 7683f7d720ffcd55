"""LLaMA-Factory under torch FSDP: the variables for accelerate."""

from collections.abc import Mapping

import yaml

from backend.engines import export, render
from backend.job.job import Job
from tests.engines.cases import SHARDED
from tests.engines.jobs import place, sharded


def variables_of(the_job: Job) -> Mapping[str, str]:
    return render(the_job, place(the_job)).commands[1].environment


def test_the_plan_is_in_the_variables_that_llamafactory_reads_too() -> None:
    variables = variables_of(sharded("fsdp"))
    assert (variables["ACCELERATE_USE_FSDP"], variables["FSDP_VERSION"]) == ("true", "2")
    config = yaml.safe_load(render(sharded("fsdp"), place(sharded("fsdp"))).files["config.yaml"])
    assert not [key for key in config if key.startswith("fsdp")]


def test_the_plain_scripts_set_the_same_variables() -> None:
    assert "  FSDP_VERSION=2\n" in export(sharded("fsdp"))["node1.sh"]


def test_layers_are_freed_after_forward_or_kept() -> None:
    freed, variables = variables_of(sharded("fsdp")), variables_of(SHARDED["fsdp2 offload"])
    assert (freed["FSDP_RESHARD_AFTER_FORWARD"], variables["FSDP_RESHARD_AFTER_FORWARD"]) == ("true", "false")
    first = {"parallel__fsdp__version": 1}
    assert variables_of(sharded("fsdp", **first))["FSDP_SHARDING_STRATEGY"] == "FULL_SHARD"
    variables = variables_of(sharded("fsdp", **first, parallel__fsdp__reshard_after_forward=False))
    assert variables["FSDP_SHARDING_STRATEGY"] == "SHARD_GRAD_OP"


def test_shards_go_to_the_host_on_request() -> None:
    assert variables_of(SHARDED["fsdp2 offload"])["FSDP_OFFLOAD_PARAMS"] == "true"
    assert variables_of(SHARDED["fsdp2"])["FSDP_OFFLOAD_PARAMS"] == "false"


def test_version_1_keeps_its_own_words_and_version_2_is_not_told_them() -> None:
    first, second = variables_of(SHARDED["fsdp1"]), variables_of(SHARDED["fsdp2"])
    words = {"FSDP_SHARDING_STRATEGY", "FSDP_BACKWARD_PREFETCH", "FSDP_SYNC_MODULE_STATES", "FSDP_USE_ORIG_PARAMS"}
    assert words <= first.keys()
    assert not words & second.keys()


def test_weights_are_read_once_a_node_except_by_version_1_without_gpus() -> None:
    read = {case: variables_of(SHARDED[case])["FSDP_CPU_RAM_EFFICIENT_LOADING"] for case in SHARDED if "fsdp" in case}
    assert {case for case, once in read.items() if once == "false"} == {"fsdp1 cpu"}
    assert variables_of(SHARDED["fsdp1 cpu"])["FSDP_SYNC_MODULE_STATES"] == "false"


def test_checkpoints_hold_whole_weights() -> None:
    assert variables_of(SHARDED["fsdp2"])["FSDP_STATE_DICT_TYPE"] == "FULL_STATE_DICT"
