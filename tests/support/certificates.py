"""Certificates for tests, made on the spot."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(folder: Path, name: str = "localhost") -> tuple[Path, Path]:
    """A certificate that is its own authority, for a host name and the loopback address, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = (
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {key} -out {cert}"
        f" -addext subjectAltName=DNS:{name},IP:127.0.0.1"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return cert, key
