"""The live page in Chromium, over a real scheduler: what people see of real permits."""

import asyncio
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from hosting.server import Reply, Request, Route, Server
from scheduler.page.routes import page_routes
from scheduler.permits.service.answers import not_leader
from tests.page.browser import (
    DOWN,
    END,
    ENTER,
    ESCAPE,
    NARROW,
    PHONE,
    TAB,
    WIDE,
    WIDEST,
    PageDriver,
    strangers,
)
from tests.processes.schedulers import AskingAgent, put, scheduler
from tests.support.processes import Program, amount, cluster_file, post, write_json
from tests.support.servers import QUIET
from tests.support.waiting import shown_blocking

HOSTILE: Final = "<img src=x onerror=window.wasRun=1>"
MARKUP: Final = "<marquee>&amp;<b>"
"""A name that a cluster may show: without blanks and slashes."""
AXIS: Final = ["now", "−30 s", "−60 s"]
MANY: Final = 10_000
BOUND: Final = 3_000
"""How many elements the page may ever have: what is in sight, and not what there is."""


@dataclass
class Served:
    """A scheduler that serves the page, with one agent for each VM `a` and `b` of the namespace `d` on the node `n1`."""

    directory: Path
    program: Program
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def agents(self) -> tuple[AskingAgent, AskingAgent]:
        """Both are known to the scheduler."""
        return AskingAgent(self.port, "a").settle(), AskingAgent(self.port, "b").settle()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with scheduler(tmp_path, "--page", room=5) as (program, port):
        yield Served(tmp_path, program, port)


def _crowd(path: Path, nodes: int, vms: int) -> None:
    """A cluster file with many VMs in ten namespaces, and one VM with a name that is markup."""
    names = [f"vm-{number:05}" for number in range(vms - 1)] + [MARKUP]
    write_json(
        path,
        {
            "nodes": [
                {"name": f"node-{number:03}", "allocatable": amount(4 * vms // nodes + 4)}
                for number in range(nodes)
            ],
            "vms": [
                {
                    "namespace": f"team-{number % 10}",
                    "name": name,
                    "uid": f"uid-{number}",
                    "node": f"node-{number % nodes:03}",
                    "min": amount(1),
                    "max": amount(4),
                }
                for number, name in enumerate(names)
            ],
        },
    )


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_page_shows_nodes_vms_and_decisions_and_asks_nobody_else(
    browser: PageDriver, served: Served, size: tuple[int, int], request: pytest.FixtureRequest
) -> None:
    """A growth that the node has room for, and one that it has not. What was seen is left as a picture in pytest's cache (`.pytest_cache/d/live-page/`)."""
    first, second = served.agents()
    assert first.ask(3) == (3, [])
    assert second.ask(4) == (2, ["node-headroom"])
    browser.open(served.address, size)

    browser.until("life", "#state", "live")
    (node,) = browser.until_rows("#nodes", "n1")
    assert "5 of 5" in node
    worst, other = browser.until_rows("#vms", "d/a", "d/b")
    assert "d/b" in worst, "the one that got less than it wants comes first"
    assert "partial" in worst
    assert "node-headroom" in worst
    assert "2 of 4" in worst
    assert "wants 4" in worst
    assert "3 of 4" in other
    stream = browser.texts("#stream li")
    assert "partial" in stream[0]
    assert "node-headroom" in stream[0]
    assert "CPU 1 → 2 (asked 4)" in stream[0]
    assert any("permitted" in each and "CPU 1 → 3" in each for each in stream)

    if request.config.pluginmanager.hasplugin("cacheprovider"):
        browser.save(request.config.cache.mkdir("live-page") / f"{size[0]}.png")

    assert second.ask(1) == (1, [])
    browser.until("the next decision", "#stream li", "CPU 2 → 1")
    assert browser.run("return document.documentElement.scrollWidth") <= size[0]
    assert browser.complaints() == []
    assert strangers(browser.requests(), served.address) == []


def test_amounts_are_drawn_as_they_are_told(browser: PageDriver, served: Served) -> None:
    """The node's bar, what was denied beyond it, and the line of a permit that grew. Where no sizes are shown, none are explained."""
    first, second = served.agents()
    browser.open(served.address)
    browser.until_rows("#vms", "d/a", "d/b")
    assert first.ask(3) == (3, [])
    assert second.ask(4) == (2, ["node-headroom"])
    browser.until("pressure", "#nodes .meter.cpu small", "2 denied")
    browser.until_rows("#vms", "3 of 4", "2 of 4")

    for resource, reserved, denied in (("cpu", "5 of 5", "2"), ("memory", "5 Gi of 5 Gi", "2 Gi")):
        meter = f"#nodes .meter.{resource}"
        assert browser.width(f"{meter} .used") == pytest.approx(browser.width(f"{meter} .free")), "it is full"
        assert browser.width(f"{meter} .used") > browser.width(f"{meter} .lacking") > 0
        assert browser.width(f"{meter} .buffer") == 0
        title = browser.run("return document.querySelector(arguments[0]).textContent", f"{meter} title")
        assert f"{reserved} reserved, of it 0" in title
        assert f"; {denied} denied for want of room" in title

    row = browser.row_id("#vms", "d/a")
    assert len(browser.heights(f"#{row} .cpu .permit")) > 1, "the permit grew, and its line has a step"
    assert len(browser.heights(f"#{row} .memory .permit")) > 1
    assert browser.texts("#vm-legend .legend:not([hidden])") == ["permit", "asked for", "maximum"]


def test_the_load_that_an_agent_reported_is_drawn_beside_its_permit(
    browser: PageDriver, served: Served
) -> None:
    """On the scale of the CPUs; for memory there is none. The reason of a permit names it. A VM whose agent reports none has none."""
    first, second = served.agents()
    first.load = 2.0
    assert first.ask(2) == (2, [])
    assert second.ask(2) == (2, [])
    browser.open(served.address)
    browser.until_rows("#vms", "load 2")
    row, other = browser.row_id("#vms", "d/a"), browser.row_id("#vms", "d/b")
    assert browser.texts("#vm-legend .legend:not([hidden])") == ["permit", "load", "asked for", "maximum"]

    def drawn(each: str, resource: str) -> str:
        path = f"#{each} .{resource} path.load"
        return str(browser.run("return document.querySelector(arguments[0]).getAttribute('d')", path))

    height = drawn(row, "cpu").partition(",")[2].partition("h")[0]
    assert float(height) == min(browser.heights(f"#{row} .cpu .permit")), "2 of 4 CPUs, as the permit"
    assert drawn(row, "memory") == drawn(other, "cpu") == "M0 0"
    assert "load" not in browser.text(f"#{other}")

    grown = "asked for more CPU and memory at load 2; no limit was met"
    assert any("d/a" in each and grown in each for each in browser.texts("#stream li"))
    assert grown in browser.text(f"#{row}")
    assert any("asked for more CPU and memory; no limit" in each for each in browser.texts("#stream li"))
    first.load = 0.25
    assert first.ask(1) == (1, [])
    browser.until_rows("#vms", "gave CPU and memory back at load 0.25")
    browser.click_row("#vms", "d/a")
    browser.until("the reason of the VM's last decision", "#story", "gave CPU and memory back at load 0.25")


BOXES: Final = """
const box = (query) => { const found = document.querySelector(query).getBoundingClientRect(); return [found.left, found.top, found.right, found.bottom]; };
return arguments[0].map(box);
"""
"""The edges of elements: left, top, right and bottom."""
CUT: Final = """
return [...document.querySelectorAll("#vms .row b.words")].filter((each) => each.scrollWidth > each.clientWidth || each.scrollHeight > each.clientHeight).length;
"""
"""How many names of VMs are not to be read in full."""


@pytest.mark.parametrize(
    "size", [PHONE, NARROW, WIDE, WIDEST], ids=lambda size: f"{size[0]}" if isinstance(size, tuple) else ""
)
def test_every_width_shows_names_in_full_and_lines_over_a_time_axis(
    browser: PageDriver, tmp_path: Path, size: tuple[int, int]
) -> None:
    """Few VMs fill the list; many have their times above it. The explanation opens beside the list; on a phone it covers the page."""
    few = ("payments-api-7d9c5b6f4-x2x9z", "b")
    with scheduler(tmp_path, "--page", names=few) as (_, port):
        browser.open(f"http://127.0.0.1:{port}/", size)
        browser.until_rows("#vms", *(f"d/{each}" for each in few))
        assert browser.run("return document.documentElement.scrollWidth") <= size[0]
        assert browser.run(CUT) == 0
        assert browser.width("#vms .trend.cpu svg") >= 160
        assert browser.width("#vms .trend.memory svg") >= 160
        assert browser.words("#vms-0 .cpu .at") == browser.words("#vms-0 .memory .at") == AXIS
        _, (_, top, _, _), (_, _, _, bottom) = browser.run(BOXES, ["#vms", "#vms-0", "#vms-1"])
        (_, list_top, _, list_bottom) = browser.run(BOXES, ["#vms .grid"])[0]
        assert bottom - top > 0.8 * (list_bottom - list_top)

        browser.click_row("#vms", "d/b")
        browser.until("the explanation", "#lead", "It may have")
        vms, explained, nodes = browser.run(BOXES, ["#vms", "#explain", "#nodes"])
        if size is PHONE:
            assert explained == [0, 0, *PHONE]
        else:
            assert vms[2] <= explained[0], "beside the list"
            assert vms[2] - vms[0] > 300
            assert explained[1] == vms[1] >= nodes[3]
            assert browser.run(CUT) == 0
            assert browser.width("#vms .trend.cpu svg") >= 160
        assert browser.find("#stream").is_displayed() is (size in (PHONE, WIDEST))
        browser.click("#close")
        assert browser.find("#stream").is_displayed() is True

        many = [*few, *(f"vm-{number}" for number in range(60))]
        cluster_file(tmp_path / "many.yaml", many).replace(tmp_path / "cluster.yaml")
        browser.until("all of them", "#vm-count", "62")
        has_titles = size is not PHONE
        wanted = [] if has_titles else AXIS
        shown_blocking("the times", lambda: browser.words("#vms-0 .cpu .at") == wanted)
        assert browser.find("#vms .titles svg").is_displayed() is has_titles
        assert browser.words("#vms .titles .at") == [*AXIS, *AXIS]
        assert browser.complaints() == []


def test_which_process_answers_is_told_on_demand(browser: PageDriver, served: Served) -> None:
    """It is there for who points at the sign, or comes to it by keys."""
    browser.open(served.address)
    browser.until("its words", "#who", "of the scheduler, epoch 0")
    opacity = "return getComputedStyle(document.querySelector('#who')).opacity"
    assert browser.run(opacity) == "0"
    browser.type("body", TAB)
    assert browser.focus() == "about"
    assert browser.run(opacity) == "1"
    browser.type("#about", TAB)
    assert browser.run(opacity) == "0"


def test_sizes_and_the_buffer_are_drawn_where_the_cluster_shows_them(
    browser: PageDriver, tmp_path: Path
) -> None:
    """A VM whose size changes under a permit that stays, and one that nobody speaks for: its maximum is kept as buffer."""
    path = cluster_file(tmp_path / "cluster.yaml", ["a", "quiet"], room=10)
    content = json.loads(path.read_text())
    content["vms"][0]["size"] = amount(1)
    put(path, content)
    with scheduler(tmp_path, "--page", first=True) as (_, port):
        agent = AskingAgent(port, "a").settle()
        assert agent.ask(3) == (3, [])
        browser.open(f"http://127.0.0.1:{port}/")
        browser.until_rows("#vms", "uses 1")
        row = browser.row_id("#vms", "d/a")
        assert len(browser.heights(f"#{row} .cpu .size")) == 1
        assert browser.texts("#vm-legend .legend:not([hidden])") == ["permit", "size", "asked for", "maximum"]

        content["vms"][0]["size"] = amount(3)
        put(path, content)
        browser.until_rows("#vms", "uses 3")
        shown_blocking("the step", lambda: len(browser.heights(f"#{row} .cpu .size")) == 2)
        permit, size = (min(browser.heights(f"#{row} .cpu .{line}")) for line in ("permit", "size"))
        assert size == permit, "both have the same scale"

        meter = "#nodes .meter.cpu"
        browser.until("the buffer", f"{meter} small", "7 of 10, 4 buffer")
        used, buffer = browser.width(f"{meter} .used"), browser.width(f"{meter} .buffer")
        assert used > 0
        assert buffer / used == pytest.approx(4 / 3, rel=0.05)
        title = browser.run("return document.querySelector(arguments[0]).textContent", f"{meter} title")
        assert "7 of 10 reserved, of it 4 buffer" in title
        assert browser.complaints() == []


def test_a_click_explains_the_vm(browser: PageDriver, served: Served) -> None:
    """The page tells what the VM wants and has, which limit binds with its numbers, who holds the room, and its last decisions."""
    first, second = served.agents()
    first.ask(3)
    second.ask(4)
    browser.open(served.address)
    browser.click_row("#vms", "d/b")

    lead = browser.until("the explanation", "#lead", "because of node-headroom")
    assert "wants 4 CPU, 4 Gi" in lead
    assert "may have 2 CPU, 2 Gi" in lead
    story = browser.text("#story")
    assert "Room of n1" in story
    assert "vm d/a" in story
    assert "Its last decisions" in story
    assert browser.run("return location.hash") == "#d/b"
    assert browser.focus() == "subject"

    first.ask(1)
    second.ask(4)
    browser.until("what is so now", "#lead", "all that it wants")
    browser.type("#subject", ESCAPE)
    assert browser.find("#explain").is_displayed() is False
    assert browser.find("#stream").is_displayed() is True

    browser.open(f"{served.address}#d/a")
    browser.until("the VM of the address", "#subject", "d/a")
    browser.until("its explanation", "#lead", "It wants 1 CPU")
    assert browser.complaints() == []


def test_a_vm_that_is_unknown_is_told_plainly(browser: PageDriver, served: Served) -> None:
    browser.open(f"{served.address}#d/nobody")
    browser.until("the answer", "#lead", "nothing is known of 'd/nobody'")


def test_the_list_is_filtered_and_walked_by_keys(browser: PageDriver, served: Served) -> None:
    """By text, by outcome, by node; and a VM is chosen without a mouse."""
    first, second = served.agents()
    first.ask(3)
    second.ask(4)
    browser.open(served.address)
    browser.until_rows("#vms", "d/a", "d/b")

    browser.type("#text", "headroom")
    shown_blocking("one VM", lambda: len(browser.rows("#vms")) == 1)
    assert "d/b" in browser.rows("#vms")[0]
    assert all("d/b" in each for each in browser.texts("#stream li"))
    browser.click("button[type=reset]")
    shown_blocking("both VMs", lambda: len(browser.rows("#vms")) == 2)
    browser.click("#outcomes .permitted")
    assert ["d/a" in each for each in browser.rows("#vms")] == [True]
    assert browser.find("#outcomes .permitted").get_attribute("aria-pressed") == "true"
    browser.click("button[type=reset]")
    browser.click_row("#nodes", "n1")
    assert browser.run("return document.querySelector('#node').value") == "n1"
    browser.click("button[type=reset]")

    browser.type("#vms .grid", DOWN, DOWN, ENTER)
    browser.until("the second VM", "#subject", "d/a")


def test_the_list_goes_on_after_an_explanation_was_closed(browser: PageDriver, served: Served) -> None:
    """The focus is on it then, and the pointer may be: what is shown keeps its order, and is what there is and fits the filter."""

    def names() -> list[str]:
        return [each.split("\n")[0] for each in browser.rows("#vms")]

    def becomes(*wanted: str) -> None:
        shown_blocking(f"the rows {wanted}", lambda: names() == list(wanted))

    first, second = served.agents()
    first.ask(3)
    second.ask(4)
    browser.open(served.address)
    browser.click_row("#vms", "d/b")
    browser.until("the explanation", "#lead", "because of node-headroom")
    browser.type("#subject", ESCAPE)
    assert browser.run("return document.activeElement.matches('#vms .grid:focus-visible')")
    assert names() == ["d/b", "d/a"]

    path = served.directory / "cluster.yaml"
    before = json.loads(path.read_text())
    added = before["vms"][0] | {"name": "c", "uid": "uid-c"}
    put(path, before | {"vms": [*before["vms"], added]})
    becomes("d/b", "d/a", "d/c")
    assert second.ask(1) == (1, [])
    shown_blocking("what it has now", lambda: "1 of 4" in browser.rows("#vms")[0])
    assert names() == ["d/b", "d/a", "d/c"]

    browser.click("#outcomes .permitted")
    browser.type("#vms .grid", DOWN)
    becomes("d/a", "d/b")
    assert first.ask(4) == (3, ["node-headroom"])
    becomes("d/b")
    browser.click("button[type=reset]")
    browser.type("#vms .grid", DOWN)
    becomes("d/a", "d/b", "d/c")
    put(path, before)
    becomes("d/a", "d/b")


def test_the_order_is_made_anew_as_soon_as_the_pointer_leaves_the_list(
    browser: PageDriver, served: Served
) -> None:
    """Also where the focus was put there, and nobody walks in it by keys."""
    first, second = served.agents()
    first.ask(3)
    second.ask(4)
    browser.open(served.address)
    browser.click_row("#vms", "d/b")
    browser.until("the explanation", "#lead", "because of node-headroom")
    browser.click("#close")
    assert browser.run("return document.activeElement.matches('#vms .grid')")
    assert "d/b" in browser.rows("#vms")[0]
    assert first.ask(1) == (1, [])
    assert second.ask(4) == (4, [])
    shown_blocking("another order", lambda: "d/a" in browser.rows("#vms")[0])


def test_a_scheduler_that_is_away_is_said_and_its_restart_is_survived(
    browser: PageDriver, served: Served, tmp_path: Path
) -> None:
    first, _ = served.agents()
    first.ask(3)
    browser.open(served.address)
    browser.until("life", "#state", "live")
    browser.until_rows("#vms", "3 of 4")
    before = browser.text("#who")

    served.program.end(signal.SIGKILL)
    browser.until("its absence", "#state", "no answer")
    browser.until("since when", "#notice", "No answer since ")
    browser.until("what comes next", "#age", "next try in")
    assert len(browser.rows("#vms")) == 2, "what was known last is still shown"

    with scheduler(tmp_path, "--page", port=served.port, first=True):
        browser.until("its return", "#state", "live")
        browser.until("the cut in the stream", "#stream .cut", "started again")
        assert browser.text("#notice") == ""
        assert browser.text("#who") != before
        second = AskingAgent(served.port, "b")
        first.settle()
        second.settle()
        assert second.ask(2) == (2, [])
        browser.until("a decision of the new one", "#stream li", "d/b")
        browser.until_rows("#vms", "2 of 4", "3 of 4")


async def test_a_scheduler_that_does_not_lead_names_the_leader(browser: PageDriver) -> None:
    """It serves the page, and answers all else as a follower does."""

    async def refused(_: Request) -> Reply:
        return not_leader("http://10.1.2.3:10299")

    server = Server(QUIET, page_routes(), fallback=Route("*", "*", refused))
    port = await server.start("127.0.0.1", 0)

    def look() -> None:
        browser.open(f"http://127.0.0.1:{port}/")
        browser.until("its state", "#state", "does not lead")
        browser.until("the leader", "#notice", "The leader is http://10.1.2.3:10299.")

    try:
        await asyncio.to_thread(look)
    finally:
        await server.close()


def test_names_and_messages_of_peers_are_text(browser: PageDriver, served: Served) -> None:
    """An agent asks for a VM whose name is a picture that runs a script."""
    status, _ = post(served.port, AskingAgent(served.port, HOSTILE).body(1))
    assert status == 404
    browser.open(served.address)

    browser.until("the name as text", "#stream li", f"d/{HOSTILE}")
    browser.click("#stream li button")
    browser.until("the name as a title", "#subject", f"d/{HOSTILE}")
    browser.until("its explanation", "#lead", "The cluster shows no such VM")
    assert browser.count("img") == 0
    assert browser.run("return window.wasRun || null") is None
    assert browser.complaints() == []


def test_nothing_is_asked_for_while_the_page_pauses(browser: PageDriver, served: Served) -> None:
    """Neither at the next rounds, nor when the page comes into sight again; what was known stays."""
    first, _ = served.agents()
    browser.open(served.address)
    browser.until("life", "#state", "live")
    browser.until_rows("#vms", "d/a", "d/b")
    browser.click("#pause")
    browser.until("the pause", "#state", "paused")
    browser.tick(1)  # an answer that was under way is there
    browser.drain()
    before = browser.rows("#vms")

    assert first.ask(3) == (3, [])
    browser.tick(3)
    browser.run("document.dispatchEvent(new Event('visibilitychange'))")
    browser.tick(1)
    assert browser.requests() == []
    assert browser.rows("#vms") == before
    assert browser.text("#state") == "‖ paused"

    browser.click("#pause")
    browser.until_rows("#vms", "3 of 4")
    assert browser.text("#state") == "● live"
    assert browser.requests()


def test_ten_thousand_vms_on_three_hundred_nodes_stay_usable(browser: PageDriver, tmp_path: Path) -> None:
    """The page draws what is in sight, whatever there is; and a name that is markup stays text."""
    _crowd(tmp_path / "cluster.yaml", 300, MANY)
    with scheduler(tmp_path, "--page", first=True) as (_, port):
        address = f"http://127.0.0.1:{port}/"
        browser.open(address)
        browser.until("all VMs", "#vm-count", str(MANY))
        browser.until("all nodes", "#node-count", "300")
        assert browser.count("*") < BOUND

        browser.type("#vms .grid", END)
        browser.until_rows("#vms", "team-9/vm-09989")
        assert browser.count("*") < BOUND
        browser.type("#text", "vm-04321")
        shown_blocking("one VM", lambda: len(browser.rows("#vms")) == 1)
        browser.type("#vms .grid", DOWN, ENTER)
        browser.until("its explanation", "#lead", "It may have")
        browser.click("#close")
        browser.click("button[type=reset]")
        browser.type("#nodes .grid", END, ENTER)
        shown_blocking("one node's VMs", lambda: browser.text("#vm-count").endswith(f" of {MANY}"))
        browser.click("button[type=reset]")

        browser.type("#text", "marquee")
        browser.click_row("#vms", MARKUP)
        browser.until("the name as text", "#subject", MARKUP)
        browser.until("its explanation", "#lead", "It may have")
        assert browser.count("marquee") == 0
        assert browser.complaints() == []
        assert strangers(browser.requests(), address) == []
