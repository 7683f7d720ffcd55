"""How the server imports Gradio."""

import subprocess
import sys
from pathlib import Path

import pytest

IMPORT = """\
import inspect, sys
from pathlib import Path
from app.web.gradio_settings import prepare_gradio
opened = []
sys.addaudithook(lambda event, values: opened.append(str(values[0])) if event == "open" else None)
before = inspect.getfile
prepare_gradio(Path(sys.argv[1]))
assert inspect.getfile is before
assert "gradio.components.textbox" in sys.modules
print(*(name for name in opened if name.endswith(".pyi") and "/components/" in name))
"""


@pytest.mark.slow
def test_gradio_is_imported_without_its_files_for_editors(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
