"""Fixtures of tests of the compiled products."""

from tests.harness.kernels.gemm_kinds import kind

__all__ = ["kind"]
