"""Settings for all tests, and the browser: without Chromium its tests are reported, loudly, as not run."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
from hypothesis import settings

# A machine under load is no reason to fail: hypothesis counts examples here, not milliseconds.
# Before a change lands the same examples are drawn each time, so that a commit passes or fails for
# what it holds; at a desk they are drawn anew, to find what nobody thought of.
settings.register_profile("book", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("book")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NO_BROWSER = "no Chromium found: install it, or name it in the environment variable CHROMIUM"


def _find_chromium() -> str | None:
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the Chromium that looks at the pages."""
    found = _find_chromium()
    assert found, NO_BROWSER  # pytest_runtest_setup has seen to it
    return found


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("browser") is None or _find_chromium():
        return
    if os.environ.get("REQUIRE_BROWSER") == "1":
        pytest.fail(f"REQUIRE_BROWSER=1, but {NO_BROWSER}", pytrace=False)
    pytest.skip(NO_BROWSER)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if NO_BROWSER in str(r.longrepr)]
    if skipped:
        terminalreporter.section("THE RENDERED PAGES WERE NOT LOOKED AT", sep="!", red=True, bold=True)
        terminalreporter.line(f"{len(skipped)} tests did not run: {NO_BROWSER}.")
