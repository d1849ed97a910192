"""Text that every reader has: the pinned collection and its bags of words."""

from __future__ import annotations

import numpy as np
import pytest

from thousand_fingers import texts
from thousand_fingers.texts import CollectionError, bag_of_words, load_paragraphs, vocabulary


def test_the_collection_is_the_pinned_one_and_names_no_library() -> None:
    found = load_paragraphs()
    assert len(found.texts) == len(set(found.texts)) == found.labels.size
    assert set(found.labels) == {0, 1, 2}
    words = set(" ".join(found.texts).lower().split())
    assert not words & {"matplotlib", "pyplot", "pandas", "scipy", "numpy", "np"}


def test_another_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "LIBRARIES", {"scipy": r"scipy/special/_basic\.py"})
    with pytest.raises(CollectionError, match=r"install the versions in requirements\.lock"):
        load_paragraphs()
    assert load_paragraphs(check=False).labels.max() == 0


def test_rare_words_are_left_out() -> None:
    columns = vocabulary(["Zebra draws a line", "draws two lines", "Draws!"], fewest=2)
    assert columns == {"draws": 0}
    assert set(vocabulary(["to be or not to be"])) == {"to", "be", "or", "not"}


def test_bags_have_unit_length_and_ignore_order_and_repetition() -> None:
    columns = vocabulary(["to be or not"])
    bags = bag_of_words(["to be", "be to to BE", "unknown words", ""], columns)
    assert (bags[0] == bags[1]).all()
    np.testing.assert_allclose(np.linalg.norm(bags, axis=1), [1, 1, 0, 0])


def test_one_string_is_not_a_list_of_texts() -> None:
    with pytest.raises(TypeError, match="sequence of strings"):
        vocabulary("text")
    with pytest.raises(TypeError, match="sequence of strings"):
        bag_of_words("text", {})
    with pytest.raises(ValueError, match="fewest must be >= 1"):
        vocabulary(["text"], fewest=0)
