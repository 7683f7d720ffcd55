"""The state of the wizard without a browser and without nodes."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from app.services import FIRST_DRAFT, Draft, Services
from app.wizard.last_benchmark import LastBenchmark
from app.wizard.launch_session import LaunchSession
from backend.runs.controller import Controller
from backend.runs.database import Database
from backend.runs.store.store import Store

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


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """Return services of a new home folder whose draft is DRAFT."""
    monkeypatch.setattr("app.services.FIRST_DRAFT", DRAFT)
    store = Store(tmp_path / "megaboard.db")
    draft = Draft(store, tmp_path)
    session = LaunchSession(cast(Controller, None), lambda: 0.0)
    parts = {"home": tmp_path, "database": Database(store), "draft": draft, "controller": None, "audit": None}
    state = {"launch_session": session, "last_benchmark": LastBenchmark()}
    yield cast(Services, SimpleNamespace(**parts, **state, clock=lambda: 0.0, recipients=(), demo=None))
    store.close()
