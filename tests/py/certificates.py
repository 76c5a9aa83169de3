"""Certificates of a cluster's processes, made created as in docs/howto/secure.md."""
import shutil
import subprocess
import time

import pytest

CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")


def run(directory, *command):
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


def authority(directory):
    """Creates ca.pem and ca.key."""
    directory.mkdir(exist_ok=True)
    run(directory, "openssl", "req", "-x509", *CURVE, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")


AUTHORITY = """[ca]
default_ca = here
[here]
database = index
serial = serial
new_certs_dir = .
certificate = ca.pem
private_key = ca.key
default_md = sha256
unique_subject = no
policy = any
[any]
commonName = supplied
"""


def signed_until(directory, file, until):
    """Creates FILE.pem and FILE.key, valid from one day before this time (seconds since 1970) until this time. Replaces older files
    atomically."""
    run(directory, "openssl", "req", *CURVE, "-subj", "/CN=rein", "-keyout", f"{file}.key.new", "-out", f"{file}.csr")
    (directory / f"{file}.ext").write_text("subjectAltName=DNS:rein-peer\nextendedKeyUsage=serverAuth,clientAuth\n")
    (directory / "ca.cnf").write_text(AUTHORITY)
    (directory / "index").touch()
    times = [time.strftime("%Y%m%d%H%M%SZ", time.gmtime(at)) for at in (until - 86400, until)]
    dates = ["-startdate", times[0], "-enddate", times[1], "-extfile", f"{file}.ext"]
    run(directory, "openssl", "ca", "-batch", "-notext", "-create_serial", "-config", "ca.cnf", *dates, "-in", f"{file}.csr", "-out", f"{file}.pem.new")
    for kind in ("key", "pem"):
        (directory / f"{file}.{kind}.new").rename(directory / f"{file}.{kind}")


def signed(directory, file, name="rein-peer"):
    """Creates FILE.pem and FILE.key with this name."""
    run(directory, "openssl", "req", *CURVE, "-subj", "/CN=rein", "-keyout", f"{file}.key", "-out", f"{file}.csr")
    (directory / f"{file}.ext").write_text(f"subjectAltName=DNS:{name}\nextendedKeyUsage=serverAuth,clientAuth\n")
    sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", f"{file}.ext"]
    run(directory, "openssl", "x509", "-req", "-in", f"{file}.csr", *sign, "-out", f"{file}.pem")


def certificates(directory):
    """Creates the certificates of a cluster, and returns the environment of its processes."""
    authority(directory)
    signed(directory, "peer")
    return named(directory, "peer")


def named(directory, file):
    """The environment of a process that presents FILE.pem."""
    names = {"CA": "ca.pem", "CERT": f"{file}.pem", "KEY": f"{file}.key"}
    return {f"REIN_PEER_{name}": str(directory / file) for name, file in names.items()}
