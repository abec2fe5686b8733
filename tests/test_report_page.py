"""Reports in a real browser: what is drawn, by mouse, keyboard and search, how fast; nothing leaves the page."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import openvino as ov
import pytest
from playwright import sync_api

import ov_hsdag
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.problem.pricing import build_problem
from research.zoo.catalog import ZOO
from research.zoo.deep import build
from tests.decoders import layered, stateful_decoder
from tests.graphs import halved
from tests.test_report import HOSTILE, split_convolutions

pytestmark = pytest.mark.slow

THREE = "HETERO:GPU.0,GPU.1,CPU"

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

SWIN_BYTES = 3 * 2**20  # what each report has to keep to, in a browser on two cores


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium: the machine's own (apt-get install chromium), or playwright's."""
    path = os.environ.get("OV_HSDAG_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_api.sync_playwright() as playwright:
        if path is None and not Path(playwright.chromium.executable_path).exists():
            # In CI a missing browser is a failure: .ci/run installs it.
            (pytest.fail if os.environ.get("CI") else pytest.skip)("no Chromium: apt-get install chromium")
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@dataclass
class Visit:
    """An open report, with what it asked of the network, and what went wrong."""

    page: Any
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def box(self, label: str) -> Any:
        """The box with this label."""
        return self.page.locator(f'.box[aria-label^="{label}"]').first

    def drawn(self) -> int:
        return int(self.page.locator(".canvas .box").count())

    def milliseconds(self, work: str) -> float:
        """The median time of some JavaScript, layout included, of five times."""
        taken = [float(self.page.evaluate(f"async () => {{ {work} }}")) for _ in range(5)]
        return statistics.median(taken)


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    contexts = []

    def opened(report: Path, **options: Any) -> Visit:
        context = browser.new_context(**{"viewport": {"width": 1360, "height": 900}, **options})
        contexts.append(context)
        found = Visit(context.new_page())
        context.on("request", lambda request: found.requests.append(request.url))
        found.page.on("console", lambda line: found.errors.append(line.text) if line.type == "error" else None)
        found.page.on("pageerror", lambda error: found.errors.append(str(error)))
        found.page.goto(report.as_uri())
        found.page.wait_for_selector(".canvas .box")
        return found

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def swin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory, ZOO["swin-tiny"].build(), "HETERO:GPU,CPU")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 layers with states on three devices, a third of the layers on each."""
    problem = build_problem(stateful_decoder(24), DeviceSet.parse(THREE))
    places = problem.affinity(layered(problem, 8) + layered(problem, 16))
    return written(tmp_path_factory, stateful_decoder(24), THREE, affinity=places)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20,000 operations."""
    return written(tmp_path_factory, build("decoder", 20_000), "HETERO:GPU,CPU")


def written(factory: pytest.TempPathFactory, model: ov.Model, device: str, **options: Any) -> Path:
    path = factory.mktemp("page") / "report.html"
    placement = ov_hsdag.place(model, device, measure=False, objective="throughput", **options)
    placement.report(path, title="the model")
    return path


def painted(found: Visit) -> float:
    """When the graph was there to be seen, ms from the beginning."""
    return float(
        found.page.evaluate(
            """() => new Promise((go) => {
                const [drawn] = performance.getEntriesByName("report-drawn");
                const look = () => {
                    const [paint] = performance.getEntriesByName("first-contentful-paint");
                    if (paint) go(Math.max(drawn.startTime, paint.startTime)); else setTimeout(look, 10);
                };
                look();
            })"""
        )
    )


def check_quiet(found: Visit, report: Path) -> None:
    assert found.errors == []
    assert found.requests == [report.as_uri()]


SEARCH = """
    const input = document.getElementById("search"), results = document.getElementById("results");
    input.value = ""; input.dispatchEvent(new Event("input"));
    await new Promise((go) => setTimeout(go, 150));
    const changed = new Promise((go) => new MutationObserver(go).observe(results, {childList: true}));
    const begin = performance.now();
    input.value = "matmul"; input.dispatchEvent(new Event("input"));
    await changed; results.getBoundingClientRect();
    return performance.now() - begin;
"""

# A click on the head of the first open box (one is opened where none is), and one to open it again, not counted.
COLLAPSE = """
    const open = () => document.querySelector(".canvas .box.open > .head");
    if (!open()) document.querySelector(".canvas .box.group").dispatchEvent(new MouseEvent("click", {bubbles: true}));
    const head = open(), id = head.parentNode.dataset.box;
    const begin = performance.now();
    head.dispatchEvent(new MouseEvent("click", {bubbles: true}));
    document.querySelector(".canvas").getBoundingClientRect();
    const taken = performance.now() - begin;
    const closed = document.querySelector(`.canvas .box[data-box="${id}"]`);
    if (closed.getAttribute("aria-expanded") !== "false") throw new Error("it did not close");
    closed.dispatchEvent(new MouseEvent("click", {bubbles: true}));
    await new Promise((go) => setTimeout(go, 50));
    return taken;
"""


@pytest.mark.parametrize("report", ["swin", "decoder", "large"])
def test_reports_draw_little(visit: Any, report: str, request: pytest.FixtureRequest) -> None:
    """Times are printed, not judged: pytest -rP."""
    path = request.getfixturevalue(report)
    found = visit(path)
    figures = {
        "bytes": path.stat().st_size,
        "paint": painted(found),
        "search": found.milliseconds(SEARCH),
        "collapse": found.milliseconds(COLLAPSE),
        "boxes": found.drawn(),
    }
    print(report, figures)
    assert figures["boxes"] < 200, figures
    check_quiet(found, path)


def test_swin_is_small_and_says_what_runs_where(visit: Any, swin: Path) -> None:
    assert swin.stat().st_size < SWIN_BYTES
    found = visit(swin)
    assert found.page.title() == "the model: what runs where"
    tiles = found.page.locator(".tile").all_inner_texts()
    assert any("GPU and CPU" in text for text in tiles)
    assert found.page.locator(".box.group").count() >= 2
    sections = found.page.locator("h2").all_inner_texts()
    assert sections == [
        "What runs where", "One request", "4 requests in flight", "Time and memory of each device",
        "Predicted and measured", "Rivals", "What crosses between devices", "Operations that take longest",
        "What was done",
    ]  # fmt: skip
    assert found.page.locator(".timeline .block").count() > 2
    assert "Limit" in found.page.locator("table.bars").first.inner_text()
    check_quiet(found, swin)


def test_clicks_open_boxes_and_tell_about_operations(visit: Any, swin: Path) -> None:
    found = visit(swin)
    details, page = found.page.locator("#details"), found.page
    page.click("#close")
    closed = found.drawn()
    page.locator(".box.group").first.click()
    assert found.drawn() > closed
    assert "submodel 1" in details.inner_text()
    page.locator("#details .costs button.link, #details ol button.link").first.click()
    text = details.inner_text()
    for word in ("runs on", "Why here", "What it costs", "GPU", "CPU", "Reads", "Is read by"):
        assert word in text, word
    assert page.locator(".box.op.selected").count() == 1
    page.locator(".timeline .block").first.click()
    assert "HETERO compiles" in details.inner_text()
    page.click("button[data-by=layer]")
    assert page.locator("button[data-by=layer]").get_attribute("aria-pressed") == "true"
    assert not page.locator('.box[aria-label^="submodel"]').count()
    more = found.drawn()
    page.click("#more")
    assert found.drawn() > more
    page.get_by_label("Zoom in").click()
    check_quiet(found, swin)


def test_search_finds_and_shows(visit: Any, decoder: Path) -> None:
    found = visit(decoder)
    page = found.page
    page.keyboard.press("/")
    page.keyboard.insert_text("scaleddot into_layer_9")  # at once: the list is made anew after each pause
    page.wait_for_selector("#results button")
    assert "match" in page.locator("#found").inner_text()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    text = page.locator("#details").inner_text()
    assert "ScaledDotProductAttention" in text
    assert "GPU.1" in text
    box = page.locator(".box.op.selected").bounding_box()
    frame = page.locator(".canvas").bounding_box()
    assert frame["y"] <= box["y"] <= frame["y"] + frame["height"]
    page.fill("#search", "no such operation")
    sync_api.expect(page.locator("#found")).to_have_text("no match")
    check_quiet(found, decoder)


def test_three_devices_with_states(visit: Any, decoder: Path) -> None:
    found = visit(decoder)
    assert found.page.locator(".legend.devices li").count() == 3
    assert found.page.locator(".timeline").first.locator(".lane").count() == 3
    assert found.page.locator(".timeline").first.locator(".transfer").count() >= 2
    assert "states" in found.page.locator("table.bars").first.inner_text()
    check_quiet(found, decoder)


def test_everything_by_keyboard(visit: Any, swin: Path) -> None:
    found = visit(swin)
    page = found.page
    page.click("#close")
    page.focus(".canvas .box[tabindex='0']")

    def focused(name: str) -> str:
        return str(page.evaluate(f"document.activeElement.getAttribute({name!r})"))

    first = focused("aria-label")
    page.keyboard.press("ArrowDown")
    assert focused("aria-label") != first
    page.keyboard.press("Home")
    assert focused("aria-label") == first
    assert focused("aria-expanded") == "false"
    page.keyboard.press("ArrowRight")
    assert focused("aria-expanded") == "true"
    page.keyboard.press("ArrowRight")
    assert focused("aria-level") == "2"
    page.keyboard.press("ArrowLeft")
    assert focused("aria-label") == first
    page.keyboard.press("Enter")
    assert focused("aria-expanded") == "false"
    before = page.locator(".canvas > g").get_attribute("transform")
    page.keyboard.press("+")
    assert page.locator(".canvas > g").get_attribute("transform") != before
    assert page.locator("#details").inner_text().count("submodel")
    check_quiet(found, swin)


def test_light_dark_narrow_and_paper(visit: Any, swin: Path) -> None:
    def ground(found: Visit) -> str:
        return str(found.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light, dark = visit(swin, color_scheme="light"), visit(swin, color_scheme="dark")
    assert ground(light) != ground(dark)
    light.page.click("#theme")
    assert ground(light) == ground(dark)
    light.page.click("#theme")
    assert ground(light) != ground(dark)
    narrow = visit(swin, viewport={"width": 390, "height": 844})
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= 390
    dark.page.emulate_media(media="print")
    assert ground(dark) == "rgb(255, 255, 255)"
    assert not dark.page.locator("#search").is_visible()
    assert dark.page.pdf().startswith(b"%PDF")
    for found in (light, dark, narrow):
        check_quiet(found, swin)


def test_what_was_measured_stands_beside_the_prediction(visit: Any, tmp_path: Path) -> None:
    def measured(us: float | None, ci: list[float] | None, failed: str | None = None) -> dict[str, Any]:
        gain = None if us is None else 732.0 / us
        return {
            "latency_us": us,
            "times_best_single": gain,
            "times_best_single_ci": ci,
            "submodels": 2,
            "failed": failed,
        }

    _, placement = split_convolutions()
    record = {
        "affinity": measured(610.0, [1.1, 1.31]),
        "CPU": measured(732.0, [1.0, 1.0]),
        "GPU": measured(None, None, "no kernel"),
    }
    path = tmp_path / "report.html"
    replace(placement, measured=record).report(path)
    found = visit(path)
    rows = found.page.locator("table.rivals tbody tr")
    assert "affinity (chosen)" in rows.first.inner_text()
    assert "1.10 to 1.31" in rows.first.inner_text()
    assert rows.first.locator("line.interval").count() == 3
    assert any("failed" in text and "no kernel" in text for text in rows.all_inner_texts())
    assert "610 µs" in found.page.locator(".tile").nth(1).inner_text()
    assert "measured" in found.page.locator(".tile").nth(1).inner_text()
    check_quiet(found, path)


def test_hostile_names_are_inert(visit: Any, tmp_path: Path) -> None:
    model, _ = split_convolutions()
    model.set_friendly_name(HOSTILE)
    for number, node in enumerate(model.get_ordered_ops()):
        node.set_friendly_name(f"{HOSTILE}{number}")
    halves = halved(model, ("GPU", "CPU")).affinity
    placement = ov_hsdag.place(model, "HETERO:GPU,CPU", affinity=halves, measure=False)
    path = tmp_path / "report.html"
    placement.report(path, title=HOSTILE, done={"command": HOSTILE})
    found = visit(path)
    assert found.page.locator("h1").inner_text().startswith("</script><img")
    found.page.click("#more")
    found.page.fill("#search", "onerror")
    found.page.wait_for_selector("#results button")
    found.page.keyboard.press("Enter")
    assert "onerror=alert(1)" in found.page.locator("#details").inner_text()
    assert found.page.locator("img").count() == 0
    assert found.page.locator("script").count() == 2
    check_quiet(found, path)


def test_the_page_may_ask_for_nothing(visit: Any, swin: Path) -> None:
    found = visit(swin)
    refused = found.page.evaluate(
        "() => new Promise((go) => {"
        " document.addEventListener('securitypolicyviolation', (event) => go(event.violatedDirective));"
        " fetch('https://example.com/').catch(() => 0); })"
    )
    assert refused == "connect-src"
    assert found.requests == [swin.as_uri()]
