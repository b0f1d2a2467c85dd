"""`kvwatch render`: writes the rendered files of a checkout."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "write alerts/, dashboards/ and the tables of the documentation from the code"
EPILOG = """\
examples:
  kvwatch render            in a checkout of kvwatch
  kvwatch render --check    is anything stale?
  kvwatch render --config alerts.toml
                            alerts with your labels, severities, links and objective; dashboards with your
                            matchers and runbooks

exit codes:
  0  written, or with --check: all files are current
  1  with --check: a file is stale
  2  not in a checkout of kvwatch, or FILE is invalid
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="list the stale files and write nothing")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="options for alerts and dashboards (TOML; keys: docs/reference/alerts.md)",
    )


def main(args: argparse.Namespace) -> int:
    from kvwatch.mixin import rendered_files

    return rendered_files.main(check=args.check, config=args.config)
