# ov-hsdag in a container, with nothing but what running it takes. See docs/guides/containers.md.
#   docker build -t ov-hsdag .
#   docker run --rm --read-only -v "$PWD:/models" -w /models ov-hsdag place model.onnx --device HETERO:GPU,CPU --output placed.xml

FROM python:3.12-slim AS build
# The compiler is whichever the base image's Debian has, and is left behind here: no version to pin.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /src
# OpenVINO before the package, which then compiles the library for C++ programs against it.
RUN python -m venv /opt/ov-hsdag \
    && /opt/ov-hsdag/bin/pip install --no-cache-dir --constraint /src/constraints.txt openvino \
    && /opt/ov-hsdag/bin/pip install --no-cache-dir --constraint /src/constraints.txt /src
# A virtual environment contains its path and its interpreter: both stages have the same.
FROM python:3.12-slim
COPY --from=build /opt/ov-hsdag /opt/ov-hsdag
ENV PATH=/opt/ov-hsdag/bin:$PATH
USER 1000
ENTRYPOINT ["ov-hsdag"]
