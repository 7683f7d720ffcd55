"""The life of the web server: a signal ends it at any time."""

import signal
from collections.abc import Iterator

import pytest

from app.web.binding import Binding
from app.web.gradio_settings import prepare_gradio

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def _own_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_own_signals")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_before_the_first_response_ends_the_server(tmp_path, number: signal.Signals) -> None:
    """Such a signal used to be lost: the server had recorded its end, but it continued."""
    prepare_gradio(tmp_path)
    from app.web.server import serve

    async def app(scope, receive, send) -> None:
        raise AssertionError("nobody asked")

    binding = Binding(port=0)
    with binding.listen() as listener:
        serve(app, binding, listener, lambda: signal.raise_signal(number))
