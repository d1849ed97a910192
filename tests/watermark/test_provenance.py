"""Signed manifests: every state of the library on its own files, certificates of every kind, one verdict."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import io
import json
import socket
from typing import Any

import numpy as np
import pytest
from c2pa import (
    Builder,
    C2paError,
    C2paSignerInfo,
    C2paSigningAlg,
    Context,
    Reader,
    Settings,
    Signer,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from thousand_fingers.watermark import image as im
from thousand_fingers.watermark import provenance as pv
from thousand_fingers.watermark.provenance import (
    Authority,
    Identity,
    issue,
    make_authority,
    manifest,
    sign,
    verdict,
)

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


ANCHORED = {"trust_anchors": ROOT.certificate.decode()}


def context(trust: dict[str, str], **verify: bool) -> Context:
    """Settings of the library written here, none of them from the module under test."""
    settings: dict[str, Any] = {
        "verify": {"verify_trust": True, "remote_manifest_fetch": False, "ocsp_fetch": False, **verify},
        "builder": {"thumbnail": {"enabled": False}},
    }
    return Context(Settings.from_dict({**settings, "trust": trust} if trust else settings))


def reported(data: bytes, settings: Context, mime: str = "image/jpeg") -> dict[str, Any]:
    """The library's own report."""
    report: dict[str, Any] = json.loads(Reader(mime, io.BytesIO(data), context=settings).json())
    return report


def library_answer(data: bytes, settings: Context, mime: str = "image/jpeg") -> tuple[str, set[str]]:
    """State and failures of the file itself, as the library has them."""
    report = reported(data, settings, mime)
    results = report["validation_results"]["activeManifest"]
    return report["validation_state"], {failure["code"] for failure in results["failure"]}


def library_state(data: bytes, trusted: list[bytes]) -> str:
    return library_answer(data, context({"trust_anchors": b"".join(trusted).decode()} if trusted else {}))[0]


def library_signed(identity: Identity, settings: Context, embed: bool = True) -> tuple[bytes, bytes]:
    """Sign FILE with the library alone: the file that comes out, and the manifest."""
    info = C2paSignerInfo(C2paSigningAlg.ES256, identity.chain, identity.private_key, None)
    builder, out = Builder(manifest("Test card"), settings), io.BytesIO()
    if not embed:
        builder.set_no_embed()
    store = builder.sign(Signer.from_info(info), "image/jpeg", io.BytesIO(FILE), out)
    return out.getvalue(), bytes(store)


# --------------------------------------------------------------------------- states


def test_intact_and_anchored_is_trusted_and_says_what_it_said() -> None:
    assert verdict(SIGNED.data, trusted=TRUSTED) == pv.Verdict(
        "trusted",
        (),
        "A newspaper",
        "trainedAlgorithmicMedia",
        "00ffa5",
        "A Thousand Fingers",
        ("created", "watermarked"),
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


def test_a_bit_of_the_signatures_padding_is_nobodys_statement() -> None:
    """The one part of a manifest that no hash covers: a change there is not seen, by the library or by us."""
    padding = SIGNED.data.index(bytes(500))
    changed = flipped(SIGNED.data, padding + 250)
    assert library_state(changed, TRUSTED) == "Trusted"
    assert verdict(changed, trusted=TRUSTED) == verdict(SIGNED.data, trusted=TRUSTED)


def test_no_bit_of_the_image_can_be_changed_unseen() -> None:
    start = SIGNED.data.index(b"\xff\xeb")
    after = start + 2 + int.from_bytes(SIGNED.data[start + 2 : start + 4], "big")
    for place in range(after, len(SIGNED.data), 97):
        assert judged(flipped(SIGNED.data, place))[0] == "invalid"


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


def test_a_sidecar_holds_for_the_original_and_for_nothing_else() -> None:
    unchanged, sidecar = library_signed(ALICE, context({}), embed=False)
    assert unchanged == FILE
    assert judged(FILE) == ("no manifest", set())
    assert judged(FILE, stored=sidecar) == ("trusted", set())
    assert judged(FILE, stored=sidecar, trusted=[])[0] == "unknown signer"
    assert judged(flipped(FILE, -200), stored=sidecar) == ("invalid", {MISMATCH})
    # The file with a manifest inside is another file, and the sidecar is preferred to what is inside.
    assert judged(SIGNED.data, stored=sidecar) == ("invalid", {MISMATCH})


def test_an_embedded_manifest_is_no_sidecar_because_its_hash_leaves_out_its_own_place() -> None:
    with context(ANCHORED) as settings:
        reader = Reader("image/jpeg", io.BytesIO(FILE), manifest_data=SIGNED.manifest, context=settings)
        report = json.loads(reader.json())
    failures = report["validation_results"]["activeManifest"]["failure"]
    assert report["validation_state"] == "Invalid"
    assert {failure["code"] for failure in failures} == {MISMATCH}
    assert any("exclusion" in failure["explanation"] for failure in failures)


def test_without_a_check_of_trust_the_library_says_valid_and_names_no_failure() -> None:
    settings = context(ANCHORED, verify_trust=False)
    for data in (SIGNED.data, sign(FILE, manifest("Test card"), MALLORY).data):
        assert library_answer(data, settings) == ("Valid", set())
        assert pv._judge(reported(data, settings)).state == "unknown signer"
    assert library_answer(flipped(SIGNED.data, -200), settings) == ("Invalid", {MISMATCH})


@pytest.mark.parametrize("data", [SIGNED.data, flipped(SIGNED.data, -200)], ids=["intact", "tampered"])
def test_without_any_check_the_library_says_invalid_with_no_failure_and_no_success(data: bytes) -> None:
    settings = context(ANCHORED, verify_after_reading=False)
    report = reported(data, settings)
    assert library_answer(data, settings) == ("Invalid", set())
    assert report["validation_results"]["activeManifest"]["success"] == []
    assert pv._judge(report).state == "invalid"


def test_a_verdict_asks_for_every_check_and_does_not_rely_on_defaults() -> None:
    asked = pv._settings([])["verify"]
    assert asked["verify_after_reading"] is True
    assert asked["verify_trust"] is True


def test_the_library_goes_by_the_bytes_of_a_jpeg_and_not_by_the_type_that_it_is_told() -> None:
    """The same holds for a PNG that it is told to be a JPEG."""
    png = sign(PNG, manifest("Test card"), ALICE).data
    for data, wrong in ((SIGNED.data, "image/png"), (png, "image/jpeg")):
        assert library_answer(data, context(ANCHORED), wrong) == ("Trusted", set())
        assert library_answer(flipped(data, -200), context(ANCHORED), wrong) == ("Invalid", {MISMATCH})


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


def test_what_was_done_is_read_back_in_order() -> None:
    says = manifest("Edited", edited=True, edits=["cropped", "color_adjustments"])
    answer = verdict(sign(EDITED, says, ALICE, parent=SIGNED.data).data, trusted=TRUSTED)
    assert answer.actions == ("opened", "cropped", "color_adjustments")
    assert (answer.state, answer.tool, answer.signer) == ("trusted", "A Thousand Fingers", "A newspaper")


@pytest.mark.parametrize("edit", pv.EDITS)
def test_every_edit_is_accepted_by_the_library(edit: str) -> None:
    says = manifest("Edited", edited=True, edits=[edit])
    assert judged(sign(EDITED, says, ALICE, parent=SIGNED.data).data) == ("trusted", set())


def test_a_binding_without_blocks_is_no_mark_and_no_crash() -> None:
    """Any signer can write one, and the library lets it pass."""
    says = manifest("Test card")
    says["assertions"].append({"label": "c2pa.soft-binding", "data": {"alg": pv.MARK_NAME, "blocks": []}})
    answer = verdict(sign(FILE, says, ALICE).data, trusted=TRUSTED)
    assert (answer.state, answer.mark) == ("trusted", "")


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
    key_name: bool = False,
    self_signed: bool = False,
) -> Identity:
    """Build a certificate under ROOT with the parts that a case asks for, independently of the library."""
    key = ec.generate_private_key(ec.SECP256R1())
    root = x509.load_pem_x509_certificate(ROOT.certificate)
    root_key = serialization.load_pem_private_key(ROOT.private_key, None)
    names = [(NameOID.COUNTRY_NAME, "XX"), (NameOID.COMMON_NAME, "Case")]
    names += [(NameOID.ORGANIZATION_NAME, "Case")] if organization else []
    subject = x509.Name([x509.NameAttribute(*name) for name in names])
    issuer, issuer_key = (subject, key) if self_signed else (root.subject, root_key)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
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
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
        built = built.add_extension(identifier, critical=False)
    if key_name:
        named = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        built = built.add_extension(named, critical=False)
    own = built.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Identity("Case", own if self_signed else own + ROOT.certificate, secret)


@pytest.mark.case("MRK-29")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use": [ExtendedKeyUsageOID.TIME_STAMPING]},
        {"constraints": False},
        {"organization": False},
        {"key_name": True},
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


@pytest.mark.case("MRK-29")
@pytest.mark.parametrize(
    "use",
    [
        pytest.param("1.3.6.1.5.5.7.3.36", id="document signing"),
        pytest.param("1.3.6.1.4.1.62558.2.1", id="C2PA claim signing"),
    ],
)
def test_uses_that_both_signer_and_reader_must_list(use: str) -> None:
    identity = certified(use=[x509.ObjectIdentifier(use)])
    with pytest.raises(ValueError, match=r"signingCredential\.invalid.*missing required EKU"):
        sign(FILE, manifest("Test card"), identity)
    with pytest.raises(C2paError, match="missing required EKU"):
        library_signed(identity, context(ANCHORED))
    signed, _ = library_signed(identity, context({"trust_config": use}))
    unlisted = {"signingCredential.invalid", "signingCredential.untrusted"}
    assert library_answer(signed, context(ANCHORED)) == ("Invalid", unlisted)
    assert library_answer(signed, context({**ANCHORED, "trust_config": use})) == ("Trusted", set())
    assert judged(signed) == ("invalid", unlisted)


def made_intermediate() -> Authority:
    """An authority that ROOT vouches for, built independently of the library."""
    key = ec.generate_private_key(ec.SECP256R1())
    root = x509.load_pem_x509_certificate(ROOT.certificate)
    root_key = serialization.load_pem_private_key(ROOT.private_key, None)
    assert isinstance(root_key, ec.EllipticCurvePrivateKey)
    names = [(NameOID.ORGANIZATION_NAME, "Between"), (NameOID.COMMON_NAME, "Between")]
    issues = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    of_root = x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(*name) for name in names]))
        .issuer_name(root.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(2020, 1, 1))
        .not_valid_after(datetime.datetime(2049, 1, 1))
        .add_extension(x509.BasicConstraints(True, 0), critical=True)
        .add_extension(issues, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(of_root, critical=False)
        .sign(root_key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Authority("Between", certificate.public_bytes(serialization.Encoding.PEM), secret)


BETWEEN = made_intermediate()
BELOW = issue(BETWEEN, "A newspaper")
LEAF = BELOW.chain.removesuffix(BETWEEN.certificate)


@pytest.mark.case("MRK-30")
@pytest.mark.parametrize(
    ("chain", "state"),
    [
        pytest.param(LEAF + BETWEEN.certificate, "trusted", id="leaf, intermediate"),
        pytest.param(LEAF + BETWEEN.certificate + ROOT.certificate, "trusted", id="leaf, intermediate, root"),
        pytest.param(LEAF, "unknown signer", id="intermediate missing"),
        pytest.param(LEAF + ROOT.certificate, "unknown signer", id="intermediate missing, root there"),
    ],
)
def test_chains_with_an_intermediate_authority(chain: bytes, state: str) -> None:
    signed = sign(FILE, manifest("Test card"), dataclasses.replace(BELOW, chain=chain)).data
    assert library_state(signed, TRUSTED) == {"trusted": "Trusted", "unknown signer": "Valid"}[state]
    assert judged(signed) == (state, set() if state == "trusted" else {"signingCredential.untrusted"})
    assert judged(signed, trusted=[SAME_NAME.certificate])[0] == "unknown signer"


@pytest.mark.case("MRK-30")
@pytest.mark.parametrize("root", [b"", ROOT.certificate], ids=["without root", "with root"])
def test_an_intermediate_before_the_leaf_is_refused(root: bytes) -> None:
    wrong = dataclasses.replace(BELOW, chain=BETWEEN.certificate + LEAF + root)
    with pytest.raises(ValueError, match=r"cannot sign: .*certificate"):
        sign(FILE, manifest("Test card"), wrong)


def test_a_self_signed_leaf_is_trusted_by_who_anchors_it_and_by_nobody_else() -> None:
    identity = certified(self_signed=True)
    signed = sign(FILE, manifest("Test card"), identity).data
    assert judged(signed, trusted=[identity.chain]) == ("trusted", set())
    assert judged(signed) == ("unknown signer", {"signingCredential.untrusted"})
    assert judged(signed, trusted=[certified(self_signed=True).chain])[0] == "unknown signer"


def test_anchors_of_the_user_count_like_the_others() -> None:
    of_user = context({"user_anchors": ROOT.certificate.decode()})
    assert library_answer(SIGNED.data, of_user) == ("Trusted", set())
    assert library_answer(sign(FILE, manifest("Test card"), MALLORY).data, of_user)[0] == "Valid"


@pytest.mark.parametrize("listed", ["certificate", "chain", "fingerprint"])
def test_a_list_of_allowed_signers_does_not_make_one_trusted(listed: str) -> None:
    own = ALICE.chain.removesuffix(ROOT.certificate)
    fingerprint = base64.b64encode(x509.load_pem_x509_certificate(own).fingerprint(hashes.SHA256()))
    entry = {"certificate": own, "chain": ALICE.chain, "fingerprint": fingerprint + b"\n"}[listed]
    settings = context({"allowed_list": entry.decode()})
    assert library_answer(SIGNED.data, settings) == ("Valid", {"signingCredential.untrusted"})
    assert pv._judge(reported(SIGNED.data, settings)).state == "unknown signer"


def test_every_trusted_root_counts_however_its_text_ends() -> None:
    """The library skips a root whose first line hangs on to the last one of the root before it."""
    bare = [root.certificate.strip() for root in (SAME_NAME, ROOT)]
    assert library_state(SIGNED.data, bare) == "Valid"
    for trusted in (bare, bare[::-1], [b"\r\n".join(pem.split(b"\n")) for pem in bare]):
        assert judged(SIGNED.data, trusted=trusted) == ("trusted", set())


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
        lambda: manifest("x", mark=5),
        lambda: manifest("x", edits=["cropped"]),
        lambda: manifest("x", edited=True, edits=["improved"]),
        lambda: manifest("x", edited=True, edits="cropped"),
        lambda: verdict(FILE, trusted=[], stored="manifest"),
        lambda: sign(b"GIF89a", manifest("x"), ALICE),
        lambda: sign(FILE, manifest("x"), ALICE, parent=b""),
        lambda: sign(FILE, manifest("x", edited=True), ALICE),
        lambda: verdict(b"", trusted=[]),
        lambda: verdict("picture.jpg", trusted=[]),
        lambda: verdict(SIGNED.data, trusted=[b"no certificate"]),
        lambda: verdict(SIGNED.data, trusted=[ROOT.certificate, b"no certificate"]),
        lambda: verdict(SIGNED.data, trusted=[b""]),
        lambda: verdict(SIGNED.data, trusted=ROOT.certificate),
        lambda: verdict(SIGNED.data, trusted=[ROOT.certificate.decode()]),
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
