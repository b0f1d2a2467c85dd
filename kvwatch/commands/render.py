"""`kvwatch render`: everything in a checkout that is made from the code."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "write alerts/, dashboards/ and the tables of the README from the code"
EPILOG = """\
examples:
  kvwatch render            in a checkout of kvwatch
  kvwatch render --check    is anything stale?
  kvwatch render --config alerts.toml
                            alerts with labels, severities, links and an objective of your own; dashboards
                            with your matchers and runbooks

exit codes:
  0  written, or with --check: all is current
  1  with --check: something is stale
  2  this is no checkout of kvwatch, or the file can't be used
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="write nothing, say what is stale")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="what alerts and dashboards should be like (TOML; README: Alerts)",
    )


def main(args: argparse.Namespace) -> int:
    from kvwatch.mixin import rendered_files

    return rendered_files.main(check=args.check, config=args.config)
