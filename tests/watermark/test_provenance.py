"""Signed manifests: every state of the library on its own files, certificates of every kind, one verdict."""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
import socket
from typing import Any

import numpy as np
import pytest
from c2pa import C2paError, Context, Reader, Settings
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from thousand_fingers.watermark import image as im
from thousand_fingers.watermark import provenance as pv
from thousand_fingers.watermark.provenance import Identity, issue, make_authority, manifest, sign, verdict

ROOT, SAME_NAME = make_authority("Test root"), make_authority("Test root")
ALICE, MALLORY = issue(ROOT, "A newspaper"), issue(SAME_NAME, "A newspaper")
TRUSTED = [ROOT.certificate]
PICTURE = np.random.default_rng(0).integers(90, 160, (72, 96, 3), dtype=np.uint8)
FILE, PNG = im.encode(PICTURE), im.encode(PICTURE, "PNG")
SIGNED = sign(FILE, manifest("Test card", mark="00ffa5"), ALICE)
EDITED = im.encode(PICTURE[:64])
MISMATCH = "assertion.dataHash.mismatch"


def flipped(data: bytes, position: int) -> bytes:
    """Flip one bit; a negative position counts from the end."""
    changed = bytearray(data)
    changed[position] ^= 1
    return bytes(changed)


def flipped_at(data: bytes, text: bytes, which: int = 0) -> bytes:
    position = -1
    for _ in range(which + 1):
        position = data.index(text, position + 1)
    return flipped(data, position + 1)


def judged(data: bytes, **options: Any) -> tuple[str, set[str]]:
    answer = verdict(data, **{"trusted": TRUSTED, **options})
    return answer.state, set(answer.codes)


def library_state(data: bytes, trusted: list[bytes]) -> str:
    """What the library itself answers, with settings written here."""
    settings: dict[str, Any] = {"verify": {"verify_trust": True, "remote_manifest_fetch": False}}
    if trusted:
        settings["trust"] = {"trust_anchors": b"".join(trusted).decode()}
    with Context(Settings.from_dict(settings)) as context:
        return json.loads(Reader("image/jpeg", io.BytesIO(data), context=context).json())["validation_state"]


# --------------------------------------------------------------------------- states


def test_intact_and_anchored_is_trusted_and_says_what_it_said() -> None:
    assert verdict(SIGNED.data, trusted=TRUSTED) == pv.Verdict(
        "trusted", (), "A newspaper", "trainedAlgorithmicMedia", "00ffa5"
    )


def test_pixels_are_those_before_signing() -> None:
    assert (im.decode(SIGNED.data) == im.decode(FILE)).all()


def test_without_anchors_the_library_says_valid_and_the_verdict_names_the_reason() -> None:
    assert library_state(SIGNED.data, []) == "Valid"
    assert judged(SIGNED.data, trusted=[]) == ("unknown signer", {"signingCredential.untrusted"})


def test_another_authority_of_the_same_name_is_not_trusted() -> None:
    forged = sign(FILE, manifest("Test card"), MALLORY).data
    assert library_state(forged, TRUSTED) == "Valid"
    assert judged(forged) == ("unknown signer", {"signingCredential.untrusted"})
    assert judged(forged, trusted=[SAME_NAME.certificate])[0] == "trusted"
    assert judged(forged, trusted=[ROOT.certificate, SAME_NAME.certificate])[0] == "trusted"


@pytest.mark.parametrize(
    ("changed", "codes"),
    [
        pytest.param(flipped(SIGNED.data, -200), {MISMATCH}, id="one bit of the pixels"),
        pytest.param(SIGNED.data + b"0123456789", {MISMATCH}, id="ten bytes at the end"),
        pytest.param(
            SIGNED.data[:2] + b"\xff\xfe\x00\x07hello" + SIGNED.data[2:], {MISMATCH}, id="a comment segment"
        ),
        pytest.param(flipped_at(SIGNED.data, b"Test card"), {"claimSignature.mismatch"}, id="the title"),
        pytest.param(
            flipped_at(SIGNED.data, b"trainedAlgorithmicMedia"),
            {"assertion.hashedURI.mismatch"},
            id="the origin",
        ),
        pytest.param(flipped_at(SIGNED.data, b"00ffa5"), {"assertion.hashedURI.mismatch"}, id="the mark"),
    ],
)
def test_one_change_anywhere_is_invalid(changed: bytes, codes: set[str]) -> None:
    assert library_state(changed, TRUSTED) == "Invalid"
    assert judged(changed) == ("invalid", codes)


def test_a_manifest_moved_to_another_image() -> None:
    start = SIGNED.data.index(b"\xff\xeb")
    length = int.from_bytes(SIGNED.data[start + 2 : start + 4], "big") + 2
    segment = SIGNED.data[start : start + length]
    other = im.encode(255 - PICTURE)
    assert judged(other[:20] + segment + other[20:]) == ("invalid", {MISMATCH})


@pytest.mark.case("MRK-34")
@pytest.mark.parametrize("quality", [100, 85, 30])
def test_saving_again_loses_the_manifest(quality: int) -> None:
    again = im.encode(im.decode(SIGNED.data), quality=quality)
    with pytest.raises(C2paError.ManifestNotFound):
        library_state(again, TRUSTED)
    assert verdict(again, trusted=TRUSTED) == pv.Verdict("no manifest")
    assert judged(im.encode(im.decode(SIGNED.data), "PNG")) == ("no manifest", set())


def test_never_signed() -> None:
    assert judged(FILE) == judged(PNG) == ("no manifest", set())


def test_png() -> None:
    signed = sign(PNG, manifest("Test card"), ALICE).data
    assert judged(signed) == ("trusted", set())
    assert judged(flipped(signed, -200)) == ("invalid", {MISMATCH})


def test_a_stored_manifest_identifies_but_does_not_authenticate_another_file() -> None:
    assert judged(SIGNED.data, stored=SIGNED.manifest) == ("trusted", set())
    for other in (FILE, im.encode(im.decode(SIGNED.data), quality=85)):
        answer = verdict(other, trusted=TRUSTED, stored=SIGNED.manifest)
        assert (answer.state, answer.codes) == ("invalid", (MISMATCH,))
        assert answer.mark == "00ffa5"  # it says which image it means


def test_signing_twice_differs_and_both_hold() -> None:
    again = sign(FILE, manifest("Test card", mark="00ffa5"), ALICE)
    assert again.manifest != SIGNED.manifest
    assert judged(again.data) == ("trusted", set())


# --------------------------------------------------------------------------- history


def edited_from(parent: bytes, identity: Identity = ALICE, picture: bytes = EDITED) -> bytes:
    return sign(picture, manifest("Edited", edited=True), identity, parent=parent).data


def test_an_edited_image_with_an_honest_parent() -> None:
    assert judged(edited_from(SIGNED.data)) == ("trusted", set())
    assert judged(edited_from(FILE)) == ("trusted", set())  # a parent without a manifest claims nothing


@pytest.mark.case("MRK-32")
def test_a_tampered_ingredient_is_found_although_the_library_says_trusted() -> None:
    child = edited_from(flipped(SIGNED.data, -200))
    assert library_state(child, TRUSTED) == "Trusted"
    assert judged(child) == ("tampered ingredient", {f"ingredient:{MISMATCH}"})


@pytest.mark.case("MRK-32")
def test_a_tampered_ingredient_is_found_two_generations_back() -> None:
    child = edited_from(flipped(SIGNED.data, -200))
    grandchild = edited_from(child, picture=im.encode(PICTURE[:48]))
    assert library_state(grandchild, TRUSTED) == "Trusted"
    assert judged(grandchild) == ("tampered ingredient", {f"ingredient:{MISMATCH}"})
    assert judged(edited_from(edited_from(SIGNED.data), picture=FILE)) == ("trusted", set())


@pytest.mark.case("MRK-32")
@pytest.mark.parametrize("where", ["the title", "the origin"])
def test_a_parent_whose_manifest_was_changed(where: str) -> None:
    text = {"the title": b"Test card", "the origin": b"trainedAlgorithmicMedia"}[where]
    state, codes = judged(edited_from(flipped_at(SIGNED.data, text)))
    assert state in ("tampered ingredient", "invalid")
    assert codes


def test_a_parent_of_an_unknown_signer_taints_the_child_until_the_reader_knows_both() -> None:
    child = edited_from(sign(FILE, manifest("Test card"), MALLORY).data)
    assert library_state(child, TRUSTED) == "Trusted"
    assert judged(child) == ("unknown signer", {"ingredient:signingCredential.untrusted"})
    assert judged(child, trusted=[ROOT.certificate, SAME_NAME.certificate]) == ("trusted", set())


@pytest.mark.case("MRK-32")
@pytest.mark.parametrize("occurrences", ["first", "all"])
def test_renaming_the_active_manifest(occurrences: str) -> None:
    start = SIGNED.data.index(b"urn:c2pa:")
    name = SIGNED.data[start : start + 45]
    renamed = name[:-1] + (b"0" if name[-1:] != b"0" else b"1")
    changed = SIGNED.data.replace(name, renamed, 1 if occurrences == "first" else -1)
    state, codes = judged(changed)
    assert state == "invalid"
    assert codes & {"claimSignature.mismatch", "claimSignature.missing"}


# --------------------------------------------------------------------------- certificates


def certified(
    *,
    use: list[x509.ObjectIdentifier] | None = [ExtendedKeyUsageOID.EMAIL_PROTECTION],  # noqa: B006
    signs: bool | None = True,
    authority_key: bool = True,
    constraints: bool = True,
    years: tuple[int, int] = (2020, 2049),
    organization: bool = True,
) -> Identity:
    """Build a certificate under ROOT with the parts that a case asks for, independently of the library."""
    key = ec.generate_private_key(ec.SECP256R1())
    root = x509.load_pem_x509_certificate(ROOT.certificate)
    root_key = serialization.load_pem_private_key(ROOT.private_key, None)
    names = [(NameOID.COUNTRY_NAME, "XX"), (NameOID.COMMON_NAME, "Case")]
    names += [(NameOID.ORGANIZATION_NAME, "Case")] if organization else []
    built = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(*name) for name in names]))
        .issuer_name(root.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(years[0], 1, 1))
        .not_valid_after(datetime.datetime(years[1], 1, 1))
    )
    if constraints:
        built = built.add_extension(x509.BasicConstraints(False, None), critical=True)
    if signs is not None:
        granted = [signs, False, not signs, False, False, False, False, False, False]
        built = built.add_extension(x509.KeyUsage(*granted), critical=True)
    if use is not None:
        built = built.add_extension(x509.ExtendedKeyUsage(use), critical=False)
    if authority_key:
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key())
        built = built.add_extension(identifier, critical=False)
    own = built.sign(root_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Identity("Case", own + ROOT.certificate, secret)


@pytest.mark.case("MRK-29")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use": [ExtendedKeyUsageOID.TIME_STAMPING]},
        {"constraints": False},
        {"organization": False},
    ],
    ids=str,
)
def test_certificates_that_are_accepted(options: dict[str, Any]) -> None:
    signed = sign(FILE, manifest("Test card"), certified(**options)).data
    assert judged(signed) == ("trusted", set())


@pytest.mark.case("MRK-29")
@pytest.mark.parametrize(
    "options",
    [
        {"use": [ExtendedKeyUsageOID.CODE_SIGNING]},
        {"use": [ExtendedKeyUsageOID.SERVER_AUTH]},
        {"use": [ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]},
        {"use": [ExtendedKeyUsageOID.EMAIL_PROTECTION, ExtendedKeyUsageOID.TIME_STAMPING]},
        {"use": None},
        {"signs": False},
        {"signs": None},
        {"authority_key": False},
    ],
    ids=str,
)
def test_certificates_that_are_refused_at_signing(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"cannot sign: .*certificate"):
        sign(FILE, manifest("Test card"), certified(**options))


@pytest.mark.case("MRK-33")
@pytest.mark.parametrize("years", [(2020, 2021), (2047, 2049)], ids=["expired", "not yet valid"])
def test_a_certificate_out_of_its_time_is_refused(years: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"cannot sign: .*valid"):
        sign(FILE, manifest("Test card"), certified(years=years))


@pytest.mark.case("MRK-33")
def test_test_certificates_are_made_at_run_time_and_last() -> None:
    for pem in (ROOT.certificate, ALICE.chain):
        for certificate in x509.load_pem_x509_certificates(pem):
            assert certificate.not_valid_after_utc.year >= 2049
    assert make_authority("Test root").certificate != ROOT.certificate


@pytest.mark.case("MRK-30")
def test_a_chain_in_the_wrong_order_is_an_error_and_not_a_bad_signature() -> None:
    own = ALICE.chain.removesuffix(ROOT.certificate)
    assert own + ROOT.certificate == ALICE.chain
    with pytest.raises(ValueError, match="cannot sign: "):
        sign(FILE, manifest("Test card"), dataclasses.replace(ALICE, chain=ROOT.certificate + own))
    alone = sign(FILE, manifest("Test card"), dataclasses.replace(ALICE, chain=own)).data
    assert judged(alone) == ("trusted", set())  # the reader has the root


def test_a_key_that_is_not_the_certificates() -> None:
    with pytest.raises(ValueError, match="cannot sign"):
        sign(FILE, manifest("Test card"), dataclasses.replace(ALICE, private_key=MALLORY.private_key))


def test_a_key_in_another_wrapping_is_refused() -> None:
    key = serialization.load_pem_private_key(ALICE.private_key, None)
    sec1 = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    with pytest.raises(ValueError, match="cannot sign"):
        sign(FILE, manifest("Test card"), dataclasses.replace(ALICE, private_key=sec1))


def test_certificates_chain_up_to_the_root_by_an_independent_check() -> None:
    own, root = x509.load_pem_x509_certificates(ALICE.chain)
    own.verify_directly_issued_by(root)
    with pytest.raises(Exception):  # noqa: B017, PT011 - any refusal
        own.verify_directly_issued_by(x509.load_pem_x509_certificate(SAME_NAME.certificate))


def test_private_keys_are_not_printed() -> None:
    assert "PRIVATE" not in repr(ROOT) + repr(ALICE)


# --------------------------------------------------------------------------- statements and bad inputs


@pytest.mark.parametrize("source_type", pv.SOURCE_TYPES)
def test_every_origin_is_read_back(source_type: str) -> None:
    signed = sign(FILE, manifest("Test card", source_type=source_type), ALICE).data
    assert verdict(signed, trusted=TRUSTED).source_type == source_type


def test_statements_without_an_origin_are_refused() -> None:
    statements = manifest("Test card")
    statements["assertions"][0]["data"]["actions"] = [{"action": "c2pa.created"}]
    with pytest.raises(ValueError, match=r"assertion\.action\.malformed"):
        sign(FILE, statements, ALICE)


@pytest.mark.parametrize(
    "call",
    [
        lambda: make_authority(""),
        lambda: make_authority("x" * 65),
        lambda: issue(ROOT, ""),
        lambda: manifest("x", source_type="dream"),
        lambda: manifest("x", mark="XYZ"),
        lambda: sign(b"GIF89a", manifest("x"), ALICE),
        lambda: sign(FILE, manifest("x"), ALICE, parent=b""),
        lambda: sign(FILE, manifest("x", edited=True), ALICE),
        lambda: verdict(b"", trusted=[]),
        lambda: verdict("picture.jpg", trusted=[]),
        lambda: verdict(SIGNED.data, trusted=[b"no certificate"]),
    ],
)
def test_arguments_that_are_refused(call) -> None:
    with pytest.raises(ValueError, match=r"must be|cannot sign|PEM"):
        call()


def test_broken_files_are_judged_and_never_trusted() -> None:
    assert judged(SIGNED.data[: len(SIGNED.data) // 2])[0] in ("invalid", "no manifest")
    assert judged(SIGNED.data, stored=b"not a manifest")[0] in ("invalid", "no manifest")


def test_nothing_asks_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("asked the network")

    monkeypatch.setattr(socket, "socket", refuse)
    assert judged(sign(FILE, manifest("Test card"), ALICE).data) == ("trusted", set())
    settings = json.dumps(pv._settings([]))
    assert '"remote_manifest_fetch": false' in settings
    assert '"ocsp_fetch": false' in settings
