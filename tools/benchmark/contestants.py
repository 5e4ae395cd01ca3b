"""Who is measured: dd-proxy as users run it, nginx, and a byte pipe. Each is a recipe that starts one proxy."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from tools.benchmark.host import Missing, free_port
from tools.launch import DD_PROXY, ask

HERE = Path(__file__).resolve().parent
PRODUCT = "dd-proxy"
CANNOT_RETRY = ("pipe",)


@dataclass(frozen=True, slots=True)
class Launch:
    """Where a proxy that is started listens, the ports that it talks to, and a folder of its own."""

    port: int
    backends: Sequence[int]
    clients: int  # connections that it must be able to hold
    folder: Path
    refusing: int = 0  # so many of the backends, the first ones, answer 429


def dd_proxy(launch: Launch) -> list[str]:
    """Give the command for dd-proxy with its defaults."""
    backends = [word for port in launch.backends for word in ("--backend", f"http://127.0.0.1:{port}")]
    return [*DD_PROXY, "serve", "--listen-port", str(launch.port), *backends]


def pipe(launch: Launch) -> list[str]:
    """Give the command for the byte pipe."""
    return [sys.executable, str(HERE / "pipe.py"), str(launch.port), *map(str, launch.backends)]


def nginx(launch: Launch) -> list[str]:
    """Write nginx's configuration and give its command."""
    folder = launch.folder
    kept = max(256, 2 * len(launch.backends))
    temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in _NGINX_FOLDERS)
    retry = "proxy_next_upstream error timeout http_429 non_idempotent;" if launch.refusing else ""
    user = "user root;" if os.geteuid() == 0 else ""  # its worker must be able to write into the folder
    config = folder / "nginx.conf"
    config.write_text(f"""{user} daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log warn;
events {{ worker_connections {2 * launch.clients + 1000}; }}
http {{
  access_log off; {temporary}
  client_max_body_size 100m; keepalive_requests 100000000; keepalive_timeout 65s;
  upstream replicas {{ least_conn; {_servers(launch)} keepalive {kept}; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{launch.port} backlog=4096;
    location / {{
      proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 3600s; {retry}
    }}
  }}
}}
""")
    return [_nginx(), "-p", str(folder), "-e", f"{folder}/error.log", "-c", str(config)]


def _servers(launch: Launch) -> str:
    # It closes the connection of every 429, so that dialling makes the refusing backend look busy: a weight lets it be
    # asked first nevertheless.
    options = [" weight=1000"] * launch.refusing + [""] * (len(launch.backends) - launch.refusing)
    pairs = zip(launch.backends, options, strict=True)
    return " ".join(f"server 127.0.0.1:{port} max_fails=0{option};" for port, option in pairs)


_NGINX_FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def _nginx() -> str:
    return program("nginx") or "nginx"


def program(name: str) -> str | None:
    """Find a program, also where only root looks for it."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


RECIPES: dict[str, Callable[[Launch], list[str]]] = {PRODUCT: dd_proxy, "nginx": nginx, "pipe": pipe}


class Running:
    """A proxy that is started; leaving the context ends it."""

    def __init__(self, name: str, launch: Launch, prefix: Sequence[str]) -> None:
        self.name = name
        self.port = launch.port
        self.log = launch.folder / "log"
        with self.log.open("wb") as log:
            argv = [*prefix, *RECIPES[name](launch)]
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def answers(self) -> bool:
        """Tell whether a request comes through. Raises RuntimeError when the process has ended."""
        self.check()
        with contextlib.suppress(OSError, HTTPException):
            return ask(self.port, "POST", "/v1/chat/completions", {"model": "m"}, timeout_s=3.0)[0] == 200
        return False

    def check(self) -> None:
        """Raise RuntimeError when the process has ended."""
        if self.process.poll() is not None:
            said = self.log.read_bytes()[-400:].decode(errors="replace")
            raise RuntimeError(f"{self.name} ended with exit code {self.process.returncode}: {said}")


def launch(folder: Path, backends: Sequence[int], clients: int, refusing: int = 0) -> Launch:
    """Prepare the start of a proxy on a port that is free now. Raises OSError when the folder cannot be made."""
    folder.mkdir(parents=True, exist_ok=True)
    return Launch(free_port(), backends, clients, folder, refusing)


def need(name: str, package: str) -> str:
    """Find a program or raise Missing with the package that has it."""
    found = program(name)
    if found is None:
        raise Missing(f"{name} is not installed: on Debian, apt-get install {package}")
    return found
