#!/usr/bin/env bash
# Checks the CUDA half on a machine with a GPU, in one call of less than ten minutes:
#   1. what is installed;  2. the conformance suite on the GPU;  3. compute-sanitizer, all four tools.
#
# Needs torch with CUDA and CuPy of the same major version, and the test extra:
#   pip install -e '.[cuda12,test]'        (or cuda13)
# compute-sanitizer is part of the CUDA toolkit; without one: pip install nvidia-cuda-sanitizer-api-cu12
# or name it in COMPUTE_SANITIZER. Results go to the folder $1 (default: build/gpu_check).
set -u
cd "$(dirname "$0")/.."
out=${1:-build/gpu_check}
mkdir -p "$out"
export PYG_DIRECT_REQUIRE_GPU=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
# Every array in an allocation of its own, so that memcheck and initcheck see each one's bounds.
sanitized="env PYTORCH_NO_CUDA_MEMORY_CACHING=1"
failed=0

{
  nvidia-smi --query-gpu=name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max --format=csv
  python -c 'import torch, cupy; print("torch", torch.__version__, "CUDA", torch.version.cuda); print("cupy", cupy.__version__)'
} 2>&1 | tee "$out/environment.txt"

timeout 200 python -m pytest -q -m gpu tests/test_gpu_conformance.py --durations=10 2>&1 \
  | tee "$out/conformance.txt"
[ "${PIPESTATUS[0]}" -eq 0 ] || { echo "FAILED: conformance"; failed=1; }

sanitizer=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer \
  || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null \
  || python -c 'import glob, site; print(*[f for d in site.getsitepackages() for f in glob.glob(d + "/nvidia/**/compute-sanitizer", recursive=True)][:1])')}
if [ -z "$sanitizer" ]; then
  echo "FAILED: compute-sanitizer was not found; set COMPUTE_SANITIZER to its path."
  exit 1
fi
for tool in memcheck racecheck initcheck synccheck; do
  # shellcheck disable=SC2086
  timeout 85 $sanitized "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20 \
    --target-processes all python -m benchmarks.gpu_small_run >"$out/$tool.txt" 2>&1
  status=$?
  tail -n 4 "$out/$tool.txt"
  [ "$status" -eq 0 ] && echo "ok: $tool" || { echo "FAILED: $tool (exit $status)"; failed=1; }
done
exit "$failed"
