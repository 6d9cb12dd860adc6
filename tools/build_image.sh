#!/usr/bin/env bash
# Build the container image: `make image` calls this. docs/run/image.md describes the variables.
#
#   tools/build_image.sh            build it; with DRY_RUN=yes print the commands
#   tools/build_image.sh --engine   print the engine whose service answers
#
# IMAGE names the image, BASE_IMAGE its base, TRITON the image whose Triton it gets, and ENGINE docker or podman.
# MODELS is demo, a folder or a .tar.gz: the models that go into the image. BUILD_FLAGS go to the engine.
set -euo pipefail
cd "${BASH_SOURCE[0]%/*}/.."

main() {
    local engine=${ENGINE:-} revision
    [[ -n $engine ]] || engine=$(find_engine)
    if [[ ${1:-} == --engine ]]; then
        echo "$engine"
        return
    fi
    [[ -n $engine ]] || die "$(missing_engine)"
    [[ -n ${ENGINE:-} || $engine != *podman ]] || ! command -v docker >/dev/null ||
        say "Docker's service does not answer: using podman"
    revision=$(git rev-parse HEAD 2>/dev/null) || revision=unknown
    local build=("$engine" build --build-arg "BASE_IMAGE=$(base)" --build-arg "REVISION=$revision"
        --build-arg "VERSION=$(version)" --tag "${IMAGE:-trireme:cpu}")
    [[ -z ${TRITON:-} ]] || build+=(--build-arg "TRITON=$TRITON")
    eval "build+=(${BUILD_FLAGS:-})"  # as make would pass them to a shell, quotes included
    if [[ -n $models ]]; then
        prepare_models
        build+=(--target with-models --build-context "models=$models")
    fi
    run "${build[@]}" .
}

# Print the engine whose service answers: a Docker client alone builds nothing.
find_engine() {
    local engine
    for engine in docker podman; do
        ! "$engine" info >/dev/null 2>&1 || { command -v "$engine"; return; }
    done
}

missing_engine() {
    if command -v docker >/dev/null; then
        echo "docker is here, but its service does not answer, and there is no podman that does:" \
            "start Docker, or apt-get install podman"
    else
        echo "there is no docker and no podman; on Debian and Ubuntu: apt-get install podman"
    fi
}

# NVIDIA builds its image on this Ubuntu.
base() { if [[ -n ${TRITON:-} ]]; then echo "${BASE_IMAGE:-ubuntu:24.04}"; else echo "${BASE_IMAGE:-debian:trixie-slim}"; fi; }

version() { [[ $(<sm/__init__.py) =~ __version__\ =\ \"([^\"]+)\" ]] && echo "${BASH_REMATCH[1]}"; }

# Make $models the folder of the models that it names.
prepare_models() {
    if [[ $models == demo ]]; then
        run .venv/bin/sm prepare
        models=${TRIREME_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/trireme}/repository/cpu
    elif [[ $models == *.tar.gz ]]; then
        [[ -f $models ]] || die "MODELS=$models: there is no such file"
        unpacked=$(mktemp -d)
        run tar -xzf "$models" -C "$unpacked"
        models=$unpacked
    fi
    [[ -n ${DRY_RUN:-} || -n $(ls "$models" 2>/dev/null) ]] ||
        die "MODELS=$MODELS: there is no model repository in it; MODELS is demo, a folder, or a .tar.gz"
}

run() {
    if [[ -n ${DRY_RUN:-} ]]; then printf '%q ' "$@" && echo; else (set -x && "$@"); fi
}

say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

models=${MODELS:-} unpacked=''
trap '[[ -z $unpacked ]] || rm -rf "$unpacked"' EXIT
main "$@"
