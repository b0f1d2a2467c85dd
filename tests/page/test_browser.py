"""The page in a real Chromium, with recordings of real servers."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from kvwatch.core.export.findings import findings
from kvwatch.sidecar.page.filters import percent
from kvwatch.text.evidence import format_value
from tests.page.conftest import NARROW, WIDE, Opens
from tests.support.loopback import pages
from tests.support.page_colours import LIGHT, LINES
from tests.support.served_page import HEALTHY, SATURATED, TWO_ENGINES, Served, again, ranks, saturated

SERIOUS = {"serious", "critical"}
NASTY = "<img src=x onerror=window.taken=1><script>window.taken=1</script>"


def refreshed(page: Page) -> None:
    """Waits until the page shows the newest state. A rendered page is served for a second."""
    page.wait_for_timeout(1000)
    with page.expect_response(page.url):
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Resume").click()
    page.locator("#live span", has_text="Live").wait_for()


def drawn(page: Page, chart: str) -> int:
    """How many colours of lines a chart has. An empty chart has none."""
    script = """name => {
      const canvas = document.querySelector(`[data-chart=${name}] canvas`);
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const seen = new Set();
      for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) seen.add(data.slice(i, i + 3).join());
      return [...seen];
    }"""
    light = {",".join(str(int(LIGHT[name][i : i + 2], 16)) for i in (1, 3, 5)) for name in LINES}
    return len(light & set(page.evaluate(script, chart)))


def unfold(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")


def test_a_saturated_server_is_shown_in_full(served: Served, opened: Opens) -> None:
    saturated(served)
    page = opened()
    state = served.store.state("vllm")
    first, *rest = findings(state)
    assert first.symptom.id == "kv_thrashing"
    wrong = page.get_by_role("region", name="Findings")
    expect(wrong.locator(".headline")).to_contain_text(f"First: {first.symptom.title}")
    article = wrong.get_by_role("article", name=first.symptom.title)
    for action in first.advice.actions:
        expect(article.get_by_role("listitem").filter(has_text=action.sentence)).to_have_count(1)
    for cause in first.symptom.causes:
        expect(article).to_contain_text(cause)
    for name, value in first.evidence.items():
        expect(article.locator(".facts")).to_contain_text(f"{format_value(name, value)} {name}")
    for other in rest:
        expect(wrong.get_by_role("article", name=other.symptom.title)).to_contain_text("Caused by ")
    engine = page.locator("details.engine")
    expect(engine.get_by_role("img", name="Regimes in the last")).to_have_accessible_name(
        "Regimes in the last 2 min: kv_limited 43 s, flowing 20 s, idle 6 s"
    )
    assert {one: drawn(page, one) for one in ("usage", "queue", "preemptions", "hits", "ttft")} == {
        "usage": 1,
        "queue": 2,
        "preemptions": 1,
        "hits": 1,
        "ttft": 2,
    }
    usage = percent(state.engines[first.key].snapshot.number("kv_cache_usage_ratio"))
    expect(engine.locator("figure", has_text="KV cache usage").locator(".key")).to_contain_text(
        f"usage{usage}"
    )
    expect(engine.locator(".score")).to_have_text("0.91 of 1")
    expect(engine).to_contain_text("Lengths of finished requests")
    engine.get_by_text("Configuration of this vLLM").click()
    expect(engine.locator("dt", has_text="num gpu blocks").locator("+ dd")).to_have_text("128")
    engine.get_by_text("as a table").click()
    expect(engine.get_by_role("row").filter(has_text="the last minute")).to_contain_text("kv_limited")
    expect(page.get_by_role("region", name="Events")).to_contain_text("kv_thrashing is firing")
    expect(page.get_by_role("region", name="What kvwatch uses")).to_contain_text("MiB")
    article.get_by_role("link", name="Runbook").click()
    expect(page.locator("pre")).to_contain_text("# KVWatchKvThrashing")


def test_a_healthy_server_shows_only_its_numbers(served: Served, opened: Opens) -> None:
    served.play(pages(HEALTHY)[:60])
    page = opened()
    expect(page.locator(".headline")).to_contain_text("No finding.")
    expect(page.get_by_role("article")).to_have_count(0)
    expect(page.locator("table.engines")).to_contain_text("flowing")


def test_findings_appear_and_resolve_on_an_open_page(served: Served, opened: Opens) -> None:
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
    expect(page.get_by_text("num gpu blocks")).to_be_visible()  # unfolded parts stay unfolded
    served.play([recorded[0]] * 200)
    expect(article).to_have_count(0)
    expect(page.locator("body > [role=status]")).to_contain_text(f"Resolved: {title}.")
    expect(page.get_by_role("region", name="Events")).to_contain_text("kv_thrashing resolved")
    assert page.evaluate("window.same === document.querySelector('details.engine')")
    assert page.evaluate("performance.getEntriesByType('navigation').length") == 1


def test_each_engine_and_each_server_is_shown(served: Served, opened: Opens) -> None:
    served.play(pages(TWO_ENGINES)[:40], "twins")
    saturated(served)
    page = opened()
    expect(page.locator("table.engines tbody tr")).to_have_count(3)
    expect(page.get_by_role("heading", level=2).filter(has_text="twins")).to_be_visible()
    engines = page.locator("details.engine")
    expect(engines).to_have_count(3)
    with_findings = {one.key.target for state in served.store.states().values() for one in findings(state)}
    assert "vllm" in with_findings
    expect(page.locator("#engine-vllm-tiny_2dllama-0")).to_have_attribute("open", "")
    folded = page.locator("details.engine:not([open])")
    count = folded.count()
    assert count  # of more than two engines, only those with findings are unfolded
    folded.first.locator("summary").first.click()
    expect(page.locator("details.engine[open] .charts canvas")).to_have_count(5 * (3 - count + 1))


def test_a_server_that_is_down_shows_its_history_and_no_numbers(served: Served, opened: Opens) -> None:
    saturated(served)
    page = opened()
    served.fail(45)
    expect(page.locator("p.bad")).to_contain_text("refused")
    expect(page.get_by_role("article", name="vLLM is down")).to_have_count(1)
    expect(page.locator("table.engines td.n")).to_have_text(["–"] * 5)
    expect(page.locator("figure", has_text="Time to first token")).to_contain_text("not scraped for 45 s")
    expect(page.get_by_role("img", name="Regimes in the last")).to_have_accessible_name(
        "Regimes in the last 2 min: kv_limited 44 s, flowing 20 s, idle 6 s"
    )


CHARTS = ("usage", "queue", "preemptions", "hits", "ttft")


def drawings(page: Page) -> dict[str, str]:
    """The pixels of every chart of the only engine, after the newest samples are drawn."""
    refreshed(page)
    page.wait_for_timeout(300)
    script = "name => document.querySelector(`[data-chart=${name}] canvas`).toDataURL()"
    return {name: page.evaluate(script, name) for name in CHARTS}


def coloured(page: Page, chart: str, ago: tuple[float, float]) -> int:
    """How many pixels between two times, in seconds ago, have the colour of a line."""
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
    light = {",".join(str(int(LIGHT[name][i : i + 2], 16)) for i in (1, 3, 5)) for name in LINES}
    return sum(pixel in light for pixel in page.evaluate(script, [chart, *ago]))


def test_an_open_page_shows_a_restart_as_a_new_page_does(served: Served, opened: Opens) -> None:
    """Saturated for 70 s, down for 20 s, a new process for 70 s: no line connects the two."""
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
    expect(page.get_by_role("img", name="Regimes in the last")).to_have_accessible_name(
        "Regimes in the last 3 min: kv_limited 87 s, flowing 40 s, idle 12 s; vLLM restarted 69 s ago"
    )
    for chart in ("usage", "queue", "preemptions", "ttft"):
        before, between, after = (coloured(page, chart, ago) for ago in ((158, 92), (87, 70.5), (68, 0)))
        assert before, chart
        assert not between, chart
        assert after, chart
    expect(page.get_by_role("region", name="Events")).to_contain_text("restart")


def test_no_rate_is_drawn_across_a_restart_without_a_gap(opened: Opens) -> None:
    """The counters of the old and the new process are not connected."""
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


def test_a_paused_page_catches_up(served: Served, opened: Opens) -> None:
    """After a pause, or in the background, its charts equal those of a new page."""
    recorded = pages(SATURATED)
    served.play(recorded[:20])
    page = opened()
    page.get_by_role("button", name="Pause").click()
    served.play(recorded[20:90])
    page.get_by_role("button", name="Resume").click()
    page.locator("#live span", has_text="Live").wait_for()
    seen = drawings(page)
    page.reload()
    page.locator("#live", has_text="Live").wait_for()
    assert drawings(page) == seen


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_keyboard_leads_to_the_one_bad_engine_of_sixteen(
    served: Served, opened: Opens, size: tuple[int, int]
) -> None:
    played = ranks(16, sick=13)
    served.play(played[:70])
    page = opened(size)
    focus = "document.activeElement.textContent.trim()"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # to the findings
    page.keyboard.press("Tab")
    assert page.evaluate(focus) == "vllm / tiny-llama / engine 13"  # in the first finding
    rows = page.locator("table.engines tbody tr")
    expect(rows).to_have_count(16)
    with_findings = rows.filter(has_text="kv_thrashing")
    expect(with_findings).to_have_count(1)
    expect(with_findings.locator("[data-name=engine]")).to_have_text("13")
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
    page.get_by_role("article").first.get_by_role("link", name="vllm / tiny-llama / engine 13").click()
    expect(page.locator("details.engine[open]")).to_contain_text("tiny-llama / engine 13")
    served.play(played[70:])
    expect(page.locator("details.engine")).to_contain_text("kv_limited 45 s")
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    assert page.evaluate(CUT_OFF) == []
    assert [one for one in violations_of(page) if one.split()[0] in SERIOUS] == []
    page.get_by_role("link", name="All engines").click()
    expect(rows).to_have_count(16)


def test_the_page_of_an_engine_shows_that_it_is_gone(served: Served, chromium: Browser) -> None:
    served.play(ranks(2, sick=1)[:70])
    page = chromium.new_page()
    page.goto(served.url)
    page.get_by_role("article").first.get_by_role("link", name="vllm / tiny-llama / engine 1").click()
    page.locator("#live", has_text="Live").wait_for()
    served.clock.time += 600  # an engine that is not scraped is kept for so long
    served.play(pages(HEALTHY)[:1])
    expect(page.locator("#live .lost")).to_have_text("This engine is gone. The data below is out of date.")
    page.close()


def test_shows_a_lost_connection_and_reconnects(chromium: Browser) -> None:
    served = Served()
    page = chromium.new_page()
    with served.serving():
        saturated(served)
        page.goto(served.url)
        page.locator("#live", has_text="Live").wait_for()
    lost = page.locator("#live .lost")
    lost.wait_for(timeout=10_000)
    expect(lost).to_contain_text("The data below is out of date")
    expect(page.locator("#live")).to_contain_text("Retrying in")
    expect(page.get_by_role("article").first).to_be_visible()  # the last data stay visible
    with served.serving():
        page.locator("#live span", has_text="Live").wait_for(timeout=20_000)
        expect(lost).to_have_count(0)
        page.close()


def test_a_paused_page_sends_no_request(served: Served, opened: Opens) -> None:
    saturated(served)
    page = opened()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#live")).to_contain_text("Paused")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.wait_for_timeout(2500)
    assert requests == []
    page.get_by_role("button", name="Resume").click()
    page.locator("#live span", has_text="Live").wait_for()
    assert requests


def test_text_from_a_server_never_becomes_markup(served: Served, opened: Opens) -> None:
    bodies = [page.replace(b'"tiny-llama"', f'"{NASTY}"'.encode()) for page in pages(SATURATED)[:70]]
    served.play(bodies[:60])
    page = opened()
    served.play(bodies[60:])
    refreshed(page)
    expect(page.locator("table.engines")).to_contain_text(NASTY)
    expect(page.locator("article").first).to_contain_text(NASTY)
    assert drawn(page, "usage") == 1  # its history is requested by that name
    assert page.evaluate("[document.querySelectorAll('img').length, window.taken]") == [0, None]


def test_an_inline_script_is_blocked(served: Served, chromium: Browser) -> None:
    saturated(served)
    page = chromium.new_page()
    blocked: list[str] = []
    page.on("console", lambda one: blocked.append(one.text))
    page.goto(served.url)
    page.evaluate(
        "const s = document.createElement('script'); s.textContent = 'window.taken = 1'; document.body.append(s)"
    )
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.taken=1\">')")
    page.evaluate("fetch('http://127.0.0.2:9/').catch(() => {})")
    page.wait_for_timeout(300)
    assert page.evaluate("window.taken") is None
    assert sum("Content Security Policy" in line for line in blocked) >= 3
    page.close()


def test_complete_without_a_script(served: Served, opened: Opens) -> None:
    saturated(served)
    page = opened(java_script_enabled=False)
    expect(page.get_by_role("article")).not_to_have_count(0)
    expect(page.locator("figure", has_text="KV cache usage")).to_contain_text("at or above 95 % for")
    page.get_by_text("as a table").click()
    expect(page.get_by_role("row").filter(has_text="the last minute")).to_be_visible()
    assert page.locator("noscript").count() == 1


def test_dark_mode_follows_the_browser(served: Served, opened: Opens) -> None:
    saturated(served)
    page = opened(color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(20, 24, 28)"
    assert drawn(page, "queue") == 0  # no line has a colour of the light page
    page.emulate_media(color_scheme="light")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.wait_for_timeout(300)
    assert drawn(page, "queue") == 2


def test_reduced_motion_is_respected(served: Served, opened: Opens) -> None:
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
    """A saturated server, one with two engines, one that is down and one that never answered."""
    saturated(served)
    served.play(pages(TWO_ENGINES)[:40], "twins")
    served.play(pages(SATURATED)[:60], "gone")
    served.fail(45, "gone", detail="Server disconnected without sending a response; " * 3)
    served.fail(1, "never-there")


def test_a_phone_needs_no_horizontal_scrolling(served: Served, opened: Opens) -> None:
    everything(served)
    page = opened(NARROW)
    unfold(page)
    expect(page.locator(".charts canvas")).to_have_count(20)
    assert page.evaluate("document.documentElement.scrollWidth") == NARROW[0]
    assert page.evaluate(CUT_OFF) == []


def test_every_part_is_reachable_by_keyboard(served: Served, opened: Opens) -> None:
    saturated(served)
    page = opened()
    focus = "document.activeElement.textContent.trim()"
    page.keyboard.press("Tab")
    assert page.evaluate(focus) == "Skip to the findings"
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
        "Evidence and actions, if the finding remains",
        "Configuration of this vLLM",
    } <= reached
    page.keyboard.press("Enter")
    expect(page.get_by_text("num gpu blocks")).to_be_visible()
    served.play(pages(SATURATED)[70:72])
    page.locator("details.engine", has_text="kv_limited 45 s").wait_for()
    assert page.evaluate(focus) == "Configuration of this vLLM"  # a refresh keeps the focus
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"


def violations_of(page: Page, **options: Any) -> list[str]:
    """The violations that axe-core finds, each with its impact first."""
    result = Axe().run(page, options={"resultTypes": ["violations"], **options}).response
    assert result["passes"]
    return [
        f"{one['impact']} {one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes']]}"
        for one in result["violations"]
    ]


@pytest.mark.parametrize(
    ("down", "size"), [(False, WIDE), (True, NARROW)], ids=["saturated-wide", "down-narrow"]
)
def test_axe_finds_no_serious_violation(
    served: Served, opened: Opens, down: bool, size: tuple[int, int]
) -> None:
    saturated(served)
    served.fail(45 if down else 0)
    page = opened(size)
    unfold(page)
    violations = violations_of(page)
    page.emulate_media(color_scheme="dark")
    violations += violations_of(page, runOnly=["color-contrast"])
    print(violations)
    assert [one for one in violations if one.split()[0] in SERIOUS] == []


def test_axe_reports_a_button_without_a_name(opened: Opens) -> None:
    page = opened()
    page.evaluate("document.querySelector('#live button').textContent = ''")
    assert [one for one in violations_of(page) if one.startswith("critical button-name")]
