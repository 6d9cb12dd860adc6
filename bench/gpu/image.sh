#!/usr/bin/env bash
# Build the image's GPU flavour, run it with every GPU, and check it from outside. Needs Docker with the NVIDIA runtime.
set -euo pipefail
cd "$(dirname "$0")/../.."

ENGINE=${ENGINE:-docker}
BASE_IMAGE=${BASE_IMAGE:-nvcr.io/nvidia/tritonserver:26.07-py3}
IMAGE=trireme:gpu-check-$$
NAME=trireme-gpu-check-$$
PORT=${PORT:-8080}

fail() { echo "$1" >&2; exit 1; }
command -v "$ENGINE" >/dev/null || fail "there is no $ENGINE: install Docker, or set ENGINE"
command -v nvidia-smi >/dev/null || fail "there is no nvidia-smi: this script is for a machine with an NVIDIA GPU"
"$ENGINE" info --format '{{json .Runtimes}}' | grep -q nvidia || fail "$ENGINE has no NVIDIA runtime: install the NVIDIA Container Toolkit"
command -v make >/dev/null || fail "there is no make"

tear_down() {
    "$ENGINE" logs "$NAME" >"${LOG:-gpu-image.log}" 2>&1 || true
    "$ENGINE" rm --force "$NAME" >/dev/null 2>&1 || true
    "$ENGINE" rmi --force "$IMAGE" >/dev/null 2>&1 || true
}
trap tear_down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

make .venv/.dev
make image MODELS=demo BASE_IMAGE="$BASE_IMAGE" IMAGE="$IMAGE" ENGINE="$ENGINE"
"$ENGINE" run --detach --name "$NAME" --gpus all --shm-size 1g --publish "127.0.0.1:$PORT:8080" "$IMAGE" serve >/dev/null

for _ in $(seq 300); do
    curl --silent --fail --output /dev/null "http://127.0.0.1:$PORT/ping" && break
    [ "$("$ENGINE" inspect --format '{{.State.Running}}' "$NAME")" = true ] || fail "the container ended; its log is ${LOG:-gpu-image.log}"
    sleep 1
done
curl --silent --fail --output /dev/null "http://127.0.0.1:$PORT/ping" || fail "the box was not ready in 5 minutes"
"$ENGINE" exec "$NAME" nvidia-smi
curl --silent "http://127.0.0.1:$PORT/metrics" | grep -q '^nv_gpu_' || fail "/metrics has no series of the GPU"

.venv/bin/pytest tests/contract --url "http://127.0.0.1:$PORT"
.venv/bin/sm test --url "http://127.0.0.1:$PORT"

# The check without Docker, on the same GPU, with a Python that has torch.
make gpu-bundle
"${GPU_PYTHON:-python3.12}" -m bench.gpu --bundle build/gpu-bundle --out gpu-results \
    || fail "a stage did not end: see gpu-results/gpu.jsonl"
