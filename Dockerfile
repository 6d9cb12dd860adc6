# The box as one image. The base chooses the flavour; every other line is the same for both:
#
#   docker build -t trireme .                                                         # GPU: NVIDIA's Triton
#   docker build -t trireme:cpu --build-arg BASE_IMAGE=debian:bookworm-slim .         # CPU: the wheel's Triton
#
# With the models inside, for a start without a mount or model data (make image MODELS=REPOSITORY does this):
#
#   docker build -t pets --target with-models --build-context models=REPOSITORY .
#
# docs/run/image.md tells how to run it and what is in which layer.
ARG BASE_IMAGE=nvcr.io/nvidia/tritonserver:26.07-py3

# --- The Python packages, made where pip may leave things lying about -------------------------------------
FROM ${BASE_IMAGE} AS packages
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv
WORKDIR /opt/trireme
COPY requirements.lock pyproject.toml ./
# The router, what reads, runs and compares ONNX graphs (build-model, and the wheel's python backend), and
# boto3, for TRIREME_S3_BUCKETS alone.
RUN python3 -m venv /tmp/pip && python3 -m venv --without-pip .venv \
 && /tmp/pip/bin/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; e = p["optional-dependencies"]; print(*p["dependencies"], *e["cpu"], *e["deploy"], sep="\n")' > /tmp/packages.txt \
 && /tmp/pip/bin/pip --python .venv/bin/python install --quiet --no-cache-dir --constraint requirements.lock --requirement /tmp/packages.txt
# The one step that differs: a base without Triton gets the wheel's. Its stubs for other Pythons, and the
# whole Python 3.13 it brings for one of them, are no use here.
RUN if [ ! -e /opt/tritonserver ]; then \
      /tmp/pip/bin/pip --python .venv/bin/python install --quiet --no-cache-dir --constraint requirements.lock --no-deps nvidia-pytriton \
   && cd .venv/lib/python3.*/site-packages \
   && find pytriton/tritonserver/python_backend_stubs -mindepth 1 -maxdepth 1 ! -name "$(basename "$(dirname "$PWD")" | cut -c7-)" -exec rm -r {} + \
   && { [ -e pytriton/tritonserver/python_backend_stubs/3.13 ] || rm nvidia_pytriton.libs/libpython3*; }; \
    fi
# Tests of others; what boto3 knows of services that the box never asks, S3 and those that give credentials
# left; the bytecode of what transformers runs with torch alone; and what makes downloads from a model hub
# faster: the box looks nothing up.
RUN find .venv \( -path '*/numpy/*/tests' -o -path '*/onnx/backend/test' \) -prune -exec rm -r {} + \
 && find .venv -path '*/botocore/data/*' -prune -type d ! -name s3 ! -name sso ! -name sso-oidc ! -name sts ! -name signin -exec rm -r {} + \
 && find .venv -path '*/boto3/examples' -prune -exec rm -r {} + \
 && find .venv -path '*/transformers/*/modeling_*.pyc' -delete \
 && /tmp/pip/bin/pip --python .venv/bin/python uninstall --quiet --yes hf-xet

# --- The box ----------------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS box
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      nginx-light python3 "libpython$(apt-cache depends python3 | sed -n 's/.*Depends: python\(3\.[0-9]*\)$/\1/p')" \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
WORKDIR /opt/trireme
COPY --from=packages /opt/trireme/.venv .venv
COPY serve nginx.conf ./
COPY sm sm
# Compiled here, as nothing may be written where it runs; the path makes `sm` importable from anywhere.
RUN .venv/bin/python -m compileall -q --invalidation-mode unchecked-hash sm \
 && echo /opt/trireme > "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/trireme.pth"
# Nothing here needs root. A base may have a user of this number already; who has none gets one, with a home
# for what is built at start (TensorRT plans). Where the models can be read by root alone: RUN_AS=0:0.
ARG RUN_AS=1000:1000
RUN getent passwd "${RUN_AS%%:*}" > /dev/null \
 || { { getent group "${RUN_AS##*:}" > /dev/null || groupadd --gid "${RUN_AS##*:}" trireme; } \
   && useradd --uid "${RUN_AS%%:*}" --gid "${RUN_AS##*:}" --create-home --shell /usr/sbin/nologin trireme; }
ENV PYTHONDONTWRITEBYTECODE=1
EXPOSE 8080
# The exec form: the supervisor is PID 1 and gets the signals. The platform adds the word `serve`.
ENTRYPOINT ["/opt/trireme/.venv/bin/python", "-m", "sm.cli"]
CMD ["serve"]
LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true \
      com.amazonaws.sagemaker.capabilities.bidirectional-streaming=true \
      com.amazonaws.sagemaker.capabilities.multi-models=true \
      org.opencontainers.image.title=trireme \
      org.opencontainers.image.licenses=Apache-2.0
# Last, as these change most: configurations for build-model, the clients, and what the build calls itself.
COPY model model
COPY clients clients
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=unknown
# After the ARGs: Podman 4 takes a LABEL from its cache whatever they say, but not a RUN.
RUN .venv/bin/python -m compileall -q --invalidation-mode unchecked-hash clients
# By number, so that Kubernetes can tell that it is not root.
USER ${RUN_AS}
LABEL org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.revision=${REVISION} \
      org.opencontainers.image.source=${SOURCE}

# --- The box and its models, where they are asked for: --target with-models --build-context models=REPOSITORY ----
# In a stage of their own, so that changed rights do not store them twice. Any user may read them, as the
# container's is not the one who builds.
FROM ${BASE_IMAGE} AS models-for-all
COPY --from=models . /repository
RUN chmod -R a+rX,go-w /repository

FROM box AS with-models
COPY --from=models-for-all /repository /opt/trireme/repository

# What is built if no target is named.
FROM box
