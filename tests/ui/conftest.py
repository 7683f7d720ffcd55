"""Fixtures of the tests of the monitor. The files of other pages have a `server` and a `page` of their own."""

from collections.abc import Iterator

import pytest

from tests.ui.monitored import Monitored
from tools.browser import logged_in, without_faults


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Monitored]:
    server = Monitored(tmp_path_factory.mktemp("home"))
    server.start()
    yield server
    server.kill()
    server.store.close()


@pytest.fixture(scope="module")
def context(server: Monitored):
    with logged_in(server) as page:
        yield page.context


@pytest.fixture
def page(context):
    page = context.new_page()
    with without_faults(page):
        yield page
        page.close()
