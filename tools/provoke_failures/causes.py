"""All causes, by the name of their folder."""

from collections.abc import Mapping

from tools.provoke_failures.gang import Cause
from tools.provoke_failures.model_and_data import MODEL_AND_DATA
from tools.provoke_failures.nodes import NODES
from tools.provoke_failures.packages import PACKAGES
from tools.provoke_failures.parallel import PARALLEL

CAUSES: Mapping[str, Cause] = {**MODEL_AND_DATA, **NODES, **PACKAGES, **PARALLEL}
