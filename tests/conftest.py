"""What every test shares."""

import os

import pytest

# Read by Gradio when it is imported: no test may reach for the network.
os.environ.update(GRADIO_ANALYTICS_ENABLED="False", HF_HUB_OFFLINE="1")


@pytest.fixture(autouse=True, scope="session")
def _words_must_exist():
    """A missing catalogue key is an error in tests; users see the key instead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEGABOARD_STRICT_WORDS", "1")
        yield
