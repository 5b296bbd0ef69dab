"""Signatures of the release: its own step signs an image with a local key, in a registry of this machine.

What cosign left of such a run is kept in `signed.json`, and its signature is verified without cosign, so that what
`cosign verify` promises a user is seen wherever these tests run.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from laptop.ports import LOOPBACK, free_port
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
SIGNED: dict[str, str] = json.loads((Path(__file__).with_name("signed.json")).read_text(encoding="utf-8"))


def verified_digest(payload: bytes, signature: str, public_key: str) -> str:
    """The digest of the image that a payload of cosign's is about. Raises InvalidSignature."""
    key = serialization.load_pem_public_key(public_key.encode())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    key.verify(base64.b64decode(signature, validate=True), payload, ec.ECDSA(hashes.SHA256()))
    critical = json.loads(payload)["critical"]
    assert critical["type"] == "cosign container image signature"
    digest: str = critical["image"]["docker-manifest-digest"]
    return digest


def test_a_signature_of_cosign_is_that_of_the_key_and_of_this_digest_alone() -> None:
    payload = SIGNED["payload"].encode()
    assert verified_digest(payload, SIGNED["signature"], SIGNED["public_key"]) == SIGNED["digest"]
    changed = payload.replace(SIGNED["digest"].encode(), f"sha256:{'0' * 64}".encode())
    assert changed != payload
    with pytest.raises(InvalidSignature):
        verified_digest(changed, SIGNED["signature"], SIGNED["public_key"])
    another = ec.generate_private_key(ec.SECP256R1()).public_key()
    pem = another.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
    with pytest.raises(InvalidSignature):
        verified_digest(payload, SIGNED["signature"], pem)


@pytest.fixture
def programs() -> dict[str, str]:
    found = {name: shutil.which(name) for name in ("cosign", "crane")}
    if missing := [name for name, place in found.items() if place is None]:
        pytest.skip(
            f"not on the PATH: {', '.join(missing)} (go install github.com/sigstore/cosign/v2/cmd/cosign@v2.4.3)"
        )
    return {name: place for name, place in found.items() if place is not None}


@contextmanager
def registry(crane: str) -> Iterator[str]:
    """An empty registry; gives its address."""
    address = f"localhost:{free_port()}"
    with subprocess.Popen([crane, "registry", "serve", "--address", address], stderr=subprocess.DEVNULL) as server:
        try:
            wait_until(lambda: _listens(int(address.partition(":")[2])), "the registry listening")
            yield address
        finally:
            server.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def push(crane: str, image: str, content: str, folder: Path) -> str:
    """An image of one file; gives its digest."""
    file, layer = folder / "file", folder / "layer.tar"
    file.write_text(content)
    with tarfile.open(layer, "w") as archive:
        archive.add(file, "file")
    subprocess.run([crane, "append", "--new_layer", str(layer), "--new_tag", image], check=True, capture_output=True)
    return subprocess.run([crane, "digest", image], check=True, capture_output=True, text=True).stdout.strip()


def step_that_signs() -> str:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    (step,) = [step for step in workflow["jobs"]["image"]["steps"] if "cosign sign" in step.get("run", "")]
    run: str = step["run"]
    return run


def test_the_release_signs_and_attests_an_image_and_what_was_not_signed_is_refused(
    programs: dict[str, str], tmp_path: Path
) -> None:
    cosign, crane = programs["cosign"], programs["crane"]
    quiet: dict[str, Any] = {"env": {**os.environ, "COSIGN_PASSWORD": ""}, "cwd": tmp_path, "capture_output": True}
    subprocess.run([cosign, "generate-key-pair"], check=True, **quiet)
    (tmp_path / "build").mkdir()
    (tmp_path / "build/weir.cdx.json").write_text('{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": []}')
    # The step's own words, with a key of this machine instead of the workflow's identity.
    program = tmp_path / "bin" / "cosign"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {cosign} "$@" --key {tmp_path}/cosign.key --tlog-upload=false\n')
    program.chmod(0o755)
    verify = [cosign, "verify", "--key", "cosign.pub", "--insecure-ignore-tlog=true"]
    attested = [cosign, "verify-attestation", "--type", "cyclonedx", *verify[2:]]
    with registry(crane) as address:
        place = f"{address}/weir"
        signed = f"{place}@{push(crane, f'{place}:1', 'signed', tmp_path)}"
        unsigned = f"{place}@{push(crane, f'{place}:2', 'another byte', tmp_path)}"
        environment = {**quiet["env"], "IMAGE": signed, "PATH": f"{program.parent}:{os.environ['PATH']}"}
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", step_that_signs()], check=True, **{**quiet, "env": environment}
        )
        for command in (verify, attested):
            assert subprocess.run([*command, signed], check=False, **quiet).returncode == 0
            assert subprocess.run([*command, unsigned], check=False, **quiet).returncode != 0
        (layer,) = json.loads(subprocess.run([crane, "manifest", signature_of(signed)], check=True, **quiet).stdout)[
            "layers"
        ]
        payload = subprocess.run([crane, "blob", f"{place}@{layer['digest']}"], check=True, **quiet).stdout
        signature = layer["annotations"]["dev.cosignproject.cosign/signature"]
        public_key = (tmp_path / "cosign.pub").read_text()
        assert verified_digest(payload, signature, public_key) == signed.partition("@")[2]


def signature_of(image: str) -> str:
    """Where cosign keeps an image's signatures."""
    place, _, digest = image.partition("@")
    return f"{place}:{digest.replace(':', '-')}.sig"
