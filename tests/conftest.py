"""Settings that all tests share."""

import inspect
import os

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


@pytest.fixture(autouse=True, scope="session")
def _words_must_exist():
    """Make a missing catalogue key an error in tests. Users would see the key instead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEGABOARD_STRICT_WORDS", "1")
        yield
