"""How the live page bears 10,000 VMs on 300 nodes: how long its script holds up the browser, and how long a click waits for its explanation.

`benchmarks/page.py [--short] [--vms N] [--nodes N]`: starts the real scheduler with `--page` over a cluster file and opens the page in Chromium without a
window. The page goes on asking the scheduler meanwhile, as it does for people.

* load: from the address to the last VM in the list, which comes 500 at a time.
* idle, filter, scroll: the longest time for which the page's thread did nothing else, seen by a timer within the page that is due every 5 ms: while nobody
  touches it; while a filter is typed letter by letter; while the list is scrolled from end to end. A key press or a wheel waits as long as that.
* click: from the click on a VM to its explanation on the page, which asks the scheduler in between.

Chromium has one core with this program, the scheduler the other one. The figures are kept and not judged. If Chromium is missing,
nothing is measured, and the last line says so.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load import cluster, figures, program
from tests.page.browser import PageDriver, browsing
from tests.support.short_paths import short_directory
from tests.support.waiting import shown_blocking
from tests.support.watch_assets import WatchAssetsError, find_browser

PARTS = ("idle", "filter", "scroll")
BEAT = """
const beat = { longest_ms: 0, last_ms: performance.now() };
const timer = setInterval(() => {
  const now_ms = performance.now();
  beat.longest_ms = Math.max(beat.longest_ms, now_ms - beat.last_ms - 5);
  beat.last_ms = now_ms;
}, 5);
const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
const rest = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
"""
"""Begins to watch the page's thread; a part of the benchmark follows."""
ENDED = """
await rest(20);
clearInterval(timer);
return beat.longest_ms;
"""
IDLE = "await rest(arguments[0] * 1000);"
FILTER = """
const field = document.querySelector("#text");
for (let time = 0; time < arguments[0]; time += 1) {
  const word = `vm-${String(time * 997 % 10000).padStart(5, "0")}`;
  for (let letters = 0; letters <= word.length; letters += 1) {
    field.value = word.slice(0, letters);
    field.dispatchEvent(new Event("input", { bubbles: true }));
    await frame();
  }
}
document.querySelector("button[type=reset]").click();
await frame();
"""
SCROLL = """
const grid = document.querySelector("#vms .grid"), most = grid.scrollHeight - grid.clientHeight;
for (let step = 0; step <= arguments[0] * 40; step += 1) {
  grid.scrollTop = most * (step % 41) / 40;
  await frame();
}
grid.scrollTop = 0;
await frame();
"""
CLICK = """
const grid = document.querySelector("#vms .grid"), lead = document.querySelector("#lead");
const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
grid.scrollTop = (grid.scrollHeight - grid.clientHeight) * arguments[0];
await frame();
const row = document.querySelector("#vms .runway .row:nth-child(6)"), name = row.querySelector("b").textContent;
const began_ms = performance.now();
const told = new Promise((resolve) => new MutationObserver((_, watching) => {
  if (document.querySelector("#subject").textContent !== name || !lead.textContent.startsWith("It")) return;
  watching.disconnect();
  requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began_ms)));
}).observe(lead, { childList: true, characterData: true, subtree: true }));
row.click();
const took_ms = await told;
document.querySelector("#close").click();
await frame();
return took_ms;
"""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    shape: cluster.Shape
    times: int
    clicks: int


def _script(text: str) -> str:
    return (
        f"return (async () => {{ {text} }})()"  # an arrow function has the arguments of the script around it
    )


def _looked(browser: PageDriver, address: str, options: Options) -> dict[str, Any]:
    began_s = perf_counter()
    browser.open(address)
    vms = str(options.shape.vms)
    shown_blocking("all VMs", lambda: browser.text("#vm-count") == vms)
    found: dict[str, Any] = {"load_s": round(perf_counter() - began_s, 1)}
    for part, text in zip(PARTS, (IDLE, FILTER, SCROLL), strict=True):
        longest_ms = browser.run(_script(BEAT + text + ENDED), options.times)
        found[f"{part}_longest_block_ms"] = round(longest_ms, 1)
    found["longest_block_ms"] = max(found[f"{part}_longest_block_ms"] for part in PARTS)
    took_ms = [
        browser.run(_script(CLICK), number / max(options.clicks - 1, 1)) for number in range(options.clicks)
    ]
    found["click_to_explanation"] = figures.in_ms([each / 1000 for each in took_ms])
    found["elements"] = browser.count("*")
    return found


async def _main(options: Options) -> int:
    head = {"benchmark": "page", "machine": figures.machine()}
    try:
        find_browser()
    except WatchAssetsError as error:
        print(json.dumps({**head, "skipped": str(error)}))
        return 0
    faults = figures.Faults()
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as name, short_directory() as short:
        port = program.free_port()
        path = cluster.write(Path(name) / "cluster.yaml", options.shape)
        with program.Program.scheduler(port, path, "--page", "--first-start") as server:
            await server.ready()
            with browsing(short) as browser:
                found = await asyncio.to_thread(_looked, browser, f"http://127.0.0.1:{port}/", options)
                for each in browser.complaints():
                    faults.add(f"the console says: {each}")
    print(
        f"{options.shape.vms} VMs on {options.shape.nodes} nodes, all in the list after {found['load_s']} s"
    )
    rows = [(part, found[f"{part}_longest_block_ms"]) for part in PARTS]
    figures.table(("", "longest block ms"), [*rows])
    click = found["click_to_explanation"]
    print(
        f"from a click to its explanation p50 {click['p50_ms']} ms, at most {click['max_ms']} ms of {options.clicks}; errors {faults.count}"
    )
    shape = {"vms": options.shape.vms, "nodes": options.shape.nodes}
    print(json.dumps({**head, **shape, **found, "errors": faults.count}))
    return 1 if faults.count else 0


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--short", action="store_true", help="2 words, 2 scrolls and 10 clicks instead of 10, 10 and 50"
    )
    parser.add_argument("--vms", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=300)
    given = parser.parse_args()
    if given.vms < 100 or given.nodes < 1:
        parser.error("there must be a node, and VMs enough to scroll: 100")
    options = Options(
        shape=cluster.Shape(given.vms, min(given.nodes, given.vms)),
        times=2 if given.short else 10,
        clicks=10 if given.short else 50,
    )
    sys.exit(program.run(lambda: _main(options)))


if __name__ == "__main__":
    main()
