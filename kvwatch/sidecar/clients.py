"""HTTP clients for the servers of the settings, made when the service starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.sidecar.transport import client_for
from kvwatch.sidecar.web import CannotServe

if TYPE_CHECKING:
    import httpx

    from kvwatch.settings import ServerSettings


def usable_client(server: ServerSettings, what: str) -> httpx.AsyncClient:
    """A client for a server; `CannotServe` if its certificates can't be used."""
    try:
        return client_for(server)
    except OSError as error:  # what ssl raises is one, too
        raise CannotServe(f"can't use {server.ca_file} for {what} {server.name}: {error}") from None
