"""Whether the kvwatch on this machine serves: ``python -m kvwatch.healthcheck``, for a container's health check.

Asks ``/healthz`` where the settings say that kvwatch serves, read as `kvwatch run` reads them but for its flags:
from the environment and the file. Exits with 0 if the answer is 200 and with 1 otherwise, with a line that says why.
"""

from __future__ import annotations

import http.client
import ssl
import sys

from kvwatch.settings import Settings, SettingsError, load

TIMEOUT_S = 2.0
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - asked, not served on
"""Where to ask a server that listens on all addresses."""


def main() -> int:
    """Prints one line; an exit code."""
    try:
        code, line = check(load())
    except SettingsError as error:
        code, line = 1, f"the settings can't be used: {error.problems[0]}"
    print(line)
    return code


def check(settings: Settings) -> tuple[int, str]:
    """An exit code, and one line."""
    if settings.port == 0:
        return 1, "kvwatch takes any free port (port 0), so nobody knows where to ask: choose one"
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
    return (0, f"{where} is well") if status == 200 else (1, f"{where} answers with HTTP status {status}")


def _connection(host: str, port: int, *, tls: bool) -> http.client.HTTPConnection:
    """To this very machine, past any proxy; the certificate is made out to a name that others use for it."""
    if not tls:
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)


if __name__ == "__main__":
    sys.exit(main())
