"""Two looks at the folder of plugins in, what became of the paths out."""

import pytest

from agent.node.plugins.core.worlds import SocketIdentity, changes, is_looked_at

OLD = SocketIdentity(device=1, inode=7, born_ns=10)
NEW = SocketIdentity(device=1, inode=6, born_ns=11)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param({}, {"/r/b": OLD, "/r/a": OLD}, [("/r/a", OLD), ("/r/b", OLD)], id="come, in order"),
        pytest.param(
            {},
            {"/r/a-1.10": NEW, "/r/a-1.9": OLD},
            [("/r/a-1.9", OLD), ("/r/a-1.10", NEW)],
            id="the newest last",
        ),
        pytest.param({"/r/a": OLD}, {"/r/a": OLD}, [], id="nothing, such as after chmod and touch"),
        pytest.param({"/r/a": OLD}, {}, [("/r/a", None)], id="gone"),
        pytest.param(
            {"/r/b": OLD}, {"/r/a": OLD}, [("/r/b", None), ("/r/a", OLD)], id="renamed: first gone, then come"
        ),
        *(
            pytest.param({"/r/a": OLD}, {"/r/a": new}, [("/r/a", new)], id=f"replaced, {how}")
            for how, new in (
                ("another inode", SocketIdentity(1, 8, 10)),
                ("the same inode once more", SocketIdentity(1, 7, 11)),
                ("another file system, such as a mount over the folder", SocketIdentity(2, 7, 10)),
            )
        ),
    ],
)
def test_what_became_of_the_paths(
    before: dict[str, SocketIdentity],
    after: dict[str, SocketIdentity],
    expected: list[tuple[str, SocketIdentity | None]],
) -> None:
    assert list(changes(before, after)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.sock", True),
        ("c.sock.", True),
        ("é日", True),
        (".a.sock", False),
        ("..b", False),
        ("\udcff.sock", False),
    ],
)
def test_hidden_names_and_names_that_are_no_text_are_not_looked_at(name: str, expected: bool) -> None:
    assert is_looked_at(name) == expected
