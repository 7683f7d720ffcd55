"""Gradio's settings that are read from the environment when it is imported."""

import os
import tempfile
from pathlib import Path


def prepare_gradio(home: Path) -> None:
    """Set what Gradio reads when it is imported; call before anything imports it.

    With these Gradio asks no hub of its own accord; HF_HUB_OFFLINE stays the user's, who may fetch a config.json.
    Inherited GRADIO_ variables go: some of them open doors (vibe mode, root path, extra allowed paths).
    """
    for name in [name for name in os.environ if name.startswith("GRADIO_")]:
        del os.environ[name]
    temporary = _temporary_folder(home)
    os.environ.update(
        GRADIO_ANALYTICS_ENABLED="False",
        GRADIO_TEMP_DIR=str(temporary),
        GRADIO_EXAMPLES_CACHE=str(temporary),
        HF_HUB_DISABLE_TELEMETRY="1",
    )


def _temporary_folder(home: Path) -> Path:
    """The folder for temporary downloads: in the home folder, or the system's if the home folder is read-only."""
    folder = home / "gradio"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="megaboard-"))
    return folder
