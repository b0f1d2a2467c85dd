"""Checks whether the kvwatch on this machine serves: ``python -m kvwatch.healthcheck``, for containers.

Requests ``/healthz`` at the address in the settings, which come from the environment and the file as for
`kvwatch run`, but not from its flags. Exits with 0 if the answer is 200, otherwise with 1; prints one line.
"""

from __future__ import annotations

import http.client
import ssl
import sys

from kvwatch.settings import Settings, SettingsError, load

TIMEOUT_S = 2.0
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not listened on
"""Where to reach a server that listens on all addresses."""


def main() -> int:
    """Prints one line; returns an exit code."""
    try:
        code, line = check(load())
    except SettingsError as error:
        code, line = 1, f"the settings can't be used: {error.problems[0]}"
    print(line)
    return code


def check(settings: Settings) -> tuple[int, str]:
    """An exit code, and one line."""
    if settings.port == 0:
        return 1, "can't check: port 0 means any free port; set another one"
    host = _LOOPBACK.get(settings.host, settings.host)
    scheme = "https" if settings.tls_cert else "http"
    where = f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}/healthz"
    connection = _connection(host, settings.port, tls=settings.tls_cert is not None)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        return 1, f"{where} does not answer: {why}"
    finally:
        connection.close()
    return (0, f"{where} is healthy") if status == 200 else (1, f"{where} answers with HTTP status {status}")


def _connection(host: str, port: int, *, tls: bool) -> http.client.HTTPConnection:
    """A connection to this machine. The certificate is not verified: it names the host as others see it."""
    if not tls:
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)


if __name__ == "__main__":
    sys.exit(main())
