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

HELP = "watch vLLM servers and serve metrics, findings and a page: the sidecar"
EPILOG = """\
examples:
  kvwatch run                                                   watches the server on localhost:8000
  kvwatch run --targets a=localhost:8000,b=localhost:8001 --port 9477
  kvwatch run --threshold kv_thrashing.per_request=0.3 --disable kv_near_full
  kvwatch run --alertmanager alertmanager:9093                  notifies an Alertmanager directly
  kvwatch run --vllm-log /var/log/vllm/server.log               also reports why the server did not start, or crashed
  KVWATCH_TARGETS=localhost:8000 KVWATCH_INTERVAL=2s kvwatch run
  kvwatch run --config kvwatch.toml --show-config               prints the settings in force, with their origin

Durations are in seconds, or written as 500ms, 30s, 5m, 1h. Flags override environment variables (KVWATCH_ and the
name of the flag), and these override the file. Secrets come only from the environment or from files. kvwatch starts
with or without vLLM. For a Service named kvwatch, Kubernetes sets KVWATCH_PORT=tcp://…; kvwatch ignores that.

SIGHUP reloads the settings, and the token and certificate files. Unchanged servers are watched without a gap. If a
setting is invalid, nothing changes; kvwatch logs and counts the error.

exit codes:
  0  stopped by SIGTERM or Ctrl-C
  1  serving failed
  2  the address can't be used, or a setting is invalid
"""


def add(parser: argparse.ArgumentParser) -> None:
    options.add_settings(parser.add_argument_group("settings"))
    parser.add_argument(
        "--show-config", action="store_true", help="print the settings in force as TOML, and exit"
    )
    parser.add_argument("--json", action="store_true", help="with --show-config: print them as JSON")


def main(args: argparse.Namespace) -> int:
    settings = options.load_settings(options.setting_values(args))
    if args.show_config:
        if args.json:
            print_json(provenance(settings))
        else:
            say(show(settings), end="")
        return 0
    from kvwatch.sidecar.service import serve

    return asyncio.run(serve(settings, read=lambda: load(options.setting_values(args)), follow=_follow_log))


def _follow_log(file: Path) -> Tail:
    from kvwatch.logs.tail import Tail

    return Tail(file)
