"""The files behind a configuration: the config file itself, and those that options name (token, CAs, folders).

Owns every look at the file system that configuration needs; what values mean is decided in proxy.config.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping

from proxy.config import Config, ConfigError, parse_options
from proxy.kinds import show


def load_toml(path: str) -> tuple[dict[str, object], list[ConfigError]]:
    """Return the values in a TOML file, or none and the one error that says why it cannot be read."""
    # Imported here: a proxy configured by its command line alone never needs it.
    import tomllib

    try:
        with open(path, "rb") as file:
            return tomllib.load(file), []
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 (byte {error.start + 1})"
    except tomllib.TOMLDecodeError as error:
        reason = f"is not valid TOML: {error}"
    except RecursionError:
        reason = "is not valid TOML: nested too deeply"
    return {}, [ConfigError(path, "", reason)]


def build_config(values: Mapping[str, object], source: str, temp_dir: str) -> tuple[Config | None, list[ConfigError]]:
    """Return the configuration that TOML values give, with the files that they name read or checked, or every error.

    `temp_dir` is the spool folder where the values name none.
    """
    values = {"spool_dir": temp_dir, **values}
    config, errors = parse_options(values, source)
    broken = {error.key for error in errors}
    found: dict[str, str | None] = {}
    for key, check in _CHECKS.items():
        path = values.get(key)
        if key in broken or not isinstance(path, str):
            continue
        try:
            found[key] = check(path)
        except OSError as error:
            errors.append(ConfigError(source, key, f"{show(path)} cannot be used: {error.strerror}"))
        except ValueError as error:
            errors.append(ConfigError(source, key, f"{show(path)} {error}"))
    if config is None or errors:
        return None, errors
    return dataclasses.replace(config, admin_token=found.get("admin_token_file")), []


def _check_folder(path: str) -> None:
    if not os.path.isdir(path):
        raise ValueError("is not a folder" if os.path.exists(path) else "does not exist")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ValueError("is not writable")


def _check_target(path: str) -> None:
    """Raise ValueError when no file can be written there: found out now, not when the process ends."""
    if os.path.isdir(path):
        raise ValueError("is a folder, not a file")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise ValueError("cannot be written: its folder does not exist")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise ValueError("is not writable")


def _check_cas(path: str) -> None:
    # Imported here: only https backends with CAs of their own need it.
    import ssl

    with open(path, "rb"):
        pass  # the reason that ssl gives for a file it cannot read does not name the file system's
    try:
        ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        raise ValueError("holds no certificate in PEM form") from None


def _read_token(path: str) -> str:
    with open(path, "rb") as file:
        raw = file.read(4096 + 1)
    token = raw.decode("latin-1").strip()
    if not token:
        raise ValueError("is empty: it must hold the token")
    if len(raw) > 4096:
        raise ValueError("is longer than a token may be (4096 bytes)")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("must hold one line of printable ASCII without blanks")
    return token


_CHECKS: dict[str, Callable[[str], str | None]] = {
    "spool_dir": _check_folder,
    "upstream_ca_file": _check_cas,
    "admin_token_file": _read_token,
    "stats_file": _check_target,
}
