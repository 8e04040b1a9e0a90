#!/bin/sh
# The first ten minutes on a GPU: OUT=DIRECTORY sh scripts/first_gpu.sh
#
# DEVICE=cpu rehearses it without one: the bundled pair takes the place of the large models, and no figure means anything.
#
# Needs Python with torch and transformers, and no network. Each part has a limit of its own, which add up to 590 s, and a
# file of its own in $OUT; every figure is in it as soon as it is found, the most wanted ones first, and $OUT/results has them
# as data, also those of a part that its limit ends. The parts are in an order in which each one shows whether the next makes
# sense. docs/gpu.md says what to compare the figures with.
#
# Before, where there is a network: python scripts/release/service_wheels.py wheels --python 3.12    (the Python of this machine)
# Without these wheels, or packages that are installed, the last part fails.
set -u
cd "$(dirname "$0")/.."
OUT=${OUT:-first-gpu}
DEVICE=${DEVICE:-cuda}
SHAPE=llama-8b
[ "$DEVICE" = cpu ] && SHAPE=pair
mkdir -p "$OUT"
RESULTS="$OUT/results"
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD:$PWD/sdk"

# part SECONDS NAME COMMAND...
part() {
  limit=$1
  name=$2
  shift 2
  echo "== $name"
  timeout -k 3 "$limit" "$@" > "$OUT/$name.log" 2>&1
  echo "exit $?"
  tail -n 25 "$OUT/$name.log"
}

nvidia-smi
command -v gcc
python3 -c 'import sys, torch, transformers; print(sys.version, torch.__version__, transformers.__version__)'
if [ -d wheels ]; then
  packages=$(mktemp -d)
  for wheel in wheels/*.whl; do python3 -m zipfile -e "$wheel" "$packages"; done
  export PYTHONPATH="$PYTHONPATH:$packages"
fi

part 60  1-probe       python3 -m benchmarks.gpu.probe "$DEVICE"
# Whether products have the same bits for any number of rows once cuBLAS cannot split sums.
part 35  2-no-split-k  env CUBLAS_WORKSPACE_CONFIG=:16:8 CUBLASLT_WORKSPACE_SIZE=1 python3 -m benchmarks.gpu.probe "$DEVICE"
# The first one with models also compiles the kernels.
part 90  3-small       python3 -m benchmarks.gpu --device "$DEVICE" --target-parameters 400M --draft-parameters 60M --prompts 2 \
  --tokens 24 --runs 5 --part-seconds 60 --json --results "$RESULTS"
part 175 4-8B          python3 -m benchmarks.gpu --device "$DEVICE" --parts device,check,speed,cost,flips --prompts 3 \
  --tokens 48 --runs 10 --part-seconds 60 --json --results "$RESULTS"
part 60  5-profile     python3 -m benchmarks.gpu.kernel_profile --device "$DEVICE" --shape pair
part 75  6-llama       python3 -m benchmarks.gpu --device "$DEVICE" --parts cost,check --shape "$SHAPE" \
  --context 512,4000,16000,32000 --slots 40000 --runs 5 --part-seconds 55 --json --results "$RESULTS"
part 95  7-services    python3 -m benchmarks.gpu.services --device "$DEVICE" --json --results "$RESULTS"
