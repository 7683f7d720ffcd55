"""Properties that nodes must share: the different node is named, with a command that a shell accepts."""

import shlex
from dataclasses import replace
from typing import Any, cast

import pytest

from app.text import LANGUAGES, render_problem
from backend.cluster.inventory.software import Origin, optional_modules
from backend.cluster.node import Result
from backend.cluster.preflight.broken_versions import transformers_for
from backend.cluster.preflight.fix_commands import copy_command
from backend.job.cluster import Host
from benchmarks.small_models import SMALL_MODELS
from tests.cluster.gang import H100, MODULES, PRINTS, Gang, hardware_answer, make_facts, smi
from tests.cluster.jobs import make_job

LF = "/opt/lf/bin/python"


def odd_versions(local: dict[str, Origin], others: dict[str, Origin], **job: Any) -> str:
    """Return the command for node 2 of three, whose packages come from `here`; the others have `there`."""
    gang = Gang(nodes=3, **job)

    def facts(origins: dict[str, Origin]) -> Any:
        texts = {n: f"{o.version} (commit {o.commit[:10]})" if o.commit else o.version for n, o in origins.items()}
        return make_facts({**MODULES, **texts}, origins=origins)

    gang.facts = {0: facts(others), 1: facts(others), 2: facts(local)}
    failure, problem = gang.only_failure()
    assert (failure.name, failure.rank) == ("versions", 2)
    command = str(problem.values["command"])
    shlex.split(command)
    return command


def test_other_versions_are_installed_by_the_environment_s_own_pip() -> None:
    command = odd_versions({"torch": Origin(version="2.11.0")}, {"torch": Origin(version="2.13.0")})
    assert command == f"{LF} -m pip install torch==2.13.0"


def test_a_build_for_a_cuda_of_its_own_is_fetched_from_torch_s_index() -> None:
    command = odd_versions({"torch": Origin(version="2.13.0+cpu")}, {"torch": Origin(version="2.13.0+cu128")})
    index = "--extra-index-url https://download.pytorch.org/whl/cu128"
    assert command == f"{LF} -m pip install {index} torch==2.13.0+cu128"


def test_a_package_from_git_is_installed_from_the_same_commit() -> None:
    url, first_one, two = "https://github.com/alibaba/roll.git", "a" * 40, "b" * 40
    origin = Origin(version="0.10.0", url=url, commit=first_one, subdirectory="mcore_adapter")
    local = Origin(version="0.10.0", url=url, commit=two, subdirectory="mcore_adapter")
    command = odd_versions({"llamafactory": local}, {"llamafactory": origin})
    assert shlex.split(command)[-1] == f"llamafactory @ git+{url}@{first_one}#subdirectory=mcore_adapter"


def test_a_checkout_is_moved_to_the_others_commit() -> None:
    origin = Origin(version="0.9.5", commit="a" * 40, folder="/opt/LLaMA-Factory")
    local = Origin(version="0.9.5", commit="b" * 40, folder="/data/my code/LLaMA-Factory")
    command = odd_versions({"llamafactory": local}, {"llamafactory": origin})
    folder = "'/data/my code/LLaMA-Factory'"
    assert command == f"git -C {folder} fetch && git -C {folder} checkout {'a' * 40}"


def test_the_setup_file_and_the_home_folder_are_kept_in_the_command() -> None:
    environments = {"environments": {"llamafactory": {"python": "~/lf/bin/python", "setup": "/opt/env.sh"}}}
    command = odd_versions({"torch": Origin(version="1")}, {"torch": Origin(version="2")}, cluster=environments)
    assert command == ". /opt/env.sh && ~/lf/bin/python -m pip install torch==2"


def test_an_environment_without_pip_gets_one_first() -> None:
    gang = Gang(nodes=1, engine="llamafactory-megatron")
    gang.facts[0] = make_facts({**MODULES, "mcore_adapter": "0.1", "transformer_engine": None}, has_pip=False)
    _, problem = gang.only_failure()
    command = str(problem.values["command"])
    assert command.startswith(f"{LF} -m ensurepip && {LF} -m pip install ")
    assert command.count("ensurepip") == 1


@pytest.mark.parametrize("has_placeholder", [True, False])
def test_the_placeholder_of_pypi_is_distinguished_from_the_real_mcore_adapter(has_placeholder: bool) -> None:
    gang = Gang(nodes=1, engine="llamafactory-megatron")
    origins = {"mcore_adapter": Origin(version="0.0.1")} if has_placeholder else {}
    gang.facts[0] = make_facts({**MODULES, "mcore_adapter": None, "megatron": "0.16.1"}, origins=origins)
    failure, problem = gang.only_failure()
    assert (failure.name, problem.code) == ("engine", "engine_placeholder" if has_placeholder else "engine_missing")
    expected = "mcore_adapter @ git+https://github.com/alibaba/roll.git#subdirectory=mcore_adapter"
    assert shlex.split(str(problem.values["command"])) == [LF, "-m", "pip", "install", expected]


@pytest.mark.parametrize(
    ("transformers", "model", "engine", "warned"),
    [
        ("4.57.6", "qwen3-30b-a3b", "llamafactory-zero3", True),
        ("5.6.0", "qwen3-30b-a3b", "llamafactory-zero3", False),
        ("4.57.6", "qwen3-8b", "llamafactory-zero3", False),
    ],
)
def test_experts_that_run_one_after_the_other_are_warned_of(
    transformers: str, model: str, engine: str, warned: bool
) -> None:
    gang = Gang(nodes=1, engine=engine, model={"preset": model, "path": "/m"})
    gang.facts[0] = make_facts({**MODULES, "deepspeed": "0.18.4", "transformers": transformers})
    problems = [result.problem for result in gang.check() if result.name == "engine" and result.problem]
    assert [(problem.code, problem.severity) for problem in problems] == warned * [("experts_looped", "warning")]


GEMMA_2, QWEN = "gemma-2-9b", "qwen3-0.6b"


@pytest.mark.parametrize(
    ("transformers", "flash_attn", "model", "attention", "refused"),
    [
        ("5.6.0", "2.8.3", QWEN, "fa2", True),
        ("5.6.0", None, QWEN, "fa2", False),
        ("5.6.0", "2.2.0", QWEN, "fa2", False),
        ("5.6.0", "2.8.3", QWEN, "sdpa", False),
        ("5.6.0", "2.8.3", QWEN, None, False),
        ("5.6.1", "2.8.3", QWEN, "fa2", False),
        ("5.5.4", "2.8.3", QWEN, "fa2", False),
        ("5.6.0", "2.8.3", GEMMA_2, None, True),
        ("5.6.0", "2.8.3", GEMMA_2, "auto", True),
        ("5.6.0", None, GEMMA_2, "auto", False),
        ("5.5.4", "2.8.3", GEMMA_2, "auto", False),
        ("5.6.0", "2.8.3", GEMMA_2, "disabled", False),
    ],
)
def test_flash_attention_that_crashes_in_one_version_of_transformers_is_refused(
    transformers: str, flash_attn: str | None, model: str, attention: str | None, refused: bool
) -> None:
    extra = {"flash_attn": attention} if attention else {}
    gang = Gang(nodes=1, engine="llamafactory-ddp", extra=extra, model={"preset": model, "path": "/m"})
    gang.facts[0] = make_facts({**MODULES, "transformers": transformers, "flash_attn": flash_attn})
    problems = [result.problem for result in gang.check() if result.status == "failure" and result.problem]
    assert [(problem.code, problem.severity) for problem in problems] == refused * [
        ("flash_attention_crashes", "error")
    ]
    if refused:
        assert shlex.split(str(problems[0].values["command"])) == [LF, "-m", "pip", "install", "transformers==5.5.4"]


@pytest.mark.parametrize(
    ("model", "engine", "extra", "setting"),
    [
        (QWEN, "llamafactory-ddp", {"flash_attn": "fa2"}, "flash_attn: sdpa"),
        (GEMMA_2, "llamafactory-ddp", {}, "flash_attn: disabled"),
        (QWEN, "swift-ddp", {"attn_impl": "flash_attn"}, "attn_impl: sdpa"),
    ],
)
def test_the_other_cure_of_a_crash_is_a_key_that_the_engine_reads(
    model: str, engine: str, extra: dict[str, str], setting: str
) -> None:
    environments = {"environments": {name: {"python": LF} for name in ("llamafactory", "swift")}}
    gang = Gang(nodes=1, engine=engine, extra=extra, model={"preset": model, "path": "/m"}, cluster=environments)
    gang.facts[0] = make_facts({**MODULES, "swift": "4.6.0", "datasets": "4.8.4", "flash_attn": "2.8.3"})
    _, problem = gang.only_failure()
    assert problem.code == "flash_attention_crashes"
    assert all(setting in render_problem(lang, problem)["fix"] for lang in LANGUAGES)


@pytest.mark.parametrize(
    ("model", "attention", "case"),
    [(QWEN, "fa2", "SDPA"), (GEMMA_2, "fa2", "eager"), (GEMMA_2, "auto", None), (QWEN, "sdpa", None)],
)
def test_flash_attention_that_is_asked_for_and_not_installed_is_warned_of(
    model: str, attention: str, case: str | None
) -> None:
    gang = Gang(nodes=1, extra={"flash_attn": attention}, model={"preset": model, "path": "/m"})
    gang.facts[0] = make_facts({**MODULES, "flash_attn": None})
    if case is None:
        assert not [result for result in gang.check() if result.name == "engine" and result.problem]
        return
    _, problem = gang.only_warning()
    assert (problem.code, problem.values["runs"]) == ("flash_attn_not_installed", case)


@pytest.mark.parametrize(
    ("engine", "accumulation", "deepspeed", "code"),
    [
        ("llamafactory-zero2-offload", 3, "0.18.4", "offload_drops_gradients"),
        ("swift-zero2-offload", 8, "0.18.9", "offload_drops_gradients"),
        ("llamafactory-zero2-offload", 2, "0.18.4", None),
        ("llamafactory-zero2-offload", 8, "0.19.0", None),
        ("llamafactory-zero3-offload", 8, "0.18.4", None),
        ("llamafactory-zero2", 8, "0.18.4", None),
        ("llamafactory-zero3", 2, "0.18.3", "gradients_divided_twice"),
        ("llamafactory-zero3", 1, "0.18.3", None),
    ],
)
def test_a_deepspeed_that_loses_or_divides_gradients_is_refused(
    engine: str, accumulation: int, deepspeed: str, code: str | None
) -> None:
    environments = {"environments": {name: {"python": LF} for name in ("llamafactory", "swift")}}
    training = {"gradient_accumulation_steps": accumulation}
    gang = Gang(nodes=1, engine=engine, training=training, cluster=environments)
    modules = {"deepspeed": deepspeed, "transformers": "5.5.4", "swift": "4.6.0", "datasets": "4.8.4"}
    gang.facts[0] = make_facts({**MODULES, **modules})
    problems = [result.problem for result in gang.check() if result.name == "engine" and result.problem]
    assert [problem.code for problem in problems] == ([code] if code else [])


@pytest.mark.parametrize(
    ("engine", "gpu", "ranks", "deepspeed", "refused"),
    [
        ("llamafactory-zero3", "cpu", 2, "0.18.4", True),
        ("swift-zero3-offload", "cpu", 2, "0.19.7", True),
        ("llamafactory-zero3", "cpu", 2, "0.19.8", False),
        ("llamafactory-zero3", "cpu", 2, "0.20.0", False),
        ("llamafactory-zero3", "cpu", 1, "0.18.4", False),
        ("llamafactory-zero2", "cpu", 2, "0.18.4", False),
        ("llamafactory-zero3", "h100-80g", 2, "0.18.4", False),
    ],
)
def test_on_cpu_nodes_a_deepspeed_whose_gathers_overwrite_weights_is_refused(
    engine: str, gpu: str, ranks: int, deepspeed: str, refused: bool
) -> None:
    environments = {name: {"python": LF} for name in ("llamafactory", "swift")}
    cluster = {"gpu": gpu, "gpus_per_node": ranks, "environments": environments}
    gang = Gang(nodes=1, engine=engine, training={"precision": "fp32"}, cluster=cluster)
    modules = {"deepspeed": deepspeed, "transformers": "5.5.4", "swift": "4.6.0", "datasets": "4.8.4"}
    gang.facts[0] = make_facts({**MODULES, **modules})
    problems = [result.problem for result in gang.check() if result.status == "failure" and result.problem]
    found = [problem for problem in problems if problem.code == "gathers_overwrite_weights"]
    assert bool(found) == refused
    for problem in found:
        assert "deepspeed==0.19.8" in render_problem("en", problem)["fix"]


@pytest.mark.parametrize(
    ("engine", "version", "is_slow"),
    [("llamafactory-zero2", "0.18.5", True), ("llamafactory-zero3", "0.18.6", True),
     ("llamafactory-zero3", "0.18.4", False), ("llamafactory-zero3", "0.18.7", False),
     ("llamafactory-ddp", "0.18.6", False)],
)  # fmt: skip
def test_a_deepspeed_whose_hooks_each_count_all_parameters_gets_a_warning(
    engine: str, version: str, is_slow: bool
) -> None:
    """DeepSpeed pull request 7886: a step of 24 layers took 0.127 s, and 0.051 s with the fix of 0.18.7."""
    gang = Gang(nodes=1, engine=engine)
    gang.facts[0] = make_facts({**MODULES, "deepspeed": version, "transformers": "5.5.4"})
    problems = [result.problem for result in gang.check() if result.name == "engine" and result.problem]
    assert [problem.code for problem in problems] == (["deepspeed_hooks_slow"] if is_slow else [])
    assert all(problem.severity == "warning" for problem in problems)


@pytest.mark.parametrize(
    ("version", "precision", "code"),
    [("4.0.0", "bf16", "gradients_in_bf16"), ("4.3.1", "bf16", "gradients_in_bf16"), ("4.3.2", "bf16", None),
     ("4.3.1", "fp16", None), ("4.6.0", "bf16", None), ("3.12.0", "bf16", None)],
)  # fmt: skip
def test_an_ms_swift_that_adds_up_gradients_in_bf16_is_refused(version: str, precision: str, code: str | None) -> None:
    environments = {"environments": {"swift": {"python": LF}}}
    gang = Gang(nodes=1, engine="swift-megatron", training={"precision": precision}, cluster=environments)
    gang.facts[0] = make_facts({**MODULES, "swift": version, "datasets": "4.8.4"})
    problems = [result.problem.code for result in gang.check() if result.name == "engine" and result.problem]
    assert ("gradients_in_bf16" in problems) == bool(code)


AUDIO = {"model_type": "qwen2_audio", "architectures": ["Qwen2AudioForConditionalGeneration"]}
KIMI = {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"]}
PADDLE = {"model_type": "paddleocr_vl", "architectures": ["PaddleOCRVLForConditionalGeneration"]}


@pytest.mark.parametrize(
    ("engine", "config", "transformers", "wanted"),
    [
        ("swift-zero3", AUDIO, "5.12.1", "<4.49,>=4.45"),
        ("swift-zero3", AUDIO, "4.48.3", None),
        ("swift-zero3", KIMI, "5.0.0", "<5.0.0,>=4.57.1"),
        ("swift-zero3", KIMI, "4.57.1", None),
        ("swift-zero3", PADDLE, "4.57.6", ">=5.0"),
        ("swift-zero3", PADDLE, "5.6.0.dev0", None),
        ("swift-zero3", {**PADDLE, "auto_map": {"AutoConfig": "configuration.Own"}}, "5.6.0", "<5.0"),
        ("swift-zero3", {"model_type": "qwen3"}, "5.6.0", None),
        ("llamafactory-zero3", AUDIO, "5.5.4", None),
    ],
)
def test_the_transformers_that_ms_swift_asks_for_is_warned_of(
    engine: str, config: dict[str, Any], transformers: str, wanted: str | None
) -> None:
    environments = {"environments": {name: {"python": LF} for name in ("llamafactory", "swift")}}
    gang = Gang(nodes=1, engine=engine, model={"hf_config": config, "preset": None, "path": "/m"}, cluster=environments)
    gang.facts[0] = make_facts({**MODULES, "swift": "4.6.0", "datasets": "4.8.4", "transformers": transformers})
    [result] = [result for result in gang.check() if result.name == "engine"]
    assert (result.problem and result.problem.values.get("wanted")) == wanted
    if result.problem:
        assert (result.status, result.problem.code) == ("warning", "transformers_of_type")
        newest = "" if "<" in str(wanted) else ",<5.20"
        assert f"'transformers{wanted}{newest}'" in str(result.problem.values["command"])


@pytest.mark.parametrize(
    ("engine", "packages", "outside"),
    [
        ("swift-ddp", {"swift": "4.6.0", "peft": "0.20.0", "transformers": "5.19.0"}, []),
        ("swift-ddp", {"swift": "4.6.0", "peft": "0.21.0", "transformers": "5.20.1"}, ["peft", "transformers"]),
        ("swift-megatron", {"swift": "4.6.0", "peft": "0.10.0"}, ["peft"]),
        ("swift-ddp", {"swift": "4.5.3", "peft": "0.20.0"}, ["peft"]),
        ("swift-ddp", {"swift": "4.7.0", "peft": "0.30.0"}, []),
        ("swift-ddp", {"swift": "4.6.0", "datasets": "4.9.0"}, ["datasets"]),
        ("llamafactory-ddp", {"swift": "4.6.0", "peft": "0.21.0"}, []),
    ],
)
def test_packages_that_ms_swift_does_not_allow_are_warned_of(
    engine: str, packages: dict[str, str], outside: list[str]
) -> None:
    environments = {"environments": {name: {"python": LF} for name in ("llamafactory", "swift")}}
    gang = Gang(nodes=1, engine=engine, model={"preset": QWEN, "path": "/m"}, cluster=environments)
    gang.facts[0] = make_facts({**MODULES, "datasets": "4.8.4", "transformers": "5.5.4", **packages})
    [result] = [result for result in gang.check() if result.name == "engine"]
    codes = {result.problem.code} if result.problem else set()
    assert ("packages_outside_ranges" in codes) == bool(outside)
    if outside:
        assert result.problem is not None
        named = cast(list[str], result.problem.values["packages"])
        assert sorted(text.partition(" ")[0] for text in named) == outside
        assert all(f"{name}>=" in str(result.problem.values["command"]) for name in outside)


def test_every_warning_of_the_engine_s_packages_is_listed() -> None:
    """The user may accept one of them and not see the next."""
    environments = {"environments": {name: {"python": LF} for name in ("llamafactory", "swift")}}
    gang = Gang(nodes=1, engine="swift-zero3", model={"preset": "qwen3-30b-a3b", "path": "/m"}, cluster=environments)
    gang.facts[0] = make_facts({**MODULES, "swift": "4.6.0", "datasets": "4.9.0", "transformers": "4.57.6"})
    found = [result.problem for result in gang.check() if result.name == "engine"]
    assert [problem and problem.code for problem in found] == ["packages_outside_ranges", "experts_looped"]


@pytest.mark.parametrize(
    ("wanted", "swift", "range_"),
    [
        (">=5.0", "4.3.2", ">=5.0,<5.13"),
        (">=5.0.1dev0", "4.4.2", ">=5.0.1dev0,<5.13"),
        (">=5.0", "4.5.0", ">=5.0,<5.17"),
        (">=5.0", "4.6.0", ">=5.0,<5.20"),
        (">=5.0", "4.7.0", ">=5.0"),
        (">=5.16.0", "4.5.0", ">=5.16.0,<5.17"),
        (">=5.16.0", "4.4.2", ">=5.16.0"),
        ("==4.57.6", "4.6.0", "==4.57.6"),
        ("<5.0", "4.6.0", "<5.0"),
    ],
)
def test_the_transformers_for_a_type_is_one_that_the_node_s_ms_swift_takes(
    wanted: str, swift: str, range_: str
) -> None:
    """Unless the type needs a later one than this ms-swift takes: then no version would be in the range."""
    assert transformers_for(wanted, {"swift": swift}) == range_


@pytest.mark.parametrize(
    ("llamafactory", "package", "status", "code"),
    [
        ("0.9.5", "3.0.0", "failure", "flash_attention_3_fails"),
        ("0.9.6.dev0 (commit ff6d4d12e2)", None, "warning", "flash_attn_not_installed"),
        ("0.9.6.dev0 (commit ff6d4d12e2)", "3.0.0", "ok", None),
    ],
)
def test_flash_attention_3_needs_llamafactory_s_main_and_its_package(
    llamafactory: str, package: str | None, status: str, code: str | None
) -> None:
    gang = Gang(nodes=1, extra={"flash_attn": "fa3"}, model={"preset": QWEN, "path": "/m"})
    modules = {"llamafactory": llamafactory, "flash_attn_interface": package, "transformers": "5.5.4"}
    gang.facts[0] = make_facts({**MODULES, **modules})
    [result] = [result for result in gang.check() if result.name == "engine"]
    assert (result.status, result.problem.code if result.problem else None) == (status, code)
    if result.problem:
        assert all("fa2" in render_problem(lang, result.problem)["fix"] for lang in LANGUAGES)


def test_flash_attn_is_asked_for_where_the_engine_takes_it_if_it_is_there() -> None:
    cases = [(model, attention) for model in (GEMMA_2, QWEN) for attention in ("auto", "fa2", "sdpa")]
    jobs = {
        (model, attention): make_job(model={"preset": model, "path": "/m"}, extra={"flash_attn": attention})
        for model, attention in cases
    }
    asked = {case for case, job in jobs.items() if optional_modules(job)}
    assert asked == {(GEMMA_2, "auto"), (GEMMA_2, "fa2"), (QWEN, "fa2")}


LING = {"model_type": "bailing_moe"}
LING_3 = {"model_type": "bailing_hybrid", "short_conv_kernel_size": 4}


@pytest.mark.parametrize(
    ("engine", "config", "transformers", "refused"),
    [
        ("llamafactory-zero3", LING, "5.0.0", True),
        ("llamafactory-zero3", LING, "5.6.0", True),
        ("llamafactory-zero3", LING, "4.57.6", False),
        ("swift-zero3", LING, "5.6.0", True),
        ("swift-megatron", LING, "5.6.0", True),
        ("swift-megatron", LING, "4.57.6", False),
        ("llamafactory-zero3", {"model_type": "bailing_hybrid"}, "5.6.0", True),
        ("llamafactory-zero3", LING_3, "5.6.0", True),
        ("swift-zero3", LING_3, "5.6.0", False),
        ("llamafactory-zero3", {"model_type": "qwen3"}, "5.6.0", False),
    ],
)
def test_the_own_code_of_ling_is_refused_with_transformers_5(
    engine: str, config: dict[str, Any], transformers: str, refused: bool
) -> None:
    environments = {"environments": {name: {"python": LF} for name in ("llamafactory", "swift")}}
    gang = Gang(nodes=1, engine=engine, model={"hf_config": config, "preset": None, "path": "/m"}, cluster=environments)
    packages = {"swift": "4.6.0", "datasets": "4.8.4", "deepspeed": "0.18.4", "megatron": "0.16.1", "fla": "0.5.0"}
    gang.facts[0] = make_facts({**MODULES, **packages, "transformers": transformers})
    problems = [result.problem for result in gang.check() if result.name == "engine" and result.problem]
    assert [problem.code for problem in problems] == ["ling_code_fails"] * refused
    if refused:
        assert "transformers==4.57.6" in str(problems[0].values["command"])
        assert all("4.57.6" in render_problem(lang, problems[0])["fix"] for lang in LANGUAGES)


@pytest.mark.parametrize(
    ("transformers", "is_trusted", "refused"),
    [("5.24.0", False, False), ("5.24.0", True, True), ("5.23.0", False, True), ("4.57.6", True, False)],
)
def test_the_class_of_transformers_trains_ling_3_unless_the_job_trusts_the_code_of_its_folder(
    transformers: str, is_trusted: bool, refused: bool
) -> None:
    model, extra = {"hf_config": LING_3, "preset": None, "path": "/m"}, {"trust_remote_code": is_trusted}
    gang = Gang(nodes=1, engine="llamafactory-ddp", model=model, extra=extra)
    gang.facts[0] = make_facts({**MODULES, "fla": "0.5.0", "transformers": transformers})
    codes = [result.problem.code for result in gang.check() if result.name == "engine" and result.problem]
    assert codes == ["ling_code_fails"] * refused


@pytest.mark.parametrize(
    ("transformers", "model", "engine", "code"),
    [
        ("5.6.0", "gpt-oss-20b", "llamafactory-zero3", "gpt_oss_fails"),
        ("4.55.4", "gpt-oss-20b", "llamafactory-zero3", "gpt_oss_fails"),
        ("4.57.6", "gpt-oss-20b", "llamafactory-zero3", "experts_looped"),
        ("5.6.0", "qwen3-30b-a3b", "llamafactory-zero3", None),
    ],
)
def test_gpt_oss_needs_a_transformers_with_the_kernel_that_llamafactory_imports(
    transformers: str, model: str, engine: str, code: str | None
) -> None:
    gang = Gang(nodes=1, engine=engine, model={"preset": model, "path": "/m"})
    gang.facts[0] = make_facts({**MODULES, "deepspeed": "0.18.4", "transformers": transformers})
    problems = [result.problem for result in gang.check() if result.name == "engine" and result.problem]
    assert [problem.code for problem in problems] == ([code] if code else [])


@pytest.mark.parametrize(
    ("torch", "values", "refused"),
    [
        ("2.11.0+cu130", {}, False),
        ("2.12.0", {}, True),
        ("2.13.0+cpu", {}, True),
        ("3.0", {}, True),
        ("2.13.0", {"parallel": {"distributed_optimizer": False}}, False),
        ("2.13.0", {"parallel": {"distributed_optimizer": False}, "extra": {"ckpt_format": "torch_dist"}}, True),
        ("2.13.0", {"engine": "llamafactory-ddp"}, False),
    ],
)
def test_a_torch_with_which_mcore_adapter_cannot_save_distributed_checkpoints_is_refused(
    torch: str, values: dict[str, Any], refused: bool
) -> None:
    gang = Gang(nodes=1, **{"engine": "llamafactory-megatron", **values})
    gang.facts[0] = make_facts({**MODULES, "megatron.core": "0.16.1", "mcore_adapter": "0.10", "torch": torch})
    problems = [result.problem for result in gang.check() if result.name == "engine" and result.problem]
    assert [problem.code for problem in problems] == ["distributed_save_fails"] * refused


@pytest.mark.parametrize(
    ("python", "query", "local"),
    [
        ("3.10.4", H100, "Python 3.10"),
        ("3.11.9", H100, None),
        ("3.11.2", H100.replace("H100 80GB HBM3", "A100-SXM4-80GB"), "1 × NVIDIA A100-SXM4-80GB"),
        ("3.11.2", H100.replace("570.124.06", "535.54.03"), "driver 535.54.03"),
    ],
)
def test_a_machine_unlike_the_others_is_named(python: str, query: str, local: str | None) -> None:
    gang = Gang(nodes=3)
    gang.facts[1] = make_facts(python=python)
    gang.fakes[1].on("hardware", reply=hardware_answer(smi=smi(query)))
    if local is None:
        assert {result.status for result in gang.check()} == {"ok"}
        return
    warning, problem = gang.only_warning()
    assert (warning.name, warning.rank, problem.values["here"]) == ("machines", 1, local)


def test_one_machine_under_two_names_is_named_with_the_first() -> None:
    gang = Gang(nodes=3)
    for rank in (0, 2):
        gang.fakes[rank].on("hardware", reply=hardware_answer(smi=smi(H100)))
    warning, problem = gang.only_warning()
    assert (warning.rank, problem.code, problem.values["first"]) == (2, "same_machine", gang.fakes[0].name)


def test_a_model_with_another_file_is_named_with_the_copy_that_mends_it() -> None:
    gang = Gang(nodes=3)
    gang.fakes[1].on("prints", reply={**PRINTS, "model": {**PRINTS["model"], "model.safetensors": "99 ee"}})
    failure, problem = gang.only_failure()
    assert (failure.name, failure.rank, problem.values["names"]) == ("model_equal", 1, ["model.safetensors"])
    assert (
        problem.values["command"] == "rsync -as --checksum train@10.0.0.1:/models/qwen/model.safetensors /models/qwen/"
    )


def test_a_file_that_only_one_node_has_is_named() -> None:
    gang = Gang(nodes=3)
    gang.fakes[2].on("prints", reply={**PRINTS, "model": {**PRINTS["model"], "adapter_config.json": "9 ff"}})
    failure, problem = gang.only_failure()
    assert (failure.rank, problem.values["command"]) == (2, "rm -i -- /models/qwen/adapter_config.json")


def test_a_name_that_is_no_unicode_can_be_reported() -> None:
    gang = Gang(nodes=3)
    gang.fakes[2].on("prints", reply={**PRINTS, "model": {**PRINTS["model"], "caf\udce9": "9 ff"}})
    problem = gang.only_failure()[1]
    assert problem.values["names"] == ["caf?"]
    assert render_problem("en", problem)["fix"].encode()


def test_a_file_in_a_home_folder_is_removed_there() -> None:
    gang = Gang(nodes=3, model={"path": "~/qwen"})
    gang.fakes[2].on("prints", reply={**PRINTS, "model": {**PRINTS["model"], "a b": "9 ff"}})
    assert gang.only_failure()[1].values["command"] == "rm -i -- ~/'qwen/a b'"


def test_data_that_differs_is_named_by_its_file() -> None:
    gang = Gang()
    gang.second.on("prints", reply={**PRINTS, "data": {"/data/a.json": "6 dd"}})
    failure, problem = gang.only_failure()
    assert (failure.name, failure.rank, problem.field) == ("data_equal", 1, "training.dataset")
    assert problem.values["command"] == "rsync -as --checksum train@10.0.0.1:/data/a.json /data/"


def test_a_description_that_differs_is_reported_by_dataset_info_json() -> None:
    gang = Gang()
    for node, digest in zip(gang.fakes, ("aa", "bb"), strict=True):
        node.on("prints", reply={**PRINTS, "data": {"/data/dataset_info.json: a": digest}})
    assert gang.only_failure()[1].values["names"] == ["dataset_info.json"]


def test_what_a_node_lacks_is_not_told_twice() -> None:
    gang = Gang()
    gang.second.on("prints", reply={"model": None, "data": None})
    assert {result.status for result in gang.check()} == {"ok"}


def test_a_copy_goes_through_the_source_s_own_port_and_address() -> None:
    host = Host(address="login.example", fabric_address="fd00::1", user="li", port=2222)
    command = copy_command(host, ["/m y/a", "/m y/b", "~/c/d"])
    assert shlex.split(command) == [
        "rsync", "-as", "--checksum", "-e", "ssh -p 2222", "li@[fd00::1]:/m y/a", "li@[fd00::1]:/m y/b", "/m y/", "&&",
        "rsync", "-as", "--checksum", "-e", "ssh -p 2222", "li@[fd00::1]:c/d", "~/c/",
    ]  # fmt: skip


def megatron() -> Gang:
    gang = Gang(nodes=3, engine="llamafactory-megatron", cluster={"gpus_per_node": 1})
    gang.facts = {rank: make_facts({**MODULES, "mcore_adapter": "1", "megatron": "2"}) for rank in range(3)}
    return gang


def test_an_output_folder_that_a_node_does_not_share_is_named_where_the_engine_needs_it() -> None:
    gang = megatron()
    gang.fakes[2].on("read", reply={"seen": False})
    warning, problem = gang.only_warning()
    assert (warning.name, warning.rank, problem.field) == ("output_shared", 2, "training.output_dir")
    assert [argv[2] for argv in gang.first.ran if argv[2] in ("write", "read", "remove")][-2:] == ["write", "remove"]
    plain = Gang()
    plain.check()
    assert not [argv for argv in plain.first.ran if argv[2] == "write"]


@pytest.mark.parametrize("engine", ["llamafactory-ddp", "llamafactory-fsdp"])
def test_with_spares_every_engine_needs_a_shared_output_folder(engine: str) -> None:
    gang = Gang(nodes=3, engine=engine)
    gang.job = replace(gang.job, cluster=replace(gang.job.cluster, nodes=2))  # as preflight.py gives it: one spare
    gang.fakes[2].on("read", reply={"seen": False})
    warning, problem = gang.only_warning()
    assert (warning.name, warning.rank, problem.code) == ("output_shared", 2, "output_not_shared_with_spares")
    assert problem.field == "training.output_dir"


def test_the_file_is_taken_away_even_when_another_node_breaks() -> None:
    gang = megatron()
    gang.fakes[1].on("read", reply=Result(code=1, out="", err="boom"))
    failure, _ = gang.only_failure()
    assert (failure.name, failure.rank) == ("output_shared", 1)
    written, removed = ([argv for argv in gang.first.ran if argv[2] == action] for action in ("write", "remove"))
    assert len(written) == len(removed) > 0


def test_a_node_that_does_not_know_the_master_s_name_is_told_a_line_for_its_hosts_file() -> None:
    gang = Gang()
    interface = {"name": "eth0", "state": "up", "speed": "100000", "tunnel": False,
                 "bonded": False, "networks": ["10.9.0.1/24"]}  # fmt: skip
    gang.first.on("hardware", reply=hardware_answer(interfaces=[interface]))
    gang.second.on("dial", reply={"reached": False, "detail": "Name or service not known", "is_named": False})
    failure, problem = gang.only_failure()
    assert (failure.rank, problem.code) == (1, "master_not_resolved")
    assert problem.values["command"] == "echo '10.9.0.1 10.0.0.1' | sudo tee -a /etc/hosts"


KERNELS = {"fla": "0.4.1", "causal_conv1d": "1.6.0"}


@pytest.mark.parametrize(
    ("gpu", "engine", "kernels", "code", "missing"),
    [
        ("h100-80g", "llamafactory-zero3", {}, "kernels_missing", ["fla", "causal_conv1d"]),
        ("h100-80g", "llamafactory-zero3", {"fla": "0.4.1"}, "kernels_missing", ["causal_conv1d"]),
        ("h100-80g", "llamafactory-zero3", KERNELS, None, []),
        ("cpu", "llamafactory-zero3", {}, None, []),
        ("h100-80g", "llamafactory-megatron", {}, "engine_missing", ["fla"]),
        ("h100-80g", "llamafactory-megatron", {"fla": "0.4.1"}, None, []),
    ],
)
def test_layers_that_are_slow_without_a_package_warn_of_it_and_megatron_needs_it(
    gpu: str, engine: str, kernels: dict[str, str], code: str | None, missing: list[str]
) -> None:
    gang = Gang(nodes=1, engine=engine, model={"preset": "qwen3.5-4b", "path": "/m"}, cluster={"gpu": gpu})
    gang.facts[0] = make_facts({**MODULES, "deepspeed": "0.18.4", "transformers": "5.5.4", "fla": None, **kernels})
    problems = [result.problem for result in gang.check() if result.name == "engine" and result.problem]
    assert [(problem.code, problem.values["modules"]) for problem in problems] == ([(code, missing)] if code else [])
    built = any("causal-conv1d --no-build-isolation" in str(problem.values["command"]) for problem in problems)
    assert built == ("causal_conv1d" in missing)


@pytest.mark.parametrize(("attention", "code"), [("fa2", "engine_missing"), ("auto", "kernels_missing")])
def test_llamafactory_s_own_layers_of_qwen_3_5_need_a_package(attention: str, code: str) -> None:
    model = {"preset": "qwen3.5-4b", "path": "/m"}
    gang = Gang(nodes=1, engine="llamafactory-ddp", model=model, extra={"flash_attn": attention})
    modules = {"transformers": "5.5.4", "fla": None, "causal_conv1d": "1.7.0", "flash_attn": "2.8.3"}
    gang.facts[0] = make_facts({**MODULES, **modules})
    [result] = [result for result in gang.check() if result.name == "engine"]
    assert result.problem is not None
    assert (result.problem.code, result.problem.values["modules"]) == (code, ["fla"])


@pytest.mark.parametrize(
    ("stage", "trl", "code"),
    [
        ("dpo", "0.24.0", "trl_too_old"),
        ("dpo", "0.29.1", None),
        ("kto", "0.24.0", None),
        ("grpo", "0.24.0", "trl_too_old"),
        ("grpo", "0.26.0", None),
        ("grpo", None, "engine_missing"),
    ],
)
def test_a_trl_with_which_ms_swift_s_trainer_ends_at_once_is_refused(
    stage: str, trl: str | None, code: str | None
) -> None:
    environments = {"swift": {"python": "/opt/swift/bin/python"}}
    training = {"stage": stage, "grpo": {"rewards": "accuracy"}}
    gang = Gang(nodes=1, engine="swift-ddp", cluster={"environments": environments}, training=training)
    modules = {"swift": "4.6.0", "datasets": "4.8.4", "trl": trl, "msgspec": "0.22.0", "math_verify": "0.9.0"}
    gang.facts[0] = make_facts({**MODULES, **modules})
    problems = [result.problem for result in gang.check() if result.name == "engine" and result.problem]
    assert [problem.code for problem in problems] == ([code] if code else [])


@pytest.mark.parametrize(("datasets", "refused"), [("4.0.0", True), ("4.6.1", True), ("4.7.0", False)])
def test_data_sets_in_which_ms_swift_finds_no_json_type_are_refused(datasets: str, refused: bool) -> None:
    gang = Gang(nodes=1, engine="swift-ddp", cluster={"environments": {"swift": {"python": "/opt/swift/bin/python"}}})
    gang.facts[0] = make_facts({**MODULES, "swift": "4.6.0", "datasets": datasets})
    problems = [result.problem for result in gang.check() if result.name == "engine" and result.problem]
    assert [problem.code for problem in problems] == ["data_sets_fail"] * refused


@pytest.mark.parametrize(
    ("transformers", "extra", "refused"),
    [
        ("5.6.0", {}, True),
        ("5.19.0", {}, False),
        ("5.6.0", {"attn_impl": "eager"}, False),
    ],
)
def test_glm_5_of_swift_needs_a_transformers_in_which_it_is_causal(
    transformers: str, extra: dict[str, str], refused: bool
) -> None:
    cluster = {"environments": {"swift": {"python": "/opt/swift/bin/python"}}}
    model = {"preset": None, "hf_config": SMALL_MODELS["glm_moe_dsa"], "path": "/m"}
    gang = Gang(nodes=1, engine="swift-zero3", extra=extra, model=model, cluster=cluster)
    modules = {"swift": "4.6.0", "datasets": "4.8.4", "msgspec": "0.22.0", "deepspeed": "0.18.4"}
    gang.facts[0] = make_facts({**MODULES, **modules, "transformers": transformers})
    codes = [result.problem.code for result in gang.check() if result.name == "engine" and result.problem]
    assert ("later_tokens_seen" in codes) is refused
