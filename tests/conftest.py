"""What every test shares."""

import inspect
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No test may fail because the machine is busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Read by Gradio when it is imported: no test may reach for the network.
os.environ.update(GRADIO_ANALYTICS_ENABLED="False", HF_HUB_OFFLINE="1")

_file_of = inspect.getfile


def _file_of_all_but_components(thing: Any) -> str:
    if type(thing).__name__ == "ComponentMeta":
        raise OSError("no stub is wanted")
    return _file_of(thing)


# Half of the time that importing Gradio takes goes into writing its own .pyi files anew, for editors.
inspect.getfile = _file_of_all_but_components


@pytest.fixture(autouse=True, scope="session")
def _words_must_exist():
    """A missing catalogue key is an error in tests; users see the key instead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEGABOARD_STRICT_WORDS", "1")
        yield
