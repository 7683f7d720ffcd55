"""A draft as the wizard has it, without a browser and without nodes."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from app.services import FIRST_DRAFT, Draft, Services
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
"""Fields as they are typed: with them the draft can be launched."""
DRAFT = {**FIRST_DRAFT, "training": {"images_per_sample": 0}, "parallel": {"tensor": 4}}
"""The first draft with TP in place of PP, and without images, whose gradients TP would make wrong."""


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """DRAFT in a store of its own."""
    monkeypatch.setattr("app.services.FIRST_DRAFT", DRAFT)
    store = Store(tmp_path / "megaboard.db")
    draft = Draft(store, tmp_path)
    parts = {"home": tmp_path, "database": Database(store), "draft": draft, "controller": None, "audit": None}
    yield cast(Services, SimpleNamespace(**parts, clock=lambda: 0.0, told=(), demo=None))
    store.close()
