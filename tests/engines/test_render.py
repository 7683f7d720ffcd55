"""Rendering: from a job and a placement to the files, commands and environments of all nodes."""

import dataclasses

import pytest
import yaml

from backend.engines import ENGINES, render
from backend.engines.known_keys import keys_of
from backend.job.job import Job
from backend.job.mapping import parameters
from backend.job.problems import ProblemsError
from tests.engines.cases import HUGGING_FACE, MEGATRON, SHARDED
from tests.engines.jobs import RUN, ddp, job, place


def config_of(the_job: Job) -> dict[str, object]:
    loaded: dict[str, object] = yaml.safe_load(render(the_job, place(the_job)).files["config.yaml"])
    return loaded


def codes_of(the_job: Job) -> set[str]:
    with pytest.raises(ProblemsError) as raised:
        render(the_job, place(the_job))
    return {problem.code for problem in raised.value.problems}


@pytest.mark.parametrize("the_job", [*HUGGING_FACE.values(), *SHARDED.values(), *MEGATRON.values()])
def test_the_same_job_gives_the_same_bytes(the_job: Job) -> None:
    assert render(the_job, place(the_job)) == render(dataclasses.replace(the_job), place(the_job))


def test_every_node_starts_torchrun_with_static_rendezvous_in_host_order() -> None:
    the_job = job(nodes=2, ranks=4)
    commands = render(the_job, place(the_job)).commands
    assert [command.rank for command in commands] == [0, 1]
    folder = f"/home/me/.megaboard/{RUN}/1/node1"
    assert commands[1].argv == (
        *("/opt/lf/bin/python", "-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", "1"),
        *("--nproc_per_node", "4", "--master_addr", "10.0.0.1", "--master_port", "29511", "--max_restarts", "0"),
        *(f"{folder}/entry.py", folder),
    )


def test_results_go_to_a_folder_of_the_run() -> None:
    assert config_of(ddp(training__output_dir="/runs/"))["output_dir"] == f"/runs/{RUN}"


@pytest.mark.parametrize("the_job", [job(), ddp(training__method="qlora"), *SHARDED.values()])
def test_an_attempt_that_resumes_names_its_checkpoint_and_changes_nothing_else(the_job: Job) -> None:
    resumed = render(the_job, dataclasses.replace(place(the_job), checkpoint="/runs/it/checkpoint-40"))
    loaded = yaml.safe_load(resumed.files["config.yaml"])
    assert loaded == config_of(the_job) | {"resume_from_checkpoint": "/runs/it/checkpoint-40"}
    assert loaded.keys() <= keys_of(the_job.engine).keys()


def test_each_node_gets_the_interface_towards_the_master() -> None:
    the_job = ddp()
    environment = render(the_job, place(the_job, interface="ib0")).commands[0].environment
    # NCCL reads a bare name as a prefix.
    assert (environment["NCCL_SOCKET_IFNAME"], environment["GLOO_SOCKET_IFNAME"]) == ("=ib0", "ib0")
    assert "NCCL_SOCKET_IFNAME" not in render(the_job, place(the_job, interface=None)).commands[0].environment


def test_the_jobs_own_variables_come_last() -> None:
    the_job = ddp(environment={"NCCL_SOCKET_IFNAME": "bond0", "NCCL_DEBUG": "WARN"})
    environment = render(the_job, place(the_job)).commands[1].environment
    assert environment["NCCL_SOCKET_IFNAME"] == "bond0"
    assert environment["NCCL_DEBUG"] == "WARN"


def test_gpu_ranks_record_their_collectives_in_the_run_folder() -> None:
    the_job = ddp()
    environment = render(the_job, place(the_job)).commands[1].environment
    assert environment["TORCH_FR_BUFFER_SIZE"] == environment["TORCH_NCCL_TRACE_BUFFER_SIZE"]
    assert environment["TORCH_FR_DUMP_TEMP_FILE"] == f"/home/me/.megaboard/{RUN}/1/node1/nccl_trace_rank_"


def test_cpu_ranks_are_told_so() -> None:
    cpu = HUGGING_FACE["cpu"]
    environment = render(cpu, place(cpu)).commands[0].environment
    assert environment["ACCELERATE_TORCH_DEVICE"] == "cpu"
    assert not [name for name in environment if "CUDA" in name or name.startswith("TORCH_NCCL")]
    config = config_of(cpu)
    assert (config["use_cpu"], config["ddp_backend"], config["bf16"], config["fp16"]) == (True, "gloo", False, False)
    assert config["report_to"] == "none"


def test_only_megatron_selects_mcore_adapter() -> None:
    megatron, plain = job(), ddp()
    environment = render(megatron, place(megatron)).commands[0].environment
    assert (environment["USE_MCA"], environment["CUDA_DEVICE_MAX_CONNECTIONS"]) == ("1", "1")
    assert "USE_MCA" not in render(plain, place(plain)).commands[0].environment


def test_extra_keys_reach_the_engine() -> None:
    assert config_of(HUGGING_FACE["switches"])["neftune_noise_alpha"] == 5.0


def test_every_engine_of_the_job_file_can_be_rendered() -> None:
    assert set(ENGINES) == set(parameters()["engine"].choices)


def test_a_job_that_breaks_a_rule_or_lacks_what_a_launch_needs_is_not_rendered() -> None:
    assert codes_of(job(parallel__tensor=3)) >= {"heads_not_divisible"}
    assert codes_of(job(training__dataset=None)) == {"needed_for_launch"}
    assert codes_of(job(training__method="lora")) == {"method_not_supported"}
    assert codes_of(ddp(extra={"learning_rate": 1.0})) == {"extra_owned"}
