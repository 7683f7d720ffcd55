"""How Gradio is imported: with our environment variables, and without the files that it writes for editors."""

import inspect
import os
import tempfile
from pathlib import Path
from typing import Any

_file_of = inspect.getfile


def prepare_gradio(home: Path) -> None:
    """Set the variables that Gradio reads when it is imported, and import it. Call this before anything imports Gradio.

    With them, Gradio contacts no hub by itself. HF_HUB_OFFLINE does not change, because users may fetch a config.json.
    Inherited GRADIO_ variables are removed: some give access (vibe mode, root path, extra allowed paths).
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
    inspect.getfile = file_of_all_but_components
    try:
        import gradio  # noqa: F401
    finally:
        inspect.getfile = _file_of


def file_of_all_but_components(object: Any) -> str:
    """Do what inspect.getfile does, but tell Gradio that its components have no file.

    Otherwise Gradio reads and writes a .pyi file beside each component, which is half of the time of its import.
    """
    if type(object).__name__ == "ComponentMeta":
        raise OSError("no stub is wanted")
    return _file_of(object)


def _temporary_folder(home: Path) -> Path:
    """Return the folder for Gradio's temporary files: in the home folder, or a system folder if that is read-only."""
    folder = home / "gradio"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="megaboard-"))
    return folder
