"""An engine's refusal of its configuration is reported at the field that caused it. Each machine is asked once."""

import dataclasses
import json
import sys
import types
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from app.text import LANGUAGES, render_problem
from backend.cluster.inventory.software import NodeFacts
from backend.cluster.node import Node, NodeError
from backend.cluster.preflight.accepted_configurations import LIMIT, AcceptedConfigurations
from backend.cluster.preflight.engine_args import check_configuration, field_of
from backend.cluster.preflight.results import CheckResult, Checks
from backend.engines import Rendered, render
from backend.engines.known_keys import programs
from backend.job.job import Job
from backend.node.checks.engine_args import architecture_fault, error_of
from backend.node.checks.environment_faults import broken_packages, has_code
from backend.node.checks.model_class import (
    ArchitectureUnknownError,
    ClassMissingError,
    CodeNotAllowedError,
    require_architecture,
)
from tests.engines.jobs import ddp, job, place
from tests.fakes import FakeNode

OWN_CODE = {"AutoConfig": "configuration_next.NextConfig"}
TAKEN = {"error": None, "message": ""}


def facts(rank: int, machine: str = "") -> NodeFacts:
    return NodeFacts(home="/home/me", hostname=f"n{rank}", python="3.11", machine=machine)


def check(
    the_job: Job,
    nodes: Mapping[int, Node],
    known: Mapping[int, NodeFacts] | None = None,
    rendered: Rendered | None = None,
    accepted: AcceptedConfigurations | None = None,
) -> list[CheckResult]:
    checks = {rank: Checks(rank, node.name) for rank, node in nodes.items()}
    known = known or {rank: facts(rank) for rank in nodes}
    rendered = rendered or render(the_job, place(the_job))
    return check_configuration(the_job, checks, nodes, known, rendered, accepted or AcceptedConfigurations())


def nodes_that_say(*answers: Mapping[str, Any] | NodeError) -> dict[int, FakeNode]:
    return {rank: FakeNode(f"10.0.0.{rank + 1}").on("parse", reply=answer) for rank, answer in enumerate(answers)}


def refused(message: str) -> dict[str, Any]:
    return {"error": "ValueError", "message": message}


def test_an_engine_that_takes_its_files_passes_on_every_node() -> None:
    nodes = nodes_that_say(TAKEN, TAKEN)
    assert [(result.name, result.status) for result in check(ddp(), nodes)] == [("configuration", "ok")] * 2
    assert [len(node.ran) for node in nodes.values()] == [1, 1]


def test_a_refusal_names_the_node_and_the_field_in_the_engine_s_words() -> None:
    the_job = ddp(extra={"foo_bar": 1})
    words = "Some keys are not used by the HfArgumentParser: ['foo_bar']"
    first, second = check(the_job, nodes_that_say(TAKEN, refused(words)))
    assert (first.status, second.status) == ("ok", "failure")
    problem = second.problem
    assert problem is not None
    assert (problem.code, problem.field, problem.node) == ("engine_refuses", "extra.foo_bar", "10.0.0.2")
    for lang in LANGUAGES:
        assert words in render_problem(lang, problem)["message"]


@pytest.mark.parametrize(
    ("the_job", "message", "field"),
    [
        (ddp(extra={"use_galore": True}), "GaLore and APOLLO are incompatible with deepspeed yet.", "engine"),
        (ddp(), "Template nonsense does not exist.", "training.template"),
        (ddp(), "Please provide `model_name_or_path`.", "model.path"),
        (ddp(), "Please make sure eval_dataset be provided or val_size >1e-6", "training.eval_dataset"),
        (ddp(extra={"val_size": 0}), "Please make sure eval_dataset be provided or val_size >1e-6", "extra.val_size"),
        (ddp(), "Your setup doesn't support bf16/gpu. You need torch>=1.10", "training.precision"),
        (job(), "--overlap_param_gather only supported with distributed optimizer", "parallel.overlap_param_gather"),
        (job(), "Seed should be a positive integer.", "training.seed"),
        (job(), "mcore_adapter is required when USE_MCA=1.", "engine"),
        (job(), "", "engine"),
    ],
)
def test_the_key_in_a_message_tells_the_field(the_job: Job, message: str, field: str) -> None:
    assert field_of(the_job, message) == field


def test_nodes_that_are_one_machine_are_asked_once_and_all_told() -> None:
    nodes = nodes_that_say(refused("no"), refused("no"), TAKEN)
    the_job = ddp(nodes=3)
    known = {rank: facts(0, "boot") for rank in (0, 1)} | {2: facts(2, "other")}
    assert [result.status for result in check(the_job, nodes, known)] == ["failure", "failure", "ok"]
    assert [len(node.ran) for node in nodes.values()] == [1, 0, 1]


def test_what_was_taken_is_not_asked_again_until_it_changes() -> None:
    nodes, the_job, accepted = nodes_that_say(TAKEN, refused("no")), ddp(), AcceptedConfigurations()
    check(the_job, nodes, accepted=accepted)
    assert [result.status for result in check(the_job, nodes, accepted=accepted)] == ["ok", "failure"]
    assert [len(node.ran) for node in nodes.values()] == [1, 2]
    check(ddp(training__seed=7), nodes, accepted=accepted)
    newer = {rank: NodeFacts(home="/", hostname="n", python="3", modules={"torch": "3"})
             for rank in nodes}  # fmt: skip
    check(the_job, nodes, newer, accepted=accepted)
    assert len(nodes[0].ran) == 3


def test_a_machine_that_comes_in_when_much_is_remembered_leaves_the_others_their_answer() -> None:
    the_job, accepted = ddp(), AcceptedConfigurations()
    check(the_job, nodes_that_say(TAKEN, TAKEN), accepted=accepted)
    accepted.add({("another configuration", number): TAKEN for number in range(LIMIT + 1)})
    changed = {0: facts(0), 1: facts(1, machine="new")}
    results = check(the_job, nodes_that_say(TAKEN, TAKEN), changed, accepted=accepted)
    assert [result.status for result in results] == ["ok", "ok"]


def test_a_slow_node_is_a_warning_and_a_crash_is_a_failure() -> None:
    slow, crash = (
        NodeError("timeout", "10.0.0.1", seconds=120),
        NodeError("bad_answer", "10.0.0.2", exit=-11, detail=""),
    )
    first, second = check(ddp(), nodes_that_say(slow, crash))
    assert (first.status, first.problem and first.problem.severity) == ("warning", "warning")
    assert (second.status, second.problem and second.problem.code) == ("failure", "bad_answer")


def test_a_version_that_takes_other_keys_is_noted_and_stops_nobody() -> None:
    known = programs()["llamafactory"]
    keys = {name: dataclasses.asdict(key) for name, key in known.keys.items() if name != "cutoff_len"}
    keys["template"] = {"type": "str", "default": "qwen9"}
    message = {"llamafactory": {"version": "0.9.9", "keys": {**keys, "a_new_key": {"type": "int", "default": 1}}}}
    (result,) = check(ddp(nodes=1), nodes_that_say({**TAKEN, "programs": message}))
    assert (result.status, result.problem and result.problem.severity) == ("ok", "note")
    assert result.problem is not None
    values = result.problem.values
    assert (values["new"], values["gone"], values["changed"]) == ("a_new_key", "cutoff_len", "template")
    for lang in LANGUAGES:
        assert "0.9.9" in render_problem(lang, result.problem)["message"]


def test_the_version_that_the_files_are_written_for_says_nothing() -> None:
    values = {name: {"version": program.version, "keys": {k: dataclasses.asdict(v) for k, v in program.keys.items()}}
            for name, program in programs().items()}  # fmt: skip
    (result,) = check(ddp(nodes=1), nodes_that_say({**TAKEN, "programs": values}))
    assert (result.status, result.problem) == ("ok", None)


def code_of(answer: dict[str, Any]) -> tuple[str, str]:
    (result,) = check(ddp(), nodes_that_say(answer))
    assert result.problem is not None
    return result.status, result.problem.code


BROKEN = {"flash_attn": "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"}


def test_a_package_that_cannot_be_imported_is_a_warning_and_stops_a_launch_where_the_engine_needs_it() -> None:
    assert code_of({**TAKEN, "packages": BROKEN}) == ("warning", "package_broken")
    refusal = {"error": "RuntimeError", "message": "Failed to import transformers.x", "packages": BROKEN}
    assert code_of(refusal) == ("failure", "package_broken")
    own = {"error": "ImportError", "message": "libtorch_cuda.so: undefined symbol: ncclCommRegister"}
    assert code_of(own) == ("failure", "package_broken")
    assert code_of({**refused("Template x does not exist."), "packages": BROKEN}) == ("failure", "engine_refuses")


def test_a_torch_without_code_for_the_gpu_is_refused() -> None:
    assert code_of({**TAKEN, "gpu": "sm_120: sm_80 sm_90"}) == ("failure", "gpu_without_code")


def test_a_generation_config_that_no_checkpoint_can_hold_is_refused_before_the_launch() -> None:
    assert code_of({**TAKEN, "generation": "ValueError: GenerationConfig is invalid"}) == (
        "failure",
        "generation_config_refused",
    )


def test_an_environment_with_faults_is_asked_again() -> None:
    nodes = nodes_that_say({**TAKEN, "packages": BROKEN})
    check(ddp(), nodes)
    check(ddp(), nodes)
    assert len(nodes[0].ran) == 2


@pytest.mark.parametrize(
    ("capability", "known", "runs"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 9), ["sm_80", "sm_90"], True),
        ((12, 0), ["sm_80", "sm_90"], False),
        ((12, 0), ["sm_90", "compute_90"], True),
        ((9, 0), ["sm_90a"], True),
        ((7, 0), ["sm_75", "compute_80"], False),
    ],
)
def test_a_build_runs_on_gpus_of_its_major_versions_and_on_newer_ones_by_ptx(
    capability: tuple[int, int], known: list[str], runs: bool
) -> None:
    assert has_code(capability, known) is runs


def test_an_installed_package_that_cannot_be_imported_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flash_attn.py").write_text("raise ImportError('flash_attn_2_cuda.so: undefined symbol: x')")
    monkeypatch.syspath_prepend(tmp_path)
    assert broken_packages() == {"flash_attn": "ImportError: flash_attn_2_cuda.so: undefined symbol: x"}


@pytest.mark.parametrize(
    ("config", "may_run_code", "error"),
    [
        ({"model_type": "llama"}, False, None),
        ({"model_type": "llama", "auto_map": OWN_CODE}, False, None),
        ({"model_type": "of_next_year"}, False, ArchitectureUnknownError),
        ({"model_type": "of_next_year"}, True, ArchitectureUnknownError),
        ({"model_type": "of_next_year", "auto_map": OWN_CODE}, False, CodeNotAllowedError),
        ({"model_type": "of_next_year", "auto_map": OWN_CODE}, True, None),
        ({"hidden_size": 64}, False, ClassMissingError),
        ({"hidden_size": 64, "auto_map": OWN_CODE}, True, None),
        ({"model_type": ["llama"]}, False, ClassMissingError),
        (["llama"], False, None),
    ],
)
def test_a_class_that_transformers_will_not_find_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: object, may_run_code: bool, error: type[Exception] | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    installed = types.SimpleNamespace(__version__="5.0", CONFIG_MAPPING={"llama": 1})
    for name in ("transformers", "transformers.models", "transformers.models.auto"):
        monkeypatch.setitem(sys.modules, name, installed)
    monkeypatch.setitem(sys.modules, "transformers.models.auto.configuration_auto", installed)
    message = "5.0 of_next_year" if error is ArchitectureUnknownError else None
    with pytest.raises(error, match=message) if error else nullcontext():
        require_architecture(str(tmp_path), may_run_code)
    require_architecture(str(tmp_path / "none"))
    # Earlier versions may know the model by the name of its folder.
    installed.__version__ = "4.57.1"
    with nullcontext() if error in (None, ClassMissingError) else pytest.raises(error):
        require_architecture(str(tmp_path), may_run_code)


@pytest.mark.parametrize(
    ("error", "code", "field"),
    [
        ("ClassMissingError", "model_class_missing", "model.path"),
        ("CodeNotAllowedError", "model_code_not_allowed", "extra.trust_remote_code"),
    ],
)
def test_a_class_that_is_not_found_is_named_with_its_node_and_the_fix(error: str, code: str, field: str) -> None:
    the_job = ddp(extra={"neftune_noise_alpha": 5})
    first, second = check(the_job, nodes_that_say(TAKEN, {"error": error, "message": "configuration_next.Next"}))
    problem = second.problem
    assert problem is not None
    assert (first.status, problem.code, problem.field, problem.node) == ("ok", code, field, "10.0.0.2")
    allowed = {"allow": {"extra": {"neftune_noise_alpha": 5, "trust_remote_code": True}}}
    assert problem.choices == (allowed if error == "CodeNotAllowedError" else {})
    for lang in LANGUAGES:
        assert "10.0.0.2" in render_problem(lang, problem)["message"]


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"error": "ArchitectureUnknownError", "message": "5.6.0 kimi_k25"}, "failure"),
        # ms-swift's parser accepts it, and a package of the model may register it.
        ({"error": None, "message": "", "architecture": "5.6.0 kimi_k25"}, "warning"),
    ],
)
def test_a_transformers_that_lacks_the_architecture_is_named_with_its_node_and_version(
    said: Mapping[str, Any], status: str
) -> None:
    the_job = ddp()
    first, second = check(the_job, nodes_that_say(TAKEN, said))
    problem = second.problem
    assert problem is not None
    assert (first.status, second.status, problem.code) == ("ok", status, "architecture_unknown")
    assert (problem.field, problem.node) == ("model.path", "10.0.0.2")
    for lang in LANGUAGES:
        rendered = render_problem(lang, problem)
        assert all(word in rendered["message"] for word in ("10.0.0.2", "5.6.0", "kimi_k25", the_job.model.path))
        assert all(word in rendered["fix"] for word in ("10.0.0.2", "kimi_k25", "ms-swift"))


def test_the_error_of_transformers_about_an_architecture_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(__version__="5.6.0"))
    passed_on = ValueError(
        "The checkpoint you are trying to load has model type `kimi_k25` but Transformers does not recognize this "
        "architecture. This could be because of an issue with the checkpoint."
    )
    assert error_of(passed_on) == {"error": "ArchitectureUnknownError", "message": "5.6.0 kimi_k25"}
    assert error_of(ValueError("bad")) == {"error": "ValueError", "message": "bad"}


def test_ms_swift_is_asked_whether_transformers_knows_the_architecture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = types.SimpleNamespace(__version__="5.6.0", CONFIG_MAPPING={"llama": 1})
    for name in ("transformers", "transformers.models", "transformers.models.auto"):
        monkeypatch.setitem(sys.modules, name, installed)
    monkeypatch.setitem(sys.modules, "transformers.models.auto.configuration_auto", installed)
    files = {"config.yaml": f"model: {tmp_path}"}
    for model_type, fault in (("llama", ""), ("kimi_k25", "5.6.0 kimi_k25")):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        assert architecture_fault(files) == fault
    (tmp_path / "config.json").write_text("{}")
    assert architecture_fault(files) == ""


def test_the_package_of_qwen3_asr_registers_its_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = types.SimpleNamespace(__version__="4.57.6", CONFIG_MAPPING={})
    for name in ("", ".models", ".models.auto", ".models.auto.configuration_auto"):
        monkeypatch.setitem(sys.modules, f"transformers{name}", known)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_asr"}')
    files = {"config.yaml": f"model: {tmp_path}"}
    assert architecture_fault(files) == "4.57.6 qwen3_asr"
    package = (
        "from transformers.models.auto.configuration_auto import CONFIG_MAPPING\nCONFIG_MAPPING['qwen3_asr'] = 1\n"
    )
    (tmp_path / "qwen_asr.py").write_text(package)
    monkeypatch.syspath_prepend(tmp_path)
    assert architecture_fault(files) == ""
    sys.modules.pop("qwen_asr")
