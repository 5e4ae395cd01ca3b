"""Writes the generated parts of the documentation: options of `serve`, index of pages, example script, kinds of faults.

Owns the marks between which they stand. `--check` only tells whether they are up to date; a test does that.

    python tools/readme.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

from proxy.help import markdown
from tools.fake.faults import KINDS
from tools.launch import ROOT

END = "<!-- end -->"


def parts() -> dict[Path, dict[str, str]]:
    """Return the generated text by file and mark."""
    script = (ROOT / "examples" / "single-file.sbatch").read_text()
    rows = [f"| `{kind}` | {text} |" for kind, text in KINDS.items()]
    faults = "\n".join(["| kind | what it does |", "| --- | --- |", *rows])
    docs = ROOT / "docs"
    pages = sorted(path for path in docs.glob("*.md") if path.name != "README.md")
    return {
        ROOT / "README.md": {"options": markdown(), "single-file.sbatch": f"```bash\n{script}```"},
        docs / "README.md": {"pages": "\n".join(f"- [{title(path)}]({path.name})" for path in pages)},
        docs / "fake-replicas.md": {"faults": faults},
    }


def title(page: Path) -> str:
    """Return the heading of a page."""
    return page.read_text().partition("\n")[0].lstrip("# ")


def filled(text: str, name: str, part: str) -> str:
    """Return a text with the part between its marks. Raises ValueError when the marks are missing."""
    mark = f"<!-- {name} -->"
    before, found, rest = text.partition(mark)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"the marks {mark} … {END} are missing")
    return f"{before}{mark}\n{part}\n{END}{after}"


def outdated() -> dict[Path, str]:
    """Return the files that are not up to date, with the text that they should have."""
    wanted: dict[Path, str] = {}
    for path, contents in parts().items():
        text = has = path.read_text()
        for name, part in contents.items():
            text = filled(text, name, part)
        if text != has:
            wanted[path] = text
    return wanted


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when something is out of date")
    check = parser.parse_args().check
    wanted = outdated()
    for path, text in wanted.items():
        print(f"{path.relative_to(ROOT)}: {'out of date: run python tools/readme.py' if check else 'written'}")
        if not check:
            path.write_text(text)
    return 1 if check and wanted else 0


if __name__ == "__main__":
    raise SystemExit(main())
