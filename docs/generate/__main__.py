"""`python docs/generate`: writes the pages and pictures that are made from the code. It prints those that changed."""

from __future__ import annotations

from pages import DOCS, stale

if __name__ == "__main__":
    for name, text in stale().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"wrote docs/{name}")
