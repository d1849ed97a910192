"""Secure aggregation: the server learns a sum, and of no single term anything else (chapter 6).

The protocol of Bonawitz and others [Bonawitz2017]: every pair of clients agrees on a mask that one adds
and the other subtracts, every client adds a mask of its own, and the keys to both kinds are shared among all
clients [Shamir1979], so that a sum can be finished when some of them leave. Secure against a server that
follows the protocol and looks at all it receives; the signatures that bind a lying server are not here.
Key agreement [Langley2016], key derivation [Krawczyk2010] and ciphers are those of the package cryptography.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.validation import choice, integer, numpy_generator, real_array, real_number

Words = NDArray[np.unsignedinteger[Any]]
Entropy = Callable[[int], bytes]
_Message = TypeVar("_Message", "Advertisement", "SealedShares", "MaskedInput", "Unmasking")

SHAMIR_PRIME = 2**256 + 297  # the smallest prime above every secret of 32 bytes
STEPS = ("advertise", "share", "submit", "unmask")
_SHARE_BYTES = 33
_NONCE_BYTES = 12
_LABEL = b"thousand_fingers secure aggregation"


class AggregationError(ValueError):
    """A party stops, because going on would give a wrong sum or give somebody away."""


# --- Numbers that can be masked -------------------------------------------------------------------


@dataclass(frozen=True)
class Encoded:
    """What a client hands to the protocol.

    Attributes
    ----------
    words : ndarray of unsigned integers, shape (length + 1,)
        The weighted levels of the update, and the weight as the last word.
    n_clipped : int
        Entries that lay outside the agreed range and were moved to its end.
    """

    words: Words = field(repr=False)
    n_clipped: int


@dataclass(frozen=True)
class WeightedMean:
    """A mean over clients, as the server reads it from a sum.

    Attributes
    ----------
    mean : ndarray of float64, shape (length,)
        Off by at most half a step of the encoding in each entry.
    weight : int
        Sum of the clients' weights, for example the number of examples.
    """

    mean: NDArray[np.float64]
    weight: int


@dataclass(frozen=True)
class FixedPoint:
    """Whole numbers for real ones, few enough that no sum can overflow.

    An entry in [−clip, clip] becomes one of 2^bits levels; the client sends
    weight times the level, and the weight. If all ``n_clients`` sent the highest
    level with the highest weight, the sum would still be below 2^word_bits:
    anything else is refused here, before a round begins.

    Parameters
    ----------
    clip : float in (0, 1e300]
        Largest magnitude of an entry. Others are clipped and counted.
    n_clients : int >= 1
        Most clients that take part in one sum.
    max_weight : int >= 1, default 1
        Largest weight of one client.
    bits : int in [1, 32], default 16
        Bits of a level.
    word_bits : {32, 64}, default 32
        Bits of a word; sums are taken modulo 2^word_bits.

    Raises
    ------
    ValueError
        If a parameter is out of range or a sum could overflow.

    Examples
    --------
    >>> code = FixedPoint(clip=1.0, n_clients=2, max_weight=30)
    >>> total = code.encode([0.5, -1.0], weight=10).words + code.encode([0.2, 3.0], weight=30).words
    >>> code.decode(total).mean.round(3), code.decode(total).weight
    (array([0.275, 0.5  ]), 40)
    >>> FixedPoint(clip=1.0, n_clients=100, max_weight=656)
    Traceback (most recent call last):
        ...
    ValueError: n_clients * max_weight must be <= 65537, got 65600: words of 32 bits hold no larger sum of 16-bit levels
    """

    clip: float
    n_clients: int
    max_weight: int = 1
    bits: int = 16
    word_bits: int = 32

    def __post_init__(self) -> None:
        real_number("clip", self.clip, above=0, at_most=1e300)
        integer("n_clients", self.n_clients, at_least=1)
        integer("max_weight", self.max_weight, at_least=1)
        integer("bits", self.bits, at_least=1, at_most=32)
        choice("word_bits", integer("word_bits", self.word_bits), (32, 64))
        most = (2**self.word_bits - 1) // self.top
        if self.n_clients * self.max_weight > most:
            raise ValueError(
                f"n_clients * max_weight must be <= {most}, got {self.n_clients * self.max_weight}: words of "
                f"{self.word_bits} bits hold no larger sum of {self.bits}-bit levels"
            )

    @property
    def top(self) -> int:
        """The highest level."""
        return 2**self.bits - 1

    @property
    def step(self) -> float:
        """Distance between two levels; a mean is off by at most half of it."""
        return 2 * self.clip / self.top

    def encode(self, update: ArrayLike, weight: int = 1) -> Encoded:
        """Return a client's words.

        Parameters
        ----------
        update : array-like of float, shape (length,)
            Finite; entries outside [−clip, clip] are clipped and counted.
        weight : int in [0, max_weight], default 1

        Returns
        -------
        Encoded
        """
        update = real_array("update", update, ndim=1)
        weight = integer("weight", weight, at_least=0, at_most=self.max_weight)
        inside = np.clip(update, -self.clip, self.clip)
        levels = np.rint((inside + self.clip) / (2 * self.clip) * self.top)
        words = np.append(levels.astype(np.uint64) * np.uint64(weight), np.uint64(weight))
        return Encoded(words.astype(_dtype(self.word_bits)), int((inside != update).sum()))

    def decode(self, total: Words) -> WeightedMean:
        """Return the weighted mean behind a sum of clients' words.

        Parameters
        ----------
        total : ndarray of unsigned integers, shape (length + 1,)

        Returns
        -------
        WeightedMean

        Raises
        ------
        ValueError
            If all weights were zero, or the words are no sum of this encoding.
        """
        total = _checked_words("total", total, self.word_bits)
        weight = int(total[-1])
        if weight == 0:
            raise ValueError("total must have a weight > 0, got 0: no client had an example")
        if weight > self.n_clients * self.max_weight or int(total[:-1].max(initial=0)) > weight * self.top:
            raise ValueError("total must be a sum of words of this encoding, got larger ones")
        levels = total[:-1].astype(np.float64) / weight
        return WeightedMean(levels / self.top * (2 * self.clip) - self.clip, weight)


# --- The four primitives --------------------------------------------------------------------------


def agree(private_key: bytes, public_key: bytes) -> bytes:
    """Return the secret that two parties share by X25519.

    Parameters
    ----------
    private_key : bytes of length 32
        One party's private key.
    public_key : bytes of length 32
        The other party's public key.

    Returns
    -------
    bytes of length 32
        Not uniform; :func:`derive_key` makes keys from it.

    Raises
    ------
    ValueError
        If a key has another length, or the public key is one of the few points that
        give everybody the same secret.

    References
    ----------
    [Langley2016]

    Examples
    --------
    >>> alice, bob = bytes(range(32)), bytes(range(32, 64))
    >>> agree(alice, public_key_of(bob)) == agree(bob, public_key_of(alice))
    True
    """
    for name, key in (("private_key", private_key), ("public_key", public_key)):
        if len(key) != 32:
            raise ValueError(f"{name} must have 32 bytes, got {len(key)}")
    try:
        return X25519PrivateKey.from_private_bytes(private_key).exchange(
            X25519PublicKey.from_public_bytes(public_key)
        )
    except ValueError:
        raise ValueError("public_key must not be of low order: everybody would get the same secret") from None


def public_key_of(private_key: bytes) -> bytes:
    """Return the public key of an X25519 private key.

    Parameters
    ----------
    private_key : bytes of length 32
        Any 32 bytes.

    Returns
    -------
    bytes of length 32

    Examples
    --------
    >>> public_key_of(bytes(32)).hex()[:16]
    '2fe57da347cd6243'
    """
    return X25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def derive_key(secret: bytes, purpose: bytes, *, salt: bytes = b"", length: int = 32) -> bytes:
    """Return a key for one purpose by HKDF with SHA-256.

    Parameters
    ----------
    secret : bytes
        What is shared, for example by :func:`agree`.
    purpose : bytes
        Keys for different purposes tell nothing about each other.
    salt : bytes, optional
        Public.
    length : int in [1, 8160], default 32
        Bytes of the key.

    Returns
    -------
    bytes

    References
    ----------
    [Krawczyk2010]

    Examples
    --------
    >>> derive_key(b"shared", b"mask") == derive_key(b"shared", b"transport")
    False
    """
    integer("length", length, at_least=1, at_most=255 * 32)
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=purpose).derive(secret)


def keystream(key: bytes, length: int, *, counter: bytes = bytes(16)) -> bytes:
    """Return pseudorandom bytes: AES in counter mode, encrypting zeros.

    Parameters
    ----------
    key : bytes of length 16, 24 or 32
        Used for one stream only.
    length : int >= 0
        Bytes of the stream.
    counter : bytes of length 16, default all zero
        The first counter block.

    Returns
    -------
    bytes

    Examples
    --------
    >>> keystream(bytes(32), 4).hex()
    'dc95c078'
    """
    stream = Cipher(AES(key), CTR(counter)).encryptor()
    return stream.update(bytes(integer("length", length, at_least=0))) + stream.finalize()


def mask_words(key: bytes, length: int, *, word_bits: int = 32) -> Words:
    """Return a mask: words of a key stream, each uniform on all of [0, 2^word_bits).

    Parameters
    ----------
    key : bytes of length 32
        All 256 bits of it matter.
    length : int >= 0
        Number of words.
    word_bits : {32, 64}, default 32

    Returns
    -------
    ndarray of unsigned integers, shape (length,)

    Examples
    --------
    >>> mask_words(bytes(32), 2)
    array([2025887196, 2307473570], dtype=uint32)
    """
    if len(key) != 32:
        raise ValueError(f"key must have 32 bytes, got {len(key)}")
    dtype = _dtype(choice("word_bits", word_bits, (32, 64)))
    stream = keystream(key, integer("length", length, at_least=0) * dtype.itemsize)
    return np.frombuffer(stream, dtype=dtype.newbyteorder("<")).astype(dtype)


def split_secret(
    secret: bytes, points: Sequence[int], threshold: int, *, entropy: Entropy = os.urandom
) -> dict[int, int]:
    """Split a secret so that ``threshold`` shares rebuild it and fewer say nothing.

    The shares are values of a polynomial of degree threshold − 1 with random
    coefficients; the secret is its value at 0.

    Parameters
    ----------
    secret : bytes of length 32
    points : sequence of int, distinct, in [1, 2^32)
        One for each holder of a share.
    threshold : int in [1, number of points]
    entropy : callable from int to bytes, default os.urandom
        Source of random bytes.

    Returns
    -------
    dict of int to int
        The share at each point, below :data:`SHAMIR_PRIME`.

    References
    ----------
    [Shamir1979]

    Examples
    --------
    >>> shares = split_secret(bytes(range(32)), points=[1, 2, 3], threshold=2)
    >>> rebuild_secret({1: shares[1], 3: shares[3]}, threshold=2) == bytes(range(32))
    True
    """
    points = [integer("points", x, at_least=1, at_most=2**32 - 1) for x in points]
    if len(set(points)) != len(points):
        raise ValueError(f"points must be distinct, got {points}")
    integer("threshold", threshold, at_least=1, at_most=len(points))
    if len(secret) != 32:
        raise ValueError(f"secret must have 32 bytes, got {len(secret)}")
    # 48 random bytes, reduced: uniform up to one part in 2^127.
    random = [int.from_bytes(entropy(48), "big") % SHAMIR_PRIME for _ in range(threshold - 1)]
    coefficients = [*random, int.from_bytes(secret, "big")]  # the highest degree first
    shares = {}
    for x in points:
        value = 0
        for coefficient in coefficients:
            value = (value * x + coefficient) % SHAMIR_PRIME
        shares[x] = value
    return shares


def rebuild_secret(shares: Mapping[int, int], threshold: int) -> bytes:
    """Rebuild a secret from at least ``threshold`` of its shares.

    Shares beyond the threshold serve as a check: they must lie on the same polynomial.

    Parameters
    ----------
    shares : mapping of int to int
        Share at each point, as :func:`split_secret` returned them.
    threshold : int >= 1

    Returns
    -------
    bytes of length 32

    Raises
    ------
    AggregationError
        If there are too few shares, or they contradict each other.

    Examples
    --------
    >>> rebuild_secret({1: 5}, threshold=2)
    Traceback (most recent call last):
        ...
    thousand_fingers.secure_aggregation.AggregationError: 1 share does not reach the threshold 2
    """
    threshold = integer("threshold", threshold, at_least=1)
    if len(shares) < threshold:
        plural = "share does" if len(shares) == 1 else "shares do"
        raise AggregationError(f"{len(shares)} {plural} not reach the threshold {threshold}")
    points = sorted(shares)
    base = tuple(points[:threshold])

    def value_at(x: int) -> int:
        weights = _lagrange(base, x)
        return sum(shares[point] * w for point, w in zip(base, weights, strict=True)) % SHAMIR_PRIME

    if any(value_at(x) != shares[x] for x in points[threshold:]):
        raise AggregationError("the shares contradict each other: at least one of them is wrong")
    secret = value_at(0)
    if secret >= 2**256:
        raise AggregationError("the shares belong to no secret of 32 bytes: at least one of them is wrong")
    return secret.to_bytes(32, "big")


@lru_cache(maxsize=4096)
def _lagrange(points: tuple[int, ...], x: int) -> tuple[int, ...]:
    """Weights with which values at ``points`` give the value at ``x``."""
    weights = []
    for j in points:
        above = below = 1
        for m in points:
            if m != j:
                above = above * (x - m) % SHAMIR_PRIME
                below = below * (j - m) % SHAMIR_PRIME
        weights.append(above * pow(below, -1, SHAMIR_PRIME) % SHAMIR_PRIME)
    return tuple(weights)


def insecure_entropy(rng: np.random.Generator) -> Entropy:
    """Return a source of bytes that repeats itself, for printed figures and tests only.

    Parameters
    ----------
    rng : numpy.random.Generator
        Not cryptographic: who guesses its state reads every client.

    Returns
    -------
    callable from int to bytes

    Examples
    --------
    >>> insecure_entropy(np.random.default_rng(0))(4).hex()
    '5f82c2d9'
    """
    return numpy_generator("rng", rng).bytes


# --- What is agreed on, and what travels ----------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """What every party knows before a round.

    Parameters
    ----------
    clients : tuple of int
        Names of the clients, distinct, in [1, 2^32), at least two.
    threshold : int
        How many clients must stay to the end. More than half of them: else a server
        that tells each half another story could collect both keys of one client.
    length : int >= 1
        Words in a vector.
    word_bits : {32, 64}, default 32
    round_number : int >= 0, default 0
        Messages of another round are refused.

    Examples
    --------
    >>> Agreement((1, 2, 3, 4), threshold=2, length=10)
    Traceback (most recent call last):
        ...
    ValueError: threshold must be >= 3 and <= 4, got 2
    """

    clients: tuple[int, ...]
    threshold: int
    length: int
    word_bits: int = 32
    round_number: int = 0

    def __post_init__(self) -> None:
        if len(self.clients) < 2 or len(set(self.clients)) != len(self.clients):
            raise ValueError(f"clients must be at least two, and distinct, got {self.clients}")
        for client in self.clients:
            integer("clients", client, at_least=1, at_most=2**32 - 1)
        n = len(self.clients)
        integer("threshold", self.threshold, at_least=n // 2 + 1, at_most=n)
        integer("length", self.length, at_least=1)
        choice("word_bits", self.word_bits, (32, 64))
        integer("round_number", self.round_number, at_least=0)

    def purpose(self, what: str) -> bytes:
        """Return the label of a key: the protocol, the round, what the key is for."""
        return b"%s, round %d, %s" % (_LABEL, self.round_number, what.encode())


@dataclass(frozen=True)
class Advertisement:
    """Round 0: a client's two public keys, one to seal shares and one to make masks."""

    client: int
    round_number: int
    transport_key: bytes = field(repr=False)
    mask_key: bytes = field(repr=False)


@dataclass(frozen=True)
class SealedShares:
    """Round 1: one share of each of the sender's two secrets, readable by the recipient only."""

    client: int
    recipient: int
    round_number: int
    sealed: bytes = field(repr=False)


@dataclass(frozen=True)
class MaskedInput:
    """Round 2: a client's vector under all its masks."""

    client: int
    round_number: int
    words: Words = field(repr=False)


@dataclass(frozen=True)
class UnmaskingRequest:
    """Round 3, from the server: who has submitted, and who has shared keys but not submitted."""

    submitted: frozenset[int]
    dropped: frozenset[int]


@dataclass(frozen=True)
class Unmasking:
    """Round 3, from a client: for each peer a share of one of its two secrets, never of both."""

    client: int
    round_number: int
    seed_shares: Mapping[int, int] = field(repr=False)
    mask_key_shares: Mapping[int, int] = field(repr=False)


def seal(key: bytes, message: bytes, associated: bytes, *, nonce: bytes) -> bytes:
    """Encrypt and authenticate by AES-GCM; the nonce goes in front.

    Parameters
    ----------
    key : bytes of length 32
    message : bytes
        What is hidden.
    associated : bytes
        What is not hidden but bound to the message: who writes to whom.
    nonce : bytes of length 12
        Never twice under one key.

    Returns
    -------
    bytes

    Examples
    --------
    >>> letter = seal(bytes(32), b"a share", b"3 to 5", nonce=bytes(12))
    >>> unseal(bytes(32), letter, b"3 to 5")
    b'a share'
    """
    return nonce + AESGCM(key).encrypt(nonce, message, associated)


def unseal(key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """Decrypt what :func:`seal` returned.

    Parameters
    ----------
    key : bytes of length 32
    sealed : bytes
        Nonce and ciphertext.
    associated : bytes
        As given to :func:`seal`.

    Returns
    -------
    bytes

    Raises
    ------
    cryptography.exceptions.InvalidTag
        If a bit of the message, the nonce, the key or ``associated`` is another, or bytes are missing.

    Examples
    --------
    >>> unseal(bytes(32), seal(bytes(32), b"a share", b"3 to 5", nonce=bytes(12)), b"3 to 4")
    Traceback (most recent call last):
        ...
    cryptography.exceptions.InvalidTag
    """
    if len(sealed) < _NONCE_BYTES:
        raise InvalidTag
    return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], associated)


def self_mask(seed: bytes, agreement: Agreement) -> Words:
    """Return the mask that a client adds on its own.

    Parameters
    ----------
    seed : bytes of length 32
        The client's secret b.
    agreement : Agreement

    Returns
    -------
    ndarray of unsigned integers, shape (length,)

    Examples
    --------
    >>> self_mask(bytes(32), Agreement((1, 2, 3), threshold=2, length=4)).shape
    (4,)
    """
    key = derive_key(seed, agreement.purpose("self mask"))
    return mask_words(key, agreement.length, word_bits=agreement.word_bits)


def pairwise_mask(client: int, mask_key: bytes, peers: Mapping[int, bytes], agreement: Agreement) -> Words:
    """Return what a client adds on behalf of its pairs: +mask for later names, −mask for earlier ones.

    Both ends of a pair compute the same mask with opposite signs, so the masks
    of all clients together add up to zero.

    Parameters
    ----------
    client : int
        Whose masks.
    mask_key : bytes of length 32
        Its private mask key.
    peers : mapping of int to bytes
        Public mask keys of the others.
    agreement : Agreement

    Returns
    -------
    ndarray of unsigned integers, shape (length,)

    Examples
    --------
    >>> agreement = Agreement((1, 2), threshold=2, length=3)
    >>> one, two = bytes(range(32)), bytes(range(32, 64))
    >>> first = pairwise_mask(1, one, {2: public_key_of(two)}, agreement)
    >>> first + pairwise_mask(2, two, {1: public_key_of(one)}, agreement)
    array([0, 0, 0], dtype=uint32)
    """
    total = np.zeros(agreement.length, dtype=_dtype(agreement.word_bits))
    for peer, public in peers.items():
        key = derive_key(agree(mask_key, public), agreement.purpose("pairwise mask"))
        words = mask_words(key, agreement.length, word_bits=agreement.word_bits)
        total = total + words if client < peer else total - words
    return total


# --- The two parties ------------------------------------------------------------------------------


class Client:
    """One client in one round: four steps, each once, in this order.

    Its keys exist only in here and only for this round; it forgets them after the
    last step, and nothing prints them. A step that was refused is not repeated:
    whoever was refused starts a new round with new keys.

    Parameters
    ----------
    name : int
        One of the agreed clients.
    agreement : Agreement
    entropy : callable from int to bytes, default os.urandom
        Source of keys.
    """

    def __init__(self, name: int, agreement: Agreement, *, entropy: Entropy = os.urandom) -> None:
        self.name = choice("name", name, agreement.clients)
        self.agreement = agreement
        self._entropy = entropy
        self._done = 0
        self._transport_key, self._mask_key, self._seed = (entropy(32) for _ in range(3))
        self._peers: dict[int, Advertisement] = {}
        self._held: dict[int, tuple[int, int]] = {}  # by sender: shares of its seed, of its mask key

    def __repr__(self) -> str:
        return f"Client({self.name}, {self._done} of {len(STEPS)} steps done)"

    def advertise(self) -> Advertisement:
        """Round 0: publish two public keys.

        Returns
        -------
        Advertisement
        """
        self._begin("advertise")
        self._advertised = Advertisement(
            self.name,
            self.agreement.round_number,
            public_key_of(self._transport_key),
            public_key_of(self._mask_key),
        )
        return self._advertised

    def share(self, advertisements: Iterable[Advertisement]) -> list[SealedShares]:
        """Round 1: share both secrets among all who advertised, one sealed letter each.

        Parameters
        ----------
        advertisements : iterable of Advertisement
            All that the server received, this client's own among them.

        Returns
        -------
        list of SealedShares

        Raises
        ------
        AggregationError
            If they are too few, from strangers, or a key appears twice.
        """
        self._begin("share")
        everyone = _by_client(advertisements, self.agreement)
        if everyone.get(self.name) != self._advertised:
            raise AggregationError(f"client {self.name}: the server changed or lost the keys of this client")
        _require_enough("advertised keys", everyone, self.agreement)
        keys = [key for each in everyone.values() for key in (each.transport_key, each.mask_key)]
        if len(set(keys)) != len(keys):
            raise AggregationError(f"client {self.name}: a public key appears twice in the list")
        self._peers = everyone
        points = {peer: self._point(peer) for peer in everyone}
        of_seed, of_key = (
            split_secret(
                secret,
                list(points.values()),
                min(self.agreement.threshold, len(points)),
                entropy=self._entropy,
            )
            for secret in (self._seed, self._mask_key)
        )
        self._held[self.name] = of_seed[points[self.name]], of_key[points[self.name]]
        return [
            self._sealed(peer, of_seed[point], of_key[point])
            for peer, point in points.items()
            if peer != self.name
        ]

    def submit(self, letters: Iterable[SealedShares], words: Words) -> MaskedInput:
        """Round 2: open the letters of the others, and send the vector under all masks.

        Parameters
        ----------
        letters : iterable of SealedShares
            Those addressed to this client.
        words : ndarray of unsigned integers, shape (length,)
            The vector; masks are shared with exactly those whose letters arrived.

        Returns
        -------
        MaskedInput

        Raises
        ------
        AggregationError
            If a letter was tampered with, redirected or of another round, or too few arrived.
        """
        words = _checked_words("words", words, self.agreement.word_bits, self.agreement.length)
        self._begin("submit")
        for peer, letter in _by_client(letters, self.agreement).items():
            if peer == self.name or peer not in self._peers:
                raise AggregationError(f"client {self.name}: no letter from client {peer} was due")
            self._held[peer] = self._opened(letter)
        _require_enough("shared keys", self._held, self.agreement)
        partners = {peer: self._peers[peer].mask_key for peer in self._held if peer != self.name}
        masked = (
            words
            + self_mask(self._seed, self.agreement)
            + pairwise_mask(self.name, self._mask_key, partners, self.agreement)
        )
        return MaskedInput(self.name, self.agreement.round_number, masked)

    def unmask(self, request: UnmaskingRequest) -> Unmasking:
        """Round 3: give out, for each peer, a share of its own mask or of its pairwise key.

        The own mask of those who submitted, the pairwise key of those who did not. Both
        together would lay a client's vector open, so a request that asks for both is
        refused, and so is a second one.

        Parameters
        ----------
        request : UnmaskingRequest

        Returns
        -------
        Unmasking

        Raises
        ------
        AggregationError
        """
        self._begin("unmask")
        both = sorted(request.submitted & request.dropped)
        if both:
            raise AggregationError(
                f"client {self.name}: clients {both} are said to have submitted and to have dropped out; "
                "both shares together would unmask them"
            )
        if request.submitted | request.dropped != set(self._held) or self.name not in request.submitted:
            raise AggregationError(
                f"client {self.name}: the request must name exactly those who shared keys, this client as "
                "one that submitted"
            )
        _require_enough("submitted", request.submitted, self.agreement)
        reply = Unmasking(
            self.name,
            self.agreement.round_number,
            {peer: self._held[peer][0] for peer in sorted(request.submitted)},
            {peer: self._held[peer][1] for peer in sorted(request.dropped)},
        )
        self._held.clear()
        self._transport_key = self._mask_key = self._seed = b""
        return reply

    def _begin(self, step: str) -> None:
        if STEPS.index(step) != self._done:
            allowed = STEPS[self._done] if self._done < len(STEPS) else "nothing: the round is over"
            raise AggregationError(f"client {self.name}: asked to {step}, but due is {allowed}")
        self._done += 1

    def _point(self, peer: int) -> int:
        return self.agreement.clients.index(peer) + 1

    def _transport(self, peer: int, sender: int, recipient: int) -> tuple[bytes, bytes]:
        """Return the key of a letter and what is bound to it."""
        direction = f"shares of {sender} for {recipient}"
        purpose = self.agreement.purpose(direction)
        return derive_key(agree(self._transport_key, self._peers[peer].transport_key), purpose), purpose

    def _sealed(self, peer: int, *shares: int) -> SealedShares:
        key, associated = self._transport(peer, self.name, peer)
        letter = b"".join(share.to_bytes(_SHARE_BYTES, "big") for share in shares)
        sealed = seal(key, letter, associated, nonce=self._entropy(_NONCE_BYTES))
        return SealedShares(self.name, peer, self.agreement.round_number, sealed)

    def _opened(self, letter: SealedShares) -> tuple[int, int]:
        key, associated = self._transport(letter.client, letter.client, self.name)
        try:
            plain = unseal(key, letter.sealed, associated)
        except InvalidTag as error:
            raise AggregationError(
                f"client {self.name}: the letter of client {letter.client} was changed, redirected, or not "
                "written in this round"
            ) from error
        if len(plain) != 2 * _SHARE_BYTES:
            raise AggregationError(
                f"client {self.name}: the letter of client {letter.client} holds no shares"
            )
        return int.from_bytes(plain[:_SHARE_BYTES], "big"), int.from_bytes(plain[_SHARE_BYTES:], "big")


@dataclass(frozen=True)
class SecureSum:
    """What a round gave.

    Attributes
    ----------
    total : ndarray of unsigned integers, shape (length,)
        The sum of the submitted vectors modulo 2^word_bits, exact to the bit.
    clients : tuple of int
        Whose vectors are in it.
    dropped : tuple of int
        Who shared keys and then left.
    received : mapping of int to ndarray
        The masked vectors, all that the server ever saw of each.
    """

    total: Words = field(repr=False)
    clients: tuple[int, ...]
    dropped: tuple[int, ...]
    received: Mapping[int, Words] = field(repr=False)


class Server:
    """The server in one round: it passes letters on, adds up, and removes the masks.

    Parameters
    ----------
    agreement : Agreement
    """

    def __init__(self, agreement: Agreement) -> None:
        self.agreement = agreement
        self._done = 0
        self._keys: dict[int, Advertisement] = {}
        self._sharers: frozenset[int] = frozenset()
        self._inputs: dict[int, MaskedInput] = {}

    def __repr__(self) -> str:
        return f"Server({self._done} of {len(STEPS)} steps done)"

    def collect_keys(self, advertisements: Iterable[Advertisement]) -> list[Advertisement]:
        """Round 0: the list of public keys that goes to every client.

        Parameters
        ----------
        advertisements : iterable of Advertisement

        Returns
        -------
        list of Advertisement
        """
        self._begin("advertise")
        self._keys = _by_client(advertisements, self.agreement)
        _require_enough("advertised keys", self._keys, self.agreement)
        return list(self._keys.values())

    def route_letters(self, letters: Iterable[SealedShares]) -> dict[int, list[SealedShares]]:
        """Round 1: the letters, by recipient. The server cannot open them.

        Parameters
        ----------
        letters : iterable of SealedShares

        Returns
        -------
        dict of int to list of SealedShares
        """
        self._begin("share")
        recipients: dict[int, list[int]] = {client: [] for client in self._keys}
        boxes: dict[int, list[SealedShares]] = {client: [] for client in self._keys}
        for letter in letters:
            if letter.client in recipients and letter.recipient in boxes:
                recipients[letter.client].append(letter.recipient)
                boxes[letter.recipient].append(letter)
        # Who left somebody out has shared with nobody: all must speak of the same group.
        self._sharers = frozenset(c for c in self._keys if sorted([c, *recipients[c]]) == sorted(self._keys))
        _require_enough("shared keys", self._sharers, self.agreement)
        return {
            client: [letter for letter in boxes[client] if letter.client in self._sharers]
            for client in sorted(self._sharers)
        }

    def collect_inputs(self, inputs: Iterable[MaskedInput]) -> UnmaskingRequest:
        """Round 2: the masked vectors, and the question who may be unmasked how.

        Parameters
        ----------
        inputs : iterable of MaskedInput

        Returns
        -------
        UnmaskingRequest

        Raises
        ------
        AggregationError
            If fewer than the threshold submitted: then there is no sum.
        """
        self._begin("submit")
        self._inputs = _by_client(inputs, self.agreement)
        strangers = sorted(set(self._inputs) - self._sharers)
        if strangers:
            raise AggregationError(f"clients {strangers} submitted without having shared keys")
        for each in self._inputs.values():
            _checked_words("words", each.words, self.agreement.word_bits, self.agreement.length)
        _require_enough("submitted", self._inputs, self.agreement)
        submitted = frozenset(self._inputs)
        return UnmaskingRequest(submitted, self._sharers - submitted)

    def unmask(self, replies: Iterable[Unmasking]) -> SecureSum:
        """Round 3: rebuild the secrets, subtract all masks.

        Parameters
        ----------
        replies : iterable of Unmasking

        Returns
        -------
        SecureSum

        Raises
        ------
        AggregationError
            If fewer than the threshold replied, or their shares contradict each other or
            the public keys.
        """
        self._begin("unmask")
        answers = _by_client(replies, self.agreement)
        _require_enough("replied", answers, self.agreement)
        submitted, dropped = sorted(self._inputs), sorted(self._sharers - set(self._inputs))
        for name, answer in answers.items():
            if sorted(answer.seed_shares) != submitted or sorted(answer.mask_key_shares) != dropped:
                raise AggregationError(f"the reply of client {name} does not answer the request")
        total = np.zeros(self.agreement.length, dtype=_dtype(self.agreement.word_bits))
        for client in submitted:
            seed = self._rebuilt(client, {name: a.seed_shares[client] for name, a in answers.items()})
            total = total + self._inputs[client].words - self_mask(seed, self.agreement)
        partners = {client: self._keys[client].mask_key for client in submitted}
        for client in dropped:
            key = self._rebuilt(client, {name: a.mask_key_shares[client] for name, a in answers.items()})
            if public_key_of(key) != self._keys[client].mask_key:
                raise AggregationError(f"the shares rebuild another key than client {client} advertised")
            total = total + pairwise_mask(client, key, partners, self.agreement)
        received = {client: self._inputs[client].words for client in submitted}
        return SecureSum(total, tuple(submitted), tuple(dropped), received)

    def _begin(self, step: str) -> None:
        if STEPS.index(step) != self._done:
            allowed = STEPS[self._done] if self._done < len(STEPS) else "nothing: the round is over"
            raise AggregationError(f"server: asked to {step}, but due is {allowed}")
        self._done += 1

    def _rebuilt(self, client: int, shares: Mapping[int, int]) -> bytes:
        points = {self.agreement.clients.index(holder) + 1: share for holder, share in shares.items()}
        try:
            return rebuild_secret(points, self.agreement.threshold)
        except AggregationError as error:
            raise AggregationError(f"client {client}: {error}") from None


def secure_sum(
    vectors: Mapping[int, Words],
    agreement: Agreement,
    *,
    leaves_before: Mapping[int, str] | None = None,
    entropy: Entropy = os.urandom,
) -> SecureSum:
    """Run one whole round, all parties in this process.

    Parameters
    ----------
    vectors : mapping of int to ndarray of unsigned integers, shape (length,)
        One vector for each agreed client.
    agreement : Agreement
    leaves_before : mapping of int to {"advertise", "share", "submit", "unmask"}, optional
        Clients that drop out, and the step they do not take any more.
    entropy : callable from int to bytes, default os.urandom
        Source of all keys.

    Returns
    -------
    SecureSum

    Raises
    ------
    AggregationError
        If fewer clients than the threshold are left at any step.

    References
    ----------
    [Bonawitz2017]

    Examples
    --------
    >>> vectors = {i: np.array([i, 10 * i], dtype=np.uint32) for i in (1, 2, 3)}
    >>> agreement = Agreement((1, 2, 3), threshold=2, length=2)
    >>> secure_sum(vectors, agreement).total
    array([ 6, 60], dtype=uint32)
    >>> secure_sum(vectors, agreement, leaves_before={2: "submit"}).total
    array([ 4, 40], dtype=uint32)
    """
    if set(vectors) != set(agreement.clients):
        raise ValueError(f"vectors must have the clients {agreement.clients}, got {tuple(vectors)}")
    leaves = dict(leaves_before or {})
    for client, step in leaves.items():
        choice("leaves_before", client, agreement.clients)
        choice("leaves_before", step, STEPS)
    clients = {name: Client(name, agreement, entropy=entropy) for name in agreement.clients}
    server = Server(agreement)

    def present(step: str) -> list[Client]:
        return [
            c
            for c in clients.values()
            if STEPS.index(leaves.get(c.name, "unmask")) >= STEPS.index(step) and leaves.get(c.name) != step
        ]

    keys = server.collect_keys([c.advertise() for c in present("advertise")])
    boxes = server.route_letters([letter for c in present("share") for letter in c.share(keys)])
    request = server.collect_inputs([c.submit(boxes[c.name], vectors[c.name]) for c in present("submit")])
    return server.unmask([c.unmask(request) for c in present("unmask")])


def communication_expansion(
    n_clients: int, length: int, bits: int = 16, *, word_bits: int | None = None
) -> float:
    """Return how many times the bits of the bare vector one client sends and receives.

    Keys and shares count 256 bits each: two keys of everybody (2n), two letters' shares to
    and from everybody else (4(n − 1)), one share of everybody in the end (n).

    Parameters
    ----------
    n_clients : int >= 2
    length : int >= 1
        Entries of the vector.
    bits : int >= 1, default 16
        Bits of an entry in the clear.
    word_bits : int, optional
        Bits of a masked entry; by default as few as hold the sum, bits + log2(n) rounded up.

    Returns
    -------
    float

    References
    ----------
    [Bonawitz2017]

    Examples
    --------
    >>> round(communication_expansion(2**10, 2**20), 2), round(communication_expansion(2**14, 2**24), 2)
    (1.73, 1.98)
    """
    n_clients = integer("n_clients", n_clients, at_least=2)
    length = integer("length", length, at_least=1)
    bits = integer("bits", bits, at_least=1)
    fewest = bits + (n_clients - 1).bit_length()
    word_bits = fewest if word_bits is None else integer("word_bits", word_bits, at_least=fewest)
    overhead = 256 * (2 * n_clients + 5 * n_clients - 4)
    return (overhead + length * word_bits) / (length * bits)


def _by_client(messages: Iterable[_Message], agreement: Agreement) -> dict[int, _Message]:
    """Return messages by sender, in the order of names, each sender once and of this round."""
    found: dict[int, _Message] = {}
    for message in messages:
        if message.client not in agreement.clients:
            raise AggregationError(f"client {message.client} is not one of those agreed on")
        if message.round_number != agreement.round_number:
            raise AggregationError(
                f"client {message.client} sent a message of round {message.round_number} in round "
                f"{agreement.round_number}"
            )
        if message.client in found:
            raise AggregationError(f"client {message.client} sent two messages where one was due")
        found[message.client] = message
    return dict(sorted(found.items()))


def _require_enough(what: str, clients: Iterable[int], agreement: Agreement) -> None:
    names = sorted(clients)
    if len(names) < agreement.threshold:
        raise AggregationError(
            f"only {len(names)} clients {what} ({names}), fewer than the threshold {agreement.threshold}: "
            "there is no sum"
        )


def _dtype(word_bits: int) -> np.dtype[Any]:
    return np.dtype(np.uint32 if word_bits == 32 else np.uint64)


def _checked_words(name: str, words: Any, word_bits: int, length: int | None = None) -> Words:
    dtype = _dtype(word_bits)
    if not isinstance(words, np.ndarray) or words.dtype != dtype:
        raise TypeError(f"{name} must be an array of {dtype}, got {getattr(words, 'dtype', type(words))}")
    if words.ndim != 1 or words.size < 1 or (length is not None and words.size != length):
        raise ValueError(f"{name} must have shape ({length or 'any'},), got {words.shape}")
    return words
