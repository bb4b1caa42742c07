"""A real guest and its agent share a secret: they negotiate as ever, and nobody else is heard, on the host or inside the guest."""

import base64
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from hosting.client import Answered, HttpClient
from labs.vms.image import VmImage
from labs.vms.machine import FIRMWARE_NAME, MIB
from protocol.values import Resources
from tests.support.vm_house import LEAST, SLOT_BYTES, WORDS, HouseRules, VmHouse, inhabited
from tests.support.vm_looks import ANSWER_S, left_over
from tests.support.vms import shell_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

VM: Final = "db"
ROOM: Final = Resources(2000, LEAST.memory_bytes + 4 * SLOT_BYTES)
LATE: Final = {"memoryTarget": 1, "memoryMargin": 0, "slopeAhead": 0}
REFUSED_BY_GUEST: Final = 'parley_informant_requests_refused_total{reason="unsigned"}'
REFUSED_BY_AGENT: Final = 'parley_agent_callbacks_refused_total{reason="unsigned"}'
THIEF: Final = r"""
import re, sys, urllib.error, urllib.request
pid, port = sys.argv[1:]
found = set()
with open(f"/proc/{pid}/mem", "rb") as memory:
    for line in open(f"/proc/{pid}/maps"):
        if " rw-p " in line:
            begin, end = (int(each, 16) for each in line.split()[0].split("-"))
            try:
                memory.seek(begin)
                content = memory.read(end - begin)
            except (OSError, ValueError):
                continue
            found |= set(re.findall(rb"/agents/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", content))
for each in found:
    name = each.decode()
    url = f"http://10.0.2.2:{port}/agents/{name}/suspend"
    call = urllib.request.Request(url, f'{{"expectedID": "{name}"}}'.encode(), method="POST")
    try:
        print(urllib.request.urlopen(call, timeout=5).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""
"""Takes the IDs of registrations out of the informant's memory, and calls the agent by each: without the secret they are worth nothing."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(image: VmImage, guarded: Path) -> AsyncIterator[VmHouse]:
    directory = guarded / "secret"
    words = dataclasses.replace(WORDS, secret=True)
    rules = HouseRules(ROOM, utilisation=LATE)
    async with inhabited(directory, image, rules, VM, words=words) as house:
        yield house
    assert list(left_over(directory)) == []


async def test_a_guest_with_a_secret_grows_and_its_urgent_wish_is_heard(house: VmHouse) -> None:
    await house.set_load(VM, cpus=4.0)
    await house.looks("a second vCPU", VM, lambda look: (look.guest.vcpus_online or 0) >= 2)
    await house.set_load(VM, memory_bytes=360 * MIB, memory_bytes_per_s=256 * MIB)
    await house.looks(
        "more memory", VM, lambda look: (look.guest.memory_online_bytes or 0) > LEAST.memory_bytes
    )
    journal = (await house.details(VM))["journal"]
    assert any(each["event"] == "TryUpscaleReceived" for each in journal), journal
    await house.keeps_the_law()


async def test_each_guest_has_a_secret_of_its_own_that_root_alone_reads(house: VmHouse) -> None:
    """Also one that goes on from a saved state, which had another."""
    secret = house.vms[VM].guest.secret_path
    assert secret is not None
    assert secret.stat().st_mode & 0o777 == 0o600
    async with shell_of(house.vms[VM].guest) as shell:
        raw = f"/sys/firmware/qemu_fw_cfg/by_name/{FIRMWARE_NAME}/raw"
        shown = (await shell.run(f"stat -c %a {raw}; cat {raw}")).output.split()
    assert shown == ["400", secret.read_text().strip()]


async def test_a_stranger_gives_the_guest_orders(house: VmHouse) -> None:
    before = (await house.figures(VM)).get(REFUSED_BY_GUEST, 0.0)
    url = f"{house.vms[VM].guest.informant_url}/downscale"
    async with HttpClient() as client:
        answer = await client.call("PUT", url, body=b'{"cpu": "1", "memory": "1Mi"}', deadline_s=ANSWER_S)
    assert isinstance(answer, Answered)
    assert (answer.status, b"Parley-Signature is missing" in answer.body) == (401, True)
    async with shell_of(house.vms[VM].guest) as shell:
        inside = await shell.run("wget -q -O - --post-data '{}' http://127.0.0.1:10301/register", check=False)
    assert inside.code != 0
    assert (await house.figures(VM))[REFUSED_BY_GUEST] == before + 2


async def test_a_program_in_the_guest_calls_the_agent_by_a_stolen_registration(house: VmHouse) -> None:
    content = base64.b64encode(THIEF.encode()).decode()
    async with shell_of(house.vms[VM].guest) as shell:
        await shell.run(f"echo {content} | base64 -d > /run/thief.py")
        pids = (await shell.run("cat /sys/fs/cgroup/informant/cgroup.procs")).output.split()
        found = await shell.run(f"python3 /run/thief.py {pids[0]} {house.agent.port}", deadline_s=60)
    statuses = found.output.split()
    assert "401" in statuses, found.output
    assert set(statuses) <= {"401", "404"}
    page = (await house.agent.page("/metrics")).decode().splitlines()
    assert any(line.startswith(REFUSED_BY_AGENT) for line in page)
    journal = (await house.details(VM))["journal"]
    assert not any(each["event"] == "Suspended" for each in journal)
    await house.keeps_the_law()
