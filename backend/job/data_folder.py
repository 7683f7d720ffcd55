"""The folders of data files that the project ships."""

from pathlib import Path
from typing import Literal


def data_folder(name: Literal["presets", "static", "requirements"]) -> Path:
    """Return the folder with the files of `name`: that of the checkout, or the one inside the wheel."""
    backend = Path(__file__).parents[1]
    packaged = backend / "data" / name
    return packaged if packaged.is_dir() else backend.parent / name
