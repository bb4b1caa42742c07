"""The archive of the initramfs, read by the system's own cpio format rules."""

from labs.vms import cpio


def read(content: bytes) -> dict[str, tuple[int, bytes]]:
    """The modes and contents of an archive, by name, in order. Every field is where the format has it."""
    found: dict[str, tuple[int, bytes]] = {}
    at = 0
    while True:
        assert content[at : at + 6] == b"070701"
        fields = [int(content[at + 6 + 8 * number : at + 14 + 8 * number], 16) for number in range(13)]
        size, name_size = fields[6], fields[11]
        name = content[at + 110 : at + 110 + name_size - 1].decode()
        assert content[at + 110 + name_size - 1] == 0
        start = at + -(-(110 + name_size) // 4) * 4
        if name == "TRAILER!!!":
            assert start == len(content)
            return found
        assert fields[2:4] == [0, 0]  # owner and group
        found[name] = (fields[1], content[start : start + size])
        at = start + -(-size // 4) * 4


def test_names_and_contents_of_any_length_come_back() -> None:
    entries = [cpio.directory("d"), *(cpio.program(f"d/{'n' * size}", b"x" * size) for size in range(1, 9))]
    found = read(cpio.archive(entries))
    assert list(found) == [each.name for each in entries]
    assert [len(content) for _, content in found.values()] == list(range(9))


def test_a_device_is_a_record_and_needs_no_rights() -> None:
    content = cpio.archive([cpio.character_device("dev/console", 5, 1)])
    assert read(content)["dev/console"] == (0o020600, b"")
    assert content[78:94] == b"0000000500000001"  # its major and minor number


def test_the_same_entries_give_the_same_bytes() -> None:
    entries = [cpio.program("init", b"#!/bin/sh\n")]
    assert cpio.archive(entries) == cpio.archive(list(entries))
