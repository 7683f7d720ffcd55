"""The parallel plan in mcore_adapter's keys."""

import pytest

from backend.engines import ENGINES, render
from backend.engines.engine import target_of
from backend.job.job import Job
from tests.engines.cases import MEGATRON
from tests.engines.jobs import job, place


def config_of(the_job: Job) -> dict[str, object]:
    return ENGINES[the_job.engine].config(target_of(the_job), "/runs/it")


def test_tensor_and_pipeline_sizes_are_always_written() -> None:
    config = config_of(job())
    assert (config["tensor_model_parallel_size"], config["pipeline_model_parallel_size"]) == (1, 1)


@pytest.mark.parametrize("the_job", MEGATRON.values(), ids=MEGATRON)
def test_nothing_is_written_that_transformers_5_refuses_or_megatron_ignores(the_job: Job) -> None:
    unwanted = {"overwrite_output_dir", "deepspeed", "gradient_checkpointing", "disable_gradient_checkpointing"}
    assert not config_of(the_job).keys() & (unwanted | {"pure_bf16", "enable_liger_kernel", "optim"})


@pytest.mark.parametrize(
    ("path", "value", "key", "written"),
    [
        ("parallel__tensor", 4, "tensor_model_parallel_size", 4),
        ("parallel__pipeline", 4, "pipeline_model_parallel_size", 4),
        ("parallel__context", 2, "context_parallel_size", 2),
        ("parallel__account_for_embedding", True, "account_for_embedding_in_pipeline_split", True),
        ("parallel__account_for_loss", True, "account_for_loss_in_pipeline_split", True),
        ("parallel__pipeline_layout", "Et*20|t*16L", "pipeline_model_parallel_layout", "Et*20|t*16L"),
        ("parallel__recompute", "selective", "recompute_granularity", "selective"),
        ("parallel__recompute", "full", "recompute_granularity", "full"),
        ("parallel__distributed_optimizer", False, "use_distributed_optimizer", None),
        ("parallel__overlap_grad_reduce", True, "overlap_grad_reduce", True),
        ("parallel__overlap_param_gather", True, "overlap_param_gather", True),
        ("parallel__bias_activation_fusion", False, "bias_activation_fusion", None),
        ("parallel__rope_fusion", False, "apply_rope_fusion", None),
        ("parallel__cross_entropy_fusion", True, "cross_entropy_loss_fusion", True),
        ("parallel__optimizer_offload_fraction", 0.5, "optimizer_offload_fraction", 0.5),
        ("parallel__optimizer_offload_fraction", 0.5, "optimizer_cpu_offload", True),
        ("training__precision", "fp16", "accumulate_allreduce_grads_in_fp32", True),
    ],
)
def test_each_choice_becomes_its_key(path: str, value: object, key: str, written: object) -> None:
    changed, plain = config_of(job(**{path: value})), config_of(job())
    assert changed.get(key) == written
    assert plain.get(key) != written


@pytest.mark.parametrize("engine", ["llamafactory-megatron", "swift-megatron"])
def test_a_layout_names_the_layers_for_multi_token_prediction(engine: str) -> None:
    laid_out = job(engine=engine, parallel__pipeline_layout="Et*20|t*16L", extra={"mtp_num_layers": 1})
    assert config_of(laid_out)["pipeline_model_parallel_layout"] == "Et*20|t*16mL"


def test_interleaving_is_written_when_there_is_some() -> None:
    assert config_of(MEGATRON["pipeline"])["virtual_pipeline_model_parallel_size"] == 2
    assert "virtual_pipeline_model_parallel_size" not in config_of(MEGATRON["dense"])


def test_the_dispatcher_is_said_to_a_dense_model_whose_lengths_vary() -> None:
    varied = config_of(job(extra={"variable_seq_lengths": True}))
    assert varied["moe_token_dispatcher_type"] == "alltoall"
    assert "moe_token_dispatcher_type" not in config_of(job())


def test_sequence_parallel_is_written_where_it_takes_effect() -> None:
    assert config_of(job(parallel__tensor=2))["sequence_parallel"] is True
    assert "sequence_parallel" not in config_of(job(parallel__tensor=1))


def test_full_recompute_over_units_names_its_method() -> None:
    config = config_of(MEGATRON["pipeline"])
    assert (config["recompute_method"], config["recompute_num_layers"]) == ("uniform", 3)
    assert "recompute_method" not in config_of(job(parallel__recompute="full"))


def test_selective_recompute_lists_its_modules() -> None:
    assert config_of(MEGATRON["experts"])["recompute_modules"] == "core_attn,moe_act"


def test_expert_tensor_size_is_always_written_because_the_default_is_the_tensor_size() -> None:
    config = config_of(MEGATRON["experts"])
    assert config["expert_tensor_parallel_size"] == 1
    assert config["expert_model_parallel_size"] == 4
    assert config["moe_token_dispatcher_type"] == "alltoall"
    assert config["moe_grouped_gemm"] is True
    assert not [key for key in config_of(MEGATRON["dense"]) if "expert" in key or "moe" in key]


def test_without_a_gpu_the_plain_modules_are_taken_and_it_is_reported() -> None:
    cpu = MEGATRON["cpu"]
    config = config_of(cpu)
    assert (config["transformer_impl"], config["use_cpu"]) == ("local", True)
    off = ("bias_activation_fusion", "apply_rope_fusion", "moe_grouped_gemm")
    assert not any(config[key] for key in off)
    (note,) = render(cpu, place(cpu)).notes
    assert (note.code, note.severity, note.values["keys"]) == ("off_on_cpu", "note", ", ".join(off))
    assert config_of(job(gpu="cpu", parallel__tensor=2))["sequence_parallel"] is False
    assert render(MEGATRON["dense"], place(MEGATRON["dense"])).notes == ()


@pytest.mark.parametrize(("expert_tensor", "codes"), [(1, ["checkpoint_torch_dist"]), (2, [])])
def test_another_size_for_experts_changes_the_format_of_checkpoints_and_says_so(
    expert_tensor: int, codes: list[str]
) -> None:
    experts = job("qwen3-30b-a3b", parallel__tensor=2, parallel__expert=2, parallel__expert_tensor=expert_tensor)
    assert [note.code for note in render(experts, place(experts)).notes] == codes
