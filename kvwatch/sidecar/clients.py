"""HTTP clients for the servers of the settings, made when the service starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.sidecar.transport import client_for

if TYPE_CHECKING:
    import httpx

    from kvwatch.settings import ServerSettings


class CannotServe(Exception):  # noqa: N818 - said to a person, as it is
    """An address or a certificate can't be used; the text says why, in one line."""


def usable_client(server: ServerSettings, what: str) -> httpx.AsyncClient:
    """A client for a server; `CannotServe` if its certificates can't be used."""
    try:
        return client_for(server)
    except OSError as error:  # what ssl raises is one, too
        files = ", ".join(str(path) for path in (server.ca_file, server.cert_file, server.key_file) if path)
        raise CannotServe(f"can't use {files} for {what} {server.name}: {error}") from None
