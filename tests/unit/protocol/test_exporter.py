"""Reading an exporter's page: whole names, labels, timestamps, and what is refused."""

import pytest

from protocol import exporter
from protocol.errors import RemoteProtocolError
from protocol.wire import Metrics

PAGE = b"node_load1 0.5\nnode_load5 0.25\n"


def _refused(page: bytes) -> set[str]:
    with pytest.raises(RemoteProtocolError) as caught:
        exporter.read_metrics(page, "node_")
    assert all(fault.rule for fault in caught.value.faults)
    return {fault.path for fault in caught.value.faults}


@pytest.mark.parametrize(
    "page",
    [
        PAGE,
        b"node_load5 0.25\nnode_load1 0.5",
        b"node_load1 0.5\r\nnode_load5 0.25\r\n",
        b"node_load1\t0.5\t1700000000000\nnode_load5   0.25   -1\n",
        b"# HELP node_load1 9\n# TYPE node_load1 gauge\n" + PAGE,
        b"node_load15 9\nnode_load1_total 9\nnode_load1foo 9\nnode_load50 9\n" + PAGE,
        b'node_load1{a="b c"} 0.5\nnode_load5{a="x",b="y"} 0.25 17\n',
        b'node_load1{a="}"} 0.5\nnode_load5{a="\\"} 9 "} 0.25\n',
        b'node_load1{a="\\\\"}0.5\nnode_load5{} 0.25\n',
        b"node_load1 0.5\nnode_load1 9\nnode_load5 +.25e0\nnode_load5 9\n",
        b"\xff\xfe\n" + PAGE + b"\xc3(\n",
    ],
)
def test_the_first_sample_of_each_whole_name_counts(page: bytes) -> None:
    assert exporter.read_metrics(page, "node_") == Metrics(0.5, 0.25)


def test_the_prefix_chooses_the_exporter() -> None:
    assert exporter.read_metrics(b"host_load1 1\nhost_load5 2\n" + PAGE, "host_") == Metrics(1.0, 2.0)


def test_loads_are_rounded_to_float32() -> None:
    read = exporter.read_metrics(b"node_load1 0.1\nnode_load5 16777217\n", "node_")
    assert read == Metrics(0.10000000149011612, 16777216.0)


@pytest.mark.parametrize(
    ("page", "missing"),
    [
        (b"", {"node_load1", "node_load5"}),
        (b"node_load1 1\n", {"node_load5"}),
        (b"node_load5 1\n", {"node_load1"}),
        (b"  node_load1 1\nnode_load5 1\n", {"node_load1"}),
        (b"#node_load1 1\nnode_load5 1\n", {"node_load1"}),
        (b"\x00" * 1000, {"node_load1", "node_load5"}),
    ],
)
def test_what_is_missing_is_named(page: bytes, missing: set[str]) -> None:
    assert _refused(page) == missing


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b" x",
        b" NaN",
        b" +Inf",
        b" -inf",
        b" 1e999",
        b" 3.5e38",
        b" 0x1p3",
        b" 1_0",
        b" 1,5",
        b" --1",
        b" " + b"9" * 10_000,
        b"{",
        b'{a="b',
        b'{a="b"}',
        b" 1e",
        b" .",
        b" \xff",
        b" \xd9\xa1",
    ],
)
def test_a_sample_without_a_finite_decimal_number_is_refused_by_name(value: bytes) -> None:
    assert _refused(b"node_load1" + value + b"\nnode_load5 1\n") == {"node_load1"}


def test_samples_are_summed_over_their_labels() -> None:
    page = b'hits{a="1"} 2\nhits{a="2 3"} 3 17\nhits_total 9\nmisses 4\n'
    assert exporter.samples(page, ["hits", "misses", "absent"]) == {"hits": 5.0, "misses": 4.0}


def test_a_name_asked_for_twice_is_counted_once() -> None:
    assert exporter.samples(b"hits 2\n", ["hits", "hits"]) == {"hits": 2.0}


def test_lines_of_other_names_may_be_anything() -> None:
    assert exporter.samples(b"other NaN\n}}{ \xff\nhits 2\n", ["hits"]) == {"hits": 2.0}


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"1e999", b"-1e999", b"x", b""])
def test_a_sample_that_is_not_finite_is_refused_by_name(value: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        exporter.samples(b"hits 1\nhits " + value + b"\n", ["hits"])
    assert [fault.path for fault in caught.value.faults] == ["hits"]


def test_a_sum_that_is_not_finite_is_refused_by_name() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        exporter.samples(b'hits{a="1"} 1e308\nhits{a="2"} 1e308\n', ["hits"])
    assert [fault.path for fault in caught.value.faults] == ["hits"]


def test_an_unclosed_label_set_costs_no_more_than_its_length() -> None:
    """A backtracking expression would never return here."""
    assert _refused(b'node_load1{a="' + b'\\"' * 20_000 + b"\nnode_load5 1\n") == {"node_load1"}
    assert _refused(b"node_load1{" + b'a="b",' * 20_000 + b"\nnode_load5 1\n") == {"node_load1"}
