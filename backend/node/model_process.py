"""Starts a program again, as a process of its own, for each model of a chat or an evaluation."""

from __future__ import annotations

import os
import subprocess
import sys


def start_model(folder: str, rank: int, devices: str) -> subprocess.Popen[bytes]:
    """Start this program for the model `rank`, with its GPUs. Its output goes to FOLDER/rank<k>.log."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": devices}
    command = [sys.executable, os.path.abspath(__file__), folder, str(rank)]
    with open(os.open(f"{folder}/rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)
