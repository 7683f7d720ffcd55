"""The real page with its log-in, but with the monitor only.

    python -m tools.monitor_server PORT HOME TICK_S PASSWORD

The controller reads the store and takes orders, but it monitors no nodes. Tests write to the store to change runs.
"""

import sys
from pathlib import Path

from app.web.binding import Binding
from app.web.gradio_settings import prepare_gradio
from app.web.passwords import PasswordHash


def main(port: int, home: Path, tick_s: float, password: str) -> None:
    home.mkdir(parents=True, exist_ok=True)
    prepare_gradio(home)
    import gradio as gr

    import app.monitor.page
    from app.monitor.routes import routes
    from app.services import Services
    from app.text import LANGUAGES
    from app.web.server import create_app, serve
    from app.web.shell import frame

    services = Services.open(home)

    def wizard(lang: str, services: Services) -> None:
        gr.HTML("<p>wizard</p>", js_on_load=None)

    def monitor(lang: str, services: Services) -> None:
        app.monitor.page.build(lang, services, tick_s)

    pages = {lang: frame(lang, services, wizard=wizard, monitor=monitor) for lang in LANGUAGES}
    binding = Binding(port=port)
    password_hash = PasswordHash.of(password)
    page = create_app(
        pages, home=home, password=password_hash, audit=services.audit, binding=binding, routers=[routes(services)]
    )
    listener = binding.listen()
    try:
        serve(page, binding, listener)
    finally:
        services.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
