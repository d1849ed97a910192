"""The rendered book, served on loopback, and a browser that looks at it."""

from __future__ import annotations

import fcntl
import functools
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest


@pytest.fixture(scope="session")
def rendered_site() -> Path:
    """Folder with the HTML pages of this checkout, built if they are not there."""
    if given := os.environ.get("RENDERED_SITE"):
        return Path(given).resolve(strict=True)
    from thousand_fingers.book.freshness import State
    from thousand_fingers.book.project import find_project
    from thousand_fingers.book.render import render
    from thousand_fingers.book.timings import Timings

    project = find_project(Path(__file__).parent)
    project.build_dir.mkdir(exist_ok=True)
    with (project.build_dir / ".lock").open("w") as lock:  # the other test processes render too
        fcntl.flock(lock, fcntl.LOCK_EX)
        return render(project, State(project), Timings(project)).index.parent


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and 404.html for whatever is not in it, as hosts do."""

    def log_message(self, *arguments: Any) -> None:
        pass

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        if code != http.HTTPStatus.NOT_FOUND:
            super().send_error(code, message, explain)
            return
        body = (Path(self.directory) / "404.html").read_bytes()
        self.send_response(code)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="session")
def site_url(rendered_site: Path) -> Iterator[str]:
    """Address of the rendered book on this machine, without a slash at the end."""
    handler = functools.partial(_Handler, directory=str(rendered_site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Any]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield running
        running.close()


class Window:
    """One browser window that notes what its pages ask for and complain about."""

    def __init__(self, browser: Any, site_url: str, **options: Any) -> None:
        self.site_url = site_url
        self.strangers: list[str] = []
        self.complaints: list[str] = []
        self.context = browser.new_context(**options)
        self.context.route("**/*", self._admit)
        self.context.add_init_script(path=Path(__file__).with_name("look.js"))
        self.page = self.context.new_page()
        self.page.set_default_timeout(300_000)  # milliseconds: a machine under load is no reason to fail
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _admit(self, route: Any) -> None:
        parts = urlsplit(route.request.url)
        if parts.scheme in ("http", "https") and parts.netloc != urlsplit(self.site_url).netloc:
            self.strangers.append(route.request.url)
            route.abort()
        else:
            route.continue_()

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def open(self, address: str) -> Any:
        """Load a page, wait until its formulas are set, and return it."""
        self.page.goto(address if ":" in address else f"{self.site_url}/{address}")
        self.page.evaluate("async () => { await window.MathJax?.startup?.promise }")
        return self.page


@pytest.fixture
def window(browser: Any, site_url: str) -> Iterator[Any]:
    """Return a function that opens windows: ``window(width=390, theme="dark")``."""
    opened = []

    def open_window(width: int = 1280, theme: str = "light", **options: Any) -> Window:
        made = Window(
            browser,
            site_url,
            viewport={"width": width, "height": 900},
            color_scheme=theme,
            reduced_motion="reduce",
            **options,
        )
        opened.append(made)
        return made

    yield open_window
    for made in opened:
        made.context.close()
