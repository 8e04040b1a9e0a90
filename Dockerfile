# The images of the verifier, the drafter and the gateway, one target each:
#
#   docker build --target verifier --tag draftwire-verifier:0.1.0.dev0-cpu .
#   docker build --target verifier --tag draftwire-verifier:0.1.0.dev0-cuda \
#       --build-arg TORCH_INDEX_URL= --build-arg EXTRAS=serve,tracing,gpu .
#
# Verifier and drafter are the same layers. The build has no git: DRAFTWIRE_VERSION, DRAFTWIRE_REVISION and DRAFTWIRE_SOURCE
# identify what is built. docs/deploying.md describes the arguments and how the images are run.

ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm
# As `make version` prints it. Without it the images carry the version of an unknown source tree.
ARG DRAFTWIRE_VERSION=0.1.0.dev0
# The commit, as `git rev-parse HEAD` prints it.
ARG DRAFTWIRE_REVISION=
# The address of the repository.
ARG DRAFTWIRE_SOURCE=

# ---- the wheels of the SDK and of the services, compiled

FROM ${PYTHON_IMAGE} AS wheel
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY deploy/image/build_wheel.sh /usr/local/bin/
COPY pyproject.toml constraints.txt README.md ./
COPY sdk sdk
COPY services services
COPY draftwire_core draftwire_core
COPY verifier_service verifier_service
COPY drafter_service drafter_service
COPY gateway_service gateway_service
COPY draftwire_vllm draftwire_vllm
COPY draftwire_sglang draftwire_sglang
ARG DRAFTWIRE_VERSION
RUN build_wheel.sh /source /wheels "${DRAFTWIRE_VERSION}"

# ---- the packages of the services, with torch

FROM ${PYTHON_IMAGE} AS service-packages
# The index to install torch from; empty for PyPI's, which brings CUDA. Other indexes: https://pytorch.org
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
# "serve,tracing", or "serve,tracing,gpu" for GPUs
ARG EXTRAS=serve,tracing
# A file with versions that take the place of those in constraints.txt: deploy/image/measured.txt
ARG VERSIONS=
COPY deploy/image/install_packages.sh /usr/local/bin/
COPY pyproject.toml constraints.txt /source/
COPY deploy/image/measured.txt /source/deploy/image/
RUN install_packages.sh /source /opt/draftwire "${EXTRAS}" "${TORCH_INDEX_URL}" "${VERSIONS}"

# ---- the packages of the gateway, without torch

FROM ${PYTHON_IMAGE} AS gateway-packages
COPY deploy/image/install_packages.sh /usr/local/bin/
COPY pyproject.toml constraints.txt /source/
RUN install_packages.sh /source /opt/draftwire gateway,tracing

# ---- the base of every image: a user without rights, and paths that work with a read-only root

FROM ${PYTHON_IMAGE} AS runtime
RUN groupadd --gid 10001 draftwire \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin draftwire \
    && install --directory --owner=10001 --group=10001 /models /var/cache/huggingface /var/cache/triton
ENV PATH=/opt/draftwire/bin:$PATH \
    HOME=/tmp \
    HF_HOME=/var/cache/huggingface \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    DRAFTWIRE_LOG_FORMAT=json
WORKDIR /
STOPSIGNAL SIGTERM

# The wheels (2 MB) stay: not all builders can mount a stage built before.
#
# Triton needs a compiler for the engine's kernels on GPUs, and puts what it compiles into a directory from which it can be
# loaded: /tmp may be mounted noexec. torch must not replace its own CUDA kernels by ones compiled at their first call.
FROM runtime AS service
#
# Where GKE and Windows' subsystem for Linux mount the driver's libraries, which the loader does not search otherwise.
ENV TORCH_DISABLE_NATIVE_JIT=1 \
    TRITON_CACHE_DIR=/var/cache/triton \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/usr/lib/wsl/lib
ARG EXTRAS=serve,tracing
RUN --mount=type=bind,source=deploy/image/install_compiler.sh,target=/usr/local/bin/install_compiler.sh \
    install_compiler.sh "${EXTRAS}"
COPY --from=service-packages /opt/draftwire /opt/draftwire
COPY --from=wheel /wheels /wheels
RUN --mount=type=bind,source=deploy/image/install_wheel.sh,target=/usr/local/bin/install_wheel.sh \
    install_wheel.sh /wheels /opt/draftwire

# ---- the images

FROM service AS verifier
ENV DRAFTWIRE_LISTEN=0.0.0.0:50051 \
    DRAFTWIRE_PROBE_ADDRESS=127.0.0.1:50051
EXPOSE 50051 9090
VOLUME ["/var/cache/huggingface", "/var/cache/triton"]
USER 10001:10001
HEALTHCHECK --interval=30s --timeout=10s --start-period=10m CMD ["draftwire", "probe"]
ENTRYPOINT ["draftwire-verifier"]
ARG DRAFTWIRE_VERSION
ARG DRAFTWIRE_REVISION
ARG DRAFTWIRE_SOURCE
LABEL org.opencontainers.image.title="draftwire-verifier" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${DRAFTWIRE_VERSION}" \
    org.opencontainers.image.revision="${DRAFTWIRE_REVISION}" \
    org.opencontainers.image.source="${DRAFTWIRE_SOURCE}"

FROM service AS drafter
ENV DRAFTWIRE_LISTEN=0.0.0.0:50052 \
    DRAFTWIRE_PROBE_ADDRESS=127.0.0.1:50052
EXPOSE 50052 9091
VOLUME ["/var/cache/huggingface", "/var/cache/triton"]
USER 10001:10001
HEALTHCHECK --interval=30s --timeout=10s --start-period=10m CMD ["draftwire", "probe"]
ENTRYPOINT ["draftwire-drafter"]
ARG DRAFTWIRE_VERSION
ARG DRAFTWIRE_REVISION
ARG DRAFTWIRE_SOURCE
LABEL org.opencontainers.image.title="draftwire-drafter" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${DRAFTWIRE_VERSION}" \
    org.opencontainers.image.revision="${DRAFTWIRE_REVISION}" \
    org.opencontainers.image.source="${DRAFTWIRE_SOURCE}"

FROM runtime AS gateway
COPY --from=gateway-packages /opt/draftwire /opt/draftwire
COPY --from=wheel /wheels /wheels
RUN --mount=type=bind,source=deploy/image/install_wheel.sh,target=/usr/local/bin/install_wheel.sh \
    install_wheel.sh /wheels /opt/draftwire
ENV DRAFTWIRE_GATEWAY_LISTEN=0.0.0.0:8000 \
    DRAFTWIRE_GATEWAY_LOG_FORMAT=json \
    DRAFTWIRE_PROBE_ADDRESS=http://127.0.0.1:8000/health
EXPOSE 8000
USER 10001:10001
HEALTHCHECK --interval=30s --timeout=10s --start-period=1m CMD ["draftwire", "probe"]
ENTRYPOINT ["draftwire-gateway"]
ARG DRAFTWIRE_VERSION
ARG DRAFTWIRE_REVISION
ARG DRAFTWIRE_SOURCE
LABEL org.opencontainers.image.title="draftwire-gateway" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${DRAFTWIRE_VERSION}" \
    org.opencontainers.image.revision="${DRAFTWIRE_REVISION}" \
    org.opencontainers.image.source="${DRAFTWIRE_SOURCE}"

# ---- the bundled models, for clusters: the image copies them into the volume at /models

FROM ${PYTHON_IMAGE} AS copy
RUN apt-get update \
    && apt-get install --yes --no-install-recommends busybox-static \
    && rm -rf /var/lib/apt/lists/*

# The models and a `cp` that needs no library.
FROM scratch AS models
COPY --from=copy /bin/busybox /bin/cp
COPY models/target /bundled/target
COPY models/draft /bundled/draft
COPY models/draft-early /bundled/draft-early
USER 10001:10001
ENTRYPOINT ["/bin/cp", "-R", "/bundled/.", "/models/"]
ARG DRAFTWIRE_VERSION
ARG DRAFTWIRE_REVISION
ARG DRAFTWIRE_SOURCE
LABEL org.opencontainers.image.title="draftwire-models" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${DRAFTWIRE_VERSION}" \
    org.opencontainers.image.revision="${DRAFTWIRE_REVISION}" \
    org.opencontainers.image.source="${DRAFTWIRE_SOURCE}"
