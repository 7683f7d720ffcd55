"""Runs the cases of the parity suite: Megaboard renders their files, ranks.py trains them."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from app.demo import tiny_model
from backend.engines import CONFIG, NodePlacement, Placement, render
from backend.job.mapping import parse_job, with_values
from benchmarks.parity.cases import BATCH, IMAGES, MEGATRON, Case
from tools import tiny_data
from tools.programs import NODE_ENVIRONMENT, NODE_PYTHON, mcore_adapter_source

ROOT = Path(__file__).parents[2]
EXTRA = NODE_ENVIRONMENT / "extra"
EXTENSIONS = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or NODE_ENVIRONMENT / "torch_extensions")
PROOF = ROOT / "tests" / "e2e" / "proof"
FAMILIES = ROOT / "tests" / "engines" / "vision_models.py"
STEPS = 4


class ParityRuns:
    """Runs of the cases in a folder with the tiny models and their data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._python(tiny_model.__file__, folder)
        tiny_data.write_datasets(folder)

    def model(self, kind: str) -> Path:
        if kind == "text":
            return self.folder / tiny_model.MODEL_FOLDER
        path = self.folder / tiny_data.MODELS.get(kind, kind)
        if path.exists():
            return path
        if kind in tiny_data.MODELS:
            self._python(tiny_data.__file__, self.folder, kind)
        else:
            self._python(FAMILIES, kind, path, self.folder / tiny_model.MODEL_FOLDER)
            self._python(FAMILIES, "pictures", self.folder / tiny_model.DATA_FOLDER, "")
        return path

    def _python(self, *words: str | Path) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{EXTRA}", "HF_HUB_OFFLINE": "1"}
        subprocess.run([NODE_PYTHON, "-W", "ignore", *words], env=environment, check=True, timeout=600)

    def run(self, cases: Mapping[str, Case]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each case and its result (ranks.py) as soon as it has ended."""
        for is_megatron in (False, True):
            chosen = {name: case for name, case in cases.items() if (case.engine == MEGATRON) == is_megatron}
            if chosen:
                yield from self._run(chosen, is_megatron)

    def _run(self, cases: Mapping[str, Case], is_megatron: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        given = {name: self._files(name, case) for name, case in cases.items()}
        paths = [str(PROOF), *([str(mcore_adapter_source())] if is_megatron else []), str(EXTRA)]
        switches = ("HF_HUB_OFFLINE", "OMP_NUM_THREADS", "CUDA_DEVICE_MAX_CONNECTIONS")
        environment = {**os.environ, **dict.fromkeys(switches, "1"), "PYTHONPATH": ":".join(paths),
                       "ACCELERATE_TORCH_DEVICE": "cpu", "TORCH_EXTENSIONS_DIR": str(EXTENSIONS),
                       "PATH": f"{NODE_PYTHON.parent}:{os.environ['PATH']}"}  # fmt: skip
        if is_megatron:
            environment |= dict.fromkeys(("MEGATRON_ON_CPU", "TORCHDYNAMO_DISABLE", "USE_MCA"), "1")
        with (self.folder / "ranks.log").open("a") as log:
            process = subprocess.Popen(
                [NODE_PYTHON, "-W", "ignore", Path(__file__).with_name("ranks.py")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True,
            )  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(given))
            process.stdin.close()
            for line in process.stdout:
                if line.startswith("RESULT "):
                    result = json.loads(line.removeprefix("RESULT "))
                    yield result.pop("name"), result
            if process.wait() != 0:
                raise RuntimeError((self.folder / "ranks.log").read_text()[-3000:])

    def _files(self, name: str, case: Case) -> dict[str, Any]:
        """Write the rendered files into the case's folder and return what ranks.py reads."""
        folder = self.folder / "cases" / "".join(letter if letter.isalnum() else "-" for letter in name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        job, problems = parse_job(self._mapping(case, folder))
        assert job is not None, problems
        job = with_values(job, dict(case.values))
        node = NodePlacement(rank=0, folder=str(folder), python=str(NODE_PYTHON), address="127.0.0.1")
        place = Placement(run_id="it", attempt=1, master_address="127.0.0.1", master_port=1, nodes=(node,))
        rendered = render(job, place)
        for file, text in rendered.files.items():
            (folder / file).write_text(text)
        config = yaml.safe_load(rendered.files[CONFIG]) | case.changes
        return {
            "ranks": case.ranks,
            "environment": dict(rendered.commands[0].environment),
            "config": config,
            "stop_at": STEPS // 2 if case.resumed else 0,
            "folder": str(folder),
        }

    def _mapping(self, case: Case, folder: Path) -> dict[str, Any]:
        model = self.model(case.model)
        return {
            "name": "parity",
            "cluster": {
                "gpu": "cpu", "nodes": 1, "gpus_per_node": case.job_ranks or case.ranks,
                "hosts": [{"address": "127.0.0.1"}],
                "environments": {"llamafactory": {"python": str(NODE_PYTHON)}},
            },
            "model": {"hf_config": json.loads((model / "config.json").read_text()), "path": str(model)},
            "engine": case.engine,
            "training": {
                "dataset": tiny_model.DATASET,
                "dataset_dir": str(self.folder / tiny_model.DATA_FOLDER),
                "template": tiny_model.TEMPLATE,
                "output_dir": str(folder / "out"),
                "precision": "fp32",
                "cutoff_len": 64,
                "image_max_pixels": 4096,
                "micro_batch_size": case.micro,
                "global_batch_size": BATCH,
                "learning_rate": 1.0e-3,
                "lr_scheduler": "constant",
                "warmup_ratio": 0,
                "max_steps": STEPS,
                "save_steps": 1000,
                "workers": {"preprocessing": 1, "data_loader": 0},
                "report_to": [],
            }
            | _pictures(case),
            # No clipping: the gradients of the table are those that the backward pass made.
            "extra": {"max_grad_norm": 1e9} | ({} if case.engine == MEGATRON else {"disable_shuffling": True}),
        }  # fmt: skip


def _pictures(case: Case) -> dict[str, Any]:
    if case.model not in IMAGES:
        return {}
    template = tiny_data.VISION_TEMPLATE if case.model == "vision" else "qwen2_vl"
    return {"dataset": tiny_data.PICTURES, "template": template, "cutoff_len": 128}
