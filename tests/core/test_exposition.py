"""Whatever the bytes are: the right samples, or an error that says what is wrong."""

import math
import tracemalloc
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kvwatch.core.dialect.vllm import Vocabulary
from kvwatch.core.exposition.parser import MAX_SAMPLES, Exposition, ExpositionError, PageReader
from kvwatch.core.model.outcome import Failure
from tests.support.pages import RealPage, Server, real_pages

VOCABULARY = Vocabulary()

Labels = tuple[tuple[str, str], ...]
Samples = dict[tuple[str, Labels], float]


def reader() -> PageReader:
    return PageReader(lambda name: VOCABULARY.role(name) is not None, VOCABULARY.begins)


def samples(page: Exposition) -> Samples:
    """The samples as a dictionary; a NaN as None would be, comparable."""
    found = {}
    for one, value in zip(page.series, page.values, strict=True):
        found[one.name, one.labels] = value if not math.isnan(value) else -12345.0
    return found


def read(body: bytes) -> Samples | Failure:
    try:
        return samples(reader().read(body))
    except ExpositionError as bad:
        return bad.kind


NAN = -12345.0
R, W = "vllm:num_requests_running", "vllm:num_requests_waiting"
NO_LABELS: Labels = ()


def one(value: float, labels: Labels = (), name: str = R) -> Samples:
    return {(name, labels): value}


BUCKET = "vllm:time_to_first_token_seconds_bucket"

#: What a page says -> what is read of it.
READABLE: dict[str, tuple[bytes, Samples]] = {
    "plain": (b"vllm:num_requests_running 3\n", one(3)),
    "float": (b"vllm:num_requests_running 3.25\n", one(3.25)),
    "no digits behind the point": (b"vllm:num_requests_running 3.\n", one(3)),
    "no digits before the point": (b"vllm:num_requests_running .5\n", one(0.5)),
    "sign": (b"vllm:num_requests_running +4\n", one(4)),
    "negative": (b"vllm:num_requests_running -1.0\n", one(-1)),
    "exponent": (b"vllm:num_requests_running 7.76e+09\n", one(7.76e9)),
    "three digits of exponent": (b"vllm:num_requests_running 7.76e+010\n", one(7.76e10)),
    "small exponent": (b"vllm:num_requests_running 9.75e-06\n", one(9.75e-6)),
    "capital exponent": (b"vllm:num_requests_running 1E3\n", one(1000)),
    "NaN": (b"vllm:num_requests_running NaN\n", one(NAN)),
    "infinity": (b"vllm:num_requests_running +Inf\n", one(math.inf)),
    "minus infinity": (b"vllm:num_requests_running -Inf\n", one(-math.inf)),
    "timestamp": (b"vllm:num_requests_running 3 1700000000000\n", one(3)),
    "negative timestamp": (b"vllm:num_requests_running 3 -1\n", one(3)),
    "timestamp with a fraction": (b"vllm:num_requests_running 3 1700000000.123\n", one(3)),
    "timestamp behind a tab": (b"vllm:num_requests_running 3\t1700000000\n", one(3)),
    "tabs": (b'vllm:num_requests_running{engine="0"}\t3\n', one(3, (("engine", "0"),))),
    "many blanks": (b'  vllm:num_requests_running {  engine = "0" , }   3  \n', one(3, (("engine", "0"),))),
    "empty braces": (b"vllm:num_requests_running{} 3\n", one(3)),
    "trailing comma": (b'vllm:num_requests_running{engine="0",} 3\n', one(3, (("engine", "0"),))),
    "labels in another order": (
        b'vllm:num_requests_running{model_name="m",engine="0"} 3\n',
        one(3, (("engine", "0"), ("model_name", "m"))),
    ),
    "escaped line break": (rb'vllm:num_requests_running{m="a\nb"} 3' + b"\n", one(3, (("m", "a\nb"),))),
    "escaped quote": (rb'vllm:num_requests_running{m="a\"b"} 3' + b"\n", one(3, (("m", 'a"b'),))),
    "escaped backslash": (rb'vllm:num_requests_running{m="a\\b"} 3' + b"\n", one(3, (("m", "a\\b"),))),
    "backslash, then n": (rb'vllm:num_requests_running{m="a\\n"} 3' + b"\n", one(3, (("m", "a\\n"),))),
    "escaped backslash at the end": (
        rb'vllm:num_requests_running{m="a\\",n="b"} 3' + b"\n",
        one(3, (("m", "a\\"), ("n", "b"))),
    ),
    "unknown escape": (rb'vllm:num_requests_running{m="C:\d"} 3' + b"\n", one(3, (("m", "C:\\d"),))),
    "braces in a value": (b'vllm:num_requests_running{m="{a} 5"} 3\n', one(3, (("m", "{a} 5"),))),
    "comma and equals in a value": (b'vllm:num_requests_running{m="a,b=c"} 3\n', one(3, (("m", "a,b=c"),))),
    "hash in a value": (b'vllm:num_requests_running{m="a # {b} 9"} 3\n', one(3, (("m", "a # {b} 9"),))),
    "HELP in a value": (
        b'vllm:num_requests_running{m="# HELP vllm:x y"} 3\n',
        one(3, (("m", "# HELP vllm:x y"),)),
    ),
    "escaped line break and HELP in a value": (
        rb'vllm:num_requests_running{m="\n# HELP vllm:x y"} 3' + b"\n",
        one(3, (("m", "\n# HELP vllm:x y"),)),
    ),
    "blank in a value": (b'vllm:num_requests_running{m="a b"} 3\n', one(3, (("m", "a b"),))),
    "UTF-8 in a value": ('vllm:num_requests_running{m="模型"} 3\n'.encode(), one(3, (("m", "模型"),))),
    "empty value of a label": (b'vllm:num_requests_running{m=""} 3\n', one(3, (("m", ""),))),
    "quoted label name": (b'vllm:num_requests_running{"a.b"="c"} 3\n', one(3, (("a.b", "c"),))),
    "quoted name": (b'{"vllm:num_requests_running",m="a"} 3\n', one(3, (("m", "a"),))),
    "quoted name alone": (b'{"vllm:num_requests_running"} 3\n', one(3)),
    "huge value of a label": (
        b'vllm:num_requests_running{m="' + b"x" * 500_000 + b'"} 3\n',
        one(3, (("m", "x" * 500_000),)),
    ),
    "exemplar": (
        b'vllm:time_to_first_token_seconds_bucket{le="1.0"} 7 # {trace_id="ab c"} 0.67 1520879607.789\n',
        one(7, (("le", "1.0"),), BUCKET),
    ),
    "exemplar without blanks": (
        b'vllm:time_to_first_token_seconds_bucket{le="1.0"} 7#{trace_id="x"} 0.67\n',
        one(7, (("le", "1.0"),), BUCKET),
    ),
    "OpenMetrics counter": (
        (
            b"# HELP vllm:prompt_tokens Text.\n# TYPE vllm:prompt_tokens counter\n"
            b"vllm:prompt_tokens_total 5.0\nvllm:prompt_tokens_created 1.7e9\n# EOF\n"
        ),
        one(5, name="vllm:prompt_tokens_total"),
    ),
    "UNIT": (
        (
            b"# HELP vllm:time_to_first_token_seconds Text.\n# UNIT vllm:time_to_first_token_seconds seconds\n"
            b"# TYPE vllm:time_to_first_token_seconds histogram\nvllm:time_to_first_token_seconds_count 5\n# EOF\n"
        ),
        one(5, name="vllm:time_to_first_token_seconds_count"),
    ),
    "EOF without a line break": (b"vllm:num_requests_running 3\n# EOF", one(3)),
    "created": (b"vllm:num_requests_running 3\nvllm:num_requests_running_created 1.7e9\n", one(3)),
    "TYPE before HELP": (
        (
            b"# TYPE vllm:num_requests_running gauge\n# HELP vllm:num_requests_running Text.\n"
            b"vllm:num_requests_running 3\n"
        ),
        one(3),
    ),
    "HELP of an unwanted family, then its TYPE before": (
        (
            b"# TYPE x gauge\n# HELP x Text.\nx 1\n# TYPE vllm:num_requests_running gauge\n"
            b"# HELP vllm:num_requests_running Text.\nvllm:num_requests_running 3\n"
        ),
        one(3),
    ),
    "a family without HELP behind an unwanted one": (
        b"# HELP x Text.\n# TYPE x gauge\nx 1\nvllm:num_requests_running 3\n",
        one(3),
    ),
    "a family without HELP among the lines of an unwanted one": (
        b'# HELP x Text.\n# TYPE x gauge\nx{a="1"} 1\nvllm:num_requests_running 3\nx{a="2"} 2\n',
        one(3),
    ),
    "a wanted name that begins with an unwanted family's, without HELP": (
        (
            b"# HELP vllm:num_requests Text.\n# TYPE vllm:num_requests gauge\nvllm:num_requests 9\n"
            b"vllm:num_requests_running 3\n"
        ),
        one(3),
    ),
    "a wanted name that begins with a family known and not read": (
        (
            b"# HELP vllm:prompt_tokens_cached Text.\nvllm:prompt_tokens_cached_total 9\n"
            b'vllm:prompt_tokens_cached_by_source_total{source="disk"} 4\n'
        ),
        one(4, (("source", "disk"),), "vllm:prompt_tokens_cached_by_source_total"),
    ),
    "comments and empty lines": (
        b"# a comment\n\n#\n# HELP\n# TYPE\n   \nvllm:num_requests_running 3\n\n# more\n",
        one(3),
    ),
    "HELP with a blank before the hash": (
        b"# HELP x Text.\nx 1\n  # HELP vllm:num_requests_running Text.\nvllm:num_requests_running 3\n",
        one(3),
    ),
    "HELP without text": (b"# HELP vllm:num_requests_running\nvllm:num_requests_running 3\n", one(3)),
    "HELP that ends like a page": (
        b"# HELP vllm:num_requests_running # EOF\nvllm:num_requests_running 3\n",
        one(3),
    ),
    "a sample line in a HELP text": (
        b"# HELP vllm:num_requests_running vllm:num_requests_running 9\nvllm:num_requests_running 3\n",
        one(3),
    ),
    "the same series twice": (b"vllm:num_requests_running 3\nvllm:num_requests_running 3\n", one(3)),
    "the same series twice, labels in another order": (
        b'vllm:num_requests_running{a="1",b="2"} 3\nvllm:num_requests_running{b="2", a="1"} 3\n',
        one(3, (("a", "1"), ("b", "2"))),
    ),
    "only unwanted samples with a wanted family": (b"# HELP vllm:num_requests_running Text.\nx 1\n", {}),
    "substring traps": (
        (
            b"vllm:kv_offload_cpu_cache_usage_perc 0.7\nvllm:hisparse_host_cache_usage_perc 0.8\n"
            b"my_vllm:num_requests_running 9\nvllm:num_requests_running_max 9\nvllm:num_requests_running 3\n"
        ),
        one(3),
    ),
    "an unwanted line that nobody can read": (b"x{oh dear\nvllm:num_requests_running 3\n", one(3)),
}

#: What a page says -> which way it can't be read.
UNREADABLE: dict[str, tuple[bytes, Failure]] = {
    "nothing": (b"", Failure.EMPTY),
    "blanks": (b" \r\n\t\n", Failure.EMPTY),
    "HTML": (b"<!doctype html><html><body>502 Bad Gateway</body></html>\n", Failure.NOT_VLLM),
    "HTML behind blanks": (b"\n  <html>\n", Failure.NOT_VLLM),
    "JSON": (b'{"detail":"Not Found"}\n', Failure.NOT_VLLM),
    "gzip": (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\x03\x00", Failure.NOT_VLLM),
    "zeros": (b"\x00" * 64, Failure.NOT_VLLM),
    "UTF-16": ("vllm:num_requests_running 3\n".encode("utf-16"), Failure.NOT_VLLM),
    "someone else's metrics": (b"# HELP go_goroutines Text.\ngo_goroutines 7\n", Failure.NOT_VLLM),
    "statistics switched off": (
        b"# HELP python_info Text.\npython_info 1\nhttp_request_size_bytes_count 4\n",
        Failure.NOT_VLLM,
    ),
    "no line break at the end": (b"vllm:num_requests_running 3", Failure.MALFORMED),
    "ends within a HELP": (b"vllm:num_requests_running 3\n# HELP vllm:num", Failure.MALFORMED),
    "ends within labels": (
        b'vllm:num_requests_running 3\nvllm:num_requests_waiting{engine="',
        Failure.MALFORMED,
    ),
    "grouped digits": (b"vllm:num_requests_waiting 1\nvllm:num_requests_running 1_0\n", Failure.MALFORMED),
    "hexadecimal": (b"vllm:num_requests_waiting 1\nvllm:num_requests_running 0x10\n", Failure.MALFORMED),
    "decimal comma": (b"vllm:num_requests_waiting 1\nvllm:num_requests_running 1,5\n", Failure.MALFORMED),
    "no value": (b"vllm:num_requests_waiting 1\nvllm:num_requests_running\n", Failure.MALFORMED),
    "no value behind labels": (
        b"vllm:num_requests_waiting 1\nvllm:num_requests_running{} \n",
        Failure.MALFORMED,
    ),
    "a word for a value": (
        b"vllm:num_requests_waiting 1\nvllm:num_requests_running None\n",
        Failure.MALFORMED,
    ),
    "three numbers": (b"vllm:num_requests_waiting 1\nvllm:num_requests_running 3 4 5\n", Failure.MALFORMED),
    "half an exponent": (b"vllm:num_requests_waiting 1\nvllm:num_requests_running 3e\n", Failure.MALFORMED),
    "a label without quotes": (
        b"vllm:num_requests_waiting 1\nvllm:num_requests_running{a=1} 3\n",
        Failure.MALFORMED,
    ),
    "labels not closed": (
        b'vllm:num_requests_waiting 1\nvllm:num_requests_running{a="1" 3\n',
        Failure.MALFORMED,
    ),
    "a label twice": (
        b'vllm:num_requests_waiting 1\nvllm:num_requests_running{a="1",a="2"} 3\n',
        Failure.MALFORMED,
    ),
    "only a comma in braces": (
        b"vllm:num_requests_waiting 1\nvllm:num_requests_running{,} 3\n",
        Failure.MALFORMED,
    ),
    "no comma between labels": (
        b'vllm:num_requests_waiting 1\nvllm:num_requests_running{a="1" b="2"} 3\n',
        Failure.MALFORMED,
    ),
    "a label value that is not UTF-8": (
        b'vllm:num_requests_waiting 1\nvllm:num_requests_running{a="\xff"} 3\n',
        Failure.MALFORMED,
    ),
    "line breaks of old": (
        b"vllm:num_requests_running 3\rvllm:num_requests_waiting 4\r\n",
        Failure.MALFORMED,
    ),
    "a line of binary": (b"vllm:num_requests_running 3\n\x00\x01\n", Failure.MALFORMED),
    "a label value beyond all measure": (
        b'vllm:num_requests_running{a="' + b"x" * 1_100_000 + b'"} 3\n',
        Failure.TOO_LARGE,
    ),
}

UNRELATED = (
    b"# HELP go_goroutines Text.\n# TYPE go_goroutines gauge\ngo_goroutines 7\n"
    b'# HELP http_size Text.\n# TYPE http_size histogram\nhttp_size_bucket{le="1"} 1\nhttp_size_count 1\n'
)


@pytest.mark.parametrize("case", READABLE)
def test_reads_the_right_samples(case: str) -> None:
    """Each way to write a sample gives its name, labels and value."""
    body, expected = READABLE[case]
    assert read(body) == expected


@pytest.mark.parametrize("case", READABLE)
def test_surroundings_change_nothing(case: str) -> None:
    """Line ends of Windows and families of others before and behind leave the samples as they are."""
    body, expected = READABLE[case]
    whole = body if body.endswith(b"\n") else body + b"\n"
    assert read(whole.replace(b"\n", b"\r\n")) == expected
    assert read(UNRELATED + whole) == expected
    assert read(whole + UNRELATED) == expected
    assert read(UNRELATED + whole + UNRELATED) == expected


@pytest.mark.parametrize("case", [*READABLE, *UNREADABLE])
def test_what_was_read_before_changes_nothing(case: str) -> None:
    """A reader that has read every other page says of this one what a fresh reader says, twice."""
    body = READABLE[case][0] if case in READABLE else UNREADABLE[case][0]
    fresh, used = outcome(reader(), body), reader()
    for other, _ in (*READABLE.values(), *UNREADABLE.values()):
        outcome(used, other)
    assert outcome(used, body) == fresh
    assert outcome(used, body) == fresh


def outcome(by: PageReader, body: bytes) -> tuple[object, ...]:
    """All that a reader says of a page, comparable."""
    try:
        page = by.read(body)
    except ExpositionError as bad:
        return (bad.kind, str(bad))
    conflicts = {(one.name, one.labels) for one in page.conflicts}
    return (list(samples(page).items()), page.help, page.families, conflicts)


def test_a_page_that_is_refused_leaves_nothing_behind() -> None:
    """And one with too many samples takes next to nothing while it is read."""
    reader = PageReader(lambda name: name.startswith("vllm:"))
    samples = [b'vllm:x{engine="%d"} 1\n' % n for n in range(MAX_SAMPLES + 2)]
    junk = b"".join(samples[:-9]) + b"vllm:x{ 1\n"
    reader.read(samples[0])
    for page, least, most in ((b"".join(samples), 0, 1 << 20), (junk, 10 << 20, 100 << 20)):
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            with pytest.raises(ExpositionError):
                reader.read(page)
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert least <= peak - before <= most
        assert after - before < 1 << 20


@pytest.mark.parametrize("case", UNREADABLE)
def test_says_which_way_a_page_is_bad(case: str) -> None:
    """Each page that can't be read is named by its kind of failure."""
    body, kind = UNREADABLE[case]
    assert read(body) == kind


def test_an_error_names_the_line() -> None:
    """The error shows the line that can't be read and its number."""
    body = b"# HELP vllm:num_requests_running Text.\r\nvllm:num_requests_running 3\r\nvllm:num_requests_waiting ?\r\n"
    with pytest.raises(ExpositionError, match=r"line 3 can't be read: 'vllm:num_requests_waiting \?'"):
        reader().read(body)


def test_openmetrics_must_end_as_such() -> None:
    """A page declared as OpenMetrics is cut short unless it ends with its EOF."""
    body = b"vllm:num_requests_running 3\n"
    assert samples(reader().read(body + b"# EOF\n", openmetrics=True)) == one(3)
    with pytest.raises(ExpositionError, match="EOF") as caught:
        reader().read(body, openmetrics=True)
    assert caught.value.kind is Failure.MALFORMED


def test_a_series_twice_with_different_values_is_a_conflict() -> None:
    """Nobody can say which of two values is right, so the series is marked; two NaN agree."""
    body = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:num_requests_running 4\n"
    page = reader().read(body)
    assert {one.name for one in page.conflicts} == {R}
    assert not reader().read(b"vllm:num_requests_running NaN\n" * 2).conflicts
    assert reader().read(b"vllm:num_requests_running NaN\nvllm:num_requests_running 1\n").conflicts


def test_families_are_listed_on_every_reading() -> None:
    """Families that carry no HELP are listed the tenth time as the first, wanted or not."""
    body = b'vllm:brand_new_total{a="1"} 3\nvllm:num_requests_running 1\nvllm:brand_new_total{a="2"} 3\n'
    by = reader()
    for _ in range(10):
        assert set(by.read(body).families) == {"vllm:brand_new", "vllm:num_requests_running"}


def small_page() -> bytes:
    """A page of few bytes with every kind of line."""
    server = Server(usage=0.25, running=12, waiting=345, prompt_tokens=6789)
    server.finish(3)
    text = server.page
    return "".join(
        line + "\n"
        for line in text.splitlines()
        if any(n in line for n in ("running", "waiting ", "prompt_tokens_total", "time_to_first", "config"))
    ).encode()


@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "used"])
def test_a_page_cut_anywhere_gives_no_wrong_number(warm: bool) -> None:
    """Cut behind any byte, a page is an error or gives its first samples as they are."""
    body = small_page()
    whole = list(samples(reader().read(body)).items())
    assert len(whole) > 10
    used = reader()
    used.read(body)
    errors, kinds = 0, set()
    for end in range(len(body)):
        by = used if warm else reader()
        try:
            part = list(samples(by.read(body[:end])).items())
        except ExpositionError as bad:
            kinds.add(bad.kind)
            errors += 1
        else:
            assert body[end - 1 : end] == b"\n"
            assert part == whole[: len(part)]
    assert kinds == {Failure.EMPTY, Failure.NOT_VLLM, Failure.MALFORMED}
    assert errors > len(body) * 0.9


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_a_cut_openmetrics_page_is_always_an_error(end: bytes) -> None:
    """With the format declared, no cut is ever taken for a whole page."""
    body = (small_page() + b"# EOF\n").replace(b"\n", end)
    assert samples(reader().read(body, openmetrics=True))
    for cut in range(len(body) - len(end) - 1):
        with pytest.raises(ExpositionError):
            reader().read(body[:cut], openmetrics=True)


def by_the_client(page: RealPage) -> Samples:
    """The wanted samples as Prometheus' own client reads them.

    Its OpenMetrics parser refuses what vLLM answers (colons are lost in the samples, not in the TYPE lines).
    """
    found = {}
    for family in parse_text(page.body.decode()):
        for sample in family.samples:
            if VOCABULARY.role(sample.name) is not None:
                value = sample.value if not math.isnan(sample.value) else NAN
                found[sample.name, tuple(sorted(sample.labels.items()))] = value
    return found


@pytest.mark.parametrize("folder", sorted({page.folder for page in real_pages()}))
def test_real_pages_are_read_as_prometheus_reads_them(folder: str) -> None:
    """Every wanted sample of every recorded page has the name, labels and value that the client library gives."""
    used = reader()
    for page in real_pages():
        if page.folder == folder:
            expected = by_the_client(page)
            openmetrics = "openmetrics" in page.content_type
            assert samples(used.read(page.body, openmetrics=openmetrics)) == expected, page.place
            assert expected or page.folder.startswith("vllm-0.8.5-v0"), page.place


def test_stepping_over_changes_nothing() -> None:
    """On real pages, a reader that steps over unwanted families whole finds what one finds that does not."""
    patient, quick = PageReader(lambda name: VOCABULARY.role(name) is not None), reader()
    for page in real_pages()[::3]:
        slow, fast = patient.read(page.body), quick.read(page.body)
        assert samples(slow) == samples(fast), page.place
        assert slow.help.items() >= fast.help.items()
        assert set(fast.families) <= set(slow.families)


def test_a_million_lines_are_read_and_more_are_refused() -> None:
    """A page of nearly a million unwanted lines is read to its end; one of more costs nothing."""
    lines = b"".join(b'x{a="%d"} 1\n' % i for i in range(999_999))
    assert read(lines + b"vllm:num_requests_running 3\n") == one(3)
    assert read(lines + b"x 1\n" + b"vllm:num_requests_running 3\n") == Failure.TOO_LARGE
    assert read(b"\n" * 16_000_000 + b"vllm:num_requests_running 3\n") == Failure.TOO_LARGE


NAME = b"vllm:num_requests_running"


@pytest.mark.parametrize(
    "body",
    [
        NAME + b'{a="' + b"\\" * 4_000_000,
        NAME + b"{" * 4_000_000,
        (NAME + b" " + b"1" * 1000 + b"!\n") * 4000,
        (NAME + b" 1" + b" " * 1000 + b"!\n") * 4000,
        (NAME + b" 1 1" + b"." * 1000 + b"!\n") * 4000,
        (NAME + b"{a" + b" " * 1000 + b"!\n") * 4000,
        (b'{"' + b"\\" * 1000 + b"\n") * 4000,
    ],
    ids=["backslashes", "braces", "digits", "blanks", "points", "label", "quoted"],
)
def test_no_bytes_take_long(body: bytes) -> None:
    """Four megabytes made to make patterns go back and forth are refused within seconds."""
    start = process_time()
    assert isinstance(read(body), Failure)
    assert process_time() - start < 5


def test_a_flood_of_wanted_samples_is_refused() -> None:
    """More samples than any vLLM exposes are refused, and what is remembered of them is bounded."""
    by = reader()
    flood = b"".join(b'vllm:num_requests_running{a="%d"} 1\n' % i for i in range(100_001))
    with pytest.raises(ExpositionError) as caught:
        by.read(flood)
    assert caught.value.kind is Failure.TOO_LARGE
    assert len(by._memo) < 100_000
    assert samples(by.read(b"vllm:num_requests_running 3\n")) == one(3)


# -- any bytes ------------------------------------------------------------------------------------------------

WORDS = '# HELP |# TYPE |vllm:num_requests_running|vllm:x|{|}|"|\\|,|=| |1|NaN|_|e|# EOF|engine="0"|\n|\r\n|\t| 1\n'
PIECES = st.sampled_from([*(word.encode() for word in WORDS.split("|")), b"\xff", b"\x00"])


def survives(by: PageReader, body: bytes) -> Exposition | None:
    """The page, or nothing; anything but `ExpositionError` fails the test."""
    try:
        page = by.read(body)
    except ExpositionError:
        return None
    assert len(page.series) == len(page.values)
    return page


@given(st.one_of(st.binary(max_size=200), st.lists(PIECES, max_size=40).map(b"".join)))
@settings(max_examples=1500)
def test_any_bytes_are_a_page_or_an_error(body: bytes) -> None:
    """No bytes raise anything but the one error, and a used reader agrees with a fresh one."""
    by = reader()
    survives(by, body)
    assert outcome(by, body) == outcome(reader(), body)


SMALL = small_page()


def mutate(body: bytes, data: st.DataObject) -> bytes:
    """A page with one thing wrong: a byte, the order, a cut, a line doubled."""
    kind = data.draw(st.sampled_from(["byte", "cut", "double", "shuffle", "drop", "insert"]))
    at = data.draw(st.integers(0, len(body) - 1))
    lines = body.split(b"\n")
    n = data.draw(st.integers(0, len(lines) - 1))
    if kind == "byte":
        return body[:at] + bytes([data.draw(st.integers(0, 255))]) + body[at + 1 :]
    if kind == "cut":
        return body[:at]
    if kind == "double":
        return b"\n".join([*lines[:n], lines[n], *lines[n:]])
    if kind == "drop":
        return b"\n".join([*lines[:n], *lines[n + 1 :]])
    if kind == "insert":
        return body[:at] + data.draw(st.binary(min_size=1, max_size=8)) + body[at:]
    return b"\n".join([*data.draw(st.permutations(lines[n : n + 12])), *lines[:n], *lines[n + 12 :]])


@given(st.data())
@settings(max_examples=600)
def test_a_damaged_page_is_a_page_or_an_error(data: st.DataObject) -> None:
    """A page with up to four things wrong raises nothing else, whatever the reader read before."""
    body = SMALL
    for _ in range(data.draw(st.integers(1, 4))):
        if body:
            body = mutate(body, data)
    used = reader()
    used.read(SMALL)
    assert outcome(used, body) == outcome(reader(), body)


@given(st.data())
@settings(max_examples=60)
def test_a_damaged_real_page_is_a_page_or_an_error(data: st.DataObject) -> None:
    """A recorded page with one thing wrong raises nothing else, and no number in it changes unseen."""
    pages = real_pages()
    page = data.draw(st.sampled_from(pages[:: max(len(pages) // 12, 1)]))
    survives(reader(), mutate(page.body, data))


@given(st.permutations(SMALL.decode().splitlines()))
@settings(max_examples=100)
def test_the_order_of_lines_does_not_matter(lines: list[str]) -> None:
    """However the lines are shuffled, the samples are the same."""
    assert read(("\n".join(lines) + "\n").encode()) == samples(reader().read(SMALL))
