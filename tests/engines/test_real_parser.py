"""LLaMA-Factory's own parser accepts the rendered files and reads the job's values in them.

Importing LLaMA-Factory takes many seconds, so each trainer parses all its cases in one process.
"""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend.engines import CONFIG, render
from backend.engines.inference import inference_keys, model_keys
from backend.engines.known_keys import EngineKey, programs
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.megatron_model_types import MCA_MODEL_TYPES
from backend.job.mtp import MCA_LOADED_EARLIER, MCA_LOADS_LATER
from backend.job.presets import models
from backend.node.samples.main import mixed
from backend.runs.launch.derived_start import SHARED_MEMORY
from tests.engines.cases import HUGGING_FACE, MEGATRON, SHARDED
from tests.engines.jobs import place
from tests.job.rule_cases.keys import REFUSED_BY_THE_PARSER
from tests.nodes import needs_node_environment
from tools.programs import (
    LLAMAFACTORY_MAIN,
    MCORE_ADAPTER,
    NODE_PYTHON,
    llamafactory_main_source,
    mcore_adapter_source,
)
from tools.real_parsers import parse_with_llamafactory
from tools.write_engine_keys import engine_keys
from tools.write_templates import FILE as TEMPLATES
from tools.write_templates import ask_templates

pytestmark = [pytest.mark.e2e, needs_node_environment]

# warmup_ratio is the only warm-up key that means the same to every transformers that LLaMA-Factory 0.9.5 takes; fp32
# is what a CPU node trains in.
EXPECTED_WORDS = ("warmup_ratio is deprecated", "We recommend enable mixed precision training.")


def mcore_adapter() -> dict[str, str]:
    """Return the variables that find it; skip if its source is missing."""
    source = mcore_adapter_source()
    if not source:
        pytest.skip(f"{MCORE_ADAPTER} does not name mcore_adapter's src folder (github.com/alibaba/ROLL, not on PyPI)")
    return {"PYTHONPATH": source}


def parsed(cases: Mapping[str, Job], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return case -> the parser's result."""
    rendered = {name: render(created, place(created)) for name, created in cases.items()}
    values = {
        name: {"files": dict(item.files), "environment": dict(item.commands[0].environment)}
        for name, item in rendered.items()
    }
    return parse_with_llamafactory(values, environment)


@cache
def hugging_face() -> dict[str, Any]:
    return parsed(HUGGING_FACE, {})


@cache
def sharded() -> dict[str, Any]:
    return parsed(SHARDED, {})


@cache
def megatron() -> dict[str, Any]:
    return parsed(MEGATRON, {"USE_MCA": "1", **mcore_adapter()})


def llamafactory_main() -> dict[str, str]:
    """Return the variables under which the next release of LLaMA-Factory runs; skip if its source is missing."""
    source = llamafactory_main_source()
    if not source:
        pytest.skip(f"{LLAMAFACTORY_MAIN} does not name the src folder of LLaMA-Factory's main branch")
    # It refuses transformers 5.6.0, which the node's environment has.
    return {"PYTHONPATH": source, "DISABLE_VERSION_CHECK": "1"}


@cache
def next_release() -> dict[str, Any]:
    return parsed({**HUGGING_FACE, **SHARDED}, llamafactory_main())


@cache
def next_release_megatron() -> dict[str, Any]:
    main, adapter = llamafactory_main(), mcore_adapter()
    return parsed(MEGATRON, {**main, "USE_MCA": "1", "PYTHONPATH": f"{main['PYTHONPATH']}:{adapter['PYTHONPATH']}"})


def assert_accepted(result: dict[str, Any]) -> None:
    assert result["error"] is None
    assert [line for line in result["warnings"] if not line.startswith(EXPECTED_WORDS)] == []


@pytest.mark.parametrize("case", HUGGING_FACE)
def test_the_hugging_face_trainer_takes_every_rendered_file(case: str) -> None:
    assert_accepted(hugging_face()[case])


@pytest.mark.parametrize("case", SHARDED)
def test_llamafactory_and_deepspeed_or_accelerate_take_every_rendered_file(case: str) -> None:
    assert_accepted(sharded()[case])


@pytest.mark.parametrize("case", MEGATRON)
def test_mcore_adapter_takes_every_rendered_file(case: str) -> None:
    assert_accepted(megatron()[case])


@pytest.mark.parametrize("case", {**HUGGING_FACE, **SHARDED})
def test_the_next_release_takes_every_rendered_file_and_ends_with_the_same_values(case: str) -> None:
    assert_accepted(next_release()[case])
    assert_same_values(next_release()[case], {**hugging_face(), **sharded()}[case])


@pytest.mark.parametrize("case", MEGATRON)
def test_the_next_release_takes_every_megatron_file_and_ends_with_the_same_values(case: str) -> None:
    assert_accepted(next_release_megatron()[case])
    assert_same_values(next_release_megatron()[case], megatron()[case])


PER_PROCESS = {"logging_dir", "output_dir", "run_name"}
"""Values that hold a time."""


def assert_same_values(new: dict[str, Any], old: dict[str, Any]) -> None:
    """Compare the keys that both versions have: name by name, so that a failure names them."""
    shared = (new["arguments"].keys() & old["arguments"].keys()) - PER_PROCESS
    differ = {
        key: (old["arguments"][key], new["arguments"][key])
        for key in shared
        if old["arguments"][key] != new["arguments"][key]
    }
    assert len(shared) > 100
    assert differ == {}
    plans = [json.dumps([result.get("zero"), result.get("fsdp")]) for result in (new, old)]
    without_addresses = [re.sub(r"0x[0-9a-f]+", "", plan) for plan in plans]
    assert without_addresses[0] == without_addresses[1]


def test_the_trainer_reads_what_the_job_says() -> None:
    full = hugging_face()["full"]["arguments"]
    assert (full["finetuning_type"], full["learning_rate"], full["ddp_timeout"]) == ("full", 2e-5, 1800)
    assert (full["bf16"], full["report_to"], full["warmup_steps"]) == (True, ["tensorboard"], 0.03)
    assert hugging_face()["partial"]["arguments"]["freeze_trainable_layers"] == 3
    assert hugging_face()["lora"]["arguments"]["lora_target"] == ["q_proj", "v_proj"]
    assert hugging_face()["cpu"]["arguments"]["report_to"] == []
    pretraining = hugging_face()["pretraining"]["arguments"]
    assert (pretraining["max_steps"], pretraining["packing"], pretraining["cutoff_len"]) == (10, True, 4096)
    assert hugging_face()["preference"]["arguments"]["pref_loss"] == "simpo"


def test_shares_of_data_sets_arrive_as_numbers() -> None:
    arguments = hugging_face()["mixed"]["arguments"]
    assert (arguments["mix_strategy"], arguments["interleave_probs"]) == ("interleave_over", [0.7, 0.3])
    assert hugging_face()["full"]["arguments"]["mix_strategy"] == "concat"


@pytest.mark.parametrize("strategy", ["interleave_under", "interleave_over"])
@pytest.mark.parametrize("shares", [None, [0.7, 0.3], [0.25, 0.75]])
def test_the_rows_of_a_mixture_are_counted_as_the_package_draws_them(strategy: str, shares: list[float] | None) -> None:
    rows = {"a": 3000, "b": 5000}
    counted = {name: drawn / 5 for name, drawn in mixtures()[f"{strategy} {shares}"].items()}  # of five seeds
    expected = mixed(rows, strategy, shares)
    assert counted == (pytest.approx(expected, rel=0.03) if shares else expected)


@cache
def mixtures() -> dict[str, dict[str, int]]:
    """Return the rows of each data set that LLaMA-Factory's call of the package draws, over five seeds."""
    program = """import json
from types import SimpleNamespace
from datasets import Dataset
from llamafactory.data.data_utils import merge_dataset
sets = [Dataset.from_dict({"of": [name] * rows}) for name, rows in (("a", 3000), ("b", 5000))]
answer = {}
for strategy in ("interleave_under", "interleave_over"):
    for shares in (None, [0.7, 0.3], [0.25, 0.75]):
        arguments = SimpleNamespace(mix_strategy=strategy, interleave_probs=shares, streaming=False)
        drawn = [row for seed in range(5) for row in merge_dataset(sets, arguments, seed)["of"]]
        answer[f"{strategy} {shares}"] = {name: drawn.count(name) for name in "ab"}
try:
    merge_dataset(sets, SimpleNamespace(mix_strategy="interleave_once", interleave_probs=None, streaming=False), 0)
except ValueError as error:
    answer["once"] = str(error)
print("answer", json.dumps(answer))"""
    done = subprocess.run([NODE_PYTHON, "-c", program], capture_output=True, text=True, check=True)
    answer: dict[str, dict[str, int]] = json.loads(done.stdout.rpartition("answer")[2])
    return answer


@pytest.mark.parametrize("backend", ["huggingface", "vllm", "sglang"])
def test_the_arguments_of_a_chat_are_taken_for_every_program_that_may_generate(backend: str) -> None:
    """vLLM and SGLang themselves are not installed here, so LLaMA-Factory's look for them is left out."""
    keys = {**inference_keys(HUGGING_FACE["lora"]), **model_keys("/models/it", "/runs/it/adapter"), **SHARED_GPU}
    program = """import json, sys
from llamafactory.hparams import parser
parser.check_version = lambda *arguments, **options: None
model, *_ = parser.get_infer_args(json.loads(sys.argv[1]))
print("answer", json.dumps([model.infer_backend, model.vllm_gpu_util, model.sglang_mem_fraction]))"""
    command = [str(NODE_PYTHON), "-W", "ignore", "-c", program, json.dumps({**keys, "infer_backend": backend})]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.rpartition("answer")[2]) == [backend, *SHARED_GPU.values()]


SHARED_GPU = {"vllm_gpu_util": SHARED_MEMORY, "sglang_mem_fraction": SHARED_MEMORY}


def test_every_row_once_is_refused_by_the_package_as_the_rule_warns() -> None:
    assert "all_exhausted_without_replacement is not supported" in mixtures()["once"]


def test_hostile_names_arrive_as_they_are() -> None:
    assert hugging_face()["hostile"]["arguments"]["dataset"] == ["no", "1e3", "用户;rm -rf $HOME '\""]


def test_deepspeed_reads_the_plan() -> None:
    zero = {case: result["zero"] for case, result in sharded().items() if "zero" in result}
    assert set(zero) == {case for case in SHARDED if "zero" in case}
    assert (zero["zero2"]["stage"], zero["zero2"]["offload_optimizer"], zero["zero3"]["stage"]) == (2, None, 3)
    # The sizes that the memory model uses.
    assert zero["zero2"]["reduce_bucket_size"] == 500_000_000
    assert zero["zero3"]["max_live_parameters"] == zero["zero3"]["sub_group_size"] == 1_000_000_000
    assert zero["zero3"]["reduce_bucket_size"] == 1024 * 1024
    alone = zero["zero3 optimizer offload"]
    assert (alone["offload_optimizer"]["device"], alone["offload_param"]) == ("cpu", None)
    offload = zero["zero3 nvme"]["offload_optimizer"]
    assert (offload["device"], offload["nvme_path"]) == ("nvme", "/local/nvme/offload")


def test_accelerate_reads_the_plan() -> None:
    fsdp = {case: result["fsdp"] for case, result in sharded().items() if "fsdp" in result}
    assert set(fsdp) == {case for case in SHARDED if "fsdp" in case}
    assert (fsdp["fsdp2"]["fsdp_version"], fsdp["fsdp2"]["reshard_after_forward"]) == ("2", "True")
    assert fsdp["fsdp2 offload"]["reshard_after_forward"] == "False"
    assert "CPUOffloadPolicy" in fsdp["fsdp2 offload"]["cpu_offload"]
    assert (fsdp["fsdp1 cpu"]["fsdp_version"], fsdp["fsdp1 cpu"]["use_orig_params"]) == ("1", "True")
    assert "FULL_STATE_DICT" in fsdp["fsdp1 cpu"]["state_dict_type"]


def test_megatron_reads_the_plan() -> None:
    pipeline, experts = megatron()["pipeline"]["arguments"], megatron()["experts"]["arguments"]
    assert (pipeline["virtual_pipeline_model_parallel_size"], pipeline["recompute_num_layers"]) == (2, 3)
    assert (experts["expert_tensor_parallel_size"], experts["recompute_modules"]) == (1, ["core_attn", "moe_act"])
    assert megatron()["dense"]["arguments"]["accumulate_allreduce_grads_in_fp32"] is True


@pytest.mark.parametrize("environment", [{}, {"USE_MCA": "1"}], ids=["llamafactory", "mcore_adapter"])
def test_the_kept_list_of_keys_is_what_the_programs_say(environment: dict[str, str]) -> None:
    """This compares name, type, default and choices of every key. tools/write_engine_keys.py writes the list."""
    keys = engine_keys(NODE_PYTHON, "llamafactory", environment | mcore_adapter() if environment else {})
    parts = ["mcore_adapter"] if environment else ["llamafactory", "transformers", "llamafactory_trainer"]
    for part in parts:
        values = {
            name: EngineKey(type=key["type"], default=key["default"], choices=tuple(key.get("choices", ())))
            for name, key in keys[part]["keys"].items()
        }
        assert values == programs()[part].keys


# Two presets have a template although the registry of the installed version does not name their repository:
# LLaMA-Factory's main registers Gemma 4 12B (src/llamafactory/extras/constants.py, "Gemma-4-12B-Thinking"), and the
# registry spells MiniCPM-V 4.6 openbmb/MiniCPM-V-4_6, which is not its name on the hub.
NOT_IN_THE_REGISTRY = {"gemma-4-12b": "gemma4n", "minicpm-v-4.6": "minicpm_v_4_6"}


def test_the_templates_are_those_that_llamafactory_registers() -> None:
    """The list in presets/templates.yaml, and the template of every model preset: that of its group in the registry."""
    registered = ask_templates()
    groups = registered.pop("groups")
    assert yaml.safe_load(TEMPLATES.read_text()) == registered
    templates = {key: model.template for key, model in models().items()}
    expected = {key: groups.get(model.hub) for key, model in models().items()}
    assert all(expected[key] is None for key in NOT_IN_THE_REGISTRY), "the registry knows it now: drop it from the list"
    assert templates == expected | NOT_IN_THE_REGISTRY
    assert {template for template in templates.values() if template} <= set(registered["templates"])


GENERATION = {
    "samples": {"temperature": 0.6, "top_p": 0.9},
    "no-beams": {"num_beams": 1, "length_penalty": 0.8},
    "adapters": {"num_beams": 1, "length_penalty": 0.8},
}


def test_the_installed_transformers_says_which_generation_config_no_checkpoint_can_hold(tmp_path: Path) -> None:
    """LLaMA-Factory turns sampling on for the first. Adapters are saved without this file."""
    files = {}
    for name, values in GENERATION.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "generation_config.json").write_text(json.dumps(values))
        method = "lora" if name == "adapters" else "full"
        files[name] = {"config.yaml": f"model_name_or_path: {tmp_path / name}\nfinetuning_type: {method}\n"}
    program = (
        "import json, sys; from backend.node.checks.engine_args import generation_fault as fault;"
        "print(json.dumps({name: fault(files) for name, files in json.loads(sys.argv[1]).items()}))"
    )
    root = str(Path(__file__).parents[2])
    run = subprocess.run(
        [NODE_PYTHON, "-c", program, json.dumps(files)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    answers = json.loads(run.stdout.splitlines()[-1])
    assert {name: bool(fault) for name, fault in answers.items()} == {
        "samples": False, "no-beams": True, "adapters": False,
    }  # fmt: skip
    assert "length_penalty" in answers["no-beams"]


MTP_TYPES = """
import inspect, json
import mcore_adapter.models
from mcore_adapter.models.converter import convert_utils
from mcore_adapter.models.converter.template import templates
from megatron.core.transformer import multi_token_prediction

layers = inspect.getsource(multi_token_prediction)
loads = [name for name, template in templates.items() if "mtp_num_layers" in template.config_hf_to_mca.values()]
later = [name for name in loads if "convert_mtp_name" not in dir(templates[name])]
loaded = "mtp.layers.0.transformer_layer.self_attention.linear_proj.weight"
pure = convert_utils.remove_mca_weight_prefix(loaded)
converted = convert_utils.add_mca_mtp_layer_prefix(pure, 0)
print(json.dumps({"loads": loads, "later": later, "converted": converted, "has_later_name": "mtp_model_layer" in layers,
                  "later_name": convert_utils.MCA_MTP_MOE_PREFIX.split(".")[1]}))
"""


def test_the_types_whose_mtp_weights_load_are_those_of_mcore_adapter() -> None:
    """The rule mtp_not_loaded: Qwen3.5's names are those of a later Megatron-Core, and those of DeepSeek-V3 and GLM-4.5
    get both names. If upstream mends it, docs/upstream-mcore-adapter-mtp.md and the rule can go."""
    done = subprocess.run(
        [str(NODE_PYTHON), "-W", "ignore", "-c", MTP_TYPES], capture_output=True, text=True, check=False,
        env={**os.environ, **mcore_adapter()},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    read = json.loads(done.stdout.splitlines()[-1])
    assert set(read["loads"]) & MCA_MODEL_TYPES == MCA_LOADED_EARLIER | MCA_LOADS_LATER
    assert set(read["later"]) & MCA_MODEL_TYPES == MCA_LOADS_LATER
    assert (read["has_later_name"], read["later_name"]) == (False, "mtp_model_layer")
    assert read["converted"] == "mtp.layers.0.mtp_model_layer.transformer_layer.self_attention.linear_proj.weight"


@cache
def refusals() -> dict[str, str | None]:
    """Return case -> the parser's error, for what the rule `extra_clash` refuses."""
    base = HUGGING_FACE["full"]
    given = {}
    for number, (values, extra) in enumerate(REFUSED_BY_THE_PARSER):
        item = render(job := with_values(base, {"engine": "llamafactory-zero3", **values}), place(job))
        config = {**yaml.safe_load(item.files[CONFIG]), **extra}
        files = {**item.files, CONFIG: yaml.safe_dump(config)}
        given[str(number)] = {"files": files, "environment": dict(item.commands[0].environment)}
    return {name: result["error"] for name, result in parse_with_llamafactory(given, {}).items()}


@pytest.mark.engines
@pytest.mark.parametrize(
    "number", range(len(REFUSED_BY_THE_PARSER)), ids=[str(each[1]) for each in REFUSED_BY_THE_PARSER]
)
def test_the_parser_refuses_what_the_rule_refuses(number: int) -> None:
    extra = REFUSED_BY_THE_PARSER[number][1]
    # transformers' callback checks it when the training starts.
    assert refusals()[str(number)] or "early_stopping_steps" in extra
