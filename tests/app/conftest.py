"""The state of the wizard without a browser and without nodes."""

from collections.abc import Iterator
from pathlib import Path

import gradio as gr
import pytest

from app.services import FIRST_DRAFT, Services
from app.wizard import hardware, launch, model, plan, review, training
from app.wizard.fields import Form

READY = {
    "cluster.hosts.lines": "10.0.0.1\n10.0.0.2\n10.0.0.3\n10.0.0.4",
    "cluster.environments.llamafactory.python": "/opt/lf/bin/python",
    "model.path": "/models/qwen",
    "training.dataset": "mine",
    "training.dataset_dir": "/data",
    "training.template": "qwen3_vl_nothink",
    "training.output_dir": "/runs",
    "parallel.tensor": 4,
}
"""Fields as a user types them. With them the draft can be launched."""
DRAFT = {**FIRST_DRAFT, "training": {"images_per_sample": 0}, "parallel": {"tensor": 4}}
"""The initial draft with TP instead of PP. It has no images, because TP would compute their gradients incorrectly."""


@pytest.fixture(scope="module")
def form() -> Form:
    """Return the form of the wizard with all its steps."""
    draft_form = Form("en")
    with gr.Blocks(analytics_enabled=False):
        for step in (hardware, model, training, plan, review, launch):
            step.build(draft_form)
    return draft_form


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """Return services of a new home folder whose draft is DRAFT."""
    monkeypatch.setattr("app.services.FIRST_DRAFT", DRAFT)
    services = Services.open(tmp_path, lambda: 0.0)
    yield services
    services.close()
