"""The report in a real browser: it draws, asks nobody for anything, and its controls work by mouse, keyboard and finger.

Screenshots at phone and desktop width, light and dark, are kept in $DEKPCA_SCREENSHOTS or the test's own folder, to be looked at.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest

import dekpca
from dekpca import baselines
from dekpca.report import charts, experiment_report, fit_report

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NASTY = "<script>window.ran = 1</script><img src=x onerror='window.ran=1'>"
DESKTOP, PHONE = (1280, 900), (390, 844)
FIGURES = ["error", "eigenvalues", "agreement", "embedding", "network", "bytes"]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Four classes over twelve nodes, one with a name that tries to run."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 90)
    X = rng.normal(scale=2, size=(4, 6))[y] + rng.normal(size=(360, 6))
    owner = np.minimum(rng.permutation(360) % 13, 11)  # the last node has twice as many rows
    parts = [X[owner == j] for j in range(12)]
    ring = dekpca.Network.ring(12, 4)
    names = [NASTY, *(f"node-{j}" for j in range(1, 12))]
    network = dekpca.Network({names[j]: [names[q] for q in ring.neighbors(j)] for j in range(12)})
    model = dekpca.DecentralizedKernelPCA(3, gamma=0.03, tol=1e-5, network=network, random_state=0).fit_parts(parts)
    others = {
        "local": baselines.local(parts, 3, gamma=0.03),
        "neighborhood": baselines.neighborhood(parts, network, 3, gamma=0.03),
    }
    central = baselines.central(parts, 3, gamma=0.03)
    path = tmp_path_factory.mktemp("report") / "fit.html"
    labels = np.concatenate([y[owner == j] for j in range(12)])
    owners = np.repeat(np.arange(12), [len(p) for p in parts])
    return fit_report(path, model, np.concatenate(parts), labels, central, others, owners)


@contextmanager
def opened(browser, path, size=DESKTOP, scheme="light"):
    """The page, drawn; fails if it complained or asked for anything but itself."""
    phone = size == PHONE
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, is_mobile=phone, has_touch=phone
    )
    page = context.new_page()
    troubles, asked = [], []
    page.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn]", timeout=30_000)
    yield page
    context.close()
    assert troubles == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert sum(url.startswith("file:") for url in asked) == 1


def traces(page, name):
    """What a figure shows now: x and y of every trace, decoded by plotly, and the colours of its marks."""
    return page.evaluate(
        """(name) => document.getElementById("plot-" + name)._fullData.map((t) => ({
            name: t.name, x: Array.from(t.x ?? []), y: Array.from(t.y ?? []), color: t.marker?.color, visible: t.visible }))""",
        name,
    )


def settled(page):
    """Wait until what was asked for is drawn; the browser tells the page of a new scheme a moment later."""
    page.wait_for_timeout(200)


def test_every_figure_is_drawn_and_can_be_saved(chromium, report):
    with opened(chromium, report) as page:
        drawn = page.evaluate(
            """() => [...document.querySelectorAll(".plot")].map((p) => {
                const box = p.querySelector("svg.main-svg")?.getBoundingClientRect();
                return [p.id.slice(5), box?.width, p.querySelectorAll(".plot path, .plot image, .plot rect").length]; })"""
        )
        assert [name for name, *_ in drawn] == FIGURES
        for name, width, marks in drawn:
            assert width > 250, name
            assert marks > 0, name
        assert page.evaluate("window.ran") is None  # the nasty name is text
        assert page.locator("h1").inner_text().startswith("Decentralized kernel PCA: 12 nodes, 360 rows")
        with page.expect_download() as download:
            page.locator("figure[data-chart=error] .save").click()
        assert download.value.suggested_filename == "dekpca-error.svg"
        assert "landmarks" in Path(download.value.path()).read_text(encoding="utf-8")


def test_hover_shows_a_nodes_numbers(chromium, report):
    with opened(chromium, report) as page:
        plot = page.locator("#plot-network")
        plot.scroll_into_view_if_needed()
        place = page.evaluate(
            """() => { const p = document.getElementById("plot-network"), t = p._fullData.find((t) => t.name === "nodes");
                const {xaxis, yaxis, _size} = p._fullLayout, box = p.getBoundingClientRect();
                return [box.x + _size.l + xaxis.l2p(t.x[5]), box.y + _size.t + yaxis.l2p(t.y[5])]; }"""
        )
        page.mouse.move(place[0] - 40, place[1] - 40)
        page.mouse.move(*place, steps=4)
        hover = page.locator("#plot-network .hoverlayer .hovertext")
        hover.wait_for(timeout=5000)
        text = hover.text_content()
        for word in ("node: node-5", "neighbors: 4", "rows: 28", "kB sent: ", "agreement, worst component: 1"):
            assert word in text, text


def test_switches_change_what_is_shown(chromium, report):
    with opened(chromium, report) as page:
        nodes = lambda: next(t for t in traces(page, "network") if t["name"] == "nodes")["color"]  # noqa: E731
        seen = []
        for option in page.locator("#network-choice option").all_inner_texts():
            page.select_option("#network-choice", label=option)
            settled(page)
            seen.append(tuple(nodes()))
            assert option in page.locator("#plot-network .infolayer").text_content()
        assert len(set(seen)) == 2  # bytes and rows; agreement is the same at all nodes

        before = traces(page, "embedding")
        page.select_option("#embedding-view", label="central: sees all rows")
        settled(page)
        central = traces(page, "embedding")
        assert [t["name"] for t in central] == ["0", "1", "2", "3", "its own rows"]
        assert central[-1]["x"] == []  # nobody's
        assert len(before[-1]["x"]) >= 27
        assert central[0]["x"] != before[0]["x"]
        np.testing.assert_allclose(central[0]["x"], before[0]["x"], atol=0.005)  # nearly the same answer
        page.select_option("#embedding-view", label="node node-7 alone, before it heard from others")
        settled(page)
        assert np.abs(np.subtract(traces(page, "embedding")[0]["x"], central[0]["x"])).max() > 0.05  # it knew less
        page.select_option("#embedding-x", label="3")
        settled(page)
        assert "component 3" in page.locator("#plot-embedding .xtitle").text_content()

        linear = traces(page, "agreement")[0]["y"]
        page.select_option("#agreement-choice", index=1)
        settled(page)
        np.testing.assert_allclose(traces(page, "agreement")[0]["y"], np.maximum(1 - np.array(linear), 1e-12), rtol=1e-6)  # fmt: skip
        assert page.evaluate('document.getElementById("plot-agreement")._fullLayout.yaxis.type') == "log"

        page.locator("#plot-agreement .legendtoggle").nth(
            1
        ).click()  # a click hides, a double click isolates: plotly waits
        page.wait_for_timeout(700)
        assert next(t for t in traces(page, "agreement") if t["name"] == "local")["visible"] == "legendonly"


def test_the_scheme_is_followed(chromium, report):
    colors = """() => [document.body, document.querySelector("#plot-error .xtitle"), document.querySelector("#plot-error .gridlayer path")]
        .map((e) => getComputedStyle(e)).map((s, i) => [s.backgroundColor, s.fill, s.stroke][i])"""
    with opened(chromium, report) as page:
        light = page.evaluate(colors)
        page.emulate_media(color_scheme="dark")
        settled(page)
        dark = page.evaluate(colors)
        assert all(a != b for a, b in zip(light, dark, strict=True))
        page.select_option("#scheme", "light")
        settled(page)
        assert page.evaluate(colors) == light
        page.select_option("#scheme", "dark")
        page.emulate_media(color_scheme="light")
        settled(page)
        assert page.evaluate(colors) == dark
        page.emulate_media(media="print")
        settled(page)
        assert page.evaluate(colors)[1:] == light[1:]  # paper is white
        assert not page.locator("nav").is_visible()


def test_marks_are_readable_on_both_grounds():
    """At least 3 to 1, as WCAG asks of graphics."""

    def light(color):
        channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4) @ [
            0.2126,
            0.7152,
            0.0722,
        ]

    for color in (*charts.SERIES, *charts.METHODS.values(), charts.GREY):
        for ground in ("#ffffff", "#181f26"):
            low, high = sorted([light(color), light(ground)])
            assert (high + 0.05) / (low + 0.05) >= 3, (color, ground)


def test_the_keyboard_reaches_everything(chromium, report):
    with opened(chromium, report) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
        reached = set()
        for _ in range(80):
            page.keyboard.press("Tab")
            reached.add(
                page.evaluate(
                    """() => { const e = document.activeElement, s = getComputedStyle(e);
                    return (e.id || e.className || e.tagName) + (s.outlineStyle === "none" ? " without outline" : ""); }"""
                )
            )
        for control in (
            "scheme",
            "network-choice",
            "agreement-choice",
            "embedding-view",
            "embedding-x",
            "save",
            "SUMMARY",
            "PRE",
        ):
            assert control in reached, sorted(reached)
        assert not [name for name in reached if "without outline" in name and "BODY" not in name]
        page.focus("#network-choice")
        page.keyboard.press("ArrowDown")
        settled(page)
        assert page.locator("#network-choice").input_value() == "1"
        page.focus("figure[data-chart=network] summary")
        page.keyboard.press("Enter")
        assert page.locator("figure[data-chart=network] table").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_looks(chromium, report, size, scheme, tmp_path):
    folder = Path(os.environ.get("DEKPCA_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    with opened(chromium, report, size, scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing to scroll sideways
        narrow = page.evaluate('[...document.querySelectorAll(".plot")].map((p) => p.clientWidth)')
        assert min(narrow) > 0.7 * size[0] if size == PHONE else min(narrow) > 400
        assert _contrast(page) == []
        if size == PHONE:  # a finger on a figure scrolls the page
            assert page.evaluate('document.getElementById("plot-network")._fullLayout.dragmode') is False
        page.screenshot(path=folder / f"report-{'phone' if size == PHONE else 'desktop'}-{scheme}.png", full_page=True)


def _contrast(page):
    """Texts that stand out less than WCAG's 4.5 to 1 from the ground behind them."""
    return page.evaluate(
        """() => {
        const rgb = (c) => c.match(/[\\d.]+/g).map(Number);
        const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        const light = (c) => { const [r, g, b] = rgb(c).map((v) => linear(v / 255)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const ground = (e) => {
            for (; e; e = e.parentElement) {
                const c = getComputedStyle(e).backgroundColor;
                if ((rgb(c)[3] ?? 1) > 0.99) return c;
            }
            return "rgb(255, 255, 255)"; };
        const texts = "h1,h2,h3,p,dt,dd,a,label,select,button,figcaption,summary,td,th,code,strong,.plot text.xtitle,.plot .xtick text";
        const bad = [];
        for (const e of document.querySelectorAll(texts)) {
            if (!e.getClientRects().length) continue;
            const s = getComputedStyle(e), color = e.namespaceURI.includes("svg") ? s.fill : s.color;
            const [a, b] = [light(color), light(ground(e))].sort((p, q) => q - p);
            if ((a + 0.05) / (b + 0.05) < 4.5) bad.push(`${e.tagName} ${e.textContent.slice(0, 30)} ${color}`);
        }
        return bad; }"""
    )


def test_an_experiments_figures_follow_the_page(chromium, tmp_path):
    rows = [{"nodes": n, "method": m, "similarity": 0.9 + n / 1000} for n in (80, 10, 20) for m in ("ours", "local")]
    figure = charts.bar_figure({"dekpca": [1, 2]}, ["a", "b"], "x", "y")
    foreign = go.Figure(
        [go.Scatter(y=[1, 3, 2], name="one"), go.Scatter(y=[2, 1, 2], name="two")]
    )  # with plotly's own template
    page_path = experiment_report(
        tmp_path / "e.html", "Nodes", [("Bars", "What they show.", figure), ("Lines", "Two.", foreign)], rows
    )
    with opened(chromium, page_path, scheme="dark") as page:
        assert page.locator("#measurements td:nth-child(1)").all_inner_texts() == ["80", "80", "10", "10", "20", "20"]
        ground = page.evaluate('document.getElementById("plot-figure-2")._fullLayout.paper_bgcolor')
        assert ground == "rgba(0,0,0,0)"
        assert _contrast(page) == []
        shots = Path(os.environ.get("DEKPCA_SCREENSHOTS", tmp_path))
        page.screenshot(path=shots / "experiment-desktop-dark.png", full_page=True)


def test_it_prints(chromium, report, tmp_path):
    with opened(chromium, report, scheme="dark") as page:
        pdf = page.pdf(format="A4", margin={"top": "15mm", "bottom": "15mm", "left": "15mm", "right": "15mm"})
        (Path(os.environ.get("DEKPCA_SCREENSHOTS", tmp_path)) / "report.pdf").write_bytes(pdf)
        assert 3 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") + pdf.count(b"/Type /Page/") <= 16
