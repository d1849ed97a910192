"""The pages as readers meet them: complete, self-contained, legible, usable by keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.xdist_group("pages")  # one worker renders, and looks

ROOT = Path(__file__).resolve().parents[2]
MADE_BY_SPHINX = {"404.html", "genindex.html", "index.html", "search.html"}
PHONE = 390  # CSS pixels
CHAPTER = "chapters/04_differential_privacy.html"


def toc_pages() -> list[str]:
    toc = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    return [f"{name}.html" for name in re.findall(r"^\s*(?:root|- file): (\S+)", toc, re.MULTILINE)]


def html_files(site: Path) -> set[str]:
    return {p.relative_to(site).as_posix() for p in site.rglob("*.html") if "_static" not in p.parts}


class Links(HTMLParser):
    """Addresses that a page points to or loads, its anchors and the language it declares."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.anchors: set[str] = set()
        self.language = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = dict(attrs)
        if tag == "html":
            self.language = about.get("lang") or ""
        if about.get("id"):
            self.anchors.add(about["id"] or "")
        if tag == "a" and about.get("href"):
            self.links.add(about["href"] or "")
        elif tag == "link" and about.get("href"):
            self.loads.add(about["href"] or "")
        elif about.get("src"):
            self.loads.add(about["src"] or "")


@pytest.fixture(scope="session")
def links(rendered_site: Path) -> dict[str, Links]:
    return {page: Links((rendered_site / page).read_text("utf-8")) for page in html_files(rendered_site)}


# ------------------------------------------------------------------ without a browser


def test_there_is_one_page_for_each_entry_of_the_table_of_contents(rendered_site: Path) -> None:
    assert html_files(rendered_site) == set(toc_pages()) | MADE_BY_SPHINX


def test_every_page_declares_its_language(links: dict[str, Links]) -> None:
    languages = {page: found.language for page, found in links.items() if page != "index.html"}
    assert set(languages.values()) == {"en"}, languages


def test_nothing_is_loaded_from_elsewhere(rendered_site: Path, links: dict[str, Links]) -> None:
    foreign = {page: [a for a in found.loads if "//" in a] for page, found in links.items()}
    assert not {page: addresses for page, addresses in foreign.items() if addresses}
    for page in html_files(rendered_site):
        text = (rendered_site / page).read_text("utf-8")
        assert not re.search(r"(cdn|unpkg|jsdelivr|fonts\.g)\w*\.\w+", text), page
        assert page == "index.html" or text.count("tex-mml-chtml.js") <= 1, page


def test_every_internal_link_leads_somewhere(rendered_site: Path, links: dict[str, Links]) -> None:
    dead = []
    for page, found in links.items():
        for address in found.links | found.loads:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or address in ("#", ""):
                continue
            target = (
                (rendered_site / page).parent / unquote(parts.path) if parts.path else rendered_site / page
            )
            if target.is_dir():
                target = target / "index.html"
            if not target.is_file():
                dead.append(f"{page} -> {address}")
                continue
            name = target.resolve().relative_to(rendered_site.resolve()).as_posix()
            if parts.fragment and name in links and unquote(parts.fragment) not in links[name].anchors:
                dead.append(f"{page} -> {address} (no such anchor)")
    assert not dead, "\n".join(sorted(dead))


def test_figures_and_exercises_carry_the_number_of_their_chapter(rendered_site: Path) -> None:
    for page in toc_pages():
        chapter = re.match(r"chapters/(\d\d)_", page)
        numbers = re.findall(
            r'<span class="caption-number">(?:Fig\.|Definition|Theorem|Exercise) ([\d.]+?)\.?\s*</span>',
            (rendered_site / page).read_text("utf-8"),
        )
        if chapter:
            assert numbers, page
            assert {n.split(".")[0] for n in numbers} == {str(int(chapter[1]))}, page


# --------------------------------------------------------------------- with a browser


@pytest.fixture
def pages_with_errors(window: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Return a function that opens each page and collects what a check finds on it.

    Whatever is checked, no page may ask another host for anything, or complain.
    """

    def collect(check: Callable[[Any], Any], **options: Any) -> dict[str, Any]:
        opened = window(**options)
        found = {page: problems for page in toc_pages() if (problems := check(opened.open(page)))}
        assert not opened.strangers
        assert not opened.complaints
        return found

    return collect


def show_both_readings(page: Any) -> None:
    page.add_style_tag(content=".sd-tab-content { display: block !important }")


@pytest.mark.browser
def test_pages_without_content_of_their_own_ask_no_other_host(window: Callable[..., Any]) -> None:
    opened = window()
    for page in ["404.html", "genindex.html", "search.html"]:
        opened.open(page)
    opened.page.goto(f"{opened.site_url}/index.html")  # leads to the first page
    opened.page.wait_for_url("**/chapters/index.html")
    assert not opened.strangers
    assert not opened.complaints


@pytest.mark.browser
def test_formulas_are_typeset_and_pictures_described(
    pages_with_errors: Callable[..., dict[str, Any]],
) -> None:
    formulas = 0

    def check(page: Any) -> list[str]:
        nonlocal formulas
        look = page.evaluate("look.contents()")
        formulas += look["set"]
        found = [f"raw markup: {text}" for text in look["raw"]]
        found += [f"formula not set: {text}" for text in look["unset"]]
        found += [f"formula with an error: {text}" for text in look["broken"]]
        if look["headings"] != 1:
            found.append(f"{look['headings']} visible first-level headings")
        for image in look["pictures"]:
            alt = image["alt"]
            meaningful = len(alt.split()) >= (2 if image["logo"] else 5) and not re.search(
                r"\.(svg|png|jpe?g)$|^(figure|image|picture) ?\d*$", alt, re.IGNORECASE
            )
            if not meaningful:
                found.append(f"picture {image['src']} has the description {alt!r}")
            if not image["loaded"]:
                found.append(f"picture {image['src']} does not load")
        return found

    assert not pages_with_errors(check)
    assert formulas > 0


@pytest.mark.browser
def test_search_finds_a_word_and_leads_to_its_chapter(window: Callable[..., Any]) -> None:
    page = window().open("search.html?q=Laplace")
    hits = page.locator("#search-results ul.search li a")
    hits.first.wait_for()
    chapter = page.locator(f'#search-results a[href*="{Path(CHAPTER).name}"]')
    assert chapter.count() >= 1
    chapter.first.click()
    page.wait_for_url(f"**/{CHAPTER}*")
    assert "Laplace" in page.locator("article").inner_text()


@pytest.mark.browser
def test_the_level_is_chosen_by_keyboard_and_remembered(window: Callable[..., Any]) -> None:
    page = window().open(CHAPTER)
    tabs = len(page.evaluate("look.readings()"))
    assert tabs >= 1
    assert set(page.evaluate("look.readings()")) == {"elementary"}
    for _ in range(200):  # walk with the Tab key until a pair of tabs has the focus
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.sd-tab-set > input')"):
            break
    else:
        pytest.fail("the Tab key does not reach the level tabs")
    outline = "getComputedStyle(document.activeElement.nextElementSibling).outlineStyle"
    assert page.evaluate(outline) == "solid", "the focused tab is not visible"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("look.readings()") == ["advanced"] * tabs
    page.goto(page.url.replace(CHAPTER, "chapters/index.html"))
    assert set(page.evaluate("look.readings()")) == {"advanced"}
    page.reload()
    assert set(page.evaluate("look.readings()")) == {"advanced"}


@pytest.mark.browser
def test_the_level_can_be_set_in_the_address(window: Callable[..., Any]) -> None:
    opened = window()
    assert set(opened.open(f"{CHAPTER}?level=advanced").evaluate("look.readings()")) == {"advanced"}
    assert set(opened.open(CHAPTER).evaluate("look.readings()")) == {"advanced"}, "forgotten on the next page"
    opened.open("chapters/status.html?level=elementary")  # a page without tabs
    assert set(opened.open(CHAPTER).evaluate("look.readings()")) == {"elementary"}
    assert set(opened.open(f"{CHAPTER}?level=nonsense").evaluate("look.readings()")) == {"elementary"}


@pytest.mark.browser
def test_the_switch_in_the_header_changes_every_tab_and_the_address(window: Callable[..., Any]) -> None:
    page = window().open(f"{CHAPTER}?level=elementary")
    switch = page.get_by_role("group", name="Reading level")
    advanced = switch.get_by_role("button", name="Advanced")
    assert advanced.get_attribute("aria-pressed") == "false"
    advanced.focus()
    page.keyboard.press("Enter")
    assert set(page.evaluate("look.readings()")) == {"advanced"}
    assert advanced.get_attribute("aria-pressed") == "true"
    assert page.url.endswith("?level=advanced")
    page.locator('.sd-tab-label[data-sync-id="elementary"]').first.click()
    assert advanced.get_attribute("aria-pressed") == "false"


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_background(
    pages_with_errors: Callable[..., dict[str, Any]], theme: str
) -> None:
    def check(page: Any) -> list[str]:
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        show_both_readings(page)
        page.locator("button.toggle-button").evaluate_all("buttons => buttons.forEach((b) => b.click())")
        return page.evaluate("look.faint(4.5)")

    assert not pages_with_errors(check, theme=theme)


@pytest.mark.browser
def test_a_phone_never_scrolls_sideways_and_shows_every_result(
    pages_with_errors: Callable[..., dict[str, Any]],
) -> None:
    def check(page: Any) -> list[str]:
        show_both_readings(page)
        return page.evaluate(f"look.overflowing({PHONE})") + page.evaluate("look.cutOff()")

    assert not pages_with_errors(check, width=PHONE)


@pytest.mark.browser
def test_the_looking_itself_sees_faults(window: Callable[..., Any]) -> None:
    page = window(width=PHONE).open("404.html")
    page.set_content(
        """<article>
        <p class="enough" style="color: #767676">4.54</p> <p class="faint" style="color: #777777">4.48</p>
        <div style="background: #000"><p class="layer" style="color: #767676; background: #ffffff80">?</p></div>
        <p class="faded" style="color: #000; opacity: 0.5">?</p>
        <pre style="overflow-x: auto"><b style="display: block; width: 900px">scrolls</b></pre>
        <div class="sticks-out" style="width: 500px">wide</div>
        <div class="cell_output"><pre style="overflow-x: auto"><b style="display: block; width: 900px">cut</b></pre>
        <pre>whole</pre></div>
        <p>Some \\(raw\\) TeX.</p> <p>A $<b>z</b>$.</p> <code>{glue:text}</code> <code>{x}</code> <code>a$b</code>
        <div class="sd-tab-content" style="display: none">A reading.</div>
        </article>"""
    )
    assert [found.split()[1] for found in page.evaluate("look.faint(4.5)")] == [
        "p.faint",
        "p.layer",
        "p.faded",
    ]
    assert "div.sticks-out" in page.evaluate(f"look.overflowing({PHONE})")
    assert "b" not in page.evaluate(f"look.overflowing({PHONE})")
    assert page.evaluate("look.contents().raw") == ["Some \\(raw\\) TeX.", "A $", "$.", "{glue:text}"]
    assert page.evaluate("look.cutOff()") == ["cut"]
    assert page.evaluate("look.hidden()") == ["sd-tab-content: A reading."]


@pytest.mark.browser
def test_paper_shows_both_readings_and_the_answers(window: Callable[..., Any]) -> None:
    page = window().open(CHAPTER)
    page.emulate_media(media="print")
    assert not page.evaluate("look.hidden()")


@pytest.mark.browser
@pytest.mark.parametrize("missing", ["nothing.html", "chapters/nothing.html", "chapters/04_old/page"])
def test_a_wrong_address_gets_a_page_that_helps(window: Callable[..., Any], missing: str) -> None:
    opened = window()
    page = opened.open(missing)
    assert page.locator("h1", has_text="Page not found").is_visible()
    page.get_by_role("link", name="first page").click()
    page.wait_for_url("**/chapters/index.html")
    assert page.locator("article h1").inner_text().startswith("A Thousand Fingers")
    assert len(opened.complaints) == 1, "the missing page itself is all that may be complained about"


@pytest.mark.browser
def test_the_book_can_be_read_from_a_folder(window: Callable[..., Any], rendered_site: Path) -> None:
    opened = window()
    page = opened.open((rendered_site / CHAPTER).as_uri() + "?level=advanced")
    look = page.evaluate("look.contents()")
    assert look["set"] > 0
    assert not look["unset"] + look["raw"]
    page = opened.open((rendered_site / "404.html").as_uri())
    page.get_by_role("link", name="first page").click()
    page.wait_for_url("**/chapters/index.html")
    assert not opened.strangers
    assert not opened.complaints
