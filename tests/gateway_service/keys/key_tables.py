"""Files of named keys as tests write them: each key is made from its name."""

from pathlib import Path


def secret(name: str) -> str:
    return f"{name}-0123456789abcdef"


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret(name)}"}


def write(path: Path, **tables: str) -> Path:
    """Writes the file of keys, in place of the old one."""
    new = path.with_suffix(".new")
    new.write_text("".join(f'[{name}]\nkey = "{secret(name)}"\n{table}\n' for name, table in tables.items()))
    new.replace(path)
    return path


def spoil(path: Path) -> None:
    """Leaves the file half written."""
    path.write_text("[alice")
