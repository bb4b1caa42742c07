"""Which options of the scheduler's command line go together."""

import pytest
from click.testing import CliRunner

from scheduler.program import main

_ON = ("--kubernetes", "--lease", "ns/parley")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "exactly one of --cluster and --kubernetes"),
        (("--cluster", "c.yaml", *_ON), "exactly one of --cluster and --kubernetes"),
        (
            ("--cluster", "c.yaml", "--lease", "ns/x", "--advertise", "a"),
            "--lease, --advertise: only with --kubernetes",
        ),
        (("--kubernetes",), "--kubernetes needs --lease"),
        (("--kubernetes", "--lease", "x"), "must be NAMESPACE/NAME"),
        ((*_ON, "--state", "d"), "--state: not with --kubernetes"),
        ((*_ON, "--config", "c.yaml", "--config-map", "ns/c"), "only one of --config and --config-map"),
        ((*_ON, "--host", "0.0.0.0"), "is a wildcard"),
        ((*_ON, "--kubeconfig", "absent.yaml"), "the credentials for Kubernetes cannot be used"),
    ],
)
def test_options_that_do_not_go_together_are_said(arguments: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(main, arguments)

    assert done.exit_code == 2
    assert said in done.output
