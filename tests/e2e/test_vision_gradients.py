"""Gradients of vision parts under TP against one rank's: mcore_adapter's by part and images, and ms-swift's bridge.

The rules of backend/job/rules/vision.py stand on what is measured here: once upstream mends it, these tests fail and
say so. mcore_adapter is on GitHub only (alibaba/ROLL): without its source these tests are skipped. The ranks are CPU
processes of this machine (proof/megatron_on_cpu.py); no job is launched, because the rules refuse these plans.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.demo import tiny_model
from tests.e2e.engine_runs import EXTRA, PROOF, ROOT
from tests.nodes import skip_without_node_environment
from tools import tiny_data
from tools.programs import MCORE_ADAPTER, NODE_ENVIRONMENT, NODE_PYTHON, mcore_adapter_source

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(1800)]

PARTS = ("tower", "projector", "deep_stack")
STEPS = len(tiny_data.IMAGES)
"""One micro-batch of one sample each, with 1, 2 and 4 images: mcore_adapter never shuffles."""
NOISE = 0.03
"""Between two ways to add up bf16 products, as a share of a norm."""
STILL, MOVING = 1e-12, 2e-3
"""Learning rates: with the first all steps see the same weights."""
MENDED = (
    "mcore_adapter now trains vision parts under TP as one rank does: narrow MCA_WRONG_VISION in backend/job/traits.py"
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The parallelism of a run, and its learning rate."""

    tensor: int = 1
    pipeline: int = 1
    sequence: bool = False
    rate: float = STILL


PLANS = {
    "one rank": Plan(),
    "pipeline": Plan(pipeline=2),
    "tensor with sequence parallel": Plan(tensor=2, sequence=True),
    "tensor alone": Plan(tensor=2, rate=MOVING),
}


class Runs:
    """A cache that runs each plan once, at its first use."""

    def __init__(self, folder: Path, source: str) -> None:
        self.folder = folder
        self.source = source
        self.known: dict[str, list[dict[str, Any]]] = {}
        self.python(tiny_model.__file__, folder)
        tiny_data.write_datasets(folder)
        self.python(tiny_data.__file__, folder, "vision")

    def python(self, *words: str | Path) -> None:
        paths = {"PYTHONPATH": f"{ROOT}:{EXTRA}", "HF_HUB_OFFLINE": "1"}
        subprocess.run([NODE_PYTHON, "-W", "ignore", *words], env={**os.environ, **paths}, check=True, timeout=600)

    def of(self, name: str) -> list[dict[str, Any]]:
        """Return the proof of each rank."""
        if name not in self.known:
            self.known[name] = self._run(self.folder / name.replace(" ", "-"), PLANS[name])
        return self.known[name]

    def _run(self, folder: Path, plan: Plan) -> list[dict[str, Any]]:
        folder.mkdir()
        ranks = plan.tensor * plan.pipeline
        (folder / "train.yaml").write_text(yaml.safe_dump(self._config(folder, plan)))
        environment = {
            "PATH": f"{NODE_ENVIRONMENT / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": f"{PROOF}:{self.source}:{EXTRA}",
            "NPROC_PER_NODE": str(ranks),
            **dict.fromkeys(("MEGATRON_ON_CPU", "TORCHDYNAMO_DISABLE", "USE_MCA", "HF_HUB_OFFLINE"), "1"),
            **dict.fromkeys(("OMP_NUM_THREADS", "CUDA_DEVICE_MAX_CONNECTIONS"), "1"),
        }
        with (folder / "log").open("w") as log:
            done = subprocess.run(
                ["llamafactory-cli", "train", "train.yaml"],
                env={**os.environ, **environment},
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
        assert done.returncode == 0, (folder / "log").read_text()[-5000:]
        return [json.loads((folder / f"proof.rank{rank}.json").read_text()) for rank in range(ranks)]

    def _config(self, folder: Path, plan: Plan) -> dict[str, Any]:
        return {
            "model_name_or_path": str(self.folder / tiny_data.MODELS["vision"]),
            "stage": "sft",
            "do_train": True,
            "finetuning_type": "full",
            "dataset": tiny_data.GALLERIES,
            "dataset_dir": str(self.folder / tiny_model.DATA_FOLDER),
            "template": tiny_data.VISION_TEMPLATE,
            "cutoff_len": 256,
            "image_max_pixels": 16384,
            "freeze_vision_tower": False,
            "freeze_multi_modal_projector": False,
            "output_dir": str(folder / "out"),
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "learning_rate": plan.rate,
            "lr_scheduler_type": "constant",
            # The gradients are read after the step, which would have clipped them.
            "max_grad_norm": 1e9,
            "max_steps": STEPS,
            "save_strategy": "no",
            "report_to": "none",
            "bf16": True,
            "use_cpu": True,
            "ddp_backend": "gloo",
            "transformer_impl": "local",
            "tensor_model_parallel_size": plan.tensor,
            "pipeline_model_parallel_size": plan.pipeline,
            "sequence_parallel": plan.sequence,
        }


def source_or_skip() -> str:
    source = mcore_adapter_source()
    if not source:
        pytest.skip(f"{MCORE_ADAPTER} does not name mcore_adapter's src folder (github.com/alibaba/ROLL, not on PyPI)")
    skip_without_node_environment()
    return source


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("vision"), source_or_skip())


def shares(runs: Runs, name: str, part: str) -> dict[int, float]:
    """Return images -> the norm of a part's gradient on rank 0, as a share of one rank's."""
    expected, result = (runs.of(plan)[0]["gradients"] for plan in ("one rank", name))
    assert len(expected) == len(result) == STEPS
    return {images: mine[part] / whole[part]
            for images, mine, whole in zip(tiny_data.IMAGES, result, expected, strict=True)}  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_pipeline_stages_train_vision_parts_as_one_rank_does(runs: Runs, part: str) -> None:
    assert shares(runs, "pipeline", part) == pytest.approx(dict.fromkeys(tiny_data.IMAGES, 1.0), rel=NOISE)


@pytest.mark.parametrize("part", PARTS)
def test_tensor_parallel_gives_vision_parts_wrong_gradients(runs: Runs, part: str) -> None:
    result = shares(runs, "tensor with sequence parallel", part)
    assert result[1] == pytest.approx(1 / 2, rel=NOISE), MENDED
    assert result[2] < 1 - 3 * NOISE, MENDED
    assert result[4] < 1 - 3 * NOISE, MENDED
    first, second = runs.of("tensor with sequence parallel")
    assert first["weights"]["tower"] == second["weights"]["tower"]


@pytest.mark.parametrize("part", PARTS)
def test_without_sequence_parallel_tensor_parallel_replicas_drift_apart(runs: Runs, part: str) -> None:
    first, second = runs.of("tensor alone")
    alone, *shared = zip(first["gradients"], second["gradients"], strict=True)
    assert alone[0][part] == pytest.approx(alone[1][part], rel=1e-6)
    assert shares(runs, "tensor alone", part)[1] == pytest.approx(1 / 2, rel=NOISE), MENDED
    assert all(mine[part] != pytest.approx(other[part], rel=NOISE) for mine, other in shared), MENDED
    assert first["weights"][part] != pytest.approx(second["weights"][part], rel=1e-9), MENDED


@pytest.mark.parametrize(("tensor", "context", "images"), [(1, 2, 1), (1, 2, 2), (1, 2, 4), (2, 1, 1), (2, 1, 2)])
def test_the_gather_of_images_loses_gradients_under_context_parallel_too(
    tensor: int, context: int, images: int
) -> None:
    """The whole model needs Transformer Engine for this, but its gather alone runs on CPU ranks."""
    words = [NODE_PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*words, PROOF / "gather_gradients.py", *map(str, (tensor, context, images))],
        env={**os.environ, "PYTHONPATH": f"{source_or_skip()}:{EXTRA}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    data = json.loads(done.stdout.splitlines()[-1])
    if images == 1:
        assert data["got"] == pytest.approx([each / tensor for each in data["right"]], rel=1e-4), MENDED
    else:
        assert data["got"] != pytest.approx(data["right"], rel=NOISE), MENDED


BRIDGE_MENDED = "mcore-bridge now gives deep-stack mergers whole gradients: narrow SWIFT_CUT_DEEP_STACK in traits.py"


def bridge_gradients(tensor: int, sequence: bool) -> dict[str, float]:
    """Return the gradient norm by part of a tower that mcore-bridge feeds into the sequence."""
    skip_without_node_environment()
    swift = NODE_ENVIRONMENT / "swift"
    if not swift.exists():
        pytest.skip("no ms-swift here: `make engines` installs it")
    words = [NODE_PYTHON, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    done = subprocess.run(
        [*words, str(tensor), PROOF / "bridge_gradients.py", str(tensor), str(sequence), "qwen3_vl"],
        env={
            **os.environ,
            "PYTHONPATH": f"{PROOF}:{EXTRA}:{swift}",
            "OMP_NUM_THREADS": "1",
            "TORCHDYNAMO_DISABLE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    return dict(json.loads(line))


def test_ms_swift_cuts_deep_stack_gradients_under_sequence_parallel_alone() -> None:
    """The layers between tower and loss need Transformer Engine; everything that splits and adds up runs."""
    whole = bridge_gradients(1, sequence=False)
    assert bridge_gradients(2, sequence=False) == pytest.approx(whole, rel=1e-5)
    cut = bridge_gradients(2, sequence=True)
    assert cut["projector"] == pytest.approx(whole["projector"], rel=1e-5)
    assert cut["deep_stack"] == pytest.approx(whole["deep_stack"] / 2, rel=1e-5), BRIDGE_MENDED
    assert cut["tower"] < 0.9 * whole["tower"], BRIDGE_MENDED
