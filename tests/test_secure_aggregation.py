"""Secure aggregation: published test vectors, exact sums, clear refusals, masks that look like noise."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy.stats import chisquare, kstest

from thousand_fingers.secure_aggregation import (
    SHAMIR_PRIME,
    STEPS,
    Advertisement,
    AggregationError,
    Agreement,
    Client,
    FixedPoint,
    MaskedInput,
    SealedShares,
    Server,
    Unmasking,
    UnmaskingRequest,
    agree,
    communication_expansion,
    derive_key,
    insecure_entropy,
    keystream,
    mask_words,
    pairwise_mask,
    public_key_of,
    rebuild_secret,
    seal,
    secure_sum,
    split_secret,
    unseal,
)

TEN = Agreement(tuple(range(1, 11)), threshold=6, length=50)


def entropy(seed: int = 0) -> Callable[[int], bytes]:
    return insecure_entropy(np.random.default_rng(seed))


def random_vectors(agreement: Agreement, seed: int = 0) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(seed)
    dtype = np.uint32 if agreement.word_bits == 32 else np.uint64
    top = 2**agreement.word_bits - 1
    return {c: rng.integers(0, top, agreement.length, dtype, endpoint=True) for c in agreement.clients}


def exact_sum(vectors: dict[int, np.ndarray], clients: tuple[int, ...], word_bits: int = 32) -> list[int]:
    """The sum by Python's integers, which never overflow."""
    return [
        sum(column) % 2**word_bits for column in zip(*(vectors[c].tolist() for c in clients), strict=True)
    ]


@dataclasses.dataclass
class Started:
    """A round in which all letters have been delivered."""

    server: Server
    clients: dict[int, Client]
    keys: list[Advertisement]
    boxes: dict[int, list[SealedShares]]


def start(agreement: Agreement = TEN, seed: int = 0) -> Started:
    source = entropy(seed)
    clients = {c: Client(c, agreement, entropy=source) for c in agreement.clients}
    server = Server(agreement)
    keys = server.collect_keys([c.advertise() for c in clients.values()])
    boxes = server.route_letters([letter for c in clients.values() for letter in c.share(keys)])
    return Started(server, clients, keys, boxes)


def submit(started: Started, names: tuple[int, ...], seed: int = 0) -> list[MaskedInput]:
    vectors = random_vectors(started.server.agreement, seed)
    return [started.clients[c].submit(started.boxes[c], vectors[c]) for c in names]


# --------------------------------------------------------------------------- primitives: published vectors


def test_x25519_gives_the_first_vector_of_rfc_7748() -> None:
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    assert agree(scalar, point).hex() == "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"


def test_x25519_gives_the_iterated_vector_of_rfc_7748() -> None:
    nine = (9).to_bytes(32, "little")
    assert agree(nine, nine).hex() == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"


def test_both_parties_of_rfc_7748_agree() -> None:
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f92ebc099a2a1ba61a8b8a9a3e2")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    assert agree(alice, public_key_of(bob)) == agree(bob, public_key_of(alice))
    assert public_key_of(bob).hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"


@pytest.mark.parametrize("point", [bytes(32), (1).to_bytes(32, "little")])
def test_a_point_that_gives_everybody_the_same_secret_is_refused(point: bytes) -> None:
    with pytest.raises(ValueError, match="public_key must not be of low order"):
        agree(bytes(range(32)), point)


@pytest.mark.parametrize(("private", "public"), [(31, 32), (32, 33), (0, 32)])
def test_keys_of_another_length_are_refused(private: int, public: int) -> None:
    with pytest.raises(ValueError, match=r"_key must have 32 bytes, got"):
        agree(bytes(private), bytes(public))


def test_hkdf_gives_the_first_vector_of_rfc_5869() -> None:
    key = derive_key(
        bytes([0x0B] * 22),
        bytes.fromhex("f0f1f2f3f4f5f6f7f8f9"),
        salt=bytes.fromhex("000102030405060708090a0b0c"),
        length=42,
    )
    assert key.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"


def test_hkdf_without_salt_gives_the_third_vector_of_rfc_5869() -> None:
    key = derive_key(bytes([0x0B] * 22), b"", length=42)
    assert key.hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"


def test_the_key_stream_gives_the_vector_of_sp_800_38a() -> None:
    # F.5.5, CTR-AES256: plaintext XOR ciphertext is the stream; four blocks, so the counter runs on.
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    plain = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = bytes.fromhex(
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    stream = keystream(key, 64, counter=bytes(range(0xF0, 0x100)))
    assert bytes(a ^ b for a, b in zip(stream, plain, strict=True)) == cipher


def test_sealing_gives_the_gcm_vector_of_the_specification() -> None:
    # McGrew and Viega, test case 14: key, nonce and one block of plaintext all zero.
    sealed = seal(bytes(32), bytes(16), b"", nonce=bytes(12))
    assert sealed[:12] == bytes(12)
    assert sealed[12:28].hex() == "cea7403d4d606b6e074ec5d3baf39d18"
    assert sealed[28:].hex() == "d0d1c8a799996bf0265b98b5d48ab919"


@settings(max_examples=30)
@given(position=st.integers(0, 12 + 66 + 16 - 1), bit=st.integers(0, 7))
def test_a_letter_with_one_changed_bit_does_not_open(position: int, bit: int) -> None:
    letter = bytearray(seal(bytes(32), bytes(66), b"3 to 5", nonce=bytes(12)))
    letter[position] ^= 1 << bit
    with pytest.raises(InvalidTag):
        unseal(bytes(32), bytes(letter), b"3 to 5")


# --------------------------------------------------------------------------- Shamir


def test_the_prime_is_the_smallest_above_every_secret() -> None:
    def is_prime(n: int) -> bool:  # Miller and Rabin, 24 bases
        odd, twos = n - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        for base in range(2, 26):
            x = pow(base, odd, n)
            if x in (1, n - 1):
                continue
            if not any((x := x * x % n) == n - 1 for _ in range(twos - 1)):
                return False
        return True

    assert SHAMIR_PRIME > 2**256
    assert is_prime(SHAMIR_PRIME)
    assert not any(is_prime(n) for n in range(2**256, SHAMIR_PRIME))


@settings(max_examples=40)
@given(
    secret=st.binary(min_size=32, max_size=32),
    n=st.integers(1, 7),
    seed=st.integers(0, 1_000),
    data=st.data(),
)
def test_every_group_of_threshold_size_rebuilds_the_secret(secret: bytes, n: int, seed: int, data) -> None:
    threshold = data.draw(st.integers(1, n))
    shares = split_secret(secret, range(1, n + 1), threshold, entropy=entropy(seed))
    for group in itertools.combinations(shares, threshold):
        assert rebuild_secret({x: shares[x] for x in group}, threshold) == secret
    assert rebuild_secret(shares, threshold) == secret


def test_the_largest_secret_survives() -> None:
    shares = split_secret(b"\xff" * 32, [1, 2, 3], 2, entropy=entropy())
    assert rebuild_secret(shares, 2) == b"\xff" * 32


def test_one_share_too_few_is_compatible_with_every_secret() -> None:
    # For any two shares and any wished secret there is a third share that leads to it.
    shares = split_secret(bytes(range(32)), [1, 2, 3, 4], 3, entropy=entropy())
    for wished in (0, 1, 2**255, 2**256 - 1):
        # Lagrange at 0 for points 1, 2, 3 has the weights 3, -3, 1.
        third = (wished - 3 * shares[1] + 3 * shares[2]) % SHAMIR_PRIME
        assert rebuild_secret({1: shares[1], 2: shares[2], 3: third}, 3) == wished.to_bytes(32, "big")


def test_the_shares_are_spread_over_the_whole_field() -> None:
    # The share at one point of a fixed secret, threshold 2, is uniform.
    source = entropy(1)
    draws = [split_secret(bytes(32), [5], 1, entropy=source)[5] for _ in range(1)]
    assert draws == [0]  # a threshold of one hides nothing
    draws = [split_secret(bytes(32), [1, 5], 2, entropy=source)[5] / SHAMIR_PRIME for _ in range(2_000)]
    assert kstest(draws, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("wrong", [1, 2, 3, 4])
def test_a_wrong_share_among_more_than_needed_is_noticed(wrong: int) -> None:
    shares = split_secret(bytes(range(32)), [1, 2, 3, 4], 3, entropy=entropy())
    shares[wrong] += 1
    with pytest.raises(AggregationError, match="contradict each other"):
        rebuild_secret(shares, 3)


def test_too_few_shares_give_no_secret() -> None:
    shares = split_secret(bytes(32), [1, 2, 3], 3, entropy=entropy())
    with pytest.raises(AggregationError, match="2 shares do not reach the threshold 3"):
        rebuild_secret({1: shares[1], 2: shares[2]}, 3)


@pytest.mark.parametrize(
    ("points", "threshold", "message"),
    [
        ([1, 1], 1, "distinct"),
        ([0, 1], 1, "points must be >= 1"),
        ([1, 2], 3, "threshold"),
        ([1], 0, "threshold"),
    ],
)
def test_impossible_splits_are_refused(points: list[int], threshold: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_secret(bytes(32), points, threshold)


def test_a_secret_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="secret must have 32 bytes, got 16"):
        split_secret(bytes(16), [1, 2], 2)


# --------------------------------------------------------------------------- masks


@pytest.mark.case("FLW-10")
def test_every_bit_of_a_key_matters() -> None:
    key = bytes(range(32))
    masks = {mask_words(key, 8).tobytes()}
    for bit in range(256):
        changed = int.from_bytes(key, "big") ^ 1 << bit
        masks.add(mask_words(changed.to_bytes(32, "big"), 8).tobytes())
    assert len(masks) == 257


@pytest.mark.case("FLW-10")
@pytest.mark.parametrize("word_bits", [32, 64])
def test_a_mask_is_uniform_on_all_residues_the_last_included(word_bits: int) -> None:
    words = mask_words(derive_key(b"any", b"test"), 200_000, word_bits=word_bits)
    for shift in range(0, word_bits, 8):
        counts = np.bincount((words >> shift).astype(np.uint8), minlength=256)
        assert chisquare(counts).pvalue > 1e-4
    assert kstest(words / 2.0**word_bits, "uniform").pvalue > 1e-3
    two_bits = np.bincount((words % 4).astype(int), minlength=4)
    assert two_bits.size == 4
    assert chisquare(two_bits).pvalue > 1e-3


@settings(max_examples=20)
@given(n=st.integers(2, 6), seed=st.integers(0, 1_000), word_bits=st.sampled_from([32, 64]))
def test_pairwise_masks_of_all_clients_cancel(n: int, seed: int, word_bits: int) -> None:
    names = tuple(3 * i + 2 for i in range(n))
    agreement = Agreement(names, n, 5, word_bits)
    source = entropy(seed)
    private = {c: source(32) for c in names}
    masks = [
        pairwise_mask(c, private[c], {p: public_key_of(private[p]) for p in names if p != c}, agreement)
        for c in names
    ]
    assert (sum(masks[1:], masks[0]) == 0).all()
    assert all(mask.any() for mask in masks)


@pytest.mark.case("FLW-10")
def test_what_the_server_receives_of_zeros_is_noise_and_sums_to_zero() -> None:
    agreement = Agreement((1, 2, 3, 4), threshold=3, length=100_000)
    zeros = {c: np.zeros(agreement.length, dtype=np.uint32) for c in agreement.clients}
    result = secure_sum(zeros, agreement, entropy=entropy())
    assert not result.total.any()
    seen = list(result.received.values())
    for words in seen:
        for shift in (0, 8, 16, 24):
            assert chisquare(np.bincount((words >> shift).astype(np.uint8), minlength=256)).pvalue > 1e-4
        assert kstest(words / 2.0**32, "uniform").pvalue > 1e-3
    for a, b in itertools.combinations(seen, 2):
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(agreement.length)
        difference = (a - b) / 2.0**32
        assert kstest(difference, "uniform").pvalue > 1e-3


def test_the_law_of_what_the_server_receives_does_not_depend_on_the_vector() -> None:
    agreement = Agreement((1, 2, 3), threshold=2, length=100_000)
    constant = {c: np.full(agreement.length, 2**31 + c, dtype=np.uint32) for c in agreement.clients}
    for words in secure_sum(constant, agreement, entropy=entropy(3)).received.values():
        assert kstest(words / 2.0**32, "uniform").pvalue > 1e-3


# --------------------------------------------------------------------------- whole rounds


@pytest.mark.parametrize(
    ("leaves", "counted"),
    [
        ({}, 10),
        ({3: "submit"}, 9),
        ({1: "submit", 5: "submit", 10: "submit"}, 7),
        ({2: "share", 3: "submit", 4: "unmask"}, 8),
        ({7: "advertise", 2: "share", 3: "submit", 4: "unmask"}, 7),
        ({1: "unmask", 2: "unmask", 3: "unmask", 4: "unmask"}, 10),
        ({1: "advertise", 2: "advertise", 3: "advertise", 4: "advertise"}, 6),
    ],
)
@pytest.mark.parametrize("word_bits", [32, 64])
def test_the_sum_is_exact_to_the_bit_whoever_leaves(
    leaves: dict[int, str], counted: int, word_bits: int
) -> None:
    agreement = dataclasses.replace(TEN, word_bits=word_bits)
    vectors = random_vectors(agreement)
    result = secure_sum(vectors, agreement, leaves_before=leaves, entropy=entropy())
    expected = tuple(c for c in agreement.clients if leaves.get(c, "unmask") == "unmask")
    assert result.clients == expected
    assert len(expected) == counted
    assert result.dropped == tuple(c for c in leaves if leaves[c] == "submit")
    assert result.total.tolist() == exact_sum(vectors, expected, word_bits)


@settings(max_examples=25)
@given(n=st.integers(2, 7), seed=st.integers(0, 10_000), data=st.data())
def test_any_round_gives_the_exact_sum_or_a_refusal(n: int, seed: int, data) -> None:
    names = tuple(data.draw(st.permutations(range(1, 20)))[:n])
    threshold = data.draw(st.integers(n // 2 + 1, n))
    agreement = Agreement(names, threshold, 4)
    leaves = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from(STEPS)))
    vectors = random_vectors(agreement, seed)
    staying = [c for c in names if c not in leaves]
    if len(staying) < threshold:
        with pytest.raises(AggregationError, match=f"fewer than the threshold {threshold}: there is no sum"):
            secure_sum(vectors, agreement, leaves_before=leaves, entropy=entropy(seed))
        return
    result = secure_sum(vectors, agreement, leaves_before=leaves, entropy=entropy(seed))
    expected = tuple(sorted(c for c in names if leaves.get(c, "unmask") == "unmask"))
    assert result.clients == expected
    assert result.total.tolist() == exact_sum(vectors, expected)


@pytest.mark.case("FED-11")
@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("advertise", "only 5 clients advertised keys ([6, 7, 8, 9, 10])"),
        ("share", "only 5 clients shared keys ([6, 7, 8, 9, 10])"),
        ("submit", "only 5 clients submitted ([6, 7, 8, 9, 10])"),
        ("unmask", "only 5 clients replied ([6, 7, 8, 9, 10])"),
    ],
)
def test_below_the_threshold_there_is_a_refusal_that_names_the_survivors_and_no_number(
    step: str, message: str
) -> None:
    with pytest.raises(AggregationError, match=re.escape(f"{message}, fewer than the threshold 6")):
        secure_sum(
            random_vectors(TEN), TEN, leaves_before=dict.fromkeys(range(1, 6), step), entropy=entropy()
        )


def test_the_inputs_are_left_as_they_were() -> None:
    vectors = random_vectors(TEN)
    before = {c: v.copy() for c, v in vectors.items()}
    secure_sum(vectors, TEN, entropy=entropy())
    for c in vectors:
        assert_array_equal(vectors[c], before[c])


def test_by_default_keys_come_from_the_operating_system_and_never_repeat() -> None:
    vectors = random_vectors(TEN)
    first, second = (secure_sum(vectors, TEN) for _ in range(2))
    assert_array_equal(first.total, second.total)
    assert all((first.received[c] != second.received[c]).all() for c in TEN.clients)


@pytest.mark.case("FED-9")
def test_the_same_entropy_gives_the_same_round() -> None:
    first, second = (secure_sum(random_vectors(TEN), TEN, entropy=entropy(4)) for _ in range(2))
    for c in TEN.clients:
        assert_array_equal(first.received[c], second.received[c])


# --------------------------------------------------------------------------- what a client refuses


@pytest.mark.case("FLW-11")
def test_a_client_gives_nothing_for_a_peer_that_is_said_to_be_alive_and_gone() -> None:
    started = start()
    request = started.server.collect_inputs(submit(started, TEN.clients))
    lie = UnmaskingRequest(request.submitted, frozenset({3}))
    with pytest.raises(
        AggregationError, match=r"clients \[3\] are said to have submitted and to have dropped"
    ):
        started.clients[1].unmask(lie)


@pytest.mark.case("FLW-11")
def test_a_second_unmasking_request_is_refused_whatever_it_asks() -> None:
    started = start()
    request = started.server.collect_inputs(submit(started, TEN.clients))
    client = started.clients[1]
    client.unmask(request)
    for again in (request, UnmaskingRequest(request.submitted - {3}, frozenset({3}))):
        with pytest.raises(AggregationError, match="the round is over"):
            client.unmask(again)


@pytest.mark.case("FLW-11")
def test_two_stories_told_to_two_halves_never_collect_both_secrets_of_a_client() -> None:
    # A lying server tells some clients that 3 is there and the others that 3 has left.
    started = start()
    request = started.server.collect_inputs(submit(started, TEN.clients))
    other = UnmaskingRequest(request.submitted - {3}, frozenset({3}))
    told_gone = (6, 7, 8, 9, 10)
    answers = [started.clients[c].unmask(other if c in told_gone else request) for c in TEN.clients]
    seeds = [a.client for a in answers if 3 in a.seed_shares]
    keys = [a.client for a in answers if 3 in a.mask_key_shares]
    assert not set(seeds) & set(keys)
    assert len(seeds) < TEN.threshold
    assert len(keys) < TEN.threshold
    # Whatever the split: each client gives one kind, and two groups of a majority do not fit into ten.
    assert len(seeds) + len(keys) < 2 * TEN.threshold


@pytest.mark.parametrize("threshold", [0, 5, 11])
def test_a_threshold_of_half_the_clients_or_impossible_is_refused(threshold: int) -> None:
    with pytest.raises(ValueError, match="threshold must be >= 6 and <= 10"):
        Agreement(TEN.clients, threshold, 5)


def test_a_client_whose_own_submission_was_lost_does_not_help_to_rebuild_itself() -> None:
    started = start()
    submit(started, TEN.clients)
    lost = UnmaskingRequest(frozenset(TEN.clients) - {1}, frozenset({1}))
    with pytest.raises(AggregationError, match="this client as one that submitted"):
        started.clients[1].unmask(lost)


@pytest.mark.parametrize("missing", [frozenset({4}), frozenset({4, 5})])
def test_a_request_that_leaves_somebody_out_is_refused(missing: frozenset[int]) -> None:
    started = start()
    submit(started, TEN.clients)
    with pytest.raises(AggregationError, match="exactly those who shared keys"):
        started.clients[1].unmask(UnmaskingRequest(frozenset(TEN.clients) - missing, frozenset()))


def test_a_request_below_the_threshold_is_refused_by_the_client_too() -> None:
    started = start()
    submit(started, TEN.clients)
    few = frozenset({1, 2, 3, 4, 5})
    with pytest.raises(AggregationError, match="only 5 clients submitted"):
        started.clients[1].unmask(UnmaskingRequest(few, frozenset(TEN.clients) - few))


def test_no_vector_is_sent_twice_under_the_same_masks() -> None:
    started = start()
    words = random_vectors(TEN)[1]
    started.clients[1].submit(started.boxes[1], words)
    with pytest.raises(AggregationError, match="asked to submit, but due is unmask"):
        started.clients[1].submit(started.boxes[1], words + np.uint32(1))


def test_steps_out_of_order_are_refused() -> None:
    client = Client(1, TEN)
    with pytest.raises(AggregationError, match="asked to share, but due is advertise"):
        client.share([])
    with pytest.raises(AggregationError, match="asked to unmask, but due is advertise"):
        client.unmask(UnmaskingRequest(frozenset(), frozenset()))
    with pytest.raises(AggregationError, match="server: asked to submit, but due is advertise"):
        Server(TEN).collect_inputs([])


def test_a_public_key_that_appears_twice_is_refused() -> None:
    clients = [Client(c, TEN, entropy=entropy(c)) for c in TEN.clients]
    keys = [c.advertise() for c in clients]
    keys[4] = dataclasses.replace(keys[4], mask_key=keys[5].mask_key)
    with pytest.raises(AggregationError, match="a public key appears twice"):
        clients[0].share(keys)


def test_a_client_whose_own_keys_were_exchanged_notices() -> None:
    clients = [Client(c, TEN, entropy=entropy(c)) for c in TEN.clients]
    keys = [c.advertise() for c in clients]
    keys[0] = dataclasses.replace(keys[0], mask_key=public_key_of(bytes(32)))
    with pytest.raises(AggregationError, match="changed or lost the keys of this client"):
        clients[0].share(keys)


def test_a_point_of_low_order_among_the_keys_is_refused() -> None:
    clients = [Client(c, TEN, entropy=entropy(c)) for c in TEN.clients]
    keys = [c.advertise() for c in clients]
    keys[1] = dataclasses.replace(keys[1], transport_key=bytes(32))
    with pytest.raises(ValueError, match="public_key must not be of low order"):
        clients[0].share(keys)


@pytest.mark.parametrize("fault", ["flipped", "redirected", "renamed", "of another round", "empty"])
def test_a_letter_that_was_touched_is_not_opened(fault: str) -> None:
    started = start()
    box = list(started.boxes[1])
    letter = box[2]
    sealed = bytearray(letter.sealed)
    sealed[40] ^= 1
    box[2] = {
        "flipped": dataclasses.replace(letter, sealed=bytes(sealed)),
        "redirected": dataclasses.replace(
            next(x for x in started.boxes[2] if x.client == letter.client), recipient=1
        ),
        "renamed": dataclasses.replace(box[3], client=letter.client),
        "of another round": next(x for x in start(seed=9).boxes[1] if x.client == letter.client),
        "empty": dataclasses.replace(letter, sealed=b""),
    }[fault]
    with pytest.raises(
        AggregationError, match=f"the letter of client {letter.client} was changed, redirected"
    ):
        started.clients[1].submit(box, random_vectors(TEN)[1])


@pytest.mark.case("FED-10")
def test_messages_of_another_round_and_duplicates_are_refused() -> None:
    stale = Client(1, dataclasses.replace(TEN, round_number=4)).advertise()
    fresh = [Client(c, dataclasses.replace(TEN, round_number=5)).advertise() for c in TEN.clients]
    server = Server(dataclasses.replace(TEN, round_number=5))
    with pytest.raises(AggregationError, match="client 1 sent a message of round 4 in round 5"):
        server.collect_keys([stale, *fresh[1:]])
    with pytest.raises(AggregationError, match="client 2 sent two messages"):
        Server(server.agreement).collect_keys([*fresh, fresh[1]])
    with pytest.raises(AggregationError, match="client 11 is not one of those agreed on"):
        Server(server.agreement).collect_keys([dataclasses.replace(fresh[0], client=11)])


def test_a_letter_without_shares_is_refused() -> None:
    started = start()
    sender = started.clients[4]
    key, associated = sender._transport(1, 4, 1)
    hollow = SealedShares(4, 1, 0, seal(key, b"good morning", associated, nonce=bytes(12)))
    box = [hollow if x.client == 4 else x for x in started.boxes[1]]
    with pytest.raises(AggregationError, match="the letter of client 4 holds no shares"):
        started.clients[1].submit(box, random_vectors(TEN)[1])


def test_a_letter_of_a_stranger_is_refused() -> None:
    started = start()
    with pytest.raises(AggregationError, match="no letter from client 1 was due"):
        started.clients[1].submit([*started.boxes[1], started.boxes[2][0]], random_vectors(TEN)[1])


# --------------------------------------------------------------------------- what the server refuses


def test_who_left_somebody_out_of_the_letters_counts_as_gone() -> None:
    source = entropy()
    clients = {c: Client(c, TEN, entropy=source) for c in TEN.clients}
    server = Server(TEN)
    keys = server.collect_keys([c.advertise() for c in clients.values()])
    letters = [letter for c in clients.values() for letter in c.share(keys)]
    boxes = server.route_letters([x for x in letters if (x.client, x.recipient) != (3, 7)])
    assert 3 not in boxes
    vectors = random_vectors(TEN)
    request = server.collect_inputs([clients[c].submit(boxes[c], vectors[c]) for c in boxes])
    result = server.unmask([clients[c].unmask(request) for c in boxes])
    assert result.total.tolist() == exact_sum(vectors, tuple(c for c in TEN.clients if c != 3))


def test_a_late_vector_is_not_added_and_stays_masked() -> None:
    started = start()
    vectors = random_vectors(TEN)
    present = tuple(c for c in TEN.clients if c != 3)
    request = started.server.collect_inputs(
        [started.clients[c].submit(started.boxes[c], vectors[c]) for c in present]
    )
    replies = [started.clients[c].unmask(request) for c in present]
    late = started.clients[3].submit(started.boxes[3], vectors[3])
    with pytest.raises(AggregationError, match="asked to submit, but due is unmask"):
        started.server.collect_inputs([late])
    # The server may rebuild the mask key of 3. Without the second mask it would now read the vector.
    key = rebuild_secret({a.client: a.mask_key_shares[3] for a in replies}, TEN.threshold)
    peers = {a.client: a.mask_key for a in started.keys if a.client != 3}
    under_own_mask = late.words - pairwise_mask(3, key, peers, TEN)
    assert not (under_own_mask == vectors[3]).any()
    assert not any(3 in a.seed_shares for a in replies)


@pytest.mark.parametrize("kind", ["seed_shares", "mask_key_shares"])
def test_a_wrong_share_in_a_reply_is_noticed_when_there_are_more_than_needed(kind: str) -> None:
    started = start()
    present = tuple(c for c in TEN.clients if c != 3)
    request = started.server.collect_inputs(submit(started, present))
    replies = [started.clients[c].unmask(request) for c in present]
    peer = 3 if kind == "mask_key_shares" else 5
    wrong = {**getattr(replies[0], kind), peer: 17}
    replies[0] = dataclasses.replace(replies[0], **{kind: wrong})
    with pytest.raises(AggregationError, match=f"client {peer}: the shares contradict each other"):
        started.server.unmask(replies)


def test_a_rebuilt_key_is_compared_with_the_public_one() -> None:
    # Exactly as many replies as needed: the shares cannot be compared with each other.
    started = start()
    present = tuple(c for c in TEN.clients if c != 3)
    request = started.server.collect_inputs(submit(started, present))
    replies = [started.clients[c].unmask(request) for c in present[:6]]
    swapped = {**replies[0].mask_key_shares, 3: replies[0].mask_key_shares[3] ^ 1}
    replies[0] = dataclasses.replace(replies[0], mask_key_shares=swapped)
    with pytest.raises(AggregationError, match=r"another key than client 3 advertised|no secret of 32 bytes"):
        started.server.unmask(replies)


@pytest.mark.parametrize("change", [{"seed_shares": {}}, {"mask_key_shares": {3: 1}}])
def test_a_reply_to_another_question_is_refused(change: dict[str, dict[int, int]]) -> None:
    started = start()
    request = started.server.collect_inputs(submit(started, TEN.clients))
    replies: list[Unmasking] = [started.clients[c].unmask(request) for c in TEN.clients]
    replies[2] = dataclasses.replace(replies[2], **change)
    with pytest.raises(AggregationError, match="the reply of client 3 does not answer the request"):
        started.server.unmask(replies)


def test_a_vector_of_a_stranger_or_of_the_wrong_shape_is_refused() -> None:
    started = start()
    inputs = submit(started, TEN.clients)
    short = [dataclasses.replace(inputs[0], words=inputs[0].words[:-1]), *inputs[1:]]
    with pytest.raises(ValueError, match=r"words must have shape \(50,\), got \(49,\)"):
        started.server.collect_inputs(short)


def test_a_vector_without_shared_keys_is_refused() -> None:
    source = entropy()
    clients = {c: Client(c, TEN, entropy=source) for c in TEN.clients}
    server = Server(TEN)
    keys = server.collect_keys([c.advertise() for c in clients.values()])
    boxes = server.route_letters([x for c in TEN.clients[1:] for x in clients[c].share(keys)])
    vectors = random_vectors(TEN)
    inputs = [clients[c].submit(boxes[c], vectors[c]) for c in boxes]
    with pytest.raises(AggregationError, match=r"clients \[1\] submitted without having shared keys"):
        server.collect_inputs([*inputs, MaskedInput(1, 0, vectors[1])])


@pytest.mark.parametrize(
    "words", [np.zeros(50), np.zeros(50, dtype=np.int64), np.zeros(50, dtype=np.uint64), [0] * 50]
)
def test_vectors_that_are_no_words_are_refused(words: np.ndarray) -> None:
    with pytest.raises(TypeError, match="words must be an array of uint32"):
        start().clients[1].submit([], words)


def test_keys_are_never_printed() -> None:
    started = start()
    inputs = submit(started, TEN.clients)
    request = started.server.collect_inputs(inputs)
    client = started.clients[1]
    secrets = [client._transport_key, client._mask_key, client._seed]
    shares = [share for pair in client._held.values() for share in pair]
    reply = client.unmask(request)
    printed = " ".join(map(repr, [client, started.server, *started.keys, *started.boxes[1], *inputs, reply]))
    for secret in secrets:
        assert repr(secret) not in printed
        assert secret.hex() not in printed
    assert not any(str(share) in printed for share in shares)
    assert client._transport_key == client._mask_key == client._seed == b""  # and forgotten
    assert not client._held


@pytest.mark.parametrize(
    ("clients", "message"),
    [((1,), "at least two"), ((1, 1, 2), "distinct"), ((0, 1), "clients must be >= 1")],
)
def test_impossible_groups_are_refused(clients: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Agreement(clients, 2, 5)


def test_secure_sum_wants_one_vector_per_client_and_known_steps() -> None:
    vectors = random_vectors(TEN)
    with pytest.raises(ValueError, match="vectors must have the clients"):
        secure_sum({c: vectors[c] for c in range(1, 10)}, TEN)
    with pytest.raises(ValueError, match="leaves_before must be one of 'advertise'"):
        secure_sum(vectors, TEN, leaves_before={1: "lunch"})


# --------------------------------------------------------------------------- what a sum does not hide


def test_the_difference_of_two_rounds_is_the_client_who_left() -> None:
    vectors = random_vectors(TEN)
    first = secure_sum(vectors, TEN)
    second = secure_sum(vectors, dataclasses.replace(TEN, round_number=1), leaves_before={7: "advertise"})
    assert_array_equal(first.total - second.total, vectors[7])


def test_in_a_group_of_two_each_knows_the_other() -> None:
    pair = Agreement((1, 2), threshold=2, length=5)
    vectors = random_vectors(pair)
    assert_array_equal(secure_sum(vectors, pair).total - vectors[1], vectors[2])


# --------------------------------------------------------------------------- encoding


@settings(max_examples=50)
@given(
    seed=st.integers(0, 1_000),
    weights=st.lists(st.integers(0, 40), min_size=2, max_size=6).filter(sum),
    bits=st.integers(1, 20),
    clip=st.sampled_from([1e-6, 0.3, 1.0, 100.0]),
    word_bits=st.sampled_from([32, 64]),
)
def test_the_decoded_mean_is_within_half_a_step_of_federated_averaging(
    seed: int, weights: list[int], bits: int, clip: float, word_bits: int
) -> None:
    code = FixedPoint(clip, len(weights), 40, bits, word_bits)
    updates = np.random.default_rng(seed).uniform(-clip, clip, (len(weights), 8))
    agreement = Agreement(tuple(range(1, len(weights) + 1)), len(weights), 9, word_bits)
    encoded = {c: code.encode(u, n) for c, u, n in zip(agreement.clients, updates, weights, strict=True)}
    assert not any(e.n_clipped for e in encoded.values())
    decoded = code.decode(
        secure_sum({c: e.words for c, e in encoded.items()}, agreement, entropy=entropy(seed)).total
    )
    plain = np.average(updates, axis=0, weights=weights)
    assert decoded.weight == sum(weights)
    assert np.abs(decoded.mean - plain).max() <= code.step / 2 + 1e-12 * clip


@pytest.mark.case("FLW-11")
def test_no_sum_that_the_setting_allows_can_overflow() -> None:
    for bits, word_bits, n, weight in [
        (16, 32, 65_537, 1),
        (16, 32, 1, 65_537),
        (13, 32, 4, 131_088),
        (32, 64, 7, 99),
    ]:
        code = FixedPoint(1.0, n, weight, bits, word_bits)
        assert n * weight * code.top < 2**word_bits
        assert (n * weight + 1) * code.top >= 2**word_bits or (bits, n) in [(32, 7), (13, 4)]
    highest = FixedPoint(1.0, 4, 16_384)
    words = highest.encode([1.0, -1.0], weight=16_384).words
    mean = highest.decode(words + words + words + words)
    assert mean.mean.tolist() == [1.0, -1.0]
    assert mean.weight == 65_536


@pytest.mark.case("FLW-11")
@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"n_clients": 2, "max_weight": 32_769}, 65_537),  # 16-bit levels in 32-bit words
        ({"n_clients": 10, "max_weight": 2**17, "bits": 13}, 524_352),  # a peer's setting, wrong from ten on
        ({"n_clients": 4, "max_weight": 2**30, "bits": 2}, 2**32 // 3),
    ],
)
def test_a_setting_in_which_a_sum_could_overflow_is_refused_before_the_round(
    options: dict[str, int], most: int
) -> None:
    with pytest.raises(ValueError, match=rf"n_clients \* max_weight must be <= {most}"):
        FixedPoint(1.0, **options)
    FixedPoint(1.0, **options, word_bits=64)


@pytest.mark.case("FLW-11")
def test_a_client_with_more_weight_than_agreed_is_refused_not_wrapped() -> None:
    code = FixedPoint(1.0, n_clients=10, max_weight=1_000)
    with pytest.raises(ValueError, match="weight must be >= 0 and <= 1000, got 1001"):
        code.encode([0.0], weight=1_001)


@pytest.mark.case("FLW-11")
def test_clipped_entries_are_counted() -> None:
    code = FixedPoint(8.0, n_clients=3)
    encoded = code.encode([9.0, -8.0, 8.0, -8.1, 0.0])
    assert encoded.n_clipped == 2
    assert_array_equal(code.decode(encoded.words).mean[[0, 3]], [8.0, -8.0])


@pytest.mark.case("FLW-11")
@pytest.mark.parametrize("clip", [0.0, -1.0, np.nan, np.inf])
def test_a_clipping_range_that_is_no_range_is_refused(clip: float) -> None:
    with pytest.raises(ValueError, match="clip must be"):
        FixedPoint(clip, n_clients=3)


def test_negative_entries_come_back_negative() -> None:
    code = FixedPoint(1.0, n_clients=3, max_weight=7)
    total = sum(
        (code.encode([-0.9, 0.41], weight=w).words for w in (7, 2)), code.encode([-0.9, 0.41], 1).words
    )
    assert np.abs(code.decode(total).mean - [-0.9, 0.41]).max() <= code.step / 2


@pytest.mark.case("FED-3")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_refused_by_its_own_client(bad: float) -> None:
    with pytest.raises(ValueError, match="update must be finite"):
        FixedPoint(1.0, n_clients=3).encode([0.0, bad])


@pytest.mark.case("FED-1")
def test_a_mean_over_no_example_is_refused() -> None:
    code = FixedPoint(1.0, n_clients=2)
    words = code.encode([0.5], weight=0).words
    with pytest.raises(ValueError, match="no client had an example"):
        code.decode(words + words)


@pytest.mark.case("FED-2")
def test_a_client_without_examples_adds_nothing() -> None:
    code = FixedPoint(8.0, n_clients=2, max_weight=3, bits=20)
    total = code.encode([1.0, 2.0], weight=0).words + code.encode([5.0, 6.0], weight=3).words
    assert np.abs(code.decode(total).mean - [5, 6]).max() <= code.step / 2


def test_words_that_are_no_sum_of_the_encoding_are_refused() -> None:
    code = FixedPoint(1.0, n_clients=2, bits=8)
    for words in ([256, 1], [0, 3]):
        with pytest.raises(ValueError, match="must be a sum of words of this encoding"):
            code.decode(np.array(words, dtype=np.uint32))


# --------------------------------------------------------------------------- cost


@pytest.mark.parametrize(
    ("n", "length", "factor"), [(2**10, 2**20, 1.73), (2**14, 2**24, 1.98)], ids=["1024", "16384"]
)
def test_the_expansion_is_the_published_one(n: int, length: int, factor: float) -> None:
    assert round(communication_expansion(n, length), 2) == factor


def test_words_too_short_for_the_sum_are_refused() -> None:
    with pytest.raises(ValueError, match="word_bits must be >= 26"):
        communication_expansion(1_024, 10, word_bits=25)
    assert communication_expansion(2, 10**9, word_bits=32) == pytest.approx(2)


def test_a_code_refuses_what_it_cannot_count_with() -> None:
    with pytest.raises(TypeError, match="word_bits"):
        FixedPoint(clip=1.0, n_clients=2, word_bits=32.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="clip must be"):
        FixedPoint(clip=1e308, n_clients=2)  # twice as much is infinite
    code = FixedPoint(clip=1e300, n_clients=1)
    assert code.decode(code.encode([1e300]).words).mean == pytest.approx([1e300])


@pytest.mark.parametrize("length", [0, 16, 24, 33])
def test_a_mask_needs_a_key_of_256_bits(length: int) -> None:
    with pytest.raises(ValueError, match="key must have 32 bytes"):
        mask_words(bytes(length), 4)
