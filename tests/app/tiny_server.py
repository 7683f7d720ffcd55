"""A server process with a tiny page: `python -m tests.app.tiny_server HOME [CERTIFICATE KEY]`. It prints its port.

Beside the page, /open?count=N opens N files at once, as nodes and the database would.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

from fastapi import APIRouter

from app.web.audit import Audit
from app.web.binding import Binding
from app.web.gradio_settings import prepare_gradio


def main(home: Path, certificate: Path | None = None, key: Path | None = None) -> None:
    prepare_gradio(home)
    from app.web.server import create_app, serve
    from tests.app.tiny_app import HASH, IDENTITY, tiny_page

    router = APIRouter()

    @router.get("/open")
    def open_files(count: int) -> int:
        with ExitStack() as opened:
            return len([opened.enter_context(Path(__file__).open()) for _ in range(count)])

    binding = Binding(port=0, certificate=certificate, key=key)
    pages = {"en": tiny_page()}
    app = create_app(
        pages, home=home, password=HASH, audit=Audit(home), binding=binding, identity=IDENTITY, routers=[router]
    )
    listener = binding.listen()
    listener.listen(1024)  # The reader of the port may connect at once.
    serve(app, binding, listener, lambda: print(listener.getsockname()[1], flush=True))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
