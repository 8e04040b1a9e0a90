"""Parses a Dockerfile: its stages, and the runtime settings of their images."""

import json
import re
import shlex
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from dockerfile_parse import DockerfileParser

from tests.harness.checkout import ROOT


@dataclass
class Stage:
    """One stage: its base image and its instructions with their values, in order."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Image:
    """The image of a stage, with the stages it is built on."""

    stages: tuple[Stage, ...]
    """From the lowest one to the stage itself."""

    def values(self, instruction: str) -> list[str]:
        """Returns the values of an instruction, those of lower stages first."""
        return [value for stage in self.stages for name, value in stage.instructions if name == instruction]

    @property
    def environment(self) -> dict[str, str]:
        pairs = [pair.partition("=") for value in self.values("ENV") for pair in shlex.split(value)]
        return {name: value for name, _, value in pairs}

    @property
    def entrypoint(self) -> list[str]:
        found: list[str] = json.loads(self.values("ENTRYPOINT")[-1])
        return found

    @property
    def arguments_here(self) -> list[str]:
        """Returns Python's arguments for what the entry point starts, in a checkout: `-m verifier_service`."""
        (command,) = self.entrypoint
        scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
        return ["-m", scripts[command].partition(".__main__:")[0]]

    @property
    def healthcheck(self) -> list[str]:
        """Returns the health check's command, which must be in exec form."""
        found = re.search(r" CMD (\[.*\])$", self.values("HEALTHCHECK")[-1])
        assert found is not None
        command: list[str] = json.loads(found[1])
        return command


class Dockerfile:
    """Parses a Dockerfile into its stages, by name."""

    def __init__(self, path: Path) -> None:
        self.stages: dict[str, Stage] = {}
        stage: Stage | None = None
        for entry in DockerfileParser(path=str(path)).structure:
            if entry["instruction"] == "FROM":
                base, _, name = entry["value"].split()
                stage = self.stages[name] = Stage(name, base)
            elif stage is not None and entry["instruction"] != "COMMENT":
                stage.instructions.append((entry["instruction"], entry["value"]))

    def image(self, target: str) -> Image:
        """Returns the image of a target."""
        stages = [self.stages[target]]
        while stages[0].base in self.stages:
            stages.insert(0, self.stages[stages[0].base])
        return Image(tuple(stages))
