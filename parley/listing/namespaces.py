"""Which namespace is meant: the options of commands about VMs, and the names that they take. Loads nothing slow."""

from typing import Any

import click

from parley.reach.ports import Command, Way


def namespace_options(command: Command) -> Command:
    """The command with `--namespace` and `--all-namespaces`; `chosen_namespace` reads them."""
    every = click.option("--all-namespaces", "-A", is_flag=True, help="In all namespaces.")
    one = click.option("--namespace", "-n", help="In this namespace.")
    return one(every(command))


def chosen_namespace(way: Way, options: dict[str, Any]) -> str | None:
    """The namespace that is meant, None for all; takes its options out of those of the way. Raises `click.UsageError` if both are given."""
    namespace, is_every = options.pop("namespace"), options.pop("all_namespaces")
    if is_every and namespace is not None:
        raise click.UsageError("--namespace and --all-namespaces exclude each other")
    return None if is_every else namespace or way.namespace(options)


def full_name(way: Way, vm: str, namespace: str | None, options: dict[str, Any]) -> str:
    """`NAMESPACE/NAME` of the VM on a command line, whose `--namespace` is `namespace`. Raises `click.UsageError` if the two contradict
    each other."""
    if "/" not in vm:
        return f"{namespace or way.namespace(options)}/{vm}"
    if namespace is not None and namespace != vm.partition("/")[0]:
        raise click.UsageError(f"{vm} names a namespace, and --namespace another one: {namespace}")
    return vm
