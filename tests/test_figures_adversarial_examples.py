"""The figure of chapter 7 that the reader can move, as text (in a browser: tests/book/test_moving_figures.py)."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from thousand_fingers import plotting
from thousand_fingers.figures.adversarial_examples import thirty_fingers
from thousand_fingers.plotting import html_figure

NAME = "fig-thirty-fingers"
RNG = np.random.default_rng(0)
FEATURES = RNG.standard_normal(30)
PUSHES = 0.15 * RNG.choice([-1.0, 1.0], 30)
LOGIT, SLOPE = 2.0893, 23.5825


def drawn(pushes=PUSHES, logit=LOGIT, label=1) -> str:
    return thirty_fingers(NAME, FEATURES, pushes, logit, SLOPE, label=label)


def elements(html: str) -> list[ET.Element]:
    return list(ET.fromstring(html).iter())


def part(html: str, name: str) -> ET.Element:
    (found,) = [e for e in elements(html) if e.get("id") == f"{NAME}-{name}"]
    return found


def test_the_same_data_give_the_same_bytes():
    assert drawn() == drawn()


def test_ids_are_unique_and_begin_with_the_name_of_the_figure():
    ids = [e.get("id") for e in elements(drawn()) if e.get("id")]
    assert len(ids) == len(set(ids))
    assert all(i.startswith(NAME + "-") for i in ids)


def test_nothing_is_loaded_from_elsewhere(monkeypatch):
    shown = []
    monkeypatch.setattr(plotting, "_show", lambda *about: shown.append(about))
    html_figure(NAME, drawn(), caption="Pushes add up.", alt="Thirty features and pushes. " * 2, series={})
    assert shown


def test_every_picture_describes_itself_with_the_decisive_numbers():
    pictures = [e for e in elements(drawn()) if e.tag == "svg"]
    assert len(pictures) == 2
    assert all(e.get("role") == "img" for e in pictures)
    spoken = " ".join(e.get("aria-label", "") for e in pictures)
    for number in ("0.890", "0.190", "0.089", "30 pushes of 0.15"):
        assert number in spoken


def test_the_slider_has_a_label_and_an_output_of_its_own():
    html = drawn()
    slider = part(html, "radius")
    assert slider.tag == "input"
    assert slider.get("type") == "range"
    (label,) = [e for e in elements(html) if e.tag == "label"]
    assert label.get("for") == slider.get("id")
    assert label.text
    assert part(html, "reading").get("for") == slider.get("id")
    assert "tabindex" not in slider.attrib


def test_without_a_script_the_figure_shows_the_printed_push():
    html = drawn()
    assert part(html, "controls").get("hidden")  # a slider that nothing listens to is not shown
    assert part(html, "reading").text == "ρ = 0.150: probability of class 1 = 0.190, WRONG"
    assert part(html, "radius").get("value") == "150"
    assert part(html, "pushes").get("transform").endswith("scale(1 0.15)")


def test_the_dot_lies_on_the_curve_and_the_flip_at_one_half():
    html = drawn()
    dot = part(html, "dot")
    curve = next(e for e in elements(html) if e.get("class") == "curve").get("d")
    points = np.array([p.split() for p in curve[1:].split("L")], dtype=float)
    height = np.interp(float(dot.get("cx")), *points.T)
    assert float(dot.get("cy")) == pytest.approx(height, abs=0.05)
    flip = next(e for e in elements(html) if e.get("class") == "flip").get("d")
    at = float(re.match(r"M([\d.]+) ", flip)[1])
    left, right = points[0, 0], points[-1, 0]
    assert 0.3 * (at - left) / (right - left) == pytest.approx(LOGIT / SLOPE, abs=2e-4)
    middle = (float(flip.split("V")[1]) + float(flip.split()[1].split("V")[0])) / 2
    assert np.interp(at, *points.T) == pytest.approx(middle, abs=0.3)


def test_features_and_pushes_are_drawn_at_the_same_scale():
    html = drawn()
    bars = {kind: [e for e in elements(html) if e.get("class") == kind] for kind in ("feature", "push")}
    unit = {float(e.get("height")) for e in bars["push"]}
    assert len(unit) == 1
    heights = [float(e.get("height")) for e in bars["feature"]]
    assert heights == pytest.approx(unit.pop() * np.abs(FEATURES), abs=0.01)
    upwards = [float(e.get("y")) < 0 for e in bars["push"]]
    assert upwards == list(PUSHES > 0)


def test_an_example_of_class_0_is_pushed_the_other_way():
    html = drawn(logit=-LOGIT, label=0)
    assert part(html, "reading").text == "ρ = 0.150: probability of class 1 = 0.810, WRONG"


def test_a_feature_without_weight_is_not_pushed():
    pushes = PUSHES.copy()
    pushes[3] = 0.0
    html = drawn(pushes=pushes)
    ticks = part(html, "up").get("d").count("M") + part(html, "down").get("d").count("M")
    assert ticks == 29
