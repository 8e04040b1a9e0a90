#!/bin/sh
# Builds draftwire's wheel, with the compiled part of the engine: build_wheel.sh SOURCE WHEELS
#
# Needs Python with venv and a C compiler. The compiled part chooses among processors' instructions when it runs, so the
# wheel works on any processor of the architecture.
set -eu
source=$1
wheels=$2

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
python3 -m venv "$build/venv"
"$build/venv/bin/python" -m pip install --quiet --no-cache-dir --constraint "$source/constraints.txt" hatchling
"$build/venv/bin/python" -m pip wheel --quiet --no-cache-dir --no-deps --no-build-isolation --wheel-dir "$wheels" "$source"

# Without a compiler the build goes through and the wheel is slow: not in an image.
case $(echo "$wheels"/draftwire-*.whl) in
  *-none-any.whl) echo "the wheel has no compiled part: is there a C compiler?" >&2; exit 1 ;;
esac
