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
        (("--cluster", "c.yaml", "--extender-port", "1"), "--extender-port: only with --kubernetes"),
        ((*_ON, "--extender-port", "1", "--mode", "permits"), "--extender-port: not with --mode permits"),
        ((*_ON, "--extender-host", "10.0.0.7"), "--extender-host: only with --extender-port"),
        (
            (*_ON, "--extender-port", "1", "--extender-host", "10.0.0.7"),
            "--extender-host 10.0.0.7: other machines are let in with certificates only",
        ),
        ((*_ON, "--extender-port", "1", "--extender-timeout", "0"), "0.0 is not in the range"),
        ((*_ON, "--kubeconfig", "absent.yaml"), "the credentials for Kubernetes cannot be used"),
    ],
)
def test_options_that_do_not_go_together_are_said(arguments: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(main, arguments)

    assert done.exit_code == 2
    assert said in done.output
