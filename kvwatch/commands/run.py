"""`kvwatch run`: the sidecar."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.commands import options
from kvwatch.commands.output import print_json, say
from kvwatch.settings import load, show
from kvwatch.settings.provenance import provenance

if TYPE_CHECKING:
    from kvwatch.logs.tail import Tail

HELP = "watch vLLM servers and serve what is found: the sidecar"
EPILOG = """\
examples:
  kvwatch run                                                   the server on localhost:8000
  kvwatch run --targets a=localhost:8000,b=localhost:8001 --port 9477
  kvwatch run --threshold kv_thrashing.per_request=0.3 --disable kv_near_full
  kvwatch run --alertmanager alertmanager:9093                  tells an Alertmanager directly of what fires
  kvwatch run --vllm-log /var/log/vllm/server.log               says why the server did not start, or why it ended
  KVWATCH_TARGETS=localhost:8000 KVWATCH_INTERVAL=2s kvwatch run
  kvwatch run --config kvwatch.toml --show-config               what is in force, as TOML, and where it comes from

Durations are seconds, or as 500ms, 30s, 5m, 1h. Options come before the environment (KVWATCH_ and the option's name),
that before the file. Secrets are taken from the environment or from files only. kvwatch starts whether vLLM is there
or not. KVWATCH_PORT=tcp://… is what Kubernetes sets for a Service named kvwatch; it is ignored.

SIGHUP has it read the settings anew, files with tokens and certificates too: servers are added, removed and changed,
and the others are watched on. What is wrong changes nothing, and is logged and counted.

exit codes:
  0  stopped by SIGTERM or Ctrl-C
  1  serving broke down
  2  the address can't be used, or a setting is wrong
"""


def add(parser: argparse.ArgumentParser) -> None:
    options.add_settings(parser.add_argument_group("settings"))
    parser.add_argument(
        "--show-config", action="store_true", help="print the settings in force as TOML, and end"
    )
    parser.add_argument("--json", action="store_true", help="with --show-config: print them as JSON")


def main(args: argparse.Namespace) -> int:
    settings = options.load_noted(options.given(args))
    if args.show_config:
        if args.json:
            print_json(provenance(settings))
        else:
            say(show(settings), end="")
        return 0
    from kvwatch.sidecar.service import serve

    return asyncio.run(serve(settings, read=lambda: load(options.given(args)), follow=_follow))


def _follow(file: Path) -> Tail:
    """What is read of a server's log as it grows."""
    from kvwatch.logs.tail import Tail

    return Tail(file)
