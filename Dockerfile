# docker build -t kvwatch .
# docker run --read-only -p 9477:9477 -e KVWATCH_… kvwatch
#
# Nothing is written at run time, so the root file system may be read-only. `kvwatch run` is the default command; any other
# follows the image's name: docker run kvwatch check http://vllm:8000/metrics
ARG PYTHON=3.11

# --- builder: the wheel, and a virtual environment that holds it and its dependencies, already compiled ---
FROM python:${PYTHON}-slim AS builder

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_REQUIRE_HASHES=1

WORKDIR /src
COPY . .

# All that is fetched is compared with its hash: what builds the wheel, then what kvwatch needs. Of the wheel itself nobody
# knows one, and it is installed without asking any registry. The environment never has a pip of its own.
RUN pip install -r .ci/build.txt \
 && PIP_REQUIRE_HASHES= pip wheel --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
 && python -m venv --without-pip /opt/kvwatch \
 && pip --python /opt/kvwatch/bin/python install --no-compile -r .ci/requirements.txt \
 && PIP_REQUIRE_HASHES= pip --python /opt/kvwatch/bin/python install --no-compile --no-index --no-deps /wheels/*.whl \
 && /opt/kvwatch/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/kvwatch/lib \
 && /opt/kvwatch/bin/kvwatch --help >/dev/null

# --- the image: an interpreter and that environment ---
FROM python:${PYTHON}-slim

LABEL org.opencontainers.image.title="kvwatch" \
      org.opencontainers.image.description="Watches a vLLM server's metrics and says what is wrong with its KV cache" \
      org.opencontainers.image.licenses="Apache-2.0"

# The base image's own pip and the wheels in ensurepip are of no use here.
RUN rm -rf /usr/local/bin/pip* /usr/local/bin/wheel \
           /usr/local/lib/python3.*/ensurepip \
           /usr/local/lib/python3.*/site-packages/*

COPY --from=builder /opt/kvwatch /opt/kvwatch

# What writes nothing can run read-only; a container listens on all its addresses, since what is published is chosen outside.
ENV PATH=/opt/kvwatch/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    KVWATCH_HOST=0.0.0.0

USER 65532:65532
WORKDIR /
EXPOSE 9477

# Asks where KVWATCH_HOST, KVWATCH_PORT, KVWATCH_TLS_CERT or the file of KVWATCH_CONFIG say; flags of `kvwatch run` it can't see.
HEALTHCHECK --interval=15s --timeout=5s --start-period=5s --retries=3 CMD ["python", "-m", "kvwatch.healthcheck"]

ENTRYPOINT ["kvwatch"]
CMD ["run"]
