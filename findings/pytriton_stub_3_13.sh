#!/usr/bin/env bash
# The python backend's program for Python 3.13 in nvidia-pytriton runs the wheel's own CPython 3.13.0, whatever
# LD_LIBRARY_PATH says; those for 3.8 to 3.12 run the interpreter that the machine gives them.
# Why it matters: on Debian 13 (3.13.5) that library loads the system's modules, which need newer symbols: no Python
# model loads, and the usual remedy, a folder with the right libpython in LD_LIBRARY_PATH, has no effect.
#
# Guess: the six programs differ in the version only, and each looks for libpython3.X.so.1.0.
# Seen: with nvidia-pytriton 0.7.0 the one for 3.13 asks for libpython3-419a3a08.13.so.1.0, a name that auditwheel gave
# to a copy in the wheel, and finds it by an RPATH, which the loader asks before LD_LIBRARY_PATH.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$folder" \
    --only-binary :all: --platform manylinux_2_35_x86_64 nvidia-pytriton==0.7.0
(cd "$folder" && python3 -m zipfile -e nvidia_pytriton-*.whl wheel)
mkdir "$folder/machine"
status=0
for version in 3.8 3.9 3.10 3.11 3.12 3.13; do
    # A library of the machine's, as far as the loader can tell.
    cp "$(find "$folder/wheel/nvidia_pytriton.libs" -name 'libpython3-*')" "$folder/machine/libpython$version.so.1.0"
    stub=$folder/wheel/pytriton/tritonserver/python_backend_stubs/$version/triton_python_backend_stub
    chmod +x "$stub"
    found=$(LD_LIBRARY_PATH=$folder/machine ldd "$stub" 2>/dev/null | sed -n 's/.*libpython.* => \([^ ]*\) .*/\1/p')
    case $found in "$folder/machine/"*) whose=machine ;; *nvidia_pytriton.libs/*) whose=wheel ;; *) whose=nobody ;; esac
    echo "$version: libpython of the $whose (${found##*/})"
    [ "$whose" = "$([ "$version" = 3.13 ] && echo wheel || echo machine)" ] || status=1
done
version=$(grep -aom1 '3\.13\.[0-9]*' "$folder"/wheel/nvidia_pytriton.libs/libpython3-* || true)
echo "the wheel's library is of Python ${version:-unknown}"
[ "$version" = 3.13.0 ] || status=1
exit $status
