#!/bin/sh
# Installs draftwire's wheels into an environment that has their dependencies already: install_wheel.sh WHEELS ENVIRONMENT
set -eu
wheels=$1
environment=$2

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools/venv"
"$tools/venv/bin/python" -m pip --python "$environment/bin/python" install --quiet --no-cache-dir --no-deps --no-index \
  "$wheels"/*.whl
"$tools/venv/bin/python" -m pip --python "$environment/bin/python" check
