"""What record() prints and refuses."""

import numpy as np
import pytest

from thousand_fingers.book.record import (
    emit_record,
    record,
    record_mean,
    record_plot,
    record_rate,
    shown,
    summarise_plot,
)


def test_numpy_scalars_are_printed_as_plain_numbers(capsys):
    record("demo.rate", np.float64(0.25), digits=2)
    record("demo.count", np.int64(7))
    record("demo.zero_d", np.array(0.5), digits=1)
    assert capsys.readouterr().out == "demo.rate = 0.25\ndemo.count = 7\ndemo.zero_d = 0.5\n"


@pytest.mark.parametrize("name", ["mean", "Demo.mean", "demo..mean", "demo.mean ", "demo.μ", 3, ""])
def test_names_that_the_prose_could_not_quote_are_refused(name):
    with pytest.raises((ValueError, TypeError), match="name must be"):
        record(name, 1.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, None, [1.0], np.ones(2), 1j])
def test_values_that_are_not_one_finite_number_or_text_are_refused(value):
    with pytest.raises((ValueError, TypeError), match="value must be"):
        record("demo.value", value)


def test_a_value_outside_its_own_interval_is_refused():
    with pytest.raises(ValueError, match="must lie in its interval"):
        record("demo.rate", 0.7, interval=(0.4, 0.6))


def test_an_interval_must_be_ordered_and_numeric():
    with pytest.raises(ValueError, match=r"interval\[1\] must be"):
        record("demo.rate", 0.5, interval=(0.6, 0.4))
    with pytest.raises(TypeError, match="interval applies to numbers"):
        record("demo.word", "yes", interval=(0.0, 1.0))


def test_nothing_is_printed_when_the_arguments_are_refused(capsys):
    with pytest.raises(ValueError, match="digits"):
        record("demo.rate", 0.5, digits=-1)
    assert capsys.readouterr().out == ""


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="kind must be one of"):
        emit_record("demo.x", 1.0, {"kind": "guess"})


def test_negative_digits_never_reach_the_page():
    assert shown(2.0, {"digits": 0}) == "2"
    assert shown(412, {"digits": 3}) == "412"


def test_the_summary_of_a_plot_ignores_gaps_and_empty_lines():
    summary = summarise_plot({"y": [float("nan"), 1.0, 3.0], "none": []})
    assert summary == {
        "y": {"n": 2.0, "first": 1.0, "last": 3.0, "min": 1.0, "max": 3.0, "mean": 2.0},
        "none": {"n": 0.0},
    }


def test_outside_a_notebook_recording_a_plot_says_nothing(capsys):
    record_plot("fig-demo", {"y": [1.0]})
    assert capsys.readouterr().out == ""


def test_a_rate_is_recorded_with_its_exact_limits(capsys):
    record_rate("demo.rate", 0, 10, digits=3)
    assert capsys.readouterr().out == "demo.rate = 0.000 (95% interval 0.000 to 0.308, n = 10)\n"


@pytest.mark.parametrize(("successes", "trials"), [(1, 0), (-1, 5), (6, 5), (0.5, 5), (True, 5)])
def test_rates_of_impossible_counts_are_refused(successes, trials):
    with pytest.raises((ValueError, TypeError), match="must be"):
        record_rate("demo.rate", successes, trials)


def test_a_mean_is_recorded_with_the_limits_of_student(capsys):
    record_mean("demo.mean", [0.94, 0.96, 0.95], digits=3)
    assert capsys.readouterr().out == "demo.mean = 0.950 (95% interval 0.925 to 0.975, mean of 3)\n"
    with pytest.raises(ValueError, match="values must hold at least 2"):
        record_mean("demo.mean", [0.5])
