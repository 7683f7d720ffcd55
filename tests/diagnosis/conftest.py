from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.runs.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "megaboard.db")
    yield store
    store.close()
