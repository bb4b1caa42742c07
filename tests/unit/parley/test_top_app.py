"""The live view of `parley top` on a terminal that is not there: keys, order, filter, details, agents that go and come."""

import asyncio

import pytest

pytest.importorskip("textual", reason="needs textual: pip install -e '.[top]'")

from textual.widgets import Input

from parley.top.app import TopApp, VmGrid
from parley.top.model import MAX_SHOWN, Column
from parley.top.source import Heard, Missed
from tests.unit.parley.top_documents import NASTY, amount, details, in_full, vm
from tests.unit.parley.top_seen import WIDE, Played, seen

LOAD = {"busyCPUs": 1.0, "load1": 1.0, "memoryUsed": 2**30}
A, B = "http://node-a:10300", "http://node-b:10300"


async def test_the_table_waits_shows_what_an_agent_says_and_follows_it() -> None:
    source = Played(A)
    async with seen(source) as view:
        assert view.title() == "parley top: waiting for the agent to answer"
        await view.press("enter", "s", "S", "down")
        assert not view.is_open()
        source.tell(A, vm("web", 2), vm("db", 4))
        await view.shows("db", "web")
        assert "node" not in view.heads()
        assert view.title() == "parley top: 2 VMs, 1 agent, by VM"
        source.tell(A, vm("web", 3, state="denied", reason="node-headroom: full"), vm("new", 1))
        await view.shows("new", "web")
        assert view.cells(Column.SIZE) == ["1/1Gi", "3/3Gi"]
        assert view.cells(Column.STATE) == ["ok", "denied"]
        assert view.cells(Column.REASON) == ["as it should be", "node-headroom: full"]
        assert view.notices() == ""
        source.tell(A)
        await view.shows()


async def test_a_cell_that_changed_stands_out_until_the_next_answer() -> None:
    source = Played(A)
    async with seen(source) as view:

        def bold() -> list[bool]:
            row = view.table.get_row_at(0)
            return [bool(getattr(cell.style, "bold", False)) for cell in row]

        source.tell(A, vm("web"))
        await view.shows("web")
        assert not any(bold())
        source.tell(A, vm("web", goal=amount(4)))
        await view.until(lambda: sum(bold()) == 1)
        assert view.cells(Column.GOAL) == ["4/4Gi"]
        source.tell(A, vm("web", goal=amount(4)))
        await view.until(lambda: not any(bold()))


async def test_keys_and_clicks_sort_by_every_column_and_reverse() -> None:
    source = Played(A)
    async with seen(source) as view:
        source.tell(A, vm("a", 2), vm("b", 3, state="stuck"), vm("c", 1, permit=None))
        await view.shows("a", "b", "c")
        await view.press("s")
        assert (view.names(), view.heads()[1]) == (["b", "a", "c"], "state ▲")
        await view.press("s", "s", "s")
        assert view.names() == ["c", "a", "b"]
        assert view.heads()[:5] == ["VM", "state", "why", "trend", "size ▲"]
        await view.press("r")
        assert (view.names(), view.heads()[4]) == (["b", "a", "c"], "size ▼")
        assert view.current() == "b", "another order shows its first rows"
        await view.press("S", "S", "S", "S", "r")
        assert (view.names(), view.heads()[0]) == (["a", "b", "c"], "VM ▲")
        await view.pilot.click(VmGrid, offset=(3, 0))
        await view.shows("c", "b", "a")
        await view.pilot.click(VmGrid, offset=(3, 0))
        await view.shows("a", "b", "c")


async def test_at_80_columns_codes_are_seen_and_the_words_stand_below() -> None:
    """Whatever is cut at the edge, the words on the VM under the cursor are whole; a legend says what columns mean."""
    source = Played(A)
    full = "node-headroom: the other holders leave 17 CPU of the node to this VM"
    async with seen(source, size=(80, 24)) as view:
        source.tell(
            A,
            vm("big-step", state="denied", reason=full, reasonCode="node-headroom"),
            vm("day-3", state="stuck", faults=["informant: connection refused"]),
        )
        await view.shows("big-step", "day-3")
        assert view.cells(Column.WHY) == ["node-headroom", "informant"]
        shown = "\n".join(strip.text for strip in view.table.render_lines(view.table.size.region))
        for seen_word in ("denied", "node-headroom", "2/2Gi", "informant"):
            assert seen_word in shown
        assert view.text("#words") == f"default/big-step: {full}"
        await view.press("down")
        assert view.text("#words") == "default/day-3: informant: connection refused; as it should be"
        assert "why: code of the last refusal" in view.text("#legend")


async def test_what_happened_stands_around_the_table() -> None:
    """A bar for each node above it; below it load and permits of the VM under the cursor, and the last events. All of it fits 80 columns."""
    source = Played(A)
    async with seen(source, size=(80, 24)) as view:
        source.tell(A, vm("web", 2, load=LOAD), vm("db", 1, load=LOAD))
        await view.shows("db", "web")
        assert "3 CPUs permitted" in view.text("#nodes")
        assert view.cells(Column.TREND) == [f"{'█':>12}", f"{'▅':>12}"]
        source.tell_nodes({"node": "node-a", "reserved": amount(4), "reservable": amount(8)})
        await view.until(lambda: "4 of 8 CPUs" in view.text("#nodes"))
        source.tell(A, vm("web", 4, load=LOAD), vm("db", 1, load=LOAD))
        await view.until(lambda: "web" in view.text("#events"))
        assert view.text("#events").split() == [
            "0s",
            "web",
            "grew",
            "2/2Gi",
            "→",
            "4/4Gi:",
            "as",
            "it",
            "should",
            "be",
        ]
        load, permit = view.text("#past").split("\n")
        assert load.startswith("CPU    load ")
        assert permit.startswith("     permit ")
        await view.press("down", "enter")
        assert view.is_open()
        assert view.text(".past").startswith("CPU    load ")
        await view.press("escape")
        await view.pilot.resize_terminal(80, 12)
        await view.until(lambda: not view.app.query_one("#events").display)
        assert not view.app.query_one("#past").display


async def test_the_cursor_stays_on_its_vm_while_rows_move() -> None:
    source = Played(A)
    async with seen(source) as view:
        source.tell(A, vm("a", 1), vm("b", 2), vm("c", 3))
        await view.shows("a", "b", "c")
        await view.press("s", "s", "s", "s", "down")
        assert view.current() == "b"
        source.tell(A, vm("a", 5), vm("b", 9), vm("c", 4))
        await view.shows("c", "a", "b")
        assert (view.current(), view.table.cursor_row) == ("b", 2)
        source.tell(A, vm("0", 1), vm("a", 5), vm("b", 9), vm("c", 4))
        await view.shows("0", "c", "a", "b")
        assert (view.current(), view.table.cursor_row) == ("b", 3)
        source.tell(A, vm("a", 5), vm("c", 4))
        await view.shows("c", "a")
        assert view.current() == "a", "it is gone; the cursor stays in the table"


async def test_the_filter_narrows_while_it_is_typed_and_escape_ends_it() -> None:
    source = Played(A)
    async with seen(source) as view:
        source.tell(
            A, vm("web-1"), vm("web-2", state="denied", reason="pool: quota"), vm("db", state="denied")
        )
        await view.shows("db", "web-1", "web-2")
        await view.press("slash", *"web")
        assert view.names() == ["web-1", "web-2"]
        await view.press("space", *"quota")
        assert view.names() == ["web-2"]
        assert "1 of 3 VMs" in view.title()
        await view.press("enter")
        assert view.app.focused is view.table
        source.tell(A, vm("web-3", reason="pool: quota"), vm("web-1"))
        await view.shows("web-3")
        await view.press("escape")
        assert view.names() == ["web-1", "web-3"]
        assert not view.app.query_one("#filter", Input).display
        await view.press("slash", *"sqr")
        assert view.app.query_one("#filter", Input).value == "sqr", "keys of the table are letters here"
        assert view.names() == []


async def test_details_show_plan_reasons_and_journal_and_are_left_again() -> None:
    source = Played(A)
    async with seen(source) as view:
        source.tell(A, vm("a"), vm("web"))
        await view.shows("a", "web")
        await view.press("down", "enter")
        assert view.is_open()
        assert source.followed == [(A, "default/web")]
        assert view.text(".title") == f"default/web on node-a, agent {A}"
        source.detail(Heard(in_full(details("web", faults=["informant: not heard"]))))
        await view.pilot.pause()
        shown = view.text("#details")
        for words in (
            "node-headroom (cpu): the node is full",
            "AskScheduler",
            'PermitGranted {"number": 12}',
            "informant: not heard",
        ):
            assert words in shown
        await view.press("s", "r", "slash", "enter")
        assert not view.is_open(), "enter goes back"
        assert (view.names(), view.heads()[0]) == (["a", "web"], "VM ▲"), (
            "and no key of the table had an effect"
        )
        await view.until(lambda: source.left == [(A, "default/web")])
        assert view.current() == "web"


async def test_details_of_a_vm_that_goes_away_stay_and_say_so() -> None:
    source = Played(A)
    async with seen(source) as view:
        source.tell(A, vm("web"))
        await view.shows("web")
        await view.press("enter")
        source.detail(Heard(in_full(details("web"))))
        source.detail(Missed("the agent has no such VM", 1, 0.5))
        source.tell(A)
        await view.shows()
        assert view.text(".notices") == "the agent has no such VM; trying again in 0.5 s"
        assert "PermitGranted" in view.text("#details")
        source.detail(Heard(in_full(details("web", journal=[]))))
        await view.pilot.pause()
        assert not view.app.screen.query_one(".notices").display
        await view.press("escape")
        assert view.names() == []


async def test_news_that_come_while_the_details_are_taken_apart_do_no_harm() -> None:
    source = Played(A)
    async with seen(source) as view:
        source.tell(A, vm("web"))
        await view.shows("web")
        await view.press("enter")
        leaving = view.app.pop_screen()
        while not leaving.is_done:
            source.detail(Missed("the agent has no such VM", 1, 0.5))
            source.detail(Heard(in_full(details("web"))))
            source.tell(A, vm("web"), vm("new"))
            await asyncio.sleep(0)
        await leaving
        await view.shows("new", "web")


async def test_an_agent_that_is_away_is_named_and_its_vms_stay_until_it_is_back() -> None:
    source = Played(A, B)
    async with seen(source) as view:
        source.lose(B)
        source.tell(A, vm("a"))
        await view.shows("a")
        assert view.notices() == f"{B}: no agent answers: connection refused; trying again in 0.5 s"
        source.tell(B, vm("b"), node="node-b")
        await view.shows("a", "b")
        assert (view.cells(Column.NODE), view.notices()) == (["node-a", "node-b"], "")
        source.lose(B, failures=4)
        await view.until(lambda: view.cells(Column.STATE) == ["ok", "away"])
        assert "(4 times)" in view.notices()
        source.tell(B, vm("a"), vm("b"), node="node-b")
        await view.shows("a", "a", "b")
        assert view.cells(Column.STATE) == ["ok"] * 3
        await view.press("down", "enter")
        assert source.followed == [(B, "default/a")], "two agents may have a VM of the same name"


async def test_nothing_that_an_agent_says_is_markup_or_moves_the_terminal() -> None:
    source = Played(A, B)
    async with seen(source) as view:
        vms = [
            vm(f"ns{at}/{each}x", state=each, reason=each, faults=[each], size={"cpu": each, "memory": each})
            for at, each in enumerate(NASTY)
        ]
        source.tell(A, *vms, node=NASTY[0])
        await view.until(lambda: view.table.row_count == len(NASTY))
        assert view.cells(Column.VM)[0] == f"ns0/{NASTY[0]}x", "brackets are shown as they are"
        assert view.cells(Column.VM)[1] == "ns1/cleared x"
        for column in Column:
            assert all(cell.isprintable() for cell in view.cells(column))
        for place in (0, 1, 2):
            view.table.move_cursor(row=place)
            await view.press("enter")
            assert view.text(".title").isprintable()
            for words in NASTY:
                journal = [{"secondsAgo": 1, "event": words}]
                source.detail(Heard(in_full(details("x", state=words, faults=[words], journal=journal))))
                source.detail(Missed(words, 1, 0.5))
                await view.pilot.pause()
                assert all(line.isprintable() for line in view.text("#details").splitlines())
            await view.press("escape")
        shot = view.app.export_screenshot()
        assert "[red]red[/red]" in shot.replace("&#160;", " ")
        await view.press("slash", *"[red]")
        assert len(view.names()) == 1


async def test_a_vm_that_comes_leaves_the_scrolling_as_it_is() -> None:
    source = Played(A)
    async with seen(source, size=(60, 20)) as view:
        vms = [vm(f"vm-{number}") for number in range(100)]
        source.tell(A, *vms)
        await view.until(lambda: view.table.row_count == 100)
        await view.press(*["down"] * 20, *["right"] * 5)
        view.table.move_cursor(row=36, animate=False)
        await view.press("up")
        x, y = view.table.scroll_x, view.table.scroll_y
        assert (x > 0, y > 0, view.current()) == (True, True, "vm-35")
        source.tell(A, *vms, vm("vm-100"))
        await view.until(lambda: view.table.row_count == 101)
        await view.until(lambda: (view.table.scroll_x, view.table.scroll_y) == (x, y))
        assert view.current() == "vm-35"
        await view.press("r")
        await view.until(lambda: (view.current(), view.table.scroll_y) == ("vm-100", 0))


async def test_more_vms_than_fit_a_table_are_cut_and_counted() -> None:
    source = Played(A)
    async with seen(source) as view:
        source.tell(A, *(vm(f"vm-{number}") for number in range(MAX_SHOWN + 1)))
        await view.until(lambda: view.table.row_count == MAX_SHOWN)
        assert f"{MAX_SHOWN + 1} VMs, the first {MAX_SHOWN} shown" in view.title()


@pytest.mark.parametrize("size", [(20, 5), (1, 1), (300, 100)])
async def test_the_terminal_may_change_its_size(size: tuple[int, int]) -> None:
    source = Played(A)
    async with seen(source, size=(100, 30)) as view:
        source.tell(A, *(vm(f"vm-{number}", faults=[NASTY[0]]) for number in range(50)))
        await view.until(lambda: view.table.row_count == 50)
        await view.pilot.resize_terminal(*size)
        source.tell(A, vm("web"), vm("db"))
        await view.shows("db", "web")
        await view.press("enter")
        source.detail(Heard(in_full(details("db"))))
        await view.pilot.resize_terminal(90, 20)
        assert "PermitGranted" in view.text("#details")
        await view.press("escape")
        assert view.names() == ["db", "web"]


async def test_another_theme_colours_the_cells_anew() -> None:
    source = Played(A)
    async with seen(source) as view:

        def colour() -> object:
            return getattr(view.table.get_row_at(0)[1].style, "color", None)

        source.tell(A, vm("web", state="stuck"))
        await view.shows("web")
        before = colour()
        assert before is not None
        view.app.theme = "nord"
        await view.until(lambda: colour() != before)


async def test_q_ends_it_while_answers_come() -> None:
    source = Played(A)
    app = TopApp(source)
    async with app.run_test(size=WIDE) as pilot:
        await pilot.pause()
        source.tell(A, vm("web"))
        await pilot.press("enter")
        source.tell(A, vm("web"))
        await pilot.press("q")
        source.tell(A, vm("late"))
    assert app.return_code == 0
