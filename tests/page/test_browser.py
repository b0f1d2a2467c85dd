"""The page in a real Chromium, over recordings of real servers."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from kvwatch.core.export.findings import findings
from kvwatch.sidecar.page import style
from kvwatch.text.evidence import format_value
from tests.page.conftest import NARROW, WIDE, Opens
from tests.support.loopback import pages
from tests.support.served_page import HEALTHY, SATURATED, TWO_ENGINES, Served, again, ranks, saturated

SERIOUS = {"serious", "critical"}
NASTY = "<img src=x onerror=window.taken=1><script>window.taken=1</script>"


def refreshed(page: Page) -> None:
    """Until the page has asked again and taken over what came; what was written before may be a second old."""
    page.wait_for_timeout(1000)
    with page.expect_response(page.url):
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Go on").click()
    page.locator("#live span", has_text="Live").wait_for()


def drawn(page: Page, chart: str) -> int:
    """How many colours a chart has: an empty one has its grid and its words only."""
    script = """name => {
      const canvas = document.querySelector(`[data-chart=${name}] canvas`);
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const seen = new Set();
      for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) seen.add(data.slice(i, i + 3).join());
      return [...seen];
    }"""
    light = {",".join(str(int(c[i : i + 2], 16)) for i in (1, 3, 5)) for c, _ in style.LINES.values()}
    return len(light & set(page.evaluate(script, chart)))


def unfold(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")


def test_a_saturated_server_is_told_whole(served: Served, opened: Opens) -> None:
    saturated(served)
    page = opened()
    state = served.store.state("vllm")
    first, *rest = findings(state)
    assert first.symptom.id == "kv_thrashing"
    wrong = page.get_by_role("region", name="What is wrong")
    expect(wrong.locator(".headline")).to_contain_text(f"First: {first.symptom.title}")
    article = wrong.get_by_role("article", name=first.symptom.title)
    for action in first.actions:
        expect(article.get_by_role("listitem").filter(has_text=action)).to_have_count(1)
    for cause in first.symptom.causes:
        expect(article).to_contain_text(cause)
    for name, value in first.evidence.items():
        expect(article.locator(".facts")).to_contain_text(f"{format_value(name, value)} {name}")
    for other in rest:
        expect(wrong.get_by_role("article", name=other.symptom.title)).to_contain_text("act on that first")
    engine = page.locator("details.engine")
    expect(engine.get_by_role("img", name="Regimes of the last")).to_have_accessible_name(
        "Regimes of the last 2 min: kv_limited 43 s, flowing 20 s, idle 6 s"
    )
    assert {one: drawn(page, one) for one in ("usage", "queue", "preemptions", "hits", "ttft")} == {
        "usage": 1,
        "queue": 2,
        "preemptions": 1,
        "hits": 1,
        "ttft": 2,
    }
    usage = f"{100 * (state.engines[first.key].snapshot.number('kv_cache_usage_ratio') or 0):.1f} %"
    expect(engine.locator("figure", has_text="KV usage").locator(".key")).to_contain_text(f"KV usage{usage}")
    expect(engine.locator(".score")).to_have_text("0.91 of 1")
    expect(engine).to_contain_text("Lengths of finished requests")
    engine.get_by_text("Configuration of this vLLM").click()
    expect(engine.locator("dt", has_text="num gpu blocks").locator("+ dd")).to_have_text("128")
    engine.get_by_text("as a table").click()
    expect(engine.get_by_role("row").filter(has_text="the last minute")).to_contain_text("kv_limited")
    expect(page.get_by_role("region", name="What happened")).to_contain_text("kv_thrashing fires")
    expect(page.get_by_role("region", name="What kvwatch costs")).to_contain_text("MiB")
    article.get_by_role("link", name="Runbook").click()
    expect(page.locator("pre")).to_contain_text("# KVWatchKvThrashing")


def test_a_healthy_server_has_nothing_but_its_numbers(served: Served, opened: Opens) -> None:
    served.play(pages(HEALTHY)[:60])
    page = opened()
    expect(page.locator(".headline")).to_contain_text("No finding.")
    expect(page.get_by_role("article")).to_have_count(0)
    expect(page.locator("table.engines")).to_contain_text("flowing")


def test_findings_appear_and_go_while_one_reads(served: Served, opened: Opens) -> None:
    recorded = pages(SATURATED)
    served.play(recorded[:20])
    page = opened()
    expect(page.get_by_role("article")).to_have_count(0)
    page.get_by_text("Configuration of this vLLM").click()
    page.evaluate("window.same = document.querySelector('details.engine')")
    served.play(recorded[20:70])
    title = findings(served.store.state("vllm"))[0].symptom.title
    article = page.get_by_role("article", name=title)
    expect(article).to_have_count(1)
    expect(page.locator("body > [role=status]")).to_contain_text(f"New: {title}.")
    expect(page.get_by_text("num gpu blocks")).to_be_visible()  # what was unfolded stays so
    served.play([recorded[0]] * 200)
    expect(article).to_have_count(0)
    expect(page.locator("body > [role=status]")).to_contain_text(f"Over: {title}.")
    expect(page.get_by_role("region", name="What happened")).to_contain_text("kv_thrashing is over")
    assert page.evaluate("window.same === document.querySelector('details.engine')")
    assert page.evaluate("performance.getEntriesByType('navigation').length") == 1


def test_two_engines_and_two_servers_are_told_apart(served: Served, opened: Opens) -> None:
    served.play(pages(TWO_ENGINES)[:40], "twins")
    saturated(served)
    page = opened()
    expect(page.locator("table.engines tbody tr")).to_have_count(3)
    expect(page.get_by_role("heading", level=2).filter(has_text="twins")).to_be_visible()
    engines = page.locator("details.engine")
    expect(engines).to_have_count(3)
    ill = {one.key.target for state in served.store.states().values() for one in findings(state)}
    assert "vllm" in ill
    expect(page.locator("#engine-vllm-tiny_2dllama-0")).to_have_attribute("open", "")
    folded = page.locator("details.engine:not([open])")
    count = folded.count()
    assert count  # three are too many to unfold those that are well
    folded.first.locator("summary").first.click()
    expect(page.locator("details.engine[open] .charts canvas")).to_have_count(5 * (3 - count + 1))


def test_a_server_that_is_down_has_no_numbers_but_its_history(served: Served, opened: Opens) -> None:
    saturated(served)
    page = opened()
    served.fail(45)
    expect(page.locator("p.bad")).to_contain_text("refused")
    expect(page.get_by_role("article", name="vLLM is down")).to_have_count(1)
    expect(page.locator("table.engines td.n")).to_have_text(["–"] * 5)
    expect(page.locator("figure", has_text="Time to first token")).to_contain_text("not scraped for 45 s")
    expect(page.get_by_role("img", name="Regimes of the last")).to_have_accessible_name(
        "Regimes of the last 2 min: kv_limited 44 s, flowing 20 s, idle 6 s"
    )


CHARTS = ("usage", "queue", "preemptions", "hits", "ttft")


def drawings(page: Page) -> dict[str, str]:
    """Every chart of the one engine as its pixels, once what came last is drawn."""
    refreshed(page)
    page.wait_for_timeout(300)
    script = "name => document.querySelector(`[data-chart=${name}] canvas`).toDataURL()"
    return {name: page.evaluate(script, name) for name in CHARTS}


def coloured(page: Page, chart: str, ago: tuple[float, float]) -> int:
    """How many pixels between two moments, seconds ago, are of the colours of lines."""
    script = """([name, from, to]) => {
      const holder = document.querySelector(`[data-chart=${name}]`);
      const span = Number(holder.closest(".charts").dataset.span);
      const canvas = holder.querySelector("canvas"), over = holder.querySelector(".u-over");
      const scale = canvas.width / canvas.clientWidth;
      const x = (ago) => Math.round(scale * (over.offsetLeft + over.clientWidth * (1 - ago / span)));
      const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
      copy.drawImage(canvas, 0, 0);
      const { data } = copy.getImageData(x(from), 0, x(to) - x(from), canvas.height);
      const seen = [];
      for (let i = 0; i < data.length; i += 4) seen.push(data.slice(i, i + 3).join());
      return seen;
    }"""
    light = {",".join(str(int(c[i : i + 2], 16)) for i in (1, 3, 5)) for c, _ in style.LINES.values()}
    return sum(pixel in light for pixel in page.evaluate(script, [chart, *ago]))


def test_a_restart_is_seen_with_what_was_before_it_on_an_open_page_as_on_a_new_one(
    served: Served, opened: Opens
) -> None:
    """Saturated for 70 s, gone for 20 s, another process for 70 s: no line between the two."""
    saturated(served)
    page = opened()
    page.evaluate("window.left = 'open'")
    served.fail(20)
    refreshed(page)
    served.play(again(pages(SATURATED)[:70]))
    left_open = drawings(page)
    words = page.locator("details.engine").inner_text()
    assert page.evaluate("window.left") == "open"
    page.reload()
    page.locator("#live", has_text="Live").wait_for()
    assert drawings(page) == left_open
    assert page.locator("details.engine").inner_text() == words
    assert "vLLM restarted 69 s ago" in words
    expect(page.get_by_role("img", name="Regimes of the last")).to_have_accessible_name(
        "Regimes of the last 3 min: kv_limited 87 s, flowing 40 s, idle 12 s; vLLM restarted 69 s ago"
    )
    for chart in ("usage", "queue", "preemptions", "ttft"):
        before, between, after = (coloured(page, chart, ago) for ago in ((158, 92), (87, 70.5), (68, 0)))
        assert before, chart
        assert not between, chart
        assert after, chart
    expect(page.get_by_role("region", name="What happened")).to_contain_text("restart")


def test_no_rate_is_drawn_across_a_restart_that_left_no_gap(opened: Opens) -> None:
    """What the old process counted before its end and the new one since its start have nothing between them."""
    page = opened()
    script = """async () => {
      const { increases, shares } = await import("/static/charts.js");
      const begun = new Set([3]);
      return [
        increases([0, 2, 5, 5, 6], begun),
        shares([0, 1, 2, 3, 4], [0, 1, 2, 2, 2], [0, 2, 4, 4, 6], begun),
        shares([0, 1, 2, 3, 4], [0, 1, 2, 2, 2], [0, 2, 4, 4, 6], new Set()),
      ];
    }"""
    increased, shared, unparted = page.evaluate(script)
    assert increased == [None, 2, 3, None, 1]
    assert shared == [None, 0.5, 0.5, None, 0]
    assert unparted[4] == pytest.approx(1 / 3)


def test_a_page_that_was_not_looked_at_misses_nothing_afterwards(served: Served, opened: Opens) -> None:
    """While it is paused, as in a tab behind others, time goes on; then its charts are those of a new page."""
    recorded = pages(SATURATED)
    served.play(recorded[:20])
    page = opened()
    page.get_by_role("button", name="Pause").click()
    served.play(recorded[20:90])
    page.get_by_role("button", name="Go on").click()
    page.locator("#live span", has_text="Live").wait_for()
    seen = drawings(page)
    page.reload()
    page.locator("#live", has_text="Live").wait_for()
    assert drawings(page) == seen


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_of_sixteen_engines_the_sick_one_is_found_by_the_keyboard(
    served: Served, opened: Opens, size: tuple[int, int]
) -> None:
    played = ranks(16, sick=13)
    served.play(played[:70])
    page = opened(size)
    focus = "document.activeElement.textContent.trim()"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # to what is wrong
    page.keyboard.press("Tab")
    assert page.evaluate(focus) == "vllm / tiny-llama / 13"  # of the first finding
    rows = page.locator("table.engines tbody tr")
    expect(rows).to_have_count(16)
    ill = rows.filter(has_text="kv_thrashing")
    expect(ill).to_have_count(1)
    expect(ill.locator("[data-name=engine]")).to_have_text("13")
    well = rows.nth(15).get_by_role("link", name="tiny-llama, engine 15")
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('aria-label')") == "tiny-llama, engine 15":
            break
    expect(well).to_be_focused()
    page.keyboard.press("Enter")
    page.locator("#live", has_text="Live").wait_for()
    alone = page.locator("details.engine[open]")
    expect(alone.get_by_role("heading", name="tiny-llama / engine 15")).to_be_visible()
    expect(page.locator(".charts canvas")).to_have_count(len(CHARTS))
    expect(page.locator("tr[aria-current=page] [data-name=engine]")).to_have_text("15")
    expect(page.locator(".headline")).to_contain_text("No finding.")
    assert drawn(page, "usage") == 1
    page.get_by_role("link", name="kv_thrashing").click()
    expect(page.get_by_role("article", name="KV cache thrashing")).to_be_in_viewport()
    page.get_by_role("article").first.get_by_role("link", name="vllm / tiny-llama / 13").click()
    expect(page.locator("details.engine[open]")).to_contain_text("tiny-llama / engine 13")
    served.play(played[70:])
    expect(page.locator("details.engine")).to_contain_text("kv_limited 45 s")
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    assert page.evaluate(CUT_OFF) == []
    assert [one for one in faults_of(page) if one.split()[0] in SERIOUS] == []
    page.get_by_role("link", name="All engines").click()
    expect(rows).to_have_count(16)


def test_an_engine_that_went_away_is_said_on_its_page(served: Served, chromium: Browser) -> None:
    served.play(ranks(2, sick=1)[:70])
    page = chromium.new_page()
    page.goto(served.url)
    page.get_by_role("article").first.get_by_role("link", name="vllm / tiny-llama / 1").click()
    page.locator("#live", has_text="Live").wait_for()
    served.clock.time += 600  # as long as an engine that is not seen is kept
    served.play(pages(HEALTHY)[:1])
    expect(page.locator("#live .lost")).to_have_text("This engine is no longer there: what is below is old.")
    page.close()


def test_says_when_the_connection_is_lost_and_comes_back_by_itself(chromium: Browser) -> None:
    served = Served()
    page = chromium.new_page()
    with served.serving():
        saturated(served)
        page.goto(served.url)
        page.locator("#live", has_text="Live").wait_for()
    lost = page.locator("#live .lost")
    lost.wait_for(timeout=10_000)
    expect(lost).to_contain_text("what is below is old")
    expect(page.locator("#live")).to_contain_text("Asking again in")
    expect(page.get_by_role("article").first).to_be_visible()  # what was known stays
    with served.serving():
        page.locator("#live span", has_text="Live").wait_for(timeout=20_000)
        expect(lost).to_have_count(0)
        page.close()


def test_paused_it_asks_nothing(served: Served, opened: Opens) -> None:
    saturated(served)
    page = opened()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#live")).to_contain_text("Paused")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)
    assert asked == []
    page.get_by_role("button", name="Go on").click()
    page.locator("#live span", has_text="Live").wait_for()
    assert asked


def test_nothing_that_a_server_says_is_run_or_drawn(served: Served, opened: Opens) -> None:
    bodies = [page.replace(b'"tiny-llama"', f'"{NASTY}"'.encode()) for page in pages(SATURATED)[:70]]
    served.play(bodies[:60])
    page = opened()
    served.play(bodies[60:])
    refreshed(page)
    expect(page.locator("table.engines")).to_contain_text(NASTY)
    expect(page.locator("article").first).to_contain_text(NASTY)
    assert drawn(page, "usage") == 1  # its history is asked for by that name
    assert page.evaluate("[document.querySelectorAll('img').length, window.taken]") == [0, None]


def test_a_script_in_the_page_itself_is_refused(served: Served, chromium: Browser) -> None:
    saturated(served)
    page = chromium.new_page()
    refused: list[str] = []
    page.on("console", lambda one: refused.append(one.text))
    page.goto(served.url)
    page.evaluate(
        "const s = document.createElement('script'); s.textContent = 'window.taken = 1'; document.body.append(s)"
    )
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.taken=1\">')")
    page.evaluate("fetch('http://127.0.0.2:9/').catch(() => {})")
    page.wait_for_timeout(300)
    assert page.evaluate("window.taken") is None
    assert sum("Content Security Policy" in line for line in refused) >= 3
    page.close()


def test_complete_without_a_script(served: Served, opened: Opens) -> None:
    saturated(served)
    page = opened(java_script_enabled=False)
    expect(page.get_by_role("article")).not_to_have_count(0)
    expect(page.locator("figure", has_text="KV usage")).to_contain_text("at or above 95 % for")
    page.get_by_text("as a table").click()
    expect(page.get_by_role("row").filter(has_text="the last minute")).to_be_visible()
    assert page.locator("noscript").count() == 1


def test_dark_where_the_reader_wants_it_dark(served: Served, opened: Opens) -> None:
    saturated(served)
    page = opened(color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(20, 24, 28)"
    assert drawn(page, "queue") == 0  # no line has the colours of the light page
    page.emulate_media(color_scheme="light")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.wait_for_timeout(300)
    assert drawn(page, "queue") == 2


def test_motion_only_where_the_reader_wants_some(served: Served, opened: Opens) -> None:
    served.play(pages(SATURATED)[:20])
    calm = opened(reduced_motion="reduce")
    lively = opened(reduced_motion="no-preference")
    served.play(pages(SATURATED)[20:70])
    names = []
    for page in (calm, lively):
        page.locator("article.new").first.wait_for()
        names.append(page.evaluate("getComputedStyle(document.querySelector('article.new')).animationName"))
    assert names == ["none", "new"]


CUT_OFF = """[...document.querySelectorAll('td, dd, li, p, figcaption')].filter(
  (one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline"
    && !one.closest(".scroll, .u-legend, .unseen")).map((one) => one.outerHTML)"""


def everything(served: Served) -> None:
    """A saturated server, one of two engines, one that is down and one that was never there."""
    saturated(served)
    served.play(pages(TWO_ENGINES)[:40], "twins")
    served.play(pages(SATURATED)[:60], "gone")
    served.fail(45, "gone")
    served.fail(1, "never-there")


def test_a_phone_shows_it_all_without_scrolling_sideways(served: Served, opened: Opens) -> None:
    everything(served)
    page = opened(NARROW)
    unfold(page)
    expect(page.locator(".charts canvas")).to_have_count(20)
    assert page.evaluate("document.documentElement.scrollWidth") == NARROW[0]
    assert page.evaluate(CUT_OFF) == []


def test_by_the_keyboard_alone(served: Served, opened: Opens) -> None:
    saturated(served)
    page = opened()
    focus = "document.activeElement.textContent.trim()"
    page.keyboard.press("Tab")
    assert page.evaluate(focus) == "To what is wrong"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('#main') !== null")
    reached = set()
    for _ in range(40):
        reached.add(page.evaluate(focus))
        if page.evaluate(focus) == "Configuration of this vLLM":
            break
        page.keyboard.press("Tab")
    assert {
        "Runbook: KVWatchKvThrashing",
        "Evidence and what to do, if it stays",
        "Configuration of this vLLM",
    } <= reached
    page.keyboard.press("Enter")
    expect(page.get_by_text("num gpu blocks")).to_be_visible()
    served.play(pages(SATURATED)[70:72])
    page.locator("details.engine", has_text="kv_limited 45 s").wait_for()
    assert page.evaluate(focus) == "Configuration of this vLLM"  # what is focused stays so through a refresh
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"


def faults_of(page: Page, **options: Any) -> list[str]:
    """What axe-core finds, each with its impact first."""
    told = Axe().run(page, options={"resultTypes": ["violations"], **options}).response
    assert told["passes"]
    return [
        f"{one['impact']} {one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes']]}"
        for one in told["violations"]
    ]


@pytest.mark.parametrize(
    ("down", "size"), [(False, WIDE), (True, NARROW)], ids=["saturated-wide", "down-narrow"]
)
def test_axe_finds_no_serious_fault(served: Served, opened: Opens, down: bool, size: tuple[int, int]) -> None:
    saturated(served)
    served.fail(45 if down else 0)
    page = opened(size)
    unfold(page)
    faults = faults_of(page)
    page.emulate_media(color_scheme="dark")
    faults += faults_of(page, runOnly=["color-contrast"])
    print(faults)
    assert [one for one in faults if one.split()[0] in SERIOUS] == []


def test_axe_finds_what_is_wrong_with_a_page(opened: Opens) -> None:
    page = opened()
    page.evaluate("document.querySelector('#live button').textContent = ''")
    assert [one for one in faults_of(page) if one.startswith("critical button-name")]
