#!/bin/sh
# Builds draftwire's wheels, those of the SDK and of the services with the compiled part: build_wheel.sh SOURCE WHEELS [VERSION]
#
# SOURCE has no git to derive the version from; without VERSION the wheels get that of an unknown source tree.
# Needs Python with venv and a C compiler. The compiled part selects the processor's instructions at run time, so the
# wheels work on any processor of the architecture.
set -eu
source=$1
wheels=$2
version=${3:-}

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
python3 -m venv "$build/venv"
python3 - "$source/pyproject.toml" > "$build/requirements.txt" <<'PYTHON'
import sys
import tomllib

with open(sys.argv[1], "rb") as file:
    print("\n".join(tomllib.load(file)["build-system"]["requires"]))
PYTHON
"$build/venv/bin/python" -m pip install --quiet --no-cache-dir --constraint "$source/constraints.txt" \
  --requirement "$build/requirements.txt"
[ -z "$version" ] || export SETUPTOOLS_SCM_PRETEND_VERSION_FOR_DRAFTWIRE="$version"
for project in "$source/sdk" "$source/services"; do
  "$build/venv/bin/python" -m pip wheel --quiet --no-cache-dir --no-deps --no-build-isolation --wheel-dir "$wheels" "$project"
done

# Without a compiler the build succeeds but the wheel is slow, which an image must not be.
case $(echo "$wheels"/draftwire_services-*.whl) in
  *-none-any.whl) echo "the wheel has no compiled part: is there a C compiler?" >&2; exit 1 ;;
esac
