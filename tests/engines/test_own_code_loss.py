"""transformers' Trainer takes the mean loss of a model with its own code for a part of a sum, as the preflight says."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from backend.node.checks.model_code import undivided_loss
from tests.e2e.unknown_models import MINE
from tests.engines import own_code
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON
