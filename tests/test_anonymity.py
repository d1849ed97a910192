"""Anonymity: tables of the papers, closed forms, brute force, and the bug reports of other tools."""

from __future__ import annotations

import itertools
import math
import time
from datetime import date, datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linprog

from thousand_fingers.anonymity import (
    AnonymityReport,
    Hierarchy,
    anonymity_report,
    certainty_penalty,
    combinations_k,
    homogeneity_attack,
    intersection_attack,
    match_counts,
    mondrian,
    pseudonymise,
    safe_harbour_zip,
    search_lattice,
)
from thousand_fingers.datasets import load_adult

few = settings(max_examples=40, deadline=None)


def classes_of(*groups: list[object]) -> pd.DataFrame:
    """One class per list of sensitive values."""
    rows = [(f"class {i}", value) for i, group in enumerate(groups) for value in group]
    return pd.DataFrame(rows, columns=["class", "secret"])


def secret_of(*groups: list[object], **options):
    return anonymity_report(classes_of(*groups), ["class"], ["secret"], **options).sensitive["secret"]


def sized(*sizes: int) -> pd.DataFrame:
    return pd.DataFrame({"class": np.repeat([f"c{i}" for i in range(len(sizes))], sizes)})


# --------------------------------------------------------------------------- tables of the papers

MACHANAVAJJHALA = (
    ["heart", "heart", "viral", "viral"],
    ["cancer", "heart", "viral", "viral"],
    ["cancer"] * 4,
)


@pytest.mark.case("ANI-17")
def test_the_four_anonymous_table_has_a_homogeneous_class():
    report = anonymity_report(classes_of(*MACHANAVAJJHALA), ["class"], ["secret"])
    secret = report.sensitive["secret"]
    assert (report.k, report.discernibility, report.average_class_ratio) == (4, 48, 1.0)
    assert (secret.distinct_l, secret.alpha, secret.homogeneous_rows) == (1, 1.0, 4)
    assert_allclose(secret.class_entropy_l, [2, 2**1.5, 1])
    assert_allclose(secret.class_t, [5 / 12, 1 / 6, 7 / 12])
    assert secret.t == pytest.approx(7 / 12)


@pytest.mark.case("ANO-5")
def test_the_three_diverse_table_needs_c_three():
    secret = secret_of(list("aabc"), list("abbc"), list("abcc"))
    assert secret.distinct_l == secret.recursive_l == 3
    assert secret.entropy_l == pytest.approx(2**1.5)
    assert (secret.recursive_c, secret.smallest_integer_c) == (2.0, 3)
    assert secret.t == pytest.approx(1 / 6)


@pytest.mark.case("ANO-5")
def test_recursive_diversity_counts_the_most_frequent_first():
    assert secret_of(list("aaab"), recursive_l=2).smallest_integer_c == 4
    assert secret_of(list("aabc"), recursive_l=3).smallest_integer_c == 3
    assert secret_of(list("aab"), recursive_l=3).smallest_integer_c == math.inf


@pytest.mark.case("ANI-9")
@pytest.mark.parametrize(
    ("groups", "expected"),
    [(([3, 4, 5], [6, 8, 11], [7, 9, 10]), 0.375), (([3, 5, 9], [6, 8, 11], [4, 7, 10]), 1 / 6)],
)
@pytest.mark.parametrize("dtype", ["int64", "float64", "object", "category"])
def test_ordered_distance_of_the_salaries(groups, expected, dtype):
    table = classes_of(*groups)
    if dtype == "category":
        order = pd.CategoricalDtype([99, *range(3, 12)], ordered=True)  # a level that does not occur
        table["secret"] = table["secret"].astype(order)
    else:
        table["secret"] = table["secret"].astype(dtype)
    found = anonymity_report(table, ["class"], ["secret"], distances={"secret": "ordered"})
    assert found.sensitive["secret"].t == pytest.approx(expected)


def lefevre() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Age": [25, 25, 26, 27, 27, 28],
            "Sex": list("MFMMFM"),
            "Zip": [53711, 53712, 53711, 53710, 53712, 53711],
        }
    )


def test_mondrian_reproduces_the_patients_of_its_paper():
    release = mondrian(lefevre(), ["Age", "Sex", "Zip"], k=2)
    assert sorted(set(map(tuple, release.table.to_numpy().tolist()))) == [
        ("25–26", "M", "53711"),
        ("25–27", "F", "53712"),
        ("27–28", "M", "53710–53711"),
    ]
    assert release.report().discernibility == 12
    assert release.ncp == pytest.approx(0.2037, abs=5e-5)


@pytest.mark.parametrize("order", list(itertools.permutations(["Age", "Sex", "Zip"])))
def test_ties_of_mondrian_do_not_depend_on_the_order_of_the_columns_here(order):
    assert mondrian(lefevre(), order, k=2).report().discernibility == 12


@pytest.mark.parametrize(
    ("groups", "discernibility", "penalty"), [("abaaba", 20, 0.4074), ("aaabbb", 18, 0.6944)]
)
def test_other_cuts_of_the_patients_have_the_losses_of_the_paper(groups, discernibility, penalty):
    published = pd.DataFrame({name: list(groups) for name in lefevre()})  # by sex, and by age
    report = anonymity_report(published, ["Age", "Sex", "Zip"], original=lefevre(), k=2)
    assert report.discernibility == discernibility
    assert report.ncp == pytest.approx(penalty, abs=5e-5)


# --------------------------------------------------------------------------- Adult

QUASI = ["age", "sex", "race", "marital_status"]
MANY = ["sex", "age", "race", "marital_status", "education", "native_country", "workclass", "occupation"]


@pytest.fixture(scope="module")
def adult() -> pd.DataFrame:
    table = load_adult()
    return table[table["split"] == "train"]


@pytest.fixture(scope="module")
def adult_hierarchies(adult):
    return {
        "age": Hierarchy.from_rules(
            adult["age"], lambda a: a // 5, lambda a: a // 10, lambda a: a // 20, "*"
        ),
        "sex": Hierarchy.from_rules(adult["sex"], "*"),
        "race": Hierarchy.from_rules(adult["race"], lambda r: "White" if r == "White" else "other", "*"),
        "marital_status": Hierarchy.from_rules(
            adult["marital_status"], lambda m: "Married" if m.startswith("Married") else "other", "*"
        ),
    }


@pytest.mark.parametrize(
    ("columns", "complete", "expected"),
    [
        (QUASI, False, (32_561, 1_772, 563, 1_928, 5_425_265)),
        (QUASI, True, (30_162, 1_690, 543, 1_824, 4_845_414)),
        (MANY, False, (32_561, 19_805, 15_480, 23_905, 149_507)),
        (MANY, True, (30_162, 18_109, 14_021, 21_977, 137_816)),
    ],
)
def test_adult_has_the_known_classes(adult, columns, complete, expected):
    report = anonymity_report(adult.dropna() if complete else adult, columns)
    found = (
        report.n_rows,
        len(report.classes),
        report.unique_rows,
        report.rows_below(5),
        report.discernibility,
    )
    assert found == expected
    assert report.k == 1


@pytest.mark.parametrize(
    ("k", "limit", "feasible", "minimal"),
    [
        (5, 0.0, 22, {(1, 1, 2, 2), (2, 0, 2, 2), (2, 1, 2, 1), (3, 1, 1, 2), (4, 0, 0, 1), (4, 0, 2, 0)}),
        (5, 0.01, 81, 7),
        (10, 0.0, 20, 5),
        (2, 0.0, 35, 6),
    ],
)
def test_lattice_of_adult_has_the_known_minimal_nodes(adult, adult_hierarchies, k, limit, feasible, minimal):
    nodes = search_lattice(adult, QUASI, adult_hierarchies, k, suppression_limit=limit).nodes
    assert len(nodes) == 90
    assert nodes["feasible"].sum() == feasible
    found = set(nodes.index[nodes["minimal"]])
    assert found == minimal if isinstance(minimal, set) else len(found) == minimal


@pytest.mark.parametrize(
    ("node", "suppressed"),
    [
        ((0, 0, 0, 0), (563, 1928, 3511, 6873)),
        ((1, 0, 0, 0), (116, 507, 988, 2477)),
        ((2, 0, 1, 1), (4, 19, 38, 192)),
        ((3, 1, 1, 1), (0, 2, 7, 18)),
        ((4, 0, 1, 1), (0, 0, 0, 0)),
    ],
)
def test_lattice_of_adult_suppresses_the_known_rows(adult, adult_hierarchies, node, suppressed):
    for k, expected in zip((2, 5, 10, 25), suppressed, strict=True):
        nodes = search_lattice(adult, QUASI, adult_hierarchies, k, suppression_limit=1).nodes
        assert nodes.loc[node, "suppressed"] == expected


@pytest.mark.case("ANI-12")
def test_a_node_says_what_the_report_on_its_release_says(adult, adult_hierarchies):
    found = search_lattice(
        adult, QUASI, adult_hierarchies, 5, suppression_limit=0.01, sensitive="income", l=2
    )
    node = found.nodes.loc[tuple(found.best.values())]
    report = found.release.report(["income"], original=adult)
    assert report.n_suppressed == node["suppressed"] > 0
    assert len(report.classes) == node["classes"]
    assert (report.k, report.discernibility) == (node["k"], node["discernibility"])
    assert report.sensitive["income"].t == pytest.approx(node["t"])
    assert report.sensitive["income"].distinct_l == node["distinct_l"] == 2
    assert report.ncp == pytest.approx(node["ncp"])
    assert report.ncp == pytest.approx(found.release.ncp)


# --------------------------------------------------------------------------- the report


@pytest.mark.case("ANO-1")
@pytest.mark.parametrize(
    "column",
    [
        pd.Series([np.nan, 30, 30]),
        pd.Series([None, "x", "x"]),
        pd.Series(pd.array([None, 30, 30], dtype="Int64")),
        pd.Series(pd.Categorical([None, "x", "x"])),
        pd.Series(pd.to_datetime([None, "2020-01-01", "2020-01-01"])),
    ],
)
def test_a_missing_value_is_a_class_of_its_own(column):
    assert anonymity_report(pd.DataFrame({"q": column}), ["q"]).k == 1
    assert anonymity_report(pd.DataFrame({"q": column, "r": 0}), ["q", "r"]).k == 1


@pytest.mark.case("ANO-1")
def test_a_column_without_any_value_is_one_class():
    assert anonymity_report(pd.DataFrame({"q": [None] * 3}), ["q"]).k == 3


@pytest.mark.case("ANI-1")
def test_the_reading_of_missing_values_is_explicit():
    table = pd.DataFrame(
        {
            "sex": ["A"] * 5,
            "status": ["Single", "Married", "Married", "Single", None],
            "age": ["30-49"] * 5,
        }
    )
    columns = ["sex", "status", "age"]
    assert anonymity_report(table, columns).k == 1
    assert match_counts(table, columns).tolist() == [2, 2, 2, 2, 1]
    assert match_counts(table, columns, missing="wildcard").tolist() == [3, 3, 3, 3, 5]
    with pytest.raises(ValueError, match="'status' must have no missing value"):
        anonymity_report(table, columns, missing="refuse")


@few
@given(
    st.lists(
        st.tuples(*[st.sampled_from([None, 0, 1])] * 3),
        min_size=1,
        max_size=12,
    )
)
def test_wildcards_match_as_a_count_by_hand_says(rows):
    table = pd.DataFrame(rows, columns=list("abc"), dtype=object)
    expected = [
        sum(all(x is None or y is None or x == y for x, y in zip(row, other, strict=True)) for other in rows)
        for row in rows
    ]
    assert match_counts(table, list("abc"), missing="wildcard").tolist() == expected


@pytest.mark.case("ANI-2")
def test_diversity_counts_rows_with_missing_quasi_identifiers():
    table = pd.DataFrame({"q": [None] * 3, "secret": [1, 1, 0]})
    report = anonymity_report(table, ["q"], ["secret"])
    assert (report.k, report.sensitive["secret"].distinct_l) == (3, 2)


@pytest.mark.case("ANO-4")
@pytest.mark.parametrize("count", range(1, 31))
def test_equally_frequent_values_have_an_entropy_of_their_number(count):
    assert secret_of(list(range(count)) * 3).entropy_l == count


@pytest.mark.case("ANO-7")
@pytest.mark.parametrize(("values", "share"), [("xxyy", 0.5), ("xyz", 2 / 3), ("xxxx", 0.0)])
def test_classification_metric_with_ties(values, share):
    assert secret_of(list(values)).misclassified_share == pytest.approx(share)


@pytest.mark.case("ANO-8")
def test_average_risk_is_over_rows():
    report = anonymity_report(sized(1, 9), ["class"])
    assert (report.average_risk, report.marketer_risk, report.prosecutor_risk) == (0.2, 0.2, 1.0)


@pytest.mark.case("ANO-8")
def test_deleted_rows_are_charged():
    assert anonymity_report(sized(9), ["class"], deleted_rows=1).discernibility == 91


@pytest.mark.case("ANO-9")
def test_disclosure_is_infinite_where_a_value_is_missing_from_a_class():
    assert secret_of(*MACHANAVAJJHALA).delta_disclosure == math.inf
    assert secret_of(list("aab"), list("abb")).delta_disclosure == pytest.approx(math.log(1.5))
    assert secret_of(list("aab"), list("abb")).beta == pytest.approx(1 / 3)


@pytest.mark.case("ANO-10")
def test_what_cannot_be_reported_is_refused_with_a_reason():
    table = classes_of(list("ab"))
    assert anonymity_report(table, ("class",)).k == 2
    with pytest.raises(TypeError, match=r"write \['class'\]"):
        anonymity_report(table, "class")
    with pytest.raises(ValueError, match="at least one row"):
        anonymity_report(table.iloc[:0], ["class"])
    with pytest.raises(ValueError, match="repeat a quasi-identifier"):
        anonymity_report(table, ["class"], ["class"])
    with pytest.raises(TypeError, match=r"sensitive must be a list"):
        anonymity_report(table, ["class"], "secret")
    with pytest.raises(ValueError, match="has no order"):
        anonymity_report(table, ["class"], ["secret"], distances={"secret": "ordered"})
    with pytest.raises(ValueError, match="distances must be one of"):
        anonymity_report(table, ["class"], ["secret"], distances={"class": "equal"})


@pytest.mark.case("ANI-5")
def test_violations_are_counted_in_rows():
    assert anonymity_report(sized(1, 2, 2, 7), ["class"]).rows_below(3) == 5


@pytest.mark.case("ANI-6")
def test_suppressed_rows_form_no_class():
    table = pd.DataFrame(
        [("a", "x")] * 2 + [("b", "x")] * 2 + [("b", "y")] * 2 + [("*", "*")], columns=["p", "q"]
    )
    report = anonymity_report(table, ["p", "q"])
    assert (len(report.classes), report.n_suppressed, report.k, report.unique_rows) == (3, 1, 2, 0)
    assert report.average_risk == 0.5
    assert report.average_class_ratio * report.k == 2.0
    assert report.discernibility == 3 * 4 + 7
    assert anonymity_report(table, ["p", "q"], suppressed=None).k == 1


@pytest.mark.case("ANI-7")
def test_nothing_is_suppressed_in_a_fresh_table():
    assert anonymity_report(classes_of(*MACHANAVAJJHALA), ["class"]).n_suppressed == 0


def test_a_table_of_suppressed_rows_only_is_refused():
    with pytest.raises(ValueError, match="all 2 are suppressed"):
        anonymity_report(pd.DataFrame({"q": ["*", "*"]}), ["q"])


@pytest.mark.case("ANI-8")
def test_suppressed_rows_enter_no_distribution_unless_asked_for():
    table = pd.DataFrame({"q": ["a", "a", "b", "b", "*"], "secret": [0, 1, 0, 1, 1]})
    assert anonymity_report(table, ["q"], ["secret"]).sensitive["secret"].t == 0
    assert anonymity_report(table, ["q"], ["secret"], suppressed=None).sensitive["secret"].t > 0


@pytest.mark.case("ANI-11")
def test_one_call_says_everything():
    table = classes_of(*MACHANAVAJJHALA)
    shown = anonymity_report(table, ["class"], ["secret"], original=table).table()
    assert shown["k (rows)"] == "4"
    assert shown["discernibility DM"] == "48"
    assert shown["certainty penalty NCP"] == "0"
    assert {"secret: distinct l", "secret: t (equal)", "prosecutor risk", "marketer risk"} <= set(shown.index)


@pytest.mark.case("ANI-18")
def test_class_sizes_are_a_histogram_by_classes_and_by_rows():
    sizes = anonymity_report(sized(1, 2, 2, 5), ["class"]).class_sizes
    assert sizes["classes"].to_dict() == {1: 1, 2: 2, 5: 1}
    assert sizes["rows"].to_dict() == {1: 1, 2: 4, 5: 5}


@pytest.mark.parametrize("names", [["rows"], ["rows", "rows in class"]])
def test_a_quasi_identifier_may_be_called_as_the_column_of_sizes(names):
    found = anonymity_report(pd.DataFrame({name: [70, 70, 70, 8, 8, 9] for name in names}), names)
    assert found.class_sizes.to_dict("list") == {"classes": [1, 1, 1], "rows": [1, 2, 3]}
    assert found.rows_below(3) == 3
    assert found.classes["rows"].tolist() == [70, 8, 9]


def test_rows_are_not_persons():
    table = pd.DataFrame({"q": list("aaabb"), "who": [1, 1, 1, 2, 3]})
    report = anonymity_report(table, ["q"], persons="who")
    assert (report.k, report.k_persons) == (2, 1)


def test_journalist_and_marketer_in_a_population():
    sample, population = sized(1, 3), sized(4, 3, 9)
    report = anonymity_report(sample, ["class"], population=population)
    assert report.journalist_risk == pytest.approx(1 / 3)
    assert report.marketer_risk == pytest.approx((1 / 4 + 3 / 3) / 4)
    with pytest.raises(ValueError, match="population must contain the table"):
        anonymity_report(sample, ["class"], population=sized(4, 2))


@few
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=25),
    st.randoms(use_true_random=False),
)
def test_the_report_does_not_depend_on_how_the_table_is_stored(rows, random):
    table = pd.DataFrame(rows, columns=["q", "secret"])
    shuffled = list(range(len(rows)))
    random.shuffle(shuffled)
    other = table.iloc[shuffled].set_axis([0] * len(rows))
    other["q"] = pd.Categorical(other["q"], categories=[9, 2, 1, 0])
    other["secret"] = other["secret"].astype("float64")
    ordered = {"secret": "ordered"}
    a: AnonymityReport = anonymity_report(table, ["q"], ["secret"], distances=ordered)
    b: AnonymityReport = anonymity_report(other, ["q"], ["secret"], distances=ordered)
    assert a.table().to_dict() == b.table().to_dict()
    assert_array_equal(a.class_sizes, b.class_sizes)


@few
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=2, max_size=20), st.data())
def test_distances_equal_the_cheapest_transport(rows, data):
    table = pd.DataFrame(rows, columns=["q", "secret"])
    hierarchy = Hierarchy(tuple(range(4)), (("a", "a", "b", "b"), ("*",) * 4))
    kind = data.draw(st.sampled_from(["equal", "ordered", "hierarchical"]))
    found = anonymity_report(
        table, ["q"], ["secret"], distances={"secret": hierarchy if kind == "hierarchical" else kind}
    )
    values = np.unique(table["secret"])
    apart = np.abs(np.subtract.outer(np.arange(len(values)), np.arange(len(values)))) / max(
        len(values) - 1, 1
    )
    if kind == "equal":
        apart = (apart > 0).astype(float)
    elif kind == "hierarchical":
        apart = np.where(
            np.equal.outer(values, values), 0, np.where(np.equal.outer(values // 2, values // 2), 0.5, 1.0)
        )
    whole = np.array([(table["secret"] == v).mean() for v in values])
    size = len(values)
    marginals = np.vstack([np.kron(np.eye(size), np.ones(size)), np.kron(np.ones(size), np.eye(size))])
    expected = 0.0
    for _, group in table.groupby("q"):
        inside = np.array([(group["secret"] == v).mean() for v in values])
        plan = linprog(apart.ravel(), A_eq=marginals, b_eq=np.concatenate([inside, whole]))
        expected = max(expected, plan.fun)
    assert found.sensitive["secret"].t == pytest.approx(expected, abs=1e-9)


def test_a_large_cross_table_is_counted_in_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"q": rng.integers(0, 40, 300), "secret": rng.integers(0, 30, 300)})
    whole = anonymity_report(table, ["q"], ["secret"]).table()
    monkeypatch.setattr("thousand_fingers.anonymity._BLOCK", 100)
    assert anonymity_report(table, ["q"], ["secret"]).table().to_dict() == whole.to_dict()


# --------------------------------------------------------------------------- combinations, names, codes


@pytest.mark.case("ANI-3")
def test_every_promised_combination_is_counted():
    table = pd.DataFrame({"a": [1, 1, 2, 2], "b": [1, 2, 1, 2], "c": [1, 1, 1, 1]})
    pairs = combinations_k(table, list("abc"), 2)
    assert pairs.to_dict() == {("a", "b"): 1, ("a", "c"): 2, ("b", "c"): 2}
    assert pairs.iloc[0] == 1
    with pytest.raises(ValueError, match="size must be"):
        combinations_k(table, list("abc"), 4)


@few
@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=20))
def test_a_part_of_the_attributes_never_has_a_smaller_k(rows):
    table = pd.DataFrame(rows, columns=list("abc"))
    assert combinations_k(table, list("abc"), 2).min() >= combinations_k(table, list("abc"), 3).iloc[0]


@pytest.mark.case("ANI-16")
def test_a_second_pass_changes_no_pseudonym():
    key = b"0123456789abcdef"
    once = pseudonymise(["Ada", "Grace", None, "Ada", 7], key)
    assert pseudonymise(once, key) == once
    assert once[0] == once[3]
    assert once[2] is None
    assert len({*once}) == 4
    assert pseudonymise(["Ada"], b"another key, 16+")[0] != once[0]
    forged = "p" + "0" * 24  # looks like one, is none
    assert pseudonymise([forged], key) != [forged]


def test_a_number_keeps_its_pseudonym_when_pandas_makes_a_float_of_it():
    whole, with_gap = pd.Series([17, 5]), pd.Series([17, None, 5])
    assert with_gap.dtype == np.float64
    names = pseudonymise(whole, bytes(16))
    assert pseudonymise(with_gap, bytes(16)) == [names[0], None, names[1]]
    assert pseudonymise([1.5], bytes(16)) != pseudonymise([1], bytes(16))


def test_one_text_is_not_a_list_of_its_letters():
    with pytest.raises(TypeError, match=r"got the text 'ada': write \['ada'\]"):
        pseudonymise("ada", bytes(16))
    with pytest.raises(TypeError, match=r"single identifiers, got \['ada'\]"):
        pseudonymise([["ada"]], bytes(16))


def test_a_weak_key_is_refused():
    with pytest.raises(ValueError, match="at least 16 bytes, got 3"):
        pseudonymise(["Ada"], b"key")
    with pytest.raises(TypeError, match="must be bytes"):
        pseudonymise(["Ada"], "0123456789abcdef")


@pytest.mark.case("ANI-15")
def test_postal_codes_are_shortened_by_the_number_of_residents():
    residents = {"981": 20_001, "036": 20_000}
    assert safe_harbour_zip(["98101", "03601", "99999", None], residents) == ["981", "000", "000", None]
    for bad in ("981", "98l01", 98101, "98101-12"):
        with pytest.raises(ValueError, match="five or nine digits"):
            safe_harbour_zip([bad], residents)


# --------------------------------------------------------------------------- hierarchies and lattice


@pytest.mark.case("ANI-10")
def test_a_hierarchy_that_is_not_nested_is_refused():
    with pytest.raises(ValueError, match=r"'0-19' of level 1 is both 'young' and 'adult'"):
        Hierarchy.from_rules(
            range(40),
            lambda a: f"{a // 20 * 20}-{a // 20 * 20 + 19}",
            lambda a: "young" if a < 18 else "adult",
        )
    with pytest.raises(ValueError, match="level 1 must label 2 leaves"):
        Hierarchy((1, 2), (("a",),))
    with pytest.raises(ValueError, match="distinct"):
        Hierarchy((1, 1), ())


@pytest.mark.case("ANI-10")
def test_levels_are_what_was_configured():
    table = pd.DataFrame({"age": [21, 24, 35, 38]})
    hierarchy = Hierarchy.from_rules(table["age"], lambda a: f"{a // 10}x", "*")
    assert [hierarchy.groups(level)[1] for level in range(3)] == [
        ["21", "24", "35", "38"],
        ["2x", "3x"],
        ["*"],
    ]
    release = search_lattice(table, ["age"], {"age": hierarchy}, k=2).release
    assert release.table["age"].tolist() == ["2x", "2x", "3x", "3x"]


def test_a_value_that_the_hierarchy_lacks_is_named():
    hierarchy = {"age": Hierarchy.from_rules(["20", "30"], "*")}
    with pytest.raises(ValueError, match="hierarchy of 'age' does not know the value 40"):
        search_lattice(pd.DataFrame({"age": [40, 40]}), ["age"], hierarchy, k=2)
    with pytest.raises(ValueError, match="it knows the str '20': convert"):
        search_lattice(pd.DataFrame({"age": [20, 20]}), ["age"], hierarchy, k=2)
    with pytest.raises(ValueError, match="got none for 'sex'"):
        search_lattice(pd.DataFrame({"sex": ["f", "f"]}), ["sex"], hierarchy, k=2)


def test_missing_values_climb_with_the_hierarchy():
    table = pd.DataFrame({"age": [20, 20, None, None, 30]})
    hierarchy = {"age": Hierarchy.from_rules([20, 30], lambda a: "twenties" if a < 30 else "thirties", "*")}
    assert search_lattice(table, ["age"], hierarchy, k=2).best == {"age": 2}
    found = search_lattice(table, ["age"], hierarchy, k=2, suppression_limit=0.2)
    assert found.release.table["age"].tolist() == ["20", "20", "missing", "missing", "*"]


@pytest.mark.parametrize("label", [None, 1, float("nan")])
def test_a_label_that_is_no_text_is_refused_not_taken_for_another_group(label):
    with pytest.raises(TypeError, match="level 1 must label 'a' with a text"):
        Hierarchy(("a", "b"), ((label, "x"),))


def test_a_rule_without_a_label_for_a_value_is_named():
    with pytest.raises(ValueError, match="rule of level 2 must label every value, got None for 'Lyon'"):
        Hierarchy.from_rules(["Rome", "Lyon"], lambda city: city[0], {"Rome": "Italy"}.get)
    with pytest.raises(ValueError, match="leaves must not be missing"):
        Hierarchy((None, "Lyon"), ())


def test_a_share_of_the_rows_that_is_no_binary_fraction_is_a_limit_all_the_same():
    """0.29 times 100 is 28.999… in floating point, and 29 of 100 rows are 0.29 of them."""
    table = pd.DataFrame({"age": [*[1] * 71, *range(100, 129)]})
    hierarchy = {"age": Hierarchy.from_rules(table["age"], "*")}
    kept = search_lattice(table, ["age"], hierarchy, 2, suppression_limit=0.29)
    assert kept.best == {"age": 0}
    assert kept.release.suppressed.sum() == 29
    assert search_lattice(table, ["age"], hierarchy, 2, suppression_limit=0.28).best == {"age": 1}


@pytest.mark.parametrize("hundredths", range(5, 50, 5))
def test_a_node_that_reaches_t_exactly_is_feasible(hundredths):
    """Two classes of 100, a secret with shares 1/2 ± t: the distance is t, whatever its last bit."""
    groups = [["a"] * (50 + sign * hundredths) + ["b"] * (50 - sign * hundredths) for sign in (1, -1)]
    hierarchy = {"class": Hierarchy.from_rules(["class 0", "class 1"], "*")}
    options = {"sensitive": "secret", "t": hundredths / 100}
    found = search_lattice(classes_of(*groups), ["class"], hierarchy, 2, **options)
    assert found.best == {"class": 0}
    options["t"] -= 0.001
    assert search_lattice(classes_of(*groups), ["class"], hierarchy, 2, **options).best == {"class": 1}


def test_the_lattice_refuses_to_generalise_what_it_shall_keep_secret():
    hierarchy = {"age": Hierarchy.from_rules([1], "*")}
    with pytest.raises(ValueError, match="sensitive must not repeat a quasi-identifier, got 'age'"):
        search_lattice(pd.DataFrame({"age": [1, 1]}), ["age"], hierarchy, 2, sensitive="age", l=1)


@pytest.mark.case("ANO-12")
@pytest.mark.parametrize("k", [0, -1, 2.5, "2", True, 5])
def test_an_impossible_k_is_refused_at_once(k):
    table = pd.DataFrame({"age": [1, 2, 3, 4]})
    hierarchy = {"age": Hierarchy.from_rules(table["age"], "*")}
    with pytest.raises((ValueError, TypeError), match="k must be"):
        mondrian(table, ["age"], k)
    with pytest.raises((ValueError, TypeError), match="k must be"):
        search_lattice(table, ["age"], hierarchy, k)


def test_rows_that_are_all_different_are_generalised_or_suppressed():
    table = pd.DataFrame({"q": range(6)})
    top = search_lattice(table, ["q"], {"q": Hierarchy.from_rules(range(6), "*")}, k=2)
    assert top.release.table["q"].tolist() == ["*"] * 6
    assert not top.release.suppressed.any()
    assert top.release.report().k == 6
    flat = Hierarchy.from_rules(range(6))
    with pytest.raises(ValueError, match="the least suppression is 6 rows"):
        search_lattice(table, ["q"], {"q": flat}, k=2)
    gone = search_lattice(table, ["q"], {"q": flat}, k=2, suppression_limit=1.0)
    assert gone.release.suppressed.all()
    assert gone.release.ncp == 1.0


def test_k_of_one_changes_nothing():
    table = lefevre()
    hierarchies = {name: Hierarchy.from_rules(table[name], "*") for name in table}
    texts = table.astype(str).to_numpy().tolist()
    found = search_lattice(table, list(table), hierarchies, k=1)
    assert set(found.best.values()) == {0}
    for release in (
        found.release,
        mondrian(table, list(table), 1),
        mondrian(table, list(table), 1, strict=False),
    ):
        assert release.table.to_numpy().tolist() == texts
        assert release.ncp == 0


TABLES = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.integers(0, 1)), min_size=2, max_size=25
)


@few
@given(TABLES, st.integers(1, 4), st.floats(0, 1))
def test_the_lattice_keeps_its_promises(rows, k, limit):
    table = pd.DataFrame(rows, columns=["age", "city", "secret"])
    hierarchies = {
        "age": Hierarchy.from_rules(range(6), lambda a: a // 2, lambda a: a // 4, "*"),
        "city": Hierarchy.from_rules("abc", lambda c: "ab" if c in "ab" else "c", "*"),
    }
    k = min(k, len(rows))
    found = search_lattice(
        table, ["age", "city"], hierarchies, k, suppression_limit=limit, sensitive="secret"
    )
    release = found.release
    assert len(release.table) == len(rows)
    assert release.suppressed.sum() <= limit * len(rows) + 1e-6
    if not release.suppressed.all():
        assert release.report().k >= k
    nodes = found.nodes
    for levels in nodes.index:  # climbing never needs more suppression, and feasible stays feasible
        for i in range(2):
            above = tuple(level + (j == i) for j, level in enumerate(levels))
            if above in nodes.index:
                assert nodes.loc[above, "suppressed"] <= nodes.loc[levels, "suppressed"]
                assert nodes.loc[above, "feasible"] >= nodes.loc[levels, "feasible"]
    feasible = nodes[nodes["feasible"]]
    assert nodes.loc[tuple(found.best.values()), "ncp"] == feasible["ncp"].min()
    for levels in nodes.index:
        below = [
            n for n in feasible.index if n != levels and all(a <= b for a, b in zip(n, levels, strict=True))
        ]
        assert nodes.loc[levels, "minimal"] == (nodes.loc[levels, "feasible"] and not below)


def test_closeness_is_a_condition_of_the_lattice(adult, adult_hierarchies):
    loose = search_lattice(adult, QUASI, adult_hierarchies, 5, sensitive="income")
    tight = search_lattice(adult, QUASI, adult_hierarchies, 5, sensitive="income", t=0.05)
    assert tight.release.report(["income"]).sensitive["income"].t <= 0.05
    assert loose.release.report(["income"]).sensitive["income"].t > 0.05
    assert tight.release.ncp > loose.release.ncp
    with pytest.raises(ValueError, match="need a sensitive attribute"):
        search_lattice(adult, QUASI, adult_hierarchies, 5, t=0.05)


# --------------------------------------------------------------------------- Mondrian


@pytest.mark.case("ANI-14")
@few
@given(TABLES, st.integers(1, 6))
def test_mondrian_keeps_the_bounds_of_its_theorems(rows, k):
    table = pd.DataFrame(rows, columns=["age", "city", "bit"])
    columns, k = ["age", "city", "bit"], min(k, len(rows))
    strict = mondrian(table, columns, k)
    identical = anonymity_report(table, columns).classes["rows"].max()
    assert strict.report().k >= k
    assert strict.sizes.sum() == len(rows)
    assert strict.sizes.min() >= k
    assert strict.sizes.max() <= 2 * 3 * (k - 1) + identical
    relaxed = mondrian(table, columns, k, strict=False)
    assert relaxed.report().k >= k
    assert k <= relaxed.sizes.min()
    assert relaxed.sizes.max() <= max(2 * k - 1, k)


@few
@given(TABLES, st.integers(1, 4), st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_changes_no_published_row(rows, k, strict, random):
    table = pd.DataFrame(rows, columns=["age", "city", "bit"])
    shuffled = list(range(len(rows)))
    random.shuffle(shuffled)
    k = min(k, len(rows))
    first = mondrian(table, ["age", "city", "bit"], k, strict=strict).table
    second = mondrian(table.iloc[shuffled], ["age", "city", "bit"], k, strict=strict).table
    assert sorted(first.to_numpy().tolist()) == sorted(second.to_numpy().tolist())
    if strict:
        assert first.iloc[shuffled].to_numpy().tolist() == second.to_numpy().tolist()


@pytest.mark.case("ANI-13")
@pytest.mark.parametrize("strict", [True, False])
def test_published_intervals_are_the_range_of_their_class(strict):
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"x": rng.integers(0, 50, 200), "y": rng.normal(size=200)})
    release = mondrian(table, ["x", "y"], 4, strict=strict)
    for label in range(release.sizes.size):
        own, published = table[release.labels == label], release.table[release.labels == label]
        low, high = own["x"].min(), own["x"].max()
        assert set(published["x"]) == {str(low) if low == high else f"{low}–{high}"}
        assert set(published["y"]) == {f"{own['y'].min()}–{own['y'].max()}"}


@pytest.mark.case("ANO-11")
@pytest.mark.parametrize("strict", [True, False])
def test_a_row_with_a_missing_number_does_not_vanish(strict):
    table = pd.DataFrame({"x": [1.0, 2, np.nan, 4, 5, 6], "y": list("ababab")})
    release = mondrian(table, ["x", "y"], 2, strict=strict)
    assert len(release.table) == 6
    assert not release.table[["x", "y"]].isna().any().any()
    assert "missing" in release.table["x"].iloc[2]
    assert release.report(original=table).k >= 2


@pytest.mark.case("ANO-12")
@pytest.mark.case("ANI-4")
@pytest.mark.parametrize("strict", [True, False])
def test_mondrian_ends_on_awkward_tables(strict):
    table = pd.DataFrame({"x": [1, 1, 1, 1, 2, 2], "y": 0}, index=[7] * 6)
    start = time.process_time()
    assert mondrian(table, ["x", "y"], 2, strict=strict).report().k >= 2
    assert mondrian(table.assign(x=3), ["x", "y"], 2, strict=strict).ncp == 0
    assert mondrian(table, ["x", "y"], 6, strict=strict).sizes.tolist() == [6]
    assert time.process_time() - start < 5


@pytest.mark.case("ANO-14")
def test_numbers_written_as_text_are_refused_not_sorted_as_words():
    table = pd.DataFrame({"age": ["9", "10", "100"]})
    with pytest.raises(TypeError, match="'age' holds numbers written as text"):
        mondrian(table, ["age"], 2)
    ordered = table.assign(age=pd.Categorical(table["age"], ["9", "10", "100"], ordered=True))
    assert mondrian(ordered, ["age"], 2).table["age"].tolist() == ["9–100"] * 3
    assert mondrian(table.assign(age=pd.to_numeric(table["age"])), ["age"], 2).sizes.tolist() == [3]


def test_the_cut_before_the_median_is_used_when_the_one_after_it_is_not_possible():
    release = mondrian(pd.DataFrame({"x": [1, 2, 3, 3, 3, 3]}), ["x"], 2)
    assert release.table["x"].tolist() == ["1–2", "1–2", "3", "3", "3", "3"]


def test_dates_truth_values_and_mixed_columns_can_be_cut():
    days = pd.to_datetime(["2020-01-01", "2020-01-02", "2020-06-01", "2020-06-02"])
    table = pd.DataFrame({"day": days, "flag": [True, True, False, False], "mixed": [1, "a", 2, "b"]})
    assert (
        mondrian(table, ["day"], 2).table["day"].tolist()
        == ["2020-01-01–2020-01-02"] * 2 + ["2020-06-01–2020-06-02"] * 2
    )
    assert mondrian(table, ["flag"], 2).ncp == 0
    assert mondrian(table, ["mixed"], 2).sizes.tolist() == [2, 2]
    with pytest.raises(ValueError, match="'x' must be finite"):
        mondrian(pd.DataFrame({"x": [1.0, np.inf]}), ["x"], 1)


@pytest.mark.parametrize(
    "values",
    [
        [date(2000, 1, day) for day in range(1, 9)],
        [datetime(2000, 1, day) for day in range(1, 9)],
        pd.date_range("2000-01-01", periods=8),
        pd.date_range("2000-01-01", periods=8, tz="Europe/Rome"),
        pd.period_range("2000-01-01", periods=8, freq="D"),
    ],
    ids=["date", "datetime", "Timestamp", "with time zone", "Period"],
)
def test_a_day_is_a_place_on_the_calendar_whatever_type_it_has(values):
    table = pd.DataFrame({"born": pd.Series(list(values), dtype=object)})
    release = mondrian(table, ["born"], 4)
    assert release.table["born"].unique().tolist() == ["2000-01-01–2000-01-04", "2000-01-05–2000-01-08"]
    assert release.ncp == pytest.approx(3 / 7)
    halves = table.assign(half=[0] * 4 + [1] * 4)
    found = anonymity_report(halves, ["half"], ["born"], distances={"born": "ordered"}).sensitive["born"]
    assert found.t == pytest.approx(2 / 7)


def test_long_numbers_are_cut_although_a_float_cannot_tell_them_apart():
    table = pd.DataFrame({"account": [2**60 + i for i in range(8)]})
    assert mondrian(table, ["account"], 2).sizes.tolist() == [2, 2, 2, 2]
    longer = pd.DataFrame({"account": [2**80 + i for i in range(8)]})
    assert mondrian(longer, ["account"], 2).sizes.tolist() == [2, 2, 2, 2]


def test_days_and_moments_in_one_column_are_words_not_places():
    mixed = pd.Series(
        [date(2000, 1, 2), datetime(2000, 1, 1), date(2000, 1, 3), datetime(1999, 1, 1)], dtype=object
    )
    release = mondrian(pd.DataFrame({"born": mixed}), ["born"], 2)
    assert release.sizes.tolist() == [2, 2]
    assert all(text.startswith("{") for text in release.table["born"])


def test_the_packed_and_the_stable_sort_agree():
    from thousand_fingers.anonymity import _sorted_inside

    rng = np.random.default_rng(0)
    box = np.sort(rng.integers(0, 5, 200))
    values = rng.integers(0, 4, 200).astype(np.int32)
    expected = np.lexsort((values, box))
    assert_array_equal(_sorted_inside(box, values), expected)
    assert_array_equal(_sorted_inside(box + 2**55, values), expected)  # too wide to be packed


def test_a_broken_release_is_not_returned(monkeypatch):
    from thousand_fingers import anonymity

    monkeypatch.setattr(anonymity, "_boxes", lambda attributes, ranks, k, strict: np.arange(ranks.shape[1]))
    with pytest.raises(AssertionError, match="fewer than 1 others"):
        mondrian(lefevre(), ["Age"], 2)


# --------------------------------------------------------------------------- the penalty


def test_penalty_of_numbers_categories_and_missing_values():
    before = pd.DataFrame({"x": [0.0, 1, 4, np.nan], "c": list("abcd")})
    after = pd.DataFrame({"x": ["low", "low", "4", "gone"], "c": ["ab", "ab", "c", "d"]})
    assert certainty_penalty(before, after, ["x"]) == pytest.approx((1 / 4 + 1 / 4) / 4)
    assert certainty_penalty(before, after, ["c"]) == pytest.approx((2 / 4 + 2 / 4) / 4)
    mixed = after.assign(x=["low", "low", "rest", "rest"])
    assert certainty_penalty(before, mixed, ["x"]) == pytest.approx((1 / 4 + 1 / 4 + 1 + 1) / 4)
    hidden = [False, False, False, True]
    assert certainty_penalty(before, after, ["x", "c"], suppressed=hidden) == pytest.approx(
        (2 * 1 / 4 + 2 * 2 / 4 + 2) / 8
    )
    with pytest.raises(ValueError, match="must have the 3 rows"):
        certainty_penalty(before, after.iloc[:3], ["x"])
    with pytest.raises(ValueError, match="4 truth values"):
        certainty_penalty(before, after, ["x"], suppressed=[0, 0, 0, 1])


# --------------------------------------------------------------------------- attacks


def test_bob_in_his_thirties_has_cancer():
    attack = homogeneity_attack(classes_of(*MACHANAVAJJHALA), ["class"], "secret")
    assert (attack.n_rows, attack.certain, attack.right, attack.right_blind) == (12, 4, 8, 5)


@few
@given(TABLES)
def test_guessing_inside_classes_never_loses_against_guessing_blindly(rows):
    table = pd.DataFrame(rows, columns=["age", "city", "secret"])
    attack = homogeneity_attack(table, ["age", "city"], "secret")
    assert attack.certain <= attack.right <= attack.n_rows
    assert attack.right >= attack.right_blind == table["secret"].value_counts().max()


def test_two_two_anonymous_releases_give_everybody_away():
    table = pd.DataFrame(
        {"age": [21, 22, 31, 32], "zip": [10, 20, 10, 20], "illness": ["flu", "ulcer", "flu", "cancer"]}
    )
    by_age, by_zip = mondrian(table, ["age"], 2), mondrian(table, ["zip"], 2)
    assert by_age.report().k == by_zip.report().k == 2
    attack = intersection_attack([by_age.labels, by_zip.labels], table["illness"])
    assert attack.sizes.tolist() == [1, 1, 1, 1]
    assert attack.candidates.tolist() == [1, 1, 1, 1]
    assert (attack.n_unique, attack.n_disclosed) == (4, 4)


@few
@given(
    st.lists(st.tuples(st.integers(-1, 2), st.integers(-1, 2), st.integers(0, 3)), min_size=1, max_size=20)
)
def test_intersections_equal_a_count_by_hand(rows):
    first, second, secret = (list(column) for column in zip(*rows, strict=True))
    attack = intersection_attack([first, second], secret)
    for i, (a, b, _) in enumerate(rows):
        assert attack.sizes[i] == sum(row[:2] == (a, b) for row in rows)
        possible = {s for x, _, s in rows if x == a} & {s for _, y, s in rows if y == b}
        assert attack.candidates[i] == len(possible)
    same = intersection_attack([first, first], secret)
    alone = intersection_attack([first], secret)
    assert_array_equal(same.candidates, alone.candidates)


def test_releases_of_other_lengths_are_refused():
    with pytest.raises(ValueError, match="releases must have shape"):
        intersection_attack([[0, 0]], ["a", "b", "c"])
    with pytest.raises(ValueError, match="at least one release"):
        intersection_attack([], ["a"])


def test_a_hyphen_in_a_postal_code_stands_after_the_fifth_digit():
    residents = {"981": 700_000}
    assert safe_harbour_zip(["98101-1234", "981011234"], residents) == ["981", "981"]
    for bad in ("9-8101", "981011-234", "98101-", "-98101", "98101\n", "98101-1234-"):
        with pytest.raises(ValueError, match="five or nine digits"):
            safe_harbour_zip([bad], residents)
