"""The config file and the files that options name."""

from __future__ import annotations

import pathlib

import pytest
import trustme

from proxy.config import Config
from proxy.config_files import build_config, load_toml

MINIMAL: dict[str, object] = {"listen_port": 0, "backend": ["http://127.0.0.1:9"]}


def built(**values: object) -> Config:
    config, errors = build_config({**MINIMAL, **values}, "test", "/tmp")
    assert config is not None, [str(error) for error in errors]
    return config


def reason_of(key: str, **values: object) -> str:
    config, errors = build_config({**MINIMAL, **values}, "test", "/tmp")
    assert config is None
    assert [error.key for error in errors] == [key]
    return errors[0].reason


def test_a_good_file_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "proxy.toml"
    path.write_text('listen_port = 0\nbackend = ["http://127.0.0.1:9"]\n')
    assert load_toml(str(path)) == (MINIMAL, [])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a = 1\nb = x y\n", "line 2, column 5"),
        (b'a = "\xff"\n', "UTF-8 (byte 6)"),
        (b"a = " + b"[" * 5000, "not valid TOML"),
    ],
)
def test_bad_toml_says_where(tmp_path: pathlib.Path, content: bytes, reason: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    values, errors = load_toml(str(path))
    assert values == {}
    assert len(errors) == 1
    assert reason in str(errors[0])
    assert str(path) in str(errors[0])
    assert "\n" not in str(errors[0])


def test_a_file_that_cannot_be_read_says_why(tmp_path: pathlib.Path) -> None:
    assert "No such file" in str(load_toml(str(tmp_path / "none.toml"))[1][0])
    assert "directory" in str(load_toml(str(tmp_path))[1][0])


def test_the_token_is_read_and_stripped(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "token"
    path.write_text("  s3cret\n")
    config = built(admin_token_file=str(path))
    assert config.admin_token == "s3cret"
    assert built().admin_token is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b" \n", "empty"),
        (b"two words", "blanks"),
        (b"a\nb", "one line"),
        (b"\xc3\xa4", "ASCII"),
        (b"x" * 5000, "longer"),
    ],
)
def test_a_file_without_one_token_is_refused_and_not_shown(tmp_path: pathlib.Path, content: bytes, reason: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    told = reason_of("admin_token_file", admin_token_file=str(path))
    assert reason in told
    assert "two" not in told


def test_a_missing_file_is_told_with_its_key(tmp_path: pathlib.Path) -> None:
    missing = str(tmp_path / "none")
    assert "No such file" in reason_of("admin_token_file", admin_token_file=missing)
    assert "No such file" in reason_of("upstream_ca_file", upstream_ca_file=missing)
    assert "does not exist" in reason_of("spool_dir", spool_dir=missing)
    assert "folder does not exist" in reason_of("stats_file", stats_file=str(tmp_path / "none" / "stats.json"))


def test_a_folder_and_a_file_are_not_taken_for_each_other(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    assert "not a folder" in reason_of("spool_dir", spool_dir=str(file))
    assert "is a folder" in reason_of("stats_file", stats_file=str(tmp_path))
    assert built(stats_file=str(file), spool_dir=str(tmp_path)).stats_file == str(file)


def test_a_ca_file_must_hold_a_certificate(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("no certificate here")
    assert "no certificate" in reason_of("upstream_ca_file", upstream_ca_file=str(path))
    trustme.CA().cert_pem.write_to_path(str(path))
    assert built(upstream_ca_file=str(path)).upstream_ca_file == str(path)


def test_errors_of_values_and_of_files_are_told_together(tmp_path: pathlib.Path) -> None:
    values = {**MINIMAL, "max_idle": -1, "stats_file": 3, "spool_dir": "", "admin_token_file": str(tmp_path / "none")}
    _, errors = build_config(values, "test", "/tmp")
    assert sorted(error.key for error in errors) == ["admin_token_file", "max_idle", "spool_dir", "stats_file"]


def test_the_spool_folder_is_the_given_default_unless_named(tmp_path: pathlib.Path) -> None:
    config, _ = build_config(MINIMAL, "test", str(tmp_path))
    assert config is not None
    assert config.spool_dir == str(tmp_path)
