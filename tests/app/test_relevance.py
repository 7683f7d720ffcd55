"""Which widgets the page hides for a draft, without a browser."""

from app.services import Services
from app.wizard.draft_state import read
from app.wizard.events import change
from app.wizard.fields import Form
from app.wizard.relevance import hidden
from tests.app.conftest import READY


def test_liger_is_offered_where_the_engine_has_it_for_the_model(services: Services, form: Form) -> None:
    def is_shown(engine: str) -> bool:
        change(services, {**READY, "model.preset": "qwen3-vl-8b", "engine": engine})
        off = hidden(form, read(services.draft.job_mapping(), services.home))
        assert off is not None
        return "training.liger" not in off

    engines = ("llamafactory-zero3", "swift-zero3", "swift-megatron")
    assert [is_shown(engine) for engine in engines] == [False, True, False]
