"""The figures that a reader can move, in a real browser: keyboard, small screens, no JavaScript."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from thousand_fingers.figures.adversarial_examples import thirty_fingers

pytestmark = pytest.mark.browser

NAME = "fig-thirty-fingers"
LOGIT, SLOPE = 2.0893, 23.5825


def opened(browser: Any, scripts: bool = True, width: int = 800) -> Any:
    rng = np.random.default_rng(0)
    pushes = 0.15 * rng.choice([-1.0, 1.0], 30)
    html = thirty_fingers(NAME, rng.standard_normal(30), pushes, LOGIT, SLOPE, label=1)
    context = browser.new_context(java_script_enabled=scripts, viewport={"width": width, "height": 700})
    page = context.new_page()
    page.set_content(f"<!doctype html><html lang='en'><body>{html}</body></html>")
    return page


def test_the_arrow_keys_move_the_push_and_every_part_follows(browser):
    page = opened(browser)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == f"{NAME}-radius"
    before = page.get_attribute(f"#{NAME}-dot", "cy")
    page.keyboard.press("ArrowLeft")
    p = 1 / (1 + math.exp(SLOPE * 0.149 - LOGIT))
    reading = f"ρ = 0.149: probability of class 1 = {p:.3f}, WRONG"
    assert page.inner_text(f"#{NAME}-reading") == reading
    assert page.get_attribute(f"#{NAME}-radius", "aria-valuetext") == reading
    assert page.get_attribute(f"#{NAME}-dot", "cy") != before
    assert page.get_attribute(f"#{NAME}-pushes", "transform").endswith("scale(1 0.149)")
    moved = 27 * 0.149  # pixels, at 27 to the unit
    for part, distance in (("up", -moved), ("down", moved)):
        transform = page.get_attribute(f"#{NAME}-{part}", "transform")
        assert float(transform.split()[1].rstrip(")")) == pytest.approx(distance)
    page.keyboard.press("Home")
    assert page.inner_text(f"#{NAME}-reading").endswith("= 0.890, correct")


@pytest.mark.parametrize(("thousandths", "verdict"), [(88, "correct"), (89, "WRONG")])
def test_the_answer_changes_where_the_margin_is_used_up(browser, thousandths, verdict):
    page = opened(browser)
    page.fill(f"#{NAME}-radius", str(thousandths))
    assert page.inner_text(f"#{NAME}-reading").endswith(verdict)


@pytest.mark.parametrize("thousandths", [0, 89, 300])
def test_the_dot_stays_on_the_curve(browser, thousandths):
    page = opened(browser)
    page.fill(f"#{NAME}-radius", str(thousandths))
    dot = [float(page.get_attribute(f"#{NAME}-dot", axis)) for axis in ("cx", "cy")]
    curve = page.get_attribute(".curve", "d")
    points = np.array([point.split() for point in curve[1:].split("L")], dtype=float)
    assert dot[1] == pytest.approx(np.interp(dot[0], *points.T), abs=0.3)


def test_without_javascript_the_pictures_stand_and_the_slider_is_away(browser):
    page = opened(browser, scripts=False)
    assert page.locator("svg").count() == 2
    assert page.locator("svg").first.is_visible()
    assert not page.locator(f"#{NAME}-radius").is_visible()


def test_on_a_phone_the_panels_stand_below_each_other_within_the_page(browser):
    page = opened(browser, width=360)
    first, second = (page.locator("svg").nth(k).bounding_box() for k in (0, 1))
    assert second["y"] >= first["y"] + first["height"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
