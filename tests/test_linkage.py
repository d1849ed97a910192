"""Linkage: joins, uniqueness, Scoreboard-RH, and the synthetic table of Netflix's size."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thousand_fingers.datasets import load_movielens, load_tv16
from thousand_fingers.linkage import (
    Match,
    Record,
    attack_people,
    consistent_users,
    count_matches,
    draw_clues,
    expected_unique_share,
    link_tables,
    match_entropy,
    netflix_like,
    rating_table,
    scoreboard_rh,
    scores,
    simulate_company,
    skewed_areas,
    threshold_unique_share,
    unique_share,
    unique_shares_by_knowledge,
)


def record(items, stars=None, days=None):
    return Record(
        np.array(items),
        None if stars is None else np.array(stars, dtype=float),
        None if days is None else np.array(days),
    )


# --------------------------------------------------------------------------- two tables

values = st.one_of(st.none(), st.integers(0, 2))
small_frames = st.lists(st.tuples(values, values), min_size=1, max_size=12).map(
    lambda rows: pd.DataFrame(rows, columns=["a", "b"], dtype="Int64")
)


@given(left=small_frames, right=small_frames)
def test_join_agrees_with_comparing_every_pair_of_rows(left, right):
    def agree(one, two):
        return all(not pd.isna(x) and not pd.isna(y) and x == y for x, y in zip(one, two, strict=True))

    rows, others = left.to_numpy(dtype=object), right.to_numpy(dtype=object)
    table = np.array([[agree(one, two) for two in others] for one in rows])
    alike = np.array([[agree(one, two) for two in rows] for one in rows])
    links = link_tables(left, right, ["a", "b"])
    assert links.candidates.tolist() == table.sum(1).tolist()
    expected = [
        (i, int(table[i].argmax())) for i in range(len(rows)) if table[i].sum() == 1 and alike[i].sum() == 1
    ]
    assert list(zip(links.left.tolist(), links.right.tolist(), strict=True)) == expected


@pytest.mark.case("ANI-1")
def test_missing_value_joins_nothing_not_even_another_missing_value():
    table = pd.DataFrame({"zip": ["1", None], "sex": ["f", "m"]})
    links = link_tables(table, table, ["zip", "sex"])
    assert links.left.tolist() == [0]
    assert links.candidates.tolist() == [1, 0]


@pytest.mark.case("ANO-14")
def test_numbers_stored_as_text_are_refused_by_name():
    with pytest.raises(
        TypeError, match=r"column 'zip' must have one type in both tables, got string and number"
    ):
        link_tables(pd.DataFrame({"zip": ["2138"]}), pd.DataFrame({"zip": [2138]}), ["zip"])


def test_join_ignores_index_categories_and_integer_width():
    left = pd.DataFrame(
        {"zip": pd.Categorical(["a", "b"], ["z", "b", "a"]), "n": np.int8([1, 2])}, index=[7, 7]
    )
    right = pd.DataFrame({"zip": ["b", "a"], "n": [2.0, 1.0]}, index=[3, 3])
    links = link_tables(left, right, ("zip", "n"))
    assert links.right.tolist() == [1, 0]


# --------------------------------------------------------------------------- uniqueness


@pytest.mark.case("ANO-1")
@pytest.mark.parametrize("missing", [np.nan, None, pd.NA])
def test_row_with_a_missing_value_is_a_row_of_its_own(missing):
    ages = pd.Series([missing, 30, 30], dtype="Int64" if missing is pd.NA else "float64")
    assert unique_share(pd.DataFrame({"age": ages}), ["age"]) == pytest.approx(1 / 3)
    assert unique_share(pd.DataFrame({"age": ages, "sex": "f"}), ["age", "sex"]) == pytest.approx(1 / 3)
    assert unique_share(pd.DataFrame({"age": [missing] * 3}), ["age"]) == 0


@pytest.mark.case("ANO-10")
def test_columns_may_be_a_tuple_but_not_a_text_and_the_table_not_empty():
    table = pd.DataFrame({"age": [1, 2, 2]})
    assert unique_share(table, ("age",)) == pytest.approx(1 / 3)
    with pytest.raises(TypeError, match=r"write \['age'\]"):
        unique_share(table, "age")
    with pytest.raises(ValueError, match="at least one row"):
        unique_share(table[:0], ["age"])


@pytest.mark.case("ANI-5")
def test_uniqueness_counts_rows_not_classes():
    assert unique_share(pd.DataFrame({"a": [1, 1, 1, 2]}), ["a"]) == 0.25  # one class of two would be a half


@given(table=small_frames, order=st.randoms(use_true_random=False))
def test_uniqueness_ignores_the_order_of_rows_and_grows_with_knowledge(table, order):
    shuffled = table.sample(frac=1, random_state=order.randrange(2**31)).set_index(pd.Index([5] * len(table)))
    known = unique_shares_by_knowledge(table, ["a", "b"])
    assert known.equals(unique_shares_by_knowledge(shuffled, ["a", "b"]))
    alone, _, both = known["unique"]
    assert both >= alone
    doubled = pd.concat([table, table])
    assert unique_share(doubled, ["a", "b"]) == 0


@pytest.mark.case("ANI-17")
def test_every_column_must_exist():
    with pytest.raises(ValueError, match="'zip'"):
        unique_share(pd.DataFrame({"age": [1]}), ["age", "zip"])


def test_survey_respondents_are_as_unique_as_counted_elsewhere():
    table = load_tv16()
    demographic = ["state", "age", "female"]
    for columns, unique in [
        (demographic, 897),
        ([*demographic, "racef"], 5_793),
        ([*demographic, "racef", "famincr", "collegeed"], 39_320),
    ]:
        assert round(unique_share(table, columns) * len(table)) == unique


@pytest.mark.parametrize(
    ("people", "combinations", "expected"),
    [(23, 365, 0.941429), (365, 365, 0.368384), (9_330, 56_940, 0.848877), (25_000, 54_000, 0.629425)],
)
def test_expected_uniqueness_has_its_known_values(people, combinations, expected):
    assert expected_unique_share([people], combinations) == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize(
    ("n", "b", "shares"), [(1, 1, [1.0]), (2, 1, [1.0]), (4, 3, [1.0]), (3, 2, [0.25, 0.75])]
)
def test_expected_uniqueness_agrees_with_trying_every_assignment(n, b, shares):
    total = 0.0
    cells = [(share / b, cell) for cell, share in enumerate(np.repeat(shares, b))]
    for people in itertools.product(cells, repeat=n):
        chosen = [cell for _, cell in people]
        alone = sum(chosen.count(cell) == 1 for cell in chosen)
        total += math.prod(p for p, _ in people) * alone / n
    assert expected_unique_share([n], b, group_shares=shares) == pytest.approx(total)


def test_expected_uniqueness_weights_areas_by_people_not_by_areas():
    alone, crowd = expected_unique_share([10], 100), expected_unique_share([150], 100)
    both = expected_unique_share([10, 150], 100)
    assert both == pytest.approx((10 * alone + 150 * crowd) / 160)
    assert both < expected_unique_share([80, 80], 100)  # the mean population overstates


def test_simulated_company_agrees_with_expectation_and_conserves_people():
    shares = np.array([0.5, 0.3, 0.2])
    people = [100, 2_000, 0, 500] * 20
    found = simulate_company(people, 730, np.random.default_rng(1), group_shares=shares)
    expected = expected_unique_share(people, 730, group_shares=shares)
    assert found.people == sum(people)
    assert found.in_pairs % 2 == 0
    assert found.alone + found.in_pairs <= found.people
    assert abs(found.alone / found.people - expected) < 6 * np.sqrt(expected * (1 - expected) / found.people)


def test_simulated_company_notices_a_population_that_is_less_unique_than_claimed():
    """The comparison above can fail: half as many combinations are noticed."""
    found = simulate_company([500] * 100, 365, np.random.default_rng(1))
    claimed = expected_unique_share([500] * 100, 730)
    assert abs(found.alone / found.people - claimed) > 20 * np.sqrt(claimed * (1 - claimed) / found.people)


def test_threshold_rule_calls_a_full_area_unique_where_a_third_is():
    assert threshold_unique_share([730], 730) == 1
    assert threshold_unique_share([731], 730) == 0
    assert expected_unique_share([730], 730) == pytest.approx(np.exp(-1), abs=1e-3)


def test_threshold_rule_judges_each_band_of_ages_by_itself():
    # 3 holes for the first band, 6 for the second; of 8 people 2 and 6 live there
    assert threshold_unique_share([8], 3, group_shares=[0.25, 0.5, 0.25], bands=[0, 1]) == 1
    assert threshold_unique_share([9], 3, group_shares=[0.25, 0.5, 0.25], bands=[0, 1]) == 0.25
    with pytest.raises(ValueError, match="bands"):
        threshold_unique_share([8], 3, group_shares=[0.5, 0.5], bands=[1])


def test_both_published_figures_come_from_one_skewed_country():
    """The threshold rule lies near Sweeney's 87%, the expectation near Golle's 63%; the mean area misleads."""
    areas = skewed_areas(32_038, 281_421_906, 0.44, np.random.default_rng(0))
    years = np.full(80, 1 / 80)
    expectation = expected_unique_share(areas, 730, group_shares=years)
    threshold = threshold_unique_share(areas, 730, group_shares=years)
    assert areas.sum() == 281_421_906
    assert 0.6 < expectation < 0.72
    assert threshold > expectation + 0.15
    assert expected_unique_share([281_421_906 // 32_038], 730 * 80) > expectation + 0.15


# --------------------------------------------------------------------------- ratings


@st.composite
def rating_rows(draw):
    pairs = draw(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=2, max_size=20, unique=True)
    )
    stars = draw(st.lists(st.integers(1, 10), min_size=len(pairs), max_size=len(pairs)))
    days = draw(st.lists(st.integers(0, 60), min_size=len(pairs), max_size=len(pairs)))
    return [(u, i, s / 2, d) for (u, i), s, d in zip(pairs, stars, days, strict=True)]


clue_lists = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 10), st.integers(-5, 70)),
    min_size=1,
    max_size=5,
    unique_by=lambda clue: clue[0],
)


def brute_scores(rows, clues, n_users, *, stars=True, days=True):
    support = {item: max(sum(i == item for _, i, _, _ in rows), 2) for _, item, _, _ in rows}
    board = np.zeros(n_users)
    for user, item, star, day in rows:
        for aux_item, aux_halves, aux_day in clues:
            if item == aux_item:
                similarity = math.exp(-abs(star - aux_halves / 2) / 1.5) * stars
                similarity += math.exp(-abs(day - aux_day) / 30) * days
                board[user] += (similarity if stars or days else 1) / math.log(support[item])
    return board


@given(rows=rating_rows(), clues=clue_lists, stars=st.booleans(), days=st.booleans())
def test_scores_agree_with_adding_up_every_rating(rows, clues, stars, days):
    table = rating_table(*zip(*rows, strict=True))
    items, halves, when = (list(column) for column in zip(*clues, strict=True))
    known = record(items, np.array(halves) / 2 if stars else None, when if days else None)
    expected = brute_scores(rows, clues, table.n_users, stars=stars, days=days)
    assert scores(table, known) == pytest.approx(expected, abs=1e-12)


@given(rows=rating_rows(), clues=clue_lists)
def test_match_agrees_with_sorting_all_scores(rows, clues):
    table = rating_table(*zip(*rows, strict=True))
    items, halves, when = (list(column) for column in zip(*clues, strict=True))
    board = brute_scores(rows, clues, table.n_users)
    match = scoreboard_rh(table, record(items, np.array(halves) / 2, when), eccentricity_threshold=0.7)
    if len(board) < 2 or np.isclose(*np.sort(board)[-2:], atol=1e-9):
        assert match.best is None or match.eccentricity < 1e-6
        return
    second, first = np.sort(board)[-2:]
    assert match.best == board.argmax()
    assert match.eccentricity == pytest.approx((first - second) / board.std())
    assert match.accepted == (match.eccentricity >= 0.7)


@given(rows=rating_rows(), clues=clue_lists)
def test_taking_somebody_out_is_the_same_as_a_release_without_them(rows, clues):
    table = rating_table(*zip(*rows, strict=True))
    gone = rows[0][0]
    rest = [(u - (u > gone), i, s, d) for u, i, s, d in rows if u != gone]
    if not rest or max(u for u, *_ in rest) != table.n_users - 2:
        return  # the smaller table has to keep its last user
    items, halves, when = (list(column) for column in zip(*clues, strict=True))
    known = record(items, np.array(halves) / 2, when)
    smaller = rating_table(*zip(*rest, strict=True))
    assert np.delete(scores(table, known, without=gone), gone) == pytest.approx(scores(smaller, known))
    one, two = scoreboard_rh(table, known, without=gone), scoreboard_rh(smaller, known)
    assert one.best != gone
    assert one.eccentricity == pytest.approx(two.eccentricity, abs=1e-9)


def worked_example():
    """Five people and three films, from the project's collection of exact cases."""
    ratings = [
        "A1:5,100",
        "B1:5,400",
        "C1:2,100",
        "D1:4,130",
        "A2:1,110",
        "C2:1,115",
        "B3:3,200",
        "C3:5,50",
        "D3:5,55",
    ]
    rows = []
    for text in ratings:
        who, (star, day) = text[:2], text[3:].split(",")
        rows.append(("ABCD".index(who[0]), int(who[1]) - 1, float(star), int(day)))
    return rating_table(*zip(*rows, strict=True)), record([0, 1, 2], [5, 2, 4], [103, 110, 900])


def test_worked_example_has_its_known_scores_and_no_match():
    table, clues = worked_example()
    assert 1 / np.log(table.support) == pytest.approx([0.721348, 1.442695, 0.910239], abs=1e-6)
    board = scores(table, clues)
    assert board == pytest.approx([3.557449, 1.188716, 3.179578, 1.130963], abs=1e-6)
    match = scoreboard_rh(table, clues)
    assert (match.best, match.accepted) == (0, False)
    assert match.eccentricity == pytest.approx(0.339636, abs=1e-6)  # 0.294134 with the sample deviation
    assert match_entropy(board) == pytest.approx(1.509189, abs=1e-6)
    assert scoreboard_rh(table, clues, eccentricity_threshold=0.3).accepted


def test_tie_for_the_first_place_is_never_a_match():
    table = rating_table([0, 1, 2], [0, 0, 1], [5, 5, 1], [9, 9, 1])
    tie = scoreboard_rh(table, record([0], [5], [9]), eccentricity_threshold=0)
    assert tie == Match(None, 0.0, False)


def test_nobody_who_rated_anything_known_is_no_match():
    table = rating_table([0, 1], [0, 0], [5, 4], [9, 9])
    assert scoreboard_rh(table, record([7], [5], [9]), eccentricity_threshold=0).best is None


def test_lone_record_stands_out_from_nobody():
    table = rating_table([0], [0], [5], [9])
    assert scoreboard_rh(table, record([0], [5], [9]), eccentricity_threshold=0) == Match(None, 0.0, False)


def test_film_outside_the_table_adds_nothing():
    table, clues = worked_example()
    more = record([*clues.items, 99, -1], [*clues.stars, 5, 5], [*clues.days, 100, 100])
    assert scores(table, more).tolist() == scores(table, clues).tolist()


def test_film_with_one_rater_has_a_finite_weight():
    table = rating_table([0, 1], [0, 1], [5, 5], [0, 0])
    assert scores(table, record([0], [5], [0])).tolist() == pytest.approx([2 / math.log(2), 0])
    assert scores(table, record([0], [5], [0]), without=0)[1] == 0


@pytest.mark.parametrize("factor", [0.5, 3])
def test_eccentricity_and_entropy_do_not_depend_on_the_base_of_the_logarithm(factor):
    board = scores(*worked_example())
    assert match_entropy(factor * board) == pytest.approx(match_entropy(board))


def test_entropy_of_equal_scores_is_that_of_a_guess():
    assert match_entropy(np.zeros(480_189)) == pytest.approx(18.873, abs=1e-3)


def test_ratings_are_checked():
    with pytest.raises(ValueError, match="user 0 rated item 1"):
        rating_table([0, 0], [1, 1], [5, 4], [1, 2])
    with pytest.raises(ValueError, match="whole or half"):
        rating_table([0], [1], [4.2], [1])
    with pytest.raises(ValueError, match="days"):
        rating_table([0], [1], [4], [-1])
    with pytest.raises(ValueError, match="a film twice"):
        record([1, 1], [5, 5], [0, 0])
    with pytest.raises(ValueError, match="eccentricity_threshold must be >= 0"):
        scoreboard_rh(*worked_example(), eccentricity_threshold=-1)
    with pytest.raises(ValueError, match="weighting"):
        scores(*worked_example(), weighting="linear")


@given(rows=rating_rows())
def test_records_come_back_as_they_went_in(rows):
    table = rating_table(*zip(*rows, strict=True))
    people = sorted({u for u, *_ in rows}, reverse=True)
    for user, found in zip(people, table.records(people), strict=True):
        mine = sorted((i, s, d) for u, i, s, d in rows if u == user)
        assert list(zip(found.items, found.stars, found.days, strict=True)) == mine


@given(rows=rating_rows(), clues=clue_lists, day=st.integers(0, 20), star=st.sampled_from([0, 0.5, 1]))
def test_consistent_users_are_those_who_agree_with_every_clue(rows, clues, day, star):
    table = rating_table(*zip(*rows, strict=True))
    items, halves, when = (list(column) for column in zip(*clues, strict=True))
    rated = {(u, i): (s, d) for u, i, s, d in rows}

    def agrees(user):
        mine = [rated.get((user, item)) for item in items]
        return all(
            r is not None and abs(r[0] - h / 2) <= star and abs(r[1] - w) <= day
            for r, h, w in zip(mine, halves, when, strict=True)
        )

    found = consistent_users(
        table, record(items, np.array(halves) / 2, when), day_tolerance=day, star_tolerance=star
    )
    assert found.tolist() == [user for user in range(table.n_users) if agrees(user)]


@settings(max_examples=50)
@given(
    seed=st.integers(0, 99),
    known=st.integers(1, 8),
    wrong=st.integers(0, 8),
    error=st.sampled_from([0, 3, 14]),
    whole=st.booleans(),
)
def test_clues_are_films_of_the_person_and_exactly_so_many_are_wrong(seed, known, wrong, error, whole):
    wrong = min(wrong, known)
    rng = np.random.default_rng(seed)
    stars = rng.integers(1, 6, 12).astype(float) if whole else rng.integers(1, 11, 12) / 2
    person = record(np.arange(12) * 3, stars, rng.integers(0, 2_000, 12))
    clues = draw_clues(person, known, rng, wrong=wrong, day_error=error)
    place = np.searchsorted(person.items, clues.items)
    assert (person.items[place] == clues.items).all()
    right_stars = clues.stars == person.stars[place]
    near = np.abs(clues.days - person.days[place]) <= error
    assert right_stars.sum() == near.sum() == known - wrong
    assert (right_stars == near).all()
    if (person.stars % 1 == 0).all():
        assert (clues.stars % 1 == 0).all()


def test_wrong_clues_come_at_any_place_and_errors_reach_their_limits():
    person = record(np.arange(50), np.full(50, 3.0), np.full(50, 1_000))
    rng = np.random.default_rng(0)
    many = [draw_clues(person, 4, rng, wrong=1, day_error=3, star_error=1) for _ in range(400)]
    off = np.array([c.days - 1_000 for c in many])
    assert set(off[np.abs(off) <= 3]) == set(range(-3, 4))
    assert ((np.abs(off) > 3).sum(0) > 60).all()  # 100 each, if the place is random
    assert set(np.concatenate([c.stars for c in many])) <= {1, 2, 3, 4, 5}


def test_clues_need_enough_eligible_films():
    person = record([0, 1, 2], [3, 3, 3], [1, 1, 1])
    rng = np.random.default_rng(0)
    eligible = np.array([True, False, True])
    assert set(draw_clues(person, 2, rng, eligible=eligible).items) == {0, 2}
    with pytest.raises(ValueError, match="known must be <= 2"):
        draw_clues(person, 3, rng, eligible=eligible)
    with pytest.raises(ValueError, match="stars and days"):
        draw_clues(record([0], [3]), 1, rng)


def test_counting_matches_separates_first_right_and_wrong():
    matches = [Match(1, 2.0, True), Match(2, 2.0, True), Match(3, 0.1, False), Match(None, 0.0, False)]
    counts = count_matches(matches, [1, 9, 3, 4])
    assert (counts.targets, counts.first, counts.right, counts.wrong) == (4, 2, 1, 1)
    absent = count_matches(matches)
    assert (absent.first, absent.right, absent.wrong) == (0, 0, 2)


# --------------------------------------------------------------------------- real and synthetic tables


def movielens():
    frame = load_movielens()
    users = np.unique(frame["user_id"], return_inverse=True)[1]
    items = np.unique(frame["movie_id"], return_inverse=True)[1]
    days = frame["timestamp"].to_numpy() // 86_400
    return rating_table(users, items, frame["rating"], days - days.min())


@pytest.fixture(scope="module")
def real():
    return movielens()


@pytest.fixture(scope="module")
def synthetic():
    return netflix_like(np.random.default_rng(0), share=0.04)


def attack(table, people, known, *, seed=1, **options):
    rng = np.random.default_rng(seed)
    return attack_people(table, people, rng, known=known, eligible=table.support >= 2, **options)


def rates(*args, **options):
    return attack(*args, **options).found


def test_movielens_is_linked_as_often_as_an_independent_implementation_did(real):
    """Three draws per user there: 99.5% and 91.3% with two exact ratings, 100.0% and 98.0% with six of eight."""
    people = np.arange(real.n_users)
    two = rates(real, people, 2, day_error=3)
    eight = rates(real, people, 8, wrong=2, day_error=14)
    assert two.first / two.targets == pytest.approx(0.995, abs=0.012)
    assert two.right / two.targets == pytest.approx(0.913, abs=0.045)
    assert eight.first / eight.targets == pytest.approx(1.0, abs=0.006)
    assert eight.right / eight.targets == pytest.approx(0.98, abs=0.025)


def test_real_table_has_its_known_marginals(real):
    per_user = np.bincount(real.users)
    assert (real.n_users, real.n_items, real.n_ratings) == (671, 9_066, 100_004)
    assert (per_user.min(), np.median(per_user), per_user.max()) == (20, 71, 2_391)
    assert (real.support == 1).sum() == 3_063


def test_success_grows_with_knowledge_and_falls_with_errors(synthetic):
    people = np.random.default_rng(2).choice(
        np.flatnonzero(synthetic.ratings_per_user >= 8), 150, replace=False
    )
    sharp = rates(synthetic, people, 2, day_error=3).first
    assert rates(synthetic, people, 2, day_error=60).first < sharp
    assert rates(synthetic, people, 6, day_error=3).first >= sharp
    assert rates(synthetic, people, 8, wrong=8).right <= 0.2 * len(people)


def test_somebody_who_is_not_in_the_table_is_seldom_matched(synthetic):
    people = np.random.default_rng(2).choice(
        np.flatnonzero(synthetic.ratings_per_user >= 8), 150, replace=False
    )
    trials = attack(synthetic, people, 8, wrong=2, day_error=14)
    here, gone = trials.found, trials.false_alarms
    assert here.right > 0.7 * len(people)
    assert gone.right == gone.first == 0
    assert gone.wrong < 0.25 * len(people)


def test_synthetic_table_is_a_table_and_has_the_published_marginals(synthetic):
    per_user = np.bincount(synthetic.users, minlength=synthetic.n_users)
    assert (synthetic.ratings_per_user == per_user).all()
    assert synthetic.n_users == round(0.04 * 480_189)
    assert synthetic.n_items == 17_770
    for item in (0, 9_000, 17_769):
        assert (np.diff(synthetic.users[synthetic.at(item)]) > 0).all()
    assert per_user.mean() == pytest.approx(209.25, rel=0.02)
    assert np.percentile(per_user, [25, 50, 75]) == pytest.approx([39, 96, 259], rel=0.06)
    per_item = synthetic.support / 0.04
    assert np.percentile(per_item, [50, 75]) == pytest.approx([561, 2_668], rel=0.06)
    assert per_item.max() == pytest.approx(232_944, rel=0.03)
    assert per_item.std() == pytest.approx(16_910, rel=0.03)
    published = np.array([4_617_990, 10_132_080, 28_811_247, 33_750_958, 23_168_232]) / 100_480_507
    found = np.bincount(synthetic.half_stars, minlength=11)
    assert found[1::2].sum() == 0
    assert found[2::2] / synthetic.n_ratings == pytest.approx(published, abs=0.01)
    assert synthetic.days.min() >= 0
    assert synthetic.days.max() <= 2_242
    assert synthetic.nbytes < 7.1 * synthetic.n_ratings + 8 * 17_771


def test_clustered_dates_make_the_attack_harder_than_independent_ones(synthetic):
    easy = netflix_like(np.random.default_rng(0), share=0.04, clustered_dates=False)
    assert (easy.users == synthetic.users).all()
    assert (np.sort(easy.days) == np.sort(synthetic.days)).all()
    people = np.random.default_rng(2).choice(np.flatnonzero(easy.ratings_per_user >= 8), 150, replace=False)
    clustered = rates(synthetic, people, 2, day_error=14).first
    assert rates(easy, people, 2, day_error=14).first > clustered + 5


def test_synthetic_table_is_decided_by_its_generator():
    one, two = (netflix_like(np.random.default_rng(0), share=0.002) for _ in range(2))
    assert (one.users == two.users).all()
    assert (one.days == two.days).all()


def test_a_lower_threshold_claims_more_about_people_who_are_not_there(synthetic):
    people = np.random.default_rng(2).choice(
        np.flatnonzero(synthetic.ratings_per_user >= 8), 80, replace=False
    )
    strict, lax = (
        attack(synthetic, people, 2, day_error=3, eccentricity_threshold=phi) for phi in (1.5, 0.13)
    )
    assert strict.present[0].eccentricity == lax.present[0].eccentricity  # the same clues
    assert lax.found.right >= strict.found.right
    assert lax.false_alarms.wrong > 40 > strict.false_alarms.wrong


def test_areas_so_uneven_that_all_draws_underflow_are_one_area():
    for seed in range(5):
        sizes = skewed_areas(3, 100, 1e-5, np.random.default_rng(seed))
        assert sorted(sizes) == [0, 0, 100]
