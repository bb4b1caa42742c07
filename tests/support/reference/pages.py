"""All pages by their paths, and the parts that are missing in them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from parley.explain.core.evidence import CAUSE_ADVICE, CauseCode, advice_of
from protocol.advice import ADVICE, ERROR_ADVICE, Advice
from protocol.explaining import ProgressCode
from protocol.reasons import REJECTION_OF_LIMIT, ErrorCode, ReasonCode
from tests.support.codes import NO_CAUSES, PAGE_CODES
from tests.support.reference import commands, metrics, settings
from tests.support.reference.settings import docstrings
from tests.tidy.repository import ROOT

DIRECTORY: Final = ROOT / "docs" / "reference"
_MADE: Final = "<!-- Made from the programs by `make reference`. Change the code, not this page. -->\n"


def made() -> tuple[Mapping[str, str], tuple[str, ...]]:
    """The text of each page by its name, and the missing parts, each with its place."""
    faults: list[str] = []
    pages = {
        "reasons.md": _reasons(faults),
        "errors.md": _errors(faults),
        "metrics.md": _metrics(faults),
        "flags.md": _flags(faults),
        "settings.md": _settings(faults),
    }
    return pages, tuple(faults)


def written_to(pages: Mapping[str, str]) -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for name, text in pages.items():
        (DIRECTORY / name).write_text(text)


def _page(title: str, about: str, parts: Iterable[str]) -> str:
    return "\n".join((f"# {title}\n", _MADE, f"{about}\n", *parts)).rstrip() + "\n"


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def _advice(heading: str, advice: Advice) -> str:
    meaning = advice.meaning[0].upper() + advice.meaning[1:]
    return f"### `{heading}`\n\n{meaning}.\n\n**What to do.** {advice.remedy}\n"


def _progress(code: ProgressCode) -> str:
    told = _advice(code.value, advice_of(code.value))
    if code not in NO_CAUSES:
        return told
    instead = (
        "`migrating`" if code is ProgressCode.MIGRATION_STARTED else "what limits it, and has this as a note"
    )
    return f"{told}\nNever the cause of a size: `parley explain` names {instead}.\n"


def _limit(code: ReasonCode) -> str:
    return f"{_advice(code.value, ADVICE[code])}\n**Class.** {REJECTION_OF_LIMIT[code].value}\n"


def _reasons(faults: list[str]) -> str:
    codes = [code for code in ReasonCode if code is not ReasonCode.OTHER]
    faults += [
        f"protocol/advice.py: ADVICE has nothing for {code.value}" for code in codes if code not in ADVICE
    ]
    about = (
        "Why a permit is what it is: the codes of `limits` in `/v1/explain` and `/v1/decisions`, of the label `reason` of"
        " `parley_scheduler_permits_total`, and of the key `reason` in log lines. The limit that binds comes first. `parley explain NAMESPACE/NAME`"
        " shows them with their numbers. The class says who can help ([koordinator.md](../guides/koordinator.md#why-a-pod-was-rejected))."
    )
    causes = [code for code in CauseCode if code not in CAUSE_ADVICE]
    faults += [
        f"parley/explain/core/evidence.py: CAUSE_ADVICE has nothing for {code.value}" for code in causes
    ]
    parts = [
        "## Limits\n",
        *(_limit(code) for code in codes if code in ADVICE),
        "## What goes on\n\nCodes of decisions that are none yet, and of migrations.\n",
        *(_progress(code) for code in ProgressCode),
        "## Other causes\n\nWhat `parley explain` names where no limit binds: `cause.code` of its JSON output.\n",
        *(_advice(code.value, CAUSE_ADVICE[code]) for code in CauseCode if code in CAUSE_ADVICE),
    ]
    return _page("Reasons of decisions", about, parts)


def _errors(faults: list[str]) -> str:
    codes = [code for code in ErrorCode if code is not ErrorCode.OTHER]
    faults += [
        f"protocol/advice.py: ERROR_ADVICE has nothing for {code.value}"
        for code in codes
        if code not in ERROR_ADVICE
    ]
    meanings = docstrings(ErrorCode)
    faults += [
        f"protocol/reasons.py: {code.name} has no docstring" for code in codes if code.name not in meanings
    ]
    about = (
        "The `code` of an error that a page of ours answers with, as `application/problem+json`; agents get the same codes for their requests."
        " Mend the request as `detail` and `faults` say. The HTTP statuses of each page are in `/v1/openapi.json` of the scheduler."
    )
    parts = ["## Codes\n"]
    for code in codes:
        advice = ERROR_ADVICE.get(code)
        if advice is None:
            continue
        whose = "What to do" if code in PAGE_CODES else "As the answer to an agent's request"
        meaning = "" if code in PAGE_CODES else f"{advice.meaning[0].upper()}{advice.meaning[1:]}. "
        parts.append(
            f"### `{code.value}`\n\n{meanings.get(code.name, '')}\n\n**{whose}.** {meaning}{advice.remedy}\n"
        )
    return _page("Errors over HTTP", about, parts)


def _metrics(faults: list[str]) -> str:
    found = metrics.served()
    faults += [f"{each.name}: the metric has no help text" for each in found if not each.help]
    alerts = metrics.alerts_by_metric()
    written = dict(
        re.findall(
            r"^\| `(\w+)` \|[^|]*\|[^|]*\| (.*?) \|[^|]*\|$",
            (DIRECTORY / "metrics.md").read_text(),
            re.MULTILINE,
        )
    )
    rows = [
        (
            f"`{each.name}`",
            each.kind,
            ", ".join(f"`{label}`" for label in each.labels),
            written.get(each.name, each.help),
            ", ".join(
                f"[{alert}](../guides/runbook.md#{alert.lower()})" for alert in alerts.get(each.name, ())
            ),
        )
        for each in found
    ]
    about = (
        "What `GET /metrics` of the programs serves. Of a histogram there are `_bucket`, `_sum` and `_count`. The last column names the alerts that"
        " judge by a metric, with what to do. A meaning that is written here stays; that of a new metric is its help text."
    )
    return _page("Metrics", about, (_table(("Name", "Kind", "Labels", "Meaning", "Alerts"), rows),))


def _flags(faults: list[str]) -> str:
    parts = []
    for command in commands.every():
        parts.append(f"## `{command.path}`\n\n{command.about}\n")
        rows = [(f"`{option.names}`", option.default, option.help) for option in command.options]
        if rows:
            parts.append(_table(("Option", "Default", "Meaning"), rows))
        faults += [
            f"{command.path} {option.names}: the option has no help"
            for option in command.options
            if not option.help
        ]
        if not command.about:
            faults.append(f"{command.path}: the command has no help")
    about = "Every command with its options. Each has `-h` and `--help`, too."
    return _page("Commands and options", about, parts)


def _settings(faults: list[str]) -> str:
    parts = []
    for file in settings.FILES:
        rows = []
        for each in settings.of(file):
            if not each.meaning:
                faults.append(f"{each.declared_in}: the setting {each.path} has no docstring below it")
            rows.append((f"`{each.path}`", each.kind, each.default, each.meaning))
        parts.append(
            f"## {file.title}\n\n{file.about}\n\n" + _table(("Setting", "Kind", "Default", "Meaning"), rows)
        )
    about = "Every setting of every file. An amount of memory is a quantity such as `512Mi`, one of CPU such as `250m`. `[]` stands for each entry of a list."
    return _page("Settings", about, parts)
