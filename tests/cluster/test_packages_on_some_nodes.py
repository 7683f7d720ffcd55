"""flash-attn and Transformer Engine: each difference between nodes is named, with a command that pip can run."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from app.text import LANGUAGES, render_problem
from backend.cluster.inventory.software import NodeFacts, Origin, optional_modules
from backend.job.problems import Problem
from tests.cluster.gang import MODULES, Gang, make_facts
from tests.cluster.jobs import make_job

LF, SWIFT = "/opt/lf/bin/python", "/opt/swift/bin/python"
GEMMA_2, QWEN = "gemma-2-9b", "qwen3-0.6b"
TOOLS = f"{LF} -m pip install setuptools wheel packaging ninja psutil"
FLASH = f"{TOOLS} && {LF} -m pip install flash-attn==2.8.3 --no-build-isolation"
BY_HAND = ""
"""The command where no package of PyPI makes the nodes equal."""


def facts_with(packages: Mapping[str, str | None], engine: Mapping[str, str]) -> NodeFacts:
    """Return the facts of a node with these versions. One that is unknown belongs to no distribution."""
    known = {name: version for name, version in packages.items() if version and version != "unknown"}
    origins = {name: Origin(version=version.partition(" ")[0]) for name, version in known.items()}
    return make_facts({**MODULES, "transformers": "5.5.4", **engine, **packages}, origins=origins)


def gemma(flash_attn: Sequence[str | None], **job: Any) -> Gang:
    """Return nodes with these versions of flash-attn, which train Gemma 2 with LLaMA-Factory."""
    gang = Gang(nodes=len(flash_attn), model={"preset": GEMMA_2, "path": "/m"}, **job)
    gang.facts = {node: facts_with({"flash_attn": version}, {}) for node, version in enumerate(flash_attn)}
    return gang


def megatron(packages: Sequence[Mapping[str, str | None]], engine: str = "llamafactory-megatron", **job: Any) -> Gang:
    """Return nodes with these versions of the packages, which train with Megatron."""
    environments = {"llamafactory": {"python": LF}, "swift": {"python": SWIFT}}
    cluster = {"gpus_per_node": 1, "environments": environments}
    gang = Gang(nodes=len(packages), engine=engine, model={"preset": QWEN, "path": "/m"}, cluster=cluster, **job)
    versions = {"mcore_adapter": "1", "megatron": "0.16.1", "swift": "4.6.0", "datasets": "4.8.4"}
    gang.facts = {node: facts_with(own, versions) for node, own in enumerate(packages)}
    return gang


def problems_of(gang: Gang) -> list[tuple[int, Problem]]:
    """Return the rank and problem of each result on the packages' versions, which must have a text in every
    language."""
    found = [(result.rank, result.problem) for result in gang.check() if result.name == "versions" and result.problem]
    for _, problem in found:
        shlex.split(str(problem.values["command"]))
        for lang in LANGUAGES:
            fix = render_problem(lang, problem)["fix"]
            assert str(problem.values["command"]) in fix
            assert "``" not in fix
    return found


def commands_of(gang: Gang) -> list[tuple[int, str]]:
    return [(rank, str(problem.values["command"])) for rank, problem in problems_of(gang)]


@pytest.mark.parametrize(
    ("flash_attn", "having", "lacking", "command"),
    [
        (["2.8.3", None, "2.8.3"], ["10.0.0.1", "10.0.0.3"], ["10.0.0.2"],
         FLASH),
        ([None, "2.8.3", None], ["10.0.0.2"], ["10.0.0.1", "10.0.0.3"], f"{LF} -m pip uninstall --yes flash-attn"),
    ],
)  # fmt: skip
def test_a_package_that_only_some_nodes_have_is_reported_with_the_nodes(
    flash_attn: list[str | None], having: list[str], lacking: list[str], command: str
) -> None:
    """Gemma 2 then runs FlashAttention on some ranks and eager attention on the others."""
    warning, problem = gemma(flash_attn).only_warning()
    assert (warning.name, warning.rank, problem.code) == ("versions", 1, "package_on_some_nodes")
    assert (problem.values["having"], problem.values["lacking"]) == (having, lacking)
    assert problem.values["command"] == command


def test_each_package_has_a_result_with_its_own_nodes_and_version() -> None:
    both = {"transformer_engine": "2.9.0", "flash_attn": "2.8.3"}
    older = {"transformer_engine": "2.8.0", "flash_attn": None}
    gang = megatron([older, {**both, "flash_attn": None}, both, both, both])
    engine = f"{TOOLS} && {LF} -m pip install 'transformer-engine[pytorch]==2.9.0' --no-build-isolation"
    first, second, others = "10.0.0.1", "10.0.0.2", ["10.0.0.3", "10.0.0.4", "10.0.0.5"]
    found = [
        (rank, problem.values.get("having"), problem.values.get("lacking"), problem.values["command"])
        for rank, problem in problems_of(gang)
    ]
    assert found == [
        (0, others, [first, second], FLASH),
        (0, None, None, engine),
        (1, others, [second, first], FLASH),
    ]


def test_megatron_on_gpus_does_not_start_without_transformer_engine() -> None:
    gang = megatron([{"transformer_engine": None}, {"transformer_engine": "2.9.0"}])
    failure, problem = gang.only_failure()
    assert (failure.name, failure.rank, problem.code) == ("engine", 0, "engine_missing")
    command = f"{TOOLS} && {LF} -m pip install 'transformer-engine[pytorch]' --no-build-isolation"
    assert problem.values["command"] == command


@pytest.mark.parametrize(
    ("flash_attn", "command"),
    [
        ([None, "2.7.4", "2.8.3", "2.8.3"], FLASH),
        ([None, "2.8.3+cu12torch2.8cxx11abiTRUE", "2.8.3+cu12torch2.8cxx11abiTRUE"],
         FLASH),
        ([None, "unknown", "unknown"], BY_HAND),
    ],
)  # fmt: skip
def test_the_command_names_the_usual_version_as_pypi_has_it(flash_attn: list[str | None], command: str) -> None:
    assert commands_of(gemma(flash_attn))[0] == (0, command)


def test_a_build_for_another_torch_is_the_same_version() -> None:
    """pip could not install the label behind `+`, so the command for a node that lacks the package leaves it out."""
    assert problems_of(gemma(["2.8.3", "2.8.3+cu12torch2.8cxx11abiTRUE", "2.8.3"])) == []
    assert len(problems_of(gemma(["2.8.3", "2.7.4+cu12torch2.8cxx11abiTRUE", "2.8.3"]))) == 1


def test_flash_attn_in_two_versions_is_refused() -> None:
    failure, problem = gemma(["2.8.3", "2.8.3", "2.7.4"]).only_failure()
    here, there = "flash_attn 2.7.4", "flash_attn 2.8.3"
    assert (failure.rank, problem.values["here"], problem.values["others"]) == (2, here, there)
    assert problem.values["command"] == FLASH


def test_a_version_that_nobody_knows_has_no_command() -> None:
    gang = gemma(["unknown", "unknown", "2.7.4"])
    assert [(rank, problem.code) for rank, problem in problems_of(gang)] == [(2, "versions_differ")]
    assert commands_of(gang) == [(2, BY_HAND)]


def test_packages_that_import_torch_when_they_are_built_are_installed_behind_it() -> None:
    gang = megatron([{"transformer_engine": "2.9.0+70f536662"}] * 2 + [{"transformer_engine": "2.8.0"}])
    for node, torch in enumerate(["2.11.0", "2.11.0", "2.10.0"]):
        facts = gang.facts[node]
        assert isinstance(facts, NodeFacts)
        origins = {**facts.origins, "torch": Origin(version=torch)}
        gang.facts[node] = make_facts({**facts.modules, "torch": torch}, origins=origins)
    engine = f"{LF} -m pip install 'transformer-engine[pytorch]==2.9.0' --no-build-isolation"
    first = TOOLS.replace("install ", "install torch==2.11.0 ")
    assert commands_of(gang) == [(2, f"{first} && {engine}")]


def test_the_commit_of_a_package_from_git_is_compared_and_installed() -> None:
    url, commit, other = "https://github.com/NVIDIA/TransformerEngine", "a" * 40, "b" * 40
    gang = megatron([{}] * 3)
    for node, own in enumerate([commit, commit, other]):
        origin = Origin(version=f"2.9.0+{own[:7]}", url=url, commit=own)
        facts = gang.facts[node]
        assert isinstance(facts, NodeFacts)
        version = f"{origin.version} (commit {own[:10]})"
        gang.facts[node] = make_facts(
            {**facts.modules, "transformer_engine": version}, origins={"transformer_engine": origin}
        )
    requirement = f"'transformer-engine @ git+{url}@{commit}'"
    assert commands_of(gang) == [(2, f"{TOOLS} && {LF} -m pip install {requirement} --no-build-isolation")]


@pytest.mark.parametrize(
    ("package", "engine", "extra", "commands"),
    [
        ("flash_attn", "swift-megatron", {}, "install"),
        ("flash_attn", "swift-megatron", {"attention_backend": "flash_2"}, "install"),
        ("flash_attn", "swift-megatron", {"attention_backend": "auto"}, "uninstall"),
        ("flash_attn", "llamafactory-megatron", {}, "uninstall"),
    ],
)
def test_a_package_that_the_job_needs_is_never_removed(
    package: str, engine: str, extra: dict[str, str], commands: str
) -> None:
    """Megatron-Core's backend `flash` allows no other kernel; `auto` does."""
    packages: list[dict[str, str | None]] = [{package: None}, {package: "2.8.3"}, {package: None}]
    found = commands_of(megatron(packages, engine, extra=extra))
    assert [rank for rank, _ in found] == ([0, 2] if commands == "install" else [1])
    assert all(f" pip {commands} " in command for _, command in found)


@pytest.mark.parametrize(("backend", "codes"), [("unfused", []), ("fused", []), ("flash", ["versions_differ"])])
def test_megatron_without_flash_attention_does_not_compare_flash_attn(backend: str, codes: list[str]) -> None:
    gang = megatron([{}] * 3, "swift-megatron", extra={"attention_backend": backend})
    for node, version in enumerate(["2.8.3", "2.8.3", "2.7.4"]):
        facts = gang.facts[node]
        assert isinstance(facts, NodeFacts)
        read = {"flash_attn": version} if "flash_attn" in optional_modules(gang.job) else {}
        gang.facts[node] = make_facts({**facts.modules, **read})
    assert [problem.code for _, problem in problems_of(gang)] == codes


@pytest.mark.parametrize(
    ("engine", "extra", "gpu", "names"),
    [
        ("llamafactory-megatron", {}, "h100-80g", {"flash_attn"}),
        ("llamafactory-megatron", {"attention_backend": "unfused"}, "h100-80g", {"flash_attn"}),
        ("swift-megatron", {}, "h100-80g", {"flash_attn"}),
        *(
            ("swift-megatron", {"attention_backend": backend}, "h100-80g", {"flash_attn"})
            for backend in ("flash", "flash_2", "auto")
        ),
        *(
            ("swift-megatron", {"attention_backend": backend}, "h100-80g", set())
            for backend in ("fused", "unfused", "local", "flash_3", "flash_4")
        ),
        ("swift-zero3", {"attn_impl": "flash_attn"}, "h100-80g", {"flash_attn"}),
        ("swift-zero3", {}, "h100-80g", set()),
        ("swift-megatron", {}, "cpu", set()),
    ],
)
def test_packages_that_decide_the_kernels_are_compared(
    engine: str, extra: dict[str, str], gpu: str, names: set[str]
) -> None:
    job = make_job(engine=engine, extra=extra, model={"preset": QWEN, "path": "/m"}, cluster={"gpu": gpu})
    assert set(optional_modules(job)) == names


def test_a_node_with_a_wrong_and_a_missing_package_has_both_and_the_failure_stands_last() -> None:
    gang = megatron(
        [{"transformer_engine": "2.9.0", "flash_attn": "2.8.3"}] * 2
        + [{"transformer_engine": "2.8.0", "flash_attn": None}]
    )
    results = [result for result in gang.check() if result.name == "versions"]
    assert [result.status for result in results if result.rank == 2] == ["warning", "failure"]
