"""The job of the demo: the first draft of `megaboard demo`, and the first recipe on its page."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.demo import tiny_model
from app.text import t


def demo_name(job: Mapping[str, Any], lang: str) -> str:
    """Return the name of the demo's job in the list of recipes."""
    nodes = job["cluster"]["nodes"]
    return t(lang, "wizard.start.recipe.demo.one" if nodes == 1 else "wizard.start.recipe.demo", nodes=nodes)


def demo_job(home: Path, cluster: dict[str, Any]) -> dict[str, Any]:
    """Return a job that trains the tiny model with data parallelism over all nodes; about a minute on two cores."""
    model = home / tiny_model.MODEL_FOLDER
    return {
        "version": 1,
        "name": "demo",
        "cluster": cluster,
        "model": {"hf_config": _model_config(model), "path": str(model)},
        "training": {
            "stage": "sft",
            "method": "full",
            "dataset": tiny_model.DATASET,
            "dataset_dir": str(home / tiny_model.DATA_FOLDER),
            "template": tiny_model.TEMPLATE,
            "cutoff_len": 64,
            "samples": tiny_model.ROWS,
            "precision": "fp32",
            "micro_batch_size": 4,
            "gradient_accumulation_steps": 1,
            "max_steps": 200,
            "learning_rate": 2.0e-3,
            "logging_steps": 1,
            "save_steps": 100,
            "workers": {"preprocessing": 1, "data_loader": 0},
            "report_to": [],
            "output_dir": str(home / "output"),
        },
        "engine": "llamafactory-ddp",
    }


def _model_config(model: Path) -> dict[str, Any]:
    return dict(json.loads((model / "config.json").read_text(encoding="utf-8")))
