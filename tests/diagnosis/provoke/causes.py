"""All causes, by the name of their folder."""

from collections.abc import Mapping

from tests.diagnosis.provoke.gang import Cause
from tests.diagnosis.provoke.model_and_data import MODEL_AND_DATA
from tests.diagnosis.provoke.nodes import NODES
from tests.diagnosis.provoke.packages import PACKAGES
from tests.diagnosis.provoke.parallel import PARALLEL

CAUSES: Mapping[str, Cause] = {**MODEL_AND_DATA, **NODES, **PACKAGES, **PARALLEL}
