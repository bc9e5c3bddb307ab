"""The site in a real browser: every page without a complaint, a request to anybody, a sideways scroll on a phone, or text that is hard to read.

Builds the site first (`make docs`; what is up to date is kept). Screenshots go to $DEKPCA_SCREENSHOTS, if it is set.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("sphinx")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).parent.parent
SITE = ROOT / "build" / "site"
DESKTOP, PHONE = (1280, 900), (375, 812)
LOOKED_AT = [
    "index",
    "tutorials/without-a-centre",
    "tutorials/stream",
    "tutorials/broken-sensor",
    "gallery/plot_02_swiss_roll",
    "gallery/plot_14_drift",
    "gallery/plot_15_broken_sensor",
    "reference/api/dekpca.DecentralizedKernelPCA",
]
FOUND = {  # words, and pages of which one is among the first three that the search finds
    "gamma": {"gallery/plot_11_gamma", "howto/choosing", "howto/index"},
    "accuracy": {"howto/read-the-accuracy", "reference/api/dekpca.plot.accuracy", "explanation/accuracy"},
    "lost node": {"howto/peers"},
    "firewall": {"explanation/security", "howto/peers"},
    "epsilon": {"explanation/privacy", "reference/api/dekpca.Privacy", "tutorials/private-sums", "gallery/plot_13_noise"},
    "owner column": {"howto/data", "howto/index"},
    "out of memory": {"howto/out-of-memory"},
    "anomaly": {"howto/scores", "tutorials/broken-sensor", "gallery/plot_15_broken_sensor"},
}  # fmt: skip

# Elements of a page's text that reach beyond the screen, and are not in a box that scrolls. (The theme lets the whole article scroll sideways.)
CUT_OFF = """() => [...document.querySelectorAll("article *")].filter((e) => {
    if (e.closest("svg, math, .sr-only, .visually-hidden") || e.getBoundingClientRect().right <= innerWidth + 1) return false;
    for (let a = e; a.tagName !== "ARTICLE"; a = a.parentElement)
        if (["auto", "scroll"].includes(getComputedStyle(a).overflowX)) return false;
    return e.getClientRects().length > 0;
}).map((e) => e.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def site(testrun_uid):
    stamp, command = SITE.parent / "tested", [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going"]
    SITE.parent.mkdir(exist_ok=True)
    with (SITE.parent / "lock").open("w") as lock:  # one worker builds it, before any opens a page
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != testrun_uid:
            done = subprocess.run(
                [*command, "-d", "build/doctrees", "docs", "build/site"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            stamp.write_text(testrun_uid)
    found = sorted(path for path in SITE.rglob("*.html") if "_static" not in path.parts)
    assert len(found) > 60
    return found


class Links(HTMLParser):
    """Anchors of a page, its links, and what it loads."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {given[key] for key in ("id", "name") if given.get(key)}
        if (tag == "a" and given.get("href")) or (
            tag == "link" and given.get("rel") in ("search", "index", "next", "prev")
        ):
            self.links.append(given["href"])
        elif tag in ("link", "script", "img", "iframe", "source", "object"):
            self.loads += [given[key] for key in ("src", "href", "data") if given.get(key)]


def test_links_and_anchors_resolve_and_nothing_is_loaded_from_elsewhere(site):
    pages = {path.resolve(): Links(path) for path in site}
    wrong = []
    for path, page in pages.items():
        for link in page.loads + page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                if link in page.loads and url.scheme != "data":
                    wrong.append(f"{path.name} loads {link}")
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not target.is_file():
                wrong.append(f"{path.name}: {link} is not there")
            elif url.fragment and target in pages and unquote(url.fragment) not in pages[target].ids:
                wrong.append(f"{path.name}: {link} has no such anchor")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page(chromium, site, scheme):
    wrong, asked = [], []
    judge = axe.Axe()
    for size in (DESKTOP, PHONE):
        context = chromium.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, reduced_motion="reduce"
        )
        tab = context.new_page()
        tab.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        for path in site:
            name = path.relative_to(SITE).with_suffix("").as_posix()
            tab.goto(path.as_uri())
            tab.wait_for_load_state("load")
            assert tab.evaluate("document.documentElement.dataset.theme") == scheme
            if size == PHONE:
                wide = tab.evaluate("document.scrollingElement.scrollWidth")
                if wide > PHONE[0]:
                    wrong.append(f"{name}: {wide} pixels wide")
                wrong.extend(f"{name}: cut off: {text}" for text in tab.evaluate(CUT_OFF))
            else:
                found = judge.run(tab, options={"runOnly": ["color-contrast"]}).response["violations"]
                wrong.extend(
                    f"{name}: {node['html'][:150]} {node['failureSummary'][-160:]}"
                    for v in found
                    for node in v["nodes"]
                )
            if name in LOOKED_AT and (folder := os.environ.get("DEKPCA_SCREENSHOTS")):
                tab.screenshot(path=Path(folder) / f"{name.replace('/', '-')}-{size[0]}-{scheme}.png")
        context.close()
    assert not wrong, "\n".join(dict.fromkeys(wrong))
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.parametrize("words", FOUND)
def test_search(chromium, site, words):
    tab = chromium.new_page()
    tab.goto((SITE / "search.html").as_uri() + f"?q={words.replace(' ', '+')}")
    tab.wait_for_selector("#search-results li a", timeout=20_000)
    tab.wait_for_function("document.querySelector('#search-results').textContent.includes('Search finished') || "
                          "document.querySelectorAll('#search-results li').length > 3")  # fmt: skip
    links = [a.get_attribute("href") for a in tab.query_selector_all("#search-results li > a")][:3]
    tab.close()
    first = {urlsplit(link).path.removesuffix(".html") for link in links}
    assert first & FOUND[words], (words, links)
