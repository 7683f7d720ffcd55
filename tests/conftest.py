"""Settings that all tests share."""

import inspect
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from app.web.gradio_settings import file_of_all_but_components

# A busy machine must not make a test fail.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Gradio reads this when it is imported. No test may connect to the network.
os.environ.update(GRADIO_ANALYTICS_ENABLED="False", HF_HUB_OFFLINE="1")

# Any test may be the first to import Gradio.
inspect.getfile = file_of_all_but_components


LONGEST = ("e2e", "slurm", "ui")
"""Folders whose files take longest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, so that no worker is left with one while the others have nothing to do."""
    folders = Path(__file__).parent
    items.sort(key=lambda item: item.path.relative_to(folders).parts[0] not in LONGEST)


@pytest.fixture(autouse=True, scope="session")
def _words_must_exist():
    """Make a missing catalogue key an error in tests. Users would see the key instead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEGABOARD_STRICT_WORDS", "1")
        yield
