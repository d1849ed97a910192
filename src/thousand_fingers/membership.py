"""Was this example in the training set? Attacks of increasing strength, and a defence that aims.

Loss threshold [Yeom2018], difficulty calibration [Watson2022], shadow models with a learned attack
classifier [Shokri2017], the likelihood ratio attack LiRA [Carlini2022] with shrunk variances after
[Brannvall2026], and RMIA [Zarifzadeh2024]. One set of shadow models serves them all: each model in turn is
the target, and never takes part in the statistics by which it is judged. The defence weights examples by
their vulnerability [Brannvall2025]. Chapter 2 explains all of it; :mod:`thousand_fingers.roc` measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import special
from torch import nn

from thousand_fingers.models import mlp, predict_logits
from thousand_fingers.training import train
from thousand_fingers.validation import (
    boolean_array,
    choice,
    integer,
    integer_array,
    real_array,
    real_number,
    torch_generator,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

FEWEST_MODELS = 3  # on either side of every example: two to spread, one to check the spread
PRIOR_MODELS = 8.0  # how many models the common variance counts for when variances are shrunk

# --------------------------------------------------------------------------- what a model says


def logit_confidence(logits: ArrayLike, labels: ArrayLike) -> Floats:
    r"""Return :math:`\phi = \log\frac{p}{1-p}` of the true label, straight from the logits.

    .. math:: \phi = z_y - \log\sum_{c\ne y} e^{z_c}

    No probability is formed on the way, so nothing saturates: a model that is sure keeps telling how sure.

    Parameters
    ----------
    logits : array-like of float, shape (..., n, n_classes)
        Outputs before the softmax, for example of many models.
    labels : array-like of int, shape (n,)
        True classes.

    Returns
    -------
    ndarray of float64, shape (..., n)

    Raises
    ------
    TypeError, ValueError
        If there are fewer than two classes or shapes do not match.

    References
    ----------
    [Carlini2022]

    Examples
    --------
    >>> logit_confidence([[1000.0, 0, 0, 0, 0, 0, 0, 0, 0, 0]], [0])
    array([997.80277542])
    """
    outputs, classes = _logits(logits, labels)
    own = np.arange(classes.size), classes
    others = outputs.copy()
    others[..., *own] = -np.inf
    return outputs[..., *own] - special.logsumexp(others, axis=-1)


def cross_entropies(phi: ArrayLike) -> Floats:
    r"""Return the loss of every example, :math:`-\log p = \log(1 + e^{-\phi})`.

    Parameters
    ----------
    phi : array-like of float
        As :func:`logit_confidence` returns it; any shape.

    Returns
    -------
    ndarray of float64

    Examples
    --------
    >>> cross_entropies([0.0, -1000.0]).round(4)
    array([6.931e-01, 1.000e+03])
    """
    return np.logaddexp(0.0, -real_array("phi", phi))


# --------------------------------------------------------------------------- attacks without shadow models


def loss_threshold(phi: ArrayLike) -> Floats:
    """Return the plainest score: minus the loss. An example that the model knows well may be a member.

    Parameters
    ----------
    phi : array-like of float
        Confidence of the attacked model in the true labels; any shape.

    Returns
    -------
    ndarray of float64
        Higher means "member".

    References
    ----------
    [Yeom2018]

    Examples
    --------
    >>> loss_threshold([2.0, -1.0]).round(3)
    array([-0.127, -1.313])
    """
    return -cross_entropies(phi)


def calibrated(phi: ArrayLike, reference: ArrayLike) -> Floats:
    r"""Return how much better the model knows an example than models that never saw it.

    :math:`\bar\ell_{\mathrm{ref}}(x) - \ell_{\mathrm{target}}(x)`, a difference of losses, that is the
    logarithm of a ratio of probabilities (of the geometric mean, if there are several references).

    Parameters
    ----------
    phi : array-like of float, shape (n,)
        Confidence of the attacked model.
    reference : array-like of float, shape (n,) or (references, n)
        Confidence of one or more models trained without the examples.

    Returns
    -------
    ndarray of float64, shape (n,)
        Higher means "member".

    Raises
    ------
    TypeError, ValueError
        If shapes do not match.

    References
    ----------
    [Watson2022]

    Examples
    --------
    >>> calibrated([3.0, 3.0], [3.0, -2.0]).round(3)  # an easy example, and one that only the target knows
    array([0.   , 2.078])
    """
    own = real_array("phi", phi, ndim=1)
    others = np.atleast_2d(real_array("reference", reference))
    others = real_array("reference", others, shape=(None, own.size))
    return cross_entropies(others).mean(axis=0) - cross_entropies(own)


# --------------------------------------------------------------------------- shadow models, learned attack


@dataclass(frozen=True, eq=False)
class AttackClassifier:
    """One small network per class that tells what models say about members from what they say about others.

    Parameters
    ----------
    networks : tuple of torch.nn.Module
        One per class; each maps the sorted log-probabilities and that of the true class to two logits.
    """

    networks: tuple[nn.Module, ...]

    def scores(self, logits: ArrayLike, labels: ArrayLike) -> Floats:
        """Return the log-odds of membership.

        Parameters
        ----------
        logits : array-like of float, shape (..., n, n_classes)
            What the attacked models say.
        labels : array-like of int, shape (n,)
            True classes.

        Returns
        -------
        ndarray of float64, shape (..., n)
            Higher means "member".

        Raises
        ------
        TypeError, ValueError
            If shapes do not match, or there are not as many classes as in the training.
        """
        outputs, classes = _logits(logits, labels)
        if outputs.shape[-1] != len(self.networks):
            raise ValueError(
                f"logits must be of the {len(self.networks)} classes of the training, got {outputs.shape[-1]}"
            )
        features = _sorted_log_probabilities(outputs, classes)
        found = np.empty(outputs.shape[:-1])
        for label, network in enumerate(self.networks):
            chosen = classes == label
            if chosen.any():
                own = features[..., chosen, :]
                said = predict_logits(network, torch.from_numpy(own.reshape(-1, own.shape[-1]))).numpy()
                found[..., chosen] = (said[:, 1] - said[:, 0]).reshape(own.shape[:-1])
        return found


def train_attack_classifier(
    logits: ArrayLike,
    labels: ArrayLike,
    members: ArrayLike,
    *,
    generator: torch.Generator,
    hidden: int = 32,
    epochs: int = 30,
    batch_size: int = 100,
    learning_rate: float = 0.003,
) -> AttackClassifier:
    """Learn from shadow models, whose members are known, what a model's answer to a member looks like.

    Parameters
    ----------
    logits : array-like of float, shape (models, n, n_classes)
        What the shadow models say about all examples.
    labels : array-like of int, shape (n,)
        True classes.
    members : array-like of bool, shape (models, n)
        Which examples each shadow model was trained on.
    generator : torch.Generator
        Source of initial weights and order.
    hidden, epochs, batch_size, learning_rate
        Size and training of the networks, one for each class.

    Returns
    -------
    AttackClassifier

    Raises
    ------
    TypeError, ValueError
        If shapes do not match, or a class lacks members or non-members.

    References
    ----------
    [Shokri2017]

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels, members = np.arange(40) % 2, rng.random((6, 40)) < 0.5
    >>> margin = rng.normal(size=(6, 40)) + 3 * members  # members are known better
    >>> logits = np.stack([np.where(labels == c, margin, 0) for c in (0, 1)], axis=-1)
    >>> attack = train_attack_classifier(logits, labels, members, generator=torch.Generator().manual_seed(0))
    >>> scores = attack.scores(logits, labels)
    >>> bool(scores[members].mean() > scores[~members].mean())
    True
    """
    outputs, classes = _logits(logits, labels)
    inside = boolean_array("members", members, shape=outputs.shape[:-1])
    torch_generator("generator", generator)
    hidden = integer("hidden", hidden, at_least=1)
    features = _sorted_log_probabilities(outputs, classes)
    networks = []
    for label in range(outputs.shape[-1]):
        chosen = classes == label
        truth = inside[..., chosen].ravel()
        if truth.size == 0 or truth.all() or not truth.any():
            raise ValueError(f"members must hold both kinds in every class, not so in class {label}")
        own = torch.from_numpy(features[..., chosen, :].reshape(truth.size, -1))
        network = mlp([own.shape[1], hidden, 2], generator=generator)
        train(
            network,
            own,
            torch.from_numpy(truth.astype(np.int64)),
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            generator=generator,
        )
        networks.append(network)
    return AttackClassifier(tuple(networks))


# --------------------------------------------------------------------------- shadow models, statistics


class Moments(NamedTuple):
    """Mean, variance and number of confidences, with and without the example in the training set.

    Attributes
    ----------
    mean_in, var_in, n_in : ndarray
        Over the models that were trained on the example; the variance has n − 1 in its denominator.
    mean_out, var_out, n_out : ndarray
        Over those that were not.
    """

    mean_in: Floats
    var_in: Floats
    n_in: Ints
    mean_out: Floats
    var_out: Floats
    n_out: Ints


def shadow_moments(phi: ArrayLike, members: ArrayLike, *, leave_one_out: bool = False) -> Moments:
    """Return the moments of every example's confidence over models that saw it, and over those that did not.

    Parameters
    ----------
    phi : array-like of float, shape (models, n)
        Confidence of every model in every example.
    members : array-like of bool, shape (models, n)
        Which examples each model was trained on.
    leave_one_out : bool, default False
        Whether row i of the result leaves model i out, for use against model i. All rows are computed at
        once from sums; nothing is trained again.

    Returns
    -------
    Moments
        Arrays of shape (n,), or (models, n) with ``leave_one_out``.

    Raises
    ------
    TypeError, ValueError
        If shapes do not match, or if for some example fewer than 3 models remain on either side: no spread
        can be estimated from them, and a number would look like a result.

    References
    ----------
    [Carlini2022]

    Examples
    --------
    >>> phi = np.array([[1.0], [2.0], [3.0], [-1.0], [-2.0], [-3.0]])
    >>> moments = shadow_moments(phi, phi > 0)
    >>> moments.mean_in, moments.var_in, moments.mean_out
    (array([2.]), array([1.]), array([-2.]))
    """
    confidence, inside = _phi_and_members(phi, members)
    spare = int(leave_one_out)
    _refuse_few("saw it", inside, spare)
    _refuse_few("did not see it", ~inside, spare)
    return Moments(*_moments(confidence, inside, spare), *_moments(confidence, ~inside, spare))


def lira_scores(
    phi: ArrayLike,
    members: ArrayLike,
    *,
    target: ArrayLike | None = None,
    mode: str = "online",
    variance: str = "shrunk",
) -> Floats:
    r"""Return the score of the likelihood ratio attack.

    For each example, the confidences of models that saw it and of models that did not are taken for two
    Gaussians. ``"online"`` is their log-likelihood ratio at the confidence of the attacked model,

    .. math:: \lambda = \log\frac{\mathcal N(\phi;\,m_{in},V_{in})}{\mathcal N(\phi;\,m_{out},V_{out})},

    ``"offline"`` uses only models that did not see the example and returns
    :math:`-\log P[Z > \phi]` under :math:`\mathcal N(m_{out},V_{out})`: one-sided, since a member is known
    *better*; in logarithms, since the probability itself would underflow to ties exactly where false alarms
    are few.

    Parameters
    ----------
    phi : array-like of float, shape (models, n)
        Confidence of every shadow model in every example, as :func:`logit_confidence` returns it.
    members : array-like of bool, shape (models, n)
        Which examples each shadow model was trained on.
    target : array-like of float, shape (n,) or (targets, n), optional
        Confidence of the attacked models. By default each shadow model is attacked in turn with all others
        (leave one out).
    mode : {"online", "offline"}, default "online"
        See above.
    variance : {"shrunk", "pooled", "per_example"}, default "shrunk"
        ``"per_example"`` trusts the variance of the few models of each example; ``"pooled"`` takes one
        variance within examples for all of them, on each side; ``"shrunk"`` adds to each example eight
        models with the median variance: good with few models and with many.

    Returns
    -------
    ndarray of float64, shape (models, n), or that of ``target``
        Higher means "member".

    Raises
    ------
    TypeError, ValueError
        If shapes do not match, too few models remain (see :func:`shadow_moments`; offline, only those that did
        not see an example count), or a variance is zero.

    References
    ----------
    [Carlini2022], [Brannvall2026] for the shrunk variance.

    Examples
    --------
    >>> phi = np.array([[1.0], [2.0], [3.0], [-1.0], [-2.0], [-3.0]])
    >>> lira_scores(phi, phi > 0, target=[[0.0], [2.0]])
    array([[0.],
           [8.]])
    """
    choice("mode", mode, ("online", "offline"))
    choice("variance", variance, ("shrunk", "pooled", "per_example"))
    confidence, inside = _phi_and_members(phi, members)
    attacked = confidence if target is None else _targets(target, confidence.shape[1])
    if mode == "offline":
        spare = int(target is None)
        _refuse_few("did not see it", ~inside, spare)
        mean_out, var_out, n_out = _moments(confidence, ~inside, spare)
        var_out = _variance(var_out, n_out, variance)
        return -special.log_ndtr(-(attacked - mean_out) / np.sqrt(var_out))
    moments = shadow_moments(confidence, inside, leave_one_out=target is None)
    var_in = _variance(moments.var_in, moments.n_in, variance)
    var_out = _variance(moments.var_out, moments.n_out, variance)
    return gaussian_log_ratio(attacked, moments.mean_in, var_in, moments.mean_out, var_out)


def gaussian_log_ratio(
    x: ArrayLike, mean_in: ArrayLike, var_in: ArrayLike, mean_out: ArrayLike, var_out: ArrayLike
) -> Floats:
    """Return the logarithm of the ratio of two Gaussian densities.

    Parameters
    ----------
    x : array-like of float
        Where.
    mean_in, var_in : array-like of float
        The Gaussian in the numerator.
    mean_out, var_out : array-like of float
        The Gaussian in the denominator. All shapes are broadcast.

    Returns
    -------
    ndarray of float64

    Raises
    ------
    TypeError, ValueError
        If a number is not finite or a variance not positive.

    Examples
    --------
    >>> gaussian_log_ratio([0.0, 1.0, 2.0], 2.0, 1.0, 0.0, 1.0)
    array([-2.,  0.,  2.])
    """
    point = real_array("x", x)
    above, below = (
        np.square(point - real_array(name, mean))
        for name, mean in (("mean_in", mean_in), ("mean_out", mean_out))
    )
    v_in, v_out = real_array("var_in", var_in), real_array("var_out", var_out)
    if not ((v_in > 0).all() and (v_out > 0).all()):
        raise ValueError("var_in and var_out must be > 0: a Gaussian without spread has no density")
    return (np.log(v_out / v_in) + below / v_out - above / v_in) / 2


def rmia_scores(
    phi: ArrayLike,
    members: ArrayLike,
    population: ArrayLike,
    *,
    target: ArrayLike | None = None,
    target_population: ArrayLike | None = None,
    mode: str = "online",
    offline_a: float = 0.3,
) -> Floats:
    r"""Return the score of RMIA: against how many strangers an example stands out.

    The probability of the true label under the attacked model is divided by its average over the other
    models, for the example and for every member z of a population that no model saw; the score is the share
    of z whose ratio is smaller. The average over models with and without the example is
    :math:`\tfrac12(P_{in}+P_{out})` online, and offline, where no model with the example exists,
    :math:`\tfrac12((1+a)P_{out}+(1-a))`. For z, which nobody saw, it is the plain mean online, and the same
    offline formula offline.

    Parameters
    ----------
    phi : array-like of float, shape (models, n)
        Confidence of every shadow model in every example.
    members : array-like of bool, shape (models, n)
        Which examples each shadow model was trained on.
    population : array-like of float, shape (models, n_population)
        Confidence in examples that no model was trained on.
    target : array-like of float, shape (n,) or (targets, n), optional
        Confidence of the attacked models; by default each shadow model in turn, leaving it out.
    target_population : array-like of float, shape (n_population,) or (targets, n_population), optional
        Their confidence in the population; given exactly when ``target`` is.
    mode : {"online", "offline"}, default "online"
        See above.
    offline_a : float, default 0.3
        The constant a, in [0, 1].

    Returns
    -------
    ndarray of float64, shape (models, n), or that of ``target``
        Between 0 and 1; higher means "member".

    Raises
    ------
    TypeError, ValueError
        If shapes do not match or too few models remain, as for :func:`lira_scores`.

    References
    ----------
    [Zarifzadeh2024]

    Examples
    --------
    >>> phi = np.array([[1.0], [2.0], [3.0], [-1.0], [-2.0], [-3.0]])
    >>> strangers = np.zeros((6, 4)) + [-2.0, -1.0, 1.0, 2.0]
    >>> rmia_scores(phi, phi > 0, strangers, target=[3.0], target_population=[-2.0, -1.0, 1.0, 2.0])
    array([1.])
    """
    choice("mode", mode, ("online", "offline"))
    offline_a = real_number("offline_a", offline_a, at_least=0, at_most=1)
    confidence, inside = _phi_and_members(phi, members)
    strangers = real_array("population", population, shape=(len(confidence), None))
    if (target is None) != (target_population is None):
        raise ValueError("target and target_population must be given together")
    spare = int(target is None)
    if mode == "online":
        _refuse_few("saw it", inside, spare)
    _refuse_few("did not see it", ~inside, spare)
    # Everything in logarithms: a probability of e^-1000 is a number like others, and its mean is not 0.
    log_p, log_p_strangers = -cross_entropies(confidence), -cross_entropies(strangers)
    expected = _log_mean_exp(log_p, ~inside, spare)
    average = _log_mean_exp(log_p_strangers, np.ones(strangers.shape, dtype=bool), spare)
    if mode == "online":
        expected = np.logaddexp(_log_mean_exp(log_p, inside, spare), expected) - np.log(2)
    else:
        with np.errstate(divide="ignore"):  # a = 1 takes P_out as it is
            rest = np.log(1 - offline_a)
        expected, average = (
            np.logaddexp(np.log1p(offline_a) + mean, rest) - np.log(2) for mean in (expected, average)
        )
    if target is not None and target_population is not None:
        log_p = -cross_entropies(_targets(target, confidence.shape[1]))
        log_p_strangers = -cross_entropies(_targets(target_population, strangers.shape[1]))
        if log_p.shape[:-1] != log_p_strangers.shape[:-1]:
            raise ValueError(
                f"target_population must have as many rows as target, got {log_p_strangers.shape[:-1]} "
                f"for {log_p.shape[:-1]}"
            )
    ratio, others = log_p - expected, np.sort(log_p_strangers - average, axis=-1)
    scores = np.empty_like(ratio)
    for place in np.ndindex(ratio.shape[:-1]):
        scores[place] = np.searchsorted(others[place], ratio[place], side="left") / others.shape[-1]
    return scores


# --------------------------------------------------------------------------- vulnerability and defence


def t_scores(phi: ArrayLike, members: ArrayLike) -> Floats:
    r"""Return how far apart an example's two worlds are, :math:`t = (m_{in}-m_{out})/\sqrt{V_{in}+V_{out}}`.

    Not a t-statistic: the variances are those of single models, not of means, so t does not grow with the
    number of shadow models. With Gaussian confidences of a common variance, one model that saw the example is
    more confident than one that did not with probability :math:`\Phi(t)`.

    Parameters
    ----------
    phi : array-like of float, shape (models, n)
        Confidence of every shadow model in every example.
    members : array-like of bool, shape (models, n)
        Which examples each shadow model was trained on.

    Returns
    -------
    ndarray of float64, shape (n,)

    Raises
    ------
    TypeError, ValueError
        As :func:`shadow_moments`, and if an example has no spread at all.

    References
    ----------
    [Brannvall2025]

    Examples
    --------
    >>> phi = np.array([[1.0], [2.0], [3.0], [-1.0], [-2.0], [-3.0]])
    >>> t_scores(phi, phi > 0).round(4)  # (2 - (-2)) / sqrt(1 + 1)
    array([2.8284])
    """
    moments = shadow_moments(phi, members)
    variance = moments.var_in + moments.var_out
    _refuse_zero(variance)
    return (moments.mean_in - moments.mean_out) / np.sqrt(variance)


def instance_weights(t: ArrayLike, *, slope: float = 2.0, offset: float = 2.0) -> Floats:
    r"""Return how much each example may count in the training: :math:`w = e^{-\max(0,\,\alpha t-\beta)}`.

    Nobody is weighted down while :math:`t\le\beta/\alpha`.

    Parameters
    ----------
    t : array-like of float, shape (n,)
        Vulnerability, as :func:`t_scores` returns it.
    slope : float, default 2
        The defence's α, at least 0.
    offset : float, default 2
        The defence's β, at least 0.

    Returns
    -------
    ndarray of float64, shape (n,)
        In [0, 1]: 0 only where the exponential underflows.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    References
    ----------
    [Brannvall2025]

    Examples
    --------
    >>> instance_weights([0.0, 1.0, 1.5, 2.0, 3.0, 5.0]).round(4)
    array([1.000e+00, 1.000e+00, 3.679e-01, 1.353e-01, 1.830e-02, 3.000e-04])
    """
    scores = real_array("t", t, ndim=1)
    slope = real_number("slope", slope, at_least=0)
    offset = real_number("offset", offset, at_least=0)
    return np.exp(-np.maximum(0.0, slope * scores - offset))


def pareto_front(accuracy: ArrayLike, leak: ArrayLike) -> Ints:
    """Return which ways of training nobody beats: none is at least as accurate and leaks at most as much.

    Parameters
    ----------
    accuracy : array-like of float, shape (n,)
        Higher is better.
    leak : array-like of float, shape (n,)
        Lower is better.

    Returns
    -------
    ndarray of int64
        Indices by rising accuracy, and so by rising leak. Of equals the first is named.

    Raises
    ------
    TypeError, ValueError
        If shapes do not match or a number is not finite.

    Examples
    --------
    >>> pareto_front([0.90, 0.88, 0.85, 0.89], [0.10, 0.03, 0.03, 0.12]).tolist()
    [1, 0]
    """
    good = real_array("accuracy", accuracy, ndim=1)
    bad = real_array("leak", leak, shape=good.shape)
    order = np.lexsort((bad, -good))  # the most accurate first; each next one has to leak less
    least = np.minimum.accumulate(bad[order])
    kept = np.append(True, bad[order][1:] < least[:-1])
    return order[kept][::-1].astype(np.int64)


# --------------------------------------------------------------------------- shared


def _logits(logits: ArrayLike, labels: ArrayLike) -> tuple[Floats, Ints]:
    outputs = real_array("logits", logits)
    if outputs.ndim < 2 or outputs.shape[-1] < 2:
        raise ValueError(
            f"logits must have shape (..., n, n_classes) with two classes or more, got {outputs.shape}"
        )
    classes = integer_array(
        "labels", labels, shape=outputs.shape[-2:-1], at_least=0, at_most=outputs.shape[-1] - 1
    )
    return outputs, classes


def _sorted_log_probabilities(outputs: Floats, classes: Ints) -> Floats:
    log_p = special.log_softmax(outputs, axis=-1)
    own = log_p[..., np.arange(classes.size), classes, None]
    # Logarithms of tiny probabilities would dwarf everything else in a small network's input.
    return np.maximum(np.concatenate([np.sort(log_p, axis=-1), own], axis=-1), -50.0) / 10


def _phi_and_members(phi: ArrayLike, members: ArrayLike) -> tuple[Floats, Bools]:
    confidence = real_array("phi", phi, ndim=2)
    return confidence, boolean_array("members", members, shape=confidence.shape)


def _targets(values: ArrayLike, n: int) -> Floats:
    array = real_array("target", values)
    if array.ndim not in (1, 2) or array.shape[-1] != n:
        raise ValueError(f"target must have one confidence for each of {n} examples, got shape {array.shape}")
    return array


def _refuse_few(side: str, chosen: Bools, spare: int) -> None:
    fewest = int(chosen.sum(axis=0).min())
    if fewest - spare < FEWEST_MODELS:
        raise ValueError(
            f"members must leave every example at least {FEWEST_MODELS + spare} models that {side}"
            f"{', one of them to leave out' if spare else ''}, got {fewest} for example "
            f"{int(chosen.sum(axis=0).argmin())}: train more models"
        )


def _log_mean_exp(log_p: Floats, chosen: Bools, spare: int) -> Floats:
    """Return the logarithm of the mean probability over the chosen models, each left out of its own row."""
    terms, n = np.where(chosen, log_p, -np.inf), chosen.sum(axis=0)
    before = np.logaddexp.accumulate(terms, axis=0)
    if not spare:
        return before[-1] - np.log(n)
    # Taking a term out of a sum would cancel: add what stands before it to what stands after it.
    after = np.logaddexp.accumulate(terms[::-1], axis=0)[::-1]
    nothing = np.full((1, terms.shape[1]), -np.inf)
    left = np.logaddexp(np.vstack([nothing, before[:-1]]), np.vstack([after[1:], nothing]))
    return left - np.log(n - chosen)


def _moments(confidence: Floats, chosen: Bools, spare: int) -> tuple[Floats, Floats, Ints]:
    """Return mean, variance and number per example over the chosen models, each left out of its own row."""
    # Taking a model out of a sum of squares would cancel, and leave rounding where there is no spread:
    # as in _log_mean_exp, what stands before it is merged with what stands after it.
    before = _running(confidence, chosen)
    if not spare:
        n, mean, squares = (part[-1] for part in before)
    else:
        after = [part[::-1] for part in _running(confidence[::-1], chosen[::-1])]
        n_1, mean_1, squares_1 = (part[:-1] for part in before)
        n_2, mean_2, squares_2 = (part[1:] for part in after)
        n, step = n_1 + n_2, mean_2 - mean_1
        mean = mean_1 + step * (n_2 / n)
        squares = squares_1 + squares_2 + np.square(step) * (n_1 * n_2 / n)
    return mean, squares / (n - 1), n


def _running(confidence: Floats, chosen: Bools) -> tuple[Ints, Floats, Floats]:
    """Return number, mean and sum of squared deviations of the chosen among the first 0, 1, 2, ... models."""
    rows, examples = confidence.shape
    n = np.vstack([np.zeros((1, examples), dtype=np.int64), np.cumsum(chosen, axis=0)])
    mean, squares = np.zeros((rows + 1, examples)), np.zeros((rows + 1, examples))
    for i, (values, takes_part) in enumerate(zip(confidence, chosen, strict=True)):
        step = np.where(takes_part, values - mean[i], 0.0)
        mean[i + 1] = mean[i] + step / np.maximum(n[i + 1], 1)
        squares[i + 1] = squares[i] + step * (values - mean[i + 1])
    return n, mean, squares


def _variance(variance: Floats, n: Ints, kind: str) -> Floats:
    freedom = n - 1
    if kind == "pooled":
        variance = (freedom * variance).sum(axis=-1, keepdims=True) / freedom.sum(axis=-1, keepdims=True)
        variance = np.broadcast_to(variance, freedom.shape)
    elif kind == "shrunk":
        middle = np.median(variance, axis=-1, keepdims=True)
        variance = (freedom * variance + PRIOR_MODELS * middle) / (freedom + PRIOR_MODELS)
    _refuse_zero(variance)
    return variance


def _refuse_zero(variance: Floats) -> None:
    if not (variance > 0).all():
        where = int(np.argwhere(~(variance > 0))[0][-1])
        raise ValueError(
            f"the confidences of example {where} do not vary: a variance of 0 would decide the ranking alone; "
            "take variance='shrunk', more models, or models trained from different seeds"
        )
