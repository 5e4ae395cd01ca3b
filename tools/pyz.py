"""Packs dd-proxy and all it needs into one executable file, by shiv.

Owns which Pythons the file runs on. Compiled dependencies carry the Python version in the names of their libraries, so
the libraries for several versions can lie side by side in one folder: the same file runs on each of them.

    python tools/pyz.py dist/dd-proxy.pyz
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
LIBRARIES = "*.cpython-*.so"

PREAMBLE = '''\
"""Say in one line when this file does not fit the machine, instead of failing in an import."""
import platform
import sys

FITS = {fits!r}
if (sys.platform, platform.machine(), "%d.%d" % sys.version_info[:2]) not in FITS:
    sys.exit(
        "dd-proxy.pyz: this is Python %d.%d on %s %s, but the file was built for %s on %s %s"
        % (*sys.version_info[:2], sys.platform, platform.machine(), ", ".join(f[2] for f in FITS), *FITS[0][:2])
    )
'''


def install(site: Path) -> None:
    """Install dd-proxy and its dependencies, those of `top` too, for the running Python into a folder."""
    subprocess.run([*PIP, "install", "--target", str(site), f"{ROOT}[top]"], check=True)


def compiled(site: Path) -> list[str]:
    """Return the requirements that have libraries of their own in a folder."""
    found = []
    for distribution in distributions(path=[str(site)]):
        if any(Path(str(file)).match(LIBRARIES) for file in distribution.files or ()):
            found.append(f"{distribution.metadata['Name']}=={distribution.version}")
    return sorted(found)


def add_version(site: Path, version: str, requirements: list[str], scratch: Path) -> bool:
    """Add the libraries for another Python version; tell whether there are any."""
    target = scratch / version
    machine = platform.machine()
    tags = [word for glibc in ("2_28", "2_17") for word in ("--platform", f"manylinux_{glibc}_{machine}")]
    legacy = ("--platform", f"manylinux2014_{machine}")
    options = ("--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", version)
    argv = [*PIP, "install", "--target", str(target), *options, *tags, *legacy, *requirements]
    if subprocess.run(argv, capture_output=True).returncode:
        return False
    for library in target.rglob(LIBRARIES):
        shutil.copy2(library, site / library.relative_to(target))
    return True


def pack(site: Path, output: Path, fits: list[tuple[str, str, str]], scratch: Path) -> None:
    """Write the file from a folder that holds all of it."""
    shutil.rmtree(site / "bin", ignore_errors=True)
    preamble = scratch / "fits.py"
    preamble.write_text(PREAMBLE.format(fits=fits))
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(output.name + ".new")
    shiv = [
        str(Path(sys.executable).with_name("shiv")),
        "--site-packages",
        str(site),
        "--entry-point",
        "proxy.cli:main",
    ]
    more = ["--preamble", str(preamble), "--reproducible", "--compressed", "--output-file", str(unfinished)]
    subprocess.run([*shiv, *more], check=True, capture_output=True)
    unfinished.chmod(0o755)
    unfinished.replace(output)


def build(output: Path) -> list[str]:
    """Build the file and return the Python versions that it runs on. Raises CalledProcessError."""
    own = "{}.{}".format(*sys.version_info[:2])
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        site = scratch / "site"
        install(site)
        requirements = compiled(site)
        others = [v for v in VERSIONS if v != own and add_version(site, v, requirements, scratch)]
        versions = sorted([own, *others], key=lambda v: int(v.partition(".")[2]))
        pack(site, output, [(sys.platform, platform.machine(), version) for version in versions], scratch)
    return versions


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", type=Path, help="the file to write")
    output: Path = parser.parse_args().output
    try:
        versions = build(output.resolve())
    except subprocess.CalledProcessError as error:
        print((error.stderr or b"").decode(errors="replace")[-2000:], file=sys.stderr)
        print(f"pyz: {error.cmd[0]} failed with exit code {error.returncode}", file=sys.stderr)
        return 1
    size = output.stat().st_size / 2**20
    print(f"{output}: {size:.1f} MiB, for Python {', '.join(versions)} on {sys.platform} {platform.machine()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
