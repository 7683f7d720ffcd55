"""Record the film of the README from the real demo: plan, launch, a killed rank, the restart.

python -m tools.record_demo     (some minutes; needs what `make demo` needs, Debian's chromium, and ffmpeg)

It writes docs/demo.webm, and docs/demo.gif because GitHub shows no other moving picture of a repository in a README.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from backend.runs.store import metrics
from backend.runs.store.store import Store
from tools.browser import CHECKOUT, Server, chromium, log_in

SIZE = {"width": 1280, "height": 800}
KILLED_RANK = 2
KILLED_AFTER_STEP = 140
"""The demo saves a checkpoint at step 100."""
LAST_STEP = 200
LONGEST_WAIT_MS = 600_000
PALETTE = "split[a][b];[a]palettegen=max_colors=64:stats_mode=diff[p];[b][p]paletteuse=dither=none:diff_mode=rectangle"
ENCODERS = {
    "demo.webm": ["-c:v", "libvpx-vp9", "-crf", "36", "-b:v", "0", "-cpu-used", "4", "-pix_fmt", "yuv420p"],
    "demo.gif": ["-vf", f"scale=960:-1:flags=lanczos,{PALETTE}"],
}

CAPTION = """([text]) => {
    let caption = document.getElementById('film-caption');
    if (!caption) {
        caption = document.body.appendChild(document.createElement('div'));
        caption.id = 'film-caption';
        caption.style.cssText = 'position: fixed; inset: auto 0 0 0; z-index: 99999; padding: 14px 24px; color: white; '
            + 'background: rgb(15 23 42 / 0.92); font: 500 20px/1.4 system-ui, sans-serif; text-align: center';
    }
    caption.textContent = text;
}"""
OUTLINE = (
    "(element, on) => { element.style.outline = on ? '3px solid #f97316' : ''; element.style.outlineOffset = '2px'; }"
)


class Demo(Server):
    """`megaboard demo` in a process of its own."""

    call = ("--lang", "en", "demo")

    def last_step(self, run: str) -> int:
        """Return the last step of a run that the server has received."""
        with closing(Store(self.home / "demo" / "megaboard.db")) as store, store.read() as connection:
            return max((point.step for point in metrics.points(connection, run)), default=0)

    def kill_rank(self, rank: int) -> int:
        """Kill the training process of a global rank and return its process id."""
        for entry in Path("/proc").iterdir():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
                is_ours = str(self.home) in os.readlink(entry / "cwd") if variables else False
            except OSError:
                continue
            if is_ours and f"RANK={rank}".encode() in variables:
                os.kill(int(entry.name), signal.SIGKILL)
                return int(entry.name)
        raise RuntimeError(f"no process of rank {rank}")


class Film:
    """Screenshots of a page, each with the seconds that the film shows it."""

    def __init__(self, page: Any, folder: Path) -> None:
        self.page, self.folder = page, folder
        self.frames: list[tuple[Path, float]] = []
        self.caption = ""

    def say(self, caption: str, seconds: float = 3.0) -> None:
        """Show a caption over the page. It stays until the next caption."""
        self.caption = caption
        self.show(seconds)

    def show(self, seconds: float) -> None:
        """Add a screenshot. A screenshot without a change adds no bytes to the film."""
        self.page.evaluate(CAPTION, [self.caption])
        path = self.folder / f"{len(self.frames):05}.png"
        self.page.screenshot(path=path)
        self.frames.append((path, seconds))

    def click(self, selector: str) -> None:
        """Show which element is clicked, and click it."""
        element = self.page.locator(selector).first
        element.scroll_into_view_if_needed()
        element.evaluate(OUTLINE, True)
        self.show(1.0)
        element.evaluate(OUTLINE, False)
        element.click()

    def until(self, is_done: Callable[[], bool], every_ms: int = 500, seconds: float = 0.15) -> None:
        """Film in time lapse until a condition holds: take a screenshot every `every_ms`, and show it for `seconds`."""
        deadline = time.monotonic() + LONGEST_WAIT_MS / 1000
        while not is_done():
            if time.monotonic() > deadline:
                raise TimeoutError(self.caption)
            self.show(seconds)
            self.page.wait_for_timeout(every_ms)

    def save(self, folder: Path) -> None:
        """Encode the film in every format."""
        listing = self.folder / "frames.txt"
        lines = [f"file '{frame}'\nduration {seconds:.3f}\n" for frame, seconds in self.frames]
        # The concat reader of ffmpeg ignores the duration of the last file.
        listing.write_text("".join(lines) + f"file '{self.frames[-1][0]}'\n")
        source = ["-f", "concat", "-safe", "0", "-i", str(listing), "-fps_mode", "vfr"]
        for name, options in ENCODERS.items():
            path = folder / name
            subprocess.run([ffmpeg(), "-y", "-loglevel", "error", *source, *options, str(path)], check=True)
            print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {sum(seconds for _, seconds in self.frames):.0f} s")


def ffmpeg() -> str:
    """Return the path of ffmpeg from PATH or from the package imageio-ffmpeg."""
    path = shutil.which("ffmpeg")
    if path:
        return path
    try:
        from imageio_ffmpeg import get_ffmpeg_exe
    except ImportError:
        sys.exit("ffmpeg is missing. Install it with: sudo apt-get install ffmpeg (or: pip install imageio-ffmpeg)")
    return str(get_ffmpeg_exe())


def main() -> None:
    """Record the film."""
    ffmpeg()
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as frames, chromium() as browser:
        demo = Demo(Path(home))
        demo.start()
        try:
            page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
            page.set_default_timeout(LONGEST_WAIT_MS)
            log_in(page, demo)
            film = Film(page, Path(frames))
            plan(film)
            launch(film)
            kill_and_restart(film, demo)
        finally:
            demo.end()
        film.save(CHECKOUT / "docs")


def plan(film: Film) -> None:
    """Show the plans of the demo's job."""
    page = film.page
    page.wait_for_selector("#step-hardware")
    page.wait_for_timeout(4000)
    film.say("megaboard demo: four SSH nodes on this machine, real training on CPU")
    page.click('.mb-steps a[data-step="plan"]')
    page.wait_for_selector("#step-plan .mb-plans tr[data-index]")
    page.wait_for_timeout(1500)
    film.say("Plan: every legal plan, with its memory and its pipeline bubble", 4.0)
    page.locator("#step-plan .mb-plans").first.evaluate("element => element.scrollIntoView({ block: 'center' })")
    page.wait_for_timeout(500)
    film.show(3.0)


def launch(film: Film) -> None:
    """Check the nodes, confirm their host keys, and launch."""
    page = film.page
    page.click('.mb-steps a[data-step="launch"]')
    page.wait_for_selector('[data-act="check"]')
    film.say("Launch: check the four nodes, confirm their host keys", 2.0)
    film.click('[data-act="check"]')
    film.until(page.locator('[data-act="accept"]').is_visible)
    film.show(2.0)
    film.click('[data-act="accept"]')
    film.until(page.locator('[data-act="launch"]').is_enabled)
    film.show(2.0)
    film.click('[data-act="launch"]')
    page.wait_for_function("() => location.hash.startsWith('#runs/')")
    page.wait_for_selector(".mbm-title")


def kill_and_restart(film: Film, demo: Demo) -> None:
    """Kill a rank, show the page's diagnosis, and film the restart up to the end of the run."""
    page = film.page
    run = page.evaluate("() => decodeURIComponent(location.hash).slice(6)")
    cause = page.locator("[role=alert]:visible").first
    film.say("torchrun starts on all four nodes", 1.0)
    film.until(lambda: demo.last_step(run) > 0, every_ms=2000)
    film.caption = "Training: loss, gradient norm and speed, live"
    film.until(lambda: demo.last_step(run) >= KILLED_AFTER_STEP, every_ms=300, seconds=0.25)
    process = demo.kill_rank(KILLED_RANK)
    film.say(f"$ kill -9 {process}     (rank {KILLED_RANK}, on the third of four nodes)", 2.5)
    film.until(cause.is_visible)
    film.say("The page names the node and the killed rank; the whole gang is stopped", 5.0)
    film.caption = "The gang restarts from the newest complete checkpoint"
    film.until(lambda: not cause.is_visible())
    film.show(2.0)
    film.until(lambda: demo.last_step(run) >= LAST_STEP, every_ms=700)
    page.locator(".mbm-title").get_by_text("Finished").wait_for()
    film.say("Finished: no step is missing, and none is there twice", 4.0)


if __name__ == "__main__":
    main()
