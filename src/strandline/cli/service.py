"""`strand service print`: a unit for systemd, or a property list for launchd, that keeps a lake running.

They are printed and not installed: where such a file belongs, and what it takes to put it there, differs from machine
to machine.
"""

from __future__ import annotations

import getpass
import os
import plistlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from strandline.cli import output
from strandline.cli.session import session_of

What = Literal["up", "serve", "worker"]

SYSTEMD = """\
# {where}
[Unit]
Description=Strandline ({what}) on {lake}
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
NotifyAccess=main
User={user}
WorkingDirectory={lake}
ExecStart={command}
Restart=always
RestartSec=2
# It stops within 10 s (a server within 25, when requests are under way); what is left then is finished by the next
# start.
TimeoutStopSec=40
KillMode=mixed
Environment=PATH={path}
# Environment=OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=full

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class ServiceFile:
    """What a service manager of the system reads."""

    name: str
    text: str


def register(app: typer.Typer) -> None:
    """Put this command into the tree."""
    group = typer.Typer(help="Keep a lake running on this machine.", no_args_is_help=True, rich_markup_mode=None)
    group.callback()(lambda: None)
    group.command("print", short_help="Print what systemd or launchd needs to keep a lake running.")(print_)
    app.add_typer(group, name="service")


def print_(
    context: typer.Context,
    systemd: Annotated[bool, typer.Option("--systemd", help="A unit for systemd.")] = False,
    launchd: Annotated[bool, typer.Option("--launchd", help="A property list for launchd.")] = False,
    what: Annotated[What, typer.Option("--run", help="Both, or one of the two.")] = "up",
) -> None:
    """Print what systemd or launchd needs to keep this lake's server and worker running.

    \b
    Example: strand service print --systemd
    """
    from strandline.config import find_root

    if systemd == launchd:
        raise typer.BadParameter("say --systemd or --launchd", ctx=context)
    session = session_of(context)
    root = find_root(Path(session.lake) if session.lake is not None else None)
    name = f"strandline-{root.name}"
    command = [*_strand(), "--lake", str(root), "--log-format", "json", what]
    text = _unit(name, command, root, what) if systemd else _plist(name, command, root)
    session.emit(ServiceFile(name, text), lambda: output.write(text.encode()))


def _strand() -> list[str]:
    """How this very strand is started."""
    beside = Path(sys.executable).with_name("strand")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "strandline"]


def _unit(name: str, command: list[str], root: Path, what: str) -> str:
    return SYSTEMD.format(
        where=f"/etc/systemd/system/{name}.service; then: systemctl enable --now {name}",
        what=what,
        lake=_escaped(str(root)),
        user=getpass.getuser(),
        command=" ".join(map(_quoted, command)),
        path=_escaped(os.environ.get("PATH", "/usr/bin:/bin")),
    )


def _escaped(text: str) -> str:
    """systemd takes a percent sign for the beginning of a specifier."""
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    plain = _escaped(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{plain}"' if " " in plain else plain


def _plist(name: str, command: list[str], root: Path) -> str:
    logs = root / "strandline.log"
    document = {
        "Label": f"strandline.{name.removeprefix('strandline-')}",
        "ProgramArguments": command,
        "WorkingDirectory": str(root),
        "RunAtLoad": True,
        "KeepAlive": True,
        "ExitTimeOut": 40,
        "StandardErrorPath": str(logs),
        "StandardOutPath": str(logs),
        "EnvironmentVariables": {"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
    }
    return plistlib.dumps(document).decode()
