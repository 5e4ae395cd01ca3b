"""The command line, as functions and as real processes."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import types

import pytest

from proxy import __version__, cli
from proxy.config import Config
from proxy.help import markdown, overview, serve_help
from proxy.options import OPTIONS

MINIMAL = ("--listen-port", "0", "--backend", "http://127.0.0.1:9")


class Recorder:
    """Stands in for a part that a subcommand starts; keeps what it was called with."""

    def __init__(self, code: int = 0) -> None:
        self.calls: list[object] = []
        self.code = code

    def __call__(self, argument: object) -> int:
        self.calls.append(argument)
        return self.code


def stand_in(monkeypatch: pytest.MonkeyPatch, module: str, function: str, code: int = 0) -> Recorder:
    recorder = Recorder(code)
    fake = types.ModuleType(module)
    setattr(fake, function, recorder)
    monkeypatch.setitem(sys.modules, module, fake)
    return recorder


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return stand_in(monkeypatch, "proxy.server", "run")


def config_from(*arguments: str) -> Config:
    return cli.read_command_line(arguments, "/tmp")


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert err.startswith("dd-proxy: ")
    return err.strip()


def test_serve_is_the_subcommand_when_none_is_given(server: Recorder) -> None:
    assert cli.main(list(MINIMAL)) == 0
    assert cli.main(["serve", *MINIMAL]) == 0
    assert server.calls[0] == server.calls[1]
    server.code = 131
    assert cli.main(list(MINIMAL)) == 131


def test_an_interrupt_before_the_server_runs_is_exit_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(config: Config) -> int:
        raise KeyboardInterrupt

    fake = types.ModuleType("proxy.server")
    fake.run = interrupted  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "proxy.server", fake)
    assert cli.main(list(MINIMAL)) == 130


def test_every_option_reaches_the_configuration(tmp_path: pathlib.Path) -> None:
    sample = {
        "backend": "http://[::1]:8", "allowed-host": "::1", "engine": "vllm", "log-level": "debug",
        "queue-metrics": "off", "retry-after-seconds": "none", "health-path": "/up",
        "listen-host": "::", "metrics-host": "::1",
        "request-id-header": "X-Id", "spool-dir": str(tmp_path), "stats-file": str(tmp_path / "s"),
        "max-request-body": "2KiB", "body-memory": "3KiB", "max-head": "4KiB",
    }  # fmt: skip
    token = tmp_path / "token"
    token.write_text("t")
    sample["admin-token-file"] = str(token)
    arguments: list[str] = []
    for option in OPTIONS:
        if option.name == "upstream-ca-file":
            continue  # needs a certificate: see the tests of the files
        arguments.append(f"--{option.name}")
        if option.metavar:
            arguments.append(sample.get(option.name, "7"))
    config, default = config_from(*arguments), config_from(*MINIMAL)
    same = {field for field in Config.__slots__ if getattr(config, field) == getattr(default, field)}
    assert same == {"upstream_ca_file"}
    assert (config.max_attempts, config.connect_timeout_s, config.max_head_bytes) == (7, 7.0, 4096)
    assert (config.retry_post, config.flush_head, config.admin_token) == (False, True, "t")


def test_the_command_line_wins_and_replaces_lists(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "proxy.toml"
    path.write_text(
        'listen_port = 1\nbackend = ["http://a:1", "http://b:1"]\n'
        'max_attempts = 2\nflush_head = true\nmax_head = "8KiB"\n'
    )
    config = config_from("--config", str(path))
    assert (config.listen_port, config.max_attempts, config.flush_head, config.max_head_bytes) == (1, 2, True, 8192)
    assert [backend.host for backend in config.backends] == ["a", "b"]
    config = config_from(
        "--max-attempts=5", "--config", str(path), "--backend", "http://c:1", "--backend", "http://d:1"
    )
    assert config.max_attempts == 5
    assert [backend.host for backend in config.backends] == ["c", "d"]


def test_a_bad_value_in_the_file_does_not_matter_when_the_command_line_replaces_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "proxy.toml"
    path.write_text("max_attempts = -1\n")
    assert config_from("--config", str(path), *MINIMAL, "--max-attempts", "1").max_attempts == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("--listen-port", "required")),
        (("--backend", "http://h:9"), ("--listen-port",)),
        (("--listen-port", "0"), ("--backend",)),
        (("serve", "--backend", "http://h:9"), ("--listen-port",)),
        (("--listen-port",), ("--listen-port", "missing")),
        (("--listen-port", "0", "--backend", ""), ("--backend", "empty")),
        (("--listen-port", "70000", "--backend", "http://h:9"), ("--listen-port", "70000", "65535")),
        ((*MINIMAL, "stray"), ("stray",)),
        ((*MINIMAL, "--no-such-option", "1"), ("--no-such-option", "nearest")),
        ((*MINIMAL, "--max-atempts", "1"), ("--max-atempts", "--max-attempts")),
        ((*MINIMAL, "--max", "1"), ("--max", "unknown option")),
        ((*MINIMAL, "--max-attempts", "many"), ("--max-attempts", "'many'", "whole number")),
        ((*MINIMAL, "--max-attempts", "0"), ("--max-attempts", "1 or more")),
        ((*MINIMAL, "--max-attempts", "2.0"), ("--max-attempts", "whole number")),
        ((*MINIMAL, "--connect-timeout", "soon"), ("--connect-timeout", "'soon'", "seconds")),
        ((*MINIMAL, "--connect-timeout", "0"), ("--connect-timeout", "more than 0")),
        ((*MINIMAL, "--queue-interval", "-1"), ("--queue-interval", "more than 0")),
        ((*MINIMAL, "--queue-interval", "inf"), ("--queue-interval", "inf")),
        ((*MINIMAL, "--drain-timeout", "nan"), ("--drain-timeout", "nan")),
        ((*MINIMAL, "--max-head", "-1"), ("--max-head", "'-1'")),
        ((*MINIMAL, "--max-request-body", "100 elephants"), ("--max-request-body", "unit")),
        ((*MINIMAL, "--retry-after-seconds", "never"), ("--retry-after-seconds", '"none"')),
        ((*MINIMAL, "--engine", "tgi"), ("--engine", "vllm")),
        ((*MINIMAL, "--flush-head=yes"), ("--flush-head",)),
        ((*MINIMAL, "--allowed-host", "node1"), ("--backend", "127.0.0.1")),
        ((*MINIMAL, "--config", "/no/such/file"), ("/no/such/file", "No such file")),
        ((*MINIMAL, "--spool-dir", "/no/such/folder"), ("--spool-dir", "does not exist")),
        (("sevre", *MINIMAL), ("sevre", "serve")),
        (("check",), ("check", "FILE")),
        (("check", "a", "b"), ("check", "FILE")),
    ],
)
def test_bad_usage_is_one_line_that_names_the_option(
    capsys: pytest.CaptureFixture[str], server: Recorder, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    line = refusal(capsys, *arguments)
    for word in words:
        assert word in line, line
    assert server.calls == []


def test_a_value_with_line_breaks_is_still_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    refusal(capsys, *MINIMAL, "--max-attempts", "a\nb")
    refusal(capsys, *MINIMAL, "a\nb")
    refusal(capsys, "a\nb")
    refusal(capsys, *MINIMAL, "--config", "a\nb")


def test_the_value_of_a_mistyped_option_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert "s3cret" not in refusal(capsys, *MINIMAL, "--admin-token=s3cret")
    assert "s3cret" not in refusal(capsys, *MINIMAL, "--admin-token", "s3cret")


def test_the_first_of_several_errors_in_a_file_says_how_to_see_them_all(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('listen_port = 0\nbackend = ["http://127.0.0.1:9"]\nmax_atempts = 2\nmax_idle = -4\n')
    line = refusal(capsys, "--config", str(path))
    assert line.startswith(f"dd-proxy: {path}: max_atempts: ")
    assert line.endswith(f"(and 1 more: run dd-proxy check {path})")


def test_what_the_file_leaves_out_is_told_as_an_option(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "part.toml"
    path.write_text("max_idle = 4\n")
    assert "--listen-port" in refusal(capsys, "--config", str(path), "--backend", "http://h:9")


def test_the_temporary_folder_of_the_environment_is_the_spool_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, server: Recorder, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert cli.main(list(MINIMAL)) == 0
    monkeypatch.setenv("TMPDIR", "")
    assert cli.main(list(MINIMAL)) == 0
    assert [config.spool_dir for config in server.calls if isinstance(config, Config)] == [str(tmp_path), "/tmp"]
    monkeypatch.setenv("TMPDIR", "/no/such/folder")
    assert "$TMPDIR" in refusal(capsys, *MINIMAL)


def test_check_prints_every_error_with_file_key_and_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        'listen_port = 0\nbackend = ["http://127.0.0.1:9"]\n'
        'max_attempts = "two"\nidle_timeot = 3\nmax_idle = -4\nspool_dir = "/no"\n'
    )
    assert cli.main(["check", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 4
    for key in ("max_attempts", "idle_timeot", "max_idle", "spool_dir"):
        assert [line for line in lines if line.startswith(f"{path}: {key}: ")], err


def test_check_of_a_good_file_says_ok(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "good.toml"
    path.write_text('listen_port = 0\nbackend = ["http://127.0.0.1:9"]\n')
    assert cli.main(["check", str(path)]) == 0
    assert capsys.readouterr() == (f"{path}: ok\n", "")


def test_check_of_bad_toml_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("listen_port = \n")
    assert cli.main(["check", str(path)]) == 2
    assert re.fullmatch(rf"{re.escape(str(path))}: .*line 1, column 15\)\n", capsys.readouterr().err)


@pytest.mark.parametrize("content", ["[job]\nname = 'x'\n", "[[deployment]]\nname = 'x'\n"])
def test_check_of_a_plan_is_the_runtime_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, content: str
) -> None:
    runtime = stand_in(monkeypatch, "runtime.cli", "main", 2)
    path = tmp_path / "plan.toml"
    path.write_text(content)
    assert cli.main(["check", str(path)]) == 2
    assert runtime.calls == [["check", str(path)]]


def test_other_subcommands_go_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = stand_in(monkeypatch, "runtime.cli", "main", 143)
    top, why = stand_in(monkeypatch, "proxy.top", "main"), stand_in(monkeypatch, "proxy.why", "main")
    for word in ("render", "submit", "run", "monitor", "exec", "status", "cancel"):
        assert cli.main([word, "x", "--help"]) == 143
    assert runtime.calls == [
        [word, "x", "--help"] for word in ("render", "submit", "run", "monitor", "exec", "status", "cancel")
    ]
    assert cli.main(["top", "a"]) == cli.main(["why", "b", "--c"]) == 0
    assert (top.calls, why.calls) == ([["a"]], [["b", "--c"]])


def test_help_of_serve_has_one_line_for_each_option_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--help"]) == cli.main([*MINIMAL, "-h"]) == 0
    assert capsys.readouterr().out == (serve_help() + "\n") * 2
    lines = serve_help().splitlines()
    assert all(len(line) <= 110 for line in lines)
    for option in OPTIONS:
        [line] = [line for line in lines if re.match(rf"  --{option.name}(?![\w-])", line)]
        assert line.endswith(f"[{option.default_text}]")


def test_the_overview_names_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == cli.main(["-h"]) == 0
    assert capsys.readouterr().out == (overview() + "\n") * 2
    for word in cli.SUBCOMMANDS:
        assert re.search(rf"^  {word}\b", overview(), re.MULTILINE), word
    assert cli.main(["check", "--help"]) == 0
    assert "check FILE" in capsys.readouterr().out


def test_the_table_for_the_readme_has_every_option() -> None:
    for option in OPTIONS:
        assert f"| `--{option.name}" in markdown()


def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "proxy", *arguments]
    return subprocess.run(command, capture_output=True, timeout=30, check=False, stdin=subprocess.DEVNULL)


def test_the_process_answers_version_and_bad_usage() -> None:
    version = run("--version")
    assert (version.returncode, version.stdout, version.stderr) == (0, f"dd-proxy {__version__}\n".encode(), b"")
    bad = run("--listen-port", "0", "--backend", "http://h:9", "--max-attempts", "many")
    assert (bad.returncode, bad.stdout) == (2, b"")
    assert bad.stderr.count(b"\n") == 1
    same = subprocess.run(
        [sys.executable, "-m", "proxy.cli", "--version"], capture_output=True, timeout=30, check=False
    )
    assert (same.returncode, same.stdout) == (0, version.stdout)


@pytest.mark.parametrize("arguments", [["--help"], ["top", "--help"], ["why", "--help"]])
def test_output_that_cannot_be_written_is_exit_1_without_a_traceback(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "proxy", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        )
    assert (result.returncode, result.stderr) == (1, b"")


def test_descriptors_that_were_closed_at_start_never_become_sockets() -> None:
    code = (
        "import os, socket\nfrom proxy.cli import main\nmain(['--version'])\n"
        "os.write(3, str(socket.socket().fileno()).encode())\n"
        "try: os.write(2, b'x')\nexcept OSError: os.write(3, b' unwritable')\n"
    )
    read_end, write_end = os.pipe()
    script = f"exec 3>&{write_end} 0<&- 1>&- 2>&-; exec '{sys.executable}' -c \"$1\""
    subprocess.run(["bash", "-c", script, "bash", code], pass_fds=[write_end], timeout=30, check=False)
    os.close(write_end)
    with open(read_end, "rb") as file:
        told = file.read().split()
    assert int(told[0]) > 2
    assert told[1] == b"unwritable"


def test_serve_loads_nothing_that_only_others_need() -> None:
    code = (
        "import sys\nfrom proxy.cli import read_command_line\n"
        "read_command_line(['--listen-port', '0', '--backend', 'http://h:9'], '/tmp')\n"
        "others = {'runtime', 'difflib', 'tomllib', 'ipaddress', 'ssl', 'proxy.help', 'rich'}\n"
        "print(sorted(others & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30, check=True)
    assert result.stdout == b"[]\n"
