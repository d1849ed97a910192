"""The synthetic tables cost what they say, see only what they measured, and resemble the data when they may."""

from __future__ import annotations

import itertools
import math
import time
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import jensenshannon

from thousand_fingers import synthetic_data
from thousand_fingers.auditing import audit_epsilon
from thousand_fingers.mechanisms import BudgetExceeded, PrivacyBudget
from thousand_fingers.synthetic_data import (
    NoisyMarginals,
    consistent_probabilities,
    marginal,
    maximum_spanning_tree,
    mutual_information,
    noisy_marginals,
    sample_tree,
    synthesize,
    total_variation,
)

FALSE_ALARM = 1e-6  # of each statistical check below
DOMAIN = {"a": ("x", "y", "z"), "b": (0, 1), "c": ("low", "middle", "high", "top"), "d": (True, False)}
PAIRS = list(itertools.combinations(DOMAIN, 2))
ROWS = st.lists(st.tuples(*(st.sampled_from(values) for values in DOMAIN.values())), max_size=30)


def _frame(rows) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=list(DOMAIN))


def _chain(n: int, seed: int) -> pd.DataFrame:
    """Rows of a Markov chain a - c - b - d: a tree, so that a tree model can be right about it."""
    rng = np.random.default_rng(seed)
    a = rng.choice(3, size=n, p=[0.5, 0.3, 0.2])
    c = np.where(rng.random(n) < 0.8, a, rng.integers(0, 4, size=n))
    b = (rng.random(n) < np.array([0.1, 0.8, 0.4, 0.9])[c]).astype(int)
    d = rng.random(n) < np.where(b == 1, 0.9, 0.2)
    return pd.DataFrame(
        {"a": np.array(DOMAIN["a"])[a], "b": b, "c": np.array(DOMAIN["c"])[c], "d": d},
    )


# ---------------------------------------------------------------- counting and its sensitivity


@settings(deadline=None)
@given(rows=ROWS)
def test_marginals_equal_pandas_crosstab(rows):
    table = _frame(rows)
    for one, two in PAIRS:
        expected = np.zeros((len(DOMAIN[one]), len(DOMAIN[two])), dtype=int)
        for (i, left), (j, right) in itertools.product(enumerate(DOMAIN[one]), enumerate(DOMAIN[two])):
            expected[i, j] = sum(row[one] == left and row[two] == right for row in table.to_dict("records"))
        np.testing.assert_array_equal(marginal(table, DOMAIN, [one, two]), expected)
        np.testing.assert_array_equal(marginal(table, DOMAIN, [two, one]), expected.T)
        np.testing.assert_array_equal(marginal(table, DOMAIN, [one]), expected.sum(axis=1))


@settings(deadline=None)
@given(rows=ROWS, extra=st.tuples(*(st.sampled_from(values) for values in DOMAIN.values())))
def test_one_row_moves_each_marginal_by_exactly_one_count_of_one(rows, extra):
    """The claim behind scale = k / epsilon: k marginals have l1 sensitivity k under add/remove."""
    table, neighbour = _frame(rows), _frame([*rows, extra])
    for columns in [*([column] for column in DOMAIN), *PAIRS]:
        change = marginal(neighbour, DOMAIN, columns) - marginal(table, DOMAIN, columns)
        assert np.abs(change).sum() == change.max() == 1


@given(
    epsilon=st.floats(1e-4, 1e4),
    pairs=st.lists(st.sampled_from(PAIRS), unique=True),
)
@settings(deadline=None, max_examples=50)
def test_budget_is_spent_exactly_and_never_overspent(epsilon, pairs):
    """In rational numbers: every marginal costs 1/scale, and together they cost epsilon."""
    measured = noisy_marginals(_frame([]), DOMAIN, epsilon=epsilon, pairs=pairs, rng=np.random.default_rng(0))
    k = len(measured.one_way) + len(measured.two_way)
    assert k == 4 + len(pairs)
    assert k / measured.scale == Fraction(epsilon) == Fraction(measured.epsilon)


def test_noise_has_the_scale_that_was_accounted_for():
    """An empty table leaves nothing but noise: 41,006 counts against the moments of discrete Laplace.

    A known slip of a peer divides the noise by the number of dimensions (smartnoise-sdk#472).
    """
    domain = {"i": range(202), "j": range(203)}
    measured = noisy_marginals(
        pd.DataFrame({"i": [], "j": []}), domain, epsilon=1.5, rng=np.random.default_rng(0)
    )
    assert measured.scale == 2  # three marginals, epsilon 1.5
    noise = np.concatenate([*measured.one_way.values(), measured.two_way["i", "j"].ravel()])
    p_zero = math.tanh(1 / 4)
    assert stats.binomtest(int((noise == 0).sum()), noise.size, p_zero).pvalue > FALSE_ALARM
    alpha = math.exp(-1 / 2)
    variance = 2 * alpha / (1 - alpha) ** 2
    z = (np.abs(noise).mean() - 1 / math.sinh(1 / 2)) / math.sqrt(
        (variance - 1 / math.sinh(1 / 2) ** 2) / noise.size
    )
    assert abs(z) < stats.norm.isf(FALSE_ALARM / 2)


def _affected_counts(measured: NoisyMarginals) -> int:
    return int(measured.one_way["p"][0] + measured.one_way["q"][0] + measured.two_way["p", "q"][0, 0])


def test_budget_split_is_kept_and_a_forgotten_split_is_caught_by_audit():
    """Audit the measurements with the attacker who adds up the three counts that the person moves."""
    domain = {"p": (0, 1), "q": (0, 1)}
    person = pd.DataFrame({"p": [0], "q": [0]})
    nobody = person.iloc[:0]

    def audit(epsilon: float) -> float:
        rng = np.random.default_rng(4)
        with_person, without = (
            [_affected_counts(noisy_marginals(t, domain, epsilon=epsilon, rng=rng)) for _ in range(400)]
            for t in (person, nobody)
        )
        return audit_epsilon(with_person, without, confidence=1 - FALSE_ALARM).epsilon_lower_bound

    assert audit(1.0) <= 1.0
    assert audit(3 * 2.0) > 2.0  # every marginal measured with the whole budget of 2


# ---------------------------------------------------------------- the domain is declared


def test_domain_comes_from_the_caller_and_not_from_the_data():
    """Values that nobody has are counted, with noise, like the others; the order is the declared one."""
    table = _frame([("x", 0, "low", True)] * 5)
    measured = noisy_marginals(table, DOMAIN, epsilon=1.0, rng=np.random.default_rng(0))
    assert {column: counts.size for column, counts in measured.one_way.items()} == {
        column: len(values) for column, values in DOMAIN.items()
    }
    made = synthesize(table, DOMAIN, epsilon=0.01, rng=np.random.default_rng(0), n_rows=500).table
    for column, values in DOMAIN.items():
        assert tuple(made[column].cat.categories) == values
    assert made["a"].nunique() == 3


@pytest.mark.parametrize(
    "bad",
    [
        pd.DataFrame({"a": ["x", "w"], "b": [0, 1], "c": ["low", "low"], "d": [True, True]}),
        pd.DataFrame({"a": ["x", None], "b": [0, 1], "c": ["low", "low"], "d": [True, True]}),
        pd.DataFrame({"a": pd.Categorical(["x", None]), "b": [0, 1], "c": ["low", "low"], "d": [True, True]}),
        pd.DataFrame({"a": ["x", "y"], "b": [0, 2], "c": ["low", "low"], "d": [True, True]}),
        pd.DataFrame({"a": ["x", "y"], "b": [0, math.nan], "c": ["low", "low"], "d": [True, True]}),
        pd.DataFrame({"a": ["x", "y"], "b": ["0", "1"], "c": ["low", "low"], "d": [True, True]}),
    ],
)
def test_values_outside_the_domain_are_refused_before_any_randomness(bad):
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="must hold declared values only, got"):
        synthesize(bad, DOMAIN, epsilon=1.0, rng=rng)
    assert rng.random() == np.random.default_rng(0).random()


def test_categorical_columns_are_read_by_value_and_not_by_code():
    table = pd.DataFrame({"a": pd.Categorical(["z", "x", "z"], categories=["z", "x"])})
    np.testing.assert_array_equal(marginal(table, {"a": DOMAIN["a"]}, ["a"]), [1, 0, 2])


def test_arguments_are_checked_before_any_randomness():
    table, rng = _frame([("x", 0, "low", True)]), np.random.default_rng(0)
    for epsilon in (0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="epsilon must be"):
            synthesize(table, DOMAIN, epsilon=epsilon, rng=rng)
    with pytest.raises(ValueError, match="n_rows must be >= 0, got -1"):
        synthesize(table, DOMAIN, epsilon=1.0, rng=rng, n_rows=-1)
    with pytest.raises(ValueError, match="pairs must join different columns, each pair once"):
        synthesize(table, DOMAIN, epsilon=1.0, rng=rng, pairs=[("a", "b"), ("b", "a")])
    with pytest.raises(ValueError, match="pairs must join different columns, each pair once"):
        synthesize(table, DOMAIN, epsilon=1.0, rng=rng, pairs=[("a", "a")])
    with pytest.raises(ValueError, match="column must be one of 'a', 'b', 'c', 'd', got 'e'"):
        synthesize(table, DOMAIN, epsilon=1.0, rng=rng, pairs=[("a", "e")])
    with pytest.raises(ValueError, match="table must have a column 'e'"):
        synthesize(table, {"e": (0,)}, epsilon=1.0, rng=rng)
    with pytest.raises(ValueError, match="domain must declare at least one column"):
        synthesize(table, {}, epsilon=1.0, rng=rng)
    for values in ((), ("x", "x"), ("x", None)):
        with pytest.raises(ValueError, match="domain of 'a' must list distinct values"):
            synthesize(table, {"a": values}, epsilon=1.0, rng=rng)
    with pytest.raises(ValueError, match="columns must not be empty"):
        marginal(table, DOMAIN, [])
    with pytest.raises(TypeError, match="rng must be a numpy"):
        synthesize(table, DOMAIN, epsilon=1.0, rng=0)
    assert rng.random() == np.random.default_rng(0).random()


# ---------------------------------------------------------------- from counts to probabilities


@given(rows=ROWS, epsilon=st.floats(1e-3, 1e3), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=50)
def test_probabilities_are_probabilities_and_agree_with_each_other(rows, epsilon, seed):
    measured = noisy_marginals(_frame(rows), DOMAIN, epsilon=epsilon, rng=np.random.default_rng(seed))
    n, one_way, two_way = consistent_probabilities(measured)
    assert n >= 1
    for p in [*one_way.values(), *two_way.values()]:
        assert (p >= 0).all()
        assert p.sum() == pytest.approx(1)
    for (a, b), joint in two_way.items():
        np.testing.assert_allclose(joint.sum(axis=1), one_way[a], atol=1e-9)
        np.testing.assert_allclose(joint.sum(axis=0), one_way[b], atol=1e-9)


def test_margins_agree_also_where_a_pair_must_grow_from_nothing():
    # Noise put the whole pair into one cell, and both columns are even: raking alone would take for ever.
    even = np.array([0.5, 0.5])
    for cell in itertools.product(range(2), repeat=2):
        joint = np.zeros((2, 2))
        joint[cell] = 1.0
        raked = synthetic_data._rake(joint, even, even)
        assert (raked >= 0).all()
        for axis in range(2):
            np.testing.assert_allclose(raked.sum(axis=axis), even, atol=1e-12)


def test_without_noise_probabilities_are_the_frequencies():
    table = _chain(1000, seed=0)
    measured = noisy_marginals(table, DOMAIN, epsilon=1e6, rng=np.random.default_rng(0))
    n, one_way, two_way = consistent_probabilities(measured)
    assert n == pytest.approx(1000)
    for column in DOMAIN:
        np.testing.assert_allclose(one_way[column], marginal(table, DOMAIN, [column]) / 1000, atol=1e-8)
    for pair in PAIRS:
        np.testing.assert_allclose(two_way[pair], marginal(table, DOMAIN, pair) / 1000, atol=1e-8)


def test_without_budget_probabilities_are_nearly_uniform():
    table = _chain(1000, seed=0)
    distances = []
    for seed in range(60):
        measured = noisy_marginals(table, DOMAIN, epsilon=1e-6, rng=np.random.default_rng(seed))
        _, one_way, two_way = consistent_probabilities(measured)
        distances += [total_variation(p, np.ones(p.shape)) for p in [*one_way.values(), *two_way.values()]]
    # The data are at distance 0.2 to 0.6 from uniform, unshrunk noise would be at 0.5 and more.
    assert np.mean(distances) < 0.1
    assert np.median(distances) < 1e-6


def test_number_of_rows_is_the_precision_weighted_mean_of_all_totals():
    """A total of K noisy counts has variance proportional to K: weights 1/2 and 1/4 by hand."""
    measured = NoisyMarginals(
        domain={"p": (0, 1), "q": (0, 1, 2, 3)},
        one_way={"p": np.array([4, 6]), "q": np.array([10, 10, 10, 10])},
        two_way={},
        epsilon=1.0,
        scale=Fraction(2),
    )
    assert consistent_probabilities(measured)[0] == pytest.approx((10 / 2 + 40 / 4) / (1 / 2 + 1 / 4))


def test_number_of_rows_is_estimated_without_bias():
    """Variance 0.4 of one count's: the weights of the ten marginals of DOMAIN add up to 2.5."""
    table = _chain(500, seed=1)
    errors = [
        consistent_probabilities(noisy_marginals(table, DOMAIN, epsilon=1.0, rng=np.random.default_rng(s)))[0]
        - 500
        for s in range(100)
    ]
    standard_error = math.sqrt(0.4 * 200 / 100)  # scale 10: variance of a count just below 200
    assert abs(np.mean(errors)) < stats.norm.isf(FALSE_ALARM / 2) * standard_error


# ---------------------------------------------------------------- tree and rows


def test_mutual_information_agrees_with_entropies_and_with_jensen_shannon():
    rng = np.random.default_rng(0)
    for _ in range(20):
        joint = rng.dirichlet(np.ones(12)).reshape(3, 4)
        expected = (
            stats.entropy(joint.sum(axis=0)) + stats.entropy(joint.sum(axis=1)) - stats.entropy(joint.ravel())
        )
        assert mutual_information(joint) == pytest.approx(expected, abs=1e-12)
    p, q = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(5))
    assert mutual_information(np.stack([p, q]) / 2) == pytest.approx(jensenshannon(p, q) ** 2)
    assert mutual_information([[0, 0], [0, 3]]) == 0.0
    with pytest.raises(ValueError, match="joint must have a positive sum"):
        mutual_information([[0, 0], [0, 0]])


@settings(deadline=None)
@given(weights=st.lists(st.integers(0, 20), min_size=10, max_size=10))
def test_spanning_tree_is_the_heaviest_of_all(weights):
    nodes = list("abcde")
    edges = dict(zip(itertools.combinations(nodes, 2), weights, strict=True))
    tree = maximum_spanning_tree(nodes, edges)
    assert [parent for parent, _ in tree].count(None) == 1
    seen: set[str] = set()
    for parent, child in tree:  # parents come first, every column once
        assert child not in seen
        assert parent is None or parent in seen
        seen.add(child)
    weight = sum(edges[min(e), max(e)] for e in tree if e[0] is not None)

    def connected(chosen) -> bool:
        reached = {"a"}
        for _ in nodes:
            reached |= {x for edge in chosen for x in edge if reached & set(edge)}
        return len(reached) == len(nodes)

    best = max(
        sum(edges[e] for e in chosen) for chosen in itertools.combinations(edges, 4) if connected(chosen)
    )
    assert weight == best


def test_without_pairs_the_tree_is_a_forest_of_independent_columns():
    table = _chain(2000, seed=0)
    made = synthesize(table, DOMAIN, epsilon=1e6, rng=np.random.default_rng(0), pairs=[], n_rows=20_000)
    assert made.tree == ((None, "a"), (None, "b"), (None, "c"), (None, "d"))
    assert mutual_information(marginal(made.table, DOMAIN, ["a", "c"])) < 0.002
    assert mutual_information(marginal(table, DOMAIN, ["a", "c"])) > 0.3


def test_sampled_rows_follow_the_tree():
    """Goodness of fit of the joint distribution of a chain of three columns, parent order mixed."""
    p_a = np.array([0.2, 0.8])
    p_ab = np.array([[0.15, 0.05, 0.0], [0.1, 0.3, 0.4]])
    p_cb = np.array([[0.2, 0.05, 0.1], [0.05, 0.3, 0.3]])
    tree = [(None, "a"), ("a", "b"), ("b", "c")]
    one_way = {"a": p_a, "b": p_ab.sum(axis=0), "c": p_cb.sum(axis=1)}
    rows = sample_tree(
        tree, one_way, {("a", "b"): p_ab, ("c", "b"): p_cb}, n_rows=50_000, rng=np.random.default_rng(0)
    )
    expected = p_ab[:, :, None] * (p_cb / p_cb.sum(axis=0)).T[None]
    counts = np.zeros(expected.shape)
    np.add.at(counts, (rows["a"], rows["b"], rows["c"]), 1)
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    assert stats.chisquare(counts[possible], 50_000 * expected[possible]).pvalue > FALSE_ALARM


def test_with_budget_the_tree_is_found_and_marginals_are_reproduced():
    """Truth a - c - b - d; the distance that remains is the sampling error of 20,000 rows."""
    table = _chain(20_000, seed=0)
    made = synthesize(table, DOMAIN, epsilon=10.0, rng=np.random.default_rng(1))
    assert {frozenset(e) for e in made.tree if None not in e} == {
        frozenset(e) for e in (("a", "c"), ("c", "b"), ("b", "d"))
    }
    assert abs(len(made.table) - 20_000) < 50
    for pair in PAIRS:
        distance = total_variation(marginal(table, DOMAIN, pair), marginal(made.table, DOMAIN, pair))
        assert distance < 0.03  # two samples of 20,000, 12 cells: about 0.01


def test_more_budget_gives_closer_marginals():
    table = _chain(2000, seed=0)
    distances = []
    for epsilon in (0.01, 0.3, 10.0):
        made = [
            synthesize(table, DOMAIN, epsilon=epsilon, rng=np.random.default_rng(seed), n_rows=2000).table
            for seed in range(20)
        ]
        distances.append(
            np.mean(
                [
                    total_variation(marginal(table, DOMAIN, pair), marginal(m, DOMAIN, pair))
                    for pair in PAIRS
                    for m in made
                ]
            )
        )
    assert distances[0] > 2 * distances[1] > 2.5 * distances[2]


def test_everything_after_the_measurement_is_post_processing(monkeypatch):
    """Given the same measurements, two tables that have nothing in common give the same rows."""
    measured = noisy_marginals(_chain(300, seed=0), DOMAIN, epsilon=1.0, rng=np.random.default_rng(1))
    monkeypatch.setattr(synthetic_data, "noisy_marginals", lambda *args, **options: measured)
    one = synthesize(_chain(5, seed=2), DOMAIN, epsilon=1.0, rng=np.random.default_rng(3))
    other = _chain(2000, seed=4)
    other["d"] = other["a"] == "x"  # another tree
    two = synthesize(other, DOMAIN, epsilon=1.0, rng=np.random.default_rng(3))
    pd.testing.assert_frame_equal(one.table, two.table)
    assert one.tree == two.tree


def test_order_of_rows_and_undeclared_columns_are_not_read():
    table = _chain(300, seed=0)
    shuffled = table.sample(frac=1, random_state=0).reset_index(drop=True)
    shuffled["undeclared"] = np.arange(300)
    one = synthesize(table, DOMAIN, epsilon=1.0, rng=np.random.default_rng(5))
    two = synthesize(shuffled, DOMAIN, epsilon=1.0, rng=np.random.default_rng(5))
    pd.testing.assert_frame_equal(one.table, two.table)


def test_a_census_sized_table_takes_less_than_two_seconds():
    """48,842 rows and six columns, 21 marginals, as in the chapter; processor time, not the clock."""
    rng = np.random.default_rng(0)
    domain = {f"column {i}": range(k) for i, k in enumerate((6, 16, 2, 7, 6, 2))}
    table = pd.DataFrame({c: rng.integers(0, len(values), 48_842) for c, values in domain.items()})
    start = time.process_time()
    made = synthesize(table, domain, epsilon=0.1, rng=rng)
    assert time.process_time() - start < 2
    assert len(made.marginals.one_way) + len(made.marginals.two_way) == 21


def test_statement_names_unit_relation_price_and_noise():
    made = synthesize(_chain(100, 0), DOMAIN, epsilon=0.1, rng=np.random.default_rng(0))
    for part in ("epsilon = 0.1 ", "delta = 0", "one row", "adding or removing", "10 marginals", "scale 100"):
        assert part in made.statement
    assert made.epsilon == made.marginals.epsilon == 0.1


def test_a_budget_object_can_pay_for_the_table():
    budget = PrivacyBudget(1.0)
    made = budget.run(
        0.75, lambda: synthesize(_chain(100, 0), DOMAIN, epsilon=0.75, rng=np.random.default_rng(0))
    )
    assert made.epsilon == 0.75
    with pytest.raises(BudgetExceeded):
        budget.run(0.75, lambda: pytest.fail("answered without budget"))


# ---------------------------------------------------------------- the metric


@settings(deadline=None)
@given(p=st.lists(st.integers(0, 100), min_size=3, max_size=3).filter(any), q=st.permutations([5, 0, 95]))
def test_total_variation_is_the_largest_difference_over_events(p, q):
    left, right = np.array(p) / sum(p), np.array(q) / sum(q)
    events = [list(e) for k in range(4) for e in itertools.combinations(range(3), k)]
    largest = max(abs(left[e].sum() - right[e].sum()) for e in events)
    assert total_variation(p, q) == pytest.approx(largest, abs=1e-12)
    assert total_variation(q, p) == pytest.approx(largest, abs=1e-12)
    assert total_variation(p, p) == 0.0


def test_total_variation_refuses_what_is_no_distribution():
    assert total_variation([1, 0], [0, 1]) == 1.0
    with pytest.raises(ValueError, match="q must have shape"):
        total_variation([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="p must be >= 0"):
        total_variation([-1, 2], [1, 2])
    with pytest.raises(ValueError, match="q must have a positive sum"):
        total_variation([1, 2], [0, 0])
