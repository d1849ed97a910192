"""Signed statements about an image: who says what about it, and one verdict on whether to believe them.

A *manifest* after the C2PA specification [C2PA2026] travels inside the image file: claims about its origin, a hash
of the file, and a signature with a certificate. The Content Authenticity Initiative's library writes and reads it;
this module adds an authority for experiments, whose keys live only as long as the program, and one function that
turns the library's states, codes and exceptions into a single answer. Nothing here uses a network. Chapter 10
explains it, and what a signature does not say.
"""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from c2pa import Builder, C2paError, C2paSignerInfo, C2paSigningAlg, Context, Reader, Settings, Signer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from thousand_fingers.validation import choice

State = Literal["trusted", "unknown signer", "tampered ingredient", "invalid", "no manifest"]

#: Where an image may come from, in the vocabulary that C2PA borrows from the IPTC.
SOURCE_TYPES = (
    "digitalCapture",
    "trainedAlgorithmicMedia",
    "compositeWithTrainedAlgorithmicMedia",
    "digitalArt",
)
#: What may be said to have been done to an image, in C2PA's vocabulary.
EDITS = ("cropped", "resized", "filtered", "color_adjustments", "drawing", "edited")
_VOCABULARY = "http://cv.iptc.org/newscodes/digitalsourcetype/"
#: The name under which the book's image mark is referred to in a manifest.
MARK_NAME = "thousand-fingers.tile.1"
# A signature without a time stamp counts only while its certificate is valid, and a time stamp needs a network.
_NOT_BEFORE, _NOT_AFTER = datetime.datetime(2020, 1, 1), datetime.datetime(2049, 1, 1)
_UNTRUSTED = "signingCredential.untrusted"


@dataclass(frozen=True)
class Authority:
    """A certificate authority for experiments.

    Parameters
    ----------
    name : str
        Its common name. Anybody can make another authority of the same name; only the key differs.
    certificate : bytes
        The root certificate, PEM: what a reader puts on the list of those it trusts.
    private_key : bytes
        PKCS #8, PEM. Made at run time and never written.
    """

    name: str
    certificate: bytes
    private_key: bytes = field(repr=False)


@dataclass(frozen=True)
class Identity:
    """A signer: a name, vouched for by an authority.

    Parameters
    ----------
    name : str
        Common name in the certificate.
    chain : bytes
        Certificates, PEM, the signer's own first and the root last.
    private_key : bytes
        PKCS #8, PEM.
    """

    name: str
    chain: bytes
    private_key: bytes = field(repr=False)


@dataclass(frozen=True)
class Signed:
    """An image file with its manifest.

    Parameters
    ----------
    data : bytes
        The file, manifest inside.
    manifest : bytes
        The manifest alone, as a register of manifests would keep it.
    """

    data: bytes
    manifest: bytes


@dataclass(frozen=True)
class Verdict:
    """The answer of :func:`verdict`.

    Parameters
    ----------
    state : {"trusted", "unknown signer", "tampered ingredient", "invalid", "no manifest"}
        ``unknown signer``: everything fits together, but an authority that the reader does not trust vouches for
        the signer of the image, or of an image that it was made from. ``tampered ingredient``: the image is what
        was signed, an image that it was made from is not what its own signer signed.
    codes : tuple of str
        What failed, in the specification's words, sorted; ``ingredient:`` in front if not in the image itself.
    signer : str
        Common name in the certificate, which proves nothing unless the state is ``trusted``.
    source_type : str
        What the manifest says about the origin, one of ``SOURCE_TYPES`` as a rule; empty if nothing.
    mark : str
        The mark that the manifest says is in the pixels, in hexadecimal; empty if none.
    tool : str
        The program that made the manifest, by its own account.
    actions : tuple of str
        What was done, in order, by the signer's account: ``created`` or ``opened`` first, then one of ``EDITS`` as
        a rule.
    """

    state: State
    codes: tuple[str, ...] = ()
    signer: str = ""
    source_type: str = ""
    mark: str = ""
    tool: str = ""
    actions: tuple[str, ...] = ()


def make_authority(name: str) -> Authority:
    """Make a certificate authority with a fresh key.

    Parameters
    ----------
    name : str
        Common name, at least one character.

    Returns
    -------
    Authority
        With an elliptic-curve key (P-256), valid until 2049.

    Raises
    ------
    ValueError
        If the name is empty or no text, or longer than 64 characters.

    Examples
    --------
    >>> make_authority("Test root").certificate.startswith(b"-----BEGIN CERTIFICATE-----")
    True
    """
    key, subject = ec.generate_private_key(ec.SECP256R1()), _name(name)
    signs = _key_usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        _certificate(subject, subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(signs, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(name, certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def issue(authority: Authority, name: str) -> Identity:
    """Let an authority vouch for a signer.

    Parameters
    ----------
    authority : Authority
        From :func:`make_authority`.
    name : str
        Common name of the signer.

    Returns
    -------
    Identity
        With a fresh key and a certificate that has what C2PA asks for: use for digital signatures, an extended
        use (e-mail protection), the identifier of the authority's key.

    Raises
    ------
    ValueError
        If the name is empty or no text, or longer than 64 characters.

    Examples
    --------
    >>> issue(make_authority("Test root"), "A newspaper").chain.count(b"BEGIN CERTIFICATE")
    2
    """
    key, subject = ec.generate_private_key(ec.SECP256R1()), _name(name)
    root = x509.load_pem_x509_certificate(authority.certificate)
    root_key = serialization.load_pem_private_key(authority.private_key, password=None)
    assert isinstance(root_key, ec.EllipticCurvePrivateKey)
    certificate = (
        _certificate(subject, root.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()), critical=False
        )
        .sign(root_key, hashes.SHA256())
    )
    own = certificate.public_bytes(serialization.Encoding.PEM)
    return Identity(name, own + authority.certificate, _pem(key))


def manifest(
    title: str,
    *,
    source_type: str = "trainedAlgorithmicMedia",
    mark: str = "",
    edited: bool = False,
    edits: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the statements of a manifest, ready for :func:`sign`.

    Parameters
    ----------
    title : str
        Of the image.
    source_type : str, default "trainedAlgorithmicMedia"
        One of ``SOURCE_TYPES``; the default means "made by a generative model".
    mark : str, default ""
        The message of a mark in the pixels, in hexadecimal. It is stated as a *soft binding*: a way back to the
        manifest when the file has lost it.
    edited : bool, default False
        Whether the image is an edited older one, to be handed to :func:`sign` as its parent. Then the manifest
        says "opened" instead of "created", and nothing about the origin.
    edits : sequence of str, optional
        What was done to an edited image, in order, each one of ``EDITS``.

    Returns
    -------
    dict
        A manifest definition as c2pa-python takes it.

    Raises
    ------
    ValueError
        If the source type or an edit is none of them, the mark is not hexadecimal, or there are edits of an image
        that is not an edited one.

    Examples
    --------
    >>> manifest("A landscape")["assertions"][0]["data"]["actions"][0]["action"]
    'c2pa.created'
    """
    choice("source_type", source_type, SOURCE_TYPES)
    if isinstance(edits, str) or (edits and not edited):
        raise ValueError(f"edits must be a sequence of names, and none unless edited, got {edits!r}")
    created = {"action": "c2pa.created", "digitalSourceType": _VOCABULARY + source_type}
    opened = {"action": "c2pa.opened", "parameters": {"ingredientIds": ["parent"]}}
    actions: list[dict[str, Any]] = [opened if edited else created]
    actions += [{"action": f"c2pa.{choice('edits', edit, EDITS)}"} for edit in edits]
    assertions: list[dict[str, Any]] = []
    if mark:
        if not isinstance(mark, str) or set(mark) - set("0123456789abcdef"):
            raise ValueError(f"mark must be hexadecimal, in lower case, got {mark!r}")
        actions.append({"action": "c2pa.watermarked"})
        binding = {"alg": MARK_NAME, "blocks": [{"scope": {}, "value": mark}]}
        assertions.append({"label": "c2pa.soft-binding", "data": binding})
    return {
        "title": title,
        "claim_generator_info": [{"name": "A Thousand Fingers", "version": "1"}],
        "assertions": [{"label": "c2pa.actions", "data": {"actions": actions}}, *assertions],
    }


def sign(
    data: bytes, statements: Mapping[str, Any], identity: Identity, *, parent: bytes | None = None
) -> Signed:
    """Put a signed manifest into an image file.

    Parameters
    ----------
    data : bytes
        A JPEG or PNG file. Its pixels stay as they are.
    statements : mapping
        From :func:`manifest`.
    identity : Identity
        Who signs.
    parent : bytes, optional
        The file that this one was edited from; its own manifest, if it has one, is kept as part of the history.
        It is kept as it is: signing does not vouch for it.

    Returns
    -------
    Signed

    Raises
    ------
    ValueError
        If the file is neither JPEG nor PNG, or the library refuses the certificate, the key, the order of the
        chain, or the statements; its reason is passed on.

    Examples
    --------
    >>> from thousand_fingers.watermark.image import encode, sample_pictures
    >>> identity = issue(make_authority("Test root"), "A newspaper")
    >>> file = encode(sample_pictures()["clouds"])
    >>> len(sign(file, manifest("Clouds"), identity).data) > len(file)
    True
    """
    mime, signed = _mime("data", data), io.BytesIO()
    try:
        info = C2paSignerInfo(C2paSigningAlg.ES256, identity.chain, identity.private_key, None)
        builder = Builder(dict(statements), _context([]))
        if parent is not None:
            as_parent = {"title": "parent", "label": "parent", "relationship": "parentOf"}
            builder.add_ingredient(as_parent, _mime("parent", parent), io.BytesIO(parent))
        store = builder.sign(Signer.from_info(info), mime, io.BytesIO(data), signed)
    except C2paError as error:
        raise ValueError(f"cannot sign: {error}") from None
    return Signed(signed.getvalue(), bytes(store))


def verdict(data: bytes, *, trusted: Sequence[bytes], stored: bytes | None = None) -> Verdict:
    """Say what an image file's manifest is worth.

    The library reports *Valid* for a signature of anybody at all, *Trusted* although an image that this one was
    made from has been tampered with, and a missing manifest as an exception. Here the whole history is walked, and
    there is one answer.

    Parameters
    ----------
    data : bytes
        A JPEG or PNG file.
    trusted : sequence of bytes
        Root certificates, PEM, that the reader trusts; none is a possible choice.
    stored : bytes, optional
        A manifest from elsewhere (:class:`Signed`), to be held against this file instead of the one inside.

    Returns
    -------
    Verdict

    Raises
    ------
    ValueError
        If the file is neither JPEG nor PNG, a root certificate is none, or ``stored`` is not bytes.

    Examples
    --------
    >>> from thousand_fingers.watermark.image import encode, sample_pictures
    >>> root, file = make_authority("Test root"), encode(sample_pictures()["clouds"])
    >>> signed = sign(file, manifest("Clouds"), issue(root, "A newspaper")).data
    >>> verdict(signed, trusted=[root.certificate]).state, verdict(signed, trusted=[]).state
    ('trusted', 'unknown signer')
    >>> verdict(file, trusted=[root.certificate]).state
    'no manifest'
    """
    mime = _mime("data", data)
    if stored is not None and not isinstance(stored, bytes):
        raise ValueError(f"stored must be a manifest in bytes, got {type(stored)}")
    context = _context(trusted)
    try:
        reader = Reader(mime, io.BytesIO(data), manifest_data=stored, context=context)
        report = json.loads(reader.json())
    except C2paError.ManifestNotFound:
        return Verdict("no manifest")
    except C2paError as error:
        return Verdict("invalid", (str(error).split(":")[0],))
    return _judge(report)


def _judge(report: Mapping[str, Any]) -> Verdict:
    own, history = _failures(report.get("validation_results", {})), _history_failures(report)
    own_codes, history_codes = ({code for code, _ in failures} for failures in (own, history))
    library_state = report.get("validation_state")
    state: State
    if library_state not in ("Trusted", "Valid") or own_codes - {_UNTRUSTED}:
        state = "invalid"
    elif history_codes - {_UNTRUSTED}:
        state = "tampered ingredient"
    elif library_state != "Trusted" or history_codes:
        state = "unknown signer"
    else:
        state = "trusted"
    codes = tuple(sorted(own_codes) + [f"ingredient:{code}" for code in sorted(history_codes)])
    active = report.get("manifests", {}).get(report.get("active_manifest"), {})
    signer = active.get("signature_info", {}).get("common_name", "")
    tool = next((str(info.get("name", "")) for info in active.get("claim_generator_info", [])), "")
    source_type, mark, actions = _statements(active.get("assertions", []))
    return Verdict(state, codes, signer, source_type, mark, tool, actions)


def _statements(assertions: Sequence[Mapping[str, Any]]) -> tuple[str, str, tuple[str, ...]]:
    """Return the origin and the mark that a manifest's assertions name, and what they say was done."""
    source_type = mark = ""
    actions: list[str] = []
    for assertion in assertions:
        label, said = assertion["label"], assertion["data"]
        if label.startswith("c2pa.actions"):
            types = [action.get("digitalSourceType", "").rsplit("/", 1)[-1] for action in said["actions"]]
            source_type = next(filter(None, types), source_type)
            actions += [action["action"].removeprefix("c2pa.") for action in said["actions"]]
        elif label.startswith("c2pa.soft-binding") and said.get("alg") == MARK_NAME:
            # the library accepts a binding without blocks, and any signer can write one
            mark = next((block["value"] for block in said["blocks"]), mark)
    return source_type, mark, tuple(actions)


def _history_failures(report: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return what fails in any image that any manifest of the store names as an ingredient, at any depth.

    Whoever signed the store has recorded what was found then; the deltas say what this reader, with a list of
    trusted authorities of its own, finds otherwise now.
    """
    found: set[tuple[str, str]] = set()
    for known in report.get("manifests", {}).values():
        for ingredient in known.get("ingredients", []):
            found |= _failures(ingredient.get("validation_results", {}))
    for delta in report.get("validation_results", {}).get("ingredientDeltas", []):
        changes = delta["validationDeltas"]
        found |= {(entry["code"], entry["url"]) for entry in changes.get("failure", [])}
        trusted = {e["url"] for e in changes.get("success", []) if e["code"] == "signingCredential.trusted"}
        found -= {(_UNTRUSTED, url) for url in trusted}
    return found


def _failures(results: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the failures of one manifest, each with what it is about; some are listed twice."""
    return {(entry["code"], entry["url"]) for entry in results.get("activeManifest", {}).get("failure", [])}


def _context(trusted: Sequence[bytes]) -> Context:
    return Context(Settings.from_dict(_settings(trusted)))


def _settings(trusted: Sequence[bytes]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "verify": {
            "verify_after_reading": True,
            "verify_trust": True,
            "remote_manifest_fetch": False,
            "ocsp_fetch": False,
        },
        "builder": {"thumbnail": {"enabled": False}},
    }
    if trusted:
        settings["trust"] = {"trust_anchors": b"".join(map(_anchors, trusted)).decode("ascii")}
    return settings


def _anchors(pem: bytes) -> bytes:
    """Return the certificates of one entry, each ending in a newline: the library skips what it cannot parse."""
    if not isinstance(pem, bytes):
        raise ValueError(
            f"trusted must be a sequence of certificates, PEM, in bytes, got an entry of {type(pem)}"
        )
    certificates = x509.load_pem_x509_certificates(pem)
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in certificates)


def _mime(name: str, data: bytes) -> str:
    for start, mime in ((b"\xff\xd8\xff", "image/jpeg"), (b"\x89PNG\r\n\x1a\n", "image/png")):
        if isinstance(data, bytes) and data.startswith(start):
            return mime
    raise ValueError(f"{name} must be the bytes of a JPEG or PNG file")


def _name(name: str) -> x509.Name:
    if not isinstance(name, str) or not 0 < len(name) <= 64:
        raise ValueError(f"name must be a text of 1 to 64 characters, got {name!r}")
    parts = ((NameOID.COUNTRY_NAME, "XX"), (NameOID.ORGANIZATION_NAME, name), (NameOID.COMMON_NAME, name))
    return x509.Name([x509.NameAttribute(*part) for part in parts])


def _certificate(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
    )


def _key_usage(**granted: bool) -> x509.KeyUsage:
    uses = (
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign "
        "crl_sign encipher_only decipher_only"
    )
    return x509.KeyUsage(**{use: granted.get(use, False) for use in uses.split()})


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
