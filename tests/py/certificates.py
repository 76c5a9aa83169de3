"""Certificates of a cluster's processes, made as docs/security.md makes them."""
import shutil
import subprocess

import pytest

CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")


def run(directory, *command):
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


def authority(directory):
    """ca.pem and ca.key."""
    directory.mkdir(exist_ok=True)
    run(directory, "openssl", "req", "-x509", *CURVE, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")


def signed(directory, file, name="rein-peer"):
    """FILE.pem and FILE.key, which bear this name."""
    run(directory, "openssl", "req", *CURVE, "-subj", "/CN=rein", "-keyout", f"{file}.key", "-out", f"{file}.csr")
    (directory / f"{file}.ext").write_text(f"subjectAltName=DNS:{name}\nextendedKeyUsage=serverAuth,clientAuth\n")
    sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", f"{file}.ext"]
    run(directory, "openssl", "x509", "-req", "-in", f"{file}.csr", *sign, "-out", f"{file}.pem")


def certificates(directory):
    """Those of one cluster, as its processes are told of them."""
    authority(directory)
    signed(directory, "peer")
    names = {"CA": "ca.pem", "CERT": "peer.pem", "KEY": "peer.key"}
    return {f"REIN_PEER_{name}": str(directory / file) for name, file in names.items()}
