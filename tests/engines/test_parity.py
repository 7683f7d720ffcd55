"""The same tiny training under every engine and plan: they equal one rank's, or it is explained.

benchmarks/parity has the cases. The ranks are CPU processes of this machine. Megatron's cases need mcore_adapter
(github.com/alibaba/ROLL) and are skipped without its source. docs/parity.*.md has the table of the last run.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from benchmarks.parity.cases import CASES, MEGATRON, PAIRS, ZERO2, ZERO3, Case, Pair
from benchmarks.parity.runs import ParityRuns
from benchmarks.parity.verdicts import difference
from benchmarks.parity.words import EXPLAINED
from tests.e2e.engine_runs import EXTRA
from tests.nodes import skip_without_node_environment
from tests.waiting import wait_for
from tools.programs import MCORE_ADAPTER, mcore_adapter_source

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(3600)]

MENDED = {
    "vision_tensor": "mcore_adapter now trains vision parts under TP rightly: narrow MCA_WRONG_VISION in traits.py",
    "micro_batch_means": "Megatron's loss has another mean now: correct docs/parity and EXPLAINED",
    "first_token": "transformers no longer counts the first token: correct docs/parity and EXPLAINED",
    "fsdp1_moments": "FSDP 1 now saves the moments of Adam on CPU ranks: correct docs/parity and EXPLAINED",
    "experts_padding": "the auxiliary loss no longer counts the padding of EP: correct docs/parity and EXPLAINED",
}


class Results:
    """The results of all cases that this machine can run. The first use runs them."""

    def __init__(self, folder: Path) -> None:
        self.runs = ParityRuns(folder)
        self.known: dict[str, Any] = {}

    def of(self, name: str) -> list[dict[str, Any]]:
        is_megatron = CASES[name].engine == MEGATRON
        if is_megatron and not mcore_adapter_source():
            pytest.skip(f"{MCORE_ADAPTER} does not name mcore_adapter's src folder (github.com/alibaba/ROLL)")
        if name not in self.known:
            same = {key: case for key, case in CASES.items() if (case.engine == MEGATRON) == is_megatron}
            self.known |= dict(self.runs.run(same))
        assert not self.known[name]["error"], self.known[name]["error"]
        steps: list[dict[str, Any]] = self.known[name]["steps"]
        return steps


def processes_in(folder: Path) -> list[int]:
    """Return the processes whose working folder is this folder or below it."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # It has ended, or belongs to another user.
            if link.readlink().is_relative_to(folder):
                found.append(int(link.parent.name))
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    """Return the results. At the end, nothing that the ranks started may be left."""
    skip_without_node_environment()
    if not (EXTRA / "torchvision").exists():
        pytest.skip("no torchvision here: `make engines` installs it")
    folder = tmp_path_factory.mktemp("parity")
    yield Results(folder)
    wait_for(lambda: not processes_in(folder))


def compare(results: Results, name: str, reference: str, explained: str) -> None:
    case = CASES[name]
    differs = difference(results.of(name), results.of(reference))
    in_bf16 = "bf16" in (case.precision, CASES[reference].precision) and not case.resumed
    precision: Literal["bf16", "fp32"] = "bf16" if in_bf16 else "fp32"
    if explained:
        assert not differs.within(precision), MENDED[explained]
    else:
        assert differs.within(precision), differs


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_plan_learns_what_one_rank_learns_or_the_difference_is_explained(results: Results, case: Case) -> None:
    compare(results, case.name, case.reference, case.explained)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.case)
def test_megatron_learns_what_hugging_face_learns_or_the_difference_is_explained(results: Results, pair: Pair) -> None:
    compare(results, pair.case, pair.reference, pair.explained)


@pytest.mark.parametrize("family", ["Megatron, 1 image", "Megatron, 2 images", "Megatron, 4 images"])
@pytest.mark.parametrize("plan", ["TP2", "TP2, sequence parallel"])
def test_tensor_parallel_halves_the_gradient_of_one_image_and_loses_parts_of_more(
    results: Results, family: str, plan: str
) -> None:
    shares = difference(results.of(f"{family}: {plan}"), results.of(f"{family}: one rank")).parts
    assert shares["language"] == pytest.approx(1, abs=0.01)
    for part in ("tower", "projector", "deep_stack"):
        expected = 0.5 if family.endswith("1 image") else 0.55
        assert shares[part] == pytest.approx(expected, abs=0.01 if expected == 0.5 else 0.06), MENDED["vision_tensor"]


def test_every_explanation_belongs_to_a_case() -> None:
    used = {case.explained for case in CASES.values()} | {pair.explained for pair in PAIRS}
    assert used - {""} == EXPLAINED.keys() == MENDED.keys()


def test_two_ranks_of_every_hugging_face_engine_are_compared() -> None:
    assert {ZERO2, ZERO3, "llamafactory-fsdp", "llamafactory-ddp"} <= {case.engine for case in CASES.values()}
