"""`kvwatch render`: everything in a checkout that is made from the code."""

from __future__ import annotations

import argparse

HELP = "write the tables of the README from the code (for developers)"
EPILOG = """\
examples:
  kvwatch render            in a checkout of kvwatch
  kvwatch render --check    is anything stale?

exit codes:
  0  written, or with --check: all is current
  1  with --check: something is stale
  2  this is no checkout of kvwatch
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="write nothing, say what is stale")


def main(args: argparse.Namespace) -> int:
    from kvwatch.mixin import render

    return render.main(check=args.check)
