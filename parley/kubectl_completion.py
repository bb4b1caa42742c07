"""The program `kubectl_complete-parley`: kubectl calls it for what may come next after `kubectl parley`, with the words that are typed so far.

The last word is the one to complete, empty where a new one begins. Each line is a choice, and what it means behind a tab; the last line is a
directive of cobra's. Source: kubectl, pkg/cmd/plugin/plugin_completion.go.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Final

import click
from click.shell_completion import ShellComplete

KEEP_ORDER_NO_FILES: Final = ":36"
"""ShellCompDirectiveNoFileComp and ShellCompDirectiveKeepOrder."""
FILES: Final = ":0"
"""ShellCompDirectiveDefault: the shell completes names of files."""
DIRECTORIES: Final = ":16"
"""ShellCompDirectiveFilterDirs."""
_DIRECTIVES: Final = {"file": FILES, "dir": DIRECTORIES}


def answer(command: click.Command, words: Sequence[str]) -> Iterator[str]:
    """The lines for kubectl. Faults of what is typed so far lead to no choices."""
    *typed, incomplete = words or ("",)
    found = ShellComplete(command, {}, "kubectl parley", "_KUBECTL_PARLEY_COMPLETE").get_completions(
        list(typed), incomplete
    )
    directive = KEEP_ORDER_NO_FILES
    for each in found:
        if each.type in _DIRECTIVES:
            directive = _DIRECTIVES[each.type]
        elif each.value:
            meaning = " ".join((each.help or "").split())
            yield f"{each.value}\t{meaning}" if meaning else str(each.value)
    yield directive


def main() -> None:
    """Print the choices."""
    from parley.program import kubectl_main  # noqa: PLC0415 - the commands import much

    for line in answer(kubectl_main, sys.argv[1:]):
        print(line)
