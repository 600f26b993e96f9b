# docker build -t headstart .
# docker build -t headstart:cuda --build-arg BACKEND=cuda .      (needs the NVIDIA container toolkit to run)
# docker build -t headstart:vulkan --build-arg BACKEND=vulkan .
#
# docker run -p 8080:8080 -v ~/models:/models headstart -m /models/x.gguf
ARG BACKEND=cpu

# What each backend compiles with, and what it needs when it runs.
FROM debian:bookworm-slim AS build-cpu
# no -march=native: the image also runs on machines that did not build it (with AVX2)
ENV CMAKE_ARGS="-DGGML_NATIVE=off"
FROM debian:bookworm-slim AS build-vulkan
ENV CMAKE_ARGS="-DGGML_NATIVE=off -DGGML_VULKAN=on"
RUN apt-get update && apt-get install -y --no-install-recommends libvulkan-dev glslc spirv-headers
FROM nvidia/cuda:12.8.1-devel-ubuntu24.04 AS build-cuda
ENV CMAKE_ARGS="-DGGML_NATIVE=off -DGGML_CUDA=on -DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined"

FROM debian:bookworm-slim AS run-cpu
FROM debian:bookworm-slim AS run-vulkan
RUN apt-get update && apt-get install -y --no-install-recommends libvulkan1 mesa-vulkan-drivers \
    && rm -rf /var/lib/apt/lists/*
FROM nvidia/cuda:12.8.1-runtime-ubuntu24.04 AS run-cuda

FROM build-${BACKEND} AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ python3 python3-venv
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
# libllama first, so that a change of our source does not compile it again
RUN python3 -m venv /opt/headstart \
    && /opt/headstart/bin/pip install --no-cache-dir $(grep -i '^llama.cpp.python==' constraints.txt)
COPY src src
RUN /opt/headstart/bin/pip install --no-cache-dir -c constraints.txt '.[tools]' \
    && /opt/headstart/bin/pip uninstall -y pip \
    && find /opt/headstart -name __pycache__ -prune -exec rm -r {} + \
    && /opt/headstart/bin/python -m compileall -q /opt/headstart/lib

FROM run-${BACKEND}
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates libgomp1 python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home --home-dir /home/headstart headstart \
    && mkdir -p /models /home/headstart/.cache \
    && chown headstart /models /home/headstart/.cache
COPY --from=build /opt/headstart /opt/headstart
USER headstart
# downloads and what was learned; keep them with -v headstart:/home/headstart/.cache
VOLUME /home/headstart/.cache
# as in llama-server's image; flags and further LLAMA_ARG_ variables win
ENV PATH=/opt/headstart/bin:$PATH LLAMA_ARG_HOST=0.0.0.0 LLAMA_ARG_PORT=8080 PYTHONUNBUFFERED=1
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ[\"LLAMA_ARG_PORT\"]}/health', timeout=4)"]
ENTRYPOINT ["headstart"]
