"""Protection of the web server from clients that flood it, stall, or never read. Each module names its fault tests.

uvicorn's own settings do not replace it (measured with uvicorn 0.54: `limit_concurrency`, `backlog`,
`timeout_keep_alive`): it has no timeout for a request that stays incomplete, none for a client that does not
read, and it accepts connections until no file descriptor is left.
"""

WRITTEN_FOR = {
    "uvicorn": ((0, 32), (0, 54)),  # H11Protocol; Server.startup, on_tick and shutdown without serve
    "h11": ((0, 14), (0, 16)),  # the states of a connection, its trailing data
    "httpcore": ((1, 0), (1, 0)),  # the text of the error for a closed connection, in polling/scrape.py
    "httpx": ((0, 27), (0, 28)),  # the module _main, in kvwatch/sidecar/__init__.py
}
"""Oldest and newest version (major, minor) of the libraries whose internals kvwatch uses."""
