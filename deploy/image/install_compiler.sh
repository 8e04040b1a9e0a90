#!/bin/sh
# Installs a C compiler if an image is for GPUs, where Triton compiles kernels: install_compiler.sh EXTRAS
#
# EXTRAS as for install_packages.sh. Python's headers are part of the Python image.
set -eu
case ",$1," in
  *,gpu,*)
    apt-get update
    apt-get install --yes --no-install-recommends gcc libc6-dev
    rm -rf /var/lib/apt/lists/*
    ;;
esac
