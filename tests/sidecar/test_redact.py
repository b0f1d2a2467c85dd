"""What is shown holds no secret."""

import pytest

from kvwatch.text.redact import redact, secrets_of, shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://localhost:8000/metrics", "http://localhost:8000/metrics"),
        ("https://user:word@host/metrics?token=abc", "https://host/metrics"),
        ("http://[::1]:8000/metrics", "http://[::1]:8000/metrics"),
    ],
)
def test_a_url_is_shown_without_user_and_query(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer hunter2hunter2",
        "see http://bob:hunter2hunter2@host/metrics",
        "GET /metrics?api_key=hunter2hunter2&x=1",
        "GET /?access_token=hunter2hunter2",
        '{"password=hunter2hunter2"}',
        "it said hunter2hunter2 and left",
    ],
)
def test_secrets_are_taken_out(text: str) -> None:
    assert "hunter2" not in redact(text, ("hunter2hunter2",))


def test_what_looks_like_a_credential_goes_even_if_nobody_named_it() -> None:
    assert redact("Bearer abcdef123456 for http://a:b@c/?key=v") == "Bearer *** for http://***@c/?key=***"


def test_ordinary_text_stays() -> None:
    page = 'vllm:kv_cache_usage_perc{engine="0",model_name="a/b"} 0.5\n<a href="https://x.example/y">monkey=1</a>'
    assert redact(page) == page


def test_the_secrets_of_a_target_are_its_token_its_password_and_its_query() -> None:
    assert secrets_of("http://u:password@h/metrics?auth=abcdefgh", "token-1") == (
        "token-1",
        "password",
        "abcdefgh",
    )
    assert secrets_of("http://h/metrics") == ()
