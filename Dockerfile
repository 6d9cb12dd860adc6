# The image of the box. The base image decides between GPU and CPU; every other line is the same for both:
#
#   docker build -t trireme .                                                         # GPU: NVIDIA's Triton
#   docker build -t trireme:cpu --build-arg BASE_IMAGE=debian:trixie-slim .           # CPU: the wheel's Triton
#   docker build -t trireme:cpu --build-arg BASE_IMAGE=ubuntu:24.04 \                 # CPU: NVIDIA's Triton
#          --build-arg TRITON=nvcr.io/nvidia/tritonserver:26.11-py3 .
#
# With the models inside, for a start without a mount or model data (make image MODELS=REPOSITORY does this):
#
#   docker build -t pets --target with-models --build-context models=REPOSITORY .
#
# docs/run/image.md says how to run the image and what each layer contains.
ARG BASE_IMAGE=nvcr.io/nvidia/tritonserver:26.11-py3
# The image whose Triton is put onto the base; empty: the base's own, or the wheel's.
ARG TRITON=

# --- Triton out of another image of the same distribution, for a CPU -----------------------------------------------
# The server, its backends for Python models, ONNX graphs and OpenVINO, and the libraries that these need.
FROM ${TRITON:-${BASE_IMAGE}} AS triton
RUN mkdir -p /parts/system && cd /opt/tritonserver \
 && for part in TRITON_VERSION bin lib backends/python backends/onnxruntime backends/openvino; do \
      [ ! -e "$part" ] || cp -a --parents "$part" /parts; \
    done \
 && rm -f /parts/backends/onnxruntime/libonnxruntime_providers_cuda.so /parts/backends/onnxruntime/libonnxruntime_providers_tensorrt.so \
 && find /parts -type f \( -name '*.so*' -o -perm /111 \) -exec ldd {} + 2> /dev/null \
      | sed -n 's|.* => \(/[^ ]*\) .*|\1|p' | grep -v -e ^/parts/ -e ^/opt/tritonserver/lib/ -e /libpython3 | sort -u | xargs -r cp -L -t /parts/system
# Without the libraries that the base has itself: those come first, as their holes get mended. A library that is nowhere
# ends the build, unless it is the driver's.
FROM ${BASE_IMAGE} AS triton-parts
COPY --from=triton /parts /opt/tritonserver
RUN cd /opt/tritonserver/system && ldconfig -p > /tmp/libraries \
 && for library in *; do ! grep -q "^\s$library " /tmp/libraries || rm "$library"; done \
 && printf '/opt/tritonserver/lib\n/opt/tritonserver/system\n' > /etc/ld.so.conf.d/zz-tritonserver.conf && ldconfig \
 && ! find /opt/tritonserver -type f \( -name '*.so*' -o -perm /111 \) -exec ldd {} + 2> /dev/null \
      | grep 'not found' | grep -v -e libcuda.so.1 -e libnvidia -e libpython3

FROM ${BASE_IMAGE} AS base
FROM ${BASE_IMAGE} AS base-with-triton
COPY --from=triton-parts /opt/tritonserver /opt/tritonserver
COPY --from=triton-parts /etc/ld.so.conf.d/zz-tritonserver.conf /etc/ld.so.conf.d/

# --- The Python packages, in a stage whose leftovers do not reach the image --------------------------------
FROM base${TRITON:+-with-triton} AS packages
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv
WORKDIR /opt/trireme
COPY locks/requirements.lock ./
# The router's packages; those that read, run and compare ONNX graphs (for build-model and for the wheel's Python
# backend); boto3, only for S3; OpenTelemetry, only for the OTEL_* variables; and Triton from its wheel, if the base
# has none. pip installs only files whose hashes are in the lock. The wheel's stubs for other Python versions are
# removed, and so is the Python 3.13.0 that it brings for one of them: that one gets the plain name of Debian's library,
# as the others have it, padded to the old length. So no stub has to be copied at the start (sm/repository/machine.py).
RUN python3 -m venv /tmp/pip && python3 -m venv --without-pip .venv \
 && sed "$([ ! -e /opt/tritonserver ] || echo '/^nvidia-pytriton==/,/[^\\]$/d')" requirements.lock > /tmp/packages.txt \
 && /tmp/pip/bin/pip --python .venv/bin/python install --quiet --no-cache-dir --no-deps --require-hashes --requirement /tmp/packages.txt \
 && if [ ! -e /opt/tritonserver ]; then \
      cd .venv/lib/python3.*/site-packages \
   && find pytriton/tritonserver/python_backend_stubs -mindepth 1 -maxdepth 1 ! -name "$(basename "$(dirname "$PWD")" | cut -c7-)" -exec rm -r {} + \
   && LC_ALL=C sed -i -E 's/libpython3-[0-9a-f]{8}(\.[0-9]+\.so\.1\.0)/libpython3\1\x00\x00\x00\x00\x00\x00\x00\x00\x00/g' \
        pytriton/tritonserver/python_backend_stubs/*/triton_python_backend_stub \
   && rm nvidia_pytriton.libs/libpython3*; \
    fi
# Remove what the box does not need: the tests of packages; boto3's data on all services except S3 and those that
# give credentials; the bytecode of transformers' models, which need torch; hf-xet, which only makes downloads
# from a model hub faster; and OpenVINO's plugins for GPUs and NPUs, its readers of other formats and its converter,
# which alone uses openvino-telemetry.
RUN find .venv \( -path '*/numpy/*/tests' -o -path '*/onnx/backend/test' \) -prune -exec rm -r {} + \
 && find .venv -path '*/botocore/data/*' -prune -type d ! -name s3 ! -name sso ! -name sso-oidc ! -name sts ! -name signin -exec rm -r {} + \
 && find .venv -path '*/boto3/examples' -prune -exec rm -r {} + \
 && find .venv -path '*/transformers/*/modeling_*.pyc' -delete \
 && find .venv -path '*/openvino/libs/*' \( -name '*_gpu_plugin.so' -o -name '*_npu_plugin.so' -o -name '*_hetero_plugin.so' \
      -o -name '*_auto*_plugin.so' -o -name '*_frontend.so*' -o -name 'libopenvino_c.so*' -o -name cache.json \) \
      ! -name '*_onnx_frontend*' ! -name '*_ir_frontend*' -delete \
 && rm -r .venv/lib/python3.*/site-packages/openvino/include .venv/lib/python3.*/site-packages/openvino/tools \
 && /tmp/pip/bin/pip --python .venv/bin/python uninstall --quiet --yes hf-xet openvino-telemetry
# pip as one file, only for TRIREME_INSTALL_REQUIREMENTS. It has 2 MB; the static uv has 37. It is beside the
# environment, not in it, so that no client can import it.
RUN echo 'pip==26.3 --hash=sha256:6c36ae7da8695be67e3cd9f7d87919667ced53f57ce2ede75d89b5912ed2bc4c' > /tmp/pip.txt \
 && /tmp/pip/bin/pip install --quiet --no-cache-dir --no-compile --no-deps --require-hashes --requirement /tmp/pip.txt --target /tmp/zipped \
 && printf 'import sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n' > /tmp/zipped/__main__.py \
 && rm -r /tmp/zipped/bin \
 && python3 -m zipapp --compress --output pip.pyz /tmp/zipped

# --- The box ----------------------------------------------------------------------------------------------
FROM base${TRITON:+-with-triton} AS box
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      nginx-light python3 "libpython$(apt-cache depends python3 | sed -n 's/.*Depends: python\(3\.[0-9]*\)$/\1/p')" \
 && ldconfig \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
WORKDIR /opt/trireme
COPY --from=packages /opt/trireme/.venv .venv
COPY --from=packages /opt/trireme/pip.pyz ./
COPY serve nginx.conf ./
COPY sm sm
COPY extensions extensions
# Compile here, because the running container may not write. The .pth file makes `sm` and the extensions importable from
# any folder, and their metadata, which pip would write, has their entry points.
# Any user may read the files, whatever the builder's umask was: serverless endpoints run the image as a user of theirs.
RUN .venv/bin/python extensions/write_metadata.py "$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' sm/__init__.py)" \
 && find serve nginx.conf sm extensions \( ! -perm -a+r -o -type d ! -perm -a+x \) -exec chmod a+rX {} + \
 && .venv/bin/python -m compileall -q --invalidation-mode unchecked-hash sm extensions \
 && printf '/opt/trireme\n/opt/trireme/extensions\n' > "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/trireme.pth"
# A base with Triton runs Python models on its own Python: see the file.
RUN if [ -e /opt/tritonserver ]; then \
      folder=$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
   && mkdir -p "$folder" \
   && cp sm/triton/borrowed_packages.py "$folder/trireme_packages.py" \
   && echo 'import trireme_packages' > "$folder/trireme.pth"; \
    fi
# Nothing here needs root. If the base has no user with this number, create one with a home folder for what is built
# at the start (TensorRT plans). AWS wants SageMaker's containers to start as root (RUN_AS=0:0): the box then goes on as
# user 1000, whom every image has, unless that user cannot read the models.
ARG RUN_AS=1000:1000
RUN for user in 1000:1000 "$RUN_AS"; do \
      getent passwd "${user%%:*}" > /dev/null \
      || { { getent group "${user##*:}" > /dev/null || groupadd --gid "${user##*:}" "trireme${user##*:}"; } \
        && useradd --uid "${user%%:*}" --gid "${user##*:}" --create-home --shell /usr/sbin/nologin "trireme${user%%:*}"; } \
      || exit 1; \
    done
ENV PYTHONDONTWRITEBYTECODE=1
EXPOSE 8080
# The exec form makes the supervisor PID 1, so it gets the signals. The platform adds the word `serve`.
ENTRYPOINT ["/opt/trireme/.venv/bin/python", "-m", "sm.cli"]
CMD ["serve"]
LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true \
      com.amazonaws.sagemaker.capabilities.bidirectional-streaming=true \
      com.amazonaws.sagemaker.capabilities.multi-models=true \
      org.opencontainers.image.title=trireme-serving \
      org.opencontainers.image.licenses=Apache-2.0
# These come last because they change most often: configurations for build-model, the clients, and the labels.
COPY model model
COPY clients clients
ARG VERSION=unknown
ARG REVISION=unknown
ARG SOURCE=unknown
# This RUN follows the ARGs, because Podman 4 ignores changed ARGs when it takes a LABEL from its cache.
RUN find model clients \( ! -perm -a+r -o -type d ! -perm -a+x \) -exec chmod a+rX {} + \
 && .venv/bin/python -m compileall -q --invalidation-mode unchecked-hash clients
# A number, so that Kubernetes can see that the user is not root.
USER ${RUN_AS}
LABEL org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.revision=${REVISION} \
      org.opencontainers.image.source=${SOURCE}

# --- The box with models inside: --target with-models --build-context models=REPOSITORY ---------------------------
# The models have a stage of their own, so that the change of permissions does not store them twice. Any user may
# read them, because the container's user is not the one who builds.
FROM ${BASE_IMAGE} AS models-for-all
COPY --from=models . /repository
RUN chmod -R a+rX,go-w /repository

FROM box AS with-models
COPY --from=models-for-all /repository /opt/trireme/repository

# The default target.
FROM box
