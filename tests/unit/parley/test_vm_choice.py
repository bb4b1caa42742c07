"""The option `--vms` of the demo, and what it goes with."""

import re

import click
import pytest
from click.testing import CliRunner

from parley.program import main
from parley.vm_choice import QemuGuests, VmsOption


@pytest.mark.parametrize(
    ("word", "chosen"),
    [("1", 1), ("64", 64), ("qemu", QemuGuests(2)), ("qemu:1", QemuGuests(1)), ("qemu:4", QemuGuests(4))],
)
def test_a_number_or_guests_under_qemu(word: str, chosen: int | QemuGuests) -> None:
    assert VmsOption().convert(word, None, None) == chosen


NEITHER = "is neither a number of VMs, nor qemu, nor qemu:N with a number of guests"


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("0", "'0': 1 to 64 VMs are possible"),
        ("65", "'65': 1 to 64 VMs are possible"),
        ("qemu:5", "'qemu:5': 1 to 4 guests are possible: each emulated guest keeps a core busy while it boots"),
        ("qemu:0", "'qemu:0': 1 to 4 guests are possible"),
        ("qemu:", f"'qemu:' {NEITHER}"),
        ("qemu:-1", f"'qemu:-1' {NEITHER}"),
        ("kvm:2", f"'kvm:2' {NEITHER}"),
        ("²", f"'²' {NEITHER}"),
        ("", f"'' {NEITHER}"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_told_with_what_would_be_right(word: str, told: str) -> None:
    with pytest.raises(click.BadParameter, match=re.escape(told)):
        VmsOption().convert(word, None, None)
    done = CliRunner().invoke(main, ["demo", "--vms", word])
    assert done.exit_code == 2


def test_guests_are_in_no_cluster() -> None:
    done = CliRunner().invoke(main, ["demo", "--vms", "qemu:2", "--cluster", "kube"])
    assert done.exit_code == 2
    assert "--vms qemu and --cluster exclude each other" in done.stderr
