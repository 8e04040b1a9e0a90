"""Splitting a model: the layers themselves are tested with real ranks in tests/end_to_end."""

import runpy
import subprocess
import sys
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from transformers.distributed import utils

from draftwire_core.engine.model.ranks import sharded_layers
from draftwire_core.engine.model.ranks.rank_group import RankGroup
from draftwire_core.engine.model.ranks.sharded_layers import split_on
from draftwire_core.engine.model.ranks.split_check import SplitError
from tests.harness.checkout import ROOT
from tests.harness.waiting import LONG_PATIENCE

OLDER = """
import transformers.modeling_utils
from transformers.distributed import utils
del utils.TransformersDeviceMesh  # as in transformers 5.17
import draftwire_core.engine.loading.self_test
import draftwire_core.engine.in_process
"""


def test_one_device_needs_no_mesh_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(utils, "TransformersDeviceMesh")
    runpy.run_path(sharded_layers.__file__)


def test_ranks_on_cpus_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(utils, "TransformersDeviceMesh")
    ranks = cast(RankGroup, SimpleNamespace(size=2))
    with (
        pytest.raises(SplitError, match="on CPUs needs a newer transformers than "),
        split_on(torch.device("cpu"), ranks),
    ):
        pass


@pytest.mark.slow
class TestProcess:
    """A process with transformers 5.17."""

    def test_one_device_needs_no_mesh_of_transformers(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", OLDER], cwd=ROOT, capture_output=True, text=True, timeout=LONG_PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
