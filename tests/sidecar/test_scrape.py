"""The scraper against real servers on loopback: good ones, and every way to be bad."""

from __future__ import annotations

import asyncio
import base64
import gzip
import socket
import ssl
import subprocess
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from kvwatch import __version__
from kvwatch.core.model.outcome import Failure, Pace, Scrape, ScrapeError
from kvwatch.core.model.server_info import ServerInfo
from kvwatch.settings import Settings, TargetSettings
from kvwatch.sidecar.http_client import ClientError, classify, client_for, credentials_of, usable_client
from kvwatch.sidecar.polling.scrape import BadAnswer, Scraper, narrowed_url
from tests.support.certificates import self_signed
from tests.support.loopback import Asked, Handler, Loopback, VllmLike, always, pages, send, serving

PAGE = b"# HELP x y\nx 1\n"
TOKEN = "a-token-nobody-may-see"  # noqa: S105
LIMIT = 64 * 1024


@asynccontextmanager
async def scraper(url: str, *, timeout_s: float = 0.9, **more: object) -> AsyncIterator[Scraper]:
    target = TargetSettings.model_validate({"url": url, **more})
    settings = Settings(targets=[target], timeout_s=timeout_s, max_body_bytes=LIMIT)
    async with client_for(target) as client:
        yield Scraper(target, settings, client)


def scraped(handler: Handler, **more: object) -> Scrape | ScrapeError:
    async def run() -> Scrape | ScrapeError:
        async with serving(handler) as server, scraper(server.url, **more) as one:  # type: ignore[arg-type]
            return await one.scrape(Pace.FULL)

    return asyncio.run(run())


def failed(handler: Handler, **more: object) -> BadAnswer:
    outcome = scraped(handler, **more)
    assert isinstance(outcome, BadAnswer), outcome
    assert "\n" not in outcome.detail
    assert TOKEN not in outcome.detail
    return outcome


def failed_at(url: str, **more: object) -> BadAnswer:
    async def run() -> Scrape | ScrapeError:
        async with scraper(url, **more) as one:  # type: ignore[arg-type]
            return await one.scrape(Pace.FULL)

    outcome = asyncio.run(run())
    assert isinstance(outcome, BadAnswer), outcome
    assert "\n" not in outcome.detail
    return outcome


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


# -- good ones --------------------------------------------------------------------------------------------------


def test_a_whole_page_comes_as_it_is() -> None:
    page = pages("0.32.0--b-healthy.jsonl.gz")[0]
    outcome = scraped(always(page))
    assert isinstance(outcome, Scrape)
    assert outcome.body == page
    assert not outcome.narrowed
    assert outcome.pace is Pace.FULL
    assert outcome.content_type == "text/plain"
    assert 0 < outcome.duration_s < 0.9


def test_what_is_asked_for_and_how() -> None:
    async def run() -> Loopback:
        async with serving(always(PAGE)) as server, scraper(server.url, token=SecretStr(TOKEN)) as one:
            await one.scrape(Pace.FULL)
            await one.scrape(Pace.FAST, ["vllm:a", "b c"])
            return server

    whole, narrow = asyncio.run(run()).asked
    assert (whole.path, whole.query) == ("/metrics", "")
    assert whole.headers["accept"] == "text/plain; version=0.0.4"
    assert whole.headers["accept-encoding"] == "identity"
    assert whole.headers["user-agent"] == f"kvwatch/{__version__}"
    assert whole.headers["authorization"] == f"bearer {TOKEN}"
    assert (narrow.path, narrow.names) == ("/metrics/", ["vllm:a", "b c"])


def test_without_a_token_none_is_sent() -> None:
    async def run() -> Loopback:
        async with serving(always(PAGE)) as server, scraper(server.url) as one:
            await one.scrape(Pace.FULL)
            return server

    assert "authorization" not in asyncio.run(run()).asked[0].headers


def test_names_are_added_to_a_query_that_is_there() -> None:
    url = narrowed_url("http://h:1/metrics?team=a", ["vllm:x"])
    assert url == "http://h:1/metrics/?team=a&name[]=vllm:x"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity", ""])
def test_encodings_that_a_server_may_choose_all_the_same(encoding: str) -> None:
    body = {"gzip": gzip.compress(PAGE), "deflate": zlib.compress(PAGE)}.get(encoding, PAGE)
    outcome = scraped(always(body, headers={"Content-Encoding": encoding} if encoding else {}))
    assert isinstance(outcome, Scrape)
    assert outcome.body == PAGE


def test_chunked_bodies() -> None:
    async def handler(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for byte in PAGE:
            writer.write(b"1\r\n" + bytes([byte]) + b"\r\n")
        writer.write(b"0\r\n\r\n")

    outcome = scraped(handler)
    assert isinstance(outcome, Scrape)
    assert outcome.body == PAGE


def test_one_redirect_on_the_same_host_is_followed_and_remembered() -> None:
    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path == "/metrics":
            await send(writer, b"", "307 Temporary Redirect", {"Location": "/metrics/"})
        else:
            await send(writer, PAGE)

    async def run() -> tuple[list[Scrape | ScrapeError], list[str]]:
        async with serving(handler) as server, scraper(server.url) as one:
            return [await one.scrape(Pace.FULL) for _ in range(2)], [asked.path for asked in server.asked]

    outcomes, paths = asyncio.run(run())
    assert [isinstance(outcome, Scrape) for outcome in outcomes] == [True, True]
    assert paths == ["/metrics", "/metrics/", "/metrics/"]


def test_a_connection_that_the_server_closed_meanwhile_is_no_failure() -> None:
    async def handler(_: Asked, writer: asyncio.StreamWriter) -> None:
        await send(writer, PAGE)
        asyncio.get_running_loop().call_later(0.02, writer.close)

    async def run() -> list[Scrape | ScrapeError]:
        async with serving(handler) as server, scraper(server.url) as one:
            first = await one.scrape(Pace.FULL)
            await asyncio.sleep(0.05)
            return [first, await one.scrape(Pace.FULL)]

    assert all(isinstance(outcome, Scrape) for outcome in asyncio.run(run()))


# -- bad ones ---------------------------------------------------------------------------------------------------


def test_refused() -> None:
    assert failed_at(f"http://localhost:{free_port()}/metrics").kind is Failure.REFUSED


def test_timeout_before_the_first_byte() -> None:
    async def handler(_: Asked, __: asyncio.StreamWriter) -> None:
        await asyncio.sleep(5)

    outcome = failed(handler, timeout_s=0.1)
    assert outcome.kind is Failure.TIMEOUT
    assert "0.1 s" in outcome.detail
    assert outcome.duration_s < 0.5


def test_timeout_of_a_body_that_drips() -> None:
    async def handler(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            writer.write(b"#")
            await asyncio.sleep(0.01)

    outcome = failed(handler, timeout_s=0.1)
    assert outcome.kind is Failure.TIMEOUT
    assert outcome.duration_s < 0.5


@pytest.mark.parametrize(
    "token", ["pässword-nobody-may-see", "two\nlines-nobody", "nul\0-nobody", " blank-nobody"]
)
def test_a_token_that_can_not_be_sent_is_named_and_not_shown(token: str) -> None:
    async def run() -> tuple[Scrape | ScrapeError, list[Asked]]:
        async with serving(always(PAGE)) as server, scraper(server.url, token=SecretStr("x")) as one:
            odd = TargetSettings.model_construct(
                url=server.url, token=SecretStr(token)
            )  # as no settings let it be
            one._credentials = credentials_of(odd, "the target's")
            assert await one.facts() == ServerInfo()
            return await one.scrape(Pace.FULL), server.asked

    outcome, asked = asyncio.run(run())
    assert isinstance(outcome, ScrapeError)
    assert outcome.kind is Failure.CONNECTION
    assert outcome.detail.startswith("the target's token can't be sent: it must be printable ASCII")
    assert "nobody" not in outcome.detail
    assert not asked


def test_a_header_that_can_not_be_encoded_is_no_failure_of_the_name_service() -> None:
    wrong = UnicodeEncodeError("ascii", "pässword", 1, 2, "ordinal not in range(128)")
    kind, detail = classify(wrong)
    assert kind is Failure.CONNECTION
    assert "\\xe4" not in detail
    assert classify(UnicodeEncodeError("idna", "a..b", 1, 2, "label empty"))[0] is Failure.DNS


def test_dns() -> None:
    too_long_for_a_label = "a" * 64
    assert failed_at(f"http://{too_long_for_a_label}.invalid:8000/metrics").kind is Failure.DNS


@asynccontextmanager
async def plain(answer: bytes = b"HTTP/1.1 400 Bad Request\r\n\r\n") -> AsyncIterator[str]:
    """The https URL of a server that speaks no TLS; with no answer, of one that says nothing at all."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await reader.read(-1) if not answer else None
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}/metrics"
    finally:
        server.close()
        await asyncio.sleep(0.02)


def test_a_handshake_that_nobody_answers_is_a_timeout_and_leaves_no_socket() -> None:
    async def run() -> Scrape | ScrapeError:
        async with plain(b"") as url, scraper(url, timeout_s=0.2) as one:
            return await one.scrape(Pace.FULL)

    outcome = asyncio.run(run())
    assert isinstance(outcome, ScrapeError)
    assert outcome.kind is Failure.TIMEOUT


def test_a_slow_answer_over_tls_is_a_timeout(certificate: tuple[Path, Path]) -> None:
    async def handler(_: Asked, __: asyncio.StreamWriter) -> None:
        await asyncio.sleep(5)

    async def run() -> Scrape | ScrapeError:
        async with (
            serving(handler, tls=server_side(certificate)) as server,
            scraper(server.url, timeout_s=0.2, insecure_tls=True) as one,
        ):
            return await one.scrape(Pace.FULL)

    outcome = asyncio.run(run())
    assert isinstance(outcome, ScrapeError)
    assert outcome.kind is Failure.TIMEOUT


def test_tls_of_a_server_that_speaks_none() -> None:
    async def run() -> Scrape | ScrapeError:
        async with plain() as url, scraper(url) as one:
            return await one.scrape(Pace.FULL)

    outcome = asyncio.run(run())
    assert isinstance(outcome, ScrapeError)
    assert outcome.kind is Failure.TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    return self_signed(tmp_path_factory.mktemp("tls"))


def server_side(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


@pytest.mark.parametrize("shows", [True, False])
def test_a_server_that_asks_for_a_certificate_gets_it(certificate: tuple[Path, Path], shows: bool) -> None:
    cert, key = certificate
    context = server_side(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cert)
    pair: dict[str, Any] = {"cert_file": cert, "key_file": key} if shows else {}

    async def run() -> Scrape | ScrapeError:
        async with (
            serving(always(PAGE), tls=context) as server,
            scraper(server.url, ca_file=cert, **pair) as one,
        ):
            return await one.scrape(Pace.FULL)

    assert isinstance(asyncio.run(run()), Scrape) is shows


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    command = f"openssl rsa -aes256 -passout pass:secret -in {certificate[1]} -out {tmp_path / 'locked.pem'}"
    subprocess.run(command.split(), check=True, capture_output=True)
    target = TargetSettings(
        url="https://localhost:1", cert_file=certificate[0], key_file=tmp_path / "locked.pem"
    )
    with pytest.raises(ClientError, match=r"locked\.pem for target localhost:1"):
        usable_client(target, "target")


def test_a_user_and_a_password_are_sent_and_shown_nowhere() -> None:
    async def run() -> tuple[Scrape | ScrapeError, Asked]:
        async def says_it_back(asked: Asked, writer: asyncio.StreamWriter) -> None:
            await send(writer, asked.headers["authorization"].encode(), "500 Oh")

        async with (
            serving(says_it_back) as server,
            scraper(server.url, username="prometheus", password=SecretStr("pass:wörd")) as one,
        ):
            outcome = await one.scrape(Pace.FULL)
            assert base64.b64encode("prometheus:pass:wörd".encode()).decode() in one.secrets
            assert "pass:wörd" in one.secrets
            return outcome, server.asked[0]

    outcome, asked = asyncio.run(run())
    assert isinstance(outcome, ScrapeError)
    kind, _, pair = asked.headers["authorization"].partition(" ")
    assert kind == "basic"  # this server has its headers in small letters
    assert len(pair) == len(base64.b64encode("prometheus:pass:wörd".encode()))


@pytest.mark.parametrize(
    ("more", "kind"), [({}, Failure.TLS), ({"ca_file": True}, None), ({"insecure_tls": True}, None)]
)
def test_tls_certificates(
    certificate: tuple[Path, Path], more: dict[str, object], kind: Failure | None
) -> None:
    context = server_side(certificate)
    if "ca_file" in more:
        more = {"ca_file": certificate[0]}

    async def run() -> Scrape | ScrapeError:
        async with serving(always(PAGE), tls=context) as server, scraper(server.url, **more) as one:  # type: ignore[arg-type]
            return await one.scrape(Pace.FULL)

    outcome = asyncio.run(run())
    assert (outcome.kind if isinstance(outcome, ScrapeError) else None) is kind


@pytest.mark.parametrize(
    "status", ["500 Internal Server Error", "401 Unauthorized", "204 No Content", "404 Not Found"]
)
def test_another_status(status: str) -> None:
    body = b"" if status.startswith("204") else b"<h1>sorry</h1>" * 1000
    outcome = failed(always(body, status))
    assert outcome.kind is Failure.HTTP_STATUS
    assert status[:3] in outcome.detail
    assert outcome.excerpt == body[: len(outcome.excerpt)]
    assert len(outcome.excerpt) <= 2048


@pytest.mark.parametrize(
    "location",
    ["http://elsewhere.example/metrics", "//elsewhere.example/", "https://localhost/metrics", "http://[", ""],
)
def test_redirects_to_elsewhere_are_not_followed(location: str) -> None:
    async def handler(_: Asked, writer: asyncio.StreamWriter) -> None:
        await send(writer, b"", "302 Found", {"Location": location})

    outcome = failed(handler, token=SecretStr(TOKEN))
    assert outcome.kind is Failure.HTTP_STATUS


def test_a_redirect_that_goes_on_redirecting_ends() -> None:
    async def handler(_: Asked, writer: asyncio.StreamWriter) -> None:
        await send(writer, b"", "302 Found", {"Location": "/metrics"})

    assert failed(handler).kind is Failure.HTTP_STATUS


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_too_large(encoding: str) -> None:
    body = b"x" * (LIMIT + 1)
    if encoding == "gzip":
        body = gzip.compress(b"x" * (32 << 20), 1)  # 32 MiB in a tenth of one
    outcome = failed(always(body, headers={"Content-Encoding": encoding}))
    assert outcome.kind is Failure.TOO_LARGE
    assert str(LIMIT) in outcome.detail


def test_the_limit_holds_while_streaming_not_only_by_what_the_server_says() -> None:
    sent = 0

    async def handler(_: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while sent < 100 * LIMIT:
            writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")
            sent += 4096
            await writer.drain()

    assert failed(handler).kind is Failure.TOO_LARGE
    assert sent < 100 * LIMIT


def test_a_page_of_just_the_limit_is_taken() -> None:
    assert isinstance(scraped(always(b"x" * LIMIT)), Scrape)


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (b"not gzip at all", "gzip"),
        (gzip.compress(PAGE * 50, mtime=0)[:-20], "gzip"),
        (PAGE, "br"),
        (PAGE, "nonsense"),
    ],
)
def test_bodies_that_are_not_what_they_claim(body: bytes, encoding: str) -> None:
    assert failed(always(body, headers={"Content-Encoding": encoding})).kind is Failure.MALFORMED


def test_a_connection_cut_in_the_middle_of_the_body() -> None:
    async def handler(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nvllm:")
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.transport.abort()

    assert failed(handler).kind is Failure.CONNECTION


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"\x00\xff" * 100 + b"\r\n\r\n"])
def test_something_that_speaks_no_http(greeting: bytes) -> None:
    async def handler(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.close()

    assert failed(handler).kind is Failure.CONNECTION


def test_an_answer_that_says_the_token_back_does_not_spread_it() -> None:
    outcome = failed(always(f"Bearer {TOKEN}".encode(), "403 Forbidden"), token=SecretStr(TOKEN))
    assert TOKEN not in outcome.detail


def test_html_is_taken_as_it_is_and_left_to_whoever_reads_it() -> None:
    assert isinstance(scraped(always(b"<!doctype html><p>hello")), Scrape)


# -- facts ------------------------------------------------------------------------------------------------------


def facts_of(handler: Handler) -> ServerInfo:
    async def run() -> ServerInfo:
        async with serving(handler) as server, scraper(server.url) as one:
            return await one.facts()

    return asyncio.run(run())


def test_facts_are_read_from_the_root_of_the_server() -> None:
    assert facts_of(VllmLike([PAGE])) == ServerInfo("0.32.0", {"tiny-llama": 2048})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<p>",
        b"[]",
        b"null",
        b"[" * 50_000,
        b'{"version": 3, "data": {}}',
        b'{"data": [1, {"id": 2, "max_model_len": 1}, {"id": "a", "max_model_len": true}, {"id": "b"}]}',
    ],
)
def test_facts_that_make_no_sense_are_unknown(body: bytes) -> None:
    assert facts_of(always(body)) == ServerInfo()


def test_facts_of_a_server_that_has_none_are_unknown() -> None:
    assert facts_of(always(b'{"version": "1"}', "404 Not Found")) == ServerInfo()
