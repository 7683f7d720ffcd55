"""Settings that all tests share."""

import inspect
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A busy machine must not make a test fail.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Gradio reads this when it is imported. No test may connect to the network.
os.environ.update(GRADIO_ANALYTICS_ENABLED="False", HF_HUB_OFFLINE="1")

_file_of = inspect.getfile


def _file_of_all_but_components(thing: Any) -> str:
    if type(thing).__name__ == "ComponentMeta":
        raise OSError("no stub is wanted")
    return _file_of(thing)


# Half of the time to import Gradio is spent on writing its .pyi files for editors.
inspect.getfile = _file_of_all_but_components


@pytest.fixture(autouse=True, scope="session")
def _words_must_exist():
    """Make a missing catalogue key an error in tests. Users would see the key instead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEGABOARD_STRICT_WORDS", "1")
        yield
