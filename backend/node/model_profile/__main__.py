"""Entry of `python -m backend.node.model_profile`."""

import sys

from .main import main

sys.exit(main())
